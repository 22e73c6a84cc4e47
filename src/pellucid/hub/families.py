"""Convert between a model of another project and Pellucid's, as the tables describe: config.json and tensors, both
ways.

Nothing is computed: tensors are split, joined, transposed and renamed, so a model comes back bit for bit. If one side
cannot represent the other, conversion stops with a FamilyError that names the option.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.canonical_fields import canonical_fields
from pellucid.hub.round_trip import able_family
from pellucid.hub.tables import FAMILIES, Family, TensorRow
from pellucid.hub.tables.entries import WITHOUT_EFFECT, Entries, FamilyError, format_value
from pellucid.hub.tables.rows import ENDINGS
from pellucid.model import Transformer
from pellucid.model.weights import without_memory
from pellucid.option_values import ArchitectureError

__all__ = [
    "FAMILIES",
    "FamilyError",
    "architecture_of",
    "config_of",
    "each_to_ours",
    "each_to_theirs",
    "family_of",
    "to_ours",
    "to_theirs",
    "unknown_entries",
]

# Configuration ------------------------------------------------------------------------------------


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that a config.json belongs to. Raises FamilyError that lists the known families."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise FamilyError(
            f"model_type = {format_value(name)} is not a known family: expected one of {', '.join(FAMILIES)}"
        )
    encoder = FAMILIES[name].encoder
    alone = encoder is not None and config.get("architectures") == [encoder.model_class]
    return encoder if encoder is not None and alone else FAMILIES[name]


def architecture_of(config: Mapping[str, Any], family: Family | None = None) -> Architecture:
    """The architecture that a config.json describes; it has no readout if the class has none.

    Raises FamilyError for entries of a wrong type, for options that Pellucid cannot represent, and for values that no
    model of the family can have.
    """
    family = family or family_of(config)
    try:
        a = family.read(Entries(config, family.source))
    except ArchitectureError as error:
        raise FamilyError(_as_config_entry(str(error), family)) from error
    for name, holds in family.limits.items():
        if not holds(a):
            said = f"{name} = {canonical_fields(a)[name]}"
            raise FamilyError(f"{_as_config_entry(said, family)}: models of the family {family.name} have other values")
    return a


def unknown_entries(config: Mapping[str, Any], family: Family | None = None) -> list[str]:
    """The non-null entries that the table does not read and that are not known to leave the logits unchanged."""
    family = family or family_of(config)
    paths = read_paths(config, family)
    known = paths | family.without_effect.keys()
    nested = {path.rpartition(".")[0] for path in paths if "." in path}
    return [p for p in _paths(config, nested) if not {p, p.rpartition(".")[2]} & {*known, *WITHOUT_EFFECT}]


def read_paths(config: Mapping[str, Any], family: Family) -> set[str]:
    """The paths of all entries that the family's table reads."""
    entries = Entries(config, family.source)
    family.read(entries)
    return entries.read_paths


def _paths(values: Mapping[str, Any], nested: set[str], before: str = "") -> Iterator[str]:
    """The path of every non-null entry; for a nested object that is read entry by entry, the paths of its entries."""
    for name, value in values.items():
        path = f"{before}{name}"
        if path in nested and isinstance(value, Mapping):
            yield from _paths(value, nested, f"{path}.")
        elif value is not None:
            yield path


def _as_config_entry(said: str, family: Family) -> str:
    """Rewrite a message that begins with our field so that it begins with their entry, if there is just one."""
    ours, _, value = said.partition(" = ")
    rows = [row for row in family.fields if ours in row.names]
    return (
        f"{rows[0].theirs.split('|')[0]} in {family.source} sets {ours} = {value}"
        if rows
        else f"{family.source}: {said}"
    )


def config_of(a: Architecture, family: Family | None = None, end_token: int | None = None) -> dict[str, Any]:
    """The config.json of an architecture. `end_token` is the id of the separator, which ends generation.

    Raises FamilyError that names the option that no family can represent.
    """
    family = _able_family(a, family)
    config = family.write(a)
    if end_token is not None:
        config |= {"bos_token_id": end_token, "eos_token_id": end_token}
        config |= {} if a.encoder is None else {"decoder_start_token_id": end_token}
    return config


def _able_family(a: Architecture, family: Family | None) -> Family:
    """The family itself, or without one the first that can represent the architecture. Raises FamilyError."""
    return able_family(a, [family] if family else FAMILIES.values(), "a model of another project")


