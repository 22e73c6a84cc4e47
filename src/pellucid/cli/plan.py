"""The commands about a run as a whole: what it will need and take, and the report of what became of it."""

import json
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg


def plan(
    what: Positional[str] = "small",
    *,
    batch: int | None = None,
    n_ctx: int | None = None,
    vocabulary: int | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    accelerator: UseAppendAction[tuple[str, ...]] = (),
    tokens: int | None = None,
    device: str = "auto",
    measure: bool = True,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> int:
    """Parameters, FLOPs, memory and time of a run, before anything is spent.

    Args:
        what: a preset, the JSON file of an architecture, or a run.
        batch: sequences in one pass; what a run would choose unless given.
        n_ctx: tokens of context, in place of the architecture's.
        vocabulary: ids of the tokenizer, in place of the architecture's.
        precision: of matrix products.
        accelerator: plan for this one from its data sheet (h100-sxm, rtx-4090, ...); may be repeated.
        tokens: how many are trained on; the run's, or 20 for each parameter.
        device: cpu, cuda, mps or auto.
        measure: take steps for a few seconds to know the speed of this machine.
        as_json: print the plan as JSON.
    """
    from pellucid.plan import as_dict, lines_of, make_plan
    from pellucid.plan.accelerators import USUAL

    made = make_plan(
        what,
        batch=batch,
        n_ctx=n_ctx,
        vocabulary=vocabulary,
        precision=precision,
        accelerators=accelerator or USUAL,
        tokens=tokens,
        device=device,
        measure=measure,
    )
    print(json.dumps(as_dict(made)) if as_json else "\n".join(lines_of(made)))
    return 0


def report(run: Positional[Path]) -> int:
    """Write the report of a run: report.html in its folder, one file that opens from disk.

    Args:
        run: the run's folder; a report that is there is replaced.
    """
    from pellucid.report import write_page

    path = write_page(run)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB; open it in a browser")
    return 0
