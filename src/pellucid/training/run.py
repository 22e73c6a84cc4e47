"""A training run from text to checkpoints: decide everything once, write it down, train, or continue."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pellucid.architecture import count_parameters
from pellucid.model import Transformer
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.pairs import PairTokens
from pellucid.text.tokens.store import Tokens, describe_difference
from pellucid.training import resolve_recipe as resolve
from pellucid.training.build import (
    Weights,
    autotune,
    build_network,
    compiled,
    describe_step,
    fit_to_input,
    make_optimizer,
    measure_step,
    n_logits,
    plan_in_time,
    read_input,
)
from pellucid.training.checkpoint import (
    Checkpoint,
    diverged_steps,
    load_checkpoint,
    set_aside,
    steps_of,
    write_json,
)
from pellucid.training.data import make_data
from pellucid.training.interrupt import Interrupted, Interruption
from pellucid.training.loop import Training
from pellucid.training.memory import check_memory
from pellucid.training.metrics import MetricsFile
from pellucid.training.objectives import autocast
from pellucid.training.pace import Pace
from pellucid.training.recipe import Recipe, RecipeError
from pellucid.training.recipe import with_train as with_train
from pellucid.training.reporter import PlainReporter, describe
from pellucid.training.run_dir import choose_folder, keep_first, only_one, read_json, write_folder
from pellucid.training.run_dir import load_run as load_run
from pellucid.training.run_dir import read_recipe as read_recipe

#: writes a sample after a prompt by a seed, or gives None where the network's logits are not finite; calls what it is
#: given last with how many tokens there are, of how many
Sampler = Callable[[Transformer, Tokenizer, str, int, Callable[[int, int], object]], str | None]
#: what is found out about a run before its first step: lines to print, and JSON files for its folder
PreRunChecks = Callable[[Recipe, Tokens | PairTokens, Callable[[], None]], tuple[list[str], dict[str, Any]]]


@dataclass(frozen=True)
class Run:
    """A run's folder and how its last sitting ended: exit code 0 done, 130 or 143 interrupted after saving."""

    path: Path
    recipe: Recipe
    step: int
    held_out_loss: float | None = None
    bits_per_byte: float | None = None
    exit_code: int = 0


def start(
    recipe: Recipe, out: Path | None, reporter: PlainReporter, sampler: Sampler | None = None, **given: Any
) -> Run:
    """Read the text, decide what is open, write the run's folder, train.

    `given` may hold `tokenizer` and `weights`, for a run that starts from another model, `beside`, a Beside, and
    `size`, which decides sizes that the recipe leaves to it.
    Whatever is wrong with the text or the choices is found before the folder is made.
    """
    run, began = choose_folder(out, recipe.inputs), given.get("began") or time.monotonic()
    # before sizes are chosen: where reading on gains nothing, epochs take the minutes' place
    seconds = 60 * recipe.train.minutes
    pace = Pace(seconds, began + seconds) if seconds else None
    with Interruption(reporter) as interruption:
        device = resolve.resolve_device(recipe.train.device)
        weights = given.get("weights")
        try:
            known = given.get("tokenizer")
            recipe, corpus, tokens, tokenizer = read_input(recipe, reporter, known, interruption, given.get("size"))
            asked = recipe.train
            opened = recipe = fit_to_input(recipe, tokens, tokenizer, device)
            with interruption.phase("planning memory"):
                check_memory(recipe, device)
            interruption.poll()
            data = make_data(tokens, recipe, device)  # refuses text too small for a window
            with interruption.phase("making the network"):
                network = build_network(recipe, device, weights)
            interruption.poll()
            recipe, lines = autotune(recipe, network, tokens, device, weights, interruption, pace)
            with interruption.phase("counting n-grams to compare with") as phase:
                found, files = given["beside"](recipe, tokens, phase) if "beside" in given else ([], {})
            interruption.poll()
        except Interrupted:
            reporter.note(f"interrupted before the first step: nothing was written to {run}")
            return Run(run, recipe, 0, exit_code=interruption.exit_code)
        if pace:
            most = math.inf if recipe.train.minutes else recipe.n_steps
            pace.know(data.n_held_out, resolve.n_trained(recipe), most)
            recipe, sentence = plan_in_time(recipe, opened, pace)
            lines.append(sentence)
        n_parameters = count_parameters(recipe.model)["total"]
        model = [describe(recipe.model, n_parameters), describe_step(asked, recipe)]
        reporter.start([*model, *filter(None, lines), *found, f"run: {run}"])
        files["data.json"] = tokens.manifest | corpus.about()
        fill = partial(keep_first, network=network) if weights is not None and not recipe.adapt.rank else None
        write_folder(run, recipe, tokenizer, files, fill)
        with only_one(run):
            return run_training(run, recipe, network, tokens, tokenizer, reporter, sampler, interruption, pace)


