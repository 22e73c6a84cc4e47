"""Tokens to vectors, and vectors back to logits."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.dropout import SampledDropout
from pellucid.model.mlp import ACTIVATION
from pellucid.model.norm import Identity, make_norm
from pellucid.model.positions import make_position_embedding
from pellucid.model.shapes import Embeddings, History, Logits, PositionIds, Stream, Tokens
from pellucid.model.tap import OFF, Tap

#: the base and the modulus of the polynomial whose value is an n-gram's row
PRIME, MODULUS = 1_000_003, 2**31 - 1


class NGrams(nn.Module):
    """sum_n W_n[r_n(t_{i-n+1} ... t_i)]: a vector for the last n tokens, for each n   (Huang et al. 2025)

    The rows are hashed: n-grams may share one. Their path to the readout alone is an n-gram model.
    """

    def __init__(self, a: Architecture):
        super().__init__()
        self.tables = nn.ModuleDict({str(n): nn.Embedding(a.ngram_rows, a.embed_sum_width) for n in a.ngrams})
        self.rows = a.ngram_rows

    def forward(self, history: History, positions: PositionIds) -> Stream:
        """The vectors of the last positions of `history`, as many as `positions` has."""
        total = torch.zeros((), device=history.device)
        for name, rows, known in rows_of_ngrams(history, positions, self.tables.keys(), self.rows):
            total = total + self.tables[name](rows) * known.unsqueeze(-1)
        return total


def rows_of_ngrams(
    history: History, positions: PositionIds, orders: Collection[str], n_rows: int
) -> list[tuple[str, Tensor, Tensor]]:
    """For each n of `orders` the rows of the last positions' n-grams, and whether there are n tokens so far."""
    longest, n_new = max(map(int, orders)), positions.size(-1)
    tokens = F.pad(history + 1, (longest - 1, 0))[:, -n_new - longest + 1 :]
    row, rows = torch.zeros_like(tokens[:, :n_new]), []
    for k in range(longest):
        back = tokens[:, longest - 1 - k :][:, :n_new]
        row = (row + back * pow(PRIME, k, MODULUS)) % MODULUS
        if str(k + 1) in orders:
            rows.append((str(k + 1), row % n_rows, (positions >= k) & (back > 0)))
    return rows


class Embed(nn.Module):
    """x_i = c P W_E[t_i] (+ position i) (+ W_S[s_i]) (+ n-grams), normalised where wanted   (Becker-Kahn (1.3))

    P is the identity unless the rows of W_E have a width of their own, d_embed   (Lan et al. 2019, section 3.1).
    """

    #: whether P has a bias
    has_bias = False

    def __init__(self, a: Architecture):
        super().__init__()
        self.token = nn.Embedding(a.n_vocab, a.embed_width)
        self.projection = nn.Linear(a.d_embed, a.d_model, bias=self.has_bias) if a.d_embed else Identity()
        self.position = make_position_embedding(a)
        self.segment = nn.Embedding(a.n_segments, a.embed_sum_width) if a.n_segments else None
        self.ngrams = NGrams(a) if a.ngrams else None
        self.norm = make_norm(a, a.embed_sum_width) if a.embed_norm == "norm" else Identity()
        self.scale = a.embed_factor
        self.dropout = SampledDropout(a.dropout.embed)

    def forward(
        self,
        tokens: Tokens,
        history: History,
        positions: PositionIds,
        segments: Tokens | None,
        embeddings: Embeddings | None,
        tap: Tap = OFF,
    ) -> Stream:
        """`history` ends in `tokens`, behind what a cache has read; `embeddings`, one vector a position, take the
        place of W_E[t]; without `segments` all are of kind 0."""
        x = tap("embed", self.scale * self.widen(self.token(tokens) if embeddings is None else embeddings))
        if self.position is not None:
            x = x + tap("pos_embed", self.position.added(positions).to(x.dtype).expand_as(x))
        if self.segment is not None:
            x = x + tap("seg_embed", self.segment(torch.zeros_like(tokens) if segments is None else segments))
        if self.ngrams is not None:
            x = x + tap("ngram_embed", self.ngrams(history, positions))
        return self.project(self.dropout(self.norm(x, tap, "embed_norm")), tap)

    def widen(self, rows: Embeddings) -> Tensor:
        """The rows of W_E in the width of the sum."""
        return self.projection(rows)

    def project(self, y: Tensor, tap: Tap) -> Stream:
        """The sum in the width of the stream."""
        return y

    @property
    def matrix(self) -> Tensor:
        """W_E P^T [n_vocab, d_model]: what each token adds to the stream, before the factor c."""
        weight = self.token.weight
        return F.linear(weight, self.projection.weight) if isinstance(self.projection, nn.Linear) else weight


