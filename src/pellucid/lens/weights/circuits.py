"""A network's weights without any text: its heads as matrices, read through the vocabulary."""

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

        circuits[5, 1].promotes(" Mary")       what head 1 of block 5 writes when it attends to this token
        circuits[5, 1].looks_for(" to")        which keys a query at this token scores highest
        circuits.copying()                     the copying score of every head [layer, head]
        circuits.compose("K")                  which head reads its keys from which
        circuits.neuron(3, 17).writes()        what a neuron adds to the logits

    part        attn: the blocks' own attention; cross: to an encoder's output; encoder: the encoder's own
    fold_norms  read the weights with the norms' gains folded in (`pellucid.lens.weights.folding`); centre likewise.
                Without them the weights are the raw ones, and a norm's gain stands between what one part writes
                and another reads

    Every matrix is a view of the network's own memory unless something is folded. Heads of grouped queries share
    their key and value matrices.
    """

    # One head, one neuron -------------------------------------------------------------------

    def head(self, layer: int, head: int) -> Head:
        """One head; CircuitError where there is none of this number."""
        a = self.architecture
        if not (0 <= layer < a.n_layers and 0 <= head < a.n_heads):
            raise CircuitError(
                f"head {head} of block {layer}: there are {a.n_layers} blocks of {a.n_heads} heads, numbered from 0"
            )
        return Head(self, layer, head)

    def __getitem__(self, index: tuple[int, int]) -> Head:
        return self.head(*index)

    def neuron(self, layer: int, neuron: int, hidden: int = 0) -> Neuron:
        """One neuron of a block's MLP, as a key and a value; `hidden` says of which hidden layer."""
        return Neuron(self, layer, neuron, hidden)

    def virtual(self, first: tuple[int, int], second: tuple[int, int]) -> FactoredMatrix:
        """W_OV of the virtual head that `second` makes of what `first` wrote: W_OV^second W_OV^first [m, m].

        With patterns A_1 and A_2 held fixed it moves along A_2 A_1 (S0 Remark 3.1, erratum E-20; Elhage et al. 2021).
        """
        return self[second].ov @ self[first].ov

    # All heads at once ----------------------------------------------------------------------

    def copying(self) -> Tensor:
        """sum(l) / sum(|l|) over the eigenvalues l of W_U W_OV W_E^T, for every head [layer, head], in [-1, 1].

        1: the head writes what raises the logits of the tokens it attends to; -1: it lowers them (Elhage et al. 2021,
        "copying / primarily positive eigenvalues"). The [v, v] matrix is never formed: its eigenvalues that are not 0
        are those of W_V G W_O [d, d] with G = W_E^T W_U [m, m]. Norms between are left out unless they are folded.
        """
        G = self.gram
        rows = []
        for l in range(self.architecture.n_layers):
            heads = [self[l, h] for h in range(self.architecture.n_heads)]
            small = torch.stack([exact(h.W_V) @ (G @ exact(h.W_O)) for h in heads])
            rows.append(ratio(torch.linalg.eigvals(small)))
        return torch.stack(rows) if rows else torch.zeros(0, self.architecture.n_heads)

    def compose(self, kind: Literal["Q", "K", "V"], offset: int | None = None, draws: int = 64) -> Composition:
        """How much every head reads what every earlier head wrote (`pellucid.lens.weights.composition.compose`)."""
        return compose(self, kind, offset, draws)

    def show(self) -> Figure:
        """Every head by its weights, as a table."""
        return show(self)

    def __repr__(self) -> str:
        a = self.architecture
        return f"Circuits({a.n_layers} blocks of {a.n_heads} heads, d_head {a.d_head}, {self.part})"
