"""The commands that use a model, one public Python call each, and the table of all commands."""

import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.chat import chat_command
from pellucid.cli.conversion import convert_command
from pellucid.cli.inspect import inspect_command
from pellucid.cli.loading import loaded_from, mixed_from, transformer_of
from pellucid.cli.look import look_command
from pellucid.cli.options import (
    CHECKPOINT,
    INPUT_FILE,
    MODEL,
    SHARE,
    CheckpointOptions,
    Expected,
    FilesOptions,
    MixOptions,
    OptionError,
    Revision,
    WritingModelOptions,
    above,
    at_least,
    command,
    option,
)
from pellucid.cli.plan import plan_command, report_command
from pellucid.cli.progress import progress_on_stderr
from pellucid.cli.serve import serve_command
from pellucid.cli.train import train_command

OK, FAILED, WRONG_INPUT, NUMERICS = 0, 1, 2, 3


@dataclass(frozen=True)
class SamplingOptions:
    """How each next token is chosen."""

    temperature: Annotated[float | None, option("N", default="0.8, or 0 with --source"), at_least(0)] = None
    """Divide the logits by this; 0 always takes the likeliest token."""
    top_k: Annotated[
        int, option("N", default="all"), at_least(0, "a whole number of tokens to keep, or 0 to keep all")
    ] = 0
    """Sample from this many of the likeliest tokens."""
    top_p: Annotated[float, option("SHARE", default="all"), SHARE] = 1.0
    """Sample from the fewest likeliest tokens that together have this probability."""
    min_p: Annotated[float, option("SHARE", default="all"), SHARE] = 0.0
    """Sample from tokens that are at least this share as likely as the likeliest."""
    repetition_penalty: Annotated[float, option("N", default="off"), above(0)] = 1.0
    """Divide the logits of tokens that are in the text already by this (multiply, if negative)."""
    presence_penalty: Annotated[float, option("N", default="off")] = 0.0
    """Subtract this from the logits of tokens that were generated already, once."""
    frequency_penalty: Annotated[float, option("N", default="off")] = 0.0
    """Subtract this from a token's logit for each time that it was generated."""
    seed: Annotated[int | None, option("N", default="drawn and printed")] = None
    """Generate the same text again from the same seed."""
    beams: Annotated[int, option("N", default="off"), at_least(0)] = 0
    """Search for the likeliest text with this many beams, instead of sampling."""


@dataclass(frozen=True)
class GeneratedOptions:
    """What is printed."""

    max_tokens: Annotated[int, option("N"), at_least(0)] = 200
    """Generate at most this many tokens."""
    stop: Annotated[UseAppendAction[tuple[str, ...]], option("TEXT", repeatable=True)] = ()
    """Stop before this text."""
    n: Annotated[int, option("N"), at_least(1)] = 1
    """Generate this many texts."""
    stream: Annotated[bool, option()] = True
    """Print the text when it is complete, not while it is generated."""


@dataclass(frozen=True)
class GeneratingModelOptions(WritingModelOptions):
    """The weights to use, and how to compute with them."""

    compile: Annotated[Literal["auto", "no", "yes"], option("WHEN")] = "auto"
    """Compute new tokens of a single text by compiled C++ (CPUs only): auto (if --max-tokens is large), no or yes."""
    cuda_graphs: Annotated[bool, option()] = False
    """On a GPU, record a step and replay it for every token; never tested, because no GPU was available."""


@command
def generate_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    prompt: Annotated[Positional[str], option("[PROMPT]")] = "",
    *,
    source: Annotated[str | None, option("TEXT")] = None,
    model_options: Annotated[GeneratingModelOptions, option(name="model")],
    sampling: SamplingOptions,
    output: GeneratedOptions,
) -> int:
    """Generate text from a prompt.

    Args:
        model: Use the model of this run, this saved model, or this name on the Hugging Face hub.
        prompt: Continue this text; - reads it from standard input. With --source, the target starts with it.
        source: Give this text to the encoder of an encoder-decoder; - reads it from standard input.

    Examples:
        pellucid generate runs/my_texts "Once upon a time" --seed 1
        pellucid generate runs/my_texts "Once upon a time" --temperature 0
    """
    m = model_options
    check_choices(source, m, sampling, output)
    loaded = mixed_from(model, m)
    of_transformers = {
        "--source": source is not None,
        "--beams": sampling.beams,
        "--speculate": m.speculate,
        "--cuda-graphs": m.cuda_graphs,
        "--weights": m.weights != "auto",
        "--compile": m.compile != "auto",
    }
    asked = next((name for name, value in of_transformers.items() if value), "")
    if asked or not hasattr(loaded, "stream"):
        transformer_of(loaded, model, asked)
    prompt = sys.stdin.read() if prompt == "-" else prompt
    values = {"source": sys.stdin.read() if source == "-" else source, "beams": sampling.beams or None}
    values |= {"temperature": sampling.temperature, "speculate": m.speculate or None}
    values["cuda_graphs"] = m.cuda_graphs or None
    values |= {
        name: None if word == "auto" else word for name, word in (("weights", m.weights), ("compile", m.compile))
    }
    values["report"] = (
        (lambda said: print(said, file=sys.stderr)) if m.weights != "auto" or m.compile != "auto" else None
    )
    options: dict[str, Any] = {name: value for name, value in values.items() if value is not None} | {
        name: getattr(sampling, name)
        for name in ("top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed")
    }
    results = write(loaded, prompt, output, options)
    if sampling.seed is None and not sampling.beams:
        print(f"seed {results[0].seed}", file=sys.stderr)
    if m.weights != "auto":
        from pellucid.generate.weights_cost import cost_of_weights

        if cost := cost_of_weights(loaded.network, loaded.tokenizer, m.weights):
            print(cost, file=sys.stderr)
    return OK


