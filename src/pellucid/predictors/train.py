"""Trains a predictor on text, into a run folder with the layout of a transformer's."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pellucid.option_values import check_given_once, parse_value
from pellucid.predictors.mixed_training import MixedPredictor
from pellucid.predictors.recipe import (
    DESCRIPTION_OF_KIND,
    PredictorKind,
    PredictorRecipe,
    make_predictor_recipe,
    read_predictor_recipe,
)
from pellucid.predictors.trainable import NGramRun, PredictorTrainable
from pellucid.runs.live_reporter import RunOutput, make_reporter
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import NO_FOLDER, Run, resume_run, resumed_with, start_run
from pellucid.runs.processes import world_size
from pellucid.runs.recipe_changes import RESUMABLE
from pellucid.text.read.known_scans import checking_text
from pellucid.training.kinds import check_function
from pellucid.training.recipe import check_tokenizer, take_length
from pellucid.training.text_parts import HeldOut, add_held_out
from pellucid.trust import Trust, check_trust


def train_predictor(
    *inputs: str | Path,
    kind: PredictorKind | None = None,
    out: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    resume: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    held_out: HeldOut | None = None,
    check_text: bool = False,
    show: RunOutput = True,
    trust: Trust = False,
) -> Run[PredictorRecipe]:
    """Train a predictor other than a transformer on text files and folders, into `out` (runs/NAME unless given).

    kind     ngram, neural-probabilistic or recurrent; a resumed run knows its own
    fields   single fields, as text or typed: those of NGramOptions, NeuralProbabilisticOptions or RecurrentOptions
             (`order`, `smoothing`, `d_hidden` ...), and those of text.* and train.* as for `pellucid.train`
    resume   continue the run in `out` exactly; a length makes it longer, and of the fields the device, train.compile,
             the intervals and train.keep_last may change. An n-gram is counted once and not resumed
    minutes, steps, tokens, epochs   the length, at most one; 10 minutes unless given; not for ngram
    held_out, check_text, show   as for `pellucid.train`
    trust    accept a tokenizer whose patterns are not known to be safe; such a run is loaded with trust too

    The same options give the same split and tokenizer as for a transformer, so held-out losses (nats per token)
    compare. Raises ValueError, with nothing written, when the text or an option is wrong.
    """
    check_trust(trust)
    reporter = make_reporter(show)
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    changes, length = take_length(add_held_out(fields or {}, held_out), length)
    if world_size() > 1:
        raise RecipeError(f"predictors train in one process, and {world_size()} were started: leave out --processes")
    if resume:
        if out is None:
            raise RecipeError(NO_FOLDER)
        check_given_once(changes, lambda name: name.removeprefix("train."))
        changes = {name.removeprefix("train."): value for name, value in changes.items()}
        written = recipe_to_resume(Path(out), kind, changes.keys() - set(RESUMABLE))
        moved = parse_value("text.held_out_files", changes.pop("text.held_out_files", ()), tuple[str, ...])
        recipe = resumed_with(written.with_inputs(tuple(map(str, inputs)), moved), changes, reporter)
        with checking_text(check_text):
            return resume_run(class_to_train(recipe)(recipe, trust), Path(out), length, reporter, written)
    if not inputs:
        raise RecipeError("no text was named: give at least one file or folder")
    if kind is None:
        raise RecipeError(f"no kind of predictor was named: give kind = {' or '.join(DESCRIPTION_OF_KIND)}")
    recipe = make_predictor_recipe(tuple(str(Path(p)) for p in inputs), kind, changes, length)
    check_tokenizer(recipe.text)
    startable = NGramRun if kind == "ngram" else class_to_train(recipe)
    with checking_text(check_text):
        return start_run(startable(recipe, trust), None if out is None else Path(out), reporter)


def class_to_train(recipe: PredictorRecipe) -> type[PredictorTrainable]:
    """What the pipeline trains by this recipe: the network, or the network and an n-gram that it is mixed with."""
    return MixedPredictor if recipe.train.mix == "auto" else PredictorTrainable


def recipe_to_resume(run_dir: Path, kind: str | None, other: Collection[str]) -> PredictorRecipe:
    """The recipe of a run that is resumed; RecipeError where it cannot be, or where `other` options are asked for."""
    check_function(run_dir, "train_predictor")
    recipe = read_predictor_recipe(run_dir)
    may_move = {"text.held_out_files"} if recipe.text.held_out_files else set()
    if kind not in (None, recipe.kind) or recipe.kind == "ngram" or set(other) - may_move:
        raise RecipeError(
            f"{run_dir} is a run of kind {recipe.kind} and cannot be resumed with other options, nor at all if that "
            "is ngram, which counts its text once: leave kind and fields as they are, or start a new run"
        )
    return recipe
