"""Turns edits into functions of the engine's tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.edits import AXES_OF_SELECTION, Edit, EditError
from pellucid.tensor_names import axes, axis_sizes, row, select

Functions = dict[str, list[Callable[[Tensor], Tensor]]]


@dataclass(frozen=True)
class EditContext:
    """The position of the token in each column of a call.

    queries  absolute position of each column that is computed [b, n], -1 for padding
    keys     the same for each column that may be read [b, n_keys], including those of a cache
    source   the same for an encoder's columns [b, n_source], None where there are none
    rows     which rows of the whole batch these are [b]
    """

    queries: Tensor
    keys: Tensor
    source: Tensor | None
    rows: Tensor

    def places(self, full: str, letter: str, n: int) -> Tensor:
        """The absolute positions along axis `letter`, i or j, of the n columns that this tensor has [b, n]."""
        if full.startswith("encoder.") or (".cross." in full and letter == "j"):
            assert self.source is not None
            return self.source
        # keys and values are computed for the new columns only; the cache has the others
        numbers = self.keys if letter == "j" and "i" in axes(full) else self.queries
        return numbers[:, -n:]  # in generation the logits are computed for the last column only


def edit_context(real: Tensor, source_real: Tensor | None = None) -> EditContext:
    """The context of a full pass over rows padded on the right; `real` is True at tokens [b, n]."""

    def places(real: Tensor) -> Tensor:
        return torch.arange(real.size(1), device=real.device).masked_fill(~real, -1)

    queries = places(real)
    rows = torch.arange(real.size(0), device=real.device)
    return EditContext(queries, queries, None if source_real is None else places(source_real), rows)


def resolve(edits: Sequence[Edit], a: Architecture) -> list[Edit]:
    """The edits with one full name each, and with tensors in place of the traces that they refer to.

    Raises KeyError with the reason where the architecture has no such tensor, and EditError where a position, a head
    or a value does not fit it.
    """
    if isinstance(edits, Edit):
        raise EditError(f"expected a list of edits, got one edit: give [{edits.op}(...)]")
    resolved = []
    for edit in edits:
        if not isinstance(edit, Edit):
            raise EditError(
                f"expected edits of pellucid.edits, got {type(edit).__name__}: give zero(name), add(...), ..."
            )
        for full in select(edit.name, a):
            _check_places(edit, full, a)
            value = edit.value[full] if hasattr(edit.value, "keep") else edit.value
            _check_value(edit, full, value, a)
            resolved.append(replace(edit, name=full, value=value))
    return resolved


def check_reached(edits: Sequence[Edit], frame: EditContext) -> None:
    """Raise EditError for rows and positions that no text of a full pass has, where an edit would change nothing.

    Generation has no such check: it may still reach a position.
    """
    for edit in edits:
        letters, width = axes(edit.name), frame.queries.size(1)
        for option in ("row", "pos", "key"):
            indices = getattr(edit, option)
            if indices is None:
                continue
            if option == "row":
                n, what = len(frame.rows), "rows"
            else:
                numbers = frame.places(edit.name, letters[axis_of(option, letters)], width)
                n, what = int(numbers.max()) + 1, "positions"
            last = indices.start or 0 if isinstance(indices, slice) else max(indices)
            if last >= n:
                raise EditError(f"{option} = {last} of {edit.name}: this input has {n} {what}, counted from 0")


def functions(edits: Sequence[Edit], frame: EditContext) -> Functions:
    """Resolved edits as functions of the tensors, by name."""
    by_name: Functions = {}
    for edit in edits:
        by_name.setdefault(edit.name, []).append(lambda x, edit=edit: apply(edit, x, frame))
    return by_name


def apply(edit: Edit, x: Tensor, frame: EditContext) -> Tensor:
    """x with the edit applied at its positions."""
    chosen = _chosen(edit, x, frame)
    if edit.name.endswith(".scores"):
        chosen = chosen & (x != -torch.inf)
    value = None
    if edit.value is not None:
        value, reached = _aligned(edit, x, frame)
        chosen = chosen & reached
    return torch.where(chosen, _apply_edit(edit, x, value, frame).to(x.dtype), x)


def _apply_edit(edit: Edit, x: Tensor, value: Tensor | None, frame: EditContext) -> Tensor:
    """The new x if the edit applied at every position."""
    if edit.op == "zero":
        return torch.zeros_like(x)
    if edit.op == "scale":
        return edit.factor * x
    if edit.op == "clamp":
        return x.clamp(edit.low, edit.high)
    if value is None:
        assert edit.op == "mean"
        return _mean(edit, x, frame)
    if edit.op == "add":
        return x + edit.factor * value
    if edit.op == "project_out":
        u = value / value.norm(dim=-1, keepdim=True)
        return x - (x * u).sum(-1, keepdim=True) * u
    return value.expand_as(x)


def _mean(edit: Edit, x: Tensor, frame: EditContext) -> Tensor:
    """The mean over the rows, or over the positions, without padding."""
    letters = axes(edit.name)
    along = letters.index("i" if "i" in letters else "j")
    real = _along(frame.places(edit.name, letters[along], x.size(along)) >= 0, along, x.ndim)
    axis = 0 if edit.over == "batch" else along
    total = torch.where(real, x, 0).sum(axis, keepdim=True) / real.sum(axis, keepdim=True).clamp(min=1)
    return total.expand_as(x)


def _chosen(edit: Edit, x: Tensor, frame: EditContext) -> Tensor:
    """True where the edit applies, to be broadcast against x."""
    letters = axes(edit.name)
    chosen = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    for option in AXES_OF_SELECTION:
        indices = getattr(edit, option)
        if indices is None:
            continue
        axis = axis_of(option, letters)
        if option in ("pos", "key"):
            chosen = chosen & _along(among(frame.places(edit.name, letters[axis], x.size(axis)), indices), axis, x.ndim)
        else:
            numbers = frame.rows if option == "row" else torch.arange(x.size(axis), device=x.device)
            shape = [1] * x.ndim
            shape[axis] = -1
            chosen = chosen & among(numbers, indices).view(shape)
    return chosen


def among(numbers: Tensor, indices: Any) -> Tensor:
    """True for the numbers that are among the indices."""
    if isinstance(indices, slice):
        inside = numbers >= (indices.start or 0)
        return inside if indices.stop is None else inside & (numbers < indices.stop)
    return torch.isin(numbers, torch.tensor(indices, device=numbers.device, dtype=numbers.dtype))


def _along(x: Tensor, axis: int, ndim: int) -> Tensor:
    """[b, n] with n put on `axis` of a tensor of `ndim` axes, b on the first."""
    shape = [1] * ndim
    shape[0], shape[axis] = x.size(0), x.size(1)
    return x.view(shape)


def _aligned(edit: Edit, x: Tensor, frame: EditContext) -> tuple[Tensor, Tensor]:
    """The value at each column's absolute position and row, and True where the value has such a position."""
    value = torch.as_tensor(edit.value, dtype=x.dtype, device=x.device)
    reached = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    if value.ndim < 2:
        return value, reached
    if value.size(0) > 1:
        value = value[frame.rows % value.size(0)]
    for axis, letter in enumerate(axes(edit.name)):
        if letter in "ij" and value.size(axis) > 1:
            numbers = frame.places(edit.name, letter, x.size(axis))
            reached = reached & _along((numbers >= 0) & (numbers < value.size(axis)), axis, x.ndim)
            value = torch.take_along_dim(value, _along(numbers.clamp(0, value.size(axis) - 1), axis, x.ndim), axis)
    return value, reached


