"""Activation patching: which activations of one run, put into another, restore its answer.

For every place (site, layer, position, head) the corrupt run is repeated with the clean run's activation there. A patch
in block l changes nothing before it, so its run starts at block l with the corrupt run's input. The places of one block
form one batch. Under a causal mask only the positions from the patched one on are computed, with the corrupt run's keys
and values of earlier positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError, InputOptions, Inputs, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, show
from pellucid.model import Cache, Recorder, Transformer
from pellucid.model.block import BlockInputs
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.tensor_names import axes
from pellucid.text.tokenizers.base import Tokenizer

#: most entries of a batch's largest tensor: 64 MiB in float32
MOST = 2**24


@dataclass(frozen=True)
class Patching:
    """The results of patching: `exact` and `estimate` are metrics [layer, pos] or [layer, pos, head].

    clean, corrupt   the metric of the two runs
    exact            the metric of a run patched there; None for mode = attribution
    estimate         corrupt + (clean - corrupt activation) . gradient, the first order; None for mode = exact
    positions        those of the second axis, [None] where all positions were patched at once
    """

    site: str
    metric: str
    clean: float
    corrupt: float
    layers: list[int]
    positions: list[int | None]
    tokens: list[str]
    exact: Tensor | None
    estimate: Tensor | None

    @property
    def values(self) -> Tensor:
        """The exact values where they were computed, else the estimates."""
        values = self.exact if self.exact is not None else self.estimate
        assert values is not None
        return values

    @property
    def recovered(self) -> Tensor:
        """(value - corrupt) / (clean - corrupt): 0 nothing, 1 the clean run's answer.

        Raises InputError where the two runs have the same metric.
        """
        if self.clean == self.corrupt:
            raise InputError(
                f"{self.metric} is {self.clean:.4g} in both runs, so there is nothing to recover: "
                "give texts whose metric differs"
            )
        return (self.values - self.corrupt) / (self.clean - self.corrupt)

    @property
    def agreement(self) -> dict[str, float]:
        """The correlation of the estimates with the exact values, and the largest difference."""
        if self.exact is None or self.estimate is None:
            raise InputError("agreement compares exact values with estimates: patch with mode='both'")
        pair = torch.stack([self.exact.flatten(), self.estimate.flatten()]).double()
        apart = float((pair[0] - pair[1]).abs().max())
        constant = bool((pair.amax(1) - pair.amin(1) <= 1e-12 * pair.abs().amax(1)).any())
        return {"correlation": float("nan") if constant else float(torch.corrcoef(pair)[0, 1]), "largest": apart}

    def show(self) -> Figure:
        """The recovered share of each place as a picture."""
        return show(self)

    def best(self) -> tuple[int, ...]:
        """The place with the largest recovered share: (layer, position) or (layer, position, head)."""
        at = torch.unravel_index(self.recovered.argmax(), self.recovered.shape)
        layer, column, *head = (int(k) for k in at)
        where = self.positions[column]
        return (self.layers[layer], -1 if where is None else where, *head)


def patch(
    network: Transformer,
    tokenizer: Tokenizer | None,
    clean: Texts,
    corrupt: Texts,
    metric: Metric,
    *,
    site: str = "resid_pre",
    mode: Literal["exact", "attribution", "both"] = "exact",
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | Literal["each", "all"] = "each",
    corrupt_source: Texts | None = None,
    **options: Unpack[InputOptions],
) -> Patching:
    """Patch the clean run's activations into the corrupt run, place by place.

    clean, corrupt   texts or ids with equal numbers of tokens
    site       a tensor of a block: resid_pre, attn_out, mlp_out, ...; attn.z, attn.q, attn.pattern, ... by head
    mode       exact: one run for each place; attribution: one backward pass for all (Nanda 2023); both: with agreement
    positions  each, a list, or all of them at once; for cross.k and cross.v they are positions of the source
    source, corrupt_source   the encoder's input in the clean run, and in the corrupt run where it differs

    Meng et al. 2022 (ROME), section 2; Wang et al. 2022. Raises InputError for texts of different lengths, KeyError for
    tensors that the blocks do not have.
    """
    if mode not in ("exact", "attribution", "both"):
        raise InputError(f"mode = {mode!r}: expected exact, attribution or both")
    one, other = read_pair(network, tokenizer, clean, corrupt, corrupt_source, **options)
    if len(one.lengths) != 1:
        raise InputError(f"{len(one.lengths)} texts were given: patching needs one clean text and one corrupt one")
    chosen = list(range(network.architecture.n_layers)) if layers is None else list(layers)
    names = [f"blocks.{layer}.{site}" for layer in chosen]
    good = Recording(network, tokenizer, one, names)
    bad = (Recording if mode == "exact" else _Graph)(network, tokenizer, other, names)
    names = [bad.full_name(name) for name in names]
    prepared = PreparedMetric(metric, bad)
    check_alike(good, bad, names)
    along = bad.inputs_of(names[0]) if names else bad.inputs
    fed = bad.source_tokens[0] if along is bad.inputs.source else bad.spelled()
    places = _places(positions, len(fed))
    ends = [_metric(prepared, t) for t in (good, bad)]
    exact = _exact(good, bad, prepared, names, places, ends[1]) if mode != "attribution" else None
    estimate = _estimate(good, bad, prepared, names, places, ends[1]) if mode != "exact" else None
    clean_end, corrupt_end = (float(x) for x in ends)
    return Patching(site, metric.name, clean_end, corrupt_end, chosen, places, fed, exact, estimate)


def read_pair(
    network: Transformer,
    tokenizer: Tokenizer | None,
    clean: Texts,
    corrupt: Texts,
    corrupt_source: Texts | None,
    **options: Unpack[InputOptions],
) -> tuple[Inputs, Inputs]:
    """Two recordings of the same shapes. Raises InputError for texts or sources of different lengths."""
    theirs: InputOptions = options if corrupt_source is None else {**options, "source": corrupt_source}
    one, other = read_inputs(network, tokenizer, clean, **options), read_inputs(network, tokenizer, corrupt, **theirs)
    if one.lengths != other.lengths:
        raise InputError(
            f"the clean text has {list(one.lengths)} tokens and the corrupt one {list(other.lengths)}: give texts with "
            "equal numbers of tokens"
        )
    return one, other


def check_alike(good: Recording, bad: Recording, names: list[str]) -> None:
    """Raise InputError where the tensors of two recordings have different lengths."""
    if any(good[name].shape != bad[name].shape for name in names):
        raise InputError(
            f"the two sources differ in length, so {names[0]} does too: give sources with equal numbers of tokens"
        )


class _Graph(Recording):
    """A recording whose kept tensors are in an autograd graph from the embedding on, even where no weight requires
    grad.
    """

    def _run(self, asked: frozenset[str]) -> None:
        self.functions = {**self.functions, "embed": [lambda x: x.detach().requires_grad_()]}
        self.grad = True
        with torch.enable_grad():
            super()._run(asked)


def _metric(metric: PreparedMetric, t: Recording, grad: bool = False) -> Tensor:
    """The metric of a recording of one row []; logits are computed only at the positions that it reads."""
    with frozen_network(t.network, grad):
        return metric.of_stream(t.stream(), torch.zeros(1, dtype=torch.long, device=t.ids.device))[0]


def _places(positions: Sequence[int] | str, n: int) -> list[int | None]:
    """Positions one by one, or [None] for all of them at once."""
    if positions == "all":
        return [None]
    if positions == "each":
        return list(range(n))
    if isinstance(positions, str) or any(not 0 <= p < n for p in positions):
        raise InputError(f"positions = {positions!r}: expected each, all, or positions from 0 to {n - 1}")
    return list(positions)


def _estimate(
    good: Recording, bad: Recording, metric: PreparedMetric, names: list[str], places: list[int | None], corrupt: Tensor
) -> Tensor:
    """corrupt + (clean - corrupt activation) . gradient, from one backward pass [layer, pos(, head)]."""
    value = _metric(metric, bad, grad=True)
    gradients = torch.autograd.grad(value, [bad[name] for name in names], materialize_grads=True)
    slopes, rows = dict(zip(names, gradients, strict=True)), []
    for name in names:
        change = torch.where(bad[name] == good[name], 0, good[name] - bad[name]).detach()
        gain = (change * slopes[name]).sum(-1)[0]
        by_place = gain.T if gain.ndim == 2 else gain  # [pos(, head)]
        total = by_place.sum(0, keepdim=True)
        rows.append(total if places == [None] else by_place[[p for p in places if p is not None]])
    return corrupt + torch.stack(rows)


def _exact(
    good: Recording, bad: Recording, metric: PreparedMetric, names: list[str], places: list[int | None], corrupt: Tensor
) -> Tensor:
    """The metric of a run for each place [layer, pos(, head)]."""
    with frozen_network(bad.network):
        past = past_of(bad)
        return torch.stack([_block(good, bad, metric, name, places, past, corrupt) for name in names])


def _block(
    good: Recording,
    bad: Recording,
    metric: PreparedMetric,
    name: str,
    places: list[int | None],
    past: Cache | None,
    corrupt: Tensor,
) -> Tensor:
    """The places of one tensor [pos(, head)]."""
    letters = axes(name)
    heads = bad[name].size(1) if letters[1] in "hg" else 0
    cells = [(p, h) for p in places for h in range(max(heads, 1))]
    metrics = corrupt.repeat(len(cells))
    changed = [
        k for k, (p, h) in enumerate(cells) if not torch.equal(*(_cell(t[name], letters, p, h) for t in (good, bad)))
    ]
    widest = max(bad.architecture.d_ff, bad.architecture.d_model) * bad.ids.size(1)
    at_once = max(1, min(64, MOST // widest))
    for first in range(0, len(changed), at_once):
        some = changed[first : first + at_once]
        metrics[some] = _run(good, bad, metric, name, [cells[k] for k in some], past)
    return metrics.view(len(places), heads) if heads else metrics


def _cell(x: Tensor, letters: list[str], position: int | None, head: int) -> Tensor:
    """The index of one place in a tensor [1, ...]."""
    x = x[0, head] if letters[1] in "hg" else x[0]
    return x if position is None else x[position]


def _run(
    good: Recording,
    bad: Recording,
    metric: PreparedMetric,
    name: str,
    cells: list[tuple[int | None, int]],
    past: Cache | None,
) -> Tensor:
    """The metric of one batch with a row for each cell, computed from the tensor's block on [cell]."""
    letters, layer = axes(name), int(name.split(".")[1])
    start = 0 if past is None else min(0 if p is None else p for p, _ in cells)
    # compute the positions that the metric reads; every position reads the source
    read = metric.places if bad.inputs_of(name) is bad.inputs else None
    start = 0 if read is None else min(start, int(read.min()))
    value, rows = good[name], torch.zeros(len(cells), dtype=torch.long, device=bad.ids.device)

    def put(x: Tensor) -> Tensor:
        x = x.clone()
        for r, (place, head) in enumerate(cells):
            into = x[r, head] if letters[1] in "hg" else x[r]
            if place is None:
                into.copy_(value[0, head] if letters[1] in "hg" else value[0])
            else:
                into[place - start] = _cell(value, letters, place, head)
        return x

    x = bad[f"blocks.{layer}.resid_pre"][:, start:].expand(len(cells), -1, -1)
    tap = Recorder(edits={name: [put]})
    for l in range(layer, bad.architecture.n_layers):
        reading, cache = reading_from(bad, len(cells), start, past, l)
        x = bad.network.blocks[l](x, reading, cache, tap.at(f"blocks.{l}"))
    return metric.of_stream(x, rows, start)


