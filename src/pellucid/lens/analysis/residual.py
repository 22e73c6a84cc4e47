"""The residual stream as an exact sum of its writes, with the norms' scales frozen.

Where a norm acts on the stream itself (post blocks, embed_norm), it is linear at its frozen scale: each part goes
through it, and its bias becomes another part. So does the projection of the embeddings' sum (embed_projection = sum).
What edits changed in the stream is a part too.
"""

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model.mlp import MixtureOfExperts
from pellucid.model.norm import Identity, LayerNorm
from pellucid.tensor_names import EMBEDDINGS, names

By = Literal["component", "head", "neuron", "expert", "source"]


def check_by(t: Recording, by: str) -> None:
    """Raise InputError for a split that does not exist, or that this network does not have."""
    if by not in typing.get_args(By):
        raise InputError(f"by = {by!r}: expected {', '.join(typing.get_args(By)[:-1])} or source")
    parts = [part for part in (t.architecture, t.architecture.encoder) if part is not None]
    n_experts = [part.mlp.experts for part in parts]
    if by == "expert" and not any(n_experts):
        raise InputError("by = 'expert' and mlp.experts = 0: there is one MLP in each block, so use by='component'")
    if by == "neuron" and any(n_experts):
        raise InputError(
            f"by = 'neuron' and mlp.experts = {max(n_experts)}: each expert has neurons, so use by='expert'"
        )


@dataclass(frozen=True)
class Frozen:
    """A norm with its scale frozen: y = c (gain (x - mean x) / scale + bias), which is affine in x.

    scale   [b, i, 1] as the trace has it; nothing is normalised where `gain` is None
    factor  c: residual_scale for a norm between a sublayer and the stream, which is there without a norm too
    """

    scale: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    centred: bool = False
    factor: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """A part [..., b, i, m] after the norm, without the bias."""
        x = x if self.factor == 1 else self.factor * x
        if self.gain is None or self.scale is None:
            return x
        return self.gain * (x - x.mean(-1, keepdim=True) if self.centred else x) / self.scale

    def at(self, row: int, at: slice) -> "Frozen":
        """The same norm at some positions of a row, for parts [..., i, m]."""
        return self if self.scale is None else replace(self, scale=self.scale[row, at])

    def back(self, u: Tensor) -> Tensor:
        """The direction before the norm that corresponds to u after it: the transposed map."""
        u = u if self.factor == 1 else self.factor * u
        if self.gain is None or self.scale is None:
            return u
        u = self.gain * u / self.scale
        return u - u.mean(-1, keepdim=True) if self.centred else u


def frozen_norm(t: Recording, name: str, path: str = "") -> Frozen:
    """The norm whose output is the tensor `name`, frozen at its scale in the trace; `path` where the module has another
    name.
    """
    norm = module_of(t, path or name)
    if isinstance(norm, Identity):
        return Frozen()
    bias = getattr(norm, "bias", None)
    detached = None if bias is None else bias.detach()
    return Frozen(t[f"{name}.scale"], norm.multiplier.detach(), detached, isinstance(norm, LayerNorm))


@dataclass(frozen=True)
class Projection:
    """y = x P^T, of the embeddings' sum."""

    P: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.P.T

    def at(self, row: int, at: slice) -> "Projection":
        """It is the same at every position."""
        return self

    def back(self, u: Tensor) -> Tensor:
        """The direction before the projection that corresponds to u after it."""
        return u @ self.P


@dataclass(frozen=True)
class Write:
    """One addition to the stream.

    name    of the tensor that was added: embed, blocks.3.attn_out, a norm's bias, or what an edit changed
    value   [b, i, m] as it was added
    norms   the norms of the stream that it goes through afterwards, in order, and the projection of the embeddings' sum
    """

    name: str
    value: Callable[[], Tensor]
    norms: list[Frozen | Projection] = field(default_factory=list)

    def at(self, row: int, at: slice) -> "Write":
        """The same write with its norms at some positions of a row, for parts [..., i, m]."""
        return replace(self, norms=[norm.at(row, at) for norm in self.norms])

    def arrived(self, x: Tensor) -> Tensor:
        """A part of this write [..., b, i, m] at the end of the stream."""
        for norm in self.norms:
            x = norm(x)
        return x

    def back(self, u: Tensor) -> Tensor:
        """The direction at this write that corresponds to u at the end of the stream."""
        for norm in reversed(self.norms):
            u = norm.back(u)
        return u


