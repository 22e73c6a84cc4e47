"""Scores of attention heads: attention to the previous token, to duplicates, to what followed them; and the attended
token's rank in what they write.

Repeated random tokens can be predicted only by their repetition (Olsson et al. 2022, section "Argument 1"). A text
shows what the heads do on that text.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast, get_args

import torch
from torch import Tensor

from pellucid.lens.core.inputs import InputError, InputOptions, Inputs, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, show
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable, cell_text
from pellucid.tensor_names import AttentionPart, attention_scope
from pellucid.text_model import Model

HeadScore = Literal["previous", "duplicate", "first", "induction", "attended_rank", "entropy"]
#: the scores of the table, in its order
HEAD_SCORES: tuple[HeadScore, ...] = ("previous", "duplicate", "first", "induction", "attended_rank")

#: the scores that are shares of attention
SHARES: tuple[HeadScore, ...] = ("previous", "duplicate", "first", "induction")


@dataclass(frozen=True, repr=False)
class Heads(PrintsAsTable):
    """A score for each head, `scores[kind]` [layer, head]; nan where no query of the text has such a key.

    previous   attention from a token to the one before it
    duplicate  attention from a token to its earlier occurrences
    first      attention to the first token of the text
    induction  attention from a token to the tokens that followed its earlier occurrences
    attended_rank   rank of the attended token in the logits that the head writes for it on this text, weighted by
               attention: 1 if it is always first, 0 if it is anywhere, -1 if it is always last. `Circuits.copying` is
               another number, of the weights alone
    entropy    -sum_j A_ij log2 A_ij of a query's attention to its keys, averaged over the queries; only where it is
               asked for.

    The first four are shares of attention between 0 and 1, averaged over the queries that have such a key.
    """

    text: str
    scores: dict[str, Tensor]

    def best(self, kind: str) -> tuple[int, int]:
        """The head (layer, head) with the highest score of a kind. Raises InputError where no head has one."""
        self._check(kind)
        if self.scores[kind].isnan().all():
            raise InputError(
                f"no head has the score {kind!r}: no query of the text has such a key; give one that is longer "
                "or repeats its tokens, or no text"
            )
        scores = self.scores[kind].nan_to_num(-torch.inf)
        layer, head = divmod(int(scores.argmax()), scores.size(1))
        return layer, head

    def table(self, by: str | None = None) -> list[dict[str, Any]]:
        """A row for each head, with layer, head and its scores; in order of the heads, or of a kind, highest first."""
        if by is not None:
            self._check(by)
        n_layers, n_heads = next(iter(self.scores.values())).shape
        rows = [
            {"layer": l, "head": h} | {kind: float(x[l, h]) for kind, x in self.scores.items()}
            for l in range(n_layers)
            for h in range(n_heads)
        ]
        return rows if by is None else sorted(rows, key=lambda r: -r[by] if r[by] == r[by] else torch.inf)

    def printed(self) -> PrintedTable:
        """The heads, those with the largest share of attention in any score first."""

        def largest(row: dict[str, Any]) -> float:
            return max((x for x in (row.get(kind, math.nan) for kind in SHARES) if x == x), default=-math.inf)

        rows = sorted(self.table(), key=largest, reverse=True)
        cells = [(f"{row['layer']}.{row['head']}", *(row[kind] for kind in self.scores)) for row in rows]
        text = cell_text(self.text if len(self.text) <= 60 else self.text[:57] + "...")
        heading = f"scores of heads (layer.head) on {text}"
        return PrintedTable(heading, ("head", *self.scores), cells, ".table(by) has all rows, .show() is a page")

    def show(self) -> Figure:
        """The table as a page of HTML, which can be sorted by any kind."""
        return show(self)

    def _check(self, kind: str) -> None:
        if kind not in self.scores:
            raise InputError(f"kind = {kind!r}: choose one of {', '.join(self.scores)}")


def detect_heads(
    model: Model,
    text: Texts | None = None,
    *,
    rows: int | None = None,
    period: int | None = None,
    seed: int | None = None,
    kinds: HeadScore | Sequence[HeadScore] = HEAD_SCORES,
    **options: Unpack[InputOptions],
) -> Heads:
    """Score every head on `rows` sequences of random tokens, each repeated once after `period` tokens, or on a text.

    text    a text, texts or ids, in place of the random tokens
    rows    4 unless given
    period  half the context, at most 32, unless given; the tokens of a period differ where the vocabulary is large
            enough
    seed    of the random tokens, 0 unless given
    kinds   the scores to compute, one or several; attended_rank takes by far the longest, a product with the vocabulary
            for each head
    bos     True: the random tokens come after what the tokenizer puts before a text, or after the separator
            (`Tokenizer.opening`); for a text, and with the other options, as in `read_inputs`

    Raises InputError for periods that do not fit, for encoder-decoders without a text and its source, and for options
    that would be ignored: rows, period and seed with a text, all but bos without one.
    """
    if text is not None:
        of_random = {"rows": rows, "period": period, "seed": seed}
        if ignored := [name for name, value in of_random.items() if value is not None]:
            raise InputError(f"{ignored[0]} is for random tokens, but a text was given: leave {ignored[0]} or text out")
        shown = text if isinstance(text, str) else "texts"
        return head_scores(Recording(model, read_inputs(model, text, **options)), shown, kinds)
    a, tokenizer = model.architecture, model.tokenizer
    if a.encoder is not None:
        raise InputError("an encoder-decoder needs a text and a source: give text=... and source=...")
    if ignored := [name for name, value in options.items() if value is not None and name != "bos"]:
        raise InputError(f"{ignored[0]} is for a text, but none was given: give text=..., or leave {ignored[0]} out")
    lead = tokenizer.opening if options.get("bos") else []
    n = _fitting_period(a.n_ctx, len(lead), period)
    if rows is not None and rows < 1:
        raise InputError(f"rows = {rows}: expected 1 or more sequences of random tokens")
    n_tokens = min(a.n_vocab, tokenizer.n_vocab)
    tokens = repeated_tokens(n_tokens, 4 if rows is None else rows, n, 0 if seed is None else seed)
    tokens = torch.cat([torch.tensor(lead, dtype=torch.long).expand(len(tokens), -1), tokens], 1)
    inputs = Inputs(tokens.to(model.network.embed.token.weight.device), (tokens.size(1),) * len(tokens))
    shown = f"{n} random tokens, twice" + (", after the tokenizer's opening" if lead else "")
    return head_scores(Recording(model, inputs), shown, kinds)


def _fitting_period(n_ctx: int, n_lead: int, period: int | None) -> int:
    """The period, of which two fit behind n_lead tokens. Raises InputError for one that does not fit."""
    room = n_ctx - n_lead
    n = min(room // 2, 32) if period is None else period
    if not 1 <= n <= room // 2:
        behind = f", {n_lead} of which bos=True takes" if n_lead else ""
        raise InputError(f"period = {n}: expected two periods to fit into the context of {n_ctx}{behind}")
    return n


def repeated_tokens(n_vocab: int, rows: int, period: int, seed: int) -> Tensor:
    """Random tokens [rows, 2 period], whose second half repeats the first; a period repeats no token where possible."""
    generator = torch.Generator().manual_seed(seed)
    if period <= n_vocab:
        once = torch.stack([torch.randperm(n_vocab, generator=generator)[:period] for _ in range(rows)])
    else:
        once = torch.randint(0, n_vocab, (rows, period), generator=generator)
    return torch.cat([once, once], 1)


def head_scores(
    t: Recording,
    text: str = "",
    kinds: HeadScore | Sequence[HeadScore] = HEAD_SCORES,
    part: AttentionPart = "attn",
) -> Heads:
    """The scores of every head on the tokens of a trace.

    part   attn: self-attention; cross: attention to an encoder's output, which has an entropy alone; encoder: the
           encoder's own attention, which has no attended_rank

    Raises InputError for kinds that a part does not have, for no kind, and where there are no heads.
    """
    kinds = [cast(HeadScore, kinds)] if isinstance(kinds, str) else kinds
    if not kinds:
        raise InputError(f"kinds = {kinds}: give one or more of {', '.join(get_args(HeadScore))}")
    rows = [scores for _, scores in scores_by_layer(t, kinds, part)]
    return Heads(text, {kind: torch.stack([row[kind] for row in rows]) for kind in kinds})


def scores_by_layer(
    t: Recording, kinds: Sequence[HeadScore] = HEAD_SCORES, part: AttentionPart = "attn", row: int | None = None
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Layer by layer, the pattern [b, h, i, j] and the scores of its heads [head] by kind (`head_scores`), of all texts
    or of one `row`.
    """
    own = t.architecture if part != "encoder" else t.architecture.encoder
    if own is None or (part == "cross" and t.architecture.encoder is None):
        raise InputError(f"part = {part}: this architecture has no encoder, so leave part out")
    if not own.n_layers:
        raise InputError("n_layers = 0: there are no heads")
    every = get_args(HeadScore)
    possible = {"attn": every, "cross": ("entropy",), "encoder": tuple(k for k in every if k != "attended_rank")}[part]
    if wrong := [kind for kind in kinds if kind not in possible]:
        raise InputError(f"kinds: part = {part} has no score {wrong[0]!r}; choose from {', '.join(possible)}")
    inputs = t.inputs if part != "encoder" or t.inputs.source is None else t.inputs.source
    texts = slice(None) if row is None else slice(row, row + 1)
    ids, real = inputs.tokens[texts], inputs.real[texts]
    keys = {} if part == "cross" else target_keys(ids, real)
    for layer in range(own.n_layers):
        name, scores = attention_scope(part, layer), {}
        tensors = t.tensors([f"{name}.pattern", *([f"{name}.v"] if "attended_rank" in kinds else [])])
        pattern = tensors[f"{name}.pattern"][texts]
        for kind in kinds:
            if kind == "attended_rank":
                scores[kind] = _attended_rank(t, layer, pattern, tensors[f"{name}.v"][texts], ids, real)
            elif kind == "entropy":
                scores[kind] = _entropy(pattern, real)
            else:
                scores[kind] = share(pattern, keys[kind])
        yield pattern, scores


