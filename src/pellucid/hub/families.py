"""Models of other projects in our words: their config.json and tensors to ours and back, read off the tables.

Nothing is computed: tensors are cut, joined, transposed and renamed, so that a model comes back bit for
bit. What one side cannot say is refused with the word that is in the way.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture, ArchitectureError, architecture_fields, field_type
from pellucid.hub.tables import FAMILIES, Family, Field, Row
from pellucid.hub.tables.entries import BOUNDS, CONSTANTS, WITHOUT_EFFECT, Entries, FamilyError, shown
from pellucid.model import Transformer

__all__ = [
    "FAMILIES",
    "FamilyError",
    "architecture_of",
    "config_of",
    "each_to_ours",
    "each_to_theirs",
    "family_of",
    "in_the_way",
    "to_ours",
    "to_theirs",
    "unknown_entries",
]

#: what the words of positions.kind, and of positions.scaling beside rotary, read of positions
READ = {"rotary": ("base", "fraction", "layout", "rounding", "scaling", "local_base")}
READ |= {"sinusoidal": ("base", "layout"), "alibi": ("slopes",), "relative": ("n_buckets", "max_distance")}
#: what decides nothing in an encoder, whose stream is not read out
UNREAD = ("unembed", "readout", "logit_scale", "logit_cap", "source_embed")
READ_SCALED = {"none": (), "linear": ("factor",), "llama3": ("factor", "low", "high", "n_trained")}
PARTS = {"weight": "weight", "gain": "weight", "bias": "bias"}


# Configuration ------------------------------------------------------------------------------------


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that a config.json belongs to; FamilyError names those that are known."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise FamilyError(f"model_type = {shown(name)} is not a family that is known: expected {', '.join(FAMILIES)}")
    encoder = FAMILIES[name].encoder
    alone = encoder is not None and config.get("architectures") == [encoder.model_class]
    return encoder if encoder is not None and alone else FAMILIES[name]


def architecture_of(config: Mapping[str, Any], family: Family | None = None) -> Architecture:
    """The architecture that a config.json describes; without a readout where it is of a class that has none.

    Raises FamilyError for entries of another type than theirs, options that our words cannot say, and what no model
    of the family can be.
    """
    family = family or family_of(config)
    try:
        a = _read(Entries(config), family)
    except ArchitectureError as error:
        raise FamilyError(_in_their_words(str(error), family)) from error
    for name, holds in family.limits.items():
        if not holds(a):
            said = f"{name} = {_settled(a)[name]}"
            raise FamilyError(f"{_in_their_words(said, family)}: models of the family {family.name} have other values")
    return a


def unknown_entries(config: Mapping[str, Any], family: Family | None = None) -> list[str]:
    """The entries, null ones aside, that nothing reads and of which it is not known that no logit depends on them."""
    family = family or family_of(config)
    entries = Entries(config)
    _read(entries, family)
    known = entries.asked | family.without_effect.keys()
    nested = {path.rpartition(".")[0] for path in entries.asked if "." in path}
    return [p for p in _paths(config, nested) if p not in known and p.rpartition(".")[2] not in WITHOUT_EFFECT]


def _paths(values: Mapping[str, Any], nested: set[str], before: str = "") -> Iterator[str]:
    """The path of every entry that is not null; of an object that is read entry by entry, those of its entries."""
    for name, value in values.items():
        path = f"{before}{name}"
        if path in nested and isinstance(value, Mapping):
            yield from _paths(value, nested, f"{path}.")
        elif value is not None:
            yield path


def _read(entries: Entries, family: Family) -> Architecture:
    """The architecture that the entries describe, whatever the family's limits are."""
    for path, constant in {**CONSTANTS, **family.constants}.items():
        value = entries.given(path) if entries.has(path) else constant
        if value != constant and (constant or value is not None):
            raise FamilyError(
                f"{path} = {shown(value)} in config.json: only {shown(constant)} can be said in our words"
            )
    values: dict[str, Any] = {}
    for name, word in family.words.items():
        _put(values, name, word)
    for row in family.fields:
        value = _value(entries, row)
        for name in row.names:
            _put(values, name, value)
    for derived in family.derived:
        for name, value in derived.read(entries).items():
            _put(values, name, value)
    a = Architecture.from_dict(values)
    body = entries.given("architectures") == [family.body] and (a.readout != "linear" or a.unembed == "untied")
    return dataclasses.replace(a, readout="none", unembed="tied", logit_scale="1", logit_cap=0.0) if body else a


