"""The recipe of a predictor that is not a transformer: the same parts, with another description of the model."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pellucid.json_files import read_json_file
from pellucid.option_values import ArchitectureError, build, check_given_once, overlaid, resolve_field
from pellucid.predictors.neural import NeuralProbabilisticOptions
from pellucid.predictors.ngram import NGramOptions
from pellucid.predictors.recurrent import RecurrentOptions
from pellucid.runs.options import LENGTHS, RecipeError, TrainOptions
from pellucid.training.recipe import TextOptions, TextRecipe, settle_held_out

PredictorKind = Literal["ngram", "neural-probabilistic", "recurrent"]
Description = NGramOptions | NeuralProbabilisticOptions | RecurrentOptions
DESCRIPTION_OF_KIND: dict[str, type[Description]] = {
    "ngram": NGramOptions,
    "neural-probabilistic": NeuralProbabilisticOptions,
    "recurrent": RecurrentOptions,
}
#: options that follow from the text
FROM_TEXT = ("n_vocab", "separator", "documents")
#: for small networks without blocks: AdamW for all weights, little decay, no compilation, one pass a step
TRAIN = TrainOptions(optimizer="adamw", weight_decay=0.01, precision="float32", compile="no", accumulate=1)
#: targets of one training window of a predictor that reads a fixed number of tokens
TRAINING_WINDOW = 64


@dataclass(frozen=True, kw_only=True)
class PredictorRecipe(TextRecipe):
    """One run of a predictor: the text, the predictor, and how it is trained."""

    kind: PredictorKind
    model: Description
    train: TrainOptions = TRAIN

    def __post_init__(self):
        self.train.check_decay_is_set()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote. Raises RecipeError or ArchitectureError, which name the entry that is wrong."""
        if (options := values.get("options", {})).get("kind") not in DESCRIPTION_OF_KIND:
            raise RecipeError(f"kind = {options.get('kind')!r}: expected one of {', '.join(DESCRIPTION_OF_KIND)}")
        model = build(DESCRIPTION_OF_KIND[options["kind"]], options.get("model", {}), "model")
        return super().from_dict({**values, "options": {**options, "model": model}})

    @property
    def window(self) -> int:
        """Targets of one training window."""
        return self.model.n_ctx if isinstance(self.model, RecurrentOptions) else TRAINING_WINDOW

    @property
    def row(self) -> float:
        return self.window


def predictor_fields(kind: str) -> list[str]:
    """The dotted name of every field that can be set for this kind of predictor."""
    if kind not in DESCRIPTION_OF_KIND:
        raise RecipeError(f"predictor {kind!r}: choose one of {', '.join(DESCRIPTION_OF_KIND)}")
    names = [f"model.{f.name}" for f in dataclasses.fields(DESCRIPTION_OF_KIND[kind]) if f.name not in FROM_TEXT]
    names += [f"text.{f.name}" for f in dataclasses.fields(TextOptions) if f.name != "chat_template"]
    if kind == "ngram":
        return [*names, "train.seed"]
    of_transformers = "optimizer muon_learning_rate recompute init_std objective mask_share balance attention"
    without = of_transformers.split()
    return [*names, *(f"train.{f.name}" for f in dataclasses.fields(TrainOptions) if f.name not in without)]


def make_predictor_recipe(
    inputs: tuple[str, ...], kind: str, changes: Mapping[str, Any], length: Mapping[str, Any]
) -> PredictorRecipe:
    """A recipe from single fields (`order`, or `model.order`), as text or typed, and a length.

    Raises RecipeError: one line that names the nearest right field, or what is wrong with a value.
    """
    known = predictor_fields(kind)
    of: dict[str, dict[str, Any]] = {"model": {}, "text": {}, "train": {}}
    try:
        check_given_once(changes, lambda name: resolve_field(name, known))
        for name, value in changes.items():
            part, _, last = resolve_field(name, known).rpartition(".")
            of[part][last] = value
        model = build(DESCRIPTION_OF_KIND[kind], {"n_vocab": 1, "separator": 0, **of["model"]}, "model")
    except ArchitectureError as error:
        raise RecipeError(str(error)) from None
    length = {name: value for name, value in length.items() if value}
    if kind == "ngram" and length:
        raise RecipeError(f"an n-gram predictor counts its text once: leave out {next(iter(length))}")
    train = overlaid(TRAIN, {**of["train"], **length}, "train")
    if kind != "ngram" and not any(getattr(train, name) for name in LENGTHS):
        train = replace(train, minutes=10.0)
    recipe = PredictorRecipe(
        inputs=inputs,
        kind=kind,  # type: ignore[arg-type]
        model=model,
        text=build(TextOptions, settle_held_out(TextOptions(), of["text"]), "text"),
        train=train,
    )
    if "alpha" in of["model"] and model.smoothing != "add-alpha":
        raise RecipeError("alpha belongs to smoothing=add-alpha: set that too, or leave it out")
    if kind == "recurrent" and recipe.text.inside_documents == "yes":
        raise RecipeError("a recurrent predictor keeps its state across documents: leave out text.inside_documents")
    return recipe


def described_by_text(recipe: PredictorRecipe, n_vocab: int, separator: int) -> PredictorRecipe:
    """The recipe with the options that follow from the tokenizer and from text.inside_documents."""
    inside = recipe.text.inside_documents == "yes"
    if isinstance(recipe.model, NGramOptions):
        model: Description = replace(recipe.model, n_vocab=n_vocab, separator=separator if inside else None)
    elif isinstance(recipe.model, NeuralProbabilisticOptions):
        word: Literal["inside", "across"] = "inside" if inside else "across"
        model = replace(recipe.model, n_vocab=n_vocab, separator=separator, documents=word)
    else:
        model = replace(recipe.model, n_vocab=n_vocab, separator=separator)
    return replace(recipe, model=model)


def read_predictor_recipe(run: Path) -> PredictorRecipe:
    """The recipe of a predictor's run folder; RecipeError where there is none."""
    path = run / "recipe.json"
    try:
        return PredictorRecipe.from_dict(read_json_file(path))
    except FileNotFoundError:
        raise RecipeError(f"{run} holds no run: there is no recipe.json in it") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecipeError(f"{path} is not the recipe of a predictor: {error}") from None
