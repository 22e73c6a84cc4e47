"""Writes edits into the weights: an ablated head or neuron, or a removed direction."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.edits import Edit, EditError
from pellucid.lens.core.interventions import among, axis_of, resolve
from pellucid.model import Transformer
from pellucid.model.norm import Identity
from pellucid.model.transformer import Backbone
from pellucid.tensor_names import EMBEDDINGS, axes, axis_sizes, is_stream, writers

#: operations of the form x -> M x + shift with a fixed matrix M
AFFINE = ("zero", "scale", "add", "set", "mean", "resample", "freeze", "project_out")

#: the output of a sublayer, and the norm that may follow it
NORMED = {"attn_out": "norm_1_out", "mlp_out": "norm_2_out"}


def with_edits(network: Transformer, edits: Sequence[Edit]) -> Transformer:
    """A copy of the network whose weights have the effect of the edits, at every position of every text.

    The operations are zero, scale, add, project_out, and setting to a value (set, a measured mean, resample, freeze).
    The tensors are the inputs and outputs of linear maps and tables: embed, pos_embed, seg_embed, ngram_embed,
    embed_projected, q, k, v, z, result, attn_out, mlp.pre, mlp.gate, mlp.post, mlp_out and logits, and the same in
    cross-attention and in an encoder, but not inside a mixture of experts; the whole tensor, or some of its heads and
    neurons. project_out(name, v) replaces W, whose output the tensor is, by (I - v v^T / v.v) W, and its bias likewise.
    Where a table is also the readout or another table, the copy has one for each, and its architecture says so
    (unembed = untied, source_embed = own).

    Raises EditError for anything else, and where a value needs a bias that the architecture lacks; it names the option.
    """
    # edits are computed in float64, which MPS lacks
    copied = copy.deepcopy(network).cpu()
    by_name: dict[str, list[Edit]] = {}
    for edit in resolve(edits, network.architecture):
        _check(edit, network.architecture)
        by_name.setdefault(edit.name, []).append(edit)
    # edits of a head's result come before those of z: both change W_O, from its two sides
    for name in sorted(by_name, key=lambda name: not name.endswith(".result")):
        with torch.no_grad():
            _write_tensor(copied, name, by_name[name])
    return copied.to(network.embed.token.weight.device)


def _check(edit: Edit, a: Architecture) -> None:
    """Raise EditError for edits that depend on the run or on the position, and for points of the stream."""
    what = f"{edit.op} of {edit.name}"
    if edit.op not in AFFINE or edit.over is not None or (edit.op == "freeze" and edit.value is None):
        raise EditError(f"{what} depends on the run: it is not a change of weights")
    if any(getattr(edit, option) is not None for option in ("pos", "row", "key")):
        raise EditError(f"{what} at some positions or rows alone is not a change of weights")
    if is_stream(edit.name, a):
        raise EditError(
            f"{what} is not a change of weights: no linear map writes this point of the stream by itself. What is "
            f"written up to there comes from {', '.join(writers(edit.name, a))}: edit these"
        )


def _write_tensor(network: Transformer, name: str, edits: list[Edit]) -> None:
    """Write all edits of one tensor, in order, into the input or the output of a linear map, or into a table."""
    part, inner = _backbone_of(network, name)
    changes = [_affine(edit, part) for edit in edits]
    of_tokens = part.architecture.d_embed > 0 and part.architecture.embed_projection == "tokens"
    if inner == "embed" and of_tokens:  # the projection writes the stream, not the table
        if any(change.shift.any() for change in changes):
            raise EditError(f"{edits[-1].op} of {name} adds a vector, and the projection of d_embed has no bias for it")
        return _change_output(part.embed.projection, changes, edits[-1])
    if inner == "embed_projected":
        return _change_output(part.embed.projection, changes, edits[-1])
    if inner in EMBEDDINGS:
        return _change_table(network, part, inner, changes, edits[-1])
    if inner == "logits":
        return _change_output(_readout(network, edits[-1]), changes, edits[-1])
    match = re.match(r"^blocks\.(\d+)\.(.+)$", inner)
    if match is None:
        raise _no_linear_map(edits[-1])
    block, inner = cast(Any, part.blocks[int(match[1])]), match[2]
    attention = block.cross if inner.startswith("cross") else block.attn
    if inner.startswith("mlp") and part.architecture.mlp.experts:
        raise EditError(
            f"{edits[-1].op} of {name} is not a change of weights: a mixture of experts chooses by position"
        )
    if inner.endswith(".result"):
        return _change_head_outputs(attention.out, changes, edits[-1])
    if inner.endswith(".z"):
        return _change_input(attention.out, changes, edits[-1])
    if inner.startswith("mlp.post"):
        number = int(inner.removeprefix("mlp.post").lstrip(".") or 0) + 1
        return _change_input([*block.mlp.up, block.mlp.down][number], changes, edits[-1])
    if inner in NORMED and not isinstance(getattr(block, NORMED[inner]), Identity):
        raise EditError(f"{edits[-1].op} of {name} comes after a norm: it is not a change of weights of a linear map")
    if inner in ("attn_out", "cross_out", "mlp_out"):  # c times what the map gives
        c = part.architecture.residual_scale
        changes = [replace(change, shift=change.shift / c) for change in changes]
    return _change_output(_writer(block, inner, edits[-1]), changes, edits[-1])


def _writer(block: Any, inner: str, edit: Edit) -> nn.Linear:
    """The linear map that has the tensor as its output."""
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
    raise _no_linear_map(edit)


def _no_linear_map(edit: Edit) -> EditError:
    return EditError(f"{edit.op} of {edit.name} is not a change of the weights of a linear map")


def _backbone_of(network: Transformer, full: str) -> tuple[Backbone, str]:
    """The decoder or the encoder that a name belongs to, and the name within it."""
    if full.startswith("encoder."):
        assert network.encoder is not None
        return network.encoder, full.removeprefix("encoder.")
    return network, full


@dataclass(frozen=True)
class Affine:
    """x -> M x + shift along the last axis of a tensor, separately for each head where it has heads.

    factor  of every entry: 1 where the edit does not apply
    shift   of every entry: 0 where the edit does not apply
    taken   for project_out: 1 where the edit applies, else 0; `unit` is the direction, of length 1; M = I - taken unit
            unit^T
    """

    factor: Tensor
    shift: Tensor
    taken: Tensor | None = None
    unit: Tensor | None = None

    def linear(self, x: Tensor) -> Tensor:
        """M x"""
        if self.unit is None or self.taken is None:
            return self.factor * x
        return x - self.taken * (x * self.unit).sum(-1, keepdim=True) * self.unit

    def transposed(self, x: Tensor) -> Tensor:
        """M^T x"""
        if self.unit is None or self.taken is None:
            return self.factor * x
        return x - (x * self.taken * self.unit).sum(-1, keepdim=True) * self.unit


def _affine(edit: Edit, part: Backbone) -> Affine:
    """The edit as a map of vectors, in float64 on the network's device."""
    a, letters = part.architecture, axes(edit.name)
    sizes = axis_sizes(edit.name, a)
    inner = [letter for letter in letters if letter in sizes]
    shape = [sizes[letter] for letter in inner]
    chosen = torch.ones(shape, dtype=torch.bool)
    for option in ("head", "kv_head", "neuron"):
        indices = getattr(edit, option)
        if indices is not None:
            axis = axis_of(option, inner)
            chosen = chosen & among(torch.arange(shape[axis]), indices).view(
                [-1 if k == axis else 1 for k in range(len(inner))]
            )
    numbers = edit.value.detach().cpu() if isinstance(edit.value, Tensor) else edit.value
    value = torch.as_tensor(0.0 if numbers is None else numbers, dtype=torch.float64, device="cpu")
    if value.ndim == len(letters):
        if any(value.size(k) > 1 for k, letter in enumerate(letters) if letter in "bij"):
            raise EditError(
                f"the value for {edit.name} differs between positions, which weights cannot "
                "express: give one value for all positions"
            )
        value = value.reshape([value.size(k) for k, letter in enumerate(letters) if letter in sizes])
    value, device = value.expand(shape), part.embed.token.weight.device
    if edit.op == "project_out":
        unit = (value / value.norm(dim=-1, keepdim=True)).to(device)
        return Affine(torch.ones_like(unit), torch.zeros_like(unit), chosen.to(unit), unit)
    factor = edit.factor if edit.op == "scale" else 1.0 if edit.op == "add" else 0.0
    shift = (edit.factor if edit.op == "add" else 1.0) * value
    factors = torch.where(chosen, torch.full_like(shift, factor), 1.0)
    return Affine(factors.to(device), torch.where(chosen, shift, 0.0).to(device))


