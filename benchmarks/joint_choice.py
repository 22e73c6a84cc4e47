"""Whether a run's choice of precision, attention, compilation and passes is near the best of all combinations.

    python -m benchmarks.joint_choice --shapes small --rounds 20

Each shape is a run of `--steps` steps on tiny Shakespeare whose options are open. It chooses as every run does, by
timing its own steps, with nothing remembered of earlier ones. Then all combinations are timed in turn for many more
rounds, compiled ones too, with every number of passes that a run compares. The table has their milliseconds a step
(median and quartiles), how much longer than the fastest each takes, and the seconds of the whole run: all steps, and
compiling, which a run that chooses it has to win back (with --compiled-in it is found on disk). The goal is that the
run with its choice takes at most 5 % longer than with the best.
"""

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import header, interleave, seconds, show, spread
from pellucid.runs.interrupt import Interruption
from pellucid.runs.options import with_train
from pellucid.runs.reporter import QuietReporter
from pellucid.text import bundled
from pellucid.training.autotune import Combination, combinations
from pellucid.training.memory import passes_that_fit
from pellucid.training.recipe import make_recipe
from pellucid.training.resolve_recipe import resolve_batch
from pellucid.training.trainable import TransformerStepTimer, TransformerTrainable

#: fields of the preset small
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"n_layers": 1, "d_model": 96, "n_heads": 3, "n_ctx": 128, "batch": 8},
    "middle": {"n_layers": 2, "d_model": 128, "n_heads": 4, "n_ctx": 128, "batch": 16},
    "wide": {"n_layers": 4, "d_model": 256, "n_heads": 8, "n_ctx": 256, "batch": 16},
}


def main() -> None:
    """A table for each shape, and how far its choice is from the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=10_000, help="of the run that chooses")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true", help="only combinations that are not compiled")
    parser.add_argument("--few-compiled", action="store_true", help="compile the chosen number of passes alone")
    parser.add_argument("--compiled-in", type=Path, help="a folder in which an earlier call kept what it compiled")
    o = parser.parse_args()
    for line in header(torch.device("cpu")):
        print(line)
    for shape in o.shapes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PELLUCID_CACHE"] = folder  # nothing is remembered, and nothing was compiled before
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(o.compiled_in or Path(folder) / "compiled")
            measure(shape, o)


def measure(shape: str, o: argparse.Namespace) -> None:
    """One shape: what a run chooses, and then all combinations at length."""
    fields = SHAPES[shape] | {"tokenizer": "byte", "steps": o.steps, "device": "cpu"}
    fields |= {"compile": "no"} if o.no_compile else {}
    trainable = TransformerTrainable(make_recipe((str(bundled("shakespeare")),), "small", fields))
    with Interruption() as interruption:
        trainable.read(QuietReporter(), interruption)
        began = time.perf_counter()
        lines = trainable.prepare(interruption, None)
        chosen_in = time.perf_counter() - began
        print(f"{shape}, a run of {o.steps:,} steps, prepared in {chosen_in:.1f} s")
        print(*(f"  {line}" for line in lines if line.startswith("step: ")), sep="\n")
        t, device = trainable.recipe.train, trainable.device
        open_fields = {"precision": "auto", "attention": "auto", "batch": t.batch * t.accumulate, "accumulate": 0}
        opened = resolve_batch(with_train(trainable.recipe, **open_fields), device)
        passes = passes_that_fit(opened, device)
        attention = "explicit" if t.attention == "explicit" else "fused"
        chosen = Combination(t.precision, attention, t.compile == "yes", t.accumulate)
        eager = [replace(c, passes=n) for c in combinations(opened, device)[0] for n in passes]
        taken_compiled = [c for c in eager if c.passes == t.accumulate or not o.few_compiled]
        every = [*eager, *([] if o.no_compile else [replace(c, compiled=True) for c in taken_compiled])]
        timer = TransformerStepTimer(trainable, interruption)
        steps = dict(zip(every, timer.steps([c.applied(opened) for c in every]), strict=True))
        first = {c: seconds(step)() for c, step in steps.items()}
        taken = interleave({str(c): seconds(step) for c, step in steps.items()}, o.rounds)
    found = {c: taken[str(c)].median for c in every}
    compiling = {c: max(first[c] - found[c], 0.0) if c.compiled else 0.0 for c in every}
    total = {c: o.steps * found[c] + compiling[c] for c in every}
    best, least = min(found.values()), min(total.values())
    rows = [
        [str(c), spread(taken[str(c)], 1e3), f"{found[c] / best - 1:.1%}", f"{compiling[c]:.0f}", f"{total[c]:,.0f}",
         f"{total[c] / least - 1:.1%}", "chosen" if c == chosen else ""]
        for c in sorted(every, key=total.__getitem__)
    ]  # fmt: skip
    columns = ["combination", "ms a step", "longer than the fastest", "s to compile", "s of the run", "longer", ""]
    show(f"{shape}: {SHAPES[shape]}", columns, rows)
    print(f"the run with its choice takes {total[chosen] / least - 1:.1%} longer than with the best\n")


if __name__ == "__main__":
    main()
