"""What a network's weights say without any text: its heads as matrices, read through the vocabulary."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.lens.core.spelling import Spelling
from pellucid.lens.weights.composition import Composition, compose
from pellucid.lens.weights.factored_matrix import FactoredMatrix
from pellucid.lens.weights.folding import weights_view
from pellucid.lens.weights.head_weights import CircuitError, Head, exact, ratio
from pellucid.lens.weights.neurons import Neuron
from pellucid.model import Transformer
from pellucid.text.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from pellucid.lens.show.figure import Figure

Part = Literal["attn", "cross", "encoder"]


class Circuits(Spelling):
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

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        part: Part = "attn",
        fold_norms: bool = False,
        centre: bool = False,
    ):
        if part not in get_args(Part):
            raise CircuitError(f"part = {part!r}: say one of {', '.join(get_args(Part))}")
        if part != "attn" and network.architecture.encoder is None:
            raise CircuitError(f"part = {part}: this architecture reads no encoder; leave part out")
        self.network, self.tokenizer, self.part = network, tokenizer, part
        self.weights = weights_view(network, fold_norms=fold_norms, centre=centre)
        self.folded = fold_norms or centre

    @property
    def architecture(self) -> Architecture:
        """Of the part that is looked at."""
        a = self.network.architecture
        return a.encoder if self.part == "encoder" and a.encoder is not None else a

    def prefix(self, layer: int) -> str:
        """The names of a block's attention weights begin so."""
        place = "cross" if self.part == "cross" else "attn"
        return f"{'encoder.' if self.part == 'encoder' else ''}blocks.{layer}.{place}."

    # One head, one neuron -------------------------------------------------------------------

    def head(self, layer: int, head: int) -> Head:
        """One head; CircuitError where there is none of this number."""
        a = self.architecture
        if not (0 <= layer < a.n_layers and 0 <= head < a.n_heads):
            raise CircuitError(
                f"head {head} of block {layer}: there are {a.n_layers} blocks of {a.n_heads} heads, numbered from 0"
            )
        return Head(self, layer, head)

    def __getitem__(self, place: tuple[int, int]) -> Head:
        return self.head(*place)

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

    def show(self) -> "Figure":
        """Every head by its weights, as a table."""
        from pellucid.lens.show import show_heads

        return show_heads(self)

    # The vocabulary -------------------------------------------------------------------------

    @cached_property
    def W_E(self) -> Tensor:  # noqa: N802
        """[v, m], a row for each token, as it enters the stream of this part: before embed_scale and a norm."""
        own = self.part == "encoder" and self.network.architecture.source_embed == "own"
        return self.weights["encoder.embed.token.weight" if own else "embed.token.weight"]

    @cached_property
    def W_U(self) -> Tensor:  # noqa: N802
        """[v, m], times logit_scale: logits = x W_U^T. CircuitError where the stream is not read out linearly."""
        a = self.architecture
        if self.part == "encoder":
            raise CircuitError("an encoder's stream is read by the decoder's blocks, not by an unembedding")
        if a.readout == "none":
            raise CircuitError("readout = none: this model has no unembedding; ask for its circuits in the stream")
        if a.readout == "bert":
            raise CircuitError(
                "readout = bert: a non-linear map stands between the stream and W_U, so nothing written there has "
                "a logit of its own; the circuits in the stream, .ov and .qk(), can be asked for"
            )
        name = "unembed.weight" if self.weights.architecture.unembed == "untied" else "embed.token.weight"
        return self.weights[name] if a.logit_scale == "1" else self.weights[name] * a.unembed_scale

    @cached_property
    def read_E(self) -> Tensor:  # noqa: N802
        """c W_E [v, m] with c = embed_scale: what a head of the blocks reads of a token."""
        if self.part == "cross":
            raise CircuitError("cross-attention reads the encoder's output, which no embedding matrix gives")
        return self.W_E if self.architecture.embed_scale == "1" else self.W_E * self.architecture.d_model**0.5

    @cached_property
    def gram(self) -> Tensor:
        """G = (c W_E)^T W_U [m, m], float32 or better"""
        return exact(self.read_E).T @ exact(self.W_U)

    @property
    def engine(self) -> Any:
        """The part of the network that is looked at."""
        return self.network.encoder if self.part == "encoder" else self.network

    def __repr__(self) -> str:
        a = self.architecture
        return f"Circuits({a.n_layers} blocks of {a.n_heads} heads, d_head {a.d_head}, {self.part})"
