"""A recording: one forward pass, whose tensors can be read by name."""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.edits import Edit
from pellucid.lens.core.forward import ForwardPass, frozen_network
from pellucid.lens.core.input_view import InputView
from pellucid.lens.core.inputs import InputError, Inputs
from pellucid.lens.core.interventions import (
    Functions,
    check_reached,
    edit_context,
    frozen,
    functions,
    refers_to_clean,
    resolve,
)
from pellucid.model import Recorder, Tap, Transformer
from pellucid.model.fingerprint import Fingerprint, checksum
from pellucid.tensor_names import TEMPLATES_BEFORE, canonical, names, select
from pellucid.text_model import Model

#: tensors that are computed from the logits: softmax, and -log P of the next token
DERIVED = ("probs", "loss")


class TraceError(RuntimeError):
    """A trace whose weights, input, tensors or precision are no longer those that it was made with."""


class Recording(InputView):
    """The tensors of one forward pass, by name; `pellucid.lens.Trace`, which adds the analyses, says how to read them.

    inputs   the input of the pass; `tokens` shows it
    edits    the edits, each resolved to one full name
    values   the tensors that are kept, by full name
    """

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        keep: Iterable[str] = (),
        edits: Sequence[Edit] = (),
        grad: bool = False,
    ):
        self.model, self.network, self.tokenizer = model, model.network, model.tokenizer
        self._inputs, self.grad = inputs, grad
        self._input_checksums = _checksums(inputs)
        self._weights, self._autocast = Fingerprint(self.network), autocast_of(self.network)
        self.keep = frozenset([keep] if isinstance(keep, str) else keep)
        a = self.architecture
        asked = frozenset(select(sorted(self.keep - set(DERIVED)), a)) if self.keep else frozenset()
        resolved = resolve(edits, a)
        context = edit_context(inputs.real, None if inputs.source is None else inputs.source.real)
        check_reached(resolved, context)
        if clean_names := refers_to_clean(resolved):
            clean = Recording(model, inputs, clean_names)
            resolved = frozen(resolved, clean.values)
        self.functions: Functions = functions(resolved, context)
        self.edits = tuple(replace(edit) for edit in resolved)  # copies: the functions have values of their own
        self.passes: dict[str, ForwardPass] = {}
        self._kept: dict[str, Tensor] = {}
        with frozen_network(self.network, grad):
            self._run(asked)
        self._versions = {name: x._version for name, x in self._kept.items()} if self.grad else {}

    def _run(self, asked: frozenset[str]) -> None:
        """Run the forward pass, and keep the block inputs, the last block's output, and the requested tensors."""
        base = {name for name in names(self.architecture) if name.endswith(".resid_pre") or self._is_last(name)}
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
        self._kept = recorder.values
        if "logits" in asked:
            self._kept["logits"] = self._read_out()

    def _is_last(self, name: str) -> bool:
        """Whether this is the last stream of the decoder or the encoder."""
        part = self.architecture.encoder if name.startswith("encoder.") else self.architecture
        return part is not None and name.removeprefix("encoder.") == f"blocks.{part.n_layers - 1}.resid_post"

    @property
    def architecture(self) -> Architecture:
        return self.network.architecture

    @property
    def n_ids(self) -> int:
        return self.architecture.n_vocab

    # What must not have changed -------------------------------------------------------------

    @property
    def inputs(self) -> Inputs:
        if _checksums(self._inputs) != self._input_checksums:
            raise TraceError("the input of this trace was changed in place: trace again")
        return self._inputs

    def module(self, path: str) -> Any:
        """A module of the network, "" for all of it; TraceError where its weights, or autocast, are others by now."""
        if autocast_of(self.network) != self._autocast:
            enabled, dtype = self._autocast
            precision = f"under autocast to {str(dtype).removeprefix('torch.')}" if enabled else "without autocast"
            raise TraceError(f"this trace was made {precision}: look into it in the same way, or trace again here")
        self._check_weights(path)
        return self.network.get_submodule(path)

    def _check_weights(self, path: str) -> None:
        if name := self._weights.changed(path):
            raise TraceError(f"the weight {name} has changed since this trace was made: trace again")

    @contextmanager
    def _as_traced(self, path: str | None = None) -> Iterator[None]:
        """`frozen_network` with the trace's autocast and gradients; `path` is the module whose weights are needed."""
        if path is not None:
            self._check_weights(path)
        enabled, dtype = self._autocast
        device = self.network.embed.token.weight.device.type
        with frozen_network(self.network, self.grad), torch.autocast(device, dtype, enabled):
            yield

    # Tensors --------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: int) -> "BlockTensors": ...
    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    def __getitem__(self, key: str | int) -> "Tensor | BlockTensors":
        if isinstance(key, int):
            if not 0 <= key < self.architecture.n_layers:
                raise KeyError(f"block {key}: the architecture has {self.architecture.n_layers}, numbered from 0")
            return BlockTensors(self, f"blocks.{key}.")
        name = self.full_name(key)
        return self._read(name) if name in self._kept else self.tensors([name])[name]

    @property
    def values(self) -> dict[str, Tensor]:
        return {name: self._read(name) for name in self._kept}

    def _read(self, name: str) -> Tensor:
        """A kept tensor: a copy, or with gradients the one of the graph."""
        x = self._kept[name]
        if name in self._versions and x._version != self._versions[name]:
            raise TraceError(f"{name} of this trace was changed in place: trace again, and change a clone()")
        return x if self.grad else x.clone()

    def full_name(self, key: str) -> str:
        """The full name of the one tensor that `key` names. Raises KeyError with the reason where there is none."""
        if key in DERIVED or key in self._kept:
            return key
        chosen = select(key, self.architecture)
        if len(chosen) != 1:
            raise KeyError(f"{key!r} stands for {len(chosen)} tensors: tensors({key!r}) gives all of them by name")
        return chosen[0]

    def tensors(self, patterns: str | Sequence[str]) -> dict[str, Tensor]:
        """Every tensor that matches a pattern (`*` stands for anything), by full name, in the order of the table."""
        listed = [patterns] if isinstance(patterns, str) else list(patterns)
        derived = [name for name in listed if name in DERIVED]
        others = [name for name in listed if name not in DERIVED]
        chosen = select(others, self.architecture) if others else []
        missing = [name for name in chosen if name not in self._kept]
        recomputed = self._recompute(missing) if missing else {}
        return {name: recomputed[name] if name in recomputed else self._read(name) for name in chosen} | {
            name: getattr(self, name) for name in derived
        }

    def _recompute(self, missing: list[str]) -> dict[str, Tensor]:
        """Compute tensors that were not kept, from the kept input of their part of the pass."""
        if "logits" in missing:
            logits = self._kept["logits"] = self._read_out()
            if self.grad:
                self._versions["logits"] = logits._version
            missing = [name for name in missing if name != "logits"]
        if self.grad and missing:
            raise KeyError(
                f"{missing[0]} is not in the graph of this trace: trace with grad=True and keep=[{missing[0]!r}], or "
                "keep='*' for every tensor; for values without gradients, use this trace's detached()"
            )
        groups: dict[str, list[str]] = {}
        for name in missing:
            groups.setdefault(_segment(name), []).append(name)
        recomputed: dict[str, Tensor] = {}
        for segment, wanted in groups.items():
            recorder = Recorder(wanted, self.functions)
            with self._as_traced(segment):
                self._run_segment(segment, recorder)
            recomputed |= recorder.values
        return recomputed

    def _run_segment(self, segment: str, recorder: Recorder) -> None:
        """Run the embedding, one block or the final norm again on its own input."""
        prefix = "encoder." if segment.startswith("encoder.") else ""
        part, tap = self.passes[prefix], recorder.at("encoder") if prefix else recorder
        inner = segment.removeprefix(prefix)
        if inner == "embed":
            part.embed(tap)
        elif inner.startswith("blocks."):
            layer = int(inner.split(".")[1])
            name = f"{segment}.resid_pre"
            # the kept input has its edits already
            without = Recorder(recorder.keep, {n: f for n, f in recorder.edits.items() if n != name})
            without.values = recorder.values
            part.block(layer, self._kept[name], without.at("encoder") if prefix else without)
        else:
            part.normalise(self.stream(prefix), tap)

    def stream(self, prefix: str = "") -> Tensor:
        """The residual stream after the last block, before the final norm [b, n, m]; `prefix` is "" or "encoder."."""
        part = self.passes[prefix].part
        layers = part.architecture.n_layers
        if not layers:
            with self._as_traced(f"{prefix}embed"):
                return self.passes[prefix].embed(self._edits().at("encoder") if prefix else self._edits())
        return self._read(f"{prefix}blocks.{layers - 1}.resid_post")

    @property
    def read_out(self) -> Tensor:
        """The input of the unembedding: the stream after the final norm, where there is one [b, n, m]."""
        return self._final.clone()

    def logits_before_cap(self) -> Tensor:
        """The logits before `logit_cap` and before edits of the logits [b, n, v].

        Without a cap these are the logits, with their edits.
        """
        if not self.architecture.logit_cap:
            return self.logits
        with self._as_traced("unembed"):
            return self.network.unembed.before_cap(self._final)

    def _edits(self) -> Tap:
        return Recorder(edits=self.functions)

    def _read_out(self) -> Tensor:
        with self._as_traced("unembed"):
            return self._edits()("logits", self.network.unembed(self._final))

    def detached(self) -> Self:
        """The same recording outside the autograd graph, where tensors that were not kept can be recomputed."""
        if not self.grad:
            return self
        recording = copy.copy(self)
        recording.grad, recording._final = False, self._final.detach()
        recording._kept = {name: x.detach() for name, x in self._kept.items()}
        return recording

    @property
    def nbytes(self) -> int:
        """Bytes of the kept tensors."""
        return sum(x.nbytes for x in self._kept.values()) + self._final.nbytes

    # What follows from the logits -----------------------------------------------------------

    @property
    def logits(self) -> Tensor:
        """[b, n, v], of the token after each position; for a masked model, of the token at it."""
        return self["logits"]

    @property
    def probs(self) -> Tensor:
        """softmax(logits) [b, n, v]"""
        with self._as_traced():
            return self.logits.softmax(-1)

    @property
    def loss(self) -> Tensor:
        """-log P of each token after the first, nats [b, n - 1]; nan at padding and in a prefix, which is read both
        ways.

        Raises InputError for masked models, which have read the token that they predict.
        """
        if self.architecture.attention.mask == "bidirectional":
            raise InputError(
                "attention.mask = bidirectional: each position has read the next token, so this has no loss; "
                "hide a token with [MASK] and read its probs"
            )
        logits = self.logits[:, :-1].to(torch.promote_types(self.logits.dtype, torch.float32))
        loss = F.cross_entropy(logits.transpose(1, 2), self.ids[:, 1:], reduction="none")
        return loss.masked_fill(~self.inputs.predicted, torch.nan)

    def surprisal(self, unit: Literal["bits", "nats"] = "bits") -> Tensor:
        """-log P of each token after the first, given those before it [b, n - 1]; nan at padding and in a prefix."""
        if unit not in ("bits", "nats"):
            raise InputError(f"unit = {unit!r}: give bits or nats")
        return self.loss / math.log(2) if unit == "bits" else self.loss

    def top(self, pos: int = -1, k: int = 10, row: int = 0) -> list[tuple[str, float]]:
        """The k likeliest tokens at a position, as text, with their probabilities; -1 is the row's last token."""
        probs = self.probs[row, self.position(pos, row)]
        best = probs.topk(min(k, probs.numel()))
        return [(self.spell(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)]

    def __repr__(self) -> str:
        rows, width = self.ids.shape
        kind = type(self).__name__
        return f"{kind}({rows} x {width} tokens, {len(self._kept)} tensors kept, {len(self.edits)} edits)"


class BlockTensors:
    """The tensors of one block: `trace[5].attn.pattern`, `trace[5]["norm_1.scale"]`."""

    def __init__(self, recording: Recording, prefix: str):
        self._recording, self._prefix = recording, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._recording[self._prefix + name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full, a = self._prefix + name, self._recording.architecture
        inside = any(n.startswith(full + ".") for n in names(a))
        if inside and canonical(full, a) not in names(a):
            return BlockTensors(self._recording, full + ".")
        try:
            return self._recording[full]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None


def autocast_of(network: Transformer) -> tuple[bool, torch.dtype | None]:
    """Whether autocast is on here for the network's device, and to which dtype."""
    device = network.embed.token.weight.device.type
    enabled = torch.is_autocast_enabled(device)
    return enabled, torch.get_autocast_dtype(device) if enabled else None


def _checksums(inputs: Inputs) -> list[int]:
    tensors = [inputs.tokens, inputs.mask, inputs.segments]
    own = [0 if x is None else checksum(x) for x in tensors]
    return own if inputs.source is None else own + _checksums(inputs.source)


def _segment(name: str) -> str:
    """The part of a pass that computes a tensor: embed, blocks.i or final_norm, after "encoder." for an encoder's."""
    prefix = "encoder." if name.startswith("encoder.") else ""
    inner = name.removeprefix(prefix)
    if inner in TEMPLATES_BEFORE:
        return prefix + "embed"
    return prefix + (".".join(inner.split(".")[:2]) if inner.startswith("blocks.") else "final_norm")
