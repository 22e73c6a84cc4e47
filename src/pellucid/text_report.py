"""`pellucid.read`: what training would read, before it does."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pellucid.plan.sized_recipe import sized, sizing_here, sizing_lines, text_properties
from pellucid.plan.sizing import choose_size
from pellucid.runs.length import with_length
from pellucid.runs.run_dir import cache_folder
from pellucid.text.read.conversations import holds_conversations
from pellucid.text.read.documents import DocumentError, read_corpus
from pellucid.text.read.find import UNREADABLE, ReadOptions
from pellucid.text.read.report import TextReport, TokenEstimate, passages_of, scripts_of, text_files_of
from pellucid.text.read.report_warnings import warnings_about
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.training.recipe import make_recipe

#: characters of the text that the tokenizer of an estimate learns from, and of those that it encodes
LEARNED_CHARACTERS, ENCODED_CHARACTERS = 2_000_000, 500_000
#: the length of a run that is given none
MINUTES = 10.0

Progress = Callable[[str, int, int], None]


def read(
    *inputs: str | Path,
    reading: ReadOptions | None = None,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> TextReport:
    """What `pellucid.train` would read of these files and folders: shares, passages, scripts, tokens, and what not.

    minutes   also choose the size of a run of so many minutes, which times this machine for a few seconds
    reading   how files are found and read. What cannot be read is in `TextReport.stops`, unless `reading.skip_bad`
              leaves it out

    Nothing is trained or written, but what was read is kept as training keeps it, so that it need not be read again.
    Raises DocumentError for paths that do not exist and for input without any text.
    """
    began, reading = time.monotonic(), reading or ReadOptions()
    paths = [str(path) for path in inputs]
    if not reading.field and holds_conversations(paths, reading):
        raise DocumentError(
            f"{', '.join(paths)}: these files hold conversations, whose answers train learns, and read shows "
            "text: name a field of text with --field NAME, or leave them out with --exclude PATTERN"
        )
    recipe = with_length(make_recipe(tuple(paths), None, {}), {"minutes": minutes or MINUTES})
    corpus = read_corpus(paths, progress, replace(reading, skip_bad=True), kept=cache_folder())
    stops: list[str] = []
    if not reading.skip_bad:
        stops = [f"{path}: {reason.removeprefix(UNREADABLE).lstrip(': ')}" for path, reason in corpus.unreadable]
        corpus = replace(corpus, skipped=tuple(file for file in corpus.skipped if file not in corpus.unreadable))
    files, passages, seconds = text_files_of(corpus), passages_of(corpus), time.monotonic() - began
    tokens, size = None, list[str]()
    try:
        split = split_corpus(corpus)
    except DocumentError as error:
        stops.append(str(error))
    else:
        if progress:
            progress("estimating the tokens", 0, 0)
        if minutes is None:  # of the machine whose times the constants are
            sizing = choose_size(recipe, text_properties(split), (1.0, 1.0))
        else:
            sizing = sizing_here(recipe, split)
            size = sizing_lines(sizing, sized(recipe, sizing, set()))
        tokens = _token_estimate(split, sizing.chosen.vocabulary)
    return TextReport(
        files=files,
        passages=passages,
        skipped=corpus.skipped,
        stops=tuple(stops),
        scripts=scripts_of(corpus),
        warnings=warnings_about(corpus, files),
        notes=tuple(note for note in corpus.notes if note not in corpus.notes_on_bytes),
        tokens=tokens,
        size=tuple(size),
        seconds=seconds,
    )


def _token_estimate(split: Split, n_vocab: int) -> TokenEstimate:
    """The tokens of a text, counted on a sample by a tokenizer that learned so many from another sample."""
    tokenizer = learn_tokenizer("bpe", [split.sample(LEARNED_CHARACTERS, 200)], n_vocab)
    sample = split.sample(ENCODED_CHARACTERS, 70)
    began = time.monotonic()
    n_tokens = len(tokenizer.encode(sample))
    scale = int(split.corpus.documents.rows["n_characters"].sum()) / len(sample)
    return TokenEstimate(round(n_tokens * scale), n_vocab, (time.monotonic() - began) * scale)
