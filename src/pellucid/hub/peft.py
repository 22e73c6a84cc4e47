"""Low-rank adapters in the folder format of `peft`: adapter_config.json and adapter_model.safetensors.

The adapter of a module is lora_A [r, in] and lora_B [out, r], and its change is (lora_alpha / r) B A. If their module
joins several of ours (query, key and value in GPT-2's c_attn), their A is ours stacked, and their B is ours on a block
diagonal: the same product, of a higher rank.
"""

import dataclasses
import math
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
from pellucid.hub.own_code import PREFIX
from pellucid.hub.shards import check_header
from pellucid.hub.tables import Family, TensorRow
from pellucid.hub.write import write_object
from pellucid.model_names import FolderError

#: a module's name, and which tensor of it this is: peft puts the weight that a pair changes beside that of a readout
TENSOR_NAME = re.compile(r"base_model\.model\.([\w.]{1,200})\.(lora_A|lora_B|base_layer)\.weight")
#: other entries of adapter_config.json that would change the function, with the values that do not
SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    "use_dora": (None, False),
    # the scale alone differs (`_lora_delta`)
    "use_rslora": (None, False, True),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    # the tokens behind which alone the adapter changes anything
    "alora_invocation_tokens": (None,),
    # the others (pissa, olora, corda, loftq, lora_ga) take from the weights what the adapter begins with
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal", "mica"),
    "kasa_config": (None,),
}
#: families that keep their experts one by one in files, but whose experts' adapters peft leaves out without a word, as
#: its table of such families lacks them (seen with peft 0.21 and transformers 5.23)
EXPERTS_LEFT_OUT = ("qwen2_moe",)


@dataclass(frozen=True)
class LoraDelta:
    """The change of a weight: scale * B A, transposed if the weight is stored in x out.

    `base_weight` is the weight that it belongs to, where peft stored it beside the pair.
    """

    A: Tensor
    B: Tensor
    scale: float
    transposed: bool = False
    base_weight: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the changed weight."""
        out, into = self.B.shape[0], self.A.shape[1]
        return (into, out) if self.transposed else (out, into)

    def added_to(self, weight: Tensor) -> Tensor:
        """W + (alpha / r) B A, in the precision of the weight or float32, whichever is finer."""
        finer = torch.promote_types(weight.dtype, torch.float32)
        product = self.scale * (self.B.to(finer) @ self.A.to(finer))
        return weight.to(finer) + (product.T if self.transposed else product)


# Writing ------------------------------------------------------------------------------------------


def lora_deltas(
    pairs: Mapping[str, tuple[Tensor, Tensor]], scale: float, a: Architecture, family: Family | None
) -> Iterator[tuple[str, LoraDelta]]:
    """The changes of our modules under the family's names, or under our own without a family."""
    if family is None:
        yield from ((name, LoraDelta(*pair, scale)) for name, pair in pairs.items())
        return
    shapes = parameter_shapes(a)
    for ours, theirs, row in tensor_pairs(family, shapes, a):
        modules = [name.removesuffix(".weight") for name in ours if name.removesuffix(".weight") in pairs]
        if not modules:
            continue
        if why := _why_not_of_experts(family, row):
            raise FamilyError(
                f"{modules[0]} has a low-rank change, and {why}: merge the adapter, or leave the experts out of it"
            )
        blocks = iter(torch.block_diag(*(pairs[m][1] for m in modules)).split([len(pairs[m][1]) for m in modules]))
        rank = sum(len(pairs[m][0]) for m in modules)
        each = [next(blocks) if n[:-7] in pairs else torch.zeros(shapes[n][0], rank) for n in ours]
        joined = join_tensors(each, dataclasses.replace(row, transposed=False), a)
        A = torch.cat([pairs[m][0] for m in modules])
        yield theirs.removesuffix(".weight"), LoraDelta(A, joined, scale, row.transposed)


def _why_not_of_experts(family: Family, row: TensorRow) -> str:
    """Why peft cannot read an adapter of this row, "" where it can."""
    if row.joins_experts:
        return f"{family.name} keeps all experts of a layer in one tensor, which an adapter of peft cannot change"
    if family.name in EXPERTS_LEFT_OUT and "{e}" in row.theirs:
        return f"peft leaves out the adapters of the experts of {family.name} when it reads them"
    return ""


def write_adapter(folder: Path, changes: Mapping[str, LoraDelta], rank: int, base: str, revision: str = "") -> int:
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


def read_adapter(folder: Path, config: Mapping[str, Any]) -> dict[str, LoraDelta]:
    """The changes in a folder of peft, by module name, checked before they are read.

    `config` is its adapter_config.json. Its `fan_in_fan_out` is not read: peft saves what the last module needed, and
    goes by each module's type, as `MergedTensors` goes by the table of the family. Raises FolderError with one line for
    damaged files and for adapters that are not of the form (alpha / r) B A, or (alpha / sqrt(r)) B A with use_rslora.
    """
    for name, plain in SUPPORTED_VALUES.items():
        if config.get(name) not in plain:
            raise FolderError(
                f"{folder / CONFIG} has {name} = {repr(config.get(name))[:60]}: only plain low-rank adapters are read"
            )
    _check_parameters(folder, config)
    if not (folder / TENSORS).exists() and (pickled := folder / "adapter_model.bin").exists():
        raise FolderError(
            f"{folder} keeps its adapter as a pickle ({pickled.name}), which is read neither with trust nor without: "
            f"open it with peft, whose save_pretrained writes {TENSORS}"
        )
    sizes = check_header(folder / TENSORS)
    pairs: dict[str, dict[str, Tensor]] = {}
    with safe_open(folder / TENSORS, "pt") as file:
        for name in sizes:
            if not (said := TENSOR_NAME.fullmatch(name)):
                raise FolderError(
                    f"{folder / TENSORS} holds {name[:80]!r}: expected lora_A and lora_B of linear modules"
                )
            pairs.setdefault(said[1], {})[said[2]] = file.get_tensor(name)
    return {module: _lora_delta(folder, config, module, pair) for module, pair in pairs.items()}