def resume(
    run: Path,
    inputs: tuple[str, ...],
    length: dict[str, Any],
    reporter: PlainReporter,
    sampler: Sampler | None = None,
    weights: Weights | None = None,
    held_out_files: tuple[str, ...] = (),
) -> Run:
    """Continue a run exactly where its last verified checkpoint left it; `length` makes it longer.

    The text is read again, from `inputs` and `held_out_files` where they are given (it may have moved); text that is no
    longer the same is refused, and the file that differs is named. A run of adapters needs the `weights` that they
    change.
    """
    written = read_recipe(run)
    with Interruption(reporter) as interruption, only_one(run):
        began = time.monotonic()
        text = replace(written.text, held_out_files=held_out_files or written.text.held_out_files)
        recipe = replace(written, inputs=inputs or written.inputs, text=text)
        device = resolve.resolve_device(recipe.train.device)
        tokenizer = load_tokenizer(run)
        try:
            _, _, tokens, _ = read_input(recipe, reporter, tokenizer, interruption)
        except Interrupted:
            reporter.note(f"interrupted before the first step: {run} is as it was")
            return Run(run, recipe, max(steps_of(run), default=0), exit_code=interruption.exit_code)
        if difference := describe_difference(read_json(run / "data.json"), tokens.manifest):
            raise RecipeError(
                f"{run} was trained on other text ({'; '.join(difference.splitlines())}): put it back, or start a new "
                f"run with --from {run}"
            )
        check_memory(recipe, device)
        checkpoint, passed = load_checkpoint(run) if steps_of(run) else (None, [])
        step = checkpoint.step if checkpoint else 0
        reporter.start(warnings_on_start(run, step, passed))

        def measure() -> float:
            with interruption.phase("measuring a step") as phase:
                return measure_step(recipe, build_network(recipe, device, weights), tokens, device, phase)

        minutes = length.get("minutes") or 0.0
        pace = Pace(60 * minutes, began + 60 * minutes) if minutes else None
        if pace:
            pace.know(make_data(tokens, recipe, device).n_held_out, resolve.n_trained(recipe))
        try:
            longer = lengthen(recipe, step, length, measure, tokens, pace)
        except Interrupted:
            reporter.note(f"interrupted before the first step: {run} is as it was")
            return Run(run, recipe, step, exit_code=interruption.exit_code)
        recipe = longer
        if recipe != written:
            write_json(run / "recipe.json", recipe.to_dict())
        network = build_network(recipe, device, weights)
        set_aside(run, step)
        at = f"{run} is at step {step} of {recipe.n_steps}"
        reporter.start([f"{at}: finished; --steps, --minutes, ... make it longer" if step == recipe.n_steps else at])
        if checkpoint and not any(length.values()):
            pace = continued_pace(recipe, checkpoint, make_data(tokens, recipe, device).n_held_out)
        return run_training(run, recipe, network, tokens, tokenizer, reporter, sampler, interruption, pace, checkpoint)


