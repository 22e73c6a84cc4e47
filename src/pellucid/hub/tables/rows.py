"""The parts of a table that maps a Hugging Face family to Pellucid. A family of existing options is one more table.

A row names a module; `.weight` and `.bias` are appended on both sides (a norm's weight is our gain), unless the row has
other endings. `{i}` is the layer, `{e}` the expert, `{h}` the head.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.architecture import Architecture
from pellucid.hub.tables.entries import REFUSED, Entries

#: our parameters of a module -> theirs
ENDINGS = {".weight": ".weight", ".gain": ".weight", ".bias": ".bias"}


@dataclass(frozen=True)
class TensorRow:
    """One module of theirs, and the module of ours that it is, or the several that it joins.

    transposed  theirs is stored in x out (GPT-2's Conv1D)
    fused       how their rows order the rows of several modules of ours: module after module, or by key heads (the
                queries that read k_1, k_1, v_1, the queries that read k_2, k_2, v_2, ...); experts: theirs has one
                more axis, for the experts, with module after module in each; rows: theirs is a matrix with a row for
                each head, or with {h} in its name a tensor for each head, and ours has them one after another
    unread      unused rows before our first one: dropped when reading, 0 when writing
    where       field -> the values of it for which the module exists
    endings     how the names of the parameters end: ours -> theirs
    tensor      the names are those of one tensor and one parameter; theirs is a matrix whose only row is ours
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    fused: Literal["modules", "heads", "experts", "experts, rows in turn", "rows"] = "modules"
    unread: int = 0
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=lambda: ENDINGS)
    tensor: bool = False

    @property
    def joins_experts(self) -> bool:
        """Whether theirs is one tensor for all experts of a layer."""
        return self.fused.startswith("experts")

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class ConfigField:
    """An entry of their config.json, the fields of ours that it sets, and its default.

    `theirs` is a path; alternative names that are read but not written follow after `|`. `values` translates their
    values to ours. The type is that of our field. `null` is the value of a null entry; without it null is refused.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any
    values: Mapping[Any, Any] | None = None
    null: Any = REFUSED

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Derived:
    """Fields of ours that several entries of their config.json determine together.

    read   entries -> the values of our fields, by name; raises FamilyError if Pellucid cannot represent them
    write  architecture -> entries, by path; it may write anything for an architecture that it cannot represent, because
           the result is read back and compared
    """

    read: Callable[[Entries], Mapping[str, Any]]
    write: Callable[[Architecture], Mapping[str, Any]]


@dataclass(frozen=True)
class Family:
    """One family. `name` is the model_type of its config.json.

    derived    fields that several entries of config.json determine together
    fixed      the options that every model of the family has
    constants  entries of config.json with the same meaning; another value is refused, but null counts as false
    without_effect  further entries of config.json that do not change the logits, each with the reason
    ignored    pattern of their tensor names -> why we have no such tensor
    tied       their tensors that repeat another of theirs: name -> the other
    optional_tied  the same for tensors that may be missing: read if they are there, never written
    renames    older names of tensors, replaced wherever they occur
    stacked    the last part of a name under which transformers keeps all experts of a layer in memory, and the maps of
               one expert that its rows hold; files hold them one by one, and both are read
    limits     our field -> whether the family can hold the architecture's value, where the config alone cannot tell;
               checked when reading and when writing
    writes     the same for values that a file may hold but their class refuses: checked when writing only
    body       their class without a head, whose files may lack the readout's tensors
    headless   their classes with a head that gives no logits of tokens: read as `body` is, without that head
    encoder    the family of their encoder-only class, if there is one
    """

    name: str
    model_class: str
    prefix: str
    fields: tuple[ConfigField, ...]
    rows: tuple[TensorRow, ...]
    derived: tuple[Derived, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    optional_tied: Mapping[str, str] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)
    writes: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    headless: tuple[str, ...] = ()
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
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
}
TIED = {True: "tied", False: "untied"}
QKV = ("blocks.{i}.attn.query", "blocks.{i}.attn.key", "blocks.{i}.attn.value")


def visible_windows(a: Architecture) -> list[int]:
    """The window of every layer, 0 if it covers the whole context."""
    return [0 if a.window(layer) >= a.n_ctx else a.window(layer) for layer in range(a.n_layers)]
