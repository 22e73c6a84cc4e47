"""Low-rank adapters in the folder format of `peft`: adapter_config.json and adapter_model.safetensors.

The adapter of a module is lora_A [r, in] and lora_B [out, r], and its change is (lora_alpha / r) B A. If their module
joins several of ours (query, key and value in GPT-2's c_attn), their A is ours stacked, and their B is ours on a block
diagonal: the same product, of a higher rank.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError, join_tensors, parameter_shapes, tensor_pairs
from pellucid.hub.files import ADAPTER as CONFIG
from pellucid.hub.files import ADAPTER_TENSORS as TENSORS
from pellucid.hub.files import FolderError
from pellucid.hub.shards import check_header
from pellucid.hub.tables import Family
from pellucid.hub.write import write_object

#: the part of a module's name below the layer's number, in their files
NAME = re.compile(r"base_model\.model\.([\w.]{1,200})\.lora_([AB])\.weight")
#: other entries of adapter_config.json that would change the function, with the values that do not
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "auto_mapping": (None, {}),
    # the tokens behind which alone the adapter changes anything
    "alora_invocation_tokens": (None,),
    # the others (pissa, olora, corda, loftq, lora_ga) take from the weights what the adapter begins with
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal", "mica"),
    "kasa_config": (None,),
}


@dataclass(frozen=True)
class Change:
    """The change of a weight: scale * B A, transposed if the weight is stored in x out."""

    A: Tensor
    B: Tensor
    scale: float
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the changed weight."""
        out, into = self.B.shape[0], self.A.shape[1]
        return (into, out) if self.transposed else (out, into)

    def added_to(self, weight: Tensor) -> Tensor:
        """W + (alpha / r) B A, in the precision of the weight or float32, whichever is finer."""
        finer = torch.promote_types(weight.dtype, torch.float32)
        product = self.scale * (self.B.to(finer) @ self.A.to(finer))
        return (weight.to(finer) + (product.T if self.transposed else product)).to(weight.dtype)


# Writing ------------------------------------------------------------------------------------------


def changes_of(
    pairs: Mapping[str, tuple[Tensor, Tensor]], scale: float, a: Architecture, family: Family | None
) -> Iterator[tuple[str, Change]]:
    """The changes of our modules under the family's names, or under our own without a family."""
    if family is None:
        yield from ((name, Change(*pair, scale)) for name, pair in pairs.items())
        return
    shapes = parameter_shapes(a)
    for ours, theirs, row in tensor_pairs(family, shapes, a):
        modules = [name.removesuffix(".weight") for name in ours if name.removesuffix(".weight") in pairs]
        if not modules:
            continue
        if row.joins_experts:
            raise FamilyError(
                f"{modules[0]} has a low-rank change, and {family.name} keeps all experts of a layer in one tensor, "
                "which an adapter of peft cannot change: merge the adapter, or leave the experts out of it"
            )
        blocks = iter(torch.block_diag(*(pairs[m][1] for m in modules)).split([len(pairs[m][1]) for m in modules]))
        rank = sum(len(pairs[m][0]) for m in modules)
        each = [next(blocks) if n[:-7] in pairs else torch.zeros(shapes[n][0], rank) for n in ours]
        joined = join_tensors(each, dataclasses.replace(row, transposed=False), a)
        A = torch.cat([pairs[m][0] for m in modules])
        yield theirs.removesuffix(".weight"), Change(A, joined, scale, row.transposed)


