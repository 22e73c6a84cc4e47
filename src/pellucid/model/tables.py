"""Constants of an architecture, rounded once from float64 whatever the model's precision."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Table(nn.Module):
    """A fixed table that follows its model's device and precision without losing digits.

    An ordinary buffer made in float32 keeps float32's digits when the model becomes float64, and
    loses them for good in bfloat16. This one is rounded afresh from float64 at each move, and never
    below float32: also where a model built without memory (on the meta device) is given some.
    """

    values: Tensor

    def __init__(self, exact: Tensor):
        super().__init__()
        self.exact = exact.double().cpu()
        values = self.exact.to(torch.get_default_device(), torch.get_default_dtype())
        self.register_buffer("values", values, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Table":
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.values.dtype, torch.float32)
        self.values = self.exact.to(dtype).to(self.values.device)
        return self
