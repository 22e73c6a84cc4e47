"""The page Read: the computation as one column of steps, each with its equation, its numbers and its source."""

from typing import Any

from fastapi import FastAPI, Request
from torch import Tensor

from pellucid.lens.trace import Trace
from pellucid.look.answers import numbers
from pellucid.look.session import Session
from pellucid.tensor_names import axes, names


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Read."""

    @app.get("/api/t/{trace_id}/read")
    async def read(request: Request, trace_id: str, pos: int = -1) -> dict[str, Any]:
        return await session.compute(request, lambda: read_steps(session.kept_trace(trace_id), pos))


def tensor_part(trace: Trace, name: str, *, head: int | None = None, pos: int | None = None) -> Tensor:
    """A tensor of the trace's first row: all of it, or the part of one head and of one query position.

    Raises KeyError for a name that the architecture lacks, IndexError for a head or a position that it has not.
    """
    full = trace.full_name(name)
    x, letters = trace[full][0], axes(full)[1:]
    for letter, index in (("h" if "h" in letters else "g", head), ("i" if "i" in letters else "j", pos)):
        if index is None:
            continue
        if letter not in letters:
            raise IndexError(f"{full} has no axis of {'heads' if letter in 'hg' else 'positions'}")
        axis = letters.index(letter)
        size = x.size(axis)
        if not -size <= index < size:
            raise IndexError(f"{full} has {size} entries along this axis, numbered from 0: {index} is none of them")
        x = x.select(axis, index)
        letters = letters[:axis] + letters[axis + 1 :]
    return x


def read_steps(trace: Trace, pos: int) -> dict[str, Any]:
    """Every tensor's numbers at one position."""
    steps = []
    for name in names(trace.architecture):
        letters = axes(name)
        if "i" in letters and len(letters) == 3 and letters[2] in "m1":
            steps.append({"name": name, "values": numbers(tensor_part(trace, name, pos=pos)[:8])})
    return {"steps": steps}