def _value(entries: Entries, row: Field) -> Any:
    """What the entry of a row sets our fields to; the type is that of our field."""
    name = row.names[0].removeprefix("encoder.")
    if row.words is not None:
        if all(isinstance(word, bool) for word in row.words):
            return row.words[entries.flag(row.theirs, row.default, row.null)]
        return row.words[entries.word(row.theirs, row.default, row.words.keys(), row.null)]
    if field_type(name) is int:
        least, most = int(name not in ("n_layers", "n_segments")), BOUNDS[name]
        return entries.whole(row.theirs, row.default, row.null, least=least, most=most)
    return entries.number(row.theirs, row.default, 0.0 if name.startswith("dropout.") else row.null)


def _in_their_words(said: str, family: Family) -> str:
    """A sentence that begins with a field of ours, beginning with the entry that sets it where one entry does."""
    ours, _, value = said.partition(" = ")
    rows = [row for row in family.fields if ours in row.names]
    return f"{rows[0].theirs.split('|')[0]} in config.json sets {ours} = {value}" if rows else f"config.json: {said}"


def config_of(a: Architecture, family: Family | None = None, end_token: int | None = None) -> dict[str, Any]:
    """The config.json of an architecture; `end_token` is the id of the separator, at which generation ends.

    Raises FamilyError naming the word that is in the way.
    """
    family = _check_expressible(a, family)
    config = _write(a, family)
    if end_token is not None:
        config |= {"bos_token_id": end_token, "eos_token_id": end_token}
        config |= {} if a.encoder is None else {"decoder_start_token_id": end_token}
    return config


def in_the_way(a: Architecture, family: Family) -> str:
    """The first field of the architecture that the family cannot say, with its value; "" where it can say all.

    The family can say what comes back when its config.json is read.
    """
    said = _settled(a)
    if a.readout == "none":
        return "readout = none"  # what is written are models with a head
    if (a.encoder is not None) != any(name.startswith("encoder.") for name in family.words):
        return f"encoder = {said['encoder']}"
    for name, word in family.words.items():
        if said[name] != word:
            return f"{name} = {said[name]}"
    for row in family.fields:
        for name in row.names:
            if row.words is not None and said[name] not in row.words.values():
                return f"{name} = {said[name]}"
    divided = not any("attention.d_head" in row.names for row in family.fields)
    for prefix, part in (("", a), ("encoder.", a.encoder)):
        if divided and part is not None and part.d_head * part.n_heads != part.d_model:
            return f"{prefix}attention.d_head = {part.d_head}"
    try:
        heard = _settled(_read(Entries(_write(a, family)), family))
    except ArchitectureError:
        return f"attention.d_head = {a.d_head}"  # the one size that a config leaves to be divided out
    except FamilyError:
        return f"block = {a.block}"  # what a table writes for a block that it has not, it does not read
    different = [name for name, holds in (*family.limits.items(), *family.writes.items()) if not holds(a)]
    different += [name for name in said if said[name] != heard[name]]
    return f"{different[0]} = {said[different[0]]}" if different else ""


def _check_expressible(a: Architecture, family: Family | None) -> Family:
    """The family, or where none is given the first that can say the architecture."""
    tried = {f.name: in_the_way(a, f) for f in ([family] if family else FAMILIES.values())}
    for name, word in tried.items():
        if not word:
            return family or FAMILIES[name]
    ways = "; ".join(f"{name} cannot say {word}" for name, word in tried.items())
    raise FamilyError(f"this architecture cannot be written as a model of another project: {ways}")


def _write(a: Architecture, family: Family) -> dict[str, Any]:
    said = _settled(a)
    config: dict[str, Any] = {"model_type": family.name, "architectures": [family.model_class]}
    for path, constant in family.constants.items():
        if constant is not None:
            _put(config, path, constant)
    for row in family.fields:
        value = said[row.names[0]]
        if row.words is not None:
            value = next((theirs for theirs, ours in row.words.items() if ours == value), None)
        _put(config, row.theirs.split("|")[0], value)
    for derived in family.derived:
        for path, value in derived.write(a).items():
            _put(config, path, value)
    return config