def check_choices(
    source: str | None, model: GeneratingModelOptions, sampling: SamplingOptions, output: GeneratedOptions
) -> None:
    """Raise OptionError for options that contradict each other, before the model is loaded."""
    if model.cuda_graphs and sampling.beams:
        raise OptionError(
            f"--cuda-graphs and --beams {sampling.beams}: beams read other rows in each step: leave one out"
        )
    if model.compile == "yes":
        check_compile(source, model, sampling, output)
    if not sampling.beams:
        return
    defaults = SamplingOptions(beams=sampling.beams)
    if drawn := [name for name, value in vars(sampling).items() if value != getattr(defaults, name)]:
        flag = drawn[0].replace("_", "-")
        raise OptionError(f"--beams {sampling.beams} does not sample: leave out --{flag}")
    if output.n > sampling.beams:
        raise OptionError(f"--n {output.n} with --beams {sampling.beams}: ask for at most {sampling.beams} texts")
    if model.speculate:
        raise OptionError(f"--speculate works on one text, but --beams {sampling.beams} follows several: leave one out")


def check_compile(
    source: str | None, model: GeneratingModelOptions, sampling: SamplingOptions, output: GeneratedOptions
) -> None:
    """Raise OptionError for --compile yes with an option that reads anything but one more token of a single text."""
    others = {"n": output.n > 1, "beams": sampling.beams, "speculate": model.speculate, "source": source is not None}
    if wrong := [flag for flag, is_used in others.items() if is_used]:
        raise OptionError(f"--compile yes reads one more token of a single text: leave out --{wrong[0]}")


def write(loaded: Any, prompt: str, output: GeneratedOptions, options: dict[str, Any]) -> list[Any]:
    """Print the prompt and the generated text. Returns the results."""
    options |= {"max_tokens": output.max_tokens, "stop": list(output.stop)}
    if not output.stream or output.n > 1:
        results = loaded.generate_many(prompt, n=output.n, **options)
        print(f"\n{'-' * 40}\n".join(prompt + result.text for result in results))
        return results
    results = []
    pieces = iter(loaded.stream(prompt, **options))
    first = list(itertools.islice(pieces, 1))  # errors of the model or the options appear here
    print(prompt, end="", flush=True)
    for piece in itertools.chain(first, pieces):
        print(piece.text, end="", flush=True)
        results += [piece.result] if piece.result else []
    print()
    return results


@dataclass(frozen=True)
class ScoredTextOptions(FilesOptions):
    """How the text is read."""

    prefix: Annotated[str, option("TEXT")] = ""
    """Score the text, or each document, as the continuation of this text."""
    source: Annotated[str | None, option("TEXT")] = None
    """Give this text to the encoder of an encoder-decoder, and score the text, or each document, as its target."""
    stride: Annotated[int | None, option("N", default="half the context"), at_least(1)] = None
    """Move the window by this many tokens on texts longer than the context."""


@dataclass(frozen=True)
class ScoredOptions:
    """What is printed."""

    per_token: Annotated[bool, option()] = False
    """Print every token of a text with its surprisal in bits."""
    baselines: Annotated[bool, option()] = False
    """Print what n-grams, counted on the run's training text, score on this text."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print the measures of all documents together, and of each, as JSON."""


