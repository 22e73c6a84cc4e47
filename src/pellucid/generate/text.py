"""Generate text from prompts, whole or in pieces as it comes."""

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack, cast

from pellucid.generate.beams import BeamSearch, search_beams
from pellucid.generate.decode import Decoding, generate_ids
from pellucid.generate.encoder_inputs import encode_source
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import NO_TAPS, SequenceState, TapFactory
from pellucid.generate.sampling import Sampling
from pellucid.generate.stopping import StopStrings
from pellucid.text.read.chunks import counted
from pellucid.text.tokenizers.tokenizer import Tokenizer
from pellucid.text_model import Model

#: the temperature of generated text unless another is given
TEMPERATURE = 0.8


class PromptCut(UserWarning):
    """A prompt is longer than the context, so its beginning is not read."""


@dataclass(frozen=True)
class Generated:
    """One text that was generated.

    text           the continuation, without the stop string and the token that ended it
    ids            its tokens: `tokenizer.decode(ids)` is `text`, plus the stop string if one was found
    finish_reason  length: max_tokens were generated; end: a token that ends texts came (`Tokenizer.ends`);
                   stop: a stop string did
    seed, sample   the same prompt, seed and sample give the same text again
    truncated      how many tokens at the beginning of the prompt did not fit into the context
    model          the transformer that generated it; None for other predictors
    """

    prompt: str
    text: str
    ids: list[int]
    prompt_ids: list[int]
    finish_reason: str
    seed: int
    sample: int
    truncated: int
    model: Any = field(default=None, repr=False, compare=False)

    def sources(self, *, part: str = "train") -> Any:
        """The passages of the text that stand verbatim in the text of the run that the model is from; they may begin in
        the prompt (`LanguageModel.sources`). Raises GenerationError for other predictors than transformers.
        """
        if self.model is None:
            raise GenerationError("no transformer generated this: ask pellucid.load_sources(RUN).find(text)")
        return self.model.sources(self, part=part)

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class TextPiece:
    """A piece of one text: of sample `sample` of prompt `prompt`, from 0; the last piece carries the result.

    The pieces of a text, joined, are exactly `result.text`; none of them ends inside a character.
    """

    prompt: int
    sample: int
    text: str
    result: Generated | None = None


class DrawOptions(TypedDict, total=False):
    """How tokens are chosen; `Sampling` describes each option and holds the defaults.

    temperature is 0.8 unless given, or None: small models, whose tails are poor, read better a little below 1; 1 is the
    model's own distribution. With a source or beams it is 0.
    """

    temperature: float | None
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float


class GenerateOptions(DrawOptions, total=False):
    """How text is generated; `stream_generate` describes each option and holds the defaults."""

    source: str | Sequence[str] | None
    max_tokens: int
    stop: str | Sequence[str]
    seed: int | None
    beams: int
    cache: bool
    weights: str
    compile: str
    report: Callable[[str], object] | None


def generate(
    model: Model,
    prompts: str | Sequence[str] = "",
    *,
    n: int = 1,
    taps: TapFactory = NO_TAPS,
    **options: Unpack[GenerateOptions],
) -> list[Generated]:
    """Continue every prompt `n` times: the results prompt by prompt, sample by sample.

    The options are those of `stream_generate`, which yields the same texts while they are generated.
    """
    stream = stream_generate(model, prompts, n=n, taps=taps, **options)
    finished = [piece for piece in stream if piece.result]
    # short texts are finished before long ones
    finished.sort(key=lambda piece: (piece.prompt, piece.sample))
    return [piece.result for piece in finished if piece.result]


