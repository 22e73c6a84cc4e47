"""Opening files: the bytes as they lie on disk, hashed as they pass, unpacked, and turned into UTF-8."""

import codecs
import gzip
import hashlib
import importlib
import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from pellucid.text.read.chunks import PIECE, DocumentError

#: packed bytes that are given to zstd at once: it unpacks 4 of them to up to 128 KiB, and all of it at once
ZSTD_READ = 1 << 10
#: bytes that a frame may ask to be kept in memory: the most that there are, as `zstd --long=31` writes
ZSTD_WINDOW = 1 << 31
#: endings of packed files
PACKED = (".gz", ".zst")
#: the marks that say in which encoding a text is written, longest first
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Origin:
    """One file and how it is read: `name` is shown, `format` is one of formats.READERS, `field` chooses of a row."""

    path: Path
    name: str
    format: str = "plain"
    packed: str = ""
    encoding: str = "utf-8"
    field: str = ""


class HashingFile(io.RawIOBase):
    """A file that keeps the SHA-256 and the count of what was read, and reports the count."""

    def __init__(self, file: BinaryIO, report: Callable[[int], None] | None = None):
        self._file, self._report = file, report
        self.digest, self.n_bytes = hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = cast(Any, self._file).readinto(buffer)
        self.digest.update(memoryview(buffer)[:n])
        self.n_bytes += n
        if self._report:
            self._report(self.n_bytes)
        return n

    def exhaust(self) -> None:
        """Read what nobody asked for: the hash is of the whole file."""
        while self.read(PIECE):
            pass


class _Unpacked(io.RawIOBase):
    """What is inside a packed stream; DocumentError where it is damaged or ends too soon."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._left = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            found = next(self._chunks, None)
            if found is None:
                return 0
            self._left = found
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n


def unpacked(file: BinaryIO, origin: Origin) -> BinaryIO:
    """The content of an open file, to be read in turn."""
    if not origin.packed:
        return file
    unpack = {".gz": _gunzipped, ".zst": _unzstd}[origin.packed]
    return cast(BinaryIO, io.BufferedReader(_Unpacked(unpack(file, origin.name)), PIECE))


def _gunzipped(file: BinaryIO, name: str) -> Iterator[bytes]:
    done = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as inside:
            while chunk := inside.read1(PIECE):  # `read` would lose what stands before the place where a stream breaks
                done += len(chunk)
                yield chunk
    except EOFError:
        raise DocumentError(
            f"{name} is cut short: its gzip stream ends after {done:,} bytes of content, before its end mark; "
            "fetch the file again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DocumentError(f"{name} is damaged after {done:,} bytes of content ({error}): fetch it again") from None


def _unzstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    zstandard = extra("zstandard", name)
    unpacker, done = None, 0
    try:
        for chunk in iter(lambda: file.read(ZSTD_READ), b""):
            while chunk:
                unpacker = unpacker or zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
                found = unpacker.decompress(chunk)
                done += len(found)
                yield found
                chunk, unpacker = (unpacker.unused_data, None) if unpacker.eof else (b"", unpacker)
    except zstandard.ZstdError as error:
        raise DocumentError(f"{name} is damaged after {done:,} bytes of content ({error}): fetch it again") from None
    if unpacker is not None:
        raise DocumentError(
            f"{name} is cut short: its zstd stream ends after {done:,} bytes of content, before its end mark; fetch "
            "the file again"
        )


def extra(module: str, name: str) -> Any:
    """A library of the extra `data`; DocumentError, saying how to get it, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise DocumentError(f"{name} cannot be read without {package}: pip install 'pellucid[data]'") from None


def encoding_of(stream: BinaryIO, origin: Origin) -> str:
    """The encoding that a byte order mark at the stream's beginning names, or else the origin's; utf-8-sig: UTF-8 with
    a mark."""
    head = stream.read(4)
    marked = next((name for mark, name in MARKS if head.startswith(mark)), origin.encoding)
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else marked


def as_utf8(stream: BinaryIO, origin: Origin, errors: str = "strict") -> BinaryIO:
    """The stream with its byte order mark dropped and in UTF-8, whatever encoding the mark or the origin names.

    DocumentError, with its position, for a byte that this other encoding does not have, unless `errors` is
    surrogateescape, which leaves it as it is. What calls itself UTF-8 is passed on as it is.
    """
    buffered = stream if hasattr(stream, "peek") else io.BufferedReader(cast(Any, stream), PIECE)
    head = cast(Any, buffered).peek(4)[:4]
    encoding = next((name for mark, name in MARKS if head.startswith(mark)), origin.encoding)
    if encoding == "utf-8":
        if head.startswith(codecs.BOM_UTF8):
            buffered.read(3)
        return cast(BinaryIO, buffered)
    recoded = _recoded(cast(BinaryIO, buffered), encoding, origin.name, errors)
    return cast(BinaryIO, io.BufferedReader(_Unpacked(recoded), PIECE))


def _recoded(stream: BinaryIO, encoding: str, name: str, errors: str) -> Iterator[bytes]:
    decoder, done = codecs.getincrementaldecoder(encoding)(errors), 0
    for chunk in itertools.chain(iter(lambda: stream.read(PIECE), b""), (b"",)):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise DocumentError(
                f"{name}: byte {done - held + error.start} is not {encoding} ({error.reason}): say its encoding with "
                "--encoding NAME, or convert the file to UTF-8"
            ) from None
        done += len(chunk)
        yield text.encode("utf-8", errors)