def writes(t: Recording, end: str | None = None, prefix: str = "") -> list[Write]:
    """All writes to the stream up to the tensor `end`, the last block's output unless given."""
    return _Writer(t, prefix).up_to(end)


class _Writer:
    """Follows the stream of a trace from the embedding on, in the order in which the blocks compute."""

    def __init__(self, t: Recording, prefix: str):
        self.t, self.prefix, self.found = t, prefix, []
        self.part = t.passes[prefix].part
        self.known = set(names(t.architecture))

    def up_to(self, end: str | None) -> list[Write]:
        for name, step in self.steps():
            step()
            if name is not None and name in self.known and is_edited(self.t, name):
                self.reconcile(name)
            if name == end and end is not None:
                return self.found
        if end is not None:
            raise InputError(
                f"{end} is not a point of the residual stream: expected blocks.i.resid_pre, .resid_mid, ..."
            )
        return self.found

    def steps(self) -> Iterator[tuple[str | None, Callable[[], None]]]:
        """The operations on the stream, each with the name of the stream after it."""
        p, part = self.prefix, self.part
        for name in EMBEDDINGS:
            if p + name in self.known:
                yield None, lambda name=name: self.write(p + name)
        yield f"{p}embed_norm", lambda: self.norm(f"{p}embed_norm", f"{p}embed.norm")
        if p + "embed_projected" in self.known:
            yield f"{p}embed_projected", lambda: self.project(f"{p}embed_projected")
        post, cross = part.architecture.block == "post", part.architecture.encoder is not None
        parallel = part.architecture.block in ("parallel", "shared")
        for i in range(len(part.blocks)):
            b = f"{p}blocks.{i}."
            yield f"{b}resid_pre", lambda: None
            yield f"{b}resid_mid" if not parallel else None, lambda b=b: self.write(f"{b}attn_out")
            if post:
                yield f"{b}norm_1", lambda b=b: self.norm(f"{b}norm_1")
            if cross:
                yield f"{b}resid_cross", lambda b=b: self.write(f"{b}cross_out")
            if cross and post:
                yield f"{b}norm_cross", lambda b=b: self.norm(f"{b}norm_cross")
            yield f"{b}resid_post" if not post else None, lambda b=b: self.write(f"{b}mlp_out")
            if post:
                yield f"{b}norm_2", lambda b=b: self.norm(f"{b}norm_2")
                yield f"{b}resid_post", lambda: None

    def write(self, name: str) -> None:
        self.found.append(Write(name, lambda: self.t[name]))

    def norm(self, name: str, path: str = "") -> None:
        norm = frozen_norm(self.t, name, path)
        if norm.gain is None:
            return
        for w in self.found:
            w.norms.append(norm)
        if norm.bias is not None:
            bias = norm.bias
            self.found.append(Write(f"{name}.bias", lambda: bias.expand_as(self.t[name])))

    def project(self, name: str) -> None:
        linear = module_of(self.t, f"{self.prefix}embed.projection")
        for w in self.found:
            w.norms.append(Projection(linear.weight.detach()))
        self.found.append(Write(f"{name}.bias", lambda: linear.bias.detach().expand_as(self.t[name])))

    def reconcile(self, name: str) -> None:
        """Add what edits changed in the stream at this point as a write."""
        here, parts = self.t[name], torch.stack([w.arrived(w.value()) for w in self.found])
        change = here - parts.sum(0)
        largest, rounding = max(here.abs().max(), parts.abs().max()), torch.finfo(here.dtype).eps * len(parts) ** 0.5
        if change.abs().max() > rounding * largest:
            self.found.append(Write(f"{name} (edited)", lambda: change))


def is_edited(t: Recording, *names: str) -> bool:
    """Whether an edit changes one of these tensors where it is computed: itself, or a norm's output before its gain."""
    return any(edit.name.removesuffix(".normalized") in names for edit in t.edits)


@dataclass(frozen=True, repr=False)
class Decomposition(PrintsAsTable):
    """The stream at one point as a sum: `values` [part, b, i, m], named one by one in `labels`.

    At one position it is [part, m].
    """

    point: str
    labels: list[str]
    values: Tensor

    def printed(self) -> PrintedTable:
        """The lengths of the parts at the last position of the first text, or at the one position, largest first."""
        vectors = self.values if self.values.dim() == 2 else self.values[:, 0, -1]
        rows = list(zip(self.labels, vectors.norm(dim=-1).tolist(), strict=True))
        rows.sort(key=lambda row: -row[1])
        return PrintedTable(f"{self.point} as a sum of {len(rows):,} parts", ("part", "length"), rows)

    @property
    def total(self) -> Tensor:
        """The stream itself [b, i, m], or [m] at one position."""
        return self.values.sum(0)

    def __getitem__(self, label: str) -> Tensor:
        return self.values[self.labels.index(label)]


