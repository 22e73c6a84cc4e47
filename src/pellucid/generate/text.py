"""Prompts in, text out: whole, or in pieces as it comes."""

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pellucid.generate.beams import BeamSearch, search_beams
from pellucid.generate.decode import Decoding, generate_ids
from pellucid.generate.encoder_inputs import encode_source
from pellucid.generate.errors import GenerationError
from pellucid.generate.pack_weights import network_for
from pellucid.generate.readers import NO_TAPS, SequenceState, TapFactory
from pellucid.generate.sampling import Sampling
from pellucid.generate.stopping import StopStrings
from pellucid.model import Transformer
from pellucid.text.tokenizers.tokenizer import Tokenizer


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
class TextPiece:
    """A piece of one text: of prompt number `prompt`, sample number `sample`; the last one brings the result.

    The pieces of a text, joined, are exactly `result.text`; none of them ends inside a character.
    """

    prompt: int
    sample: int
    text: str
    result: Generated | None = None


def generate(
    network: Transformer, tokenizer: Tokenizer, prompts: str | Sequence[str] = "", **options
) -> list[Generated]:
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
    prompts: str | Sequence[str] = "",
    *,
    source: str | Sequence[str] | None = None,
    max_tokens: int = 200,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    n: int = 1,
    beams: int = 0,
    cache: bool = True,
    taps: TapFactory = NO_TAPS,
    weights: str = "auto",
    speculate: int = 0,
    report: Callable[[str], object] | None = None,
) -> Iterator[TextPiece]:
    """Continue prompts piece by piece, all of them together; closing the iterator stops the work.

    source         what an encoder-decoder reads, one for each prompt or one for all; the prompt is then how
                   the target begins, most often nothing, and one prompt serves any number of sources
    max_tokens     of every text; 0 is allowed and gives empty ones
    temperature    and the next five: how tokens are chosen, see `Sampling`. 0.8 unless given, because small
                   models, whose tails are poor, read better a little below 1; 1 is the model's own
                   distribution. Where a source is read, 0 unless given
    stop           strings that end a text where they appear in it, whatever its tokens; not shown
    seed           None draws one, which the results name
    n              how many samples of every prompt; with beams, the n best texts, the best first
    beams          0 draws samples; k > 0 searches for the likeliest text with k beams (`search_beams`),
                   which leaves nothing to chance and goes with none of the choices above it up to seed
    cache          False recomputes every step, slower and the same
    taps           are handed every named tensor of every call (`pellucid.lens.generation_trace`)
    weights        what the matrices are kept in while writing: float32, float16, bfloat16 (sums in float32) or
                   int8 with a scale for each output; loaded: as they are; auto: as they are, packed for reading
                   where that saves time. On the CPU, for float32 networks (`pellucid.generate.pack_weights`)
    speculate      guess up to this many tokens at once from what followed the same words before, while a
                   single text goes on; the text is the same (`pellucid.generate.speculation`)
    report         is told in a sentence which weights are used, and how far they are from the network's

    An empty prompt starts from the separator, as training texts do. A prompt longer than the context
    keeps its last n_ctx tokens; a PromptCut warning says so once. Options are checked at once, before
    the first piece is asked for. Raises GenerationError.
    """
    usual = 0.8 if source is None and not beams else 0.0
    sampling = Sampling(
        temperature=usual if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
    )
    check_numbers(n, beams, sampling, seed)
    texts, sources = paired(prompts, source)
    encoded = encode_prompts(tokenizer, texts, sources)
    options = {
        "max_tokens": max_tokens,
        "stop_ids": tokenizer.ends,
        "cache": cache,
        "taps": taps,
        # a special token that the embedding has no row for is never chosen
        "n_allowed": tokenizer.n_vocab - sum(i >= network.architecture.n_vocab for i in tokenizer.special.values()),
        "sources": None if sources is None else [encode_source(tokenizer, text) for text in sources],
    }
    # what is looked at and changed is the network as it was loaded
    network, said = network_for(network, weights if taps is NO_TAPS else looked_at(weights), max_tokens)
    if report is not None:
        report(said)
    if beams:
        if speculate:
            raise GenerationError(f"speculate = {speculate} guesses one text and beams = {beams} follow several")
        decoding = search_beams(network, encoded, beams=beams, n=n, **options)
    else:
        seeds = secrets.randbits(32) if seed is None else seed
        options |= {"sampling": sampling, "seeds": seeds, "samples": range(n), "speculate": speculate}
        decoding = generate_ids(network, encoded, **options)
    warn_of_cut(encoded, network.architecture.n_ctx)
    stops = [stop] if isinstance(stop, str) else list(stop)
    writers = [Writer(row, texts[row.prompt], encoded[row.prompt], tokenizer, stops) for row in decoding.rows]
    return pieces(decoding, writers)


def looked_at(weights: str) -> str:
    """The weights of a network that taps look into: the loaded ones."""
    if weights not in ("auto", "loaded"):
        raise GenerationError(f"weights = {weights} with taps or edits: they see the loaded weights, leave it at auto")
    return "loaded"


def check_numbers(n: int, beams: int, sampling: Sampling, seed: int | None) -> None:
    """Refuse numbers that are none, and choices of sampling where beams leave nothing to choose."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GenerationError(f"n = {n!r}: expected the number of samples of every prompt, at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int | None):
        raise GenerationError(f"seed = {seed!r}: expected a whole number, or None to have one drawn")
    if isinstance(beams, bool) or not isinstance(beams, int) or beams < 0:
        raise GenerationError(f"beams = {beams!r}: expected a number of beams, or 0 to draw samples")
    if beams and (sampling != Sampling(temperature=0) or seed is not None):
        raise GenerationError(f"beams = {beams} goes without temperature, penalties and seed: it draws nothing")
    if beams and n > beams:
        raise GenerationError(
            f"n = {n} with beams = {beams}: there are as many texts as beams, ask for at most {beams}"
        )


def paired(prompts: str | Sequence[str], source: str | Sequence[str] | None) -> tuple[list[str], list[str] | None]:
    """Prompts and sources as lists of one length; a single one of either serves all of the other."""
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if source is None:
        return texts, None
    sources = [source] * len(texts) if isinstance(source, str) else list(source)
    texts = texts * len(sources) if isinstance(prompts, str) else texts
    if len(texts) != len(sources):
        raise GenerationError(f"{len(sources)} sources for {len(texts)} prompts: give one for each, or one for all")
    return texts, sources


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str], sources: Sequence[str] | None) -> list[list[int]]:
    """Ids of every prompt; a target begins with its start, another text where it is empty with the separator."""
    if sources is None:
        return [tokenizer.encode(text) or [tokenizer.separator] for text in texts]
    return [[tokenizer.start, *tokenizer.encode(text)] for text in texts]


def pieces(decoding: Decoding | BeamSearch, writers: "list[Writer]") -> Iterator[TextPiece]:
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

    def __init__(
        self, row: SequenceState, prompt: str, prompt_ids: list[int], tokenizer: Tokenizer, stops: Sequence[str]
    ):
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

    def piece(self, text: str) -> TextPiece:
        """What to hand out, with the result if the row is finished."""
        result = self.result() if self.row.finish_reason else None
        return TextPiece(self.row.prompt, self.row.sample, text, result)

    def result(self) -> Generated:
        row = self.row
        ended = bool(row.generated) and row.generated[-1] in self.tokenizer.ends
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
