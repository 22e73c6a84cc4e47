"""Train dictionaries of a model's features, and open what a run of them holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from pellucid.features.attribution_graph import AttributionGraph, attribution_graph
from pellucid.features.cards import READ_TOKENS, ActiveFeature, ActiveFeatures, FeatureCard, feature_card
from pellucid.features.dictionary import Dictionary, DictionaryError, SavedDictionary
from pellucid.features.recipe import FeaturesRecipe, make_features_recipe, read_features_recipe
from pellucid.features.training import FIGURES, FeaturesTrainable
from pellucid.language_model import LanguageModel, load
from pellucid.lens.core.inputs import InputOptions
from pellucid.model.weights import state_of
from pellucid.option_values import check_given_once, suggest_keywords
from pellucid.predictors.on_text import text_of_run
from pellucid.runs.live_reporter import RunOutput, make_reporter
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import NO_FOLDER, Run, resume_run, resumed_with, start_run
from pellucid.runs.processes import world_size
from pellucid.runs.recipe_changes import RESUMABLE
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.run_dir import read_json
from pellucid.sources.places import PartText
from pellucid.starting_model import fingerprint
from pellucid.text.read.known_scans import checking_text
from pellucid.training.config import Base
from pellucid.training.kinds import run_kind
from pellucid.training.load import read_recipe
from pellucid.training.recipe import TextOptions, take_length
from pellucid.trust import Trust, check_trust


@suggest_keywords()
def train_features(
    model: str | Path | None = None,
    *texts: str | Path,
    out: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    resume: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    checkpoint: str = "best",
    check_text: bool = False,
    explain: bool = False,
    show: RunOutput = True,
    trust: Trust = False,
) -> Run[FeaturesRecipe]:
    """Train a dictionary of sparse features for every layer of a model, into `out` (MODEL/features unless given).

    model       a run, a saved model, a Hugging Face folder or a name on its hub; a resumed run knows its own
    texts       files and folders that the model reads; those of the run unless given
    fields      single fields, as text or typed: of FeaturesOptions (`n_features`, `k`, `tensor` ...) and of train.*
    resume      continue the run of dictionaries in `out` exactly; a length makes it longer
    minutes, steps, tokens, epochs   the length, at most one; 3 minutes unless given
    checkpoint  of a run: best, last, or the number of a step
    check_text, explain, show, trust   as for `pellucid.train`

    Raises ValueError, with nothing written, when the text, the model or an option is wrong.
    """
    check_trust(trust)
    if world_size() > 1:
        raise RecipeError(f"dictionaries train in one process, and {world_size()} were started: leave out --processes")
    reporter = make_reporter(show, explain)
    folder = Path(out) if out is not None else Path(model) / "features" if model and Path(model).is_dir() else None
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    changes, length = take_length(fields or {}, length)
    inputs = tuple(str(Path(text)) for text in texts)
    with checking_text(check_text):
        if resume:
            if folder is None:
                raise RecipeError(NO_FOLDER)
            recipe, written = features_to_resume(folder, inputs, changes, reporter)
            trainable = FeaturesTrainable(recipe, explained_model(recipe, trust), trust)
            return resume_run(trainable, folder, length, reporter, written)
        if model is None:
            raise RecipeError("no model was named: give the run or the model whose features are to be learned")
        explained = load(model, checkpoint=checkpoint, device="cpu", trust=trust)
        text, inputs = text_of_model(Path(model), inputs)
        base = base_of(explained, str(model))
        recipe = make_features_recipe(inputs, text, base, explained.architecture, changes, length)
        return start_run(FeaturesTrainable(recipe, explained, trust), folder, reporter)


def features_to_resume(
    folder: Path, inputs: tuple[str, ...], changes: Mapping[str, Any], reporter: PlainReporter
) -> tuple[FeaturesRecipe, FeaturesRecipe]:
    """The recipe with which a run goes on, and the one that was written. Raises RecipeError for other options."""
    check_given_once(changes, lambda name: name.removeprefix("train."))
    changes = {name.removeprefix("train."): value for name, value in changes.items()}
    if wrong := sorted(changes.keys() - set(RESUMABLE)):
        raise RecipeError(f"{folder} is resumed as it was started: leave out {wrong[0]}, or start a new run")
    written = read_features_recipe(folder)
    return resumed_with(written.with_inputs(inputs), changes, reporter), written


def text_of_model(model: Path, inputs: tuple[str, ...]) -> tuple[TextOptions, tuple[str, ...]]:
    """How the model's text is read and divided, as its run did, and its files unless others are given."""
    text = TextOptions()
    if (model / "recipe.json").exists():
        of_run = read_recipe(model)
        inputs = inputs or of_run.located(of_run.inputs)
        held_out_files = of_run.located(of_run.text.held_out_files)
        tokenizer = str(model / "tokenizer.json")
        text = replace(of_run.text, held_out_files=held_out_files, tokenizer=tokenizer, vocabulary=None)
    if not inputs:
        raise RecipeError(f"{model} is no run, whose text is known: name the text that it is to read behind it")
    return text, inputs


