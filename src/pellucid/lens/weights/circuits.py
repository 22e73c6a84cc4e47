"""Circuits: the heads and neurons of a network as matrices, from its weights, without any text."""

from typing import Literal

import torch
from torch import Tensor

from pellucid.lens.show.figure import Figure, show
from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.composition import Composition, compose
from pellucid.lens.weights.factored_matrix import FactoredMatrix, exact
from pellucid.lens.weights.head_weights import Head, ratio
from pellucid.lens.weights.neurons import Neuron


class Circuits(CircuitWeights):
    """The heads and neurons of a network, from its weights alone.

        circuits[5, 1].promotes(" Mary")       the logits that head 1 of block 5 raises when it attends to this token
        circuits[5, 1].looks_for(" to")        the keys that a query at this token scores highest
        circuits.copying()                     the copying score of every head [layer, head]
        circuits.compose("K")                  how much the keys of each head depend on earlier heads
        circuits.neuron(3, 17).writes()        the logits that a neuron raises

    part        attn: self-attention; cross: cross-attention to an encoder's output; encoder: the encoder's attention
    fold_norms  fold the norms' gains into the weights (`pellucid.lens.weights.folding`). Without it the weights are
                raw, and a norm's gain is between the output of one part and the input of another
    centre      subtract from all writes to the stream their mean over d_model (same module)

    Every matrix is a view of the network's own memory unless something is folded. Heads of grouped queries share
    their key and value matrices.
    """

    # One head, one neuron -------------------------------------------------------------------

    def head(self, layer: int, head: int) -> Head:
        """One head. Raises CircuitError where it does not exist."""
        a = self.architecture
        if not (0 <= layer < a.n_layers and 0 <= head < a.n_heads):
            raise CircuitError(
                f"head {head} of block {layer}: there are {a.n_layers} blocks of {a.n_heads} heads, numbered from 0"
            )
        return Head(self, layer, head)

    def __getitem__(self, index: tuple[int, int]) -> Head:
        return self.head(*index)

    def neuron(self, layer: int, neuron: int, hidden: int = 0) -> Neuron:
        """One neuron of a block's MLP, as a key and a value; `hidden` is the number of its hidden layer."""
        return Neuron(self, layer, neuron, hidden)

    def virtual(self, first: tuple[int, int], second: tuple[int, int]) -> FactoredMatrix:
        """W_OV of the virtual head in which `second` reads the output of `first`: W_OV^second W_OV^first [m, m].

        With fixed patterns A_1 and A_2 its pattern is A_2 A_1 (Becker-Kahn, Remark 3.1, with erratum E-20 corrected).
        """
        return self[second].ov @ self[first].ov

    # All heads at once ----------------------------------------------------------------------

    def copying(self) -> Tensor:
        """sum(l) / sum(|l|) over the eigenvalues l of W_U W_OV W_E^T, for every head [layer, head], in [-1, 1].

        1: the head raises the logits of the tokens that it attends to; -1: it lowers them (Elhage et al. 2021,
        "copying / primarily positive eigenvalues"). The [v, v] matrix is never computed: its nonzero
        eigenvalues are those of W_V G W_O [d, d] with G = W_E^T W_U [m, m]. Norms are ignored unless they are folded.
        """
        G = self.gram
        rows = []
        for l in range(self.architecture.n_layers):
            heads = [self[l, h] for h in range(self.architecture.n_heads)]
            small = torch.stack([exact(h.W_V) @ (G @ exact(h.W_O)) for h in heads])
            # on a GPU it needs a library that not every build of PyTorch has
            rows.append(ratio(torch.linalg.eigvals(small.cpu())).to(small.device))
        return torch.stack(rows) if rows else torch.zeros(0, self.architecture.n_heads)

    def compose(self, kind: Literal["Q", "K", "V"], offset: int | None = None, draws: int = 64) -> Composition:
        """Composition scores: how much every head reads from every earlier head
        (`pellucid.lens.weights.composition.compose`).
        """
        return compose(self, kind, offset, draws)

    def show(self) -> Figure:
        """Every head by its weights, as a table."""
        return show(self)

    def __repr__(self) -> str:
        a = self.architecture
        return f"Circuits({a.n_layers} blocks of {a.n_heads} heads, d_head {a.d_head}, {self.part})"
