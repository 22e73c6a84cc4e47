"""The commands about a machine and a whole run: what is here, what a run will cost, and the report about it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.options import DEVICE, FOLDER, at_least, command, option
from pellucid.cli.progress import progress_on_stderr
from pellucid.presets import preset


@command
def doctor_command(*, as_json: Annotated[bool, option(name="json")] = False) -> int:
    """Print what this machine has, what is slow or missing on it, and what helps.

    Args:
        as_json: Print one JSON object, with facts and problems.

    Examples:
        pellucid doctor --json
        pellucid doctor --json > machine.json
    """
    from pellucid.machine_check import check_machine

    check = check_machine()
    print(json.dumps({"facts": dict(check.facts), "problems": check.problems}) if as_json else check)
    return 0


@dataclass(frozen=True)
class PlannedModelOptions:
    """Sizes that replace those of the preset, file or run."""

    context: Annotated[int | None, option("N"), at_least(1)] = None
    """Use this many tokens of context."""
    vocabulary: Annotated[int | None, option("N"), at_least(1)] = None
    """Use a tokenizer of this many tokens."""


@dataclass(frozen=True)
class PlannedTrainingOptions:
    """How and where to train."""

    batch: Annotated[int | None, option("N", default="what a run would choose"), at_least(1)] = None
    """Train on this many sequences in one micro-batch."""
    tokens: Annotated[int | None, option("N", default="the run's, or 20 for each parameter"), at_least(1)] = None
    """Train on this many tokens in all."""
    precision: Annotated[Literal["float32", "bfloat16"] | None, option("FORMAT", default="the faster one")] = None
    """Multiply matrices in float32 or bfloat16."""
    device: Annotated[str, option("DEVICE"), DEVICE] = "auto"
    """Plan for auto, cpu, cuda or mps on this machine."""
    measure: Annotated[bool, option()] = True
    """Do not take steps for a few seconds to measure the speed of this machine."""
    accelerator: Annotated[UseAppendAction[tuple[str, ...]], option("NAME", repeatable=True)] = ()
    """Plan for this accelerator from its data sheet, such as h100-sxm or rtx-4090."""


@dataclass(frozen=True)
class PlannedProcessOptions:
    """Many processes, each with an accelerator of its own; --batch is then of all of them."""

    processes: Annotated[int, option("N"), at_least(1)] = 1
    """Plan for this many processes."""
    replicate: Annotated[int, option("N", default="chosen"), at_least(0)] = 0
    """Keep this many copies of the parameters."""
    shard: Annotated[int, option("N", default="chosen"), at_least(0)] = 0
    """Divide each copy's parameters, gradients and averages among this many processes."""
    tensor: Annotated[int, option("N", default="1"), at_least(0)] = 0
    """Divide each layer's products among this many processes."""
    search: Annotated[bool, option()] = False
    """Try every layout and show the fastest that fit."""


@dataclass(frozen=True)
class PlanOptions:
    """What is printed."""

    as_json: Annotated[bool, option(name="json")] = False
    """Print the plan as JSON."""


@command
def plan_command(
    what: Annotated[Positional[str], option("[PRESET|FILE|RUN]")] = "small",
    *,
    model: PlannedModelOptions,
    training: PlannedTrainingOptions,
    layout: PlannedProcessOptions,
    output: PlanOptions,
) -> int:
    """Print what a run would need: parameters, FLOPs, memory and time.

    Args:
        what: Plan this preset, the architecture in this JSON file, or this run.

    Examples:
        pellucid plan gpt2 --batch 8
        pellucid plan gpt2 --processes 64 --search --accelerator h100-sxm
    """
    if not Path(what).is_dir() and Path(what).suffix != ".json":
        preset(what)  # an unknown preset fails here, before torch is imported

    from pellucid.plan import as_dict, make_plan, plan_lines
    from pellucid.plan.accelerators import DEFAULT_ACCELERATORS

    t = training
    with progress_on_stderr("planning") as progress:
        plan = make_plan(
            what,
            batch=t.batch,
            n_ctx=model.context,
            vocabulary=model.vocabulary,
            precision=t.precision,
            accelerators=t.accelerator or DEFAULT_ACCELERATORS,
            tokens=t.tokens,
            **vars(layout),
            device=t.device,
            measure=t.measure,
            progress=progress,
        )
        said = json.dumps(as_dict(plan)) if output.as_json else "\n".join(plan_lines(plan))
    print(said)
    return 0


@command
def report_command(run: Annotated[Positional[Path], option("RUN"), FOLDER]) -> int:
    """Write the report of a run: report.html in its folder.

    The report is one self-contained file: it opens from disk, offline.

    Args:
        run: Report on the run in this folder. An existing report is replaced.

    Examples:
        pellucid report runs/my_texts
        pellucid report runs/my_texts-2
    """
    from pellucid.report import write_page

    path = write_page(run)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    return 0
