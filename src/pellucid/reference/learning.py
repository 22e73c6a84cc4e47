"""Losses, probabilities of texts, gradients, and one step of the optimiser."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.functions import log_softmax, softmax
from pellucid.reference.tape import Array, constant, gradient, real
from pellucid.reference.transformer import encode, forward
from pellucid.reference.weights import Weights, weight_shapes

NextToken = Callable[[tuple[int, ...]], np.ndarray]  # a sequence -> the distribution of what follows


# Probabilities ------------------------------------------------------------------------------------


def next_token_logits(logits: Array) -> Array:
    """l(S), the last row of T(t(S))   [n, v] -> [v].   S0 4.3"""
    return logits[-1]


def next_token_probabilities(logits: Array) -> Array:
    """P(t_{s+1} = v | t_0 ... t_s) for every row s   [..., v] -> [..., v].   S0 4.3 P_S, S1 1.1, S3 slide 6. E-31"""
    return softmax(logits)


def sequence_log_probability(logits: Array, tokens: np.ndarray, first: int = 1) -> Array:
    """sum_{i >= first} log P(t_i | t_0 ... t_{i-1}), row i - 1 of the logits predicting t_i   [n, v], [n] -> number

    S1 footnote 4 (the chain rule), S4 "Machine Learning Solution" log P~(x): all factors, erratum E-63. first >= 1:
    nothing predicts t_0, for which documents start with the separator (E-76).
    """
    tokens = np.asarray(tokens)
    if not 1 <= first <= len(tokens):
        raise ValueError(
            f"first = {first}: expected 1 ... {len(tokens)}; no row of the logits predicts the first token"
        )
    rows = np.arange(first - 1, len(tokens) - 1)
    return np.sum(log_softmax(logits)[rows, tokens[first:]])


def language_mass(next_token: NextToken, eos: int | None, n_vocab: int, max_length: int) -> list[float]:
    """The total probability of the sequences that end after 0, 1, ..., max_length tokens

    S3 slide 1, Delta(L): with an end token the sums approach 1; without one (eos None) nothing ends, and the list is
    the mass of all prefixes of each length, 1 every time. Erratum E-55.
    """
    masses, prefixes = [], {(): 1.0}
    for _ in range(max_length + 1):
        ahead, ended = {}, 0.0
        for prefix, mass in prefixes.items():
            p = next_token(prefix)
            ended += 0.0 if eos is None else mass * float(p[eos])
            ahead |= {(*prefix, v): mass * float(p[v]) for v in range(n_vocab) if v != eos}
        masses.append(sum(prefixes.values()) if eos is None else ended)
        prefixes = ahead
    return masses


def as_next_token(masked: Callable[[list[int]], np.ndarray], mask_token: int) -> NextToken:
    """A masked model as a next-token predictor: append the mask token and take the prediction at its position

    S3 slide 2: "next-token prediction LMs can be considered a special case". `masked` maps tokens [n] to
    distributions [n, n_vocab].
    """
    return lambda tokens: masked([*tokens, mask_token])[-1]


# Losses -------------------------------------------------------------------------------------------


def log_loss(P: np.ndarray, v: int) -> float:
    """l(P, v) = -log P_v, in nats.   S4 "Machine Learning Solution"."""
    return -math.log(P[v])


def zero_one_loss(prediction: int, v: int) -> int:
    """I(prediction != v).   S4 "Alternative Approach"; a step function of any parameter behind the prediction."""
    return int(prediction != v)


def next_token_examples(tokens: Sequence[int], prompt: int = 0) -> list[tuple[tuple[int, ...], int]]:
    """The subtasks S -> o_1; S, o_1 -> o_2; ...: each prefix of at least `prompt` tokens with what follows it

    S4 "Operationalizing Input and Output".
    """
    return [(tuple(tokens[:k]), tokens[k]) for k in range(prompt, len(tokens))]


def empirical_risk(next_token: NextToken, documents: Iterable[Sequence[int]], reduction: str = "sum") -> float:
    """sum_x sum_j l(P(x_1 ... x_{j-1}), x_j), or its mean per token, in nats.   S4 "Machine Learning Solution"; E-63"""
    losses = [log_loss(next_token(prefix), v) for document in documents for prefix, v in next_token_examples(document)]
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction = {reduction!r}: expected sum or mean")
    return sum(losses) / (len(losses) if reduction == "mean" else 1)


def next_token_loss(logits: Array, tokens: np.ndarray, counted: np.ndarray | None = None) -> Array:
    """mean over (b, i) of -log P(t_{i+1} | t_0 ... t_i)   [b, n, v], [b, n] -> number, in nats

    S4 empirical risk for the transformer, S3 slide 6 (predict i + 1). `counted` [b, n - 1] says which targets count:
    a prompt or padding does not.
    """
    logp = log_softmax(logits)[..., :-1, :]
    targets = np.asarray(tokens)[..., 1:]
    taken = logp[(*np.indices(targets.shape), targets)]
    counted = np.ones(targets.shape, bool) if counted is None else np.asarray(counted, bool)
    return -np.sum(taken * counted) / counted.sum()


def masked_lm_loss(logits: Array, tokens: np.ndarray, selected: np.ndarray) -> Array:
    """mean over the selected positions of -log P(t_i at i)   [b, n, v], [b, n], bool [b, n] -> number, in nats

    S3 slides 2 and 6: masked models predict the token at i itself. The shift of the targets belongs to the objective,
    not to the model. Erratum E-61.
    """
    tokens = np.asarray(tokens)
    taken = log_softmax(logits)[(*np.indices(tokens.shape), tokens)]
    return -np.sum(taken * np.asarray(selected, bool)) / np.sum(selected)


def perplexity(nats_per_token: float) -> float:
    """exp of the mean log-loss.   S4 "Machine Learning Solution" in the units of Bengio et al. 2003."""
    return math.exp(nats_per_token)


def bits(nats: float) -> float:
    """nats / log 2, the same amount of information in bits.   S4 (Shannon 1948 counts in bits)."""
    return nats / math.log(2)


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """The log-loss of a whole text in bits, per byte of it: comparable across tokenizers.   S4 (Shannon 1948)."""
    return bits(nats) / n_bytes


# Gradients ----------------------------------------------------------------------------------------


def loss_and_gradient(
    architecture: Architecture, weights: Weights, tokens: np.ndarray, *, source: np.ndarray | None = None,
    loss: Callable[[Array, np.ndarray], Array] = next_token_loss, **reading,
) -> tuple[float, dict[str, np.ndarray]]:  # fmt: skip
    """The loss of a batch and its derivative with respect to every weight, for any architecture

    S0 Introduction (Theta), S4 "The loss is a differentiable surrogate". tokens [b, n]; `source` tokens [b, j] for an
    encoder-decoder; `loss` of (logits, tokens); `reading` as for `forward`. The matrix of a tied readout has the sum
    of the derivatives of both uses, under embed.token.weight.
    """
    trainable = {name: real(weights[name]) for name in weight_shapes(architecture)}

    def f(w: Mapping[str, Array]) -> Array:
        encoded = None if source is None else encode(architecture, w, source)
        return loss(forward(architecture, w, tokens, source=encoded, **reading), tokens)

    return gradient(f, trainable)


def numerical_gradient(f: Callable[[np.ndarray], float], theta: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """(f(theta + step e_k) - f(theta - step e_k)) / (2 step) for every k   [N] -> [N].   S0 Introduction, Theta"""
    out = np.empty(len(theta))
    for k in range(len(theta)):
        e = np.zeros(len(theta))
        e[k] = step
        out[k] = (float(constant(f(theta + e))) - float(constant(f(theta - e)))) / (2 * step)
    return out


def clip_gradient(grads: Mapping[str, np.ndarray], longest: float) -> tuple[dict[str, np.ndarray], float]:
    """g min(1, longest / |g|) over all weights together, and |g|.   S4 "exploding gradient"; Pascanu et al. 2013"""
    length = math.sqrt(sum(float(np.sum(g * g)) for g in grads.values()))
    return {name: g * min(1.0, longest / max(length, 1e-300)) for name, g in grads.items()}, length


def adamw_step(
    weights: Mapping[str, np.ndarray], grads: Mapping[str, np.ndarray], state: Mapping[str, tuple] | None, step: int,
    lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01,
) -> tuple[dict[str, np.ndarray], dict[str, tuple]]:  # fmt: skip
    """w <- (1 - lr decay) w - lr m^ / (sqrt(v^) + eps); m and v the averages of g and g^2, corrected for their start

    S0 Introduction: "a separate process, the training". Loshchilov and Hutter 2019, algorithm 2; step = 1, 2, ...;
    state None at first. Returns the new weights and state {name: (m, v)}.
    """
    new, averages = {}, {}
    for name, w in weights.items():
        g = grads[name]
        m, v = state[name] if state else (np.zeros_like(w), np.zeros_like(w))
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        m_hat, v_hat = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
        new[name] = (1 - lr * decay) * w - lr * m_hat / (np.sqrt(v_hat) + eps)
        averages[name] = (m, v)
    return new, averages
