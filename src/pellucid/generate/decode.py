"""The decoding loop: read, choose a token, append it, until every text is finished."""

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Unpack

from torch import nn

from pellucid.generate.choose_reader import ReadingOptions, choose_reader
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import NextLogits, SequenceState, check_readable, evaluation_mode
from pellucid.generate.sampling import Sampling, check_picked, pick_tokens, uniform
from pellucid.model import Transformer
from pellucid.model.transfer import on_device


@dataclass(frozen=True)
class DecodeStep:
    """One more token for each unfinished row, and the logits [rows, n_vocab] it was chosen from."""

    rows: list[SequenceState]
    tokens: list[int]
    logits: NextLogits


class NextLogitsReader(Protocol):
    """Reads rows of a decoding, and keeps what it needs of them for their next step."""

    def read(self, rows: Sequence[SequenceState]) -> NextLogits: ...

    def select(self, rows: Sequence[int]) -> None: ...


class Decoding:
    """The iterator of steps that `generate_ids` returns.

    network  what is in evaluation mode while a step is computed
    reader   gives the next logits of rows
    reasons  lines that say how the reader was chosen
    rows     every text, prompt by prompt and sample by sample, including finished ones
    stop     ends a row early, for a reason that only the caller can see
    """

    def __init__(
        self,
        network: nn.Module,
        reader: NextLogitsReader,
        rows: list[SequenceState],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_ids: Collection[int],
        n_allowed: int | None = None,
        reasons: Sequence[str] = (),
    ):
        self.network, self.reader, self.rows, self.max_tokens = network, reader, rows, max_tokens
        self.sampling, self.stop_ids, self.n_allowed = sampling, frozenset(stop_ids), n_allowed
        self.reasons = tuple(reasons)
        #: the rows that the reader holds
        self.active = rows
        self.started = False
        for row in rows:
            row.finish_reason = None if max_tokens else "length"

    def __iter__(self) -> Iterator[DecodeStep]:
        return self

    def __next__(self) -> DecodeStep:
        going = [r for r, row in enumerate(self.active) if row.finish_reason is None]
        if not going:
            raise StopIteration
        with evaluation_mode(self.network):
            logits = self.read(going)
            chosen = self.choose(logits).tolist()  # the one place where a step waits for a GPU
        check_picked(chosen)
        for row, token in zip(self.active, chosen, strict=True):
            row.generated.append(token)
            if token in self.stop_ids:
                row.finish_reason = "end"
            elif len(row.generated) == self.max_tokens:
                row.finish_reason = "length"
        return DecodeStep(list(self.active), chosen, logits)

    def read(self, going: list[int]) -> NextLogits:
        """The next logits of the unfinished rows, after dropping the others."""
        if self.started:
            if len(going) < len(self.active):
                self.reader.select(going)
                self.active = [self.active[r] for r in going]
            return self.reader.read(self.active)
        self.started = True
        # every prompt is read once, however many samples it has
        first: dict[int, SequenceState] = {}
        for row in self.active:
            first.setdefault(row.prompt, row)
        row_of_prompt = {prompt: r for r, prompt in enumerate(first)}
        logits = self.reader.read(list(first.values()))
        self.active = [self.active[r] for r in going]
        copies = [row_of_prompt[row.prompt] for row in self.active]
        if copies == list(range(len(first))):
            return logits
        self.reader.select(copies)
        return logits.index_select(0, on_device(copies, logits.device))

    def choose(self, logits: NextLogits):
        """Choose the next id of every active row (`pick_tokens`)."""
        return pick_tokens(
            logits,
            self.sampling,
            [uniform(row.seed, row.sample, len(row.generated)) for row in self.active],
            [row.given for row in self.active],
            [row.generated for row in self.active],
            self.n_allowed,
        )

    def stop(self, row: SequenceState) -> None:
        """End this row here; what it has generated stays."""
        row.finish_reason = "stop"


def generate_ids(
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    stop_ids: Collection[int] = (),
    seeds: int | Sequence[int] = 0,
    samples: Sequence[int] = (0,),
    n_allowed: int | None = None,
    **reading: Unpack[ReadingOptions],
) -> Decoding:
    """Continue every prompt by up to `max_tokens` ids, step by step.

    prompts     of any lengths, each at least one id; of a prompt longer than the context only the last n_ctx
                ids are read
    stop_ids    a row ends with the first of these, which is its last token
    seeds       one for each prompt, or one for all
    samples     which samples of every prompt to draw: sample 2 of a prompt and a seed is the same text whether
                or not the other samples are drawn
    n_allowed   the size of the tokenizer's vocabulary, if the network's is larger: ids from here on are never
                chosen
    reading     the options of `choose_reader`: cache, weights, compile, taps, sources

    The result iterates over `DecodeStep`s, and its `rows` hold the generated ids. A network with attention.mask =
    prefix reads its prompt as the prefix. Texts that outgrow the context continue in a moving window (`window_start`).
    Raises GenerationError for options that do not fit the network.
    """
    prompt_ids = check_prompts(network, prompts, max_tokens, n_allowed)
    seed_of = [seeds] * len(prompts) if isinstance(seeds, int) else list(seeds)
    if len(seed_of) != len(prompts):
        raise GenerationError(f"{len(seed_of)} seeds for {len(prompts)} prompts: give one for each, or one for all")
    reader, reasons = choose_reader(network, prompt_ids, max_tokens, n_samples=len(samples), **reading)
    rows = [SequenceState(n, k, seed_of[n], ids) for n, ids in enumerate(prompt_ids) for k in samples]
    options = {"max_tokens": max_tokens, "sampling": sampling, "stop_ids": stop_ids, "n_allowed": n_allowed}
    return Decoding(reader.network, reader, rows, reasons=reasons, **options)


def check_prompts(
    network: Transformer, prompts: Sequence[Sequence[int]], max_tokens: int, n_allowed: int | None
) -> list[tuple[int, ...]]:
    """The ids of each prompt that fit into the context.

    Raises GenerationError for a network that predicts no next token, an impossible length, a vocabulary larger than
    the network's, and ids that it does not have.
    """
    check_readable(network)
    check_counts(network, max_tokens, n_allowed)
    a = network.architecture
    return [check_prompt(prompt, n, a.n_vocab)[-a.n_ctx :] for n, prompt in enumerate(prompts)]


def check_counts(network: Transformer, max_tokens: int, n_allowed: int | None) -> None:
    """Raise GenerationError for an impossible length, or a vocabulary larger than the network's."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
        raise GenerationError(f"max_tokens = {max_tokens!r}: expected an integer of at least 0")
    n_vocab = network.architecture.n_vocab
    if n_allowed is not None and not 1 <= n_allowed <= n_vocab:
        raise GenerationError(
            f"the tokenizer has {n_allowed} ids, but the network has n_vocab = {n_vocab}: "
            "is this the tokenizer that the network was trained with?"
        )


def check_prompt(prompt: Sequence[int], n: int, n_vocab: int) -> tuple[int, ...]:
    """The ids of prompt `n` as integers, after checking that the vocabulary has them all."""
    ids = tuple(operator.index(i) for i in prompt)
    if not ids:
        raise GenerationError(f"prompt {n} is empty: to start without text, pass the separator's id")
    if outside := [i for i in ids if not 0 <= i < n_vocab]:
        raise GenerationError(f"prompt {n} holds id {outside[0]}; expected 0 to {n_vocab - 1}")
    return ids
