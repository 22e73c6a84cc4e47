"""Tokens to vectors and back, and the positional schemes.

A position is a row: X in R^{n x m}; a matrix W (out x in) acts as X W^T, which is (Id (x) W) X in S0.
"""

from collections.abc import Mapping

import numpy as np

from pellucid.reference.tape import Array, real


def one_hot(tokens: np.ndarray, n_vocab: int) -> np.ndarray:
    """sigma: row i is the basis vector e_{t_i}   [...] -> [..., n_vocab]

    S0 1.1 "One-Hot Encoding" and 2+), S3 slide 1 Ind. Raises ValueError for a token outside 0 ... n_vocab - 1.
    """
    tokens = check_tokens(tokens, n_vocab)
    return (tokens[..., None] == np.arange(n_vocab)).astype(np.float64)


def check_tokens(tokens: np.ndarray, n_vocab: int) -> np.ndarray:
    """The same tokens as integers; ValueError if one is not in 0 ... n_vocab - 1   (S1 1.1 step 1: range(V))."""
    tokens = np.asarray(tokens)
    if tokens.size and not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens of type {tokens.dtype} were given: expected integers")
    if tokens.size and (tokens.min() < 0 or tokens.max() >= n_vocab):
        raise ValueError(
            f"token {tokens.max() if tokens.max() >= n_vocab else tokens.min()} is not in 0 ... {n_vocab - 1}"
        )
    return tokens.astype(np.int64)


def tensor_apply(A: Array, W: Array, X: Array) -> Array:
    """(A (x) W) X = A X W^T   A [i, j], W [out, in], X [j, in] -> [i, out].   S0 (1.3), (3.2), (3.6). Erratum E-40."""
    return real(A) @ real(X) @ real(W).T


def embed(t: Array, W_E: Array) -> Array:
    """(Id (x) W_E) t = t W_E for one-hot or any other rows   t [n, n_vocab], W_E [n_vocab, m] -> [n, m]

    S0 (1.2), (1.3), whose W_E is the transpose of the one stored here; S1 1.1.1; S3 slide 5 W_E[Ind(t_i)].
    """
    return real(t) @ real(W_E)


def ngram_embed(tables: Mapping[int, Array], tokens: np.ndarray, positions: np.ndarray) -> Array:
    """sum_n W_n[r(t_{i-n+1} ... t_i)]: for each n a row for the last n tokens, chosen by a hash   -> [b, n, m]

    Huang et al. 2025, "Over-Tokenized Transformer"; r is the polynomial of pellucid.architecture. `tokens` [b, n' + n],
    `positions` [b, n] of the last n of them; a position with fewer than n - 1 tokens before it has no n-gram.
    """
    b, n = positions.shape
    total: Array = 0.0
    for length, W in tables.items():
        known, rows = np.zeros((b, n, 1), bool), np.zeros((b, n), np.int64)
        for s in range(b):
            for i in range(n):
                end = tokens.shape[1] - n + i + 1
                if end >= length and positions[s, i] >= length - 1:
                    known[s, i] = True
                    rows[s, i] = ngram_row(tokens[s, end - length : end], np.shape(W)[0])
        total = total + real(W)[rows] * known
    return total


def ngram_row(ngram: np.ndarray, n_rows: int) -> int:
    """(sum_k (t_{n-k} + 1) 1000003^k mod (2^31 - 1)) mod n_rows, k = 0 at the last token   [n] -> one row

    Huang et al. 2025, whose hash is another one; the formula is in pellucid.architecture.
    """
    return sum((int(t) + 1) * 1_000_003**k for k, t in enumerate(ngram[::-1])) % (2**31 - 1) % n_rows


def unembed(X: Array, W_U: Array) -> Array:
    """X W_U^T   X [..., m], W_U [n_vocab, m] -> [..., n_vocab]

    S0 (1.4), (1.5); S3 slide 6 U x_i; S4 "Next Token Prediction" W_out [e_1 ... e_j], transposed. Tied: W_U is
    W_E, used transposed and not inverted (erratum E-32).
    """
    return real(X) @ real(W_U).T


def combine_positions(E: Array, P: Array, how: str = "add", W: Array | None = None) -> Array:
    """F(e_i, p_i): e_i + p_i (add), or (e_i || p_i) W^T (concatenate)   [n, m], [n, m] -> [n, m]

    S3 slide 5 F; S0 Remark 1.2 t W_E^T + P; S1 1.1.1 z + p; S4 "Positional encoding" Gamma. Addition is the
    second with W = (Id Id). Erratum E-50.
    """
    if how == "add":
        return real(E) + real(P)
    if how == "concatenate" and W is not None:
        return np.concatenate([real(E), real(P)], axis=-1) @ real(W).T
    raise ValueError(f"how = {how!r}: expected add, or concatenate with a matrix W [m, 2m]")


def frequencies(n_planes: int, base: float = 10_000.0) -> np.ndarray:
    """w_k = base^(-2k/n), n = 2 n_planes   [n_planes].   S2 "Positional Encodings": 1 / N^(2j/E) for j < E/2. E-48"""
    return base ** (-np.arange(n_planes) / n_planes)


