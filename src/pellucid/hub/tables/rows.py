"""What a table is made of: Hugging Face names beside ours. A family made of existing words is one more table.

A row names a module; `.weight` and `.bias` follow it on both sides (a norm's weight is our gain). `{i}`
counts the layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.architecture import Architecture


@dataclass(frozen=True)
class Row:
    """A module of theirs, and the module of ours that it is, or the several that it holds as one.

    transposed  theirs is stored in x out (GPT-2's Conv1D)
    fused       how rows of several modules of ours lie in theirs: one module after the other, or by heads of
                keys (the queries that read k_1, k_1, v_1, the queries that read k_2, k_2, v_2, ...)
    unread      rows before the first of ours, which nothing reads: left out on the way in, 0 on the way out
    where       field -> the words of it under which the module is there
    tensor      the names are those of one tensor and one parameter; theirs is a matrix whose only row is ours
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    fused: Literal["modules", "heads"] = "modules"
    unread: int = 0
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tensor: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Field:
    """An entry of their config.json, the fields of ours that it sets, and its value where it is absent or null.

    `theirs` is a path; older spellings that are read and not written follow after `|`. `words` translates values.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any
    words: Mapping[Any, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Derived:
    """Fields of ours that several entries of their config.json say together.

    read   config -> the values of our fields, by name; ValueError where our words cannot say it
    write  architecture -> the entries, by path; what it cannot say it may write in any way, for what comes
           back is compared
    """

    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    write: Callable[[Architecture], Mapping[str, Any]]


@dataclass(frozen=True)
class Family:
    """One family. `name` is the model_type of its config.json.

    derived    what more than one entry of config.json says together
    words      what every model of the family is, in our words
    constants  entries of config.json that say the same; another value there is refused
    ignored    pattern of their tensor names -> why we have none of that name
    twins      their tensors that repeat another of theirs: name -> the other
    copies     the same, of tensors that need not be there: read where they are, and never written
    spellings  older names of tensors, replaced wherever they occur
    limits     our field -> whether the family can hold the architecture's value, where the config alone cannot tell
    """

    name: str
    model_class: str
    prefix: str
    fields: tuple[Field, ...]
    rows: tuple[Row, ...]
    derived: tuple[Derived, ...] = ()
    words: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
TIED = {True: "tied", False: "untied"}
QKV = ("blocks.{i}.attn.query", "blocks.{i}.attn.key", "blocks.{i}.attn.value")


def visible_windows(a: Architecture) -> list[int]:
    """The window of every layer, 0 where it reaches the whole context."""
    return [0 if a.window(layer) >= a.n_ctx else a.window(layer) for layer in range(a.n_layers)]


#: their kinds of scaled rotary positions, and the entries that each has
SCALED: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "positions.factor"},
    "llama3": {
        "factor": "positions.factor",
        "low_freq_factor": "positions.low",
        "high_freq_factor": "positions.high",
        "original_max_position_embeddings": "positions.n_trained",
    },
}


def rotary_scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """What rope_parameters, or rope_scaling as it was called, says of longer texts than were trained on."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return scaling_of(rope, config.get("max_position_embeddings"))


def scaling_of(rope: Mapping[str, Any], n_ctx: int | None) -> dict[str, Any]:
    """The same of one such object."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in SCALED:
        known = ", ".join(map(repr, SCALED))
        raise ValueError(f"rope_parameters.rope_type = {kind!r} in config.json: only {known} can be said in our words")
    rope = {"original_max_position_embeddings": n_ctx, **rope}
    if missing := [name for name in SCALED[kind] if rope.get(name) is None]:
        raise ValueError(f"rope_parameters lacks {missing[0]} in config.json, which rope_type = {kind!r} asks for")
    word = "none" if kind == "default" else kind
    return {"positions.scaling": word} | {ours: rope[theirs] for theirs, ours in SCALED[kind].items()}


def scaling_to(a: Architecture) -> dict[str, Any]:
    """The same written, as entries of that object."""
    kind = "default" if a.positions.scaling == "none" else a.positions.scaling
    part = {f"positions.{name}": value for name, value in a.to_dict()["positions"].items()}
    return {"rope_type": kind} | {theirs: part[ours] for theirs, ours in SCALED[kind].items()}


SCALING = Derived(rotary_scaling, lambda a: {f"rope_parameters.{name}": v for name, v in scaling_to(a).items()})
