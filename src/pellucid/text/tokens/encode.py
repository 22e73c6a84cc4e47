"""Encode on all cores. The text is cut into units; processes encode them separately, and the ids come back in order.

The text and the tokenizer alone decide where a unit ends, so the ids do not depend on the number of workers.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pellucid.text.read.chunks import TextChunk
from pellucid.text.tokenizers.base import Tokenizer, TokenizerError
from pellucid.text.workers import LENGTH, WorkerPool

#: characters per unit; a longer document is cut where its tokenizer allows it. A worker needs some 100 bytes for each
#: character while it encodes (docs/experiments/encoding.md)
UNIT = 1 << 17


class Unit(NamedTuple):
    """Texts that are encoded together; `ends` marks those that end a document.

    `n_bytes` is the number of bytes of the corpus read so far when the unit was complete.
    """

    texts: Sequence[str]
    ends: Sequence[bool]
    n_bytes: int = 0


class Encoded(NamedTuple):
    """The ids of a unit with its separators, and the positions after a separator, where the next document begins."""

    ids: np.ndarray
    ends: np.ndarray


class Counter:
    """Counts the bytes and characters of the chunks that pass through it."""

    def __init__(self):
        self.n_bytes = self.n_characters = 0

    def texts(self, pieces: Iterator[TextChunk]) -> Iterator[str]:
        """The text of every chunk that is not empty."""
        for piece in pieces:
            self.n_bytes += piece.n_bytes
            self.n_characters += len(piece.text)
            if piece.text:
                yield piece.text


def units_of(documents: Iterable[Iterator[TextChunk]], tokenizer: Tokenizer, counted: Counter) -> Iterator[Unit]:
    """Group documents into units of about UNIT characters."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for pieces in documents:
        for text, last in _with_last_flag(tokenizer.chunks(counted.texts(pieces))):
            texts.append(text)
            ends.append(last)
            size += len(text)
            if size >= UNIT:
                yield Unit(texts, ends, counted.n_bytes)
                texts, ends, size = [], [], 0
    if texts:
        yield Unit(texts, ends, counted.n_bytes)


def _with_last_flag(chunks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Each chunk with True for the last one."""
    held = next(chunks, None)
    for chunk in chunks:
        assert held is not None
        yield held, False
        held = chunk
    if held is not None:
        yield held, True


def encode_unit(tokenizer: Tokenizer, unit: Unit) -> Encoded:
    """The ids of a unit's texts, with a separator after each text that ends a document."""
    parts, separator = [], np.array([tokenizer.separator])
    ends, n = [], 0
    for ids, last in zip(tokenizer.encode_batch(unit.texts), unit.ends, strict=True):
        parts += [ids, separator] if last else [ids]
        n += len(ids) + last
        if last:
            ends.append(n)
    return Encoded(np.concatenate(parts), np.array(ends, dtype=np.int64))


class Encoders:
    """Encodes units with `n` worker processes that load the tokenizer from `folder`; a context manager.

    With n = 0 this process encodes by itself.
    """

    def __init__(self, tokenizer: Tokenizer, folder: Path, n: int):
        self.tokenizer = tokenizer
        words = (str(folder), tokenizer.hash)
        self.pool = WorkerPool(n, "pellucid.text.tokens.worker", words, "encodes text") if n else None

    def __enter__(self) -> "Encoders":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.pool:
            self.pool.__exit__(*error)

    def encode(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, Encoded]]:
        """Every unit with its ids, in order. At most two units for each worker are in memory."""
        if self.pool is None:
            yield from ((unit, encode_unit(self.tokenizer, unit)) for unit in units)
            return
        for unit, answer in self.pool.answers(units, pack_texts, ahead=2):
            yield unit, unpack_ids(answer)


# Messages through the pipe -----------------------------------------------------------------------


def pack_texts(unit: Unit) -> bytes:
    """A unit as bytes: the number of texts, their lengths, which of them end a document, the texts in UTF-8."""
    raw = [text.encode() for text in unit.texts]
    lengths = np.array([len(text) for text in raw], dtype="<u8")
    return b"".join([LENGTH.pack(len(raw)), lengths.tobytes(), bytes(unit.ends), *raw])


def unpack_texts(content: bytes) -> Unit:
    """The inverse of `pack_texts`."""
    (n,) = LENGTH.unpack_from(content)
    start = 9 * n + LENGTH.size
    bounds = start + np.cumsum([0, *np.frombuffer(content, "<u8", n, LENGTH.size).tolist()])
    texts = [content[a:b].decode() for a, b in itertools.pairwise(bounds)]
    return Unit(texts, [bool(end) for end in content[start - n : start]])


def pack_ids(encoded: Encoded) -> bytes:
    """An answer as bytes: how many documents end, the positions, and the ids."""
    ids = encoded.ids.astype("<u4")
    return b"".join([LENGTH.pack(len(encoded.ends)), encoded.ends.astype("<i8").tobytes(), ids.tobytes()])


def pack_error(error: TokenizerError) -> bytes:
    """The answer of a worker that could not encode its unit."""
    return LENGTH.pack(2**64 - 1) + str(error).encode()


def unpack_ids(content: bytes) -> Encoded:
    """The inverse of `pack_ids`. Raises the TokenizerError that `pack_error` packed."""
    (n,) = LENGTH.unpack_from(content)
    if n == 2**64 - 1:
        raise TokenizerError(content[LENGTH.size :].decode())
    ends = np.frombuffer(content, "<i8", n, LENGTH.size)
    return Encoded(np.frombuffer(content, "<u4", offset=LENGTH.size + 8 * n), ends)