def base_of(model: LanguageModel, name: str) -> Base:
    """What a recipe records of the model that is explained."""
    path = Path(name)
    step = str(model.provenance.get("step", ""))
    return Base(str(path.resolve()) if path.exists() else name, step, fingerprint(state_of(model.network)))


def explained_model(recipe: FeaturesRecipe, trust: Trust = False) -> LanguageModel:
    """The model that a run of dictionaries explains. Raises RecipeError where it is gone or has other weights."""
    base = recipe.base
    try:
        model = load(base.path, checkpoint=base.checkpoint or "best", device="cpu", trust=trust)
    except ValueError as error:
        raise RecipeError(f"the model that the dictionaries explain cannot be read: {error}") from None
    if fingerprint(state_of(model.network)) != base.sha256:
        raise RecipeError(f"{base.path} holds other weights than those that the dictionaries explain: put them back")
    return model


@dataclass(frozen=True)
class Features:
    """The dictionaries of a model, one for each layer, and what was measured of them.

    figures  what features.json of the run holds (`pellucid.features.measure.Measured`)
    """

    run: Path
    model: LanguageModel
    saved: list[SavedDictionary]
    figures: dict[str, Any]
    trust: Trust = False

    def __iter__(self) -> Iterator[SavedDictionary]:
        return iter(self.saved)

    def __len__(self) -> int:
        return len(self.saved)

    def __getitem__(self, layer: int) -> Dictionary:
        """The dictionary of a layer."""
        return self.of_layer(layer).dictionary

    def of_layer(self, layer: int) -> SavedDictionary:
        """The dictionary of a layer, and where it stands. Raises DictionaryError where there is none."""
        for one in self.saved:
            if one.site.layer == layer:
                return one
        layers = ", ".join(str(one.site.layer) for one in self.saved)
        raise DictionaryError(f"there is no dictionary of layer {layer}: there are those of {layers}")

    def active(self, text: str, *, more_than: str = "", k: int = 12) -> ActiveFeatures:
        """The `k` highest features of each layer in a text, each at the position of its largest activation.

        With `more_than`, another text, a feature counts by how much higher its largest activation is here than there.
        """
        tokens = [str(token) for token in self.model.trace(text).tokens]
        rows, other = [], self.activations(more_than) if more_than else {}
        for layer, values in self.activations(text).items():
            highest, at = values[0].max(0)
            if more_than:
                highest = highest - other[layer][0].max(0).values
            for i in highest.topk(min(k, len(highest))).indices.tolist():
                if highest[i] > 0:
                    position = int(at[i])
                    rows.append(ActiveFeature(position, tokens[position], layer, i, float(highest[i])))
        rows.sort(key=lambda row: -row.activation)
        return ActiveFeatures(text, tuple(rows), more_than)

    def card(self, layer: int, feature: int, *, n_tokens: int = READ_TOKENS) -> FeatureCard:
        """What a feature is: passages of the training text, tokens that it raises, and what excites it.

        `n_tokens` are read of the text of the run, evenly spread. Raises DictionaryError for a feature that does not
        exist, and RecipeError where the text has changed.
        """
        return feature_card(self.model, self.of_layer(layer), feature, self.text, n_tokens=n_tokens)

    def graph(self, text: str, *, pos: int = -1, **options: Unpack[InputOptions]) -> AttributionGraph:
        """The attribution graph of what the model predicts at a position of a text
        (`pellucid.features.attribution_graph.attribution_graph`).
        """
        return attribution_graph(self.model, text, self.saved, pos=pos, **options)

    @cached_property
    def text(self) -> PartText:
        """The training text of the run of dictionaries."""
        tokens, split = text_of_run(self.run, read_features_recipe(self.run), None, trust=self.trust)
        return PartText(tokens.part("train"), self.model.tokenizer, split, "train")

    @torch.no_grad()
    def activations(self, text: str) -> dict[int, Tensor]:
        """What is active for a text: for each layer [1, pos, feature]."""
        trace = self.model.trace(text, keep=[one.site.reads for one in self.saved])
        return {one.site.layer: one.dictionary.encode(trace[one.site.reads]) for one in self.saved}


def load_features(run: str | Path, *, trust: Trust = False) -> Features:
    """Open a finished run of dictionaries, or those in the folder `features` of a model, and the model they explain."""
    run = Path(run)
    if (run / "features" / "recipe.json").exists():
        run = run / "features"
    elif (run / "recipe.json").exists() and run_kind(run) == "transformer":
        raise DictionaryError(f"{run} has no features yet: learn them with pellucid features train {run}")
    recipe = read_features_recipe(run)
    folders = sorted((run / "dictionaries").glob("layer_*"), key=lambda path: int(path.name.removeprefix("layer_")))
    if not (run / FIGURES).exists():
        raise DictionaryError(f"{run} has no dictionaries yet: finish it with pellucid train --resume --out {run}")
    saved = [SavedDictionary.load(path) for path in folders]
    return Features(run, explained_model(recipe, trust), saved, dict(read_json(run / FIGURES)), trust)
