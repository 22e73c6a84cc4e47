"""Files written with a run: facts about the machine at its start, a table and the report at its end."""

import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from pellucid import baselines
from pellucid.hub.targets import run_opens_in
from pellucid.plan.flops import flops
from pellucid.plan.speed import product_speed
from pellucid.report.page import write_page
from pellucid.runs.device import describe_device
from pellucid.runs.pipeline import Run
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.run_dir import MACHINE
from pellucid.text.tokens.store import Tokens
from pellucid.training.compiled_functions import ENTRY, lines_on_missing, missing_functions
from pellucid.training.recipe import Recipe


def pre_run_checks(recipe: Recipe, tokens: Tokens, poll: Callable[[], None]) -> tuple[list[str], dict[str, Any]]:
    """Measure the baselines and the machine before the first step. Returns lines to print and files to write."""
    measured = baselines.measure_baselines(recipe, tokens, poll)
    functions = missing_functions(torch.device(recipe.train.device))
    files = {baselines.FILE: measured.to_dict(), MACHINE: machine(recipe) | {ENTRY: functions}}
    return lines_on_missing(functions) + measured.lines, files


def machine(recipe: Recipe) -> dict[str, Any]:
    """The device, and its speed of large matrix products in the run's precision."""
    device, precision = torch.device(recipe.train.device), recipe.train.precision
    product_flops = product_speed(device, precision)
    # pairs differ in length, and with them the FLOPs of a token
    peak = None if recipe.record.tokens_per_row else product_flops / flops(recipe.model).training
    facts = {"precision": precision, "product_flops": product_flops, "peak_tokens_per_second": peak}
    return describe_device(device) | facts


def finalize(run: Run, reporter: PlainReporter) -> Run:
    """Print the run's table and write its report, and return the run. A report that cannot be written does no harm.

    Of a run that was stopped the report is written and nothing is printed: it is not finished.
    """
    if run.exit_code:
        if (run.path / "recipe.json").exists():
            with suppress(OSError):
                write_page(run.path)
        return run
    for text in baselines.table(run):
        reporter.note(text)
    if (run.path / "recipe.json").exists():
        alone = "; without its n-gram, which convert leaves out" if run.recipe.train.mix == "auto" else ""
        reporter.note(run_opens_in(run.path, run.recipe.model) + alone)
        try:
            reporter.note(f"report: {write_page(run.path)}")
        except OSError as error:
            reporter.note(f"warning: the report could not be written ({error.strerror}): pellucid report {run.path}")
        reporter.note(f"look inside: pellucid look {shlex.quote(str(run.path))}")
    return run
