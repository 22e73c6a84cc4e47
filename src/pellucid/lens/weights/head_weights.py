"""One attention head as matrices: its QK and OV circuits."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pellucid.lens.show.figure import Figure, show
from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.factored_matrix import FactoredMatrix, exact


class Direction(NamedTuple):
    """One singular direction of a circuit as tokens: those with the largest products on either end.

    The sign of a pair of singular vectors is arbitrary: both ends may be negated together.
    """

    strength: float
    out: list[tuple[str, float]]
    into: list[tuple[str, float]]


class Head:
    """Head `index` of block `layer`: W_Q, W_K, W_V [d, m] and W_O [m, d], acting on columns as in the source texts.

        score_ij = scale (x_i^T W_QK x_j + terms of the biases)        W_QK = W_Q^T W_K      (Becker-Kahn 3.2)
        written_i = sum_j A_ij W_OV x_j + terms of the biases          W_OV = W_O W_V        (Becker-Kahn 3.4)

    where x is the head's input, after the block's norm. TransformerLens stores transposes: its W_QK is W_Q W_K^T for
    [m, d] matrices, which is the same [m, m] matrix, and its W_OV is the transpose of this one.
    """

    def __init__(self, circuits: CircuitWeights, layer: int, index: int):
        self.circuits, self.layer, self.index = circuits, layer, index

    @property
    def W_Q(self) -> Tensor:  # noqa: N802
        return self._rows("query", self.index)

    @property
    def W_K(self) -> Tensor:  # noqa: N802
        """The key matrix of this head's group."""
        return self._rows("key", self.kv_index)

    @property
    def W_V(self) -> Tensor:  # noqa: N802
        """The value matrix of this head's group."""
        return self._rows("value", self.kv_index)

    @property
    def W_O(self) -> Tensor:  # noqa: N802
        d = self.circuits.architecture.d_head
        return self._weight("out")[:, self.index * d : (self.index + 1) * d]

    @property
    def kv_index(self) -> int:
        """floor(h n_kv_heads / n_heads)"""
        a = self.circuits.architecture
        return self.index * a.n_kv_heads // a.n_heads

    @property
    def scale(self) -> float:
        """The factor before q . k; not part of W_QK."""
        return self.circuits.architecture.score_scale

    @property
    def is_rotated(self) -> bool:
        """Whether q and k of this head are rotated, so that its QK circuit depends on the distance to the key."""
        return self.circuits.part != "cross" and self.circuits.architecture.rotates(self.layer)

    # In the stream --------------------------------------------------------------------------

    @property
    def ov(self) -> FactoredMatrix:
        """W_OV = W_O W_V [m, m]: maps the input at a position to the head's output when it attends there."""
        return FactoredMatrix(self.W_O, self.W_V)

    W_OV = ov

    def qk(self, offset: int | None = None) -> FactoredMatrix:
        """W_QK = W_Q^T W_K [m, m]; with rotary positions W_Q^T R_offset^T W_K for a key `offset` positions back.

        Where q and k are normalised (attention.qk_norm), their gains are included, and for layer norms the mean over
        the head is subtracted; their divisors, which depend on the text, and their biases are not included. Raises
        CircuitError for rotary positions without an offset, since the circuit has one matrix for each, and for an
        offset without rotary positions.
        """
        q, k = self.normed(self.W_Q, "query_norm", self.index), self.normed(self.W_K, "key_norm", self.kv_index)
        return FactoredMatrix(self.turned(q, offset).T, k)

    @property
    def W_QK(self) -> FactoredMatrix:  # noqa: N802
        return self.qk()

    def normed(self, W: Tensor, norm: str, number: int) -> Tensor:
        """W [d, m] of head `number` behind the norm on q or k without its divisor, in float32 or better."""
        name, W = f"{self.circuits.prefix(self.layer)}{norm}.gain", exact(W)
        if self.circuits.architecture.attention.qk_norm in ("layer", "layer_own"):
            W = W - W.mean(0, keepdim=True)
        if name not in self.circuits.weights:
            return W
        gains = self.circuits.weights[name].unflatten(0, (-1, W.size(0)))
        gain = gains[number % len(gains)] + (self.circuits.architecture.norm.gain == "1+g")
        return gain[:, None] * W

    def turned(self, W: Tensor, offset: int | None) -> Tensor:
        """R_offset W [d, m]: (R_i q)^T (R_j k) = (R_{i-j} q)^T k depends on i and j through i - j alone.

        Scalings such as yarn multiply both rotations by a factor, which R_0 is: (c R_i q)^T (c R_j k) has it twice.
        """
        a = self.circuits.architecture
        if not self.is_rotated:
            if offset is not None:
                raise CircuitError("this head has no rotary positions and one QK circuit: leave the offset out")
            return W
        if offset is None:
            raise CircuitError(
                f"positions.kind = {a.positions.kind}: the QK circuit depends on the distance to the key; "
                "give offset=1 for the token before, offset=0 for the token itself"
            )
        least = 0 if a.attention.mask == "causal" else 1 - a.n_ctx
        if not least <= offset < a.n_ctx:
            raise CircuitError(f"offset = {offset}: this head reads keys {least} to {a.n_ctx - 1} positions back")
        engine = self.circuits.engine
        rotary = engine.blocks[self.layer].attn.rotary
        cos, sin = engine.rotary_table(torch.tensor([abs(offset)], device=W.device))
        turned = rotary.rotate(W.T[None, None], (cos, sin if offset >= 0 else -sin))
        return rotary.rotate(turned, engine.rotary_table(torch.tensor([0], device=W.device)))[0, 0].T

    # Through the vocabulary -----------------------------------------------------------------

    def full_ov(self) -> FactoredMatrix:
        """W_U r W_OV (c W_E)^T [v, v], r = residual_scale: entry (s, t) is the contribution of attending to token t to
        the logit of s, without norms.
        """
        c = self.circuits
        return FactoredMatrix(exact(c.W_U) @ exact(c.written(self.W_O)), exact(self.W_V) @ exact(c.read_E).T)

    def full_qk(self, offset: int | None = None) -> FactoredMatrix:
        """(c W_E) W_QK (c W_E)^T [v, v]: entry (s, t) scores a query at token s with a key at t, norms aside."""
        E, qk = exact(self.circuits.read_E), self.qk(offset)
        return FactoredMatrix(E @ qk.left, qk.right @ E.T)

    @property
    def copying(self) -> float:
        """sum(l) / sum(|l|) over the eigenvalues of `full_ov` (`Circuits.copying`)."""
        return float(ratio(self.full_ov().eigenvalues()))

    def promotes(self, token: str | int, k: int = 10) -> list[tuple[str, float]]:
        """The tokens whose logits rise most when the head attends to `token`, with the amounts."""
        c = self.circuits
        written = c.written(self.ov @ exact(c.read_E[c.token_id(token)]))
        return c.largest(exact(c.W_U) @ written, k)

    def looks_for(self, token: str | int, k: int = 10, offset: int | None = None) -> list[tuple[str, float]]:
        """The keys that a query at `token` scores highest, with the scores (times the scale)."""
        c = self.circuits
        wanted = exact(c.read_E[c.token_id(token)]) @ self.qk(offset)
        return c.largest(self.scale * (exact(c.read_E) @ wanted), k)

    def directions(
        self, of: Literal["ov", "qk"] = "ov", n: int = 4, k: int = 8, offset: int | None = None
    ) -> list[Direction]:
        """The n strongest singular directions of a circuit in the stream, as tokens.

        ov   `into`: tokens that are read; `out`: tokens that are then promoted (Millidge and Black 2022)
        qk   `into`: tokens as keys; `out`: tokens as queries
        """
        if of not in ("ov", "qk"):
            raise CircuitError(f"of = {of!r}: expected ov or qk")
        c, svd = self.circuits, (self.ov if of == "ov" else self.qk(offset)).svd()
        into = exact(c.read_E)
        out = exact(c.W_U) if of == "ov" else into
        rows = zip(svd.S[:n], svd.U.T, svd.V.T, strict=False)
        return [Direction(float(s), c.largest(out @ u, k), c.largest(into @ v, k)) for s, u, v in rows]

    def show(self, offset: int | None = None) -> Figure:
        """Spectra and strongest directions as a picture; with rotary positions, for keys `offset` back (default 1)."""
        return show(self, offset=offset)

    def _weight(self, which: str) -> Tensor:
        return self.circuits.weights[f"{self.circuits.prefix(self.layer)}{which}.weight"]

    def _rows(self, which: str, index: int) -> Tensor:
        d = self.circuits.architecture.d_head
        return self._weight(which)[index * d : (index + 1) * d]

    def __repr__(self) -> str:
        return f"Head({self.layer}, {self.index})"


def ratio(eigenvalues: Tensor) -> Tensor:
    """sum(l) / sum(|l|) over the last axis: real, because complex eigenvalues come in pairs; 0 for the zero matrix."""
    size = eigenvalues.abs().sum(-1)
    return eigenvalues.sum(-1).real / size.clamp(min=torch.finfo(size.dtype).tiny)
