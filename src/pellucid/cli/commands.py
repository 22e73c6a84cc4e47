"""The commands that use a model, one public Python call each, and the table of all commands."""

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.chat import chat_command
from pellucid.cli.conversion import convert_command
from pellucid.cli.inspect import inspect_command
from pellucid.cli.loading import loaded_from, mixed_from, transformer_of
from pellucid.cli.look import look_command
from pellucid.cli.options import (
    INPUT_FILE,
    MODEL,
    NO_SAMPLING,
    CheckpointOptions,
    DrawnTokenOptions,
    Expected,
    FilesOptions,
    MixOptions,
    NoEffect,
    OpenedModelOptions,
    OptionError,
    WritingModelOptions,
    at_least,
    command,
    flags_of,
    option,
    refuse_given,
)
from pellucid.cli.plan import doctor_command, plan_command, report_command
from pellucid.cli.progress import progress_on_stderr
from pellucid.cli.read import read_command
from pellucid.cli.scores import print_as_json, print_score
from pellucid.cli.serve import serve_command
from pellucid.cli.train import train_command

OK, FAILED, WRONG_INPUT, NUMERICS = 0, 1, 2, 3


@dataclass(frozen=True)
class SamplingOptions(DrawnTokenOptions):
    """How each next token is chosen."""

    temperature: Annotated[float | None, option("N", default="0.8, or 0 with --source"), at_least(0), NO_SAMPLING] = (
        None
    )
    """Divide the logits by this; 0 always takes the likeliest token."""
    presence_penalty: Annotated[float, option("N", default="off"), NO_SAMPLING] = 0.0
    """Subtract this from the logits of tokens that were generated already, once."""
    frequency_penalty: Annotated[float, option("N", default="off"), NO_SAMPLING] = 0.0
    """Subtract this from a token's logit for each time that it was generated."""
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
    stream: Annotated[bool, option(), NoEffect(lambda o: o.as_json, "--json prints texts that are complete")] = True
    """Print the text when it is complete, not while it is generated."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print one JSON object for each text, on a line of its own: prompt, text, ids, finish_reason, seed."""
    sources: Annotated[bool, option()] = False
    """Print below each text what of it stands verbatim in the run's training text, and where."""


@dataclass(frozen=True)
class GeneratingModelOptions(WritingModelOptions):
    """The weights to use, and how to compute with them."""

    compile: Annotated[Literal["auto", "no", "yes"], option("WHEN")] = "auto"
    """Compute new tokens of a single text by compiled C++ (CPUs only): auto (if --max-tokens is large), no or yes."""


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
    values = {"source": source, "beams": sampling.beams, "weights": m.weights, "compile": m.compile}
    # options that only a transformer has, where they were given
    extras = {name: value for name, value in values.items() if value not in (None, 0, "auto")}
    if output.sources:
        check_has_text(model, "--sources looks into a run's training text")
    loaded = mixed_from(model, m)
    if extras or not hasattr(loaded, "stream"):
        transformer_of(loaded, model, f"--{next(iter(extras))}" if extras else "")
    prompt = sys.stdin.read() if prompt == "-" else prompt
    options: dict[str, Any] = {name: value for name, value in vars(sampling).items() if name != "beams"} | extras
    if source == "-":
        options["source"] = sys.stdin.read()
    if extras.keys() & {"weights", "compile"}:
        options["report"] = lambda line: print(line, file=sys.stderr)
    results = print_generated(loaded, prompt, output, options)
    if sampling.seed is None and not sampling.beams and not output.as_json:
        print(f"seed {results[0].seed}", file=sys.stderr)
    return OK


