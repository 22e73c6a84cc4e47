"""Attribution: logits and scores as sums over the parts that the network wrote into the stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pellucid.lens.analysis.readout import Readout, about_the_readout, is_readout_edited, readout_of
from pellucid.lens.analysis.residual import (
    By,
    Decomposition,
    Frozen,
    check_by,
    decompose,
    frozen_norm,
    is_edited,
    module_of,
    part_architecture,
    parts_at,
    writes,
)
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, show
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model import Recorder
from pellucid.model.kernels import repeat_kv
from pellucid.model.norm import LayerNorm, ScaledNorm
from pellucid.tensor_names import AttentionPart, attention_scope, names

QueryOrKey = Literal["query", "key"]


@dataclass(frozen=True, repr=False)
class Attribution(PrintsAsTable):
    """A logit, or the difference of two, as a sum: `values` [part], one for each of `labels`.

    target     the token, or `one - other`
    tokens     the texts of the positions that labels such as `blocks.1.attn.head.3 <- 5` refer to; those of
               `blocks.1.cross.head.3 <- 5` refer to positions of the source, whose texts `source_tokens` has
    logit      the number that is split; `total` is the sum of the parts. Where `logit_cap` caps the logits this is
               the logit before the cap
    after_cap  the network's logit after the cap; None without one
    note       which functions were frozen besides the norms' scales (the activation of the bert readout), and
               the cap; "" where there are none
    source_tokens   the texts of the source's positions; empty without an encoder
    """

    target: str
    position: int
    tokens: list[str]
    labels: list[str]
    values: Tensor
    logit: float
    after_cap: float | None = None
    note: str = ""
    source_tokens: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        return float(self.values.sum())

    def top(self, k: int = 10) -> list[tuple[str, float]]:
        """The k parts of largest magnitude, in descending order."""
        order = self.values.abs().topk(min(k, len(self.labels))).indices.tolist()
        return [(self.labels[i], float(self.values[i])) for i in order]

    def printed(self) -> PrintedTable:
        """The parts, largest first."""
        rows = self.top(len(self.labels))
        heading = (
            f"logit of {self.target!r} at position {self.position}: {self.logit:.3f}, the sum of {len(rows):,} parts"
        )
        return PrintedTable(heading, ("part", "logits"), rows, ".top(k) has them, .show() is a page")

    def show(self, k: int = 24) -> Figure:
        """The k largest parts as a picture."""
        return show(self, k=k)

    def __getitem__(self, label: str) -> float:
        return float(self.values[self.labels.index(label)])


def attribute(
    t: Recording, token: str | int, vs: str | int | None = None, *, pos: int = -1, row: int = 0, by: By = "component"
) -> Attribution:
    """Direct logit attribution: the part of each write to the stream in a token's logit, or in the difference of two.

    by   component: embeddings, attention and MLP of each block; head: every head by itself; neuron: every neuron of
         the last hidden layers; expert: every expert of a mixture by itself; source: every head by the token that it
         read from. Biases are separate parts

    Uses the raw weights, with the norms' scales frozen at their values in the pass; the sum is exactly the logit
    (Elhage et al. 2021; Ferrando et al. 2024). Effects of a part through later blocks are not included.

    With logit_cap the sum is the logit before the cap. With readout = bert the activation f of its hidden layer is
    frozen at f(h) / h, the factor by which it multiplied its input h, like a norm at its scale. The parts are exact up
    to h; the change of f without one of them is not included.

    Raises InputError for texts that are not one token, and where an edit of z or of a head's result makes a head
    something else than a sum over source tokens.
    """
    check_by(t, by)
    t = t.detached()
    readout, position = readout_of(t), t.position(pos, row)
    one, other = t.token_id(token), None if vs is None else t.token_id(vs)

    def difference(of_tokens: Tensor) -> Tensor:
        """The entry of the token, or its difference to the other token's [v, ...] -> [...]."""
        return of_tokens[one] - (0 if other is None else of_tokens[other])

    at = slice(position, position + 1)
    logit = difference(t.logits_before_cap()[row, at].T)
    labels, values = split_logits(t, readout, difference, logit, row, at, by)
    after_cap = float(difference(t.logits[row, position])) if t.architecture.logit_cap else None
    target = t.spell(one) if other is None else f"{t.spell(one)} - {t.spell(other)}"
    fed, source = t.spelled(row), t.source_tokens[row] if t.inputs.source is not None else []
    note = about_the_readout(t)
    return Attribution(target, position, fed, labels, values[:, 0], float(logit), after_cap, note, source)


