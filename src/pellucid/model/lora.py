"""Low-rank adapters (Hu et al. 2021): a trained network whose weights stay, each changed by a product of two thin ones.

    W' = W + (alpha / r) B A,    A: r x in,  B: out x r

Ids that are new to the vocabulary have rows of their own in the embedding and the readout, which are trained too.

A network is adapted before training and merged after it; the forward pass of everything else stays as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.model.embed import AffineUnembed, Unembed
from pellucid.model.shapes import Logits, Stream
from pellucid.model.transformer import Transformer
from pellucid.model.weights import StoredWeights, WeightsError, generator_of, shapes_of, without_memory

#: what may be adapted: the linear maps of attention and of the MLP, by the last word of their names
MODULES = ("query", "key", "value", "out", "up", "gate", "down")


class LoRALinear(nn.Linear):
    """y = x W^T + b + (alpha / r) x A^T B^T, where A and B alone are trained   (Hu et al. 2021, 4.1)"""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        with without_memory():
            super().__init__(linear.in_features, linear.out_features)
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.A = nn.Parameter(linear.weight.new_zeros(rank, linear.in_features))
        self.B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class KeepsIds(nn.Module):
    """A module with a buffer of ids, which are known where it was made without memory and is given some."""

    def keep(self, ids: Sequence[int], device: torch.device) -> None:
        """Make the buffer `ids`."""
        self.known = tuple(ids)
        self.register_buffer("ids", torch.tensor(self.known, device=device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeepsIds":
        super()._apply(fn, recurse)
        self.ids = torch.tensor(self.known, device=self.get_buffer("ids").device)
        return self


class RowsEmbedding(KeepsIds, nn.Embedding):
    """W_E[t] + R[k] for t = ids[k], where the rows R [k, e] of some ids alone are trained."""

    def __init__(self, plain: nn.Embedding, ids: Sequence[int]):
        with without_memory():
            super().__init__(plain.num_embeddings, plain.embedding_dim)
        self.weight = plain.weight
        self.rows = nn.Parameter(plain.weight.new_zeros(len(ids), plain.embedding_dim))
        self.keep(ids, plain.weight.device)

    def forward(self, input: Tensor) -> Tensor:
        is_new = input[..., None].eq(self.get_buffer("ids")).to(self.rows.dtype)
        return super().forward(input) + is_new @ self.rows


class RowsUnembed(KeepsIds, Unembed):
    """The logits of a readout, and c x Q^T R^T more for the ids that have trained rows R [k, e]."""

    def __init__(self, plain: Unembed, rows: nn.Parameter, ids: Sequence[int]):
        nn.Module.__init__(self)
        self.weight, self.scale, self.cap, self.rows = plain.weight, plain.scale, plain.cap, rows
        self.projection = plain.projection
        self.bias = plain.bias if isinstance(plain, AffineUnembed) else None
        self.keep(ids, plain.weight.device)

    def before_cap(self, x: Stream) -> Logits:
        x = self.scale * self.projection(x)
        logits = F.linear(x, self.weight, self.bias)
        more = F.linear(x, self.rows).to(logits.dtype)
        return logits.index_add(-1, self.get_buffer("ids"), more)


def adapt(
    network: Transformer, rank: int, alpha: float, modules: str = "all", new_ids: Sequence[int] = ()
) -> Transformer:
    """Freeze the network and give linear maps of its blocks a change of rank `rank`, still 0.

    `modules` names them, parted by commas: all, or some of query, key, value, out, up, gate and down. The rows of
    `new_ids` in the embedding and the readout are trained as a whole.
    Raises WeightsError where nothing is of that name, and for new ids of a network whose readout is not linear.
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
    return train_rows(network, new_ids) if new_ids else network


def train_rows(network: Transformer, ids: Sequence[int]) -> Transformer:
    """Give these ids trained rows in the embedding and the readout, which share them where they are tied."""
    readout = network.unembed
    if type(readout) not in (Unembed, AffineUnembed):
        raise WeightsError(f"new tokens need a linear readout to be trained in, and this is {type(readout).__name__}")
    assert isinstance(readout, Unembed)
    embedding = RowsEmbedding(network.embed.token, ids)
    tied = readout.weight is network.embed.token.weight
    rows = embedding.rows if tied else nn.Parameter(embedding.rows.detach().clone())
    network.embed.token = embedding
    network.unembed = RowsUnembed(readout, rows, ids)
    return network


def start_adapters(network: nn.Module, seed: int) -> nn.Module:
    """A is N(0, 1 / in), drawn for each tensor by itself, and B is 0: the network computes what it did before."""
    with torch.no_grad():
        for p, values in first_adapters(network, seed):
            p.copy_(values)
    return network


def first_adapters(network: nn.Module, seed: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """What `start_adapters` sets, with its values; the parameters themselves may have no memory yet."""
    for name, module in network.named_modules():
        if isinstance(module, RowsEmbedding | RowsUnembed):
            yield module.rows, torch.zeros(module.rows.shape)
        if isinstance(module, LoRALinear):
            drawn = torch.randn(module.A.shape, generator=generator_of(seed, f"{name}.A"), dtype=torch.float64)
            yield module.A, drawn * module.in_features**-0.5
            yield module.B, torch.zeros(module.B.shape)


class MergedWeights(StoredWeights):
    """The weights of the plain network that computes the same, each when it is looked up: W + (alpha / r) B A in the
    place of W, and new ids' rows added to the tables.

    weights   those that the adapters change
    adapters  the trained tensors by name (`trained_state`)
    scale     alpha / r
    dtype     the sums are computed in this precision
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        adapters: Mapping[str, Tensor],
        scale: float,
        new_ids: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
    ):
        self.weights, self.adapters, self.shapes = weights, adapters, shapes_of(weights)
        self.why_whole = weights.why_whole if isinstance(weights, StoredWeights) else ""
        self.scale, self.new_ids, self.dtype = scale, torch.tensor(new_ids, dtype=torch.long), dtype

    def __getitem__(self, name: str) -> Tensor:
        module = name.removesuffix(".weight")
        A, B, rows = (self.adapters.get(f"{module}.{part}") for part in ("A", "B", "rows"))
        weight = self.weights[name].to(self.dtype)
        if A is not None and B is not None:
            return weight + self.scale * B.to(self.dtype) @ A.to(self.dtype)
        return weight if rows is None else weight.index_add(0, self.new_ids, rows.to(self.dtype))


def factors(adapters: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, B) of every adapted map, from the trained tensors of an adapted network by name."""
    names = [name.removesuffix(".A") for name in adapters if name.endswith(".A")]
    return {name: (adapters[f"{name}.A"], adapters[f"{name}.B"]) for name in names}