@command
def score_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    file: Annotated[Positional[str], option("FILE"), INPUT_FILE],
    *,
    input: ScoredTextOptions,
    model_options: Annotated[MixOptions, option(name="model")],
    output: ScoredOptions,
) -> int:
    """Measure how probable a text or a test set is (perplexity, bits per byte).

    Args:
        model: Use the model of this run, this saved model, or this name on the Hugging Face hub.
        file: Score this file or folder, document by document; - reads standard input. Image classifiers read a .npz.

    Examples:
        pellucid score runs/my_texts chapter.txt --baselines
        pellucid score runs/my_texts test.jsonl --json
    """
    check_run_for_baselines(model, output)
    if output.per_token and output.as_json:
        raise OptionError("--per-token prints a table of tokens, and --json prints JSON: leave one of them out")
    loaded = mixed_from(model, model_options)

    from pellucid.vision.run import ImageModel

    if isinstance(loaded, ImageModel):
        if wrong := [name for name, value in {**vars(input), **vars(output)}.items() if value]:
            flag = wrong[0].removeprefix("as_").replace("_", "-")
            raise OptionError(f"--{flag} applies to text, but {model} classifies images: leave it out")
        scored = loaded.score_file(file)
        print(f"images    {scored.n:,}\naccuracy  {scored.accuracy:.4f}\nloss      {scored.loss:.4f} nats per image")
        return OK
    window_options = {"stride": input.stride, "source": input.source}
    window_options = {name: value for name, value in window_options.items() if value is not None}
    if window_options:  # a predictor reads a fixed context and has no windows to move
        transformer_of(loaded, model, f"--{next(iter(window_options))}")
    options: dict[str, Any] = {"prefix": input.prefix, "baselines": output.baselines} | window_options
    if file == "-" and sys.stdin is not None and sys.stdin.isatty():
        text: Any = sys.stdin.read()  # it is typed, and ends with Ctrl-D
    else:
        text, options["reading"] = Path(file), input.reading()
        check_one_text(text, options["reading"], output)
    with progress_on_stderr("scoring") as progress:
        scored = loaded.score(text, progress=progress, **options)
    for note in scored.notes:
        print(note, file=sys.stderr)
    if output.as_json:
        print_as_json(scored)
    else:
        print_score(scored, output)
    return OK


def check_run_for_baselines(model: str, output: ScoredOptions) -> None:
    """Raise OptionError for --baselines without a training text, before anything is loaded."""
    if output.baselines and not (Path(model) / "recipe.json").exists():
        raise OptionError(
            f"--baselines counts n-grams of a run's training text, but {model} is not a run: leave it out"
        )


def check_one_text(path: Path, reading: Any, output: ScoredOptions) -> None:
    """Raise OptionError for --per-token with several documents, before they are scored."""
    from pellucid.text.read.documents import read_corpus

    if output.per_token and (n := len(read_corpus(path, reading=reading).documents)) > 1:
        raise OptionError(
            f"--per-token prints the tokens of one text, but {path} holds {n:,} documents: leave it out (--json prints "
            "a row for each document), or give a file that holds one"
        )


def _short(number: float) -> str:
    return f"{number:.3f}" if number < 1e6 else f"{number:.3e}"


def print_score(scored: Any, output: ScoredOptions) -> None:
    """Print the measures of a Score or a CorpusScore on standard output."""
    from pellucid.generate.scoring import CorpusScore
    from pellucid.text.read.chunks import counted

    is_corpus = isinstance(scored, CorpusScore)
    over = f"{counted(len(scored.documents), 'document')}, " if is_corpus else ""
    if output.per_token:
        print("bits\ttoken")
        for piece, bits in zip(scored.pieces, scored.surprisal_bits, strict=True):
            print(f"{bits:.3f}\t{piece.decode(errors='backslashreplace')!r}")
    why = f" (not comparable: {scored.why_not_comparable})" if scored.why_not_comparable else ""
    print(
        f"log-probability  {scored.log_prob:.4f} nats over {over}{counted(scored.n_tokens, 'token')}, "
        f"{counted(scored.n_bytes, 'byte')}\n"
        f"counted          {scored.counted}\n"
        f"loss             {scored.loss:.4f} nats per token ({scored.bits_per_token:.4f} bits)\n"
        f"perplexity       {scored.perplexity:.3f} per token, {_short(scored.perplexity_per_word)} per word "
        f"({counted(scored.n_words, 'word')}, divided at white space)\n"
        f"bits per byte    {scored.bits_per_byte:.4f}{why}"
    )
    if scored.baselines:
        from pellucid.predictors.ngram_baselines import rows_of

        rows = [*scored.baselines, ("this model", scored.loss, scored.bits_per_byte)]
        print("\n".join(rows_of("these texts" if is_corpus else "this text", rows)))


#: what --json prints of all documents together; the names are those of Python
MEASURES = (
    *("log_prob", "n_tokens", "n_bytes", "n_words", "loss", "bits_per_token", "perplexity", "perplexity_per_word"),
    *("bits_per_byte", "counted", "why_not_comparable"),
)


