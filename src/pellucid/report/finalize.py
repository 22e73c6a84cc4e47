"""What stands beside a run: facts of the machine at its beginning, a table and the report at its end."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pellucid import baselines
from pellucid.hub.targets import run_opens_in
from pellucid.plan.speed import product_speed
from pellucid.report.contents import MACHINE
from pellucid.report.page import write_page
from pellucid.text.tokens.pairs import PairTokens
from pellucid.text.tokens.store import Tokens
from pellucid.training.recipe import Recipe
from pellucid.training.reporter import PlainReporter
from pellucid.training.run import Run


def pre_run_checks(
    recipe: Recipe, tokens: Tokens | PairTokens, poll: Callable[[], None]
) -> tuple[list[str], dict[str, Any]]:
    """What is found out about a run before its first step: the baselines and the machine, as lines and as files."""
    found = baselines.measure_baselines(recipe, tokens, poll)
    return found.lines, {baselines.FILE: found.to_dict(), MACHINE: machine(recipe)}


def machine(recipe: Recipe) -> dict[str, Any]:
    """The device, and how fast it multiplies large matrices in the run's precision."""
    device, precision = torch.device(recipe.train.device), recipe.train.precision
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "device": str(device),
        "processor": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": precision,
        "product_flops": product_speed(device, precision),
    }


def processor() -> str:
    """The processor's name, as Linux knows it, or as the platform calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def finalize(run: Run, reporter: PlainReporter) -> Run:
    """The run, after its table is printed and its report written; a report that cannot be written costs nothing."""
    reporter.start(baselines.table(run))
    if (run.path / "recipe.json").exists():
        reporter.note(run_opens_in(run.path, run.recipe.model))
        try:
            reporter.note(f"report: {write_page(run.path)}")
        except OSError as error:
            reporter.note(f"warning: the report could not be written ({error.strerror}): pellucid report {run.path}")
    return run
