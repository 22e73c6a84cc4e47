"""The recipe of a run of dictionaries: the model they explain, their sizes, and how they are trained."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pellucid.architecture import Architecture
from pellucid.features.dictionary import DictionaryError, Site, transcoder_sites
from pellucid.option_values import ArchitectureError, Open, Options, build, check_given_once, overlaid, resolve_field
from pellucid.runs.options import LENGTHS, RecipeError, TrainOptions, refuser, with_train
from pellucid.tensor_names import names
from pellucid.training.config import Base
from pellucid.training.kinds import check_function
from pellucid.training.recipe import TextOptions, TextRecipe

#: Adam's rate of published dictionaries, 3e-4 and less, loses half a nat in minutes; the rate falls at the end
TRAIN = TrainOptions(
    optimizer="adamw",
    learning_rate=5e-3,
    beta_2=0.999,
    weight_decay=0.0,
    clip=0.0,
    precision="float32",
    compile="no",
    accumulate=1,
    sample_every=0,
)
#: the fields of `train` that a run of dictionaries has
TRAIN_FIELDS = ("steps", "tokens", "epochs", "minutes", "batch", "learning_rate", "beta_1", "beta_2", "eps", "clip")
TRAIN_FIELDS += ("schedule", "warmup", "floor", "seed", "device", "deterministic", "evaluate_every", "evaluate_tokens")
TRAIN_FIELDS += ("checkpoint_every", "keep_last", "track")
#: features for each coordinate of what a dictionary reads
EXPANSION = 16


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions(Options):
    """The dictionaries of a run: one for each layer."""

    tensor: str = "mlp"
    """what is explained: mlp, by transcoders, which read what an MLP reads and write what it adds to the stream; or a
    tensor of every block, such as resid_post or attn_out, by autoencoders
    """
    n_features: Open[int] = None
    """features of each dictionary; auto: 16 for each coordinate of what it reads"""
    n_ctx: Open[int] = None
    """tokens that the model reads at once; auto: as many as it can"""
    k: int = 32
    """how many features are active at a position, on average"""
    linear: Literal["no", "yes"] = "yes"
    """whether transcoders add a linear map of what they read (Paulo et al. 2025)"""
    dead_tokens: int = 100_000
    """a feature that has been silent for so many tokens is trained on what the others leave unexplained"""
    dead_share: float = 1 / 32
    """the factor of that in the loss (Gao et al. 2024, appendix A.2)"""

    def check(self) -> None:
        """Raise RecipeError for values that no dictionary has."""
        refuse_unless = refuser(self, "model")
        refuse_unless((self.n_features or 1) >= 1, "n_features", "1 or more, or auto")
        refuse_unless((self.n_ctx or 1) >= 1, "n_ctx", "1 or more, or auto")
        refuse_unless(1 <= self.k <= (self.n_features or self.k), "k", "from 1 to n_features")
        refuse_unless(self.dead_tokens >= 1, "dead_tokens", "1 or more")
        refuse_unless(0 <= self.dead_share < math.inf, "dead_share", "0 or more")


@dataclass(frozen=True, kw_only=True)
class FeaturesRecipe(TextRecipe):
    """One run of dictionaries; `base` is the model that they explain."""

    base: Base
    model: FeaturesOptions = field(default_factory=FeaturesOptions)
    train: TrainOptions = TRAIN
    kind: Literal["features"] = "features"

    @property
    def row(self) -> float:
        return self.model.n_ctx


def check_explainable(a: Architecture) -> None:
    """Raise RecipeError for a model that does not predict the next token of a text, by which features are measured."""
    lacks = (
        (a.encoder is not None, "reads a source beside its text"),
        (a.attention.mask == "bidirectional", "reads the tokens behind a position too"),
        (a.readout == "none", "computes no logits"),
        (a.n_layers == 0, "has no layers"),
    )
    if why := next((words for holds, words in lacks if holds), ""):
        raise RecipeError(f"features are learned of models that predict the next token of a text, and this one {why}")


def sites_of(a: Architecture, tensor: str) -> list[Site]:
    """Where the dictionaries of a run stand. Raises RecipeError for a tensor that no block has."""
    if tensor == "mlp":
        return transcoder_sites(a)
    full = [f"blocks.{layer}.{tensor}" for layer in range(a.n_layers)]
    known = set(names(a))
    if not known.issuperset(full) or "." in tensor:
        of_blocks = [n.removeprefix("blocks.0.") for n in names(a) if n.startswith("blocks.0.")]
        streams = ", ".join(n for n in of_blocks if "." not in n)
        raise RecipeError(f"model.tensor = {tensor!r}: choose mlp, or one of {streams}")
    return [Site(layer=layer, reads=name, writes=name) for layer, name in enumerate(full)]


def make_features_recipe(
    inputs: tuple[str, ...],
    text: TextOptions,
    base: Base,
    a: Architecture,
    changes: Mapping[str, Any],
    length: Mapping[str, Any],
) -> FeaturesRecipe:
    """A recipe from single fields (`k`, or `model.k`), as text or typed, and a length; three minutes unless given.

    Raises RecipeError: one line that names the nearest right field, or what is wrong with a value.
    """
    check_explainable(a)
    known = [f"model.{f.name}" for f in fields(FeaturesOptions)] + [f"train.{name}" for name in TRAIN_FIELDS]
    of: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    try:
        check_given_once(changes, lambda name: resolve_field(name, known))
        for name, value in changes.items():
            part, _, last = resolve_field(name, known).rpartition(".")
            of[part][last] = value
        options = build(FeaturesOptions, of["model"], "model")
    except ArchitectureError as error:
        raise RecipeError(str(error)) from None
    sites = sites_of(a, options.tensor)
    if sites[0].kind == "autoencoder":
        if of["model"].get("linear") == "yes":
            raise RecipeError("model.linear = yes goes with transcoders (model.tensor = mlp): leave it out")
        options = replace(options, linear="no")
    options = replace(options, n_features=options.n_features or EXPANSION * a.d_model, n_ctx=options.n_ctx or a.n_ctx)
    options.check()
    if options.n_ctx > a.n_ctx:
        raise RecipeError(f"model.n_ctx = {options.n_ctx}: the model reads at most {a.n_ctx} tokens at once")
    length = {name: value for name, value in length.items() if value}
    train = overlaid(TRAIN, {**of["train"], **length}, "train")
    recipe = FeaturesRecipe(inputs=inputs, text=text, base=base, model=options, train=train)
    if not any(getattr(train, name) for name in LENGTHS):
        recipe = with_train(recipe, minutes=3.0)
    return recipe


def read_features_recipe(run: Path) -> FeaturesRecipe:
    """The recipe of a run of dictionaries; RecipeError where there is none."""
    values = check_function(run, "load_features")
    try:
        return FeaturesRecipe.from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError, DictionaryError) as error:
        raise RecipeError(f"{run / 'recipe.json'} cannot be read: {error}") from None
