"""Open files: hash their bytes as they are read, decompress them, and convert them to UTF-8."""

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

from pellucid.extras import install_command
from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError

#: compressed bytes given to zstd at once: 4 of them unpack to up to 128 KiB, and it unpacks all of its input at once
ZSTD_READ = 1 << 10
#: the largest window, in bytes, that a zstd frame may ask for: the format's limit, as `zstd --long=31` writes
ZSTD_WINDOW = 1 << 31
#: file endings of compressed files
PACKED = (".gz", ".zst")
#: byte order marks and their encodings, longest first
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Origin:
    """A file and how to read it: `name` is for messages, `format` is a key of formats.READERS, `field` holds
    the text, documents end at `split_at`, and of pages the `html` part is read: all, or main.
    """

    path: Path
    name: str
    format: str = "plain"
    packed: str = ""
    encoding: str = "utf-8"
    field: str = ""
    split_at: str = ""
    html: str = "all"


class HashingFile(io.RawIOBase):
    """A file that hashes and counts the bytes that are read from it, and reports the count."""

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
        """Read the rest of the file, so that the hash covers all of it."""
        while self.read(CHUNK_BYTES):
            pass


class _Unpacked(io.RawIOBase):
    """The content of a compressed stream. Raises DocumentError where it is damaged or truncated."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._left = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n


def unpacked(file: BinaryIO, origin: Origin) -> BinaryIO:
    """The decompressed content of an open file, to be read from start to end."""
    if not origin.packed:
        return file
    unpack = {".gz": _gunzipped, ".zst": _unzstd}[origin.packed]
    return cast(BinaryIO, io.BufferedReader(_Unpacked(unpack(file, origin.name)), CHUNK_BYTES))


def _gunzipped(file: BinaryIO, name: str) -> Iterator[bytes]:
    done = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as inside:
            while chunk := inside.read1(CHUNK_BYTES):  # `read` would lose the content before the break
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
    zstandard = import_data_extra("zstandard", name)
    unpacker, done = None, 0
    try:
        for chunk in iter(lambda: file.read(ZSTD_READ), b""):
            while chunk:
                unpacker = unpacker or zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
                content = unpacker.decompress(chunk)
                done += len(content)
                yield content
                chunk, unpacker = (unpacker.unused_data, None) if unpacker.eof else (b"", unpacker)
    except zstandard.ZstdError as error:
        raise DocumentError(f"{name} is damaged after {done:,} bytes of content ({error}): fetch it again") from None
    if unpacker is not None:
        raise DocumentError(
            f"{name} is cut short: its zstd stream ends after {done:,} bytes of content, before its end mark; fetch "
            "the file again"
        )


def import_data_extra(module: str, name: str) -> Any:
    """A module from the extra `data`. If it is missing, DocumentError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise DocumentError(f"{name} cannot be read without {package}: {install_command('data')}") from None


def encoding_of(stream: BinaryIO, origin: Origin) -> str:
    """The encoding of the stream's byte order mark, or else the origin's; utf-8-sig is UTF-8 with a mark."""
    head = stream.read(4)
    marked = next((name for mark, name in MARKS if head.startswith(mark)), origin.encoding)
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else marked


def as_utf8(stream: BinaryIO, origin: Origin, errors: str = "strict") -> BinaryIO:
    """The stream without its byte order mark, converted to UTF-8 from the encoding of the mark or of the origin.

    Raises DocumentError, with the position, for a byte that the encoding does not have, unless `errors` is
    "surrogateescape", which leaves such bytes as they are. UTF-8 input passes through unchanged.
    """
    buffered = stream if hasattr(stream, "peek") else io.BufferedReader(cast(Any, stream), CHUNK_BYTES)
    head = cast(Any, buffered).peek(4)[:4]
    encoding = next((name for mark, name in MARKS if head.startswith(mark)), origin.encoding)
    if encoding == "utf-8":
        if head.startswith(codecs.BOM_UTF8):
            buffered.read(3)
        return cast(BinaryIO, buffered)
    recoded = _recoded(cast(BinaryIO, buffered), encoding, origin.name, errors)
    return cast(BinaryIO, io.BufferedReader(_Unpacked(recoded), CHUNK_BYTES))


def _recoded(stream: BinaryIO, encoding: str, name: str, errors: str) -> Iterator[bytes]:
    decoder, done = codecs.getincrementaldecoder(encoding)(errors), 0
    for chunk in itertools.chain(iter(lambda: stream.read(CHUNK_BYTES), b""), (b"",)):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise DocumentError(
                f"{name}: byte {done - held + error.start} is not {encoding} ({error.reason}): name the file's "
                "encoding with --encoding NAME, or convert the file to UTF-8"
            ) from None
        done += len(chunk)
        yield text.encode("utf-8", errors)