def print_as_json(scored: Any) -> None:
    """Print the measures of a Score or a CorpusScore as one JSON object, with each document on a line of its own."""
    from pellucid.generate.scoring import CorpusScore
    from pellucid.predictors.ngram_baselines import Baseline

    is_corpus = isinstance(scored, CorpusScore)
    totals = {"n_documents": len(scored.documents) if is_corpus else 1}
    totals |= {name: getattr(scored, name) for name in MEASURES}
    baselines = [_as_json(Baseline(*row)._asdict()) for row in scored.baselines]
    print(f'{_as_json(totals)[:-1]}, "baselines": [{", ".join(baselines)}], "documents": [')
    if is_corpus:
        numbers = scored.log_probs, scored.token_counts, scored.byte_counts, scored.word_counts
        rows = zip(scored.documents, *(column.tolist() for column in numbers), strict=True)
    else:
        rows = iter([(scored.document, scored.log_prob, scored.n_tokens, scored.n_bytes, scored.n_words)])
    end = ""
    for row in rows:
        print(end + _as_json(_document_row(*row)), end="")
        end = ",\n"
    print("]}")


def _document_row(document: Any, log_prob: float, n_tokens: int, n_bytes: int, n_words: int) -> dict[str, Any]:
    """The measures of a document; where it is None, the text was typed."""
    from pellucid.text.one_text import row_number

    return {
        "file": document and document.origin.name,
        "row": document and row_number(document),
        "log_prob": log_prob,
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "n_words": n_words,
        "loss": -log_prob / n_tokens,
        "bits_per_byte": -log_prob / math.log(2) / n_bytes,
    }


def _as_json(values: dict[str, Any]) -> str:
    """One line of JSON, in which a number that is not finite is null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)


@command
def fill_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    text: Annotated[
        Positional[str], option("TEXT"), Expected(lambda text: "[MASK]" in text, "a text with [MASK] in it")
    ],
    *,
    top: Annotated[int, option("N"), at_least(1)] = 5,
    model_options: Annotated[CheckpointOptions, option(name="model")],
) -> int:
    """Find the likeliest tokens for each [MASK] in a text.

    Args:
        model: Use this run or saved model, trained with --objective masked.
        text: Fill this text, in which [MASK] stands for each token to find.
        top: Print this many tokens for each [MASK].

    Examples:
        pellucid fill runs/masked "To be, or [MASK] to be"
        pellucid fill runs/masked "To be, or [MASK] to [MASK]" --top 3
    """
    loaded = transformer_of(loaded_from(model, model_options), model)
    for i, filling in enumerate(loaded.fill(text, top=top), 1):
        for token, p in zip(filling.texts, filling.probabilities, strict=True):
            print(f"{i}\t{p:.4f}\t{token!r}")
    return OK


@dataclass(frozen=True)
class VerifiedOptions:
    """What is printed."""

    tensors: Annotated[bool, option()] = False
    """List each kind of tensor with its distance from the definition."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print the report as JSON."""


@command
def verify_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    *,
    prompt: Annotated[UseAppendAction[tuple[str, ...]], option("TEXT", repeatable=True)] = (),
    checkpoint: Annotated[str, option("STEP"), CHECKPOINT] = "best",
    revision: Revision = "",
    trust: Annotated[bool, option()] = False,
    output: VerifiedOptions,
) -> int:
    """Check a model against its laws and its NumPy definition.

    The exit code is 1 if one is broken.

    Args:
        model: Check this run, this saved model, or this name on the Hugging Face hub.
        prompt: Run the checks on this text, instead of on three built-in ones.
        checkpoint: Load this checkpoint of a run: best (the lowest held-out loss), last, or the number of a step.
        revision: Check this branch, tag or commit of a name on the Hugging Face hub, such as step1000.
        trust: Read pickled weights, and tokenizers whose patterns are not known to be safe.

    Examples:
        pellucid verify runs/my_texts
        pellucid verify runs/my_texts --prompt "To be, or not to be" --tensors
    """
    loaded = transformer_of(loaded_from(model, CheckpointOptions(checkpoint, "cpu", revision, trust)), model)

    from rich.console import Console

    with Console(stderr=True).status("engine = reference") as status:
        report = loaded.verify(list(prompt) or None, progress=status.update)
    if output.as_json:
        print(report.to_json())
    else:
        report.print(tensors=output.tensors)
    return report.exit_code


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train_command,
    "generate": generate_command,
    "chat": chat_command,
    "score": score_command,
    "fill": fill_command,
    "verify": verify_command,
    "serve": serve_command,
    "look": look_command,
    "inspect": inspect_command,
    "convert": convert_command,
    "plan": plan_command,
    "report": report_command,
}
