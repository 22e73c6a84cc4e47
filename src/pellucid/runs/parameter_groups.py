"""Parameters in groups that share rates, and what an optimiser remembers of each: what `torch.optim.Optimizer` is here.

PyTorch's own class imports PyTorch's compiler when the first optimiser is made, whether or not anything is compiled:
1.2 of the seconds before the first step of a run (docs/experiments/step-speed.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn


class ParameterGroups:
    """The base of AdamW and Muon.

    param_groups  of each group its parameters, under "params", and its rates
    state         what is remembered of a parameter, by the quantity's name
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], shared: Mapping[str, Any]):
        self.param_groups = [{**shared, **group, "params": list(group["params"])} for group in groups]
        self.state: defaultdict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    @property
    def params(self) -> Iterator[nn.Parameter]:
        """The parameters of all groups."""
        return (p for group in self.param_groups for p in group["params"])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.params:
            p.grad = None

    def step(self, bad: Tensor) -> None:
        """One update, unless `bad`, a boolean scalar: then nothing changes, bit for bit."""
        raise NotImplementedError
