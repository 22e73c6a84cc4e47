"""A tap names the tensors of one forward pass, and records or edits them."""

from collections.abc import Callable, Mapping

from pellucid.reference.tape import Array, constant

Edit = Callable[[Array], Array]


class NoRecorder:
    """A tap that returns every tensor unchanged."""

    def __call__(self, name: str, value: Array) -> Array:
        return value

    def at(self, scope: str) -> "NoRecorder":
        return self


OFF = NoRecorder()


class TensorRecorder(NoRecorder):
    """Keeps every named tensor in `values`, by full name (pellucid.tensor_names), after applying the edit of that name.

    S4 "Drawbacks": interventions via modifying representations. `edits` maps a full name to a function whose result
    the computation goes on with.
    """

    def __init__(self, edits: Mapping[str, Edit] | None = None):
        self.edits = dict(edits or {})
        self.values: dict[str, Array] = {}
        self.prefix = ""

    def __call__(self, name: str, value: Array) -> Array:
        full = self.prefix + name
        if full in self.edits:
            value = self.edits[full](value)
        self.values[full] = constant(value)
        return value

    def at(self, scope: str) -> "TensorRecorder":
        """The same tap, with names below prefixed by `scope.`"""
        inner = TensorRecorder()
        inner.edits, inner.values, inner.prefix = self.edits, self.values, f"{self.prefix}{scope}."
        return inner