class ProjectedSum(Embed):
    """x_i = y_i P^T + b_P,  y_i = c W_E[t_i] (+ position i) (+ W_S[s_i]) (+ n-grams), normalised where wanted

    All that is summed is d_embed wide   (Clark et al. 2020, ELECTRA, their code for small models).
    """

    has_bias = True

    def widen(self, rows: Embeddings) -> Tensor:
        return rows

    def project(self, y: Tensor, tap: Tap) -> Stream:
        return tap("embed_projected", self.projection(y))


EMBED = {"tokens": Embed, "sum": ProjectedSum}


class SoftCap(nn.Module):
    """c tanh(x / c)   (Gemma Team 2024, Gemma 2)"""

    def __init__(self, c: float):
        super().__init__()
        self.c = c

    def forward(self, x: Logits) -> Logits:
        return self.c * (x / self.c).tanh()


class Unembed(nn.Module):
    """logits = c x Q^T W_U^T with c = logit_scale, capped where the architecture says so   (Becker-Kahn (1.5))

    Q is the identity unless the rows of W_U have a width of their own, d_embed.
    """

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__()
        untied = a.unembed == "untied"
        self.weight = nn.Parameter(torch.empty(a.n_vocab, a.embed_width)) if untied else embed.token.weight
        self.projection = self.make_projection(a)
        self.scale = a.unembed_scale
        self.cap = SoftCap(a.logit_cap) if a.logit_cap else Identity()

    def make_projection(self, a: Architecture) -> nn.Module:
        """Q"""
        return nn.Linear(a.d_model, a.d_embed, bias=False) if a.d_embed else Identity()

    def forward(self, x: Stream) -> Logits:
        return self.cap(self.before_cap(x))

    def before_cap(self, x: Stream) -> Logits:
        """The logits, if nothing capped them."""
        return F.linear(self.scale * self.projection(x), self.weight)

    @property
    def matrix(self) -> Tensor:
        """W_U Q [n_vocab, d_model], without the factor c."""
        return self.weight @ self.projection.weight if isinstance(self.projection, nn.Linear) else self.weight


class AffineUnembed(Unembed):
    """logits = c x W_U^T + b_U"""

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__(a, embed)
        self.bias = nn.Parameter(torch.zeros(a.n_vocab))

    def before_cap(self, x: Stream) -> Logits:
        return F.linear(self.scale * self.projection(x), self.weight, self.bias)


class BertReadout(Unembed):
    """logits = c norm(f(x W^T + b)) W_U^T + b_U, with the biases of readout_bias   (Devlin et al. 2018)"""

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__(a, embed)
        self.dense = nn.Linear(a.d_model, a.embed_width, bias=a.readout_bias in ("all", "dense"))
        self.f = ACTIVATION[a.mlp.activation]
        self.norm = make_norm(a, a.embed_width)
        self.bias = nn.Parameter(torch.zeros(a.n_vocab)) if a.readout_bias in ("all", "logits") else None

    def make_projection(self, a: Architecture) -> nn.Module:
        """The dense layer gives the width of the rows of W_U: there is no Q."""
        return Identity()

    def before_cap(self, x: Stream) -> Logits:
        return F.linear(self.scale * self.norm(self.f(self.dense(x))), self.weight, self.bias)


class ReadoutError(ValueError):
    """Logits were asked of an architecture that has none."""


class NoReadout(nn.Module):
    """The stream is the result: whoever asks for logits, or for W_U, is told why there are none."""

    why = (
        "readout = none: this model ends in hidden states and has no readout, so it gives no token a probability; its "
        "hidden states and traces can be asked for, and a model with a language-model head gives probabilities"
    )

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__()

    @property
    def weight(self) -> nn.Parameter:
        raise ReadoutError(self.why)

    @property
    def matrix(self) -> Tensor:
        raise ReadoutError(self.why)

    def forward(self, x: Stream) -> Logits:
        raise ReadoutError(self.why)


READOUT = {"none": NoReadout, "linear": Unembed, "affine": AffineUnembed, "bert": BertReadout}
