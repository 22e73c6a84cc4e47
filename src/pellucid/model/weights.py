"""Weights: how they start, and how they are written to a file and read back."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pellucid.architecture import Architecture
from pellucid.model.transfer import on_host
from pellucid.model.transformer import Transformer


class WeightsError(ValueError):
    """A weights file that does not fit the architecture."""


class StoredWeights(Mapping[str, Tensor]):
    """Weights by parameter, each read when it is looked up and not kept.

    shapes     of all of them, known without reading any
    why_whole  why they are in memory all the same, "" where they are not
    """

    shapes: Mapping[str, tuple[int, ...]]
    why_whole = ""

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes


def shapes_of(weights: Mapping[str, Tensor]) -> Mapping[str, tuple[int, ...]]:
    """The shape of every parameter; of weights that are stored none is read."""
    if isinstance(weights, StoredWeights):
        return weights.shapes
    return {name: tuple(x.shape) for name, x in weights.items()}


def check_stored(shapes: Mapping[str, Sequence[int]], n_layers: int, needed: Callable[[], int], where: str) -> int:
    """How many numbers stored weights are. Raises WeightsError if the network, which is not built yet, needs more.

    shapes    of the weights by name
    n_layers  its layers, each of which has a tensor or more
    needed    counts the numbers that it needs
    """
    n_numbers = sum(math.prod(shape) for shape in shapes.values())
    if n_layers > len(shapes) or needed() > n_numbers:
        raise WeightsError(
            f"{where}: the recipe describes a larger network than the one that was saved, of {n_numbers:,} numbers in "
            f"{len(shapes):,} tensors: recipe.json has changed since"
        )
    return n_numbers


class Undrawn(TorchFunctionMode):
    """Inside, the functions of torch.nn.init leave tensors as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules that are made inside have parameters with shapes, without memory and without values (the meta device).

    Nothing is drawn: to draw normal numbers without memory, PyTorch imports its compiler, which takes a second.
    """
    with torch.device("meta"), Undrawn():
        yield


def empty_network(
    a: Architecture, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """A network whose parameters have memory in this precision on this device, and no values yet.

    Drawing values that a file replaces takes several times as long as reading the file, and float32's memory.
    """
    with without_memory():
        network = Transformer(a).to(dtype)
    # not `to_empty`, whose empty_like of a tensor without memory imports symbolic algebra (0.4 s)
    return network._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device))


def initialise(model: Transformer, seed: int, std: float = 0.02) -> Transformer:
    """GPT-2's start (Radford et al. 2019): N(0, std^2), what writes to the stream divided by sqrt(2 n_layers).

    Biases and tables of n-grams are 0 and gains 1 (g is 0 where the gain is 1 + g). Each tensor is drawn by its own
    generator, seeded by (seed, name), so that no tensor's start depends on which others exist.
    """
    with torch.no_grad():
        for p, values in initial_values(model, seed, std):
            p.copy_(values)
    return model


def size_of(build: Callable[..., nn.Module], *arguments: Any) -> int:
    """The number of parameters of the network that `build` makes, which is made without memory; sys.maxsize where a
    tensor has more numbers than PyTorch can count, which it refuses as an error of types or at run time.
    """
    try:
        with without_memory():
            return sum(p.numel() for p in build(*arguments).parameters())
    except (RuntimeError, TypeError, OverflowError):
        return sys.maxsize


def initial_values(model: Transformer, seed: int, std: float) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter with the values that `initialise` gives it; the parameter itself may have no memory yet."""
    writes = ("attn.out.weight", "cross.out.weight", ".down.weight")
    for name, p in model.named_parameters():
        part = model.encoder if model.encoder and name.startswith("encoder.") else model
        if name.endswith("gain"):
            yield p, torch.full(p.shape, {"g": 1.0, "1+g": 0.0}[part.architecture.norm.gain])
        elif name.endswith("bias") or ".ngrams." in name:
            yield p, torch.zeros(p.shape)  # an n-gram never seen adds nothing
        else:
            depth = math.sqrt(2 * max(len(part.blocks), 1)) if name.endswith(writes) else 1.0
            drawn = torch.randn(p.shape, generator=generator_of(seed, name), dtype=torch.float64)
            yield p, drawn * (std / depth)


def generator_of(seed: int, name: str) -> torch.Generator:
    """What draws the tensor of this name."""
    return torch.Generator().manual_seed(_seed_of(seed, name))


