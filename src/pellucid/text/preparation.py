"""From a split corpus and a tokenizer to a folder of tokens: once, and never half."""

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.interface import Tokenizer
from pellucid.text.pieces import Piece
from pellucid.text.split import PARTS, Split
from pellucid.text.tokens import FORMAT, PartWriter, Tokens, flush

#: ids per shard: 256 MiB in uint16
SHARD_TOKENS = 1 << 27
#: characters of small documents that are encoded together
TOGETHER = 1 << 20


def prepare(
    split: Split,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Tokens:
    """The tokens of both parts of `split`, in `folder`/tokens-KEY; made if they are not there yet.

    `progress(stage, done, total)` is called in bytes of text. Interrupted, it leaves nothing behind and what was
    there before is untouched. Raises TokensError if an existing folder is damaged, DocumentError if a file changed.
    """
    final = prepared_folder(split, tokenizer, folder)
    if final.exists():
        return Tokens.open(final, tokenizer)
    final.parent.mkdir(parents=True, exist_ok=True)
    working = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}")
    working.mkdir()
    try:
        _write(split, tokenizer, working, progress, shard_tokens)
        _publish(working, final)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return Tokens.open(final, tokenizer)


def prepared_folder(split: Split, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """Where `prepare` puts, or has put, these tokens."""
    sources = [[source.path, source.sha256] for source in split.corpus.sources]
    content = [FORMAT, sources, tokenizer.hash, tokenizer.separator, split.to_dict()]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Path(folder) / f"tokens-{key[:16]}"


def _write(split: Split, tokenizer: Tokenizer, folder: Path, progress: Any, shard_tokens: int) -> None:
    """Every file of the folder, flushed, the manifest last."""
    total = split.corpus.n_bytes
    counted = _Counter(lambda done: progress("encoding", done, total) if progress else None)
    parts = {}
    for name in PARTS:
        before = counted.n_bytes, counted.n_characters
        writer = PartWriter(folder, name, tokenizer.n_vocab, tokenizer.hash, tokenizer.separator, shard_tokens)
        unknown = _encode(split.documents(name), tokenizer, writer, counted)
        sizes = {"bytes": counted.n_bytes - before[0], "characters": counted.n_characters - before[1]}
        parts[name] = {**writer.finish(), **sizes, "unknown": unknown}
    tokenizer.save(folder)
    about = {
        "kind": tokenizer.kind,
        "hash": tokenizer.hash,
        "n_vocab": tokenizer.n_vocab,
        "separator": tokenizer.separator,
    }
    manifest = {
        "format": FORMAT,
        "sources": [vars(source) for source in split.corpus.sources],
        "tokenizer": about,
        "split": split.to_dict(),
        "parts": parts,
    }
    with (folder / "manifest.json").open("w", encoding="utf-8", newline="\n") as file:
        json.dump(manifest, file, indent=1)
        flush(file)
    with (folder / "tokenizer.json").open("rb") as file:
        os.fsync(file.fileno())


class _Counter:
    """Counts bytes and characters of the pieces that pass, and reports."""

    def __init__(self, report: Callable[[int], None]):
        self.n_bytes = self.n_characters = 0
        self._report = report

    def texts(self, pieces: Iterator[Piece]) -> Iterator[str]:
        for piece in pieces:
            self.n_bytes += piece.n_bytes
            self.n_characters += len(piece.text)
            yield piece.text
            self._report(self.n_bytes)


def _encode(documents: Iterator[Iterator[Piece]], tokenizer: Tokenizer, writer: PartWriter, counted: _Counter) -> int:
    """Write every document and its separator, small ones encoded together; how many characters were unknown."""
    unknown = 0

    def add(ids: np.ndarray) -> None:
        nonlocal unknown
        unknown += 0 if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum())
        writer.add(ids)

    def add_together(texts: list[str]) -> None:
        for ids in tokenizer.encode_batch(texts):
            add(ids)
            writer.end_document()
        texts.clear()

    small: list[str] = []
    for pieces in documents:
        texts = counted.texts(pieces)
        first, second = next(texts), next(texts, None)
        if second is None and len(first) < TOGETHER:
            small.append(first)
            if sum(map(len, small)) >= TOGETHER:
                add_together(small)
            continue
        add_together(small)
        for ids in tokenizer.encode_pieces(itertools.chain([first], [second] if second else [], texts)):
            add(ids)
        writer.end_document()
    add_together(small)
    return unknown


def _publish(working: Path, final: Path) -> None:
    """Give the finished folder its name in one step; another process that was faster made the same tokens."""
    _flush_folder(working)
    try:
        os.rename(working, final)
    except OSError:
        if not final.exists():
            raise
    _flush_folder(final.parent)


def _flush_folder(folder: Path) -> None:
    # a folder cannot be opened for flushing on every system
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
