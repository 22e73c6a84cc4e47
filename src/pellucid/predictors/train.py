"""Training a predictor from text to a run folder laid out like a transformer's."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.predictors.data import PredictorData
from pellucid.predictors.fit import (
    as_run,
    autotune_predictor,
    build_predictor,
    count_part,
    fit_network,
    measure_step,
    resolved,
    trained_part,
    transformer_recipe,
)
from pellucid.predictors.ngram import NGramOptions
from pellucid.predictors.ngram_baselines import baseline
from pellucid.predictors.recipe import (
    Kind,
    PredictorRecipe,
    described_by_text,
    make_predictor_recipe,
    read_predictor_recipe,
)
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.store import Tokens, describe_difference, read_manifest
from pellucid.training import resolve_recipe as resolve
from pellucid.training import run as runs
from pellucid.training.build import read_text
from pellucid.training.checkpoint import load_checkpoint, set_aside, steps_of, write_json
from pellucid.training.interrupt import Interrupted, Interruption
from pellucid.training.metrics import MetricsFile
from pellucid.training.pace import Pace
from pellucid.training.recipe import RecipeError, check_tokenizer
from pellucid.training.reporter import PlainReporter, QuietReporter, make_reporter
from pellucid.training.run import Run
from pellucid.training.run_dir import choose_folder, only_one, read_json, write_folder


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
) -> Run:
    """Train a predictor on text files and folders, into the run folder `out` (runs/NAME unless given).

    kind     ngram, neural-probabilistic or recurrent
    fields   single fields, as text or typed: those of NGramChoices, NeuralProbabilisticChoices or RecurrentChoices
             (`order`, `smoothing`, `d_hidden` ...), `mixture`, and those of text.* and train.* as for `pellucid.train`
    resume   continue the run in `out` exactly; a length makes it longer. Not for ngram, which counts once
    minutes, steps, tokens, epochs   the length, at most one; 10 minutes unless given; not for ngram

    Text, split and tokenizer are those that `pellucid.train` makes of the same choices, so held-out losses
    (nats per token) compare. Raises ValueError, with nothing written, when the text or a choice is wrong.
    """
    reporter = make_reporter() if show else QuietReporter()
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    if negative := [name for name, value in length.items() if value is not None and value <= 0]:
        raise RecipeError(f"{negative[0]} = {length[negative[0]]}: expected a number above 0")
    if resume:
        return resume_predictor(tuple(map(str, inputs)), kind, out, fields or {}, length, reporter)
    if not inputs:
        raise RecipeError("no text was named: give at least one file or folder")
    recipe = make_predictor_recipe(tuple(str(Path(p)) for p in inputs), kind, fields or {}, length)
    check_tokenizer(recipe.text)
    return start_predictor(recipe, None if out is None else Path(out), reporter)


def start_predictor(recipe: PredictorRecipe, out: Path | None, reporter: PlainReporter) -> Run:
    """Read the text, decide what is open, write the run's folder, train or count."""
    run = choose_folder(out, recipe.inputs)
    seconds = 60 * recipe.train.minutes
    pace = Pace.from_now(seconds) if seconds else None
    with Interruption(reporter) as interruption:
        device = resolve.resolve_device(recipe.train.device)
        try:
            _, corpus, tokens, tokenizer = read_text(transformer_recipe(recipe), reporter, None, interruption)
            recipe = described_by_text(recipe, tokenizer.n_vocab, tokenizer.separator)
            data = read_manifest(tokens.folder) | corpus.about()
            if isinstance(recipe.model, NGramOptions):
                return count_into(run, recipe, tokens, tokenizer, data, reporter, interruption)
            network = build_predictor(recipe)
            recipe = autotune_predictor(recipe, tokens, interruption, pace)
            PredictorData(trained_part(recipe, tokens)[0], tokens.part("held_out"), recipe, network, device)
            interruption.poll()
        except Interrupted:
            reporter.note(f"interrupted before the first step: nothing was written to {run}")
            return as_run(run, recipe, 0, exit_code=interruption.exit_code)
        n_parameters = sum(p.numel() for p in network.parameters())
        reporter.start([f"model: {recipe.kind}, {n_parameters:,} parameters; {recipe.n_steps:,} steps", f"run: {run}"])
        write_folder(run, transformer_recipe(recipe), tokenizer, {"data.json": data})
        with only_one(run):
            return fit_network(run, recipe, network, tokens, tokenizer, reporter, interruption, pace)


