"""The definition of edits: how a change that is described by data acts on a tensor."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pellucid.edits import AXES_OF_SELECTION, Edit
from pellucid.reference.tape import Array, constant
from pellucid.tensor_names import axes


def edit_functions(edits: Sequence[Edit]) -> dict[str, Callable[[Array], Array]]:
    """Edits of `pellucid.tensor_names` tensors as functions by name, in order, for `reference.tap.TensorRecorder`."""
    by_name: dict[str, list[Edit]] = {}
    for edit in edits:
        by_name.setdefault(edit.name, []).append(edit)

    def in_order(several: list[Edit]) -> Callable[[Array], Array]:
        def change(x: Array) -> Array:
            for edit in several:
                x = apply_edit(edit, constant(x))
            return x

        return change

    return {name: in_order(several) for name, several in by_name.items()}


def apply_edit(edit: Edit, x: np.ndarray) -> np.ndarray:
    """x with one edit made   [...] -> [...]. S4 "Drawbacks": interventions via modifying representations.

    The columns of x are the positions 0, 1, ...; a value replaces or changes them from position 0 on, as far as it is
    long. Scores of -inf stay.
    """
    letters = axes(edit.name)
    applies = np.ones(x.shape, bool)
    for option in AXES_OF_SELECTION:
        selection = getattr(edit, option)
        if selection is not None:
            axis = min(letters.index(letter) for letter in AXES_OF_SELECTION[option] if letter in letters)
            n = x.shape[axis]
            numbers = range(*selection.indices(n)) if isinstance(selection, slice) else [k for k in selection if k < n]
            here = np.zeros(n, bool)
            here[list(numbers)] = True
            applies &= here.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    if edit.name.endswith(".scores"):
        applies &= x != -np.inf
    new = np.broadcast_to(_edited_entries(edit, x, letters), x.shape)
    return np.where(applies & ~np.isnan(new), new, x)


def _edited_entries(edit: Edit, x: np.ndarray, letters: list[str]) -> Any:
    """The new entries of x where the edit applies; nan at positions beyond the end of its value."""
    value = np.asarray(np.nan) if edit.value is None else _laid_over(np.asarray(edit.value, float), x, letters)
    match edit.op:
        case "zero":
            return 0.0
        case "scale":
            return np.multiply(edit.factor, x, where=np.isfinite(x), out=np.zeros_like(x))
        case "add":
            return x + edit.factor * value
        case "clamp":
            low = -np.inf if edit.low is None else edit.low
            return np.clip(x, low, np.inf if edit.high is None else edit.high)
        case "project_out":
            u = value / np.sqrt(np.sum(value**2, axis=-1, keepdims=True))
            return x - np.sum(x * u, axis=-1, keepdims=True) * u
        case "mean" if edit.value is None:
            axis = 0 if edit.over == "batch" else next(letters.index(letter) for letter in "ij" if letter in letters)
            return np.mean(x, axis=axis, keepdims=True)
    return value


def _laid_over(value: np.ndarray, x: np.ndarray, letters: list[str]) -> np.ndarray:
    """The value in the shape of x: its rows are repeated in turn, and positions beyond its end are nan."""
    if value.ndim < 2:
        return value
    value = np.take(value, np.arange(x.shape[0]) % value.shape[0], axis=0)
    for axis, letter in enumerate(letters):
        if letter in "ij" and value.shape[axis] > 1:
            n, given = x.shape[axis], value.shape[axis]
            value = np.take(value, np.minimum(np.arange(n), given - 1), axis=axis)
            beyond = (np.arange(n) >= given).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
            value = np.where(beyond, np.nan, value)
    return value
