"""A tap is handed every named tensor and hands it back, the same or another.

The forward pass writes `x = tap("resid_mid", x)` beside each line that computes a named tensor.
OFF returns what it is given: the compiled graph is then the graph of the model without taps.
"""

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

Edit = Callable[[Tensor], Tensor]


class Tap:
    """Does nothing. The base of every tap, and through OFF the default."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """The tensor `name` of the current scope, as the computation shall go on with it.

        A tap that changes it returns another tensor, and leaves `value` as it is.
        """
        return value

    def at(self, scope: str) -> "Tap":
        """This tap inside a module: names below are prefixed with `scope.`."""
        return self

    def choose(
        self,
        names: tuple[str, ...],
        fused: Callable[[], Tensor],
        written: Callable[["Tap"], Tensor],
        seen: Callable[["Tap"], Tensor] | None = None,
    ) -> Tensor:
        """A result whose inner tensors `names` exist only when it is written out.

        A tap that keeps one of them has `seen` (or, without one, the written-out computation) run beside
        the fused one, whose value stays untouched: `seen` draws no random numbers, so that keeping changes
        nothing in training either. One that edits an inner tensor, or wants its gradient, has `written`
        run instead.
        """
        return fused()


OFF = Tap()


class Recorder(Tap):
    """Keeps the tensors named in `keep` and applies the functions in `edits`, by full name.

    keep    full names, such as `blocks.3.attn.pattern`
    edits   full name -> functions of the tensor, applied in order before it is kept
    grad    whether kept tensors stay in the autograd graph

    What was kept is in `values`. Calling the same model twice overwrites: recomputation in activation
    checkpointing sees the same values.
    """

    def __init__(self, keep: Iterable[str] = (), edits: Mapping[str, Iterable[Edit]] | None = None, grad: bool = False):
        self.keep = frozenset(keep)
        self.edits = {name: tuple(functions) for name, functions in (edits or {}).items()}
        self.grad = grad
        self.values: dict[str, Tensor] = {}
        self.prefix = ""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        full = self.prefix + name
        for edit in self.edits.get(full, ()):
            value = edit(value)
        if full in self.keep:
            self.values[full] = value if self.grad else value.detach()
        return value

    def at(self, scope: str) -> "Recorder":
        inner = object.__new__(type(self))
        inner.__dict__.update(self.__dict__, prefix=f"{self.prefix}{scope}.")
        return inner

    def choose(
        self,
        names: tuple[str, ...],
        fused: Callable[[], Tensor],
        written: Callable[[Tap], Tensor],
        seen: Callable[[Tap], Tensor] | None = None,
    ) -> Tensor:
        full = [self.prefix + name for name in names]
        is_kept = any(name in self.keep for name in full)
        if any(name in self.edits for name in full) or (is_kept and self.grad):
            return written(self)
        if is_kept:
            (seen or written)(self)
        return fused()
