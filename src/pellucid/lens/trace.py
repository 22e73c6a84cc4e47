"""A trace: one forward pass, every tensor of which can be asked for by name."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.edits import Edit
from pellucid.lens.asking import Asking
from pellucid.lens.core.forward import ForwardPass, frozen_network, run_forward
from pellucid.lens.core.input_view import Fed
from pellucid.lens.core.inputs import InputError, Inputs, read_inputs
from pellucid.lens.core.interventions import Functions, edit_context, frozen, functions, refers_to_clean, resolve
from pellucid.model import Recorder, Tap, Transformer
from pellucid.tensor_names import TEMPLATES_BEFORE, canonical, names, of_symbol, select
from pellucid.text.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from pellucid.lens.analysis.metrics import Metric

    Measured = Metric | Callable[[Tensor], Tensor]

#: what follows from the logits: softmax and -log P of the next token
DERIVED = ("probs", "loss")
Key = str | int | tuple[str, int]


class Trace(Fed, Asking):
    """What one pass computed. `trace[name]` is a tensor, with a batch axis first.

        t["blocks.5.attn.pattern"]   t[5].attn.pattern   t["A", 5]   t["blocks.5.attn.hook_pattern"]

    are one tensor: our name, the same by block, the source texts' symbol, TransformerLens's classic name. The
    inputs of all blocks are kept, and what was asked for with `keep`; anything else is recomputed from them when it
    is asked for, at the price of one block. A name that the architecture lacks raises KeyError with the reason.

    inputs   what was fed, as `tokens` shows it
    edits    what was changed, resolved to one full name each
    values   the tensors that are kept, by full name
    """

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer | None,
        inputs: Inputs,
        keep: Iterable[str] = (),
        edits: Sequence[Edit] = (),
        grad: bool = False,
    ):
        self.network, self.tokenizer, self.inputs, self.grad = network, tokenizer, inputs, grad
        self.keep = frozenset([keep] if isinstance(keep, str) else keep)
        a = network.architecture
        asked = frozenset(select(sorted(self.keep - set(DERIVED)), a)) if self.keep else frozenset()
        resolved = resolve(edits, a)
        if clean_names := refers_to_clean(resolved):
            clean = Trace(network, tokenizer, inputs, clean_names)
            resolved = frozen(resolved, clean.values)
        self.edits = tuple(resolved)
        source = None if inputs.source is None else inputs.source.real
        self.functions: Functions = functions(resolved, edit_context(inputs.real, source))
        self.passes: dict[str, ForwardPass] = {}
        self.values: dict[str, Tensor] = {}
        with frozen_network(network, grad):
            self._run(asked)

    def _run(self, asked: frozenset[str]) -> None:
        """The pass itself, keeping the block inputs, what is read out at the end, and what was asked for."""
        base = {name for name in names(self.architecture) if name.endswith(".resid_pre") or _is_last(name, self)}
        recorder = Recorder(base | asked - {"logits"}, self.functions, self.grad)
        if self.inputs.source is not None:
            assert self.network.encoder is not None
            encoder = ForwardPass(self.network.encoder, self.inputs.source)
            self.passes["encoder."] = encoder
            encoded = encoder.whole(recorder.at("encoder"))
        else:
            encoded = None
        self.passes[""] = ForwardPass(self.network, self.inputs, encoded)
        self._final = self.passes[""].whole(recorder)
        self.values = recorder.values
        if "logits" in asked:
            self.values["logits"] = self._read_out()

    @property
    def architecture(self) -> Architecture:
        return self.network.architecture

    # Tensors --------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Any:
        if isinstance(key, int):
            if not 0 <= key < self.architecture.n_layers:
                raise KeyError(f"block {key}: the architecture has {self.architecture.n_layers}, numbered from 0")
            return Block(self, f"blocks.{key}.")
        name = self.full_name(key)
        return self.tensors([name])[name]

    def full_name(self, key: str | tuple[str, int]) -> str:
        """Our name of the one tensor that `key` stands for; KeyError with the reason where there is none."""
        if isinstance(key, tuple):
            return self.full_name(of_symbol(*key))
        if key in DERIVED or key in self.values:
            return key
        try:
            found = select(key, self.architecture)
        except KeyError as error:
            template = of_symbol_or_none(key)
            if template is None:
                raise error from None
            return self.full_name(template)
        if len(found) != 1:
            raise KeyError(f"{key!r} stands for {len(found)} tensors: tensors({key!r}) gives them all, by name")
        return found[0]

    def tensors(self, patterns: str | Sequence[str]) -> dict[str, Tensor]:
        """Every tensor that the patterns choose, by full name and in order of computation."""
        listed = [patterns] if isinstance(patterns, str) else list(patterns)
        derived = [name for name in listed if name in DERIVED]
        others = [name for name in listed if name not in DERIVED]
        chosen = select(others, self.architecture) if others else []
        missing = [name for name in chosen if name not in self.values]
        found = self._recompute(missing) if missing else {}
        return {name: self.values[name] if name in self.values else found[name] for name in chosen} | {
            name: getattr(self, name) for name in derived
        }

    def _recompute(self, missing: list[str]) -> dict[str, Tensor]:
        """Tensors that were not kept, from the kept input of the part of the pass that they belong to."""
        if "logits" in missing:
            self.values["logits"] = self._read_out()
            missing = [name for name in missing if name != "logits"]
        if self.grad and missing:
            raise KeyError(f"{missing[0]} is not in the graph of this trace: say keep=[{missing[0]!r}] with grad=True")
        groups: dict[str, list[str]] = {}
        for name in missing:
            groups.setdefault(_segment(name), []).append(name)
        found: dict[str, Tensor] = {}
        with frozen_network(self.network):
            for segment, wanted in groups.items():
                recorder = Recorder(wanted, self.functions)
                self._run_segment(segment, recorder)
                found |= recorder.values
        return found | {"logits": self.values["logits"]} if "logits" in self.values else found

    def _run_segment(self, segment: str, recorder: Recorder) -> None:
        """One of the embedding, a block and the final norm, run again on its own input."""
        prefix = "encoder." if segment.startswith("encoder.") else ""
        part, tap = self.passes[prefix], recorder.at("encoder") if prefix else recorder
        place = segment.removeprefix(prefix)
        if place == "embed":
            part.embed(tap)
        elif place.startswith("blocks."):
            layer = int(place.split(".")[1])
            name = f"{segment}.resid_pre"
            # the kept input has been edited already
            without = Recorder(recorder.keep, {n: f for n, f in recorder.edits.items() if n != name})
            without.values = recorder.values
            part.block(layer, self.values[name], without.at("encoder") if prefix else without)
        else:
            part.normalise(self.stream(prefix), tap)

    def stream(self, prefix: str = "") -> Tensor:
        """What is read out: the stream behind the last block, before the final norm [b, n, m]."""
        part = self.passes[prefix].part
        layers = part.architecture.n_layers
        if not layers:
            with frozen_network(self.network):
                return self.passes[prefix].embed(self._edits().at("encoder") if prefix else self._edits())
        return self.values[f"{prefix}blocks.{layers - 1}.resid_post"]

    @property
    def read_out(self) -> Tensor:
        """What the readout reads: the stream behind the final norm, where there is one [b, n, m]."""
        return self._final

    def logits_before_cap(self) -> Tensor:
        """The logits as they are before `logit_cap` [b, n, v], where edits of the logits have not been made yet.

        Without a cap these are the logits, with their edits.
        """
        if not self.architecture.logit_cap:
            return self.logits
        with frozen_network(self.network, self.grad):
            return self.network.unembed.before_cap(self._final)

    def _edits(self) -> Tap:
        return Recorder(edits=self.functions)

    def _read_out(self) -> Tensor:
        with frozen_network(self.network, self.grad):
            return self._edits()("logits", self.network.unembed(self._final))

    @property
    def nbytes(self) -> int:
        """Bytes that the kept tensors take."""
        return sum(x.nbytes for x in self.values.values()) + self._final.nbytes

    # What follows from the logits -----------------------------------------------------------

    @property
    def logits(self) -> Tensor:
        """[b, n, v], of the token after each position; of the token at it for a masked model."""
        return self["logits"]

    @property
    def probs(self) -> Tensor:
        """softmax(logits) [b, n, v]"""
        return self.logits.softmax(-1)

    @property
    def loss(self) -> Tensor:
        """-log P of each token after the first, nats [b, n - 1]; nan at padding.

        Raises InputError for masked models, which have read the token that they would be asked for.
        """
        if self.architecture.attention.mask == "bidirectional":
            raise InputError(
                "attention.mask = bidirectional: each position has read the next token, so its loss says nothing; "
                "hide a token with [MASK] and look at probs there"
            )
        logits = self.logits[:, :-1].to(torch.promote_types(self.logits.dtype, torch.float32))
        loss = F.cross_entropy(logits.transpose(1, 2), self.ids[:, 1:], reduction="none")
        return loss.masked_fill(~self.inputs.real[:, 1:], torch.nan)

    def surprisal(self, unit: Literal["bits", "nats"] = "bits") -> Tensor:
        """-log P of each token after the first, given those before it [b, n - 1]; nan at padding."""
        if unit not in ("bits", "nats"):
            raise InputError(f"unit = {unit!r}: say bits or nats")
        return self.loss / math.log(2) if unit == "bits" else self.loss

    def top(self, pos: int = -1, k: int = 10, row: int = 0) -> list[tuple[str, float]]:
        """The k likeliest tokens at a position, as text, with their probabilities; -1 is the row's last token."""
        probs = self.probs[row, self.position(pos, row)]
        best = probs.topk(min(k, probs.numel()))
        return [(self.spell(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)]

    # Gradients ------------------------------------------------------------------------------

    def gradient(self, metric: "Measured", patterns: str | Sequence[str]) -> dict[str, Tensor]:
        """d metric(logits) / d tensor for every tensor that the patterns choose, by name.

        `metric` is one of `pellucid.lens.analysis.metrics`, or maps logits [b, n, v] to a number or to one number
        for each row, which are summed. The pass is run again, with this trace's edits; each tensor's gradient is
        taken where its edits have been made. Weights need not require gradients.
        """
        measured = metric if callable(metric) else metric.of(self)
        chosen = select(patterns, self.architecture)
        shifts: dict[str, Tensor] = {}

        def shifted(name: str) -> Callable[[Tensor], Tensor]:
            def shift(x: Tensor) -> Tensor:
                shifts[name] = torch.zeros_like(x, requires_grad=True)
                return x + shifts[name]

            return shift

        edits = {name: list(made) for name, made in self.functions.items()}
        for name in chosen:
            edits.setdefault(name, []).append(shifted(name))
        with frozen_network(self.network, grad=True):
            value = measured(run_forward(self.network, self.inputs, Recorder(edits=edits))).sum()
            found = torch.autograd.grad(value, [shifts[name] for name in chosen], materialize_grads=True)
        return dict(zip(chosen, found, strict=True))

    def __repr__(self) -> str:
        rows, width = self.ids.shape
        return f"Trace({rows} x {width} tokens, {len(self.values)} tensors kept, {len(self.edits)} edits)"


class Block:
    """The tensors of one block: `trace[5].attn.pattern`, `trace[5]["norm_1.scale"]`."""

    def __init__(self, trace: Trace, prefix: str):
        self._trace, self._prefix = trace, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._trace[self._prefix + name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = self._prefix + name
        inside = any(n.startswith(full + ".") for n in names(self._trace.architecture))
        if inside and canonical(full, self._trace.architecture) not in names(self._trace.architecture):
            return Block(self._trace, full + ".")
        try:
            return self._trace[full]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None


def trace(
    network: Transformer,
    tokenizer: Tokenizer | None,
    given: Any,
    *,
    keep: str | Sequence[str] = (),
    edits: Sequence[Edit] = (),
    grad: bool = False,
    **reading: Any,
) -> Trace:
    """Run the network on texts or ids and return every tensor of the pass.

    given   a text, a list of texts, ids, rows of ids, or what `generate` returned
    keep    names (`*` stands for anything) of what is held in memory besides the block inputs
    edits   changes (`pellucid.edits`), made in order
    grad    whether the tensors that are kept stay in the autograd graph
    bos, source, segments, prefix   see `pellucid.lens.core.inputs.read_inputs`; `tokens` shows everything that is fed

    Keeping changes no logit by a bit. Raises KeyError with the reason for names that the architecture has not,
    InputError for texts that it cannot read, EditError for edits that do not fit.
    """
    inputs = read_inputs(network, tokenizer, given, **reading)
    return Trace(network, tokenizer, inputs, keep, edits, grad)


def of_symbol_or_none(symbol: str) -> str | None:
    """The tensor outside the blocks that a symbol of the source texts stands for."""
    try:
        return of_symbol(symbol)
    except KeyError as error:
        if "no source text" in error.args[0]:
            return None
        raise


def _is_last(name: str, t: Trace) -> bool:
    """Whether this is the stream that is read out, of the decoder or the encoder."""
    part = t.architecture.encoder if name.startswith("encoder.") else t.architecture
    return part is not None and name.removeprefix("encoder.") == f"blocks.{part.n_layers - 1}.resid_post"


def _segment(name: str) -> str:
    """The part of a pass that computes a tensor: embed, blocks.i or final_norm, with encoder. before it where it is."""
    prefix = "encoder." if name.startswith("encoder.") else ""
    place = name.removeprefix(prefix)
    if place in TEMPLATES_BEFORE:
        return prefix + "embed"
    return prefix + (".".join(place.split(".")[:2]) if place.startswith("blocks.") else "final_norm")