# Tensors ------------------------------------------------------------------------------------------


def to_ours(state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family | None = None) -> dict[str, Tensor]:
    """Convert a model's tensors to our names, for `load_state` of a Transformer of `architecture_of(config)`.

    Names without the family's prefix, older names and repeated tensors are accepted. Raises FamilyError naming a tensor
    that is missing, unknown, misshapen, or different from its copy.
    """
    return dict(each_to_ours(state, config, family))


def each_to_ours(
    state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The items of `to_ours`, one tensor at a time, so that files larger than memory can be converted."""
    family = family or family_of(config)
    a = architecture_of(config, family)
    shapes = parameter_shapes(a)
    expected = {theirs for _, theirs, _ in tensor_pairs(family, shapes, a)}
    left = present_names(state, family, expected)
    tied = take_tied(left, family, a, expected)
    embedding: dict[str, Tensor] = {}
    for ours, theirs, row in tensor_pairs(family, shapes, a):
        tensor = left.pop(theirs, None)
        tensor = tied.get(theirs) if tensor is None else tensor
        if tensor is None:
            raise FamilyError(f"the tensor {theirs} is missing: is config.json the one of these weights?")
        if tensor.shape != (shape := joined_shape([shapes[name] for name in ours], row, a)):
            raise FamilyError(f"{theirs} has shape {list(tensor.shape)}: config.json implies {list(shape)}")
        for name, part in zip(ours, split_tensor(tensor, [shapes[name][0] for name in ours], row, a), strict=True):
            embedding |= {name: part} if name == "embed.token.weight" else {}
            yield name, part
    _check_left(left, family, embedding)


def to_theirs(state: Mapping[str, Tensor], a: Architecture, family: Family | None = None) -> dict[str, Tensor]:
    """Convert our tensors (`state_of`) to the family's names. A tied readout is written once, as the embedding.

    Raises FamilyError that names the option that no family can represent, or a missing tensor.
    """
    return dict(each_to_theirs(state, a, family))


def each_to_theirs(
    state: Mapping[str, Tensor], a: Architecture, family: Family | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The items of `to_theirs`, one tensor at a time."""
    family = _able_family(a, family)
    tied = {other: repeated for repeated, other in family.tied.items()}
    for ours, theirs, row in tensor_pairs(family, parameter_shapes(a), a):
        if missing := [name for name in ours if name not in state]:
            raise FamilyError(f"the tensor {missing[0]} is missing: give every parameter of the architecture")
        tensor = join_tensors([state[name] for name in ours], row, a).contiguous()
        if "{h}" in theirs:
            yield from ((theirs.replace("{h}", str(h)), of_head.clone()) for h, of_head in enumerate(tensor))
            continue
        yield theirs, tensor
        if theirs in tied:
            yield tied[theirs], tensor.clone()


def parameter_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, from a network on the meta device."""
    return dict(_parameter_shapes(a))


# files are read and checked tensor by tensor, and each asks; a network of many layers takes long to make
@functools.lru_cache(maxsize=8)
def _parameter_shapes(a: Architecture) -> Mapping[str, tuple[int, ...]]:
    if not a.adds_positions and a.encoder is None:  # tables of angles would be computed for every position
        a = dataclasses.replace(a, n_ctx=1)
    with without_memory():
        return {name: tuple(p.shape) for name, p in Transformer(a).named_parameters()}


def tensor_pairs(
    family: Family, shapes: Mapping[str, Any], a: Architecture
) -> Iterator[tuple[tuple[str, ...], str, TensorRow]]:
    """Every tensor of the architecture as (our tensors, their tensor, its row in the table)."""
    layers = sorted({int(n) for name in shapes for n in re.findall(r"^(?:encoder\.)?blocks\.(\d+)\.", name)})
    single_tensors = {row.ours: row for row in family.rows if row.tensor}
    said = canonical_fields(a)
    for row in family.rows:
        if row.tensor and row.ours in shapes:
            yield (*row.modules,), row.theirs, row
        if row.tensor or any(said[name] not in words for name, words in row.where.items()):
            continue
        several = [range(a.mlp.experts)] if row.joins_experts else [[0]]
        several = [[e] for e in range(a.mlp.experts)] if "{e}" in row.theirs else several
        for i, experts in itertools.product(layers if "{i}" in row.theirs else [0], several):
            for part, theirs in ENDINGS.items():
                ours = tuple(f"{module.format(i=i, e=e)}{part}" for e in experts for module in row.modules)
                if ours and ours[0] in shapes and ours[0] not in single_tensors:
                    yield ours, f"{row.theirs.format(i=i, e=experts[0], h='{h}')}{theirs}", row


def join_tensors(parts: list[Tensor], row: TensorRow, a: Architecture) -> Tensor:
    """Join our tensors into their one."""
    if row.tensor:
        return parts[0][None]
    if row.fused == "rows":
        return parts[0].unflatten(0, (-1, a.d_head))
    if row.joins_experts:
        n = len(row.modules)
        return torch.stack([torch.cat(parts[k : k + n]) for k in range(0, len(parts), n)])
    if row.fused == "heads":
        joined = torch.cat([part.unflatten(0, (a.n_kv_heads, -1)) for part in parts], 1).flatten(0, 1)
    elif row.fused == "pairs" and a.positions.layout == "halves":
        joined = interleave_halves(parts[0], a.d_head)
    else:
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
    if row.position_offset:
        joined = torch.cat([joined.new_zeros(row.position_offset, *joined.shape[1:]), joined])
    return joined.T if row.transposed and joined.ndim == 2 else joined


def joined_shape(shapes: list[tuple[int, ...]], row: TensorRow, a: Architecture) -> tuple[int, ...]:
    """The shape of what `join_tensors` makes of tensors of these shapes."""
    first, *others = shapes[0]
    if row.tensor:
        return (1, first, *others)
    if row.fused == "rows":
        return (first // a.d_head, a.d_head)
    if row.joins_experts:
        n = len(row.modules)
        return (len(shapes) // n, sum(shape[0] for shape in shapes[:n]), *others)
    joined = (row.position_offset + sum(shape[0] for shape in shapes), *others)
    return joined[::-1] if row.transposed and len(joined) == 2 else joined


def split_tensor(tensor: Tensor, rows: list[int], row: TensorRow, a: Architecture) -> list[Tensor]:
    """Split their tensor into ours, which have these numbers of rows."""
    if row.tensor:
        return [tensor[0]]
    if row.fused == "rows":
        return [tensor.flatten()]
    if row.joins_experts:
        n = len(row.modules)
        return [part.contiguous() for of_expert in tensor for part in of_expert.split(rows[:n])]
    tensor = tensor.T if row.transposed and tensor.ndim == 2 else tensor
    tensor = tensor[row.position_offset :]
    if row.fused == "heads":
        parts = tensor.unflatten(0, (a.n_kv_heads, -1)).split([n // a.n_kv_heads for n in rows], 1)
        return [part.flatten(0, 1).contiguous() for part in parts]
    if row.fused == "pairs" and a.positions.layout == "halves":
        return [separate_halves(tensor, a.d_head)]
    return [part.contiguous() for part in tensor.split(rows)]


def interleave_halves(rows: Tensor, d_head: int) -> Tensor:
    """Reorder rows so that (d, d + d_head / 2) of each head become neighbours (2d, 2d + 1)."""
    return rows.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2)


def separate_halves(rows: Tensor, d_head: int) -> Tensor:
    """The inverse of `interleave_halves`."""
    return rows.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2)


def present_names(state: Mapping[str, Tensor], family: Family, expected: set[str]) -> dict[str, Tensor]:
    """The tensors under the family's present names, with the prefix, without those that have no counterpart."""
    named = {}
    for name, tensor in with_heads_joined(unstacked(state, family), family).items():
        for old, new in family.renames.items():
            name = name.replace(old, new)
        named[name] = tensor
    if not any(name.startswith(family.prefix) for name in named):
        # files of the bare model (GPT2Model, BertModel) omit the prefix
        heads = {name.split(".")[0] for name in expected if not name.startswith(family.prefix)}
        named = {n if n.split(".")[0] in heads else family.prefix + n: t for n, t in named.items()}
    return {n: t for n, t in named.items() if not any(re.search(pattern, n) for pattern in family.ignored)}


def unstacked(state: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The tensors, expert by expert where transformers keeps all experts of a layer in one."""
    single = {}
    for name, tensor in state.items():
        scope, _, last = name.rpartition(".")
        if last not in family.stacked or tensor.ndim != 3:
            single[name] = tensor
            continue
        for e, of_expert in enumerate(tensor):
            for theirs, part in zip(family.stacked[last], of_expert.chunk(len(family.stacked[last])), strict=True):
                single[f"{scope}.{e}.{theirs}.weight"] = part
    return single


def with_heads_joined(state: Mapping[str, Tensor], family: Family) -> Mapping[str, Tensor]:
    """The tensors, with those of single heads, `NAME.0.weight` and so on, as the rows of `NAME.{h}.weight`."""
    parents = {row.theirs.split(".")[-2] for row in family.rows if row.theirs.endswith(".{h}")}
    if not parents:
        return state
    joined, of_heads = {}, dict[str, dict[int, Tensor]]()
    for name, tensor in state.items():
        of_one = re.fullmatch(r"(.*\.(\w+)\.)(\d+)(\.\w+)", name)
        if of_one and of_one[2] in parents:
            of_heads.setdefault(f"{of_one[1]}{{h}}{of_one[4]}", {})[int(of_one[3])] = tensor
        else:
            joined[name] = tensor
    for name, tensors in of_heads.items():
        shapes = {tuple(tensor.shape) for tensor in tensors.values()}
        if sorted(tensors) != [*range(len(tensors))] or len(shapes) > 1:
            raise FamilyError(f"the tensors {name} are of heads {sorted(tensors)}: expected all, of the same shape")
        joined[name] = torch.stack([tensors[h] for h in range(len(tensors))])
    return joined


def take_tied(left: dict[str, Tensor], family: Family, a: Architecture, expected: set[str]) -> dict[str, Tensor]:
    """Remove repeated tensors from `left` and return them under the name of their original.

    If the readout is untied, the copy is a tensor that nothing reads.
    """
    originals = {}
    for repeated, other in [*family.optional_tied.items(), *family.tied.items()]:
        if repeated in left and repeated not in expected:
            originals[other] = left.pop(repeated)
            same = a.unembed == "tied" or repeated in family.optional_tied
            if same and other in left and not torch.equal(left[other], originals[other]):
                raise FamilyError(f"{repeated} and {other} should be one tensor and differ: the file is damaged")
    return originals


def _check_left(left: Mapping[str, Tensor], family: Family, state: Mapping[str, Tensor]) -> None:
    """Raise FamilyError for unknown tensors, except the second copy of a tied readout."""
    readout = next((f"{row.theirs}.weight" for row in family.rows if row.ours == "unembed"), "")
    for name, tensor in left.items():
        if name != readout:
            raise FamilyError(f"the tensor {name} is unknown: no part of the architecture in config.json uses it")
        if not torch.equal(tensor, state["embed.token.weight"]):
            raise FamilyError(
                f"{name} differs from the embedding although config.json ties them: set tie_word_embeddings to false"
            )


class LazyStateDict(Mapping[str, Tensor]):
    """Another project's tensors under our names, each converted when it is looked up.

    It does not check what `each_to_ours` checks: iterate over that once before.
    """

    def __init__(self, state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family):
        self.a = architecture_of(config, family)
        self.shapes = parameter_shapes(self.a)
        pairs = list(tensor_pairs(family, self.shapes, self.a))
        expected = {theirs for _, theirs, _ in pairs}
        self.left, self.tied = state, dict[str, Tensor]()
        if family.renames_tensors:
            self.left = left = present_names(state, family, expected)
            self.tied = take_tied(left, family, self.a, expected)
        self.where = {name: (pair, i) for pair in pairs for i, name in enumerate(pair[0])}

    def missing(self) -> str:
        """Their name of the first tensor that the architecture needs and that is not there, "" if all are there."""
        names = (theirs for (_, theirs, _), _ in self.where.values())
        return next((name for name in names if name not in self.left and name not in self.tied), "")

    def __getitem__(self, name: str) -> Tensor:
        (ours, theirs, row), i = self.where[name]
        tensor = self.left[theirs] if theirs in self.left else self.tied[theirs]
        if row.joins_experts:  # of one expert alone
            expert, i = divmod(i, len(row.modules))
            tensor = tensor[expert : expert + 1]
        return split_tensor(tensor, [self.shapes[one][0] for one in ours], row, self.a)[i]

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, name: object) -> bool:
        return name in self.where