def split_logits(
    t: Recording, readout: Readout, combine: Callable[[Tensor], Tensor], logits: Tensor, row: int, at: slice, by: By
) -> tuple[list[str], Tensor]:
    """A combination of the logits at some positions of a row as a sum over parts: labels, and values [part, i].

    combine  takes that combination of the tokens, of W_U [v, m] or b_U [v]: one for all positions [...], or for each
    logits   the combination of the logits before the cap [i]
    """
    w = combine(readout.W_U).expand(*t.ids.shape, -1)
    final, read = frozen_norm(t, "final_norm"), readout.back(w)
    u = final.back(read)
    labels: list[str] = []
    values: list[Tensor] = []
    for write in writes(t):
        along = write.back(u)[row, at]
        for of_part, vectors in parts_at(t, write, by, row, at):
            labels += of_part
            values.append((vectors * along).sum(-1))
    biases = {} if final.bias is None else {"final_norm.bias": read @ final.bias}
    biases |= readout.biases(w)
    if readout.b_U is not None:
        biases["unembed.bias"] = combine(readout.b_U).expand(t.ids.shape)
    labels += biases
    values += [bias[row, at][None] for bias in biases.values()]
    if is_readout_edited(t):
        labels.append("readout (edited)")
        values.append((logits - torch.cat(values).sum(0))[None])
    return labels, torch.cat(values)


@dataclass(frozen=True, repr=False)
class Why(PrintsAsTable):
    """The scores of one query as a sum over the writes of earlier parts: `values` [part, key].

    keys       the positions that the query may read; `tokens` their texts
    scores     the head's scores [key], the sum of values over the parts; with score_cap, the scores before the cap
    after_cap  the head's scores [key] after the cap, including the bias by distance; None without a cap
    """

    layer: int
    head: int
    query: int
    side: str
    labels: list[str]
    keys: list[int]
    tokens: list[str]
    values: Tensor
    scores: Tensor
    after_cap: Tensor | None = None

    def printed(self) -> PrintedTable:
        """The parts of the score of the key with the highest score, largest first."""
        best = int(self.scores.argmax())
        rows = self.top(self.keys[best], len(self.labels))
        where = f"head {self.layer}.{self.head}, query {self.query}, key {self.keys[best]} ({self.tokens[best]!r})"
        heading = f"{where}: the highest score, {float(self.scores[best]):.3f}, by the parts that wrote the {self.side}"
        return PrintedTable(heading, ("part", "score"), rows, ".top(key, k) has them, .show() is a page")

    def show(self) -> Figure:
        """The parts of the scores as a picture."""
        return show(self)

    def top(self, key: int, k: int = 10) -> list[tuple[str, float]]:
        """The k parts of largest magnitude in the score of one key position."""
        column = self.values[:, self.keys.index(key)]
        order = column.abs().topk(min(k, len(self.labels))).indices.tolist()
        return [(self.labels[i], float(column[i])) for i in order]


