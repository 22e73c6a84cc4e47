"""Prompts in, text out: whole, or in pieces as it comes."""

import secrets
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pellucid.generate.decode import Decoding, generate_ids
from pellucid.generate.errors import GenerationError
from pellucid.generate.reading import Row
from pellucid.generate.sampling import Sampling
from pellucid.generate.stopping import StopStrings
from pellucid.model import Transformer
from pellucid.text.tokenizer import Tokenizer


class PromptCut(UserWarning):
    """A prompt is longer than the context, and its beginning is not read."""


@dataclass(frozen=True)
class Generated:
    """One text that was generated.

    text           the continuation alone, without stop string and separator
    ids            the tokens it was made of: `tokenizer.decode(ids)` is `text`, or runs on into the stop
                   string where one was found
    finish_reason  length: max_tokens were generated; end: the separator came; stop: a stop string did
    seed, sample   what drew it: the same prompt, seed and sample give the same text again
    truncated      how many tokens at the beginning of the prompt were not read, the context being full
    """

    prompt: str
    text: str
    ids: list[int]
    prompt_ids: list[int]
    finish_reason: str
    seed: int
    sample: int
    truncated: int

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class Piece:
    """A piece of one text: of prompt number `prompt`, sample number `sample`; the last one brings the result.

    The pieces of a text, joined, are exactly `result.text`; none of them ends inside a character.
    """

    prompt: int
    sample: int
    text: str
    result: Generated | None = None


def generate(network: Transformer, tokenizer: Tokenizer, prompts: str | Sequence[str], **options) -> list[Generated]:
    """Every prompt continued `n` times: the results prompt by prompt, sample by sample.

    Options are those of `stream_generate`, which gives the same texts while they are made.
    """
    finished = [piece for piece in stream_generate(network, tokenizer, prompts, **options) if piece.result]
    # short texts are finished before long ones
    finished.sort(key=lambda piece: (piece.prompt, piece.sample))
    return [piece.result for piece in finished if piece.result]


def stream_generate(
    network: Transformer,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    n: int = 1,
    cache: bool = True,
) -> Iterator[Piece]:
    """Continue prompts piece by piece, all of them together; closing the iterator stops the work.

    max_tokens     of every text; 0 is allowed and gives empty ones
    temperature    and the next five: how tokens are chosen, see `Sampling`. 0.8 because small models, whose
                   tails are poor, read better a little below 1; 1 is the model's own distribution
    stop           strings that end a text where they appear in it, whatever its tokens; not shown
    seed           None draws one, which the results name
    n              how many samples of every prompt
    cache          False recomputes every step, slower and the same

    An empty prompt starts from the separator, as training texts do. A prompt longer than the context
    keeps its last n_ctx tokens; a PromptCut warning says so once. Options are checked at once, before
    the first piece is asked for. Raises GenerationError.
    """
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
    )
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GenerationError(f"n = {n!r}: expected the number of samples of every prompt, at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int | None):
        raise GenerationError(f"seed = {seed!r}: expected a whole number, or None to have one drawn")
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    encoded = [tokenizer.encode(text) or [tokenizer.separator] for text in texts]
    decoding = generate_ids(
        network,
        encoded,
        max_tokens=max_tokens,
        sampling=sampling,
        stop_ids=[tokenizer.separator],
        seeds=secrets.randbits(32) if seed is None else seed,
        samples=range(n),
        cache=cache,
        n_allowed=tokenizer.n_vocab,
    )
    warn_of_cut(encoded, network.architecture.n_ctx)
    stops = [stop] if isinstance(stop, str) else list(stop)
    writers = [Writer(row, texts[row.prompt], encoded[row.prompt], tokenizer, stops) for row in decoding.rows]
    return pieces(decoding, writers)


def pieces(decoding: Decoding, writers: "list[Writer]") -> Iterator[Piece]:
    """Each step's characters of each text, and a result where one is finished."""
    writer_of = {id(writer.row): writer for writer in writers}
    for writer in writers:
        if writer.row.finish_reason:
            yield writer.piece("")
    for step in decoding:
        for row, token in zip(step.rows, step.tokens, strict=True):
            writer = writer_of[id(row)]
            shown = writer.push(token)
            if writer.stops.stopped:
                decoding.stop(row)
            if shown or row.finish_reason:
                yield writer.piece(shown)


class Writer:
    """One row's tokens as text."""

    def __init__(self, row: Row, prompt: str, prompt_ids: list[int], tokenizer: Tokenizer, stops: Sequence[str]):
        self.row, self.prompt, self.prompt_ids, self.tokenizer = row, prompt, prompt_ids, tokenizer
        self.stream, self.stops = tokenizer.stream(), StopStrings(stops)
        self.shown: list[str] = []

    def push(self, token: int) -> str:
        """The characters that can be shown once `token` has come; all that are left if it was the last."""
        shown = self.stops.push(self.stream.push(token))
        if self.row.finish_reason and not self.stops.stopped:
            shown += self.stops.push(self.stream.finish()) + self.stops.finish()
        self.shown.append(shown)
        return shown

    def piece(self, text: str) -> Piece:
        """What to hand out, with the result if the row is finished."""
        result = self.result() if self.row.finish_reason else None
        return Piece(self.row.prompt, self.row.sample, text, result)

    def result(self) -> Generated:
        row = self.row
        ended = row.generated[-1:] == [self.tokenizer.separator]
        ids = row.generated[:-1] if ended else list(row.generated)
        assert row.finish_reason is not None
        return Generated(
            prompt=self.prompt,
            text="".join(self.shown),
            ids=ids,
            prompt_ids=self.prompt_ids,
            finish_reason=row.finish_reason,
            seed=row.seed,
            sample=row.sample,
            truncated=len(self.prompt_ids) - len(row.given),
        )


def warn_of_cut(encoded: Sequence[Sequence[int]], n_ctx: int) -> None:
    """Say once that prompts are longer than the context."""
    longest = max(map(len, encoded), default=0)
    if longest > n_ctx:
        warnings.warn(
            f"a prompt of {longest} tokens is longer than the context of {n_ctx}: its first {longest - n_ctx} "
            "tokens are not read",
            PromptCut,
            stacklevel=3,
        )
