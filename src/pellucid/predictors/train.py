"""Trains a predictor on text, into a run folder with the layout of a transformer's."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pellucid.predictors.recipe import (
    Kind,
    PredictorRecipe,
    make_predictor_recipe,
    read_predictor_recipe,
)
from pellucid.predictors.trainable import NGramRun, PredictorTrainable
from pellucid.runs.live_reporter import make_reporter
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import NO_FOLDER, RESUMABLE, Run, resume_run, resumed_with, start_run
from pellucid.runs.reporter import QuietReporter
from pellucid.training.recipe import check_tokenizer


def train_predictor(
    *inputs: str | Path,
    kind: Kind,
    out: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    resume: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    show: bool = False,
    trust: bool = False,
) -> Run[PredictorRecipe]:
    """Train a predictor on text files and folders, into the run folder `out` (runs/NAME unless given).

    kind     ngram, neural-probabilistic or recurrent
    fields   single fields, as text or typed: those of NGramOptions, NeuralProbabilisticOptions or RecurrentOptions
             (`order`, `smoothing`, `d_hidden` ...), `mixture`, and those of text.* and train.* as for `pellucid.train`
    resume   continue the run in `out` exactly; a length makes it longer, and of the fields the device, train.compile,
             the intervals and train.keep_last may change. An n-gram is counted once and not resumed
    minutes, steps, tokens, epochs   the length, at most one; 10 minutes unless given; not for ngram
    trust    accept a tokenizer whose patterns are not known to be safe; such a run is loaded with trust too

    The same options give the same split and tokenizer as for a transformer, so held-out losses (nats per token)
    compare. Raises ValueError, with nothing written, when the text or an option is wrong.
    """
    reporter = make_reporter() if show else QuietReporter()
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    if negative := [name for name, value in length.items() if value is not None and value <= 0]:
        raise RecipeError(f"{negative[0]} = {length[negative[0]]}: expected a number above 0")
    if resume:
        if out is None:
            raise RecipeError(NO_FOLDER)
        words = {name.removeprefix("train."): value for name, value in (fields or {}).items()}
        written = recipe_to_resume(Path(out), kind, words.keys() - set(RESUMABLE))
        recipe = replace(written, inputs=tuple(map(str, inputs)) or written.inputs)
        recipe = resumed_with(recipe, words, reporter)
        return resume_run(PredictorTrainable(recipe, trust), Path(out), length, reporter, written)
    if not inputs:
        raise RecipeError("no text was named: give at least one file or folder")
    recipe = make_predictor_recipe(tuple(str(Path(p)) for p in inputs), kind, fields or {}, length)
    check_tokenizer(recipe.text)
    startable = NGramRun(recipe, trust) if kind == "ngram" else PredictorTrainable(recipe, trust)
    return start_run(startable, None if out is None else Path(out), reporter)


def recipe_to_resume(run_dir: Path, kind: str, other: Collection[str]) -> PredictorRecipe:
    """The recipe of a run that is resumed; RecipeError where it cannot be, or where `other` options are asked for."""
    recipe = read_predictor_recipe(run_dir)
    if recipe.kind != kind or kind == "ngram" or other:
        raise RecipeError(
            f"{run_dir} is a run of kind {recipe.kind} and cannot be resumed with other options, nor at all if that "
            "is ngram, which counts its text once: leave kind and fields as they are, or start a new run"
        )
    return recipe