def _entropy(pattern: Tensor, real: Tensor) -> Tensor:
    """-sum_j A_ij log2 A_ij, averaged over the queries [head]."""
    rows = -torch.special.xlogy(pattern, pattern).sum(-1) / math.log(2)  # [b, h, i]
    return rows.transpose(0, 1)[:, real].mean(-1)


def target_keys(ids: Tensor, real: Tensor) -> dict[str, Tensor]:
    """The keys [b, i, j] that heads of each kind attend to, in tokens [b, n]; `real` is False at padding."""
    position = torch.arange(ids.size(1), device=ids.device)
    earlier = (position < position[:, None]) & real[:, :, None]
    same = (ids[:, :, None] == ids[:, None, :]) & earlier
    followed = torch.zeros_like(same)
    followed[:, :, 1:] = same[:, :, :-1]  # the key after an earlier occurrence, which may be the query itself
    return {
        "previous": (position == position[:, None] - 1) & real[:, :, None],
        "duplicate": same,
        "first": (position == 0) & earlier,
        "induction": followed,
    }


def share(pattern: Tensor, keys: Tensor) -> Tensor:
    """The attention to these keys [b, i, j], averaged over the queries that have one [head]."""
    occasions = keys.any(-1)
    if not occasions.any():
        return pattern.new_full((pattern.size(1),), torch.nan)
    # a product and its sum in one, without a copy of all patterns
    on_them = torch.einsum("bhij,bij->bhi", pattern, keys.to(pattern.dtype))
    return on_them.transpose(0, 1)[:, occasions].mean(-1)