def past_of(t: Recording) -> Cache | None:
    """The keys and values of every layer in the recorded run; None where later positions change earlier ones."""
    a = t.architecture
    if a.attention.mask != "causal" or t.inputs.mask is not None:
        return None
    x = t["blocks.0.resid_pre"] if a.n_layers else t.stream()
    cache = Cache(a, x.size(0), x.size(1), dtype=x.dtype, device=x.device)
    encoded, mask, segments = t.passes[""].encoded, t.inputs.source_mask, t.inputs.segments
    with torch.no_grad():
        t.network.hidden(t.ids, cache=cache, source=encoded, source_mask=mask, segments=segments)
    return cache


class Past(NoCache):
    """A read-only cache: the first `start` keys and values of one layer of a one-row run, for any number of rows."""

    def __init__(self, cache: Cache, layer: int, start: int):
        self.keys, self.values = (cache.store[k, layer][:, :, :start] for k in (0, 1))

    def of_source(self) -> NoCache:
        """Keys and values of the source are computed again."""
        return NO_CACHE

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The earlier keys and values, followed by the new ones."""
        before = (x.expand(k.size(0), -1, -1, -1) for x in (self.keys, self.values))
        return tuple(torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))  # type: ignore[return-value]


def reading_from(t: Recording, rows: int, start: int, past: Cache | None, layer: int) -> tuple[BlockInputs, NoCache]:
    """The inputs of the blocks when a one-row run is repeated for `rows` rows from position `start` on."""
    if not start or past is None:
        return t.passes[""].repeated(rows), NO_CACHE
    full = t.passes[""].repeated(rows)
    rotation = full.rotation
    if rotation is not None:
        rotation = (rotation[0][..., start:, :], rotation[1][..., start:, :])
    source_mask = None if full.source_visible is None else full.source_visible[:, start:]
    return BlockInputs(rotation, None, full.source, source_mask), Past(past, layer, start)