def axis_of(option: str, letters: Sequence[str]) -> int:
    """The axis that an option restricts: positions of keys and values are along j."""
    return next(letters.index(letter) for letter in AXES_OF_SELECTION[option] if letter in letters)


def _check_places(edit: Edit, full: str, a: Architecture) -> None:
    """Raise EditError for options without an axis in the tensor, and for heads and neurons that do not exist."""
    letters = axes(full)
    sizes = axis_sizes(full, a)
    for option in AXES_OF_SELECTION:
        indices = getattr(edit, option)
        if indices is None:
            continue
        fits = any(letter in letters for letter in AXES_OF_SELECTION[option]) and (option != "key" or "i" in letters)
        if not fits:
            other = {"head": "kv_head", "kv_head": "head", "key": "pos"}.get(option, "another place")
            raise EditError(
                f"{option} was given for {full}, whose axes are {row(full).axes}: give {other}, or leave it out"
            )
        last = (indices.stop or 0) - 1 if isinstance(indices, slice) else max(indices)
        n = sizes.get(letters[axis_of(option, letters)])
        if n is not None and last >= n:
            raise EditError(f"{option} = {last} of {full}: there are {n}, counted from 0")


def _check_value(edit: Edit, full: str, value: Any, a: Architecture) -> None:
    """Raise EditError for missing values, and for values whose shape does not fit the tensor."""
    needs = edit.op in ("resample", "set", "add", "project_out")
    if needs and value is None:
        raise EditError(f"{edit.op} of {full} was given no value: give a number, a vector, an array or a trace")
    if edit.op == "mean" and value is None and edit.over is None:
        raise EditError(f"mean of {full}: expected over='pos', over='batch', or the mean itself")
    if value is None:
        return
    try:
        shape = torch.as_tensor(value).shape
    except (TypeError, ValueError, RuntimeError) as error:
        raise EditError(f"the value for {full} is not an array of numbers: {error}") from None
    letters = axes(full)
    sizes = axis_sizes(full, a)
    expected = [sizes.get(letter) for letter in letters]
    if len(shape) == 1 and expected[-1] is not None:
        fits = shape[0] in (1, expected[-1])
    else:
        fits = not shape or (
            len(shape) == len(letters) and all(n in (1, e) for n, e in zip(shape, expected, strict=True) if e)
        )
    if edit.op == "project_out":
        fits = fits and bool(shape) and shape[-1] == (expected[-1] or shape[-1])
    if not fits:
        raise EditError(
            f"a value of shape {list(shape)} was given for {full}, whose axes are {row(full).axes}: "
            "give a number, a vector along the last axis, or every axis with its length or 1"
        )
    if edit.op == "project_out" and not (torch.as_tensor(value).detach().cpu().double().norm(dim=-1) > 0).all():
        raise EditError(
            f"project_out of {full} was given a vector of length 0 or nan: expected a vector with a direction"
        )


def refers_to_clean(edits: Sequence[Edit]) -> list[str]:
    """The names of tensors that edits freeze at their values in the run without edits."""
    return [edit.name for edit in edits if edit.op == "freeze" and edit.value is None]


def frozen(edits: Sequence[Edit], clean: Mapping[str, Tensor]) -> list[Edit]:
    """The edits, with frozen values filled in from a run without edits."""
    return [replace(e, value=clean[e.name]) if e.op == "freeze" and e.value is None else e for e in edits]
