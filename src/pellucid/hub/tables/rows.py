"""The parts of a table that maps a Hugging Face family to Pellucid. A family of existing options is one more table.

A row names a module; `.weight` and `.bias` are appended on both sides (a norm's weight is our gain), unless the row has
other endings. `{i}` is the layer, `{e}` the expert, `{h}` the head.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pellucid.architecture import Architecture, field_type
from pellucid.hub.canonical_fields import canonical_fields, set_at
from pellucid.hub.tables.entries import BOUNDS, CONSTANTS, REFUSED, Entries, FamilyError, format_value

#: our parameters of a module -> theirs
ENDINGS = {".weight": ".weight", ".gain": ".weight", ".bias": ".bias"}


@dataclass(frozen=True)
class TensorRow:
    """One module of theirs, and the module of ours that it is, or the several that it joins.

    transposed  theirs is stored in x out (GPT-2's Conv1D)
    fused       how their rows order the rows of several modules of ours: module after module, or by key heads (the
                queries that read k_1, k_1, v_1, the queries that read k_2, k_2, v_2, ...); experts: theirs has one
                more axis, for the experts, with module after module in each; rows: theirs is a matrix with a row for
                each head, or with {h} in its name a tensor for each head, and ours has them one after another; pairs:
                theirs rotates neighbouring coordinates (2d, 2d + 1) of each head, so that rows of a model that rotates
                halves (d, d + d_head / 2) are reordered
    position_offset  unused rows before our first one: dropped when reading, 0 when writing
    where       field -> the values of it for which the module exists
    endings     how the names of the parameters end: ours -> theirs
    tensor      the names are those of one tensor and one parameter; theirs is a matrix whose only row is ours
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    fused: Literal["modules", "heads", "experts", "rows", "pairs"] = "modules"
    position_offset: int = 0
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tensor: bool = False

    @property
    def joins_experts(self) -> bool:
        """Whether theirs is one tensor for all experts of a layer."""
        return self.fused == "experts"

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

    def read(self, entries: Entries) -> Any:
        """The value that the entry gives our fields, in the type of our field."""
        name = self.names[0].removeprefix("encoder.")
        if self.values is not None:
            if all(isinstance(word, bool) for word in self.values):
                return self.values[entries.flag(self.theirs, self.default, self.null)]
            return self.values[entries.choice(self.theirs, self.default, self.values.keys(), self.null)]
        if field_type(name) is int:
            least, most = int(name not in ("n_layers", "n_segments")), BOUNDS[name]
            return entries.integer(self.theirs, self.default, self.null, least=least, most=most)
        return entries.number(self.theirs, self.default, 0.0 if name.startswith("dropout.") else self.null)

    def write(self, values: list[Any]) -> Any:
        """The value of the entry for these values of our fields. The default where one entry cannot give them."""
        if self.values is not None:
            # None has no effect in this architecture
            with_effect = {value for value in values if value is not None}
            return next((theirs for theirs, ours in self.values.items() if with_effect == {ours}), self.default)
        return self.default if values[0] is None and self.null is REFUSED else values[0]


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
    export_limits  the same for values that a file may hold but their class refuses: checked when writing only
    body       their class without a head, whose files may lack the readout's tensors
    headless   their classes with a head that gives no logits of tokens: read as `body` is, without that head
    encoder    the family of their encoder-only class, if there is one
    source     what holds the entries, as messages call it
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
    export_limits: Mapping[str, Callable[[Architecture], bool]] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    headless: tuple[str, ...] = ()
    encoder: "Family | None" = None
    source: str = "config.json"

    def __post_init__(self):
        if not self.body:
            head = r"(LMHeadModel|ForCausalLM|ForMaskedLM|ForConditionalGeneration)$"
            object.__setattr__(self, "body", re.sub(head, "Model", self.model_class))

    def read(self, entries: Entries) -> Architecture:
        """The architecture that the entries describe, without the limits."""
        for path, constant in {**CONSTANTS, **self.constants}.items():
            value = entries.raw(path) if entries.has(path) else constant
            if value != constant and (constant or value is not None):
                raise FamilyError(
                    f"{path} = {format_value(value)} in {self.source}: only {format_value(constant)} can be represented"
                )
        values: dict[str, Any] = {}
        for name, word in self.fixed.items():
            set_at(values, name, word)
        for row in self.fields:
            value = row.read(entries)
            for name in row.names:
                set_at(values, name, value)
        for derived in self.derived:
            for name, value in derived.read(entries).items():
                set_at(values, name, value)
        a = Architecture.from_dict(values)
        body = entries.raw("architectures") == [self.body] and (a.readout != "linear" or a.unembed == "untied")
        bare = body or entries.raw("architectures") in [[name] for name in self.headless]
        nothing: dict[str, Any] = {"readout": "none", "readout_bias": "all", "logit_scale": "1", "logit_cap": 0.0}
        return replace(a, unembed="tied", **nothing) if bare else a

    def write(self, a: Architecture) -> dict[str, Any]:
        """The config.json of the architecture."""
        return {"model_type": self.name, "architectures": [self.model_class]} | self.entries(a)

    def entries(self, a: Architecture) -> dict[str, Any]:
        """The entries of the architecture; of a value that the family has no entry for, the default."""
        values, config = canonical_fields(a), dict[str, Any]()
        for path, constant in self.constants.items():
            if constant is not None:
                set_at(config, path, constant)
        for row in self.fields:
            set_at(config, row.theirs.split("|")[0], row.write([values[name] for name in row.names]))
        for derived in self.derived:
            for path, value in derived.write(a).items():
                set_at(config, path, value)
        return config

    @property
    def renames_tensors(self) -> bool:
        """Whether a file may have other names of tensors than those of `rows`, or more."""
        return bool(self.prefix or self.renames or self.ignored or self.stacked or self.tied or self.optional_tied)

    @property
    def has_encoder(self) -> bool:
        return any(name.startswith("encoder.") for name in self.fixed)

    def round_trip(self, a: Architecture) -> Architecture:
        return self.read(Entries(self.entries(a), self.source))

    def unmet_limits(self, a: Architecture) -> list[str]:
        return [name for name, holds in (*self.limits.items(), *self.export_limits.items()) if not holds(a)]

    def unreadable_field(self, a: Architecture, error: FamilyError) -> str:
        of_entry = [row.names[0] for row in self.fields if error.entry == row.theirs]
        values = canonical_fields(a)
        # derived entries may make no sense where an option is another than the family's
        return [*of_entry, *(name for name, value in self.fixed.items() if values[name] != value), "block"][0]


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
ALL_OR_NONE = {True: "all", False: "none"}
ATTENTION_BIAS = ConfigField("attention_bias", "attention.bias", False, ALL_OR_NONE)
MLP_BIAS = ConfigField("mlp_bias", "mlp.bias", False, ALL_OR_NONE)
#: tensors of theirs that are constants -> why we have none
ROTARY_FREQUENCIES = {r"rotary_emb\.inv_freq$": "a constant of the rotary positions"}
POSITION_IDS = {r"(^|\.)position_ids$": "0, 1, 2, ..."}
TIED = {True: "tied", False: "untied"}
QKV = ("blocks.{i}.attn.query", "blocks.{i}.attn.key", "blocks.{i}.attn.value")


def visible_windows(a: Architecture) -> list[int]:
    """The window of every layer, 0 if it covers the whole context."""
    return [0 if a.window(layer) >= a.n_ctx else a.window(layer) for layer in range(a.n_layers)]
