"""The neural probabilistic language model: a context of fixed length, embedded, through one hidden layer."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional as F

from pellucid.model.shapes import LastLogits, Logits, Tokens
from pellucid.predictors.ngram import checked
from pellucid.predictors.options import PredictorOptions, check_at_least, plain_forward

#: inputs of one window when a text is scored
SCORED_WINDOW = 1024


@dataclass(frozen=True, kw_only=True)
class NeuralProbabilisticOptions(PredictorOptions):
    """y = b + W x + U tanh(d + H x),  x = (C(w_t), C(w_{t-1}), ..., C(w_{t-order+2}))

    Bengio et al. 2003, equation 1.
    y are the logits of w_{t+1}; positions before the beginning hold the separator. direct = none leaves out W x.
    documents = inside: tokens before the last separator of a context are replaced by the separator.
    """

    order: int = 6
    """one more than the tokens that a prediction reads"""
    d_embed: int = 64
    """width of a token's embedding C(w)"""
    d_hidden: int = 512
    """width of the hidden layer"""
    direct: Literal["none", "all"] = "none"
    """whether the embeddings also act on the logits directly, by W x"""
    documents: Literal["across", "inside"] = "across"

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 2, "order")
        check_at_least(self, 1, "d_embed", "d_hidden")

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.order - 1


class NeuralProbabilistic(nn.Module):
    """Modules by their letters in the paper: embed C, hidden (H, d), out (U, b), direct W.

    |V| (1 + n m + h) + h (1 + (n - 1) m) parameters with direct connections, n being the order, m d_embed and
    h d_hidden; (n - 1) m |V| fewer without.
    """

    def __init__(self, choices: NeuralProbabilisticOptions):
        super().__init__()
        self.choices = choices
        width = choices.reach * choices.d_embed
        self.embed = nn.Embedding(choices.n_vocab, choices.d_embed)
        self.hidden = nn.Linear(width, choices.d_hidden)
        self.out = nn.Linear(choices.d_hidden, choices.n_vocab)
        self.direct = nn.Linear(width, choices.n_vocab, bias=False) if choices.direct == "all" else ZeroLayer()

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.choices.reach

    def contexts(self, tokens: Tokens) -> Float[torch.Tensor, "batch pos reach"]:
        """The tokens that each position reads, the nearest first."""
        c = self.choices
        padded = F.pad(tokens, (c.reach - 1, 0), value=c.separator)
        context = padded.unfold(1, c.reach, 1).flip(-1)
        if c.documents == "inside":
            ended = (context == c.separator).cumsum(-1) > 0
            context = context.masked_fill(ended, c.separator)
        return context

    def forward(self, tokens: Tokens, *, mask: None = None, positions: None = None) -> Logits:
        """Logits of the token after each position. `mask` and `positions` must be None."""
        plain_forward(mask, positions)
        x = self.embed(self.contexts(tokens)).flatten(-2)
        return self.out(torch.tanh(self.hidden(x))) + self.direct(x)

    def last(self, tokens: Tokens) -> LastLogits:
        """`forward` at the last position alone, [batch, n_vocab]."""
        return self(tokens[:, -self.reach :])[:, -1]

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first given those before it, nats, float64 [len(ids) - 1]."""
        return window_log_probs(self, ids, self.choices.n_vocab, SCORED_WINDOW + self.reach - 1, SCORED_WINDOW)


class ZeroLayer(nn.Module):
    """Adds nothing."""

    def forward(self, x: torch.Tensor) -> float:
        return 0.0


@torch.inference_mode()
def window_log_probs(network: nn.Module, ids: np.ndarray, n_vocab: int, length: int, stride: int) -> np.ndarray:
    """log P of ids[1:], from windows of `length` inputs, `stride` apart; each scores the tokens not yet scored."""
    ids = checked(ids, n_vocab)
    device = next(network.parameters()).device
    out, training = np.empty(max(len(ids) - 1, 0)), network.training
    network.eval()
    done, begin = 0, 0
    while done < len(out):
        stop = min(begin + length, len(out))
        tokens = torch.from_numpy(ids[begin : stop + 1]).to(device)
        logits = network(tokens[None, :-1])[0, done - begin :]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = F.cross_entropy(wide, tokens[done - begin + 1 :], reduction="none")
        out[done:stop] = -losses.cpu().double().numpy()
        done, begin = stop, begin + stride
    network.train(training)
    return out


def initialise_predictor(network: nn.Module, seed: int) -> nn.Module:
    """Embeddings N(0, 1), matrices N(0, 1 / inputs), output matrices a hundredth of that, biases 0.

    So the logits are near 0 and the first loss is near log n_vocab. All numbers are drawn in float64 from `seed`.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            scale = 0.0 if p.ndim == 1 else 1.0 if name.startswith("embed") else p.size(1) ** -0.5
            p.copy_(drawn * (scale * 0.01 if name.startswith(("out", "direct")) else scale))
    return network