def warnings_on_start(run: Path, step: int, passed: list[str]) -> list[str]:
    """Why a run continues from `step`, not from a later checkpoint; `passed` says what is wrong with damaged ones."""
    diverged = [str(n) for n in diverged_steps(run) if n > step]
    lines = [f"warning: {sentence}; continuing from step {step}" for sentence in passed]
    if diverged:
        where = f"step {step}, the last good checkpoint," if step else "the beginning, as no good checkpoint is left,"
        lines.append(
            f"warning: training had diverged by step {diverged[0]}; continuing from {where} by the same steps: a new "
            f"run with --from {run} can take other rates"
        )
    return lines


def continued_pace(recipe: Recipe, checkpoint: Checkpoint, n_held_out: int) -> Pace | None:
    """The pace of a run that goes on with the length it has, None where that was no time."""
    pace = Pace.resumed(recipe, checkpoint.state)
    if pace:
        pace.know(n_held_out, resolve.n_trained(recipe), math.inf if recipe.train.minutes else recipe.segments[-1][1])
    return pace


def lengthen(
    recipe: Recipe,
    step: int,
    length: dict[str, Any],
    measure: Callable[[], float],
    tokens: Tokens | PairTokens,
    pace: Pace | None = None,
) -> Recipe:
    """The recipe with a new segment of the schedule from `step` on, where a length was asked for.

    Steps, tokens and epochs count from the beginning of the run; minutes, of which there is a `pace`, count from now.
    """
    given = {name: value for name, value in length.items() if value}
    if not given:
        return recipe
    if pace:
        pace.start(measure())
        total = pace.end_of(recipe, step)
    else:
        total, _ = resolve.resolve_steps(resolve.with_length(recipe, given), len(tokens.part("train")), measure)
    if total == recipe.n_steps:
        return recipe
    if total <= step:
        raise RecipeError(f"the run has {step} steps already: ask for more than that, not {total}")
    # earlier segments keep the end they were meant to have: steps that are taken again have the same rates
    begun = [tuple(pair for pair in pairs if pair[0] < step) for pairs in (recipe.segments, recipe.replans)]
    return replace(recipe, segments=(*begun[0], (step, total)), replans=begun[1])


def run_training(
    run: Path,
    recipe: Recipe,
    network: Transformer,
    tokens: Tokens | PairTokens,
    tokenizer: Tokenizer,
    reporter: PlainReporter,
    sampler: Sampler | None,
    interruption: Interruption,
    pace: Pace | None,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Train to the end from a checkpoint, or from the first weights where there is none."""
    device = torch.device(recipe.train.device)
    loss, prompt = autocast(network, device, recipe.train.precision, n_logits(recipe)), recipe.train.sample_prompt
    training = Training(
        run=run,
        recipe=recipe,
        network=network,
        optimizer=make_optimizer(recipe, network),
        loss=compiled(loss) if recipe.train.compile == "yes" else loss,
        data=make_data(tokens, recipe, device),
        reporter=reporter,
        metrics=MetricsFile(run / "metrics.jsonl", checkpoint.step if checkpoint else 0),
        interruption=interruption,
        sample=None if sampler is None else lambda net, seed, poll: sampler(net, tokenizer, prompt, seed, poll),
        pace=pace,
    )
    if checkpoint:
        training.restore(checkpoint)
    reporter.begin(recipe, training.step)
    try:
        with deterministic_kernels(recipe.train.deterministic == "yes"):
            training.go()
    finally:
        reporter.close()
        training.metrics.close()
    last = training.last_evaluation or {}
    code = 0 if training.complete else interruption.exit_code
    return Run(run, training.recipe, training.step, last.get("held_out_loss"), last.get("bits_per_byte"), code)


@contextmanager
def deterministic_kernels(asked: bool) -> Iterator[None]:
    """Only kernels whose results do not vary between runs, where asked for; the caller's choice is put back."""
    before = torch.are_deterministic_algorithms_enabled()
    if asked:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
