"""Edits that are a change of weights: an ablated head or neuron, an added bias, written into the network for good."""

import copy
import re
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pellucid.edits import Edit, EditError
from pellucid.lens.editing import among, resolve
from pellucid.model import Transformer
from pellucid.model.norm import Unchanged
from pellucid.model.transformer import Encoder
from pellucid.names import axes

#: ops that are x -> factor x + value, whatever x is
AFFINE = ("zero", "scale", "add", "set", "mean", "resample", "freeze")

#: what a sublayer adds, and the norm that it may have gone through
NORMED = {"attn_out": "norm_1_out", "mlp_out": "norm_2_out"}


def with_edits(network: Transformer, edits: Sequence[Edit]) -> Transformer:
    """A copy of the network whose weights do what the edits do, at every position of every text.

    What can be written so is zero, scale, add, and setting to a value (set, a measured mean, resample, freeze) of
    q, k, v, z, result, attn_out, mlp.pre, mlp.gate, mlp.post and mlp_out (and their like in cross-attention and in an
    encoder), all of it or by head and neuron. Raises EditError for anything else, and where a value needs a bias that
    the architecture has not, naming the word.
    """
    made = copy.deepcopy(network)
    for edit in resolve(edits, network.architecture):
        if edit.op not in AFFINE or edit.over is not None or (edit.op == "freeze" and edit.value is None):
            raise EditError(f"{edit.op} of {edit.name} depends on the run: it is not a change of weights")
        if any(getattr(edit, place) is not None for place in ("pos", "row", "key")):
            raise EditError(f"{edit.op} of {edit.name} at some positions or rows alone is not a change of weights")
        with torch.no_grad():
            _write(made, edit)
    return made


def _write(network: Transformer, edit: Edit) -> None:
    """x' = factor x + shift for the entries that the edit chooses, on the input or the output of a linear map."""
    part, name = _part(network, edit.name)
    match = re.match(r"^blocks\.(\d+)\.(.+)$", name)
    if match is None:
        raise EditError(f"{edit.op} of {edit.name} is not a change of the weights of a linear map")
    block, inner = cast(Any, part.blocks[int(match[1])]), match[2]
    factor, shift, chosen = _affine(edit, part)
    if inner.endswith((".z", ".result")):
        attention = block.attn if inner.startswith("attn") else block.cross
        _change_heads(attention.out, factor, shift, chosen, inner.endswith(".result"), edit)
    elif inner.startswith("mlp.post"):
        number = int(inner.removeprefix("mlp.post").lstrip(".") or 0) + 1
        reader = block.mlp.up[number] if number < len(block.mlp.up) else block.mlp.down
        _change_input(reader, factor, shift, chosen, edit)
    elif inner in NORMED and not isinstance(getattr(block, NORMED[inner]), Unchanged):
        raise EditError(f"{edit.op} of {edit.name} comes after a norm: it is not a change of weights of a linear map")
    else:
        _change_output(_writer(block, inner, edit), factor, shift, chosen, edit)


def _writer(block: Any, inner: str, edit: Edit) -> nn.Linear:
    """The linear map whose output the tensor is."""
    for scope, attention in (("attn", "attn"), ("cross", "cross")):
        for name, module in ((".q", "query"), (".k", "key"), (".v", "value"), ("_out", "out")):
            if inner == scope + name:
                return getattr(getattr(block, attention), module)
    if inner == "mlp.gate":
        return block.mlp.gate
    if inner.startswith("mlp.pre"):
        return block.mlp.up[int(inner.removeprefix("mlp.pre").lstrip(".") or 0)]
    if inner == "mlp_out":
        return block.mlp.down
    raise EditError(f"{edit.op} of {edit.name} is not a change of the weights of a linear map")


def _part(network: Transformer, full: str) -> tuple[Encoder, str]:
    """The decoder or the encoder that a name belongs to, and the name inside it."""
    if full.startswith("encoder."):
        assert network.encoder is not None
        return network.encoder, full.removeprefix("encoder.")
    return network, full


def _affine(edit: Edit, part: Encoder) -> tuple[float, Tensor, Tensor]:
    """factor, shift and which entries are meant, the last two over (head and) the last axis of the tensor."""
    a, letters = part.architecture, axes(edit.name)
    sizes = {"h": a.n_heads, "g": a.n_kv_heads, "d": a.d_head, "m": a.d_model, "f": a.d_ff}
    inner = [letter for letter in letters if letter in sizes]
    shape = [sizes[letter] for letter in inner]
    chosen = torch.ones(shape, dtype=torch.bool)
    for place, letter in (("head", "h"), ("kv_head", "g"), ("neuron", "f")):
        given = getattr(edit, place)
        if given is not None:
            here = among(torch.arange(sizes[letter]), given)
            chosen = chosen & here.view([-1 if k == inner.index(letter) else 1 for k in range(len(inner))])
    value = torch.as_tensor(0.0 if edit.value is None else edit.value, dtype=torch.float64, device="cpu")
    if value.ndim == len(letters):
        if any(value.size(k) > 1 for k, letter in enumerate(letters) if letter in "bij"):
            raise EditError(f"the value for {edit.name} differs from position to position: no weight does that")
        value = value.reshape([value.size(k) for k, letter in enumerate(letters) if letter in sizes])
    factor = edit.factor if edit.op == "scale" else 1.0 if edit.op == "add" else 0.0
    shift = (edit.factor if edit.op == "add" else 1.0) * value
    return factor, shift.expand(shape), chosen


def _change_output(linear: nn.Linear, factor: float, shift: Tensor, chosen: Tensor, edit: Edit) -> None:
    """Rows of W and entries of b."""
    rows, weight = chosen.flatten().to(linear.weight.device), linear.weight
    weight[rows] *= factor
    if linear.bias is not None:
        linear.bias[rows] *= factor
    _add_bias(linear, torch.where(chosen, shift, 0).flatten(), edit)


def _change_input(linear: nn.Linear, factor: float, shift: Tensor, chosen: Tensor, edit: Edit) -> None:
    """Columns of W; what they make of the shift goes into b."""
    moved = linear.weight.double() @ torch.where(chosen, shift, 0).flatten().to(linear.weight.device)
    linear.weight[:, chosen.flatten().to(linear.weight.device)] *= factor
    _add_bias(linear, moved, edit)


def _change_heads(out: nn.Linear, factor: float, shift: Tensor, chosen: Tensor, in_stream: bool, edit: Edit) -> None:
    """Columns of W_O head by head; a shift of a head's result is in the stream's coordinates already."""
    if not in_stream:
        return _change_input(out, factor, shift, chosen, edit)
    heads = chosen.any(-1)
    columns = heads[:, None].expand(-1, out.in_features // len(heads)).flatten()
    out.weight[:, columns.to(out.weight.device)] *= factor
    return _add_bias(out, torch.where(chosen, shift, 0).sum(0), edit)


def _add_bias(linear: nn.Linear, shift: Tensor, edit: Edit) -> None:
    """b += shift; refused where there is no b to add to."""
    if not shift.any():
        return
    if linear.bias is None:
        word = "mlp.bias" if ".mlp" in edit.name else "attention.bias"
        raise EditError(
            f"{edit.op} of {edit.name} adds a vector, and with {word} as it is this map has no bias to take it up"
        )
    linear.bias.add_(shift.to(linear.bias))
