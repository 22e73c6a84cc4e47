"""A view of weights with the norms folded in or the mean subtracted; the network is not changed."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.text_model import Model

WeightChange = Callable[[Tensor], Tensor]


class FoldError(ValueError):
    """The norms cannot be folded, or the mean cannot be subtracted, without changing the logits."""


class WeightsView(Mapping[str, Tensor]):
    """The weights of a network as they are now, by name, read-only; a changed tensor is computed when it is read.

    architecture  that of these weights: a tied readout has become untied
    b_U           [v], to be added to the logits of that architecture: zero unless a final norm's bias was folded

    Unchanged tensors share the network's memory, which is never written to here: to change one, clone() it.
    """

    def __init__(self, network: Transformer):
        self.network, self.architecture = network, network.architecture
        self._own = dict(network.named_parameters())
        self._changes: dict[str, list[WeightChange]] = {}

    def __getitem__(self, name: str) -> Tensor:
        own = self._own
        if name not in own and name != "unembed.weight":
            raise KeyError(f"there is no weight {name!r}; list(view) names them")
        value = own["embed.token.weight" if name not in own else name].detach()
        for change in self._changes.get(name, []):
            value = change(value)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        if self.architecture.unembed == "untied" and "unembed.weight" not in self._own:
            yield "unembed.weight"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def b_U(self) -> Tensor:  # noqa: N802
        a, own = self.architecture, state_of(self.network)
        zero = torch.zeros(a.n_vocab, dtype=self["embed.token.weight"].dtype, device=self["embed.token.weight"].device)
        folded = "final_norm.bias" in self._changes
        if not folded:
            return zero
        W_U = a.unembed_scale * own.get("unembed.weight", own["embed.token.weight"])
        bias = own["final_norm.bias"]
        return W_U @ (own["unembed.projection.weight"] @ bias if a.d_embed else bias)

    def _change(self, name: str, change: WeightChange) -> None:
        self._changes.setdefault(name, []).append(change)


def weights_view(model: Model, *, fold_norms: bool = False, centre: bool = False) -> WeightsView:
    """The model's weights, read-only and possibly folded; they give the same logits up to b_U, or the same stream
    where readout = none.

    fold_norms  W' = W diag(gain), b' = b + W bias in the linear maps after a norm, whose gain is then 1 and bias 0
                (Goon 1.1.1.1, with erratum E-34 corrected)
    centre      all writes to the stream have mean zero over d_model, which layer norms subtract anyway

    Raises FoldError where the function would change: post-norm blocks, whose norm's output is the stream; the bert
    readout; an encoder's norms; a bias for a linear map that has none; a stream that is read without a layer norm.
    """
    view = WeightsView(model.network)
    if fold_norms:
        _check_fold(model.architecture)
        _fold_norms(view)
    if centre:
        _check_centre(model.architecture)
        _centre(view)
    if (fold_norms or centre) and model.architecture.readout != "none":
        view.architecture = model.architecture.with_fields({"unembed": "untied"})
    return view


def _check_fold(a: Architecture) -> None:
    reasons = {
        "block = post: a norm's output is the stream itself, which more than one linear map reads": a.block == "post",
        "readout = bert: a nonlinear map follows the final norm": a.readout == "bert",
        "norm.kind = none: there is nothing to fold": a.norm.kind == "none",
        f"logit_cap = {a.logit_cap}: the contribution of the final norm's bias would be before the cap": a.logit_cap > 0
        and (a.final_norm, a.norm.kind, a.norm.bias) == ("norm", "layer", "all"),
        "an encoder's final norm is read by every block": a.encoder is not None,
        "the norms have biases, and linear maps without one cannot absorb them": a.norm.kind == "layer"
        and a.norm.bias == "all"
        and not (a.attention.bias in ("qkv", "all") and a.mlp.bias == "all" and not a.mlp.experts),
    }
    for reason, holds in reasons.items():
        if holds:
            raise FoldError(f"norms cannot be folded here: {reason}; use the raw weights")


def _fold_norms(view: WeightsView) -> None:
    """Move every norm into the linear maps that read it."""
    a = view.architecture
    first = _first_maps(a)
    for l in range(a.n_layers):
        readers = {"norm_1": ["attn.query", "attn.key", "attn.value"], "norm_2": first}
        if a.block == "shared":
            readers = {"norm_1": readers["norm_1"] + first}
        for norm in readers.keys() & {*a.norms_of(l)}:
            _fold(view, f"blocks.{l}.{norm}", [f"blocks.{l}.{reader}" for reader in readers[norm]])
    if a.final_norm == "norm" and a.readout != "none":  # without a readout its output is the result
        _fold(view, "final_norm", ["unembed.projection" if a.d_embed else "unembed"])


def _first_maps(a: Architecture) -> list[str]:
    """The linear maps of a block's MLP, or mixture of experts, that read its norm."""
    of_one = ["gate", "up.0"] if a.mlp.form == "gated" else ["up.0" if a.mlp.n_hidden else "down"]
    if not a.mlp.experts:
        return [f"mlp.{name}" for name in of_one]
    scopes = [f"experts.{e}" for e in range(a.mlp.experts)] + ["shared.mlp"] * (a.mlp.shared_d_ff > 0)
    routed = ["mlp.router"] + ["mlp.shared.scale"] * (a.mlp.shared_d_ff > 0 and a.mlp.shared_gate == "sigmoid")
    return routed + [f"mlp.{scope}.{name}" for scope in scopes for name in of_one]