def _change_output(linear: Any, changes: list[Affine], edit: Edit) -> None:
    """W <- M W and b <- M b + shift."""
    columns, bias = linear.weight.double().T, _bias(linear)
    shape = changes[0].shift.shape
    for change in changes:
        columns = change.linear(columns.unflatten(-1, shape)).flatten(-len(shape))
        bias = (change.linear(bias.view(shape)) + change.shift).flatten()
    linear.weight.copy_(columns.T)
    _set_bias(linear, bias, edit)


def _change_input(linear: nn.Linear, changes: list[Affine], edit: Edit) -> None:
    """W <- W M and b <- b + W shift, the last edit first, since it is the one next to W."""
    rows, bias = linear.weight.double(), _bias(linear)
    shape = changes[0].shift.shape
    for change in reversed(changes):
        bias = bias + rows @ change.shift.flatten()
        rows = change.transposed(rows.unflatten(-1, shape)).flatten(-len(shape))
    linear.weight.copy_(rows)
    _set_bias(linear, bias, edit)


def _change_head_outputs(out: nn.Linear, changes: list[Affine], edit: Edit) -> None:
    """W_O^h <- M_h W_O^h for every head; the shifts of all heads are added to the common bias."""
    n_heads = len(changes[0].shift)
    columns = out.weight.double().unflatten(1, (n_heads, -1)).permute(2, 1, 0)  # [d_head, head, d_model]
    shifts = torch.zeros_like(changes[0].shift)
    for change in changes:
        columns, shifts = change.linear(columns), change.linear(shifts) + change.shift
    out.weight.copy_(columns.permute(2, 1, 0).flatten(1))
    _set_bias(out, _bias(out) + shifts.sum(0), edit)


