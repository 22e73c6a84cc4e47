"""The commands that list, compare, prune, rename and delete runs."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from pellucid.cli.options import FOLDER, NewPath, agrees, at_least, command, make_missing_folder, option


@command
def runs_list(folder: Annotated[Positional[str], option("[FOLDER]")] = "runs") -> int:
    """List the runs in a folder: size on disk, tokens, minutes, bits per byte, status.

    Args:
        folder: List the runs in this folder.

    Examples:
        pellucid runs list runs
        pellucid runs list experiments/
    """
    from pellucid.report.run_list import list_runs

    print(list_runs(folder).table(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return 0


@dataclass(frozen=True)
class ComparisonOptions:
    """Where the page is written."""

    out: Annotated[Path, option("FILE", aliases=("-o",)), NewPath(may_exist=True)] = Path("comparison.html")
    """Write the page into this file. A file that exists is replaced."""


@command
def runs_compare(
    runs: Annotated[Positional[tuple[str, ...]], option("RUN RUN ...")], *, output: ComparisonOptions
) -> int:
    """Write a page about several runs: curves, differing options, samples.

    Args:
        runs: Compare these runs, two to six.

    Examples:
        pellucid runs compare runs/a runs/b
        pellucid runs compare runs/a runs/b runs/c -o three.html
    """
    from pellucid.report.comparison import compare_runs

    make_missing_folder(output.out)
    print(f"{compare_runs(*runs, out=output.out)}: open it in a browser")
    return 0


@dataclass(frozen=True)
class PruningOptions:
    """What stays."""

    keep_last: Annotated[int, option("N"), at_least(1)] = 1
    """Keep so many of the newest checkpoints, beside the best and those that it needs."""


@command
def runs_prune(run: Annotated[Positional[str], option("RUN"), FOLDER], *, options: PruningOptions) -> int:
    """Remove old checkpoints of a run, which is still resumed, made longer and loaded.

    Args:
        run: Remove checkpoints of this run.

    Examples:
        pellucid runs prune runs/my_texts
        pellucid runs prune runs/my_texts --keep-last 3
    """
    from pellucid.report.run_list import prune_run

    before, after = prune_run(run, options.keep_last)
    print(f"{run}: {before:,} bytes before, {after:,} bytes now")
    return 0


@command
def runs_rename(
    run: Annotated[Positional[str], option("RUN"), FOLDER], name: Annotated[Positional[str], option("NAME")]
) -> int:
    """Give the folder of a run another name.

    Args:
        run: Rename this run.
        name: Give its folder this name, beside the old one.

    Examples:
        pellucid runs rename runs/my_texts first-try
        pellucid runs rename runs/my_texts-2 with-dropout
    """
    from pellucid.report.run_list import rename_run

    print(f"{run} is now {rename_run(run, name)}")
    return 0


@command
def runs_delete(
    run: Annotated[Positional[str], option("RUN"), FOLDER], *, yes: Annotated[bool, option()] = False
) -> int:
    """Delete a run with everything in its folder. It asks first.

    Args:
        run: Delete this run.
        yes: Do not ask.

    Examples:
        pellucid runs delete runs/my_texts
        pellucid runs delete runs/my_texts --yes
    """
    from pellucid.report.run_list import bytes_of, checked_run, delete_run

    path = checked_run(run)
    if not yes and not agrees(
        f"delete {run}, {bytes_of(path) / 1e6:,.1f} MB, for good?",
        f"{run} would be deleted for good, and nobody can be asked here: give --yes",
    ):
        print(f"{run} is as it was")
        return 0
    print(f"{run}: deleted, {delete_run(path):,} bytes")
    return 0


RUN_COMMANDS: dict[str, Callable[..., int]] = {
    "list": runs_list,
    "compare": runs_compare,
    "prune": runs_prune,
    "rename": runs_rename,
    "delete": runs_delete,
}
