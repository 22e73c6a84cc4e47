"""The nodes of an attribution graph."""

from dataclasses import dataclass
from typing import Literal

from pellucid.features.graph_scores import GraphError
from pellucid.features.replacement import ENCODED

#: feature   of a dictionary, where it is active
#: error     what an MLP wrote beyond its dictionary; the whole of it in a layer without one
#: token, position, segment, n-gram   the embeddings that are summed
#: source    a position of an encoder's output
#: bias      all that does not depend on the text: biases of norms, attention, encoders, decoders and the readout
#: logit     of a token that may come next
NodeKind = Literal["feature", "error", "token", "position", "segment", "n-gram", "source", "bias", "logit"]
#: the kind of each source that is no MLP's output
EMBEDDED: dict[str, NodeKind] = {
    "embed": "token",
    "pos_embed": "position",
    "seg_embed": "segment",
    "ngram_embed": "n-gram",
    ENCODED: "source",
}
#: what is the text: where influence may end without being an error
INPUT_KINDS: tuple[NodeKind, ...] = ("token", "segment", "n-gram", "source")
#: what is the same for every text, which scores and pruning leave out
CONSTANT_KINDS: tuple[NodeKind, ...] = ("position", "bias")


@dataclass(frozen=True)
class GraphNode:
    """One node.

    layer   of features and errors
    pos     the position, from 0; of a logit the one that predicts it; None for the bias
    index   the feature in its dictionary, or the id of a token or logit
    value   a feature's activation, which is also its pre-activation; the logit, before a cap
    text    of a token, n-gram or logit; of a feature or error the token at its position
    probability   of a logit
    """

    kind: NodeKind
    layer: int | None = None
    pos: int | None = None
    index: int | None = None
    value: float | None = None
    text: str = ""
    probability: float | None = None

    def __str__(self) -> str:
        if self.kind == "bias":
            return "bias"
        if self.kind == "logit":
            return f"logit of {self.text!r}"
        where = f"at {self.pos} {self.text!r}"
        if self.kind == "feature":
            return f"feature {self.layer}.{self.index} {where}"
        return f"error {self.layer} {where}" if self.kind == "error" else f"{self.kind} {where}"

    @property
    def of_feature(self) -> tuple[int, int, int, float]:
        """Layer, position, index and activation of a feature. Raises GraphError for other nodes."""
        numbers = (self.layer, self.pos, self.index, self.value)
        if self.kind != "feature" or None in numbers:
            raise GraphError(f"{self} is no feature with an activation")
        return numbers  # type: ignore[return-value]

    @property
    def of_logit(self) -> tuple[int, int]:
        """Position and token of a logit. Raises GraphError for other nodes."""
        if self.kind != "logit" or self.pos is None or self.index is None:
            raise GraphError(f"{self} is no logit")
        return self.pos, self.index
