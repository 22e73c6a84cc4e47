"""The calls of `generate`: rows of different lengths in one cache, each one token longer at every step."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.generate.encoder_inputs import read_sources
from pellucid.generate.readers import CachedReader, TapFactory, evaluation_mode
from pellucid.generate.readers import SequenceState as Text
from pellucid.model import Recorder, Tap, Transformer
from pellucid.reference.masks import prefix_mask
from pellucid.tensor_names import names
from pellucid.verify.cases import ALL, Place, ReferenceText, is_by_key, source_of
from pellucid.verify.comparison import Weights, compare, compare_at, defined
from pellucid.verify.report import Difference

#: by how many tokens every row grows, and which row finishes after which step: then the cache of the others is copied,
#: and moved to the left once the longest is gone
STEPS, FINISHED = 4, {1: 1, 3: 0}


@dataclass(frozen=True)
class ReadingPlan:
    """The texts to read: prompts, the tokens that follow each of them, and a source for each if there is an encoder."""

    prompts: tuple[tuple[int, ...], ...]
    following: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...] | None

    def texts(self) -> list[Text]:
        """The rows at the start of generation."""
        return [Text(r, 0, 0, prompt) for r, prompt in enumerate(self.prompts)]

    def windows(self, row: int, n_ctx: int) -> dict[int, list[int]]:
        """The longest windows that are read of a row, by their first token."""
        text, windows = self.texts()[row], {}
        for step in range(STEPS + 1):
            text.generated[:] = self.following[row][:step]
            start, window = text.window(n_ctx)
            windows[start] = window
        return windows


def make_reading_plan(a: Architecture, n: int) -> ReadingPlan:
    """Prompts of different lengths, the longest of n tokens, or one less than a shorter context."""
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, a.n_vocab, (length,), generator=generator).tolist())

    longest = max(1, min(n, a.n_ctx - 1))
    prompts = tuple(draw(length) for length in (longest, (longest + 1) // 2, 1))
    following = tuple(draw(STEPS) for _ in prompts)
    if a.encoder is None:
        return ReadingPlan(prompts, following, None)
    sources = tuple(tuple(source_of(a, torch.tensor([prompt]))[0].tolist()) for prompt in prompts)
    return ReadingPlan(prompts, following, sources)


@dataclass(frozen=True)
class Call:
    """One call of the network: the prompts and lengths of its rows, its columns, its queries, and the recorded
    tensors.
    """

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    n_queries: int
    kept: Recorder


class Watch(TapFactory):
    """Records the named tensors of every call, and the rows' columns in it."""

    def __init__(self, keep: Iterable[str]):
        self.keep = tuple(keep)
        self.calls: list[Call] = []
        self.encoder = Recorder(self.keep)

    def of(
        self, prompts: Sequence[int], starts: Sequence[int], lengths: Sequence[int], width: int, n_queries: int
    ) -> Tap:
        self.calls.append(Call(tuple(prompts), tuple(lengths), width, n_queries, Recorder(self.keep)))
        return self.calls[-1].kept

    def of_sources(self, lengths: Sequence[int]) -> Tap:
        return self.encoder


@dataclass(frozen=True)
class Read:
    """The tensors of one row in one call: the window begins at token `start`; n_new of its n tokens are new.

    place, source  the row's and its source's part of the tensors of the call and of the encoder
    """

    prompt: int
    start: int
    n: int
    n_new: int
    logits: Tensor
    place: Place
    source: Place
    call: Mapping[str, Tensor]
    encoder: Mapping[str, Tensor]

    def compare(self, name: str, expected: np.ndarray) -> Difference:
        """Compare a tensor with the definition's of the row's new tokens."""
        if name.startswith("encoder."):
            return compare_at(self.source, name, self.encoder.get(name), expected)
        return compare_at(self.place, name, self.call.get(name), expected)