def print_generated(loaded: Any, prompt: str, output: GeneratedOptions, options: dict[str, Any]) -> list[Any]:
    """Print the prompt and the generated text. Returns the results."""
    options |= {"max_tokens": output.max_tokens, "stop": list(output.stop)}
    if output.as_json:
        results = loaded.generate_many(prompt, n=output.n, **options)
        for result in results:
            values = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "model"}
            if output.sources:
                values["sources"] = asdict(sources_of(loaded, result))
            print(json.dumps(values, ensure_ascii=False))
        return results
    if not output.stream or output.n > 1:
        results = loaded.generate_many(prompt, n=output.n, **options)
        for number, result in enumerate(results):
            print(f"{'-' * 40}\n" * bool(number) + prompt + result.text)
            if output.sources:
                print(f"\n{sources_of(loaded, result)}")
        return results
    results = []
    pieces = iter(loaded.stream(prompt, **options))
    first = list(itertools.islice(pieces, 1))  # errors of the model or the options appear here
    print(prompt, end="", flush=True)
    for piece in itertools.chain(first, pieces):
        print(piece.text, end="", flush=True)
        results += [piece.result] if piece.result else []
    print()
    for result in results if output.sources else ():
        print(f"\n{sources_of(loaded, result)}")
    return results


def sources_of(loaded: Any, result: Any) -> Any:
    """What of a generated text stands verbatim in the training text of the run that the model is from."""
    with progress_on_stderr("sources") as progress:
        return transformer_of(loaded, "the model", "--sources").sources(result, progress=progress)


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
        file: Score this file or folder, document by document; - reads standard input.

    Examples:
        pellucid score runs/my_texts chapter.txt --baselines
        pellucid score runs/my_texts test.jsonl --json
    """
    if output.baselines:
        check_has_text(model, "--baselines counts n-grams of a run's training text")
    if output.per_token and output.as_json:
        raise OptionError("--per-token prints a table of tokens, and --json prints JSON: leave one of them out")
    loaded = mixed_from(model, model_options)
    window_options = {"stride": input.stride, "source": input.source}
    window_options = {name: value for name, value in window_options.items() if value is not None}
    if window_options:  # a predictor reads a fixed context and has no windows to move
        transformer_of(loaded, model, f"--{next(iter(window_options))}")
    options: dict[str, Any] = {"prefix": input.prefix, "baselines": output.baselines} | window_options
    if file == "-" and sys.stdin is not None and sys.stdin.isatty():
        refuse_given(flags_of(FilesOptions), "what is typed is one plain text")
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
        print_score(scored, output.per_token)
    return OK


def check_has_text(model: str, why: str) -> None:
    """Raise OptionError for an option that needs a training text where there is none, before anything is loaded."""
    if not (Path(model) / "recipe.json").exists():
        raise OptionError(f"{why}, but {model} is not a run: leave it out")


def check_one_text(path: Path, reading: Any, output: ScoredOptions) -> None:
    """Raise OptionError for --per-token with several documents, before they are scored."""
    from pellucid.text.read.documents import read_corpus

    if output.per_token and (n := len(read_corpus(path, reading=reading).documents)) > 1:
        raise OptionError(
            f"--per-token prints the tokens of one text, but {path} holds {n:,} documents: leave it out (--json prints "
            "a row for each document), or give a file that holds one"
        )


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

    tensors: Annotated[bool, option(), NoEffect(lambda o: o.as_json, "--json prints every tensor")] = False
    """List each kind of tensor with its distance from the reference."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print the report as JSON."""


@command
def verify_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    *,
    prompt: Annotated[UseAppendAction[tuple[str, ...]], option("TEXT", repeatable=True)] = (),
    model_options: Annotated[OpenedModelOptions, option(name="model")],
    output: VerifiedOptions,
) -> int:
    """Check a model against its laws and the NumPy reference.

    The exit code is 1 if a law is broken.

    Args:
        model: Check this run, this saved model, or this name on the Hugging Face hub.
        prompt: Run the checks on this text, instead of on three built-in ones.

    Examples:
        pellucid verify runs/my_texts
        pellucid verify runs/my_texts --prompt "To be, or not to be" --tensors
    """
    loaded = transformer_of(loaded_from(model, CheckpointOptions(**vars(model_options), device="cpu")), model)

    from rich.console import Console

    with Console(stderr=True).status("engine = reference") as status:
        report = loaded.verify(list(prompt) or None, progress=status.update)
    if output.as_json:
        print(report.to_json())
    else:
        report.print(tensors=output.tensors)
    return report.exit_code


COMMANDS: dict[str, Callable[..., int]] = {
    "read": read_command,
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
    "doctor": doctor_command,
}