def scaled_frequencies(
    w: np.ndarray, kind: str, factor: float, low: float = 1.0, high: float = 4.0, n_trained: int = 8192
) -> np.ndarray:
    """w_k, w_k / factor (linear), or between the two by how often plane k turns in n_trained positions (llama3)

    Chen et al. 2023, "Positional Interpolation", section 2.3; Llama Team 2024, "The Llama 3 Herd of Models", whose code
    divides every plane of less than `low` turns, no plane of more than `high`, and goes from one to the other linearly
    in the number of turns.   [n_planes] -> [n_planes]
    """
    if kind == "linear":
        return w / factor
    if kind == "llama3":
        turns = n_trained * w / (2 * np.pi)
        between = (turns - low) / (high - low)
        mixed = (1 - between) * w / factor + between * w
        return np.where(turns < low, w / factor, np.where(turns > high, w, mixed))
    if kind != "none":
        raise ValueError(f"scaling = {kind!r}: expected none, linear or llama3; the others have functions of their own")
    return w


def yarn_frequencies(
    n: int, base: float, factor: float, low: float = 1.0, high: float = 32.0, n_trained: int = 8192
) -> np.ndarray:
    """(1 - r_k) w_k + r_k w_k / factor for w_k = base^(-2k/n), where r_k rises from 0 to 1 with k   [n / 2]

    Peng et al. 2023, "YaRN", section 3.2, whose code rises linearly in k from the last whole plane of at least `high`
    turns in n_trained positions to the first of at most `low`.
    """
    w = frequencies(n // 2, base)

    def plane(turns: float) -> float:
        """The k, between planes too, with n_trained base^(-2k/n) = 2 pi turns."""
        return n / 2 * np.log(n_trained / (2 * np.pi * turns)) / np.log(base)

    begin = max(np.floor(plane(high)), 0)
    end = min(np.ceil(plane(low)), n - 1) if low else n - 1
    r = np.clip((np.arange(len(w)) - begin) / (end - begin or 0.001), 0, 1)
    return r * w / factor + (1 - r) * w


def dynamic_base(base: float, factor: float, length: int, n_trained: int, n: int) -> float:
    """base s^(n/(n-2)) with s = factor length / n_trained - factor + 1, for texts longer than n_trained

    Peng et al. 2023, "YaRN", definition 1 (the NTK-aware base, bloc97 2023) and section 3.3, "Dynamic NTK": of w_k =
    base^(-2k/n) the first stays, and the last is divided by s.
    """
    s = factor * length / n_trained - factor + 1 if length > n_trained else 1.0
    return base * s ** (n / (n - 2))


def yarn_factor(factor: float, given: float = 0.0) -> float:
    """c of rotated coordinates, so that c^2 multiplies the scores: 0.1 log(factor) + 1, at least 1, unless given

    Peng et al. 2023, "YaRN", equation (22), sqrt(1/t) = 0.1 ln(s) + 1.
    """
    if given:
        return given
    return 1.0 if factor <= 1 else 0.1 * float(np.log(factor)) + 1.0


def longrope_factor(factor: float, n_trained: int, given: float = 0.0) -> float:
    """c of rotated coordinates: sqrt(1 + log(factor) / log(n_trained)), at least 1, unless given

    Ding et al. 2024, "LongRoPE", whose code scales the logarithm of the longer context by that of the trained one.
    """
    if given:
        return given
    return 1.0 if factor <= 1 else float(np.sqrt(1 + np.log(factor) / np.log(n_trained)))


def sinusoidal_positions(
    n: int, m: int, base: float = 10_000.0, start: float = 0, layout: str = "halves"
) -> np.ndarray:
    """Rows (sin(i w_k), cos(i w_k)) for i = start ... start + n - 1, w_k = base^(-2k/m)   [n, m]

    S2 "Positional Encodings" lays them out in halves (all sines, then all cosines), Vaswani et al. 2017 in pairs.
    Errata E-43 (d/2 is E/2), E-44 (what base > n buys), E-48.
    """
    return sinusoid_at(np.arange(n) + start, m, base, layout)


def sinusoid_at(positions: np.ndarray, m: int, base: float = 10_000.0, layout: str = "halves") -> np.ndarray:
    """The sinusoidal rows of these positions   [...] -> [..., m].   S2 "Positional Encodings"."""
    if m % 2:
        raise ValueError(f"m = {m}: expected an even width, since sines and cosines come in pairs")
    angle = np.asarray(positions)[..., None] * frequencies(m // 2, base)
    parts = np.stack([np.sin(angle), np.cos(angle)], axis=_plane_axis(layout))
    return parts.reshape(*angle.shape[:-1], m)


def shift_matrix(m: int, base: float = 10_000.0, steps: float = 1.0, layout: str = "halves") -> np.ndarray:
    """R with e_{i+steps} = R e_i for every i: a rotation of each plane by steps * w_k   [m, m]

    S2 "Positional Encodings": "a linear transformation for shifting k -> k+1, identical across all k"; in
    complex numbers the diagonal matrix exp(i w_k).
    """
    # rotating every basis vector gives the rows of R^T, up to the sense of rotation: (sin, cos) turns backwards
    return rotate(np.eye(m), np.full(m, -float(steps)), m, base, layout).T


def rotate(
    x: Array, positions: np.ndarray, d_rotary: int, base: float = 10_000.0, layout: str = "halves",
    w: np.ndarray | None = None, c: float = 1.0,
) -> Array:  # fmt: skip
    """c R_i x_i: plane k of the first d_rotary coordinates turned by i w_k, w_k = base^(-2k/d_rotary)   [..., i, d]

    S3 slide 5 leaves the combination with positions open; Su et al. 2021 (rotary). Planes are the coordinates
    (k, k + d_rotary/2) in the layout halves, (2k, 2k + 1) in pairs; the coordinates after d_rotary stay. Then
    (R_i q) . (R_j k) depends on i - j alone. positions [..., i] broadcasts against x without its last axis; `w` are
    other w_k, such as scaled ones, and c is their factor (Peng et al. 2023); coordinates after d_rotary have none.
    """
    x = real(x)
    angle = np.asarray(positions)[..., None] * (frequencies(d_rotary // 2, base) if w is None else w)
    cos, sin = c * np.cos(angle), c * np.sin(angle)
    first, second = _plane_indices(d_rotary, layout)
    a, b = x[..., first], x[..., second]
    turned = np.stack([a * cos - b * sin, a * sin + b * cos], axis=_plane_axis(layout))
    turned = np.reshape(turned, (*turned.shape[:-2], d_rotary))
    return np.concatenate([turned, x[..., d_rotary:]], axis=-1)


def _plane_axis(layout: str) -> int:
    if layout not in ("halves", "pairs"):
        raise ValueError(f"layout = {layout!r}: expected halves or pairs")
    return {"halves": -2, "pairs": -1}[layout]


def _plane_indices(d: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """The two coordinates of every plane."""
    k = np.arange(d // 2)
    return (k, k + d // 2) if layout == "halves" else (2 * k, 2 * k + 1)


def relative_buckets(n: int, n_keys: int, n_buckets: int, max_distance: int, two_sided: bool) -> np.ndarray:
    """The bucket r(i - j) of every pair, queries being the last n of the keys   [n, n_keys]

    Raffel et al. 2020 (T5), section 2.1; the same buckets as in their code, without its logarithms. Of the N buckets
    (half of all where two_sided) the first e = N // 2 hold a distance each; bucket e + t begins at the least distance d
    with (d/e)^(N-e) >= (max_distance/e)^t, which is t <= (N - e) log(d/e) / log(max_distance/e).
    """
    i, j = np.arange(n_keys - n, n_keys)[:, None], np.arange(n_keys)
    N = n_buckets // 2 if two_sided else n_buckets
    e = N // 2
    of = []
    for d in range(n_keys):
        t = 0
        while t < N - e and d >= e and d ** (N - e) * e**t >= max_distance**t * e ** (N - e):
            t += 1
        of.append(d if d < e else e + t - 1)
    if two_sided:
        return np.array(of)[np.abs(i - j)] + N * (j > i)
    return np.array(of)[np.maximum(i - j, 0)]


def relative(table: Array, buckets: np.ndarray) -> Array:
    """b_h[r(i - j)], added to the scores   table [n_buckets, n_heads], buckets [n, n_keys] -> [n_heads, n, n_keys]

    Raffel et al. 2020 (T5), section 2.1; S0 Remark 1.2 "several competing ways".
    """
    return np.swapaxes(np.swapaxes(real(table)[buckets], 0, 2), 1, 2)


def alibi_slopes(n_heads: int, kind: str = "geometric") -> np.ndarray:
    """s_h = 2^(-8h/n_heads) for h = 1 ... n_heads (geometric), or those of a power of two first (interleaved)

    Press et al. 2021; S0 Remark 1.2 "several ways". Their code, with p the largest power of two up to n_heads, takes
    the slopes 2^(-8h/p) of p heads, and after them the first, third, fifth, ... of those of 2p heads.   [n_heads]
    """
    if kind == "geometric":
        return 2.0 ** (-8 * np.arange(1, n_heads + 1) / n_heads)
    if kind != "interleaved":
        raise ValueError(f"slopes = {kind!r}: expected geometric or interleaved")
    p = max(2**k for k in range(n_heads) if 2**k <= n_heads)
    first = [2.0 ** (-8 * h / p) for h in range(1, p + 1)]
    odd = [2.0 ** (-8 * h / (2 * p)) for h in range(1, 2 * p, 2)]
    return np.array([*first, *odd][:n_heads])


def alibi(n_heads: int, n: int, n_keys: int | None = None, slopes: str = "geometric") -> np.ndarray:
    """-s_h |i - j|, added to the scores; queries are the last n of the keys   [n_heads, n, n_keys]

    Press et al. 2021; S0 Remark 1.2 "several competing ways".
    """
    n_keys = n if n_keys is None else n_keys
    i, j = np.arange(n_keys - n, n_keys)[:, None], np.arange(n_keys)
    return -alibi_slopes(n_heads, slopes)[:, None, None] * np.abs(i - j)
