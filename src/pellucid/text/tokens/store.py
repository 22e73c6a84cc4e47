"""Tokens on disk: a folder of memory-mapped shards, with a manifest and checksums that detect damage and mix-ups.

    tokens-KEY/manifest.json             sources, tokenizer, split, and for each part its files and sizes
               tokenizer.json
               train-00000.bin ...       64 bytes of header, then ids in uint16 or uint32, little-endian
               train.documents.npy       where each document starts, int64
               train.answers.npy         of conversations: which ids the assistant writes, bool
               held_out-00000.bin ...
               train_source-00000.bin, held_out_source-00000.bin ...   of pairs, whose targets are the parts above

KEY is a hash of everything the ids depend on, so a folder is never reused for other text, another tokenizer
or another split. A folder appears under its name complete and flushed to disk, or not at all. Every
document is followed by one separator, which belongs to the document before it; each side of a pair is a
document, and so is a conversation, which ends as its template writes it.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from pellucid.destination import naming
from pellucid.json_files import MOST_BYTES_OF_LIST, JSONFileError, check_regular, read_json_file
from pellucid.text.tokenizers.base import Tokenizer

FORMAT = 1
#: magic, version, bytes per id, ids in this file, n_vocab, SHA-256 of the tokenizer
HEADER = struct.Struct("<8sIIQQ32s")
MAGIC = b"PLCDTOK\0"
#: the arrays beside the shards, and the type of what they hold
ARRAYS = {"documents": np.dtype(np.int64), "answers": np.dtype(bool)}


class TokensError(ValueError):
    """A folder of tokens is damaged or belongs to other text, or ids do not fit the vocabulary."""


class TokenSequence:
    """One part of a corpus as one long sequence of ids, read from its shards on demand.

    n_vocab     every id is below this
    n_bytes     bytes of the original text, without separators; of conversations, of what the assistant writes
    starts      the position at which each document starts, int64 [n_documents]
    answers     of conversations, which ids the assistant writes, bool [n_ids]
    """

    answers: np.ndarray | None = None

    def __init__(
        self, shards: list[np.ndarray], starts: np.ndarray, n_vocab: int, n_bytes: int = 0, name: str = "tokens"
    ):
        self.name, self.n_vocab, self.n_bytes, self.starts = name, n_vocab, n_bytes, starts
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards], dtype=np.int64)
        self._files: list[tuple[Path, int]] = []

    @classmethod
    def from_ids(
        cls, ids: Iterable[int], n_vocab: int | None = None, starts: Iterable[int] = (0,), n_bytes: int = 0
    ) -> Self:
        """A part held in memory."""
        row = np.asarray(ids, dtype=np.int64)
        n_vocab = int(row.max(initial=0)) + 1 if n_vocab is None else n_vocab
        check_ids(row, n_vocab)
        return cls([row], np.asarray(starts, dtype=np.int64), n_vocab, n_bytes)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def ids(self) -> np.ndarray:
        """All ids in their own type: mapped, where they are of one shard."""
        return self._shards[0] if len(self._shards) == 1 else np.concatenate([np.zeros(0, "<u2"), *self._shards])

    @property
    def shards(self) -> list[np.ndarray]:
        """The ids in the arrays that follow one another, mapped where they are files."""
        return self._shards

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The ids at these positions, int64 [len(positions)]."""
        ids = np.empty(len(positions), dtype=np.int64)
        number = np.searchsorted(self._ends, positions, side="right")
        for k, shard in enumerate(self._shards):
            here = number == k
            ids[here] = shard[positions[here] - (int(self._ends[k]) - len(shard))]
        return ids

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of ids of each document, int64 [n_documents]."""
        return np.diff(self.starts, append=len(self))

    def padded(self, documents: np.ndarray, width: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
        """These documents left-aligned, int64 [len(documents), width] filled up with `fill`, and a bool mask of their
        own ids.
        """
        column = np.arange(width)
        own = column < self.lengths[documents, None]
        at = np.where(own, self.starts[documents, None] + column, 0)
        return np.where(own, self.ids[at].astype(np.int64), fill), own

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop`, int64."""
        if not 0 <= start <= stop <= len(self):
            raise TokensError(f"tokens {start} to {stop} of {self.name}: it has {len(self)}")
        out = np.empty(stop - start, dtype=np.int64)
        filled = 0
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while filled < len(out):
            base = int(self._ends[shard]) - len(self._shards[shard])
            piece = self._shards[shard][start + filled - base : stop - base]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            shard += 1
        return out

    def select(self, ranges: Sequence[tuple[int, int]]) -> Self:
        """The tokens of these ranges [start, stop), one range after another; its bytes are those of the part in
        proportion, and a document whose beginning is left out starts where its range does.
        """
        shards, starts, n = [], [], 0
        for start, stop in ranges:
            if not 0 <= start <= stop <= len(self):
                raise TokensError(f"tokens {start} to {stop} of {self.name}: it has {len(self)}")
            for shard, end in zip(self._shards, self._ends.tolist(), strict=True):
                base = end - len(shard)
                if max(start, base) < min(stop, end):
                    shards.append(shard[max(start - base, 0) : stop - base])
            inside = self.starts[(self.starts > start) & (self.starts < stop)]
            starts.append(np.concatenate([[0], inside - start]) + n)
            n += stop - start
        n_bytes = round(self.n_bytes * n / max(len(self), 1))
        all_starts = np.concatenate(starts).astype(np.int64) if starts else np.zeros(0, dtype=np.int64)
        selected = type(self)(shards, all_starts, self.n_vocab, n_bytes, self.name)
        selected._files = self._files
        return selected

    def without(self, ranges: Sequence[tuple[int, int]]) -> Self:
        """All tokens but those of these ranges [start, stop), which are in order."""
        starts, stops = [0, *(stop for _, stop in ranges)], [*(start for start, _ in ranges), len(self)]
        return self.select([(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop])

    def check_files(self) -> None:
        """Raise TokensError if a file is shorter than it was: reading past its end would kill the process."""
        for path, size in self._files:
            if not path.exists() or path.stat().st_size != size:
                raise TokensError(f"{path} was changed or removed while it was in use: prepare the tokens again")


class Tokens:
    """A prepared folder: `part("train")`, `part("held_out")`, and the manifest.

    `notes` are sentences about what was found damaged and was encoded again.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, folder: Path, manifest: dict[str, Any], parts: dict[str, TokenSequence]):
        self.folder, self.manifest, self.parts = folder, manifest, parts
        self.n_vocab: int = manifest["tokenizer"]["n_vocab"]
        self.separator: int = manifest["tokenizer"]["separator"]
        self.tokenizer_hash: str = manifest["tokenizer"]["hash"]

    @classmethod
    def open(cls, folder: str | Path, tokenizer: Tokenizer | None = None) -> Self:
        """Map the tokens of `folder` into memory after checking every header and size.

        Raises TokensError, naming the file, if something is missing, truncated or changed, or if `tokenizer` is not the
        one that made the tokens.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            return cls._open(folder, manifest, tokenizer)
        except TokensError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise TokensError(f"{folder}: the manifest is damaged ({error!r}): prepare the tokens again") from error

    @classmethod
    def _open(cls, folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer | None) -> Self:
        made_by = manifest["tokenizer"]
        if tokenizer is not None and tokenizer.hash != made_by["hash"]:
            raise TokensError(
                f"{folder} was made by the {made_by['kind']} tokenizer {made_by['hash'][:12]}, but you gave the "
                f"{tokenizer.kind} tokenizer {tokenizer.hash[:12]}: prepare the tokens again"
            )
        parts = {name: _open_part(folder, name, part, made_by) for name, part in manifest["parts"].items()}
        tokens = cls(folder, manifest, parts)
        _ = tokens.checksums  # a manifest without one of them is damaged
        return tokens

    def part(self, name: str) -> TokenSequence:
        """The part called `name`: train or held_out."""
        if name not in self.parts:
            raise TokensError(f"there is no part {name!r} in {self.folder}: choose one of {', '.join(self.parts)}")
        return self.parts[name]

    def targets(self, name: str) -> TokenSequence:
        """The ids of a part that a model learns to predict: all of them, unless a subclass says otherwise."""
        return self.part(name)

    def check_files(self) -> None:
        """Raise TokensError if a file of any part is shorter than it was (`TokenSequence.check_files`)."""
        for part in self.parts.values():
            part.check_files()

    def with_parts(self, **parts: TokenSequence) -> "Tokens":
        """The same tokens with other parts in the place of those named; the manifest still describes the folder."""
        return Tokens(self.folder, self.manifest, self.parts | parts)

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file by its name."""
        parts = self.manifest["parts"].values()
        shards = {shard["file"]: shard["sha256"] for part in parts for shard in part["shards"]}
        arrays = {
            part[f"{what}_file"]: part[f"{what}_sha256"] for part in parts for what in ARRAYS if f"{what}_file" in part
        }
        return shards | arrays

    def verify(self, progress: Callable | None = None) -> None:
        """Read every file and compare its SHA-256 with the manifest. Raises TokensError that names a file that
        differs.
        """
        for i, (name, expected) in enumerate(self.checksums.items()):
            if sha256_of(self.folder / name) != expected:
                raise TokensError(
                    f"{self.folder / name} is damaged, its checksum differs from the manifest: prepare the tokens again"
                )
            if progress:
                progress("verifying", i + 1, len(self.checksums))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a tokens folder. Raises TokensError if it is missing or is not a manifest."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise TokensError(f"{folder} holds no tokens: there is no manifest.json")
    try:
        manifest = read_json_file(path, MOST_BYTES_OF_LIST)
        if manifest["format"] != FORMAT:
            raise TokensError(f"{path} is of format {manifest['format']}, expected {FORMAT}: prepare the tokens again")
        if {name for name in ("sources", "tokenizer", "split", "parts") if name not in manifest}:
            raise KeyError
    except (OSError, JSONFileError, KeyError, TypeError):
        raise TokensError(f"{path} is damaged: prepare the tokens again") from None
    return manifest


def describe_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The differences between two manifests, one line for each file or option, for the tokenizer and for the chat
    template; where these are the same, a line for another number of tokens; empty if there are none.
    """
    before, after = ({_source_label(s): s for s in manifest["sources"]} for manifest in (old, new))
    lines = [f"{path} is gone" for path in before if path not in after]
    lines += [f"{path} is new" for path in after if path not in before]
    for path in before.keys() & after.keys():
        if before[path]["sha256"] != after[path]["sha256"]:
            lines.append(f"{path} changed, from {before[path]['n_bytes']} to {after[path]['n_bytes']} bytes")
    lines.sort()
    one, other = old["tokenizer"], new["tokenizer"]
    if one["hash"] != other["hash"]:
        tokenizers = (f"{t['kind']} {t['hash'][:12]} of {t['n_vocab']} ids" for t in (one, other))
        lines.append("the tokenizer changed, from {} to {}".format(*tokenizers))
    if "chat_template" in old and old["chat_template"] != new.get("chat_template"):
        lines.append("the chat template changed")
    for name in old["split"].keys() | new["split"].keys():
        if old["split"].get(name) != new["split"].get(name):
            lines.append(f"the split's {name} changed, from {old['split'].get(name)} to {new['split'].get(name)}")
    return "\n".join(lines or _other_counts(old.get("parts", {}), new["parts"]))


def _other_counts(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line where the same files have other tokens, as where another version read them in another way."""
    for name, part in new.items():
        before = old.get(name, {})
        for what in part:
            if isinstance(part[what], int) and what != "unknown" and before.get(what, part[what]) != part[what]:
                return [
                    f"its files are the same, but this version reads them in another way: {before[what]:,} "
                    f"{what.replace('_', ' ')} of the {name.replace('_', '-')} part are {part[what]:,} now"
                ]
    return []


def _source_label(source: dict[str, Any]) -> str:
    """The name of a file in a difference. A held-out file is marked, as a training file may have the same name."""
    return f"the held-out file {source['path']}" if source.get("held_out") else source["path"]


def _open_part(folder: Path, name: str, part: dict[str, Any], made_by: dict[str, Any]) -> TokenSequence:
    paths = [folder / _checked_file_name(shard["file"]) for shard in part["shards"]]
    shards = [_open_shard(path, shard["tokens"], made_by) for path, shard in zip(paths, part["shards"], strict=True)]
    starts = _open_array(folder, part, "documents", part["documents"])
    opened = TokenSequence(shards, starts, made_by["n_vocab"], part["bytes"], name)
    if "answers_file" in part:
        opened.answers = np.asarray(_open_array(folder, part, "answers", part["tokens"]))
        paths.append(folder / part["answers_file"])
    opened._files = [(path, path.stat().st_size) for path in paths]
    return opened


def _open_array(folder: Path, part: dict[str, Any], what: str, length: int) -> np.ndarray:
    path = folder / _checked_file_name(part[f"{what}_file"])
    try:
        array = np.load(check_regular(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TokensError(f"{path} is damaged or missing ({error}): prepare the tokens again") from None
    if array.dtype != ARRAYS[what] or array.shape != (length,):
        raise TokensError(f"{path} does not list {length} {what}: prepare the tokens again")
    return array


def _checked_file_name(name: str) -> str:
    """The file name itself. Raises TokensError for a name that leads out of the folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise TokensError(
            f"the manifest names the file {name!r}, which is not inside its folder: do not use these tokens"
        )
    return name


def _open_shard(path: Path, count: int, made_by: dict[str, Any]) -> np.ndarray:
    try:
        size = path.stat().st_size
        with check_regular(path).open("rb") as file:
            header = file.read(HEADER.size)
    except OSError as error:
        raise TokensError(f"{path} cannot be read ({error.strerror}): prepare the tokens again") from None
    if len(header) < HEADER.size:
        raise TokensError(f"{path} is truncated: {size} bytes, less than its header of {HEADER.size}")
    fields = HEADER.unpack(header)
    width = dtype_for(made_by["n_vocab"]).itemsize
    expected = (MAGIC, FORMAT, width, count, made_by["n_vocab"], bytes.fromhex(made_by["hash"]))
    for what, a, b in zip(
        ("magic", "version", "width of an id", "count", "n_vocab", "tokenizer"), fields, expected, strict=True
    ):
        if a != b:
            shown = (v.hex()[:12] if isinstance(v, bytes) else v for v in (a, b))
            raise TokensError(
                "{}: the header's {} is {}, expected {}: prepare the tokens again".format(path, what, *shown)
            )
    if size != HEADER.size + count * width:
        state = "truncated" if size < HEADER.size + count * width else "longer than it should be"
        raise TokensError(f"{path} is {state}: {size} bytes, expected {HEADER.size + count * width}")
    mapped = np.memmap(path, dtype=dtype_for(made_by["n_vocab"]), mode="r", offset=HEADER.size, shape=(count,))
    return np.asarray(mapped)  # the same memory; slicing a plain array is several times faster


# Writing ------------------------------------------------------------------------------------


def save_array(folder: Path, part: str, what: str, array: np.ndarray) -> dict[str, Any]:
    """Write an array of a part, and return its entries in the manifest: the name of its file, and the checksum."""
    path = folder / f"{part}.{what}.npy"
    with naming(path), path.open("w+b") as file:
        np.save(file, array.astype(ARRAYS[what]), allow_pickle=False)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {f"{what}_file": path.name, f"{what}_sha256": digest}


def write_manifest(folder: Path, tokenizer: Tokenizer, content: dict[str, Any]) -> None:
    """Write the tokenizer, and then the manifest: the format, the tokenizer, and this content."""
    tokenizer.save(folder)
    about = {**tokenizer_entry(tokenizer), "notes": list(tokenizer.notes)}
    path = folder / "manifest.json"
    with naming(path), path.open("w", encoding="utf-8", newline="\n") as file:
        json.dump({"format": FORMAT, "tokenizer": about, **content}, file, indent=1)


def tokenizer_entry(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a manifest says of the tokenizer."""
    names = ("kind", "hash", "n_vocab", "separator")
    return {name: getattr(tokenizer, name) for name in names}


def dtype_for(n_vocab: int) -> np.dtype:
    """uint16 where every id fits, else uint32."""
    return np.dtype("<u2") if n_vocab <= 1 << 16 else np.dtype("<u4")


def check_ids(ids: np.ndarray, n_vocab: int) -> None:
    """Raise TokensError for ids outside 0 ... n_vocab - 1: a narrower type would turn them into other ids."""
    if ids.size and (ids.min() < 0 or ids.max() >= n_vocab):
        wrong = ids[(ids < 0) | (ids >= n_vocab)][0]
        raise TokensError(f"id {wrong} is outside the vocabulary: expected 0 to {n_vocab - 1}")