def why(
    t: Recording,
    layer: int,
    head: int,
    query: int = -1,
    *,
    row: int = 0,
    side: Literal["key", "query", "pair"] = "key",
    by: Literal["component", "head"] = "component",
    part: AttentionPart = "attn",
) -> Why:
    """Why a head attends to its keys: its scores, split by the parts that wrote the keys or the query.

    side  key: each part's write at the keys, with the full query; query: each part's write at the query, with the full
          keys; pair: one part at the query with one at the keys, labelled `query part . key part`
    part  attn; cross, whose keys are the source's and are split by the encoder's parts; encoder, its own attention

    q and k are linear in the stream with the norms' scales frozen (and those of queries and keys, where they are
    normalised). The biases are one part, and the bias by distance of ALiBi is another. With attention.score_cap the
    scores are those before the cap, without the bias by distance. Raises InputError.
    """
    if side not in ("key", "query", "pair"):
        raise InputError(f"side = {side!r}: expected key, query or pair")
    if part not in ("attn", "cross", "encoder"):
        raise InputError(f"part = {part!r}: expected attn, cross or encoder")
    encoder = t.architecture.encoder
    if part != "attn" and (encoder is None or not encoder.n_layers):
        raise InputError(f"part = {part}: this architecture has no encoder with blocks, so leave part out")
    a = encoder if part == "encoder" and encoder is not None else t.architecture
    if not (0 <= layer < a.n_layers and 0 <= head < a.n_heads):
        raise InputError(f"layer {layer}, head {head}: there are {a.n_layers} of {a.n_heads}")
    scope, cap = attention_scope(part, layer), a.attention.score_cap
    position = t.position(query, row, f"{scope}.scores")
    computed = t[f"{scope}.scores"][row, head, position]
    keys = (computed > -torch.inf).nonzero().flatten()
    scores = _scores_before_cap(t, scope)[row, head, position] if cap else computed
    q_labels, q = _query_or_key_parts(t, scope, head, row, by, "query")
    k_labels, k = _query_or_key_parts(t, scope, head, row, by, "key")
    q, k, scale = q[:, position], k[:, keys], a.score_scale
    if side == "key":
        labels, values = k_labels, torch.einsum("pjd,d->pj", k, q.sum(0)) * scale
    elif side == "query":
        labels, values = q_labels, torch.einsum("pd,jd->pj", q, k.sum(0)) * scale
    else:
        labels = [f"{one} . {other}" for one in q_labels for other in k_labels]
        values = (torch.einsum("pd,rjd->prj", q, k) * scale).flatten(0, 1)
    rest = scores[keys] - values.sum(0)
    bias = None if cap else module_of(t, scope).mask.position_bias
    if bias is not None:
        far = bias.score_bias(keys.new_tensor([[position]]), keys)[head, 0].detach().to(rest.dtype)
        labels, values, rest = [*labels, "distance"], torch.cat([values, far[None]]), rest - far
    if is_edited(t, *_between_stream_and_scores(t, scope)):
        labels, values = [*labels, "edited"], torch.cat([values, rest[None]])
    read = t.ids if part == "attn" or t.inputs.source is None else t.inputs.source.tokens
    fed = [t.spell(int(read[row, j])) for j in keys]
    after_cap = computed[keys] if cap else None
    return Why(layer, head, position, side, labels, keys.tolist(), fed, values, scores[keys], after_cap)


def _between_stream_and_scores(t: Recording, scope: str) -> list[str]:
    """The tensors from the norm of the stream to the scores, whose edits the parts of the stream do not hold."""
    block, _, kind = scope.rpartition(".")
    own_norm = {"attn": "norm_1", "cross": "norm_cross"}[kind]
    norms = [] if part_architecture(t, scope).block == "post" else [f"{block}.{own_norm}"]
    norms += ["encoder.final_norm"] if kind == "cross" else []
    return [*norms, *(f"{scope}.{name}" for name in ("q", "k", "rot_q", "rot_k", "scores"))]


def _scores_before_cap(t: Recording, scope: str) -> Tensor:
    """scale q_i . k_j, with queries and keys after their norms and rotations [b, h, i, j]."""
    attention = module_of(t, scope)
    if f"{scope}.rot_q" in names(t.architecture):
        q, k = t[f"{scope}.rot_q"], t[f"{scope}.rot_k"]
    else:
        with frozen_network(t.network):
            q, k = attention.query_norm(t[f"{scope}.q"]), attention.key_norm(t[f"{scope}.k"])
    return torch.einsum("bhid,bhjd->bhij", q * part_architecture(t, scope).score_scale, repeat_kv(k, attention.group))


