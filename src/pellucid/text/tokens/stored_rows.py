"""Rows of files, such as pairs and conversations, as ids on disk: encoded once, and read again by every later run."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from pellucid.text.read.rows import RowSplit
from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.prepare import existing_tokens, publish, working_folder
from pellucid.text.tokens.store import FORMAT, Tokens, TokenSequence, tokenizer_entry, write_manifest
from pellucid.text.tokens.writer import PartWriter, remove_journal

PartT = TypeVar("PartT")
SplitT = TypeVar("SplitT", bound=RowSplit[Any])


@dataclass(frozen=True)
class StoredRows:
    """Rows of ids as one flat array. Row k is ids[starts[k] : starts[k + 1]], and `n_bytes` are those of the texts."""

    stored: TokenSequence
    unknown: int

    @property
    def ids(self) -> np.ndarray:
        return self.stored.ids

    @cached_property
    def starts(self) -> np.ndarray:
        return np.append(self.stored.starts, len(self.stored))

    @property
    def n_bytes(self) -> int:
        return self.stored.n_bytes

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of ids of each row, int64 [rows]."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class RowTokens(Generic[SplitT, PartT]):
    """Both parts as ids, with a manifest of what they depend on.

    `notes` are sentences about what was found damaged and was encoded again.
    """

    manifest: dict[str, Any]
    parts: dict[str, PartT]
    split: SplitT = field(repr=False)
    n_vocab: int
    separator: int
    notes: tuple[str, ...]

    def part(self, name: str) -> PartT:
        """The part called `name`: train or held_out."""
        return self.parts[name]


def prepare_rows(
    split: RowSplit[Any],
    tokenizer: Tokenizer,
    folder: str | Path,
    decided_by: Sequence[Any],
    write: Callable[[Path], dict[str, dict[str, Any]]],
) -> tuple[Tokens, tuple[str, ...]]:
    """The tokens of `split` in `folder`/tokens-KEY, written by `write` unless they are there already, and sentences
    about what was damaged. KEY is a hash of the rows' content, wherever they were read, of the tokenizer, and of
    `decided_by`, what else decides the ids.
    """
    rows = [hashlib.sha256() for _ in SPLIT_PARTS]
    for digest, name in zip(rows, SPLIT_PARTS, strict=True):
        for number in split.numbers(name):
            digest.update(json.dumps(split.corpus.rows[number]).encode() + b"\n")
    content = [FORMAT, [digest.hexdigest() for digest in rows], tokenizer.hash, tokenizer.separator, *decided_by]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    final = Path(folder) / f"tokens-{key[:16]}"
    stored, notes = existing_tokens(final, tokenizer)
    if stored is None:
        final.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(final) as working:
            written = write(working)
            write_manifest(working, tokenizer, {**_sources_and_split(split), "parts": written})
            publish(working, final)
        stored = Tokens.open(final, tokenizer)
    return stored, notes


def write_rows(folder: Path, name: str, tokenizer: Tokenizer, batches: Iterable[list[Sequence[int]]]) -> dict[str, Any]:
    """Write rows of ids as one shard, which can be mapped whole, and return their entry in the manifest."""
    made_by = (tokenizer.n_vocab, tokenizer.hash, sys.maxsize, tokenizer.unknown)
    with contextlib.closing(PartWriter(folder, name, *made_by)) as writer:
        for rows in batches:
            ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
            writer.add(ids, np.cumsum([len(row) for row in rows]))
        entry = writer.finish()
    remove_journal(folder)  # an interrupted call begins again
    return entry


def manifest_of(split: RowSplit[Any], tokenizer: Tokenizer, counts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What the ids of a run's rows depend on, with `counts` of each part."""
    about = {"format": FORMAT, "tokenizer": tokenizer_entry(tokenizer), **more}
    return about | _sources_and_split(split) | {"parts": counts}


def _sources_and_split(split: RowSplit[Any]) -> dict[str, Any]:
    return {"sources": [vars(source) for source in split.corpus.files], "split": split.to_dict()}
