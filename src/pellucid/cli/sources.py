"""The commands that find where a text is from: in the training text of a run, or in its held-out text."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from pellucid.cli.options import (
    FOLDER,
    FilesOptions,
    OptionError,
    TrustedTokenizer,
    at_least,
    command,
    option,
    trust_of,
)
from pellucid.cli.progress import progress_on_stderr
from pellucid.model_names import exists

if TYPE_CHECKING:
    from pellucid.sources.of_run import RunSources


@dataclass(frozen=True)
class SearchedOptions:
    """What is searched."""

    part: Annotated[Literal["train", "held-out"], option("PART")] = "train"
    """Search the training text (train), or what is measured on and never trained on (held-out)."""
    trust: TrustedTokenizer = "no"


@dataclass(frozen=True)
class PassageOptions:
    """Which passages are listed."""

    min_tokens: Annotated[int | None, option("N", default="longer than new text shares by chance"), at_least(1)] = None
    """List passages of at least this many tokens."""
    occurrences: Annotated[int, option("N"), at_least(1)] = 3
    """Look up this many places of each passage."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print all passages and their places as JSON, one object for each document."""


def opened(run: str, options: SearchedOptions) -> "RunSources":
    """The part of the run's text, indexed."""
    from pellucid.sources.of_run import load_sources

    with progress_on_stderr("sources") as progress:
        return load_sources(run, options.part, progress=progress, trust=trust_of(options.trust))


@command
def find_sources(
    run: Annotated[Positional[str], option("RUN"), FOLDER],
    text: Annotated[Positional[str], option("TEXT|FILE")],
    *,
    input: FilesOptions,
    searched: SearchedOptions,
    output: PassageOptions,
) -> int:
    """Find what of a text stands verbatim in a run's text, and where.

    The first question builds an index, which later ones use.

    Args:
        run: Search the text of this run.
        text: Look up this text, or each document of this file or folder; - reads standard input.

    Examples:
        pellucid sources find runs/my_texts "It was the best of times"
        pellucid sources find runs/my_texts essay.txt --min-tokens 8
    """
    from pellucid.text.one_text import document_name
    from pellucid.text.read.documents import read_corpus

    sources = opened(run, searched)
    options: dict[str, Any] = {"fewest_tokens": output.min_tokens, "occurrences": output.occurrences}
    if text == "-":
        texts = [("", sys.stdin.read())]
    elif not exists(text) and "/" in text and Path(text).suffix and not any(map(str.isspace, text)):
        raise OptionError(f"there is no file {text}: give one that exists, or a text")
    elif exists(text):
        corpus = read_corpus(text, reading=input.reading())
        several = len(corpus.documents) > 1
        texts = ((document_name(document) if several else "", document.text) for document in corpus.documents)
    else:
        texts = [("", text)]
    for name, one in texts:
        result = sources.find(one, **options)
        if output.as_json:
            print(json.dumps({"document": name} | asdict(result), ensure_ascii=False))
        else:
            print(f"{name}\n" * bool(name) + str(result) + "\n" * bool(name))
    return 0


@command
def build_sources(run: Annotated[Positional[str], option("RUN"), FOLDER], *, searched: SearchedOptions) -> int:
    """Build the index of a run's text, which the first question would build.

    Args:
        run: Index the text of this run.

    Examples:
        pellucid sources build runs/my_texts
        pellucid sources build runs/my_texts --part held-out
    """
    sources = opened(run, searched)
    n = len(sources.index.part)
    print(f"{run}: {n:,} tokens of the part {searched.part} are indexed, {4 * n / 1e6:,.1f} MB")
    return 0


@command
def shared_sources(
    run: Annotated[Positional[str], option("RUN"), FOLDER],
    *,
    trust: TrustedTokenizer = "no",
) -> int:
    """List passages that the held-out text of a run shares with its training text.

    Args:
        run: Compare the two parts of the text of this run.

    Examples:
        pellucid sources shared runs/my_texts
        pellucid sources shared runs/my_texts --trust tokenizer
    """
    print(opened(run, SearchedOptions(trust=trust)).shared_passages())
    return 0


@dataclass(frozen=True)
class NoveltyOptions:
    """What is sampled."""

    samples: Annotated[int, option("N"), at_least(1)] = 32
    """Continue this many held-out texts with each checkpoint, at temperature 1."""
    max_tokens: Annotated[int, option("N"), at_least(32)] = 64
    """Continue each by this many tokens."""
    seed: Annotated[int, option("N"), at_least(0)] = 0
    """Draw the same samples again from the same seed."""
    trust: TrustedTokenizer = "no"


@command
def measure_novelty(run: Annotated[Positional[str], option("RUN"), FOLDER], *, options: NoveltyOptions) -> int:
    """Measure how many n-grams of what a run's checkpoints write are new.

    The curves are stored in the run's novelty.json, and its report shows them.

    Args:
        run: Sample from the checkpoints of this run.

    Examples:
        pellucid sources novelty runs/my_texts
        pellucid sources novelty runs/my_texts --samples 100
    """
    from pellucid.novelty import novelty_of_run

    o = options
    with progress_on_stderr("novelty") as progress:
        novelty = novelty_of_run(
            run, samples=o.samples, max_tokens=o.max_tokens, seed=o.seed, trust=trust_of(o.trust), progress=progress
        )
    print(f"{novelty}\npellucid report {run} shows the curves")
    return 0


SOURCE_COMMANDS: dict[str, Callable[..., int]] = {
    "find": find_sources,
    "build": build_sources,
    "shared": shared_sources,
    "novelty": measure_novelty,
}
