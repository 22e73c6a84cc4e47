"""The readout as an exact linear map of the stream, with its nonlinear functions frozen at their values.

logits = W_U x + b_U is linear. The bert readout is W_U norm(f(W x + b)) + b_U. With f frozen at the factor f(h) / h by
which it multiplied each h = W x + b, and the norm at its scale, it is linear too and gives the same logits. A logit cap
follows after this, so attributions split the logit before the cap.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pellucid.lens.analysis.residual import Frozen
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.recording import Recording
from pellucid.model import Recorder
from pellucid.model.norm import Identity, LayerNorm


@dataclass(frozen=True)
class Readout:
    """The readout of a trace as a linear map.

    W_U    [v, m], times logit_scale; b_U [v], 0 where there is none. With d_embed it is W_U Q, or, behind a dense
           layer, W_U [v, d_embed]
    dense  the linear map before f, None where the readout has no f
    slope  f(h) / h [b, i, m]; the norm follows it
    """

    W_U: Tensor
    b_U: Tensor | None = None  # noqa: N815
    dense: nn.Linear | None = None
    slope: Tensor | None = None
    norm: Frozen = field(default_factory=Frozen)

    def back(self, w: Tensor) -> Tensor:
        """The direction at the readout's input that corresponds to w [b, i, m] at the input of W_U (the transposed
        map).
        """
        if self.dense is None or self.slope is None:
            return w
        return (self.slope * self.norm.back(w)) @ self.dense.weight.detach()

    def biases(self, w: Tensor) -> dict[str, Tensor]:
        """The contributions of the readout's biases along w [b, i], by name."""
        added = {}
        if self.dense is not None and self.dense.bias is not None and self.slope is not None:
            added["unembed.dense.bias"] = (self.slope * self.norm.back(w)) @ self.dense.bias.detach()
        if self.norm.bias is not None:
            added["unembed.norm.bias"] = w @ self.norm.bias
        return added


def readout_of(t: Recording) -> Readout:
    """The readout with the activations and the scale that it had in the trace."""
    a, unembed = t.architecture, t.module("unembed")
    W_U = a.unembed_scale * unembed.matrix.detach()
    own_bias = getattr(unembed, "bias", None)
    b_U = None if own_bias is None else own_bias.detach()
    if a.readout != "bert":
        return Readout(W_U, b_U)
    recorder = Recorder(["norm.scale"])
    with frozen_network(t.network):
        h = unembed.dense(t.read_out.detach())
        y = unembed.f(h)
        unembed.norm(y, recorder, "norm")
    slope = torch.where(h == 0, 0, y / h)  # f(0) = 0, so any slope is right there
    if isinstance(unembed.norm, Identity):
        return Readout(W_U, b_U, unembed.dense, slope)
    bias = getattr(unembed.norm, "bias", None)
    norm = Frozen(
        recorder.values["norm.scale"],
        unembed.norm.multiplier.detach(),
        None if bias is None else bias.detach(),
        isinstance(unembed.norm, LayerNorm),
    )
    return Readout(W_U, b_U, unembed.dense, slope, norm)


def is_readout_edited(t: Recording) -> bool:
    """Whether an edit behind the last stream changed the logits before the cap, which no write to it explains."""
    tensors = ("final_norm", "final_norm.normalized") + (() if t.architecture.logit_cap else ("logits",))
    return any(edit.name in tensors for edit in t.edits)


def about_the_readout(t: Recording) -> str:
    """A note for the parts of a logit: which functions were frozen, and whether it is before a cap; "" if linear."""
    a, said = t.architecture, []
    if a.readout == "bert":
        said.append("the activation in the readout is frozen at the factor f(h) / h by which it multiplied its input")
    if a.logit_cap:
        said.append(f"the logit is the one before the cap, logit_cap = {a.logit_cap:g}")
    return "; ".join(said)
