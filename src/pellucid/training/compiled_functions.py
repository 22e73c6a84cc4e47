"""Which of the C++ functions of training this machine can use, and what to say where it cannot use one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pellucid.runs import denormals
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import MACHINE, read_json
from pellucid.training import cross_entropy, step_functions

SOURCES = {
    "step_functions": step_functions.SOURCE,
    "cross_entropy": cross_entropy.SOURCE,
    "denormals": denormals.SOURCE,
}
#: the entry of machine.json: for each function the reason why it is not there, "" where it is
ENTRY = "compiled_functions"


def missing_functions(device: torch.device) -> dict[str, str]:
    """For each C++ function the reason why it cannot be used, "" where it can; empty off the CPU, which needs none."""
    return {name: source.load()[1] for name, source in SOURCES.items()} if device.type == "cpu" else {}


def lines_on_missing(functions: Mapping[str, str]) -> list[str]:
    """A line that names the C++ functions that cannot be used, why, what that costs and what helps."""
    reasons = {name: why for name, why in functions.items() if why}
    if not reasons:
        return []
    return [
        f"warning: C++ functions of training cannot be used here ({', '.join(reasons)}): {reasons.popitem()[1]}. "
        "PyTorch's operations take their place: steps take longer, and last digits differ. Install "
        "g++, or clang++ with OpenMP, or name a compiler in the environment variable CXX"
    ]


def lines_on_resuming(run_dir: Path, device: torch.device) -> list[str]:
    """`lines_on_missing`, and a line where the run began with other functions than there are here."""
    functions = missing_functions(device)
    try:
        began: Any = read_json(run_dir / MACHINE).get(ENTRY)
    except RecipeError:
        began = None
    lines = lines_on_missing(functions)
    if functions and isinstance(began, dict):
        lost = [name for name, why in functions.items() if why and not began.get(name, why)]
        gained = [name for name, why in functions.items() if not why and began.get(name)]
        for word, names in (("with", lost), ("without", gained)):
            if names:
                lines.append(
                    f"warning: the run began {word} these C++ functions ({', '.join(names)}): the last digits of "
                    "losses may differ from here on"
                )
    return lines
