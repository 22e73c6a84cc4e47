"""Softmax, activation functions, normalisation and dropout.

Numerical definitions, not fast code: float64 throughout, one formula per function.
"""

import math
from typing import Any

import numpy as np

from pellucid.reference.tape import DERIVATIVES, Array, constant, real

# Softmax ------------------------------------------------------------------------------------------


def _shift(x: Array, axis: int | tuple[int, ...]) -> np.ndarray:
    """The largest entry along `axis`, 0 where every entry is -inf: subtracting it changes no softmax."""
    top = np.max(constant(x), axis=axis, keepdims=True)
    return np.where(top == -np.inf, 0.0, top)


def softmax(x: Array, axis: int = -1, where: np.ndarray | None = None) -> Array:
    """softmax(x)_i = exp(x_i) / sum_j exp(x_j), over the entries where `where` is True   [..., n] -> [..., n]

    S0 4.3 (vectors), S0 3.1 softmax* by rows, S1 1.1.2 Sm_s', S3 slide 12, S4 "Inner-product Attention".
    The largest entry is subtracted first (S4 "Comments on Attention Weights"). An entry that is -inf or not
    in `where` is exactly 0; where no entry is left the result is 0, not NaN. Errata E-01, E-59, E-62.
    """
    x = real(x) if where is None else np.where(where, real(x), -np.inf)
    e = np.exp(x - _shift(x, axis))
    total = np.sum(e, axis=axis, keepdims=True)
    return e / np.where(constant(total) == 0, 1.0, total)


def softmax_matrix(x: Array, where: np.ndarray | None = None) -> Array:
    """softmax(A)_ij = exp(a_ij) / sum_{p,q} exp(a_pq): one normaliser for the whole matrix   [n, n] -> [n, n]

    S0 3.1 and S2 "The softmax acts on the whole matrix", as printed. For study only: the normaliser of row i
    contains rows p > i, so a head built on it sees the future. Erratum E-01.
    """
    x = real(x) if where is None else np.where(where, real(x), -np.inf)
    e = np.exp(x - _shift(x, (-2, -1)))
    return e / np.sum(e, axis=(-2, -1), keepdims=True)


def logsumexp(x: Array, axis: int = -1, where: np.ndarray | None = None) -> Array:
    """log sum_j exp(x_j) over the entries where `where` is True, -inf if there are none   [..., n] -> [...]

    The logarithm of the denominator of softmax: S0 4.3; S4 "Comments on Attention Weights" for the shift.
    """
    x = real(x) if where is None else np.where(where, real(x), -np.inf)
    shift = _shift(x, axis)
    total = np.sum(np.exp(x - shift), axis=axis)
    none = constant(total) == 0
    return np.where(none, -np.inf, np.log(np.where(none, 1.0, total)) + np.squeeze(shift, axis))


def log_softmax(x: Array, axis: int = -1, where: np.ndarray | None = None) -> Array:
    """x_i - logsumexp(x), -inf where `where` is False   [..., n] -> [..., n]

    S4 "Machine Learning Solution": the log of P, of which the log-loss is made.
    """
    x = real(x) if where is None else np.where(where, real(x), -np.inf)
    x = x - _shift(x, axis)
    total = np.sum(np.exp(x), axis=axis, keepdims=True)
    return x - np.log(np.where(constant(total) == 0, 1.0, total))


# Activation functions -----------------------------------------------------------------------------

_erf = np.frompyfunc(math.erf, 1, 1)
DERIVATIVES[_erf] = (lambda g, y, x: g * (2 / math.sqrt(math.pi)) * np.exp(-x * x),)


def erf(x: Array) -> Array:
    """erf(x) = 2/sqrt(pi) int_0^x exp(-t^2) dt, entry by entry.

    Needed for S3 slide 10 "phi is some activation function" where phi is the exact GELU.
    """
    y: Any = _erf(x)
    return y.astype(np.float64) if hasattr(y, "astype") else np.float64(y)