def _change_table(network: Transformer, part: Backbone, name: str, changes: list[Affine], edit: Edit) -> None:
    """Every row W[r] <- M W[r] + shift / c of a table whose rows are multiplied by c and added to the stream."""
    embed, c = part.embed, 1.0
    if name == "embed":
        _untie(network, part)
        tables, c = [part.embed.token], embed.scale
    elif name == "ngram_embed":
        if any(change.shift.any() for change in changes):
            raise EditError(
                f"{edit.op} of {edit.name} adds a vector, and positions without an n-gram have no row to add it to"
            )
        assert embed.ngrams is not None
        tables = list(embed.ngrams.tables.children())
    else:
        tables = [embed.position if name == "pos_embed" else embed.segment]
        if name == "pos_embed" and not part.architecture.learns_positions:
            kind = part.architecture.positions.kind
            raise EditError(f"{edit.op} of {edit.name}: positions.kind = {kind} is a formula, with no weight to change")
    for table in cast(list[nn.Embedding], tables):
        rows = table.weight.double()
        for change in changes:
            rows = change.linear(rows) + change.shift / c
        table.weight.copy_(rows)


def _untie(network: Transformer, part: Backbone) -> None:
    """Give the readout, and the other part of an encoder-decoder, a copy of `part`'s table before it changes."""
    a, token = network.architecture, part.embed.token
    if network.encoder is not None and network.encoder.embed.token is network.embed.token:
        other = network.encoder if part is network else network
        other.embed.token = copy.deepcopy(token)
        if part is not network and a.unembed == "tied":
            network.unembed.weight = network.embed.token.weight  # the readout keeps the decoder's table
        network.architecture = a = a.with_fields({"source_embed": "own"})
    if part is network and a.unembed == "tied":
        _own_readout(network)


def _own_readout(network: Transformer) -> None:
    """A readout that shares no matrix with the embedding."""
    if network.architecture.unembed == "tied":
        network.unembed.weight = nn.Parameter(network.unembed.weight.detach().clone())
        network.architecture = network.architecture.with_fields({"unembed": "untied"})


def _readout(network: Transformer, edit: Edit) -> nn.Module:
    """The linear map that writes the logits, with a matrix of its own."""
    if network.architecture.logit_cap:
        raise EditError(f"{edit.op} of {edit.name} comes after the cap (logit_cap): it is not a change of weights")
    _own_readout(network)
    return network.unembed


def _bias(linear: Any) -> Tensor:
    """The bias in float64, 0 where there is none."""
    bias = getattr(linear, "bias", None)
    return (
        torch.zeros(len(linear.weight), dtype=torch.float64, device=linear.weight.device)
        if bias is None
        else bias.double()
    )


def _set_bias(linear: Any, bias: Tensor, edit: Edit) -> None:
    """b <- bias. Raises EditError where the vector is not 0 and there is no b."""
    own = getattr(linear, "bias", None)
    if own is not None:
        own.copy_(bias)
    elif bias.any():
        option = {"logits": "readout or readout_bias"}.get(
            edit.name, "mlp.bias" if ".mlp" in edit.name else "attention.bias"
        )
        raise EditError(
            f"{edit.op} of {edit.name} adds a vector, and with this {option} the linear map has no bias to add it to"
        )
