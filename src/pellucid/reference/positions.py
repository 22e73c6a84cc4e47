"""The rows and the numbers of each positional scheme; rotations are those of `rotate`, layer by layer (layers.py)."""

from collections.abc import Callable

import numpy as np

from pellucid.architecture import Architecture
from pellucid.reference.embedding import alibi, relative, relative_buckets, sinusoid_at
from pellucid.reference.tape import Array, real


def learned_rows(a: Architecture, table: Array | None, positions: np.ndarray) -> Array:
    """W_P[i]   table [n_ctx, m], positions [...] -> [..., m].   Gehring et al. 2017, section 3.1."""
    return real(table)[positions]


def sinusoidal_rows(a: Architecture, table: Array | None, positions: np.ndarray) -> Array:
    """(sin(i w_k), cos(i w_k))   positions [...] -> [..., m].   Vaswani et al. 2017, section 3.5."""
    return sinusoid_at(positions, a.embed_sum_width, a.positions.base, a.positions.layout)


def alibi_bias(a: Architecture, n: int, n_keys: int, table: Array | None) -> Array:
    """-s_h |i - j| for the last n of n_keys positions i   [h, i, j].   Press et al. 2021."""
    return alibi(a.n_heads, n, n_keys, a.positions.slopes)


def relative_bias(a: Architecture, n: int, n_keys: int, table: Array | None) -> Array:
    """b_h[r(i - j)] for the last n of n_keys positions i   [h, i, j].   Raffel et al. 2020, section 2.1."""
    p, two_sided = a.positions, a.attention.mask == "bidirectional"
    return relative(table, relative_buckets(n, n_keys, p.n_buckets, p.max_distance, two_sided))


#: the rows that are added to the stream
POSITION_ROWS: dict[str, Callable[[Architecture, Array | None, np.ndarray], Array]] = {
    "learned": learned_rows,
    "sinusoidal": sinusoidal_rows,
}
#: the numbers that are added to the scores
SCORE_BIAS: dict[str, Callable[[Architecture, int, int, Array | None], Array]] = {
    "alibi": alibi_bias,
    "relative": relative_bias,
}