def write_adapter(folder: Path, changes: Mapping[str, Change], rank: int, base: str, revision: str = "") -> int:
    """Write the two files into a new folder. Returns the bytes of tensors. `rank` is that of most of the changes."""
    scale = next(iter(changes.values())).scale
    ranks = {re.split(r"\.\d+\.", name, maxsplit=1)[-1]: len(change.A) for name, change in changes.items()}
    other = {name: r for name, r in ranks.items() if r != rank}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "revision": revision or None,
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(ranks),
        "rank_pattern": other,
        "alpha_pattern": {name: scale * r for name, r in other.items()},
        "fan_in_fan_out": any(change.transposed for change in changes.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    tensors = {
        f"base_model.model.{name}.lora_{letter}.weight": getattr(change, letter).contiguous()
        for name, change in changes.items()
        for letter in "AB"
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    write_object(folder / CONFIG, config)
    return sum(t.nbytes for t in tensors.values())


# Reading ------------------------------------------------------------------------------------------


def read_adapter(folder: Path, config: Mapping[str, Any]) -> dict[str, Change]:
    """The changes in a folder of peft, by module name, checked before they are read.

    `config` is its adapter_config.json. Raises FolderError with one line for damaged files and for adapters that are
    not of the form (alpha / r) B A.
    """
    for name, plain in PLAIN.items():
        if config.get(name) not in plain:
            raise FolderError(
                f"{folder / CONFIG} has {name} = {str(config.get(name))[:60]!r}: only plain low-rank adapters are read"
            )
    sizes = check_header(folder / TENSORS)
    pairs: dict[str, dict[str, Tensor]] = {}
    with safe_open(folder / TENSORS, "pt") as file:
        for name in sizes:
            if not (said := NAME.fullmatch(name)):
                raise FolderError(f"{folder / TENSORS} holds {name[:80]!r}: expected lora_A and lora_B of a module")
            pairs.setdefault(said[1], {})[said[2]] = file.get_tensor(name)
    return {module: _change(folder, config, module, pair) for module, pair in pairs.items()}


def _change(folder: Path, config: Mapping[str, Any], module: str, pair: dict[str, Tensor]) -> Change:
    if pair.keys() != {"A", "B"} or any(t.ndim != 2 or not t.is_floating_point() for t in pair.values()):
        raise FolderError(f"{folder / TENSORS}: {module} needs lora_A and lora_B, two matrices")
    rank = len(pair["A"])
    if not rank or pair["B"].shape[1] != rank:
        shapes = f"{list(pair['A'].shape)} and {list(pair['B'].shape)}"
        raise FolderError(f"{folder / TENSORS}: {module} has shapes {shapes}: expected [r, in] and [out, r]")
    alpha, r = (
        _said_of(folder, config, module, name, config.get(default))
        for name, default in (("alpha_pattern", "lora_alpha"), ("rank_pattern", "r"))
    )
    if r != rank:
        raise FolderError(f"{folder / CONFIG} gives {module} rank {r}, but its matrices have rank {rank}")
    return Change(pair["A"], pair["B"], alpha / rank, config.get("fan_in_fan_out") is True)


def _said_of(folder: Path, config: Mapping[str, Any], module: str, name: str, default: Any) -> float:
    """The number for a module: that of the pattern its name ends with. Patterns are names, not regular expressions."""
    patterns = config.get(name) or {}
    if not isinstance(patterns, dict) or not all(re.fullmatch(r"\^?[\w.]{1,200}", str(p)) for p in patterns):
        raise FolderError(f"{folder / CONFIG}: {name} holds a regular expression: only names of modules are read")
    ends = (n for p, n in patterns.items() if module == p.lstrip("^") or (p[0] != "^" and module.endswith(f".{p}")))
    number = next(ends, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1 << 20:
        raise FolderError(f"{folder / CONFIG}: {name} gives {str(number)[:40]!r} for {module}: expected a number")
    return number


class Changed(Mapping[str, Tensor]):
    """Tensors of a model's files, with changes added to some of them when they are looked up.

    `prefix` is what the files may omit from their names. Raises FolderError for a change of an unknown module.
    """

    def __init__(self, tensors: Mapping[str, Tensor], changes: Mapping[str, Change], prefix: str):
        self.tensors, self.changes = tensors, {}
        for module, change in changes.items():
            names = [f"{module}.weight", f"{module}.weight".removeprefix(prefix)]
            name = next((name for name in names if name in tensors), None)
            if name is None:
                raise FolderError(
                    f"the adapter changes {module}, which the model does not have: does the adapter belong to "
                    "another model?"
                )
            if (shape := tuple(tensors[name].shape)) != change.shape:
                raise FolderError(f"the adapter of {module} is for a weight of shape {change.shape}, this is {shape}")
            self.changes[name] = change

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        return self.changes[name].added_to(tensor) if name in self.changes else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)