def stream_generate(
    model: Model,
    prompts: str | Sequence[str] = "",
    *,
    source: str | Sequence[str] | None = None,
    max_tokens: int = 200,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    n: int = 1,
    beams: int = 0,
    cache: bool = True,
    taps: TapFactory = NO_TAPS,
    weights: str = "auto",
    compile: str = "auto",
    report: Callable[[str], object] | None = None,
    **draw: Unpack[DrawOptions],
) -> Iterator[TextPiece]:
    """Continue prompts piece by piece, all of them together. Closing the iterator stops the work.

    source         the text for the encoder of an encoder-decoder, one for each prompt or one for all; the prompt is
                   then the beginning of the target, usually empty, and one prompt serves any number of sources
    max_tokens     of every text; 0 gives empty texts
    stop           strings that end a text where they occur in it, however they are tokenized; they are not shown
    seed           None draws one, which the results report
    n              how many samples of every prompt; with beams, the n best different texts that were found, the best
                   first
    beams          0 draws samples; k > 0 searches for the likeliest text with k beams (`search_beams`), which is
                   deterministic and excludes seed and draw
    cache          False recomputes every step: slower, same result
    taps           makes the tap of every call (`pellucid.lens.generation_trace`)
    weights        the number format of the matrices while generating: int8 with a scale for each output, or int4 with
                   one for each 32 weights; loaded: unchanged; auto: unchanged, and read by compiled products or packed
                   where that saves time. For float32 networks on the CPU (`pellucid.generate.pack_weights`)
    compile        whether further tokens of a single text are read by compiled code on the CPU: yes, no, or auto where
                   max_tokens are enough for it to pay. Logits agree to rounding (`pellucid.generate.compiled_step`)
    report         called with a sentence that names the weights in use and their rounding error, and one that says
                   whether the step is compiled
    draw           how tokens are chosen: temperature, top_k, top_p, min_p and the penalties (`DrawOptions`)

    What the model's own tokenizer puts before a text (`Tokenizer.before`, such as <bos>) is read before every prompt;
    without that, an empty prompt starts from the separator, as training texts do. A prompt longer than the context
    keeps its last n_ctx tokens, with one PromptCut warning. Options are checked at once, before the first piece is
    requested. Raises GenerationError.
    """
    network, tokenizer = model.network, model.tokenizer
    sampling = sampling_of(draw, 0.0 if beams or source is not None else TEMPERATURE)
    check_numbers(n, beams, sampling, seed)
    stops = [stop] if isinstance(stop, str) else list(stop)
    texts, sources = paired(prompts, source)
    encoded = encode_prompts(tokenizer, texts, sources)
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "stop_ids": tokenizer.ends,
        # a special token without a row of the embedding is never chosen
        "n_allowed": tokenizer.n_vocab - sum(i >= network.architecture.n_vocab for i in tokenizer.special.values()),
        "sources": None if sources is None else [encode_source(tokenizer, text) for text in sources],
        "cache": cache,
        "taps": taps,
        "weights": weights,
        "compile": compile,
    }
    if beams:
        options["text_of"] = partial(text_of, tokenizer, stops)
        decoding = search_beams(network, encoded, beams=beams, n=n, **options)
    else:
        seeds = secrets.randbits(32) if seed is None else seed
        decoding = generate_ids(network, encoded, sampling=sampling, seeds=seeds, samples=range(n), **options)
    for reason in decoding.reasons:
        if report is not None:
            report(reason)
    warn_of_cut(encoded, network.architecture.n_ctx)
    writers = [Writer(row, texts[row.prompt], encoded[row.prompt], tokenizer, stops, model) for row in decoding.rows]
    return stream_pieces(decoding, writers)


def sampling_of(draw: DrawOptions, temperature: float) -> Sampling:
    """How tokens are chosen, with this temperature unless another is given."""
    if draw.get("temperature") is None:
        draw = {**draw, "temperature": temperature}
    return Sampling(**cast(dict[str, Any], draw))


def check_single(prompt: object, options: Mapping[str, Any]) -> None:
    """Raise GenerationError where the options of `generate`, which returns one text, ask for several."""
    several = {
        f"n = {options.get('n')!r}": options.get("n", 1) != 1,
        f"{type(prompt).__name__} as the prompt": not isinstance(prompt, str),
        "several sources": not isinstance(options.get("source"), str | None),
    }
    if option := next((what for what, applies in several.items() if applies), ""):
        raise GenerationError(f"{option}: generate returns one text of one prompt; use generate_many")