def _fold(view: WeightsView, norm: str, readers: list[str]) -> None:
    own = view._own
    added = float(view.architecture.norm.gain == "1+g")
    gain, bias = own.get(f"{norm}.gain"), own.get(f"{norm}.bias")
    for reader in readers:
        if gain is not None:
            view._change(f"{reader}.weight", lambda W: W * (gain.detach() + added))
        if bias is not None and f"{reader}.bias" in own and reader != "unembed":  # its contribution is b_U
            W = own[f"{reader}.weight"]
            view._change(f"{reader}.bias", lambda b, W=W: b + W.detach() @ bias.detach())
    if gain is not None:
        view._change(f"{norm}.gain", lambda g: torch.full_like(g, 1 - added))
    if bias is not None:
        view._change(f"{norm}.bias", torch.zeros_like)


#: blocks that read the stream without a norm, or write a norm's output into it
UNCENTRED = ("post", "inner", "sandwich")


def _check_centre(a: Architecture) -> None:
    last = a.final_norm == "norm" and a.norm.kind == "layer"
    uncentred = a.block in UNCENTRED or (a.first_norm == "none" and a.n_layers > 0)
    if a.norm.kind != "layer" or not last or a.encoder is not None or uncentred:
        raise FoldError(
            "the stream's mean is read here: it can be subtracted only where a layer norm precedes everything that "
            "reads the stream (norm.kind = layer, first_norm = final_norm = norm, no encoder; pre, parallel or "
            "shared blocks)"
        )


def _centre(view: WeightsView) -> None:
    """Subtract the mean over d_model from all weights that write to the stream."""
    a = view.architecture
    tables = () if a.embed_projection == "sum" else ("embed.position.", "embed.segment.", "embed.ngrams.")
    tables += () if a.d_embed else ("embed.token.",)
    for name in view._own:
        if name.startswith(tables):
            view._change(name, lambda rows: rows - rows.mean(1, keepdim=True))
        elif name.endswith(("attn.out.weight", ".down.weight")) or name == "embed.projection.weight":
            view._change(name, lambda W: W - W.mean(0, keepdim=True))
        elif name.endswith(("attn.out.bias", ".down.bias")) or name == "embed.projection.bias":
            view._change(name, lambda b: b - b.mean())
