"""What a table is made of: Hugging Face names beside ours. A family made of existing words is one more table.

A row names a module; `.weight` and `.bias` follow it on both sides (a norm's weight is our gain). `{i}`
counts the layers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import REFUSED, Entries


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
    """An entry of their config.json, the fields of ours that it sets, and its value where it is missing.

    `theirs` is a path; other spellings that are read and not written follow after `|`. `words` translates values. The
    type is that of our field. `null` is the value where the entry is null, which is refused unless it is given.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any
    words: Mapping[Any, Any] | None = None
    null: Any = REFUSED

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Derived:
    """Fields of ours that several entries of their config.json say together.

    read   the entries -> the values of our fields, by name; FamilyError where our words cannot say it
    write  architecture -> the entries, by path; what it cannot say it may write in any way, for what comes
           back is compared
    """

    read: Callable[[Entries], Mapping[str, Any]]
    write: Callable[[Architecture], Mapping[str, Any]]


@dataclass(frozen=True)
class Family:
    """One family. `name` is the model_type of its config.json.

    derived    what more than one entry of config.json says together
    words      what every model of the family is, in our words
    constants  entries of config.json that say the same; another value there is refused, but for null where false is
               what is asked for
    without_effect  further entries of config.json that no logit depends on, each with the reason
    ignored    pattern of their tensor names -> why we have none of that name
    twins      their tensors that repeat another of theirs: name -> the other
    copies     the same, of tensors that need not be there: read where they are, and never written
    spellings  older names of tensors, replaced wherever they occur
    limits     our field -> whether the family can hold the architecture's value, where the config alone cannot tell;
               held to on the way in as on the way out
    writes     the same for what a file may say and their class would not take: held to on the way out alone
    body       their class without a head, whose files may lack the readout's tensors
    encoder    the family of their class of the encoder alone, where there is one
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
    writes: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    encoder: "Family | None" = None

    def __post_init__(self):
        if not self.body:
            head = r"(LMHeadModel|ForCausalLM|ForMaskedLM|ForConditionalGeneration)$"
            object.__setattr__(self, "body", re.sub(head, "Model", self.model_class))


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
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
