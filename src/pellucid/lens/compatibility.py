"""A trace in TransformerLens's names, shapes and conventions, so that notebooks written for it keep working."""

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.lens.inputs import InputError
from pellucid.lens.trace import Trace
from pellucid.names import axes, names, row


def as_transformer_lens(t: Trace) -> dict[str, Tensor]:
    """Every tensor that TransformerLens has a classic name for, under that name and with its axes in its order.

    Queries, keys, values, z and results are [b, pos, head, ...] there. `hook_normalized` is (x - mu) / sigma, before
    gain and bias, as in HookedTransformer; no weight is folded or centred, so numbers are those of
    `HookedTransformer.from_pretrained_no_processing`. Raises InputError for encoder-decoders.
    """
    if t.architecture.encoder is not None:
        raise InputError("TransformerLens has other names for encoder-decoders: use ours")
    theirs = {name: their_name(name, t.architecture) for name in names(t.architecture)}
    found = t.tensors([name for name, other in theirs.items() if other])
    return {theirs[name]: in_their_order(name, x) for name, x in found.items()}


def their_name(full: str, a: Architecture) -> str:
    """TransformerLens's classic name of a tensor of ours, "" where it has none."""
    classic = row(full).transformer_lens
    if full.endswith(".mlp.pre") and a.mlp.form == "plain":
        classic = "blocks.i.mlp.hook_pre"
    return classic.replace("blocks.i.", ".".join(full.split(".")[:2]) + ".")


def in_their_order(full: str, x: Tensor) -> Tensor:
    """Heads behind positions where each head has a vector."""
    letters = axes(full)
    return x.transpose(1, 2) if letters[1] in "hg" and letters[-1] in "dm" else x
