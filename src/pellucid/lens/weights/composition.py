"""Composition: how much the heads of later blocks read from heads of earlier blocks."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pellucid.lens.show.figure import Figure, show
from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.factored_matrix import triangle
from pellucid.lens.weights.head_weights import Head

CompositionKind = Literal["Q", "K", "V"]


@dataclass(frozen=True)
class Composition:
    """Composition scores of every pair of heads, and the scores of random matrices of the same shapes.

    scores    [layer, head, layer, head]: the writer's first, then the reader's; nan where the reader is not later
    baseline  the mean score of random heads of these shapes, and `spread` its standard deviation over the draws
    """

    kind: CompositionKind
    scores: Tensor
    baseline: float
    spread: float

    @property
    def excess(self) -> Tensor:
        """The scores above the baseline."""
        return self.scores - self.baseline

    def show(self) -> Figure:
        """The scores above the baseline as a picture."""
        return show(self)

    def top(self, k: int = 10) -> list[tuple[tuple[int, int], tuple[int, int], float]]:
        """The k strongest pairs: ((layer, head) of the writer, of the reader, score)."""
        flat = self.scores.flatten().nan_to_num(-torch.inf)
        best = flat.topk(min(k, int((flat > -torch.inf).sum())))
        cells = [torch.unravel_index(i, self.scores.shape) for i in best.indices]
        rows = [tuple(int(n) for n in indices) for indices in cells]
        return [((r[0], r[1]), (r[2], r[3]), float(x)) for r, x in zip(rows, best.values, strict=True)]


def compose(circuits: CircuitWeights, kind: CompositionKind, offset: int | None = None, draws: int = 64) -> Composition:
    """Composition scores (Elhage et al. 2021, "Q-, K- and V-composition"), writer 1 in an earlier block than reader 2.

        Q  |W_QK2^T W_OV1| / (|W_QK2| |W_OV1|)      head 2 reads its queries from head 1
        K  |W_QK2 W_OV1| / (|W_QK2| |W_OV1|)        its keys
        V  |W_OV2 W_OV1| / (|W_OV2| |W_OV1|)        its values

    in the Frobenius norm. Each norm is that of a product [d, m] [m, d] of the factors, one of which is the triangle
    of a QR. Read a score against the baseline: even random matrices have about sqrt(1 / m). With raw weights the
    gain of the norm between the two heads is ignored; `fold_norms` includes it. With rotary positions Q and K need an
    offset. Raises CircuitError for cross-attention, whose heads do not read the stream that they write.
    """
    if kind not in get_args(CompositionKind):
        raise CircuitError(f"kind = {kind!r}: expected Q, K or V")
    if circuits.part == "cross":
        raise CircuitError("composition needs heads that read and write one stream: use part = attn or encoder")
    if kind == "V" and offset is not None:
        raise CircuitError("V-composition does not depend on an offset, so leave it out")
    a = circuits.architecture
    heads = [[Head(circuits, l, h) for h in range(a.n_heads)] for l in range(a.n_layers)]
    scores = torch.full((a.n_layers, a.n_heads) * 2, torch.nan)
    writers = [torch.stack([_writer(head.ov.left, head.ov.right) for head in row]) for row in heads]
    for reader in range(1, a.n_layers):
        read = torch.stack([_reader(head, kind, offset) for head in heads[reader]])
        written = torch.cat(writers[:reader])
        scores[:reader, :, reader] = _block_norms(written, read).view(reader, a.n_heads, a.n_heads).to(scores)
    return Composition(kind, scores, *_baseline(a.d_model, a.d_head, draws))


def _writer(W_O: Tensor, W_V: Tensor) -> Tensor:
    """W_O R^T / |W_OV| [m, r] with W_V^T = Q R, which has the norms of W_OV in every direction"""
    factor = W_O @ triangle(W_V.T).T
    return factor / factor.norm()


def _reader(head: Head, kind: CompositionKind, offset: int | None) -> Tensor:
    """R B / |A B| [r, m] for the reading circuit A B [m, m] with A = Q R"""
    # layers without rotation (positions.every) have one QK circuit for all offsets
    back = offset if head.is_rotated or not head.circuits.architecture.positions.every else None
    circuit = {"Q": lambda: head.qk(back).T, "K": lambda: head.qk(back), "V": lambda: head.ov}[kind]()
    factor = triangle(circuit.left) @ circuit.right
    return factor / factor.norm()


def _block_norms(written: Tensor, read: Tensor) -> Tensor:
    """|read_2 written_1| for every pair [n_written, n_read]   [n_written, m, r], [n_read, r', m]"""
    n, _, r = written.shape
    product = read.flatten(0, 1) @ written.transpose(0, 1).flatten(1)
    return product.unflatten(1, (n, r)).unflatten(0, (read.size(0), -1)).square().sum((1, 3)).sqrt().T


def _baseline(d_model: int, d_head: int, draws: int) -> tuple[float, float]:
    """Mean and standard deviation of the score of random heads with entries N(0, 1), drawn by a separate generator."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> tuple[Tensor, Tensor]:
        return torch.randn(d_model, d_head, generator=generator), torch.randn(d_head, d_model, generator=generator)

    norms = []
    for _ in range(draws):
        (left, right), (out, value) = drawn(), drawn()
        read = triangle(left) @ right
        norms.append((read / read.norm() @ _writer(out, value)).norm())
    scores = torch.stack(norms)
    return float(scores.mean()), float(scores.std())
