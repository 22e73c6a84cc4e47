"""Activation patching: which activations of one run, put into another, restore its answer.

For every place (site, layer, position, head) the corrupt run is repeated with the clean run's activation there. A patch
in block l changes nothing before it, so its run starts at block l with the corrupt run's input. The places of one block
form one batch. Under a causal mask only the positions from the patched one on are computed, with the corrupt run's keys
and values of earlier positions.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Unpack

import torch
from torch import Tensor

from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.core.forward import frozen_network
from pellucid.lens.core.inputs import InputError, InputOptions, Inputs, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, show
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model import Cache, Recorder
from pellucid.model.block import BlockInputs
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.tensor_names import axes
from pellucid.text_model import Model

#: most entries of a batch's largest tensor: 64 MiB in float32
MOST_ENTRIES = 2**24


@dataclass(frozen=True, repr=False)
class Patching(PrintsAsTable):
    """The results of patching: `exact` and `estimate` are metrics [layer, pos] or [layer, pos, head].

    metric           its name; of a loss, also the text whose tokens are scored, in both runs (`metrics.loss`)
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
        pair = torch.stack([self.exact.flatten(), self.estimate.flatten()]).cpu().double()
        apart = float((pair[0] - pair[1]).abs().max())
        constant = bool((pair.amax(1) - pair.amin(1) <= 1e-12 * pair.abs().amax(1)).any())
        return {"correlation": float("nan") if constant else float(torch.corrcoef(pair)[0, 1]), "largest": apart}

    def printed(self) -> PrintedTable:
        """The patched places, those that recover most of the clean run's metric first."""
        same = self.clean == self.corrupt
        shares = torch.full_like(self.values, math.nan) if same else self.recovered
        indices = itertools.product(*map(range, shares.shape))
        rows = []
        for (layer, column, *head), value, share in zip(
            indices, self.values.flatten().tolist(), shares.flatten().tolist(), strict=True
        ):
            at = self.positions[column]
            token = "all" if at is None else f"{at} {self.tokens[at]!r}"
            rows.append((".".join(map(str, (self.layers[layer], *head))), token, value, share))
        rows.sort(key=lambda row: row[-1] if row[-1] == row[-1] else -math.inf, reverse=True)
        heading = (
            f"{self.metric} with {self.site} of the clean run ({self.clean:.3f}) in the other ({self.corrupt:.3f})"
        )
        place = "layer.head" if shares.dim() == 3 else "layer"
        columns = (place, "position", "metric", "recovered")
        return PrintedTable(heading, columns, rows, ".recovered has all, .show() is a page")

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
    model: Model,
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

    A metric that compares with the tokens or the logits of a run (`loss`, `kl` without `to`) takes those of the corrupt
    run, which is the one that is changed.

    Meng et al. 2022 (ROME), section 2; Wang et al. 2022. Raises InputError for texts of different lengths and for
    estimates of `kl` without `to`, KeyError for tensors that the blocks do not have.
    """
    if mode not in ("exact", "attribution", "both"):
        raise InputError(f"mode = {mode!r}: expected exact, attribution or both")
    pair = PatchingPair(
        model,
        clean,
        corrupt,
        metric,
        site=site,
        layers=layers,
        positions=positions,
        gradients=mode != "exact",
        corrupt_source=corrupt_source,
        **options,
    )
    estimate = pair.estimate() if mode != "exact" else None  # first, because it frees the graph
    return pair.result(pair.exact() if mode != "attribution" else None, estimate)


@dataclass(frozen=True)
class PatchedCells:
    """The metric of runs that were patched in one layer: `values` [cell], for `cells` of (position, head).

    The position is None where all positions were patched at once; the head is 0 for tensors without heads.
    """

    layer: int
    cells: list[tuple[int | None, int]]
    values: Tensor


class PatchingPair:
    """Two runs ready to be patched, place by place; the arguments are those of `patch`.

    `estimate` needs `gradients`, which keeps the corrupt run in the autograd graph. `exact_parts` gives the exact
    values batch by batch, so that a caller can show them as they arrive, or stop.
    """

    def __init__(
        self,
        model: Model,
        clean: Texts,
        corrupt: Texts,
        metric: Metric,
        *,
        site: str = "resid_pre",
        layers: Sequence[int] | None = None,
        positions: Sequence[int] | Literal["each", "all"] = "each",
        gradients: bool = True,
        corrupt_source: Texts | None = None,
        **options: Unpack[InputOptions],
    ):
        one, other = read_pair(model, clean, corrupt, corrupt_source, **options)
        if len(one.lengths) != 1:
            raise InputError(f"{len(one.lengths)} texts were given: patching needs one clean text and one corrupt one")
        self.site, self.gradients = site, gradients
        if gradients and isinstance(metric, Metric) and metric.own == "logits":
            raise InputError(
                "kl() compares the corrupt run with itself, where its slope is 0, and so is every estimate: give "
                "kl(to=...) a trace, such as that of the clean text, or mode='exact'"
            )
        self.layers = list(range(model.architecture.n_layers)) if layers is None else list(layers)
        names = [f"blocks.{layer}.{site}" for layer in self.layers]
        self.good = Recording(model, one, names)
        self.bad = (_Graph if gradients else Recording)(model, other, names)
        self.names = [self.bad.full_name(name) for name in names]
        self.metric = PreparedMetric(metric, self.bad)
        check_alike(self.good, self.bad, self.names)
        along = self.bad.inputs_of(self.names[0]) if self.names else self.bad.inputs
        self.tokens = self.bad.source_tokens[0] if along is self.bad.inputs.source else self.bad.spelled()
        self.positions = _position_groups(positions, len(self.tokens))
        self._corrupt = _metric(self.metric, self.bad, gradients)
        self.ends = [_metric(self.metric, self.good), self._corrupt.detach()]

    @property
    def n_heads(self) -> int:
        """The heads of the patched tensor, 0 for a tensor without heads."""
        return self.bad[self.names[0]].size(1) if self.names and axes(self.names[0])[1] in "hg" else 0

    def estimate(self) -> Tensor:
        """corrupt + (clean - corrupt activation) . gradient [layer, pos(, head)], from one backward pass."""
        if not self.gradients:
            raise InputError("gradients = False keeps no graph: an estimate needs one")
        return _estimate(self.good, self.bad, self._corrupt, self.names, self.positions)

    def exact_parts(self) -> Iterator[PatchedCells]:
        """The metric of a run for each place, in batches, layer by layer. Closing the iterator stops the work."""
        cells = self._cells()
        for layer, name in zip(self.layers, self.names, strict=True):
            for numbers, values in self._batches(name):
                yield PatchedCells(layer, [cells[k] for k in numbers], values)

    def exact(self) -> Tensor:
        """The metric of a run for each place [layer, pos(, head)]."""
        values = self.ends[1].repeat(len(self.layers), len(self._cells()))
        for row, name in enumerate(self.names):
            for numbers, metrics in self._batches(name):
                values[row, numbers] = metrics
        return values.unflatten(1, (-1, self.n_heads)) if self.n_heads else values

    def result(self, exact: Tensor | None, estimate: Tensor | None) -> Patching:
        """The values with what they belong to."""
        clean, corrupt = (float(x) for x in self.ends)
        name, layers = name_of_metric(self.metric.metric, "the corrupt text"), self.layers
        return Patching(self.site, name, clean, corrupt, layers, self.positions, self.tokens, exact, estimate)

    def _cells(self) -> list[tuple[int | None, int]]:
        """The places of each layer: position and head, heads of one position first."""
        return [(p, h) for p in self.positions for h in range(max(self.n_heads, 1))]

    @cached_property
    def _past(self) -> Cache | None:
        with frozen_network(self.bad.network):
            return past_of(self.bad)

    def _batches(self, name: str) -> Iterator[tuple[list[int], Tensor]]:
        """The numbers of places of one layer, and their metrics; first those where both runs have the same values."""
        a, letters, cells = self.bad.architecture, axes(name), self._cells()
        widest = max(a.d_ff, a.d_model)
        alike = [torch.equal(*(_cell(t[name], letters, *cell) for t in (self.good, self.bad))) for cell in cells]
        if unchanged := [k for k, same in enumerate(alike) if same]:
            yield unchanged, self.ends[1].repeat(len(unchanged))
        changed = [k for k, same in enumerate(alike) if not same]
        at_once = max(1, min(64, MOST_ENTRIES // (widest * self.bad.ids.size(1))))
        for first in range(0, len(changed), at_once):
            some = changed[first : first + at_once]
            with frozen_network(self.bad.module("")):
                values = _run(self.good, self.bad, self.metric, name, [cells[k] for k in some], self._past)
            yield some, values


def name_of_metric(metric: Metric, text: str) -> str:
    """The metric's name, with the text whose tokens it scores in all runs."""
    return f"{metric.name} on {text}" if metric.own == "tokens" else metric.name