def _check_parameters(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise FolderError where parameters other than a module's weight are changed: all experts of a layer in one."""
    names = config.get("target_parameters") or []
    if not isinstance(names, list) or (wrong := [str(n) for n in names if not str(n).endswith(".weight")]):
        shown = wrong[0] if isinstance(names, list) else str(names)
        raise FolderError(
            f"{folder / CONFIG} has target_parameters with {shown[:60]!r}: adapters of a parameter that holds all "
            "experts of a layer are not read: merge the adapter with peft (merge_and_unload), and open the result"
        )


def _lora_delta(folder: Path, config: Mapping[str, Any], module: str, tensors: dict[str, Tensor]) -> LoraDelta:
    pair = {name: tensor for name, tensor in tensors.items() if name != "base_layer"}
    if pair.keys() != {"lora_A", "lora_B"} or any(t.ndim != 2 or not t.is_floating_point() for t in pair.values()):
        raise FolderError(f"{folder / TENSORS}: {module} needs lora_A and lora_B, two matrices")
    A, B = pair["lora_A"], pair["lora_B"]
    rank = len(A)
    if not rank or B.shape[1] != rank:
        shapes = f"{list(A.shape)} and {list(B.shape)}"
        raise FolderError(f"{folder / TENSORS}: {module} has shapes {shapes}: expected [r, in] and [out, r]")
    alpha = _number_for_module(folder, config, module, "alpha_pattern", "lora_alpha")
    r = _number_for_module(folder, config, module, "rank_pattern", "r")
    if r != rank:
        raise FolderError(f"{folder / CONFIG} gives {module} rank {r}, but its matrices have rank {rank}")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LoraDelta(A, B, scale, base_weight=tensors.get("base_layer"))


def _number_for_module(folder: Path, config: Mapping[str, Any], module: str, name: str, default: str) -> float:
    """The number for a module: that of the pattern its name ends with, else the entry `default`.

    Patterns are names, not regular expressions.
    """
    patterns = config.get(name) or {}
    if not isinstance(patterns, dict) or not all(re.fullmatch(r"\^?[\w.]{1,200}", str(p)) for p in patterns):
        raise FolderError(f"{folder / CONFIG}: {name} holds a regular expression: only names of modules are read")
    fitting = (p for p in patterns if module == p.lstrip("^") or (p[0] != "^" and module.endswith(f".{p}")))
    pattern = next(fitting, None)
    number = config.get(default) if pattern is None else patterns[pattern]
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1 << 20:
        entry = default if pattern is None else f"{name} of {pattern[:80]}"
        raise FolderError(
            f"{folder / CONFIG} has {entry} = {repr(number)[:40]}: expected a number above 0, up to {1 << 20:,}"
        )
    return number


class MergedTensors(Mapping[str, Tensor]):
    """Tensors of a model's files, with changes added to some of them when they are looked up.

    All of them have the precision of the files or float32, whichever is finer.
    The names of the files or of the adapter may lack the prefix of the family, None for our names, and one of them may
    still have what `Family.renames` lists. Raises FolderError for a change of an unknown module, or of other weights
    than those of the files.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        changes: Mapping[str, LoraDelta],
        family: Family | None,
        a: Architecture,
    ):
        self.tensors, self.changes = tensors, {}
        prefix, renames = (family.prefix, family.renames) if family else (PREFIX, {})

        def present(name: str) -> str:
            for old, new in renames.items():
                name = name.replace(old, new)
            return name.removeprefix(prefix)

        names = {present(name): name for name in tensors}
        rows = tensor_pairs(family, parameter_shapes(a), a) if family else ()
        in_x_out = {present(theirs) for _, theirs, row in rows if row.transposed}
        for module, change in changes.items():
            weight = present(f"{module}.weight")
            name, change = names.get(weight), dataclasses.replace(change, transposed=weight in in_x_out)
            if name is None:
                raise FolderError(
                    f"the adapter changes {module}, and the files of the model hold no weight of that name: does the "
                    "adapter belong to another model? A readout that is tied to the embedding cannot be changed alone"
                )
            if (shape := tuple(tensors[name].shape)) != change.shape:
                raise FolderError(f"the adapter of {module} is for a weight of shape {change.shape}, this is {shape}")
            stored = change.base_weight
            if stored is not None and not torch.equal(stored, tensors[name].to(stored.dtype)):
                raise FolderError(
                    f"the adapter holds a weight of {module} (base_layer) that differs from the model's: was it "
                    "trained on another model, or on one whose vocabulary was resized? Merge it with peft "
                    "(merge_and_unload), and open the result"
                )
            # the copy was compared, and need not stay in memory
            self.changes[name] = dataclasses.replace(change, base_weight=None)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            return tensor
        # all in one precision, so that what is written of them keeps the changes and has one too
        finer = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        return self.changes[name].added_to(finer) if name in self.changes else finer

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)