def count_into(
    run: Path,
    recipe: PredictorRecipe,
    tokens: Tokens,
    tokenizer: Tokenizer,
    data: Any,
    reporter: PlainReporter,
    interruption: Interruption,
) -> Run:
    """Count the training part, measure on the held-out part, and save; Interrupted, with nothing written."""
    began = time.monotonic()
    assert isinstance(recipe.model, NGramOptions)
    with interruption.phase("counting") as phase:
        ngram = count_part(tokens.part("train"), recipe.model, phase)
    held_out = tokens.part("held_out")
    with interruption.phase("evaluating") as phase:
        log_probs = ngram.log_probs(held_out.read(0, len(held_out)), phase)
    interruption.poll()
    write_folder(
        run, transformer_recipe(recipe), tokenizer, {"data.json": data}, lambda folder: ngram.save(folder / "ngram")
    )
    _, loss, bits = baseline("", -float(log_probs.mean()), held_out)
    finite = math.isfinite(loss)
    row = {"step": 0, "held_out_loss": loss if finite else None, "bits_per_byte": bits if finite else None}
    lost = {"without_probability": float(np.mean(~np.isfinite(log_probs)))}
    metrics = MetricsFile(run / "metrics.jsonl")
    metrics.write(row | lost | {"whole": True, "seconds": round(time.monotonic() - began, 3)})
    metrics.close()
    reporter.start([f"model: ngram, order {recipe.model.order}, {ngram.n_parameters:,} counts", *ngram.notes])
    if finite:
        reporter.evaluation({**row, "whole": True})
    else:
        reporter.note(f"{lost['without_probability']:.1%} of the held-out tokens have no probability, or 0")
    reporter.note(f"run: {run}")
    return as_run(run, recipe, 0, held_out_loss=row["held_out_loss"], bits_per_byte=row["bits_per_byte"])


def resume_predictor(
    inputs: tuple[str, ...],
    kind: str,
    out: str | Path | None,
    fields: Mapping[str, Any],
    length: dict[str, Any],
    reporter: PlainReporter,
) -> Run:
    """Continue the run in `out` exactly where its last verified checkpoint left it; `length` makes it longer."""
    if out is None:
        raise RecipeError("--resume continues a run that exists: name its folder with --out, such as --out runs/NAME")
    run = Path(out)
    written = read_predictor_recipe(run)
    if written.kind != kind or kind == "ngram" or fields:
        raise RecipeError(
            f"{run} is a run of kind {written.kind} and cannot be resumed with other choices, nor at all if that is "
            "ngram, which counts its text once: leave kind and fields as they are, or start a new run"
        )
    with Interruption(reporter) as interruption, only_one(run):
        began = time.monotonic()
        recipe = replace(written, inputs=inputs or written.inputs)
        device, tokenizer = resolve.resolve_device(recipe.train.device), load_tokenizer(run)
        try:
            _, _, tokens, _ = read_text(transformer_recipe(recipe), reporter, tokenizer, interruption)
        except Interrupted:
            reporter.note(f"interrupted before the first step: {run} is as it was")
            return as_run(run, recipe, max(steps_of(run), default=0), exit_code=interruption.exit_code)
        if difference := describe_difference(read_json(run / "data.json"), read_manifest(tokens.folder)):
            raise RecipeError(f"{run} was trained on other text ({difference}): put it back, or start a new run")
        checkpoint, passed = load_checkpoint(run) if steps_of(run) else (None, [])
        step = checkpoint.step if checkpoint else 0
        reporter.start(runs.warnings_on_start(run, step, passed))

        def measure() -> float:
            with interruption.phase("measuring a step") as phase:
                return measure_step(recipe, build_predictor(recipe).to(device), tokens, device, phase)

        minutes = length.get("minutes") or 0.0
        pace = Pace(60 * minutes, began + 60 * minutes) if minutes else None
        n_trained, n_held_out = (
            sum(p.numel() for p in build_predictor(recipe).parameters()),
            len(tokens.part("held_out")),
        )
        if checkpoint and not any(length.values()):
            pace = Pace.resumed(transformer_recipe(recipe), checkpoint.state)
        if pace:
            pace.know(n_held_out, n_trained)
        try:
            timed = pace if minutes else None
            longer = resolved(runs.lengthen(transformer_recipe(recipe), step, length, measure, tokens, timed))
        except Interrupted:
            reporter.note(f"interrupted before the first step: {run} is as it was")
            return as_run(run, recipe, step, exit_code=interruption.exit_code)
        if longer != written:
            write_json(run / "recipe.json", longer.to_dict())
        set_aside(run, step)
        return fit_network(
            run, longer, build_predictor(longer), tokens, tokenizer, reporter, interruption, pace, checkpoint
        )
