"""The report: the laws, the tensors, and how they are printed in a terminal."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pellucid.tensor_names import row

#: tolerance relative to max(1, largest entry), in float64
TOLERANCE = 1e-10
STATUS_TEXT = {True: Text("holds", "green"), False: Text("BROKEN", "bold red"), None: Text("-", "dim")}


class LawResult(NamedTuple):
    """Whether a law holds (None if it does not apply), what was measured, and the first wrong tensor."""

    holds: bool | None
    measured: str
    first: str | None = None


@dataclass(frozen=True)
class Check:
    """One law: whether it holds (None if it does not apply), what was measured, and the first wrong tensor.

    `first` is None if the law holds or is not about tensors.
    """

    law: str
    holds: bool | None
    measured: str
    first: str | None = None


@dataclass(frozen=True)
class Difference:
    """The distance of the engine's tensor from the reference's: max |difference| / max(1, max |reference|).

    If the two cannot be subtracted, `value` is None and `reason` says why. Up to `tolerance` it is rounding.
    """

    name: str
    value: float | None
    reason: str = ""
    tolerance: float = TOLERANCE

    @property
    def small(self) -> bool:
        return self.value is not None and self.value <= self.tolerance

    @property
    def size(self) -> float:
        """`value`, or infinity if there is none, for finding the worst."""
        return float("inf") if self.value is None else self.value

    def __str__(self) -> str:
        return self.reason if self.value is None else f"{self.value:.1e}" if self.value else "0"


@dataclass(frozen=True)
class Report:
    """The results of `verify`.

    tensors   those of the prompts, in the reference's order of computation
    n_tokens  how many tokens of each prompt were read
    own       the error of the model's logits in its own precision `dtype`
    uncovered    parts of the model that were not compared
    """

    checks: tuple[Check, ...]
    tensors: tuple[Difference, ...]
    n_parameters: int
    n_tokens: tuple[int, ...]
    dtype: str
    own: Difference
    uncovered: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """The first wrong tensor: it breaks the first broken law about tensors, and all tensors before it are right.

        The laws are in this order: prompts first, then other ways of reading.
        """
        return next((check.first for check in self.checks if check.first is not None), None)

    @property
    def holds(self) -> bool:
        return all(check.holds is not False for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0, or 1 if a law is broken."""
        return 0 if self.holds else 1

    def to_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "first": self.first, "tolerance": TOLERANCE} | asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def text(self, *, tensors: bool = False, width: int = 80) -> str:
        """The report for a terminal without colours."""
        console = Console(width=width, color_system=None, force_terminal=False)
        with console.capture() as capture:
            self.print(console, tensors=tensors)
        return capture.get()

    def print(self, console: Console | None = None, *, tensors: bool = False) -> None:
        """Print a table of the laws and the tensors around the first difference; `tensors` lists all.

        The list of all has one row for each kind of tensor.
        """
        console = console or Console()
        read = " + ".join(map(str, self.n_tokens))
        console.print(f"{self.n_parameters:,} parameters; prompts of {read} tokens; compared in float64\n", style="dim")
        console.print(_law_table(self.checks), "")
        if tensors:
            console.print(_kinds_table(self.tensors), "")
        elif wrong := next((t.name for t in self.tensors if not t.small), None):
            console.print(_neighbours_table(self.tensors, wrong), "")
        console.print(f"as it runs, in {self.dtype}: logits within {self.own} of the reference", highlight=False)
        for line in self.uncovered:
            console.print(f"not compared: {line}", style="dim", highlight=False, markup=False)
        for line in self.conclusion():
            console.print(line, style="bold", highlight=False, markup=False)

    def conclusion(self) -> list[str]:
        """One sentence, and where a tensor differs its name and equation."""
        broken = [check.law for check in self.checks if check.holds is False]
        if not broken:
            return ["every law that applies holds"]
        lines = [f"broken: {'; '.join(broken)}"]
        if self.first:
            lines.append(f"first tensor that differs: {self.first}{_equation(self.first)}")
        return lines


def _equation(name: str) -> str:
    """How a tensor is computed; nothing for the name of a weight."""
    try:
        return f" = {row(name).equation}"
    except KeyError:
        return ""


def _law_table(checks: Sequence[Check]) -> Table:
    table = Table("law", "", "measured", box=None, pad_edge=False, header_style="bold")
    for check in checks:
        table.add_row(Text(check.law), STATUS_TEXT[check.holds], Text(check.measured))
    return table


def _kinds_table(tensors: Sequence[Difference]) -> Table:
    """One row for each kind of tensor: the largest difference over the layers."""
    table = Table("tensor", "largest difference", "in", box=None, pad_edge=False, header_style="bold")
    kinds: dict[str, list[Difference]] = {}
    for tensor in tensors:
        kinds.setdefault(re.sub(r"blocks\.\d+\.", "blocks.*.", tensor.name), []).append(tensor)
    for kind, of_kind in kinds.items():
        worst = max(of_kind, key=lambda t: t.size)
        layer = re.search(r"blocks\.\d+", worst.name)
        table.add_row(Text(kind), _difference_text(worst), Text(layer.group() if layer else ""))
    return table


def _neighbours_table(tensors: Sequence[Difference], first: str) -> Table:
    """The first tensor that differs, with what is computed just before and after it."""
    table = Table("tensor, as computed", "difference", box=None, pad_edge=False, header_style="bold")
    position = [tensor.name for tensor in tensors].index(first)
    for tensor in tensors[max(0, position - 3) : position + 4]:
        table.add_row(Text(tensor.name, "bold" if tensor.name == first else ""), _difference_text(tensor))
    return table


def _difference_text(tensor: Difference) -> Text:
    return Text(str(tensor), "" if tensor.small else "red")
