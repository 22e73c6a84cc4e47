"""Tokens to vectors, and vectors back to logits."""

import torch
from torch import nn
from torch.nn import functional as F

from pellucid.architecture import Architecture
from pellucid.model.mlp import ACTIVATION
from pellucid.model.norm import Unchanged, make_norm
from pellucid.model.positions import ADDED
from pellucid.model.shapes import Logits, Places, Stream, Tokens
from pellucid.model.tap import OFF, Tap


class Embed(nn.Module):
    """x_i = c W_E[t_i] (+ position i) (+ W_S[s_i]), normalised where the architecture says so   (S0 (1.3), Rem. 1.2)"""

    def __init__(self, a: Architecture):
        super().__init__()
        self.token = nn.Embedding(a.n_vocab, a.d_model)
        self.position = ADDED[a.positions.kind](a) if a.positions.kind in ADDED else None
        self.segment = nn.Embedding(a.n_segments, a.d_model) if a.n_segments else None
        self.norm = make_norm(a) if a.embed_norm == "norm" else Unchanged()
        self.scale = a.d_model**0.5 if a.embed_scale == "sqrt(d_model)" else 1.0
        self.dropout = nn.Dropout(a.dropout.embed)

    def forward(
        self, tokens: Tokens, positions: Places, segments: Tokens | None, embeddings: Stream | None, tap: Tap = OFF
    ) -> Stream:
        """`embeddings`, one vector a position, take the place of W_E[t]; without `segments` all are of kind 0."""
        x = tap("embed", self.scale * (self.token(tokens) if embeddings is None else embeddings))
        if self.position is not None:
            x = x + tap("pos_embed", self.position(positions).to(x.dtype).expand_as(x))
        if self.segment is not None:
            x = x + tap("seg_embed", self.segment(torch.zeros_like(tokens) if segments is None else segments))
        return self.dropout(self.norm(x, tap, "embed_norm"))


class Unembed(nn.Module):
    """logits = x W_U^T   (S0 (1.5))"""

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__()
        untied = a.unembed == "untied"
        self.weight = nn.Parameter(torch.empty(a.n_vocab, a.d_model)) if untied else embed.token.weight

    def forward(self, x: Stream) -> Logits:
        return F.linear(x, self.weight)


class BertReadout(Unembed):
    """logits = norm(f(x W^T + b)) W_U^T + b_U   (Devlin et al. 2018)"""

    def __init__(self, a: Architecture, embed: Embed):
        super().__init__(a, embed)
        self.dense = nn.Linear(a.d_model, a.d_model)
        self.f = ACTIVATION[a.mlp.activation]
        self.norm = make_norm(a)
        self.bias = nn.Parameter(torch.zeros(a.n_vocab))

    def forward(self, x: Stream) -> Logits:
        return F.linear(self.norm(self.f(self.dense(x))), self.weight, self.bias)


READOUT = {"linear": Unembed, "bert": BertReadout}