def _settled(a: Architecture) -> dict[str, Any]:
    """Every field by dotted name, sizes that follow from others filled in and fields that nothing reads left out."""
    values: dict[str, Any] = {"encoder": "given" if a.encoder is not None else None}
    nested = a.to_dict()
    for name in [*(n for n in architecture_fields() if n != "dropout"), *(f"dropout.{n}" for n in nested["dropout"])]:
        values[name] = _look_up(nested, name)
    values |= {"attention.d_head": a.d_head, "attention.n_kv_heads": a.n_kv_heads, "mlp.d_ff": a.d_ff}
    windows = [a.window(layer) for layer in range(a.n_layers)]
    values["attention.windows"] = [0 if w >= a.n_ctx and not a.positions.local_base else w for w in windows]
    if not any(windows):
        values["positions.local_base"] = 0.0
    read = ("kind", *READ.get(a.positions.kind, ()), *(READ_SCALED[a.positions.scaling] if a.d_rotary else ()))
    values |= {name: None for name in values if name.startswith("positions.") and name[10:] not in read}
    # two words are one where nothing is odd
    if a.positions.kind == "rotary" and int(a.d_head * a.positions.fraction) % 2 == 0:
        values["positions.rounding"] = "up"
    if a.positions.kind == "alibi" and a.n_heads & (a.n_heads - 1) == 0:
        values["positions.slopes"] = "interleaved"
    if a.attention.scale != "scale_value":
        values["attention.scale_value"] = None
    if a.norm.kind == "rms":
        values["norm.bias"] = None
    if a.encoder is None:
        return values | {"source_embed": None}
    return values | {f"encoder.{n}": None if n in UNREAD else v for n, v in _settled(a.encoder).items()}


def _look_up(values: Mapping[str, Any], paths: str) -> Any:
    """The value at the first of the paths (`a.b|c`) that leads somewhere, else None."""
    for path in paths.split("|"):
        found: Any = values
        for step in path.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *parts, last = path.split(".")
    for part in parts:
        values = values.setdefault(part, {})
    values[last] = value


# Tensors ------------------------------------------------------------------------------------------


def to_ours(state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family | None = None) -> dict[str, Tensor]:
    """Their tensors under our names, for `load_state` of a Transformer of `architecture_of(config)`.

    Names without the family's prefix, older spellings and repeated tensors are understood. Raises FamilyError
    naming a tensor that is missing, left over, of another shape, or different from what it should repeat.
    """
    return dict(each_to_ours(state, config, family))


def each_to_ours(
    state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family | None = None
) -> Iterator[tuple[str, Tensor]]:
    """What `to_ours` gives, a tensor at a time, so that files larger than memory can be converted."""
    family = family or family_of(config)
    a = architecture_of(config, family)
    shapes = _shapes(a)
    expected = {theirs for _, theirs, _ in _pairs(family, shapes, a)}
    left = _spelled(state, family, expected)
    twins = _take_twins(left, family, a, expected)
    kept: dict[str, Tensor] = {}
    for ours, theirs, row in _pairs(family, shapes, a):
        tensor = left.pop(theirs, None)
        tensor = twins.get(theirs) if tensor is None else tensor
        if tensor is None:
            raise FamilyError(f"the tensor {theirs} is missing: is config.json the one of these weights?")
        shape = _joined([torch.empty(shapes[name], device="meta") for name in ours], row, a).shape
        if tensor.shape != shape:
            raise FamilyError(f"{theirs} has shape {list(tensor.shape)}: config.json asks for {list(shape)}")
        for name, part in zip(ours, _split(tensor, [shapes[name][0] for name in ours], row, a), strict=True):
            kept |= {name: part} if name == "embed.token.weight" else {}
            yield name, part
    _check_left(left, family, kept)


def to_theirs(state: Mapping[str, Tensor], a: Architecture, family: Family | None = None) -> dict[str, Tensor]:
    """Our tensors (`state_of`) under their names; a tied readout is written once, with the embedding.

    Raises FamilyError naming the word of the architecture that is in the way, or a tensor that is missing.
    """
    return dict(each_to_theirs(state, a, family))


def each_to_theirs(
    state: Mapping[str, Tensor], a: Architecture, family: Family | None = None
) -> Iterator[tuple[str, Tensor]]:
    """What `to_theirs` gives, a tensor at a time."""
    family = _check_expressible(a, family)
    twins = {other: twin for twin, other in family.twins.items()}
    for ours, theirs, row in _pairs(family, _shapes(a), a):
        if missing := [name for name in ours if name not in state]:
            raise FamilyError(f"the tensor {missing[0]} is missing: give every parameter of the architecture")
        tensor = _joined([state[name] for name in ours], row, a).contiguous()
        yield theirs, tensor
        if theirs in twins:
            yield twins[theirs], tensor.clone()