def _query_or_key_parts(
    t: Recording, scope: str, head: int, row: int, by: By, side: QueryOrKey
) -> tuple[list[str], Tensor]:
    """The queries or keys of one head as sums over the parts of the stream [part, pos, d], rotated by position."""
    attention, prefix = module_of(t, scope), "encoder." if scope.startswith("encoder.") else ""
    parts, norm = _attention_input(t, scope, by, side)
    linear = getattr(attention, side)
    number = head if side == "query" else head // attention.group
    span = slice(number * attention.d_head, (number + 1) * attention.d_head)
    W = linear.weight.detach()[span]
    vectors = norm(parts.values)[:, row] @ W.T
    bias = W.new_zeros(attention.d_head) if linear.bias is None else linear.bias.detach()[span]
    bias = bias if norm.bias is None else bias + norm.bias @ W.T
    vectors = torch.cat([vectors, bias.expand_as(vectors[:1])])
    inner = getattr(attention, f"{side}_norm")
    if isinstance(inner, ScaledNorm):
        frozen = frozen_head_norm(inner, t[f"{scope}.{side[0]}"][row : row + 1], number)
        vectors = frozen(vectors)
        if frozen.bias is not None:
            vectors[-1] = vectors[-1] + frozen.bias
    rotated = attention.rotary.rotate(vectors[:, None], t.passes[prefix].reading.rotation)[:, 0]
    return [*parts.labels, "bias"], rotated


def frozen_head_norm(norm: ScaledNorm, x: Tensor, head: int) -> Frozen:
    """The norm of one head's queries or keys x [1, head, pos, d], frozen at its scale [pos, 1]."""
    recorder = Recorder(["norm.scale"])
    with torch.no_grad():
        norm(x, recorder, "norm")
    scale, gain = recorder.values["norm.scale"][0], norm.multiplier.detach()
    gain = gain.reshape(-1, x.size(-1)) if gain.ndim else gain[None]
    bias = getattr(norm, "bias", None)
    # one for each head, or one that all heads share
    return Frozen(
        scale[head % len(scale)],
        gain[head % len(gain)],
        None if bias is None else bias.detach(),
        isinstance(norm, LayerNorm),
    )


def _attention_input(t: Recording, scope: str, by: By, side: QueryOrKey) -> tuple[Decomposition, Frozen]:
    """The stream from which queries or keys are computed, as a sum, and the norm before them."""
    block, _, kind = scope.rpartition(".")
    a = part_architecture(t, scope)
    post = a.block == "post"
    if kind == "cross" and side == "key":
        encoder = t.passes["encoder."].part
        parts = decompose(t, f"encoder.blocks.{len(encoder.blocks) - 1}.resid_post", by)
        return parts, frozen_norm(t, "encoder.final_norm")
    middle = "norm_1" if post and a.norm.kind != "none" else "resid_mid"
    point, name = ("resid_pre", "norm_1") if kind == "attn" else (middle, "norm_cross")
    norm = Frozen() if post else frozen_norm(t, f"{block}.{name}")
    return decompose(t, f"{block}.{point}", by), norm


def value_weighted(t: Recording, layer: int, scope: AttentionPart = "attn") -> Tensor:
    """A_ij |v_j W_O^T|: the size of what each head moves from j to i, not only its attention [b, h, i, j].

    Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3.
    """
    full = attention_scope(scope, layer)
    attention = module_of(t, full)
    W_O = attention.out.weight.detach().unflatten(1, (-1, attention.d_head))
    v = repeat_kv(t[f"{full}.v"], attention.group)
    size = torch.einsum("bhjd,mhd->bhjm", v, W_O).norm(dim=-1)
    return t[f"{full}.pattern"] * size[:, :, None]


def points_of_stream(t: Recording, mid: bool) -> list[str]:
    """The names of the stream after the embedding, after each attention (with `mid`), and after each block."""
    a, known = t.architecture, set(names(t.architecture))
    middle = "norm_1" if a.block == "post" and a.norm.kind != "none" else "resid_mid"
    points = ["blocks.0.resid_pre"] if a.n_layers else []
    for i in range(a.n_layers):
        if mid and f"blocks.{i}.{middle}" in known:
            points.append(f"blocks.{i}.{middle}")
        points.append(f"blocks.{i}.resid_post")
    return points
