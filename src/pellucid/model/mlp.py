"""The multi-layer perceptron, applied to each position by itself, and mixtures of them."""

import itertools
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.shapes import Choices, ExpertWeights, Rows, Stream
from pellucid.model.tap import OFF, Tap


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)"""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """x / (1 + exp(-1.702 x)), an approximation of gelu   (Hendrycks and Gimpel 2016, section 2)"""
    return x * (1.702 * x).sigmoid()


ACTIVATION = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "silu": F.silu,
    "quick_gelu": quick_gelu,
    "tanh": F.tanh,
}


class PlainMLP(nn.Module):
    """a_l = f(a_{l-1} W_l^T + b_l) for each hidden layer, then W_out   (Becker-Kahn (2.5)-(2.7))"""

    def __init__(self, a: Architecture, d_ff: int):
        super().__init__()
        bias = a.mlp.bias == "all"
        widths = [a.d_model] + [d_ff] * a.mlp.n_hidden
        self.up = nn.ModuleList(nn.Linear(n, m, bias=bias) for n, m in itertools.pairwise(widths))
        self.down = nn.Linear(widths[-1], a.d_model, bias=bias)
        self.f = ACTIVATION[a.mlp.activation]

    def forward(self, x: Rows, tap: Tap = OFF) -> Rows:
        for l, up in enumerate(self.up):
            x = tap(f"post.{l}", self.f(tap(f"pre.{l}", up(x))))
        return self.down(x)


class OneHiddenMLP(PlainMLP):
    """f(x W_up^T + b_up) W_out^T + b_out: the usual case, whose tensors need no number."""

    def forward(self, x: Rows, tap: Tap = OFF) -> Rows:
        return self.down(tap("post", self.f(tap("pre", self.up[0](x)))))


class GatedMLP(PlainMLP):
    """(f(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_out^T + b_out   (Shazeer 2020)"""

    def __init__(self, a: Architecture, d_ff: int):
        super().__init__(a, d_ff)
        self.gate = nn.Linear(a.d_model, d_ff, bias=a.mlp.bias == "all")

    def forward(self, x: Rows, tap: Tap = OFF) -> Rows:
        return self.down(tap("post", self.gated(tap("gate", self.gate(x)), tap("pre", self.up[0](x)))))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """f(gate) * up"""
        return self.f(gate) * up


def make_dense_mlp(a: Architecture, d_ff: int) -> PlainMLP:
    """One MLP of the architecture's form, or one of its experts, whose hidden layers are `d_ff` wide."""
    if a.mlp.form == "gated":
        return GatedMLP(a, d_ff)
    return OneHiddenMLP(a, d_ff) if a.mlp.n_hidden == 1 else PlainMLP(a, d_ff)


def choices(weights: Float[Tensor, "row expert"]) -> tuple[Choices, Choices, list[int]]:
    """Every expert and row whose weight is not 0, in the order of the experts, and how many rows each expert has.

    The host of a GPU waits for both numbers. PyTorch's grouped product would not ask, but reads the weights of all
    experts from one tensor, and these are parameters by themselves: stacking them would copy them all in every pass.
    """
    is_used = weights.T != 0
    expert, row = is_used.nonzero(as_tuple=True)
    return expert, row, is_used.sum(1).tolist()


class MixtureOfExperts(nn.Module):
    """sum_{e in U} g_e m_e(x) + s(x) m_shared(x), U the k experts with the largest r_e of r = x W_R^T

    Shazeer et al. 2017, section 2; g_e is a softmax over U (Jiang et al. 2024, Mixtral) or over all experts (Fedus et
    al. 2021, Switch). The shared expert is that of Dai et al. 2024 (DeepSeekMoE).
    """

    def __init__(self, a: Architecture):
        super().__init__()
        self.k, self.over_chosen = a.mlp.experts_per_token, a.mlp.router_softmax == "chosen"
        self.router = nn.Linear(a.d_model, a.mlp.experts, bias=False)
        self.experts = nn.ModuleList(make_dense_mlp(a, a.d_ff) for _ in range(a.mlp.experts))
        self.shared = SharedExpert(a) if a.mlp.shared_d_ff else None
        #: which rows each expert computes; a plan of memory, which has no numbers, divides them evenly
        self.choices = choices
        inner = ("gate", "pre", "post", "result") if a.mlp.form == "gated" else ("pre", "post", "result")
        self.inner_names = tuple(f"expert_{e}.{name}" for e in range(a.mlp.experts) for name in inner)
        #: where gradients are taken: the weight of an expert that a position does not use has a slope only where that
        #: expert computes the position
        self.names_with_gradients = ("expert_weights", *self.inner_names)

    def forward(self, x: Stream, tap: Tap = OFF) -> Stream:
        g = tap("expert_weights", self.weigh(tap("router", self.router(x))))
        names = self.names_with_gradients if torch.is_grad_enabled() else self.inner_names
        y = tap.choose(names, lambda: self.of_chosen(x, g), lambda tap: self.of_all(x, g, tap))
        return y if self.shared is None else y + self.shared(x, tap.at("shared"))

    def weigh(self, r: ExpertWeights) -> ExpertWeights:
        """g from the router's logits: 0 for the experts that a position does not use."""
        is_chosen = torch.zeros_like(r, dtype=torch.bool).scatter(-1, r.topk(self.k).indices, True)
        if self.over_chosen:
            return r.masked_fill(~is_chosen, -torch.inf).softmax(-1)
        return r.softmax(-1).masked_fill(~is_chosen, 0.0)

    def of_chosen(self, x: Stream, g: ExpertWeights) -> Stream:
        """sum_e g_e m_e(x), where each expert computes the positions that use it."""
        rows, weights = x.flatten(0, 1), g.flatten(0, 1)
        expert, row, n_rows = self.choices(weights)
        parts = rows.index_select(0, row).split(n_rows)
        y = torch.cat([m(part) for m, part in zip(self.experts, parts, strict=True)])
        y = y * weights[row, expert, None]
        return y.new_zeros(rows.shape).index_add(0, row, y).view(x.shape)

    def of_all(self, x: Stream, g: ExpertWeights, tap: Tap) -> Stream:
        """The same sum where each expert computes every position, so that all inner tensors exist."""
        scopes = [tap.at(f"expert_{e}") for e in range(len(self.experts))]
        results = [
            scope("result", weight[..., None] * m(x, scope))
            for m, scope, weight in zip(self.experts, scopes, g.unbind(-1), strict=True)
        ]
        return torch.stack(results).sum(0)


class SharedExpert(nn.Module):
    """s(x) m_shared(x), with s(x) = 1 or 1 / (1 + exp(-x w_s^T))   (Dai et al. 2024; Qwen Team 2024)"""

    def __init__(self, a: Architecture):
        super().__init__()
        self.mlp = make_dense_mlp(a, a.mlp.shared_d_ff)
        self.scale = nn.Linear(a.d_model, 1, bias=False) if a.mlp.shared_gate == "sigmoid" else None

    def forward(self, x: Stream, tap: Tap = OFF) -> Stream:
        y = self.mlp(x, tap)
        return tap("result", y if self.scale is None else self.scale(x).sigmoid() * y)


def make_mlp(a: Architecture) -> PlainMLP | MixtureOfExperts:
    """The architecture's MLP, or its mixture of experts."""
    return MixtureOfExperts(a) if a.mlp.experts else make_dense_mlp(a, a.d_ff)
