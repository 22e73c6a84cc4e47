"""Recurrent predictors, which keep all that came before a token in one vector."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from pellucid.model.shapes import LastLogits, Logits, Tokens
from pellucid.predictors.neural import window_log_probs
from pellucid.predictors.options import PredictorOptions, check_at_least, plain_forward


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(PredictorOptions):
    """y_i = c + V h_i, the logits of the token after i, with x_i = C(w_i) and h_{-1} = 0.

    elman  h_i = tanh(U x_i + W h_{i-1} + b)                                     (Elman 1990)
    gru    h_i = (1 - z) * n + z * h_{i-1},  n = tanh(U_n x_i + b_n + r * (W_n h_{i-1} + a_n)),
           r, z = 1 / (1 + exp(-(U x_i + W h_{i-1} + b))) with weights of their own   (Cho et al. 2014, as in PyTorch)

    It is trained on windows of n_ctx tokens, and scores a text in windows of that length, each from a new state.
    """

    cell: Literal["gru", "elman"] = "gru"
    """the recurrence, as in the table above"""
    d_embed: int = 128
    """width of a token's embedding C(w)"""
    d_hidden: int = 256
    """width of the state h"""
    n_ctx: int = 128
    """length of the windows that it is trained in"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "d_embed", "d_hidden", "n_ctx")


class Recurrent(nn.Module):
    """embed C, cell (U, W and biases, as torch.nn.RNN and torch.nn.GRU keep them), out (V, c)."""

    def __init__(self, choices: RecurrentOptions):
        super().__init__()
        self.choices = choices
        self.embed = nn.Embedding(choices.n_vocab, choices.d_embed)
        make = nn.GRU if choices.cell == "gru" else nn.RNN
        self.cell = make(choices.d_embed, choices.d_hidden, batch_first=True)
        self.out = nn.Linear(choices.d_hidden, choices.n_vocab)

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.choices.n_ctx

    def forward(self, tokens: Tokens, *, mask: None = None, positions: None = None) -> Logits:
        """Logits of the token after each position. `mask` and `positions` must be None."""
        plain_forward(mask, positions)
        states, _ = self.cell(self.embed(tokens))
        return self.out(states)

    def last(self, tokens: Tokens) -> LastLogits:
        """`forward` at the last position alone, [batch, n_vocab]."""
        states, _ = self.cell(self.embed(tokens))
        return self.out(states[:, -1])

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first given those before it in its window, nats, float64 [len(ids) - 1].

        Windows of n_ctx inputs begin n_ctx // 2 apart, so after the first window each token has at least n_ctx // 2
        tokens of context.
        """
        length = self.choices.n_ctx
        return window_log_probs(self, ids, self.choices.n_vocab, length, max(length // 2, 1))
