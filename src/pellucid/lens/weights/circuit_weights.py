"""The weights of attention heads and neurons, with the embedding and the unembedding."""

from typing import Any, get_args

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.lens.core.input_view import VocabularyView
from pellucid.lens.weights.factored_matrix import exact
from pellucid.lens.weights.folding import weights_view
from pellucid.tensor_names import AttentionPart
from pellucid.text_model import Model


class CircuitError(ValueError):
    """A circuit that this architecture does not have."""


class CircuitWeights(VocabularyView):
    """The weights of one part of a network, raw or folded, with its embedding and unembedding.

    Every matrix is a view of the network's own memory unless something is folded.
    """

    def __init__(
        self,
        model: Model,
        *,
        part: AttentionPart = "attn",
        fold_norms: bool = False,
        centre: bool = False,
    ):
        if part not in get_args(AttentionPart):
            raise CircuitError(f"part = {part!r}: give one of {', '.join(get_args(AttentionPart))}")
        if part != "attn" and model.architecture.encoder is None:
            raise CircuitError(f"part = {part}: this architecture has no encoder, so leave part out")
        self.network, self.tokenizer, self.part = model.network, model.tokenizer, part
        self.weights = weights_view(model, fold_norms=fold_norms, centre=centre)
        self.fold_norms, self.centre, self.folded = fold_norms, centre, fold_norms or centre

    @property
    def architecture(self) -> Architecture:
        """The architecture of this part."""
        a = self.network.architecture
        return a.encoder if self.part == "encoder" and a.encoder is not None else a

    @property
    def n_ids(self) -> int:
        return self.architecture.n_vocab

    @property
    def engine(self) -> Any:
        """The module of this part: the network, or its encoder."""
        return self.network.encoder if self.part == "encoder" else self.network

    def prefix(self, layer: int) -> str:
        """The prefix of the names of a block's attention weights."""
        scope = "cross" if self.part == "cross" else "attn"
        return f"{'encoder.' if self.part == 'encoder' else ''}blocks.{layer}.{scope}."

    @property
    def W_E(self) -> Tensor:  # noqa: N802
        """[v, m], a row for each token, before embed_scale and a norm; with d_embed W_E P^T, without b_P."""
        own = self.part == "encoder" and self.network.architecture.source_embed == "own"
        table = self.weights["encoder.embed.token.weight" if own else "embed.token.weight"]
        if not self.architecture.d_embed:
            return table
        return table @ self.weights[f"{'encoder.' if self.part == 'encoder' else ''}embed.projection.weight"].T

    @property
    def W_U(self) -> Tensor:  # noqa: N802
        """[v, m], times logit_scale: logits = x W_U^T; with d_embed W_U Q.

        Raises CircuitError where the readout is not linear.
        """
        a = self.architecture
        if self.part == "encoder":
            raise CircuitError("an encoder's stream is read by the decoder's blocks, not by an unembedding")
        if a.readout == "none":
            raise CircuitError("readout = none: this model has no unembedding; use its circuits in the stream")
        if a.readout == "bert":
            raise CircuitError(
                "readout = bert: a nonlinear map is between the stream and W_U, so a write to the stream has no "
                "logit of its own; use the circuits in the stream, .ov and .qk()"
            )
        name = "unembed.weight" if self.weights.architecture.unembed == "untied" else "embed.token.weight"
        W_U = self.weights[name] @ self.weights["unembed.projection.weight"] if a.d_embed else self.weights[name]
        return W_U if a.logit_scale == "1" else W_U * a.unembed_scale

    def written(self, W: Tensor) -> Tensor:
        """What W, whose columns are a sublayer's outputs, adds to the stream: W times residual_scale."""
        r = self.architecture.residual_scale
        return W if r == 1 else r * W

    @property
    def read_E(self) -> Tensor:  # noqa: N802
        """c W_E [v, m] with c = embed_scale: the input of a head for each token."""
        if self.part == "cross":
            raise CircuitError("cross-attention reads the encoder's output, which no embedding matrix gives")
        return self.W_E if self.architecture.embed_scale == "1" else self.W_E * self.architecture.embed_factor

    @property
    def gram(self) -> Tensor:
        """G = (c W_E)^T W_U [m, m], float32 or better"""
        return exact(self.read_E).T @ exact(self.W_U)
