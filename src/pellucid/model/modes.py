"""Contexts in which networks run in another way, which threads may enter and leave in any order."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from weakref import WeakKeyDictionary, ref

from torch import nn

Restore = Callable[[], object]


class SharedContext:
    """A context for what all threads share: the first to enter changes it, and the last to leave restores it.

    If each restored what it found, of two that overlap and end in the order of their beginning, the first would take
    the change from the second, which would then leave it behind for good.

    change  makes the change, and returns what takes it back
    """

    def __init__(self, change: Callable[[], Restore]):
        self.change, self.lock, self.n_inside = change, threading.Lock(), 0
        self.restore: Restore | None = None

    def __enter__(self) -> None:
        with self.lock:
            if not self.n_inside:
                self.restore = self.change()
            self.n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.n_inside -= 1
            if not self.n_inside and self.restore is not None:
                restore, self.restore = self.restore, None
                restore()


_EVALUATING: "WeakKeyDictionary[nn.Module, SharedContext]" = WeakKeyDictionary()
_LOCK = threading.Lock()


def in_evaluation_mode(network: nn.Module) -> SharedContext:
    """A context with every module in evaluation mode, without dropout; restores each module's own mode afterwards."""
    with _LOCK:
        return _EVALUATING.setdefault(network, SharedContext(partial(_evaluate, ref(network))))


def kept_in_evaluation_mode(network: nn.Module) -> AbstractContextManager[object]:
    """As `in_evaluation_mode`, without a look at each module where the network itself is in evaluation mode."""
    context = _EVALUATING.get(network)
    # where another thread put it into evaluation mode, it stays there for this one too
    return in_evaluation_mode(network) if network.training or (context and context.n_inside) else nullcontext()


def _evaluate(reference: "ref[nn.Module]") -> Restore:
    network = reference()
    assert network is not None
    modes = {module: module.training for module in network.modules()}
    network.eval()

    def restore() -> None:
        for module, mode in modes.items():
            module.training = mode

    return restore