def decompose(
    t: Recording, point: str | None = None, by: By = "component", *, pos: int | None = None, row: int = 0
) -> Decomposition:
    """The residual stream at a point as the exact sum of the writes before it.

    point  a tensor of the stream, such as blocks.3.resid_mid; the last one (before the final norm) unless given
    by     component: embeddings, attn_out and mlp_out of each block; head: each head's result and the output bias in
           attention's place; neuron: every neuron of the last hidden layers; expert: every expert's weighted output,
           and the shared one's, in the place of a mixture; source: every head by the token that it
           read
    pos    a single position of `row`, counted from either end: [part, m]. It is required by neuron and by source,
           whose parts are too many to store for every position

    The norms' scales are frozen at their values (Elhage et al. 2021). Raises InputError for other
    points, and where an edit of z or of a head's result makes a head something else than a sum over source tokens.
    """
    check_by(t, by)
    if pos is None and by in ("neuron", "source"):
        raise InputError(f"by = {by!r} has too many parts to store for every position: give one, such as pos=-1")
    end = None if point is None else t.full_name(point)
    prefix = "encoder." if end is not None and end.startswith("encoder.") else ""
    position = None if pos is None else t.position(pos, row, end or "logits")
    labels: list[str] = []
    values: list[Tensor] = []
    for write in writes(t, end, prefix):
        if position is None:
            parts = parts_of(t, write, by)
            labels += parts
            values += [write.arrived(part)[None] for part in parts.values()]
            continue
        at = slice(position, position + 1)
        for of_part, vectors in parts_at(t, write, by, row, at):
            labels += of_part
            values.append(write.at(row, at).arrived(vectors)[:, 0])
    return Decomposition(end or "the stream that is read out", labels, torch.cat(values))


NORM_OUT = {"attn_out": "norm_1_out", "mlp_out": "norm_2_out"}


def norm_out(t: Recording, name: str) -> Frozen:
    """The norm between a sublayer and the stream, for attn_out, cross_out or mlp_out, times residual_scale."""
    block, _, what = name.rpartition(".")
    norm = NORM_OUT.get(what)
    frozen = Frozen() if norm is None else frozen_norm(t, f"{block}.{norm}")
    c = part_architecture(t, name).residual_scale
    return frozen if c == 1 else replace(frozen, bias=None if frozen.bias is None else c * frozen.bias, factor=c)


def part_architecture(t: Recording, name: str) -> Architecture:
    """The architecture of the part that a name belongs to."""
    encoder = t.architecture.encoder
    return encoder if name.startswith("encoder.") and encoder is not None else t.architecture


def by_head(t: Recording, name: str) -> dict[str, Tensor] | None:
    """The heads' results, output bias and changes by edits, which sum to attn_out or cross_out; None for others."""
    if not name.endswith(("attn_out", "cross_out")):
        return None
    scope, norm = name.removesuffix("_out"), norm_out(t, name)
    result = norm(t[f"{scope}.result"].transpose(0, 1))
    parts = {f"{scope}.head.{h}": part for h, part in enumerate(result)}
    bias = module_of(t, scope).out.bias
    if bias is not None:
        parts[f"{scope}.bias"] = norm(bias.detach().expand_as(result[0]))
    if norm.bias is not None:
        parts[f"{name} (norm's bias)"] = norm.bias.expand_as(result[0])
    return parts | _rest(t, name, torch.stack(list(parts.values())).sum(0))


def by_expert(t: Recording, name: str) -> dict[str, Tensor] | None:
    """The experts' results, the shared one's and changes by edits, which sum to mlp_out; None for others.

    A result g_e m_e(x) is exactly 0 where a position does not use the expert.
    """
    if not name.endswith("mlp_out") or not isinstance(
        mixture := module_of(t, name.removesuffix("_out")), MixtureOfExperts
    ):
        return None
    scope, norm = name.removesuffix("_out"), norm_out(t, name)
    parts = {f"{scope}.expert.{e}": norm(t[f"{scope}.expert_{e}.result"]) for e in range(len(mixture.experts))}
    if mixture.shared is not None:
        parts[f"{scope}.shared"] = norm(t[f"{scope}.shared.result"])
    total = torch.stack(list(parts.values())).sum(0)
    if norm.bias is not None:
        parts[f"{name} (norm's bias)"] = norm.bias.expand_as(total)
        total = total + norm.bias
    return parts | _rest(t, name, total)