def _shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, from a network without memory."""
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Transformer(a).named_parameters()}


def _pairs(family: Family, shapes: Mapping[str, Any], a: Architecture) -> Iterator[tuple[tuple[str, ...], str, Row]]:
    """(our tensors, their tensor, the row that says so), for every tensor that the architecture has."""
    layers = sorted({int(n) for name in shapes for n in re.findall(r"^(?:encoder\.)?blocks\.(\d+)\.", name)})
    whole = {row.ours: row for row in family.rows if row.tensor}
    said = _settled(a)
    for row in family.rows:
        if row.tensor and row.ours in shapes:
            yield (*row.modules,), row.theirs, row
        if row.tensor or any(said[name] not in words for name, words in row.where.items()):
            continue
        for i in layers if "{i}" in row.theirs else [0]:
            for part, theirs in PARTS.items():
                ours = tuple(f"{module.format(i=i)}.{part}" for module in row.modules)
                if ours[0] in shapes and ours[0] not in whole:
                    yield ours, f"{row.theirs.format(i=i)}.{theirs}", row


def _joined(parts: list[Tensor], row: Row, a: Architecture) -> Tensor:
    """Our tensors as their one."""
    if row.tensor:
        return parts[0][None]
    if row.fused == "heads":
        joined = torch.cat([part.unflatten(0, (a.n_kv_heads, -1)) for part in parts], 1).flatten(0, 1)
    else:
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
    if row.unread:
        joined = torch.cat([joined.new_zeros(row.unread, *joined.shape[1:]), joined])
    return joined.T if row.transposed and joined.ndim == 2 else joined


def _split(tensor: Tensor, rows: list[int], row: Row, a: Architecture) -> list[Tensor]:
    """Their tensor as ours, with these numbers of rows."""
    if row.tensor:
        return [tensor[0]]
    tensor = tensor.T if row.transposed and tensor.ndim == 2 else tensor
    tensor = tensor[row.unread :]
    if row.fused == "heads":
        parts = tensor.unflatten(0, (a.n_kv_heads, -1)).split([n // a.n_kv_heads for n in rows], 1)
        return [part.flatten(0, 1).contiguous() for part in parts]
    return [part.contiguous() for part in tensor.split(rows)]


def _spelled(state: Mapping[str, Tensor], family: Family, expected: set[str]) -> dict[str, Tensor]:
    """The state under the family's present names, prefix included, without what has no counterpart."""
    named = {}
    for name, tensor in state.items():
        for old, new in family.spellings.items():
            name = name.replace(old, new)
        named[name] = tensor
    if not any(name.startswith(family.prefix) for name in named):
        # files of the bare model (GPT2Model, BertModel) leave the prefix out
        heads = {name.split(".")[0] for name in expected if not name.startswith(family.prefix)}
        named = {n if n.split(".")[0] in heads else family.prefix + n: t for n, t in named.items()}
    return {n: t for n, t in named.items() if not any(re.search(pattern, n) for pattern in family.ignored)}


def _take_twins(left: dict[str, Tensor], family: Family, a: Architecture, expected: set[str]) -> dict[str, Tensor]:
    """The repeated tensors, taken out, under the name of what they repeat; what a row asks for repeats none.

    Where the readout is untied, the twin is a tensor that nothing reads.
    """
    found = {}
    for twin, other in [*family.copies.items(), *family.twins.items()]:
        if twin in left and twin not in expected:
            found[other] = left.pop(twin)
            same = a.unembed == "tied" or twin in family.copies
            if same and other in left and not torch.equal(left[other], found[other]):
                raise FamilyError(f"{twin} and {other} should be one tensor and differ: the file is damaged")
    return found


def _check_left(left: Mapping[str, Tensor], family: Family, made: Mapping[str, Tensor]) -> None:
    """Nothing is left over but a tied readout's second copy."""
    readout = next((f"{row.theirs}.weight" for row in family.rows if row.ours == "unembed"), "")
    for name, tensor in left.items():
        if name != readout:
            raise FamilyError(f"the tensor {name} is left over: nothing in config.json or our words asks for it")
        if not torch.equal(tensor, made["embed.token.weight"]):
            raise FamilyError(
                f"{name} differs from the embedding although config.json ties them: set tie_word_embeddings to false"
            )