def _seed_of(seed: int, name: str) -> int:
    """A seed for one tensor, the same on every machine and in every process."""
    digest = 14695981039346656037
    for byte in f"{seed}/{name}".encode():  # FNV-1a, 64 bits
        digest = ((digest ^ byte) * 1099511628211) % 2**64
    return digest % 2**63


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by name; a tied matrix is under `embed.token.weight`."""
    return {name: p.detach() for name, p in model.named_parameters()}


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that training changes, by name: all of them, unless some are frozen."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def load_trained(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """What `trained_state` gave; raises WeightsError as load_state does."""
    load_into({name: p for name, p in model.named_parameters() if p.requires_grad}, state, where)


def load_state(model: nn.Module, state: Mapping[str, Tensor], where: str = "the weights") -> None:
    """Copy `state` into the model; raises WeightsError naming what is missing, left over or of another shape."""
    load_into(dict(model.named_parameters()), state, where)


#: the tensors with one row for each id of the vocabulary
OF_VOCABULARY = ("embed.token.weight", "unembed.weight", "unembed.bias")


class WithNewRows(StoredWeights):
    """Weights for a vocabulary of `n_vocab` ids: new rows, and those of `new_ids`, are the mean of the rows before."""

    def __init__(self, weights: Mapping[str, Tensor], n_vocab: int, new_ids: Sequence[int]):
        self.weights, self.n_vocab, self.new_ids = weights, n_vocab, list(new_ids)
        shapes = shapes_of(weights)
        self.shapes = {name: (n_vocab, *s[1:]) if name in OF_VOCABULARY else s for name, s in shapes.items()}
        if isinstance(weights, StoredWeights):
            self.why_whole = weights.why_whole

    def __getitem__(self, name: str) -> Tensor:
        table = self.weights[name].detach()
        if name not in OF_VOCABULARY:
            return table
        mean = table[: min(*self.new_ids, len(table))].double().mean(0).to(table.dtype)
        table = torch.cat([table, mean.expand(self.n_vocab - len(table), *mean.shape)])
        table[self.new_ids] = mean
        return table


def load_into(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Copy `state` into the tensors of the same names; WeightsError unless names and shapes are the same."""
    check_same_shapes(shapes_of(own), shapes_of(state), where)
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(state[name])


def check_same_shapes(
    own: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]], where: str = "the weights"
) -> None:
    """Raise WeightsError, which begins with `where`, unless both have the same names and shapes."""
    missing, extra = sorted(own.keys() - stored.keys()), sorted(stored.keys() - own.keys())
    if missing or extra:
        raise WeightsError(
            f"{where} and the architecture differ: missing {_name_a_few(missing)}, left over {_name_a_few(extra)}; "
            "is architecture.json the one these weights were saved with?"
        )
    for name, shape in own.items():
        if shape != stored[name]:
            raise WeightsError(
                f"{where}: {name} has shape {list(stored[name])}, the architecture asks for {list(shape)}"
            )


def check_finite(model: nn.Module, where: str, allow_nan: bool = False) -> None:
    """Refuse a model whose weights hold NaN or infinity; WeightsError names the first such parameter and how many."""
    if not allow_nan:
        refuse_not_finite(model.named_parameters(), where)


def refuse_not_finite(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise WeightsError with the first of these tensors that holds NaN or infinity; none of them is kept."""
    bad: dict[str, tuple[int, torch.dtype]] = {}
    for name, x in named:
        if n := count_not_finite(x.detach()):
            bad[name] = n, x.dtype
        del x  # before the next one is read
    if bad:
        first, (n, kind) = next(iter(bad.items()))
        more = f", and {len(bad) - 1} more parameters hold some" if len(bad) > 1 else ""
        dtype = str(kind).removeprefix("torch.")
        raise WeightsError(
            f"{where}: {n:,} numbers of {first} are NaN or infinite in {dtype}{more}: training diverged, the "
            "file is damaged, or the numbers are beyond this precision; allow_nan=True opens it all the same"
        )


def count_not_finite(x: Tensor) -> int:
    """How many numbers of x are NaN or infinite; where none is, one pass over x says so."""
    if x.numel() and not torch.stack(torch.aminmax(x)).isfinite().all():  # both are NaN where any number is
        return int((~x.isfinite()).sum())
    return 0


def _name_a_few(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "nothing"
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter once, as safetensors."""
    save_file(on_host(state_of(model)), path)


def load_weights(model: nn.Module, path: Path) -> None:
    """The weights that `save_weights` wrote."""
    load_state(model, load_file(path), str(path))