def _attended_rank(t: Recording, layer: int, pattern: Tensor, v: Tensor, ids: Tensor, real: Tensor) -> Tensor:
    """2 r - 1, r being the share of the vocabulary with lower logits than the attended token in the head's output."""
    attention, unembed = t.module(f"blocks.{layer}.attn"), t.module("unembed")
    W_O = attention.out.weight.detach().unflatten(1, (-1, attention.d_head))
    gain = getattr(t.module("final_norm"), "multiplier", None)
    W_U = unembed.matrix.detach()
    if t.architecture.readout == "bert" and t.architecture.d_embed:  # rows of another width: through the dense layer
        W_U = W_U @ unembed.dense.weight.detach()
    W_U = W_U if gain is None else W_U * gain.detach()
    weight = (pattern * real[:, None, :, None]).sum(2)  # [b, h, j]
    scores = []
    for h in range(pattern.size(1)):
        written = v[:, h // attention.group] @ W_O[:, h].T
        if t.architecture.norm.kind == "layer":
            written = written - written.mean(-1, keepdim=True)
        logits = written @ W_U.T  # [b, j, v]
        own = logits.gather(-1, ids[..., None])
        above = (logits < own).to(logits.dtype).mean(-1) + 0.5 * (logits == own).to(logits.dtype).mean(-1)
        scores.append(((2 * above - 1) * weight[:, h]).sum() / weight[:, h].sum())
    return torch.stack(scores)