def _rest(t: Recording, name: str, total: Tensor) -> dict[str, Tensor]:
    """What edits of the sum itself changed."""
    return {f"{name} (edited)": t[name] - total} if edited_writes(t, name) else {}


def edited_writes(t: Recording, name: str) -> bool:
    """Whether an edit changed attn_out, cross_out or mlp_out after its parts were summed."""
    block, _, what = name.rpartition(".")
    norm = f"{block}.{NORM_OUT.get(what)}"
    return any(e.name == name or e.name.startswith(norm) for e in t.edits)


def module_of(t: Recording, path: str) -> Any:
    """The module of the network with this path."""
    return t.module(path)


def mlp_output_map(t: Recording, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """The activations of an MLP's last hidden layer [b, i, f], and W_out [m, f] and b_out, for the tensor mlp_out."""
    mlp = module_of(t, name.removesuffix("_out"))
    last = len(mlp.up) - 1
    names_ = (f"{name.removesuffix('_out')}.post", f"{name.removesuffix('_out')}.post.{last}")
    if last < 0:
        raise InputError("mlp.n_hidden = 0: an affine map has no neurons")
    post = t[names_[0] if last == 0 else names_[1]]
    bias = None if mlp.down.bias is None else mlp.down.bias.detach()
    return post, mlp.down.weight.detach(), bias


def parts_of(t: Recording, write: Write, by: By) -> dict[str, Tensor]:
    """One write by heads or experts, where it is theirs, and else as it is: parts [b, i, m] by label."""
    parts = {"head": by_head, "expert": by_expert}[by](t, write.name) if by in ("head", "expert") else None
    return parts or {write.name: write.value()}


def parts_at(t: Recording, write: Write, by: By, row: int, at: slice) -> Iterator[tuple[list[str], Tensor]]:
    """The parts of one write at some positions of a row: labels, and vectors for each [part, i, m].

    neuron   every neuron of the last hidden layer of an MLP, a_n W_out e_n (Geva et al. 2021)
    source   every head by the token that it read from, A_ij W_OV x_j (Becker-Kahn (3.6); Elhage et al. 2021)

    Biases and edits of the sum are separate parts. Raises InputError where an edit of z or of a head's result makes a
    head something else than a sum over source tokens.
    """
    name, scope = write.name, write.name.removesuffix("_out")
    if by == "source" and (of_heads := by_head(t, name)) is not None:
        for label, value in of_heads.items():
            _, is_head, head = label.rpartition(".head.")
            if is_head:
                vectors = norm_out(t, name).at(row, at)(_by_source(t, scope, int(head), row, at))
                yield [f"{label} <- {j}" for j in range(len(vectors))], vectors
            else:
                yield [label], value[row, at][None]
    elif by == "neuron" and name.endswith("mlp_out") and module_of(t, scope).up:
        post, W_out, bias = mlp_output_map(t, name)
        norm = norm_out(t, name).at(row, at)
        neurons = norm(post[row, at].T[..., None] * W_out.T[:, None])
        rest = write.value()[row, at] - neurons.sum(0)
        yield [f"{scope}.neuron.{k}" for k in range(len(neurons))], neurons
        biases = {f"{scope}.bias": None if bias is None else norm(bias), f"{name} (norm's bias)": norm.bias}
        for label, b in biases.items():
            if b is not None:
                yield [label], b.expand_as(rest)[None]
                rest = rest - b
        if edited_writes(t, name):
            yield [f"{name} (edited)"], rest[None]
    else:
        yield from (([label], part[row, at][None]) for label, part in parts_of(t, write, by).items())


def _by_source(t: Recording, scope: str, head: int, row: int, at: slice) -> Tensor:
    """A_ij v_j W_O^T for every j [j, i, m]"""
    if any(e.name in (f"{scope}.z", f"{scope}.result") for e in t.edits):
        raise InputError(f"{scope} has an edited z or result, which is not a sum over source tokens: use by='head'")
    attention = module_of(t, scope)
    W_O = attention.out.weight.detach().unflatten(1, (-1, attention.d_head))[:, head]
    v = t[f"{scope}.v"][row, head // attention.group]
    return t[f"{scope}.pattern"][row, head, at].T[..., None] * (v @ W_O.T)[:, None]
