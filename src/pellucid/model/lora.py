"""Low-rank adapters (Hu et al. 2021): a trained network whose weights stay, each changed by a product of two thin ones.

    W' = W + (alpha / r) B A,    A: r x in,  B: out x r

A network is adapted before training and merged after it; the forward pass of everything else stays as it is.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.model.weights import WeightsError, generator_of

#: what may be adapted: the linear maps of attention and of the MLP, by the last word of their names
MODULES = ("query", "key", "value", "out", "up", "gate", "down")


class LoRALinear(nn.Linear):
    """y = x W^T + b + (alpha / r) x A^T B^T, where A and B alone are trained   (Hu et al. 2021, 4.1)"""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.A = nn.Parameter(linear.weight.new_zeros(rank, linear.in_features))
        self.B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.A), self.B)

    def merged(self) -> nn.Linear:
        """One linear map that does the same."""
        made = nn.Linear(self.in_features, self.out_features, device="meta")
        made.weight, made.bias = nn.Parameter((self.weight + self.scale * self.B @ self.A).detach()), self.bias
        return made


def adapt(network: nn.Module, rank: int, alpha: float, modules: str = "all") -> nn.Module:
    """Freeze the network and give linear maps of its blocks a change of rank `rank`, still 0.

    `modules` names them, parted by commas: all, or some of query, key, value, out, up, gate and down.
    Raises WeightsError where nothing is of that name.
    """
    network.requires_grad_(False)
    names = [n for n, module in network.named_modules() if isinstance(module, nn.Linear) and "blocks." in n]
    if not names:
        raise WeightsError("this network has no layer, and so nothing that adapters could change")
    there = dict.fromkeys(word for name in names for word in name.split(".") if word in MODULES)
    wanted = list(there) if modules == "all" else [word.strip() for word in modules.split(",")]
    if missing := [word for word in wanted if word not in there]:
        raise WeightsError(
            f"adapt.modules = {modules}: nothing in this network is called {missing[0]!r}; say all, or some of "
            f"{','.join(there)}"
        )
    for name in names:
        if set(name.split(".")) & set(wanted):
            linear = network.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            network.set_submodule(name, LoRALinear(linear, rank, alpha))
    return network


def start_adapters(network: nn.Module, seed: int) -> nn.Module:
    """A is N(0, 1 / in), drawn for each tensor by itself, and B is 0: the network computes what it did before."""
    with torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, LoRALinear):
                drawn = torch.randn(module.A.shape, generator=generator_of(seed, f"{name}.A"), dtype=torch.float64)
                module.A.copy_(drawn * module.in_features**-0.5)
                module.B.zero_()
    return network


def merge(network: nn.Module) -> nn.Module:
    """The plain network that computes the same: W + (alpha / r) B A in the place of W; everything trains again."""
    for name, module in list(network.named_modules()):
        if isinstance(module, LoRALinear):
            network.set_submodule(name, module.merged())
    return network.requires_grad_(True)


def factors(adapters: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, B) of every adapted map, from the trained tensors of an adapted network by name."""
    names = [name.removesuffix(".A") for name in adapters if name.endswith(".A")]
    return {name: (adapters[f"{name}.A"], adapters[f"{name}.B"]) for name in names}
