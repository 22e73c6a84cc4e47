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
    blocks      the words of `block` under which the module is there
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    fused: Literal["modules", "heads"] = "modules"
    unread: int = 0
    blocks: tuple[str, ...] = ()

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
