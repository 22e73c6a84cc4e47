"""A trace in TransformerLens's classic names, shapes and conventions, so that notebooks written for it keep working."""

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.tensor_names import axes, canonical, classic_names, names


def as_transformer_lens(t: Recording) -> dict[str, Tensor]:
    """Every tensor that has a classic name in TransformerLens, with the axes in TransformerLens's order.

    Queries, keys, values, z and results are [b, pos, head, ...] there. `hook_normalized` is (x - mu) / sigma, before
    gain and bias; no weight is folded or centred, so the numbers are those of
    `enable_compatibility_mode(no_processing=True)`. With a logit_cap, `unembed.hook_out` holds the logits before the
    cap, as in TransformerLens. Raises InputError for encoder-decoders.
    """
    if t.architecture.encoder is not None:
        raise InputError(
            "TransformerLens names the tensors of encoder-decoders differently: use the names of pellucid.tensor_names"
        )
    theirs = their_names(t.architecture)
    ours_by_name = t.tensors(list(dict.fromkeys(theirs.values())))
    renamed = {name: in_their_order(ours, ours_by_name[ours]) for name, ours in theirs.items()}
    if t.architecture.logit_cap:
        renamed["unembed.hook_out"] = t.logits_before_cap()
    return renamed


def their_names(a: Architecture) -> dict[str, str]:
    """TransformerLens's classic names of tensors that this architecture computes -> our full names, in our order."""
    theirs_of: dict[str, list[str]] = {name: [] for name in names(a)}
    for template in classic_names(a):
        layers = range(a.n_layers) if template.startswith("blocks.i.") else range(1)
        for theirs in (template.replace("blocks.i.", f"blocks.{layer}.") for layer in layers):
            theirs_of.get(canonical(theirs, a), []).append(theirs)
    return {theirs: ours for ours, aliases in theirs_of.items() for theirs in aliases}


def in_their_order(full: str, x: Tensor) -> Tensor:
    """The tensor with its head axis after the position axis, where each head has a vector."""
    letters = axes(full)
    return x.transpose(1, 2) if letters[1] in "hg" and letters[-1] in "dm" else x