def read_pair(
    model: Model,
    clean: Texts,
    corrupt: Texts,
    corrupt_source: Texts | None,
    **options: Unpack[InputOptions],
) -> tuple[Inputs, Inputs]:
    """Two recordings of the same shapes. Raises InputError for texts or sources of different lengths."""
    theirs: InputOptions = options if corrupt_source is None else {**options, "source": corrupt_source}
    one, other = read_inputs(model, clean, **options), read_inputs(model, corrupt, **theirs)
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
        begins = ("embed",) if self.architecture.encoder is None else ("embed", "encoder.embed")
        self.functions = {**self.functions, **{name: [lambda x: x.detach().requires_grad_()] for name in begins}}
        self.grad = True
        with torch.enable_grad():
            super()._run(asked)


def _metric(metric: PreparedMetric, t: Recording, grad: bool = False) -> Tensor:
    """The metric of a recording of one row []; logits are computed only at the positions that it reads."""
    with frozen_network(t.network, grad):
        return metric.of_stream(t.stream(), torch.zeros(1, dtype=torch.long, device=t.ids.device))[0]


def _position_groups(positions: Sequence[int] | str, n: int) -> list[int | None]:
    """Positions one by one, or [None] for all of them at once."""
    if positions == "all":
        return [None]
    if positions == "each":
        return list(range(n))
    if isinstance(positions, str) or any(not 0 <= p < n for p in positions):
        raise InputError(f"positions = {positions!r}: expected each, all, or positions from 0 to {n - 1}")
    return list(positions)


def _estimate(
    good: Recording, bad: Recording, corrupt: Tensor, names: list[str], positions: list[int | None]
) -> Tensor:
    """corrupt + (clean - corrupt activation) . gradient, from one backward pass [layer, pos(, head)].

    `corrupt` is the metric of the corrupt run, in the graph of the tensors `names` of `bad`.
    """
    gradients = torch.autograd.grad(corrupt, [bad[name] for name in names], materialize_grads=True)
    slopes, rows = dict(zip(names, gradients, strict=True)), []
    for name in names:
        change = torch.where(bad[name] == good[name], 0, good[name] - bad[name]).detach()
        gain = (change * slopes[name]).sum(-1)[0]
        by_place = gain.T if gain.ndim == 2 else gain  # [pos(, head)]
        total = by_place.sum(0, keepdim=True)
        rows.append(total if positions == [None] else by_place[[p for p in positions if p is not None]])
    return corrupt.detach() + torch.stack(rows)


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