def gelu(x: Array) -> Array:
    """x Phi(x), Phi the standard normal distribution function.

    S1 Fig. 1 (GeLU), S3 slide 10 phi; the exact form, which BERT and GPT-NeoX use.
    """
    x = real(x)
    return x * (0.5 * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    S1 Fig. 1 (GeLU), S3 slide 10 phi; the approximation that GPT-2 uses, up to 5e-4 from the exact form.
    """
    x = real(x)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def relu(x: Array) -> Array:
    """max(x, 0).   S0 2.2 sigma, S3 slide 10 phi, S4 "MLP layers" sigma."""
    return np.maximum(real(x), 0.0)


def relu2(x: Array) -> Array:
    """max(x, 0)^2.   S3 slide 10 phi; So et al. 2021."""
    return np.square(np.maximum(real(x), 0.0))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written with tanh so that it never overflows.   S0 2.2 sigma."""
    return 0.5 * (1 + np.tanh(0.5 * real(x)))


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)).   S3 slide 10 phi."""
    return real(x) * sigmoid(x)


def quick_gelu(x: Array) -> Array:
    """x / (1 + exp(-1.702 x)).   S3 slide 10 phi; Hendrycks and Gimpel 2016, section 2, an approximation of gelu."""
    return real(x) * sigmoid(1.702 * real(x))


def tanh(x: Array) -> Array:
    """tanh(x).   S0 2.2 sigma, S3 slide 10 phi."""
    return np.tanh(real(x))


#: the value of mlp.activation -> its function
ACTIVATION = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "relu2": relu2, "silu": silu}
ACTIVATION |= {"quick_gelu": quick_gelu, "tanh": tanh}


# Normalisation ------------------------------------------------------------------------------------


def soft_cap(x: Array, c: float) -> Array:
    """c tanh(x / c), or x for c = 0   [...] -> [...].   Gemma Team et al. 2024 (Gemma 2), section 2."""
    return c * np.tanh(real(x) / c) if c else x


def layer_scale(x: Array, eps: float = 1e-5, eps_at: str = "inside") -> Array:
    """sigma = sqrt(v + eps) (inside) or sqrt(v) + eps (outside), v = mean((x - mu)^2)   [..., m] -> [..., 1]

    S4 "Normalization and Dropout" puts the constant inside the root, S3 slide 9 outside, S1 1.1.1.1 has none;
    v divides by m everywhere. Errata E-26, E-51.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return _root(np.mean(np.square(centred), axis=-1, keepdims=True), eps, eps_at)


def rms_scale(x: Array, eps: float = 1e-5, eps_at: str = "inside") -> Array:
    """rho = sqrt(mean(x^2) + eps) (inside) or sqrt(mean(x^2)) + eps (outside)   [..., m] -> [..., 1]

    S4 "Normalization and Dropout" without the mean; Zhang and Sennrich 2019.
    """
    return _root(np.mean(np.square(x), axis=-1, keepdims=True), eps, eps_at)


def _root(mean_square: Array, eps: float, eps_at: str) -> Array:
    if eps_at == "inside":
        return np.sqrt(mean_square + eps)
    if eps_at == "outside":
        return np.sqrt(mean_square) + eps
    raise ValueError(f"eps_at = {eps_at!r}: expected inside or outside")


def layer_norm(
    x: Array, gain: Array | float = 1.0, bias: Array | float = 0.0, eps: float = 1e-5, eps_at: str = "inside"
) -> Array:
    """gain * (x - mu) / sigma + bias, mu = mean(x) over the last axis   [..., m] -> [..., m]

    S1 1.1.1.1, S3 slide 9, S4 "Normalization and Dropout"; Ba et al. 2016. Errata E-26, E-51.
    """
    x = real(x)
    return gain * ((x - np.mean(x, axis=-1, keepdims=True)) / layer_scale(x, eps, eps_at)) + bias


def rms_norm(x: Array, gain: Array | float = 1.0, eps: float = 1e-5, eps_at: str = "inside") -> Array:
    """gain * x / rho over the last axis   [..., m] -> [..., m]

    S4 "Normalization and Dropout" without mean and bias; Zhang and Sennrich 2019.
    """
    x = real(x)
    return gain * (x / rms_scale(x, eps, eps_at))


# Dropout ------------------------------------------------------------------------------------------


def dropout(x: Array, p: float, keep: np.ndarray) -> Array:
    """x_i / (1 - p) where keep_i is True, 0 elsewhere   any shape

    S4 "Dropout", S1 1.1.2 Dr; Srivastava et al. 2014 in the inverted form, whose mean over masks is x, so that
    nothing changes when it is left out at inference. Errata E-28, E-75. Raises ValueError unless 0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout rate p = {p}: expected a rate from 0 up to, not including, 1")
    return np.where(keep, real(x) * (1 / (1 - p)), 0.0)


def keep_mask(shape: tuple[int, ...], p: float, rng: np.random.Generator) -> np.ndarray:
    """A random mask whose entries are False with probability p, independently.   S4 "Dropout"."""
    return rng.random(shape) >= p
