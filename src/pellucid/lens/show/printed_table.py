"""How a result prints: a heading and a table of its largest rows, as text in a terminal and as HTML in a notebook."""

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pellucid.text.sanitize import sanitize

#: rows that are printed of a longer table
PRINTED_ROWS = 12


class PrintedTable(NamedTuple):
    """What is printed of a result: a sentence, names of columns, all rows, and how the rest is reached."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: str = ""

    def cells(self) -> list[list[str]]:
        """The first rows as text: numbers of a column share a precision, and what is not there is a dash."""
        return [[cell_text(value) for value in row] for row in self.rows[:PRINTED_ROWS]]

    @property
    def rest(self) -> str:
        """A sentence on the rows that are not printed, "" where there are none."""
        n = len(self.rows) - PRINTED_ROWS
        return f"and {n:,} more{': ' * bool(self.more)}{self.more}" if n > 0 else ""


def cell_text(value: Any) -> str:
    """A number with three decimals, a dash for nan and None, anything else as it is."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else sanitize(str(value)).replace("\n", "\\n")


class PrintsAsTable:
    """A result that prints as a table. Its dataclass has `repr=False`."""

    def printed(self) -> PrintedTable:
        """What is printed, largest first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        table = self.printed()
        lines = [list(table.columns), *table.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [isinstance(value, str) for value in (table.rows[0] if table.rows else table.columns)]
        aligned = [
            "  ".join(
                f"{cell:{'<' if is_text else '>'}{width}}"
                for cell, width, is_text in zip(line, widths, texts, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([table.heading, *aligned, *([table.rest] if table.rest else [])])

    def _repr_html_(self) -> str:
        table = self.printed()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>" for cells in table.cells()
        )
        rest = f"<p>{html.escape(table.rest)}</p>" if table.rest else ""
        return f"<p>{html.escape(table.heading)}</p><table><tr>{head}</tr>{rows}</table>{rest}"