def read(network: Transformer, plan: ReadingPlan, keep: Iterable[str]) -> list[Read]:
    """Read the plan with the reader of `generate`, step by step and row by row."""
    watch, rows, n_ctx, reads = Watch(keep), plan.texts(), network.architecture.n_ctx, []
    with evaluation_mode(network):
        sources = read_sources(network, plan.sources, len(rows), watch.of_sources)
        reader = CachedReader(network, len(plan.prompts[0]) + STEPS, sources, watch)
        for step in range(STEPS + 1):
            watch.calls.clear()
            logits = reader.read(rows)
            for n, row in enumerate(rows):
                # a row whose window moved is in two calls: the second one read it again
                call = next(call for call in reversed(watch.calls) if row.prompt in call.prompts)
                reads.append(_read(call, watch.encoder, row, plan, logits[n], n_ctx))
            going_on = [n for n, row in enumerate(rows) if row.prompt != FINISHED.get(step)]
            if len(going_on) < len(rows):
                reader.select(going_on)
                rows = [rows[n] for n in going_on]
            for row in rows:
                row.generated += plan.following[row.prompt][step : step + 1]
    return reads


def _read(call: Call, encoder: Recorder, row: Text, plan: ReadingPlan, logits: Tensor, n_ctx: int) -> Read:
    """The tensors of one row of a call; rows are aligned right in it, sources left."""
    start, window = row.window(n_ctx)
    n_new, r = min(call.n_queries, len(window)), call.prompts.index(row.prompt)
    source = slice(0, len(plan.sources[row.prompt])) if plan.sources else ALL
    slot = Place(r, slice(call.n_queries - n_new, None), slice(call.width - len(window), None), source)
    of_source = Place(row.prompt, ALL, ALL, source)
    tensors = call.kept.values, encoder.values
    return Read(row.prompt, start, len(window), n_new, logits, slot, of_source, *tensors)


class Defined:
    """The tensors of every window of a plan by definition, each window read once.

    a, weights  what the definition computes with
    """

    def __init__(self, a: Architecture, weights: Weights, plan: ReadingPlan):
        self.a, self.weights, self.plan = a, weights, plan
        self.windows: dict[tuple[int, int, bool], dict[str, np.ndarray]] = {}

    def of(self, done: Read) -> dict[str, np.ndarray]:
        """The expected tensors of `done`, in order of computation; the logits are those of the last token."""
        key = done.prompt, done.start, done.n <= self.a.frequency_border
        if key not in self.windows:
            self.windows[key] = defined(self.a, self.weights, self.row(*key))
        slot = Place(0, slice(done.n - done.n_new, done.n), slice(0, done.n), ALL)
        expected = {name: slot.cut(name, value) for name, value in self.windows[key].items()}
        for name, value in expected.items():
            if is_by_key(name) and name.startswith("blocks.") and ".attn." in name:
                expected[name] = value[..., : done.n]  # a beginning of the window has no later keys
        return expected | {"logits": expected["logits"][0, -1]}

    def row(self, prompt: int, start: int, short: bool) -> ReferenceText:
        """The longest window of a prompt that begins at this token, of those with the frequencies of short texts where
        `short` is set; shorter ones are its beginnings.
        """
        window = self.plan.windows(prompt, self.a.n_ctx)[start]
        tokens = torch.tensor([window[: self.a.frequency_border] if short else window])
        source = None if self.plan.sources is None else torch.tensor([self.plan.sources[prompt]])
        mask = None
        if self.a.attention.mask == "prefix":
            # the prompt's part of the window is read in both directions
            n_prefix = max(0, len(self.plan.prompts[prompt]) - start)
            mask = torch.from_numpy(prefix_mask(tokens.size(1), n_prefix))
        return ReferenceText(tokens, source=source, mask=mask)


def compare_reads(network: Transformer, expected: Defined, without: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Compare every tensor of every row and call with the definition's of that row alone, in order.

    without   ends of names that this network does not compute
    """
    keep = [name for name in names(expected.a) if name != "logits" and not name.endswith(without or "?")]
    for done in read(network, expected.plan, keep):
        tensors = expected.of(done)
        for name, value in tensors.items():
            if name in keep:
                yield done.compare(name, value)
        yield compare("logits", done.logits, tensors["logits"])
