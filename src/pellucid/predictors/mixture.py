"""An n-gram predictor with the interface of a network, and the mixture of any network with one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.json_shapes import COUNT, POSITIVE, Fields, Scalar
from pellucid.model.float64 import WITHOUT_FLOAT64, in_float64
from pellucid.model.shapes import LastLogits, Logits, Tokens
from pellucid.predictors.ngram import NGram
from pellucid.predictors.options import PredictorError, plain_forward

#: mixture.json of a run: the share of the network, and the step whose network it was fitted with
FITTED = Fields(
    {
        "weight": Scalar("a share from 0 to 1", lambda value: POSITIVE.holds(value) and value <= 1),
        "step": COUNT,
    },
    needed=("weight", "step"),
)


class Counted(nn.Module):
    """An n-gram predictor with a network's interface: its logits are log-probabilities, float64."""

    def __init__(self, ngram: NGram):
        super().__init__()
        self.ngram = ngram
        self.choices = ngram.choices

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.ngram.reach

    def forward(self, tokens: Tokens, *, mask: None = None, positions: None = None) -> Logits:
        """log P of the token after each position; -inf where that is 0.

        Raises UnseenContextError where a maximum-likelihood predictor reads a context that training did not have.
        """
        plain_forward(mask, positions)
        n = self.choices.order - 1
        padded = np.pad(tokens.cpu().numpy(), ((0, 0), (max(n - 1, 0), 0)), constant_values=-1)
        windows = np.lib.stride_tricks.sliding_window_view(padded, n, axis=1) if n else padded[..., None][..., :0]
        return self.after(windows.reshape(tokens.numel(), n), tokens.device).unflatten(0, tuple(tokens.shape))

    def last(self, tokens: Tokens) -> LastLogits:
        """`forward` at the last position alone, [batch, n_vocab]: it reads no other context."""
        n, width = self.choices.order - 1, tokens.size(1)
        context = tokens[:, max(width - n, 0) :].cpu().numpy()
        padded = np.pad(context, ((0, 0), (max(n - width, 0), 0)), constant_values=-1)
        return self.after(padded, tokens.device)

    def after(self, contexts: np.ndarray, device: torch.device) -> Tensor:
        """log P of the token after each context, [contexts, order - 1] -> [contexts, n_vocab]; -1 for no token."""
        with np.errstate(divide="ignore"):
            log_probs = torch.from_numpy(np.log(self.ngram.distributions(contexts)))
        return log_probs if device.type in WITHOUT_FLOAT64 else log_probs.to(device)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first, as the n-gram gives it, float64 [len(ids) - 1]."""
        return self.ngram.log_probs(ids)


class NGramMixture(nn.Module):
    """P(w|h) = weight P_network(w|h) + (1 - weight) P_counted(w|h)   (Bengio et al. 2003, section 4.2)

    An id that one of them does not have has probability 0 there: the network may have rows that stand for no token.
    """

    def __init__(self, network: Any, counted: Counted, weight: float):
        super().__init__()
        if not 0 <= weight <= 1:
            raise PredictorError(f"weight = {weight}: expected a number from 0 to 1")
        self.network: Any = network
        self.counted, self.weight = counted, weight
        self.choices = network.choices

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return max(int(self.network.reach), self.counted.reach)

    def forward(self, tokens: Tokens, *, mask: None = None, positions: None = None) -> Logits:
        """log P of the token after each position, float64."""
        return self.mix(self.network(tokens, mask=mask, positions=positions), self.counted(tokens))

    def last(self, tokens: Tokens) -> LastLogits:
        """`forward` at the last position alone, [batch, n_vocab]."""
        return self.mix(self.network.last(tokens), self.counted.last(tokens))

    def mix(self, logits: Tensor, counted: Tensor) -> Tensor:
        """log P from the network's logits and the n-gram's log P, over the ids of both."""
        own, n = in_float64(logits).log_softmax(-1), max(logits.size(-1), counted.size(-1))
        return mixed(over_ids(own, n), over_ids(counted.to(own.device), n), self.weight)

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first, nats, float64 [len(ids) - 1]."""
        own, counted = (torch.from_numpy(m.log_probs(ids)) for m in (self.network, self.counted))
        return mixed(own, counted, self.weight).numpy()


def over_ids(log_probs: Tensor, n: int) -> Tensor:
    """The same over `n` ids, of which those that are new have probability 0."""
    return F.pad(log_probs, (0, n - log_probs.size(-1)), value=-torch.inf)


def mixed(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """log(weight e^a + (1 - weight) e^b)."""
    share = torch.tensor([weight, 1 - weight], dtype=a.dtype, device=a.device).log()
    return torch.logaddexp(a + share[0], b + share[1])


def fit_weight(a: np.ndarray, b: np.ndarray) -> float:
    """The weight of the first of two predictors that makes a text most probable, by EM.

    a, b are the log-probabilities that each gives to the tokens of a text that neither was trained on.
    weight <- mean over tokens of weight e^a / (weight e^a + (1 - weight) e^b); no step lowers the
    probability, and the only maximum is global (Dempster, Laird and Rubin 1977; Jelinek and Mercer 1980).
    """
    if a.shape != b.shape or not a.size:
        raise PredictorError(f"{a.size} and {b.size} log-probabilities: expected the same number, at least 1, of each")
    weight, odds = 0.5, np.exp(np.clip(b - a, -700, 700))
    for _ in range(10_000):
        new = float(np.mean(weight / (weight + (1 - weight) * odds)))
        if abs(new - weight) < 1e-9:
            return new
        weight = new
    return weight
