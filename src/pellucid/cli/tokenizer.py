"""The commands about tokenizers: train one, use it, look at it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.commands import OK
from pellucid.cli.options import (
    FILE,
    CorpusOptions,
    Expected,
    FilesOptions,
    TrustedTokenizer,
    at_least,
    command,
    flags_of,
    option,
    refuse_given,
    trust_of,
)
from pellucid.cli.progress import progress_on_stderr
from pellucid.destination import check_destination

if TYPE_CHECKING:
    from pellucid.text.read.documents import Corpus


@dataclass(frozen=True)
class LearningOptions:
    """How the tokenizer is made."""

    kind: Annotated[Literal["bpe", "word", "char", "byte"], option("KIND")] = "bpe"
    """Make tokens with bpe (byte-level byte-pair encoding), word, char or byte."""
    vocabulary: Annotated[int | None, option("N", default="8192"), at_least(1)] = None
    """Learn this many tokens (bpe and word)."""
    pattern: Annotated[Literal["gpt2", "gpt4", "word-end", "none"], option("NAME")] = "gpt2"
    """Divide text by gpt2, gpt4, word-end (a space belongs to the word before it) or none, before bpe."""
    sample: Annotated[float, option("SHARE"), Expected(lambda x: 0 < x <= 1, "a share above 0, up to 1")] = 1.0
    """Learn from this share of the text, evenly spread."""


@command
def tokenizer_train(
    paths: Annotated[Positional[tuple[str, ...]], option("TEXT [TEXT ...]")],
    *,
    out: Annotated[Path, option("FOLDER")],
    input: FilesOptions,
    training: LearningOptions,
) -> int:
    """Make a tokenizer from text.

    Args:
        paths: Learn from these files and folders, in every format that training reads.
        out: Write tokenizer.json into this folder. An existing tokenizer.json is not replaced.

    Examples:
        pellucid tokenizer train my_texts/ --out my_tokenizer --vocabulary 4096
        pellucid tokenizer train my_texts/ --out my_characters --kind char
    """
    check_destination(out / "tokenizer.json")
    check_kind(training)

    import pellucid

    t = training
    how: dict[str, Any] = {"pattern": t.pattern, "sample": t.sample, "reading": input.reading()}
    with progress_on_stderr("reading") as progress:
        tokenizer = pellucid.train_tokenizer(
            *paths, kind=t.kind, vocabulary=t.vocabulary, out=out, progress=progress, **how
        )
    print(f"{tokenizer.n_vocab:,} ids, written to {out / 'tokenizer.json'}")
    for note in tokenizer.notes:
        print(note)
    return OK


def check_kind(options: LearningOptions) -> None:
    """Raise OptionError for options that the chosen kind of tokenizer does not use."""
    for flag, value, kinds in (
        ("--vocabulary", options.vocabulary, ("bpe", "word")),
        ("--pattern", options.pattern, ("bpe",)),
        ("--sample", options.sample, ("bpe", "word")),
    ):
        if options.kind not in kinds:
            refuse_given([flag], f"{flag} {value} needs --kind {' or '.join(kinds)}, not {options.kind}")


@command
def tokenizer_encode(
    tokenizer: Annotated[Positional[str], option("TOKENIZER"), FILE],
    text: Annotated[Positional[str], option("[TEXT]")] = "-",
    *,
    allow_special: Annotated[bool, option()] = False,
    trust: TrustedTokenizer = "no",
) -> int:
    """Print the ids of a text, each with the text of its token.

    Args:
        tokenizer: Use this tokenizer.json, or the one in this folder or run.
        text: Encode this text; - reads standard input.
        allow_special: Encode names such as <|endoftext|> as special tokens.

    Examples:
        pellucid tokenizer encode runs/my_texts "To be, or not to be"
        pellucid tokenizer encode my_tokenizer/tokenizer.json < chapter.txt
    """
    from pellucid.text.tokenizers.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer, trust=trust_of(trust))
    text = sys.stdin.read() if text == "-" else text
    ids = loaded.encode(text, allow_special=tuple(loaded.special) if allow_special else ())
    for i in ids:
        print(f"{i}\t{loaded.token_str(i)!r}")
    return OK


@dataclass(frozen=True)
class EncodingOptions:
    """How the texts are encoded."""

    workers: Annotated[int | None, option("N", default="by the text, 16 at most"), at_least(0)] = None
    """Encode with this many processes."""
    seed: Annotated[int, option("N")] = 1337
    """Choose the held-out documents with this seed, which is that of the training."""
    shard_tokens: Annotated[int, option("N"), at_least(1)] = 1 << 24
    """Write this many tokens into one file: the most that an interruption loses."""


@command
def tokenizer_encode_corpus(
    paths: Annotated[Positional[tuple[str, ...]], option("TEXT [TEXT ...]")],
    *,
    tokenizer: Annotated[str, option("TOKENIZER"), FILE],
    trust: TrustedTokenizer = "no",
    input: CorpusOptions,
    encoding: EncodingOptions,
) -> int:
    """Encode texts for training.

    The tokens are kept in the folder in PELLUCID_CACHE. `pellucid train` on the same texts, with the same tokenizer,
    then starts without encoding. An interrupted command continues where it was when it is given again.

    Args:
        paths: Encode these files and folders, in every format that training reads.
        tokenizer: Use this tokenizer.json, or the one in this folder or run.

    Examples:
        pellucid tokenizer encode-corpus texts/ --tokenizer my_tokenizer
        pellucid tokenizer encode-corpus texts/ --tokenizer my_bpe --held-out 0.001
    """
    from pellucid.runs.run_dir import cache_folder, check_cache
    from pellucid.text.read.documents import read_corpus
    from pellucid.text.read.known_scans import checking_text
    from pellucid.text.split import split_corpus
    from pellucid.text.tokenizers.tokenizer import load_tokenizer
    from pellucid.text.tokens.prepare import prepare_tokens
    from pellucid.training.text_parts import held_out_fields

    loaded, cache = load_tokenizer(tokenizer, trust=trust_of(trust)), cache_folder()
    check_cache()
    fields = held_out_fields(input.held_out)
    if "text.held_out_files" in fields:
        refuse_given(["--seed"], "--held-out names files, and no seed chooses them")
    with checking_text(input.check_text), progress_on_stderr("reading") as progress:
        held_out = fields.get("text.held_out_files", ())
        corpus = read_corpus(paths, progress, input.reading(), held_out, cache)
        split = split_corpus(corpus, fields.get("text.held_out", 0.1), encoding.seed)
        options = {"progress": progress, "shard_tokens": encoding.shard_tokens, "workers": encoding.workers}
        tokens = prepare_tokens(split, loaded, cache, **options)
    print_notes(corpus)
    for note in tokens.notes:
        print(note)
    n_train, n_held_out = (len(tokens.part(name)) for name in ("train", "held_out"))
    print(f"encoded: {n_train:,} tokens to train on, {n_held_out:,} held out, in {tokens.folder}")
    return OK


@command
def tokenizer_decode(
    tokenizer: Annotated[Positional[str], option("TOKENIZER"), FILE],
    ids: Annotated[Positional[tuple[int, ...]], option("ID [ID ...]"), at_least(0)],
    *,
    trust: TrustedTokenizer = "no",
) -> int:
    """Print the text of token ids.

    Args:
        tokenizer: Use this tokenizer.json, or the one in this folder or run.
        ids: Decode these token ids.

    Examples:
        pellucid tokenizer decode runs/my_texts 312 88 41
        pellucid tokenizer decode my_tokenizer 0
    """
    from pellucid.text.tokenizers.tokenizer import load_tokenizer

    print(load_tokenizer(tokenizer, trust=trust_of(trust)).decode(list(ids)))
    return OK


@command
def tokenizer_show(
    tokenizer: Annotated[Positional[str], option("TOKENIZER"), FILE],
    paths: Annotated[Positional[tuple[str, ...]], option("[TEXT ...]")] = (),
    *,
    input: FilesOptions,
    word: Annotated[UseAppendAction[tuple[str, ...]], option("WORD", repeatable=True)] = (),
    rows: Annotated[int, option("N"), at_least(0)] = 10,
    trust: TrustedTokenizer = "no",
) -> int:
    """Show the contents of a tokenizer, and how far it compresses texts.

    Args:
        tokenizer: Look at this tokenizer.json, or the one in this folder or run.
        paths: Measure bytes per token and tokens per word on these files and folders of text.
        word: Draw the merges that form the tokens of this word.
        rows: Print this many rows of each table.

    Examples:
        pellucid tokenizer show runs/my_texts my_texts/
        pellucid tokenizer show my_tokenizer --word tokenization
    """
    from pellucid.cli.tokenizer_tables import print_survey
    from pellucid.text.read.documents import read_corpus
    from pellucid.text.tokenizers.survey import survey
    from pellucid.text.tokenizers.tokenizer import load_tokenizer

    if not paths:
        refuse_given(flags_of(FilesOptions), "no text was named, and nothing is read")
    loaded = load_tokenizer(tokenizer, trust=trust_of(trust))
    corpus = read_corpus(list(paths), reading=input.reading()) if paths else None
    if corpus is not None:
        print_notes(corpus)
    texts = [] if corpus is None else texts_by_file(corpus)
    print_survey(survey(loaded, texts), word, rows)
    return OK


def print_notes(corpus: "Corpus") -> None:
    """Print, beside the output, how the files were read and which of them were left out."""
    for note in (*corpus.notes, *(f"skipped {file.path}: {file.reason}" for file in corpus.unreadable)):
        print(note, file=sys.stderr)


def texts_by_file(corpus: "Corpus") -> Iterator[tuple[str, str]]:
    """Every document with the name of its file."""
    for k, pieces in corpus.stream():
        yield corpus.sources[corpus.documents[k].source].path, "".join(piece.text for piece in pieces)


TOKENIZER_COMMANDS: dict[str, Callable[..., int]] = {
    "train": tokenizer_train,
    "encode": tokenizer_encode,
    "encode-corpus": tokenizer_encode_corpus,
    "decode": tokenizer_decode,
    "show": tokenizer_show,
}
