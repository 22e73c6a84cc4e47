"""The multi-layer perceptron, applied to each position by itself."""

import itertools
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.shapes import Stream
from pellucid.model.tap import OFF, Tap


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)"""
    return F.relu(x).square()


ACTIVATION = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "silu": F.silu,
    "tanh": F.tanh,
}


class PlainMLP(nn.Module):
    """a_l = f(a_{l-1} W_l^T + b_l) for each hidden layer, then W_out   (S0 (2.5)-(2.7), with f not on the input)"""

    def __init__(self, a: Architecture):
        super().__init__()
        bias = a.mlp.bias == "all"
        widths = [a.d_model] + [a.d_ff] * a.mlp.n_hidden
        self.up = nn.ModuleList(nn.Linear(n, m, bias=bias) for n, m in itertools.pairwise(widths))
        self.down = nn.Linear(widths[-1], a.d_model, bias=bias)
        self.f = ACTIVATION[a.mlp.activation]

    def forward(self, x: Stream, tap: Tap = OFF) -> Stream:
        for l, up in enumerate(self.up):
            x = tap(f"post.{l}", self.f(tap(f"pre.{l}", up(x))))
        return self.down(x)


class OneHiddenMLP(PlainMLP):
    """f(x W_up^T + b_up) W_out^T + b_out: the usual case, whose tensors need no number."""

    def forward(self, x: Stream, tap: Tap = OFF) -> Stream:
        return self.down(tap("post", self.f(tap("pre", self.up[0](x)))))


class GatedMLP(PlainMLP):
    """(f(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_out^T + b_out   (Shazeer 2020)"""

    def __init__(self, a: Architecture):
        super().__init__(a)
        self.gate = nn.Linear(a.d_model, a.d_ff, bias=a.mlp.bias == "all")

    def forward(self, x: Stream, tap: Tap = OFF) -> Stream:
        return self.down(tap("post", self.f(tap("gate", self.gate(x))) * tap("pre", self.up[0](x))))


def make_mlp(a: Architecture) -> PlainMLP:
    """The architecture's MLP."""
    if a.mlp.form == "gated":
        return GatedMLP(a)
    return OneHiddenMLP(a) if a.mlp.n_hidden == 1 else PlainMLP(a)