def check_numbers(n: int, beams: int, sampling: Sampling, seed: int | None) -> None:
    """Raise GenerationError for impossible numbers, and for sampling options together with beams."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GenerationError(f"n = {n!r}: expected the number of samples of every prompt, at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int | None):
        raise GenerationError(f"seed = {seed!r}: expected an integer, or None to draw one")
    if isinstance(beams, bool) or not isinstance(beams, int) or beams < 0:
        raise GenerationError(f"beams = {beams!r}: expected a number of beams, or 0 to draw samples")
    if beams and (sampling != Sampling(temperature=0) or seed is not None):
        raise GenerationError(f"beams = {beams} is deterministic: leave out temperature, penalties and seed")
    if beams and n > beams:
        raise GenerationError(
            f"n = {n} with beams = {beams}: a search returns at most one text for each beam; set n to {beams} or less"
        )


def paired(prompts: str | Sequence[str], source: str | Sequence[str] | None) -> tuple[list[str], list[str] | None]:
    """Prompts and sources as lists of one length; a single prompt or source is repeated."""
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if source is None:
        return texts, None
    sources = [source] * len(texts) if isinstance(source, str) else list(source)
    texts = texts * len(sources) if isinstance(prompts, str) else texts
    if len(texts) != len(sources):
        raise GenerationError(f"{len(sources)} sources for {len(texts)} prompts: give one for each, or one for all")
    return texts, sources


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str], sources: Sequence[str] | None) -> list[list[int]]:
    """The ids of every prompt (`Tokenizer.prompt_ids`), or of the beginning of every target after the start token.

    Targets start with it alone: what a tokenizer puts before a text it puts before a source.
    """
    if sources is None:
        return [tokenizer.prompt_ids(tokenizer.encode(text)) for text in texts]
    return [[tokenizer.start, *tokenizer.encode(text)] for text in texts]


def stream_pieces(decoding: Decoding | BeamSearch, writers: "list[Writer]") -> Iterator[TextPiece]:
    """The new characters of each text at each step, with the result when it is finished."""
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


def text_of(tokenizer: Tokenizer, stops: Sequence[str], ids: Sequence[int], is_all: bool) -> tuple[str, bool]:
    """What a `Writer` shows of these ids, which may be all of a text, and whether it holds a stop string.

    Of a text that goes on, nothing is decoded where no string could end it.
    """
    if not is_all and not stops:
        return "", False
    stream, strings = tokenizer.stream(), StopStrings(stops)
    text = strings.push("".join(stream.push(i) for i in ids if i not in tokenizer.ends))
    if is_all and not strings.stopped:
        text += strings.push(stream.finish()) + strings.finish()
    return text, strings.stopped


class Writer:
    """Turns the tokens of one row into text."""

    def __init__(
        self,
        row: SequenceState,
        prompt: str,
        prompt_ids: list[int],
        tokenizer: Tokenizer,
        stops: Sequence[str],
        model: Model | None = None,
    ):
        self.row, self.prompt, self.prompt_ids, self.tokenizer = row, prompt, prompt_ids, tokenizer
        self.stream, self.stops, self.model = tokenizer.stream(), StopStrings(stops), model
        self.shown: list[str] = []

    def push(self, token: int) -> str:
        """The characters that can be shown after `token`; all remaining ones if it was the last."""
        # an end may be a token of text too, where a model's files name it
        shown = "" if token in self.tokenizer.ends else self.stops.push(self.stream.push(token))
        if self.row.finish_reason and not self.stops.stopped:
            shown += self.stops.push(self.stream.finish()) + self.stops.finish()
        self.shown.append(shown)
        return shown

    def piece(self, text: str) -> TextPiece:
        """The piece to yield, with the result if the row is finished."""
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
            model=self.model,
        )


def warn_of_cut(encoded: Sequence[Sequence[int]], n_ctx: int) -> None:
    """Warn once that prompts are longer than the context."""
    longest = max(map(len, encoded), default=0)
    if longest > n_ctx:
        warnings.warn(
            f"a prompt of {longest} tokens is longer than the context of {n_ctx}; not read: its first "
            f"{counted(longest - n_ctx, 'token')}",
            PromptCut,
            stacklevel=3,
        )
