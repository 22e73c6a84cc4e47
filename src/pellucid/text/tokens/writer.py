"""Write tokens shard by shard, so that a finished shard survives whatever happens to the process.

Until the whole folder is complete, two files stand beside each finished shard: NAME.json records how far in the text it
reaches, and NAME.ends the positions in it where documents end. When the writer starts again, it takes over every shard
whose checksums are right and knows where to continue.
"""

import bisect
import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.destination import naming
from pellucid.json_files import check_regular, read_json_file, read_regular
from pellucid.text.tokens.store import FORMAT, HEADER, MAGIC, check_ids, dtype_for, save_array


@dataclass
class PartWriter:
    """Writes one part into `folder`, in shards of at most `shard_tokens` ids.

    `unit` and `within` are where to continue: the number of units written, and the number of ids of the next one.
    `n_unknown` counts ids equal to `unknown`. An OSError of writing names the folder.
    """

    folder: Path
    name: str
    n_vocab: int
    tokenizer_hash: str
    shard_tokens: int
    unknown: int | None = None
    shards: list[dict[str, Any]] = field(default_factory=list)
    ends: array = field(default_factory=lambda: array("q"))
    tokens: int = 0
    unit: int = 0
    within: int = 0
    n_unknown: int = 0
    _saved: int = 0
    _file: Any = None

    def take_over(self) -> int:
        """Take over the finished shards in the folder and remove unfinished ones. Returns the number of ids taken
        over.
        """
        while (finished := self._finished(len(self.shards))) is not None:
            shard, ends = finished
            self.unit, self.within, self.n_unknown = shard.pop("unit"), shard.pop("within"), shard.pop("unknown")
            self.shards.append(shard)
            self.ends.extend(ends)
            self.tokens += shard["tokens"]
        self._saved = len(self.ends)
        names = {shard["file"] for shard in self.shards}
        for path in self.folder.glob(f"{self.name}-*"):
            if path.with_suffix(".bin").name not in names:
                path.unlink()
        return self.tokens

    def _finished(self, number: int) -> tuple[dict[str, Any], array] | None:
        path = self.folder / f"{self.name}-{number:05d}.bin"
        try:
            shard = read_json_file(path.with_suffix(".json"))
            ends = read_regular(path.with_suffix(".ends"))
            with check_regular(path).open("rb") as file:
                good = hashlib.file_digest(file, "sha256").hexdigest() == shard["sha256"]
            good = good and hashlib.sha256(ends).hexdigest() == shard.pop("ends")
            return (shard, array("q", ends)) if good else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def add(self, ids: np.ndarray, ends: Iterable[int] = ()) -> None:
        """Append the rest of a unit's ids; `ends` are the positions in the unit after separators.

        Raises TokensError, and writes nothing, if an id is outside the vocabulary.
        """
        check_ids(ids, self.n_vocab)
        with naming(self.folder):
            self._add(ids, ends)

    def _add(self, ids: np.ndarray, ends: Iterable[int]) -> None:
        skip, self.within = self.within, 0
        base = self.tokens - skip
        self.ends.extend(base + int(end) for end in ends if end > skip or not skip)  # a conversation may have no ids
        row = ids[skip:].astype(dtype_for(self.n_vocab))
        written = skip
        while len(row):
            if self._file is None:
                self._begin()
            room = self.shard_tokens - self.shards[-1]["tokens"]
            piece, row = row[:room], row[room:]
            assert self._file is not None
            self._file.write(piece.tobytes())
            self.shards[-1]["tokens"] += len(piece)
            self.tokens += len(piece)
            written += len(piece)
            self.n_unknown += 0 if self.unknown is None else int((piece == self.unknown).sum())
            if self.shards[-1]["tokens"] == self.shard_tokens:
                self._end(written)
        self.unit += 1

    def finish(self) -> dict[str, Any]:
        """End the last shard and return this part's entry in the manifest."""
        with naming(self.folder):
            return self._finish()

    def _finish(self) -> dict[str, Any]:
        if self._file is not None:
            self._end(0)
        ends = np.array(self.ends, dtype=np.int64)
        starts = np.concatenate([ends[:0] if not len(ends) else [0], ends[:-1]]).astype(np.int64)
        named = {"shards": self.shards, **save_array(self.folder, self.name, "documents", starts)}
        return {"tokens": self.tokens, "documents": len(starts), **named, "unknown": self.n_unknown}

    def close(self) -> None:
        """Close the open file, and leave an unfinished shard as it is."""
        if self._file is not None:
            with naming(self.folder):
                self._file.close()

    def _begin(self) -> None:
        name = f"{self.name}-{len(self.shards):05d}.bin"
        self.shards.append({"file": name, "tokens": 0, "sha256": ""})
        self._file = (self.folder / name).open("w+b")
        self._file.write(bytes(HEADER.size))

    def _end(self, within: int) -> None:
        """Write the header, take the checksum of the file, and record that the shard is finished."""
        shard = self.shards[-1]
        width, digest = dtype_for(self.n_vocab).itemsize, bytes.fromhex(self.tokenizer_hash)
        self._file.seek(0)
        self._file.write(HEADER.pack(MAGIC, FORMAT, width, shard["tokens"], self.n_vocab, digest))
        self._file.seek(0)
        shard["sha256"] = hashlib.file_digest(self._file, "sha256").hexdigest()
        self._file.close()
        self._file = None
        path = self.folder / shard["file"]
        last = bisect.bisect_right(self.ends, self.tokens)
        ends = self.ends[self._saved : last].tobytes()
        so_far = {"unit": self.unit, "within": within, "unknown": self.n_unknown}
        self._saved = last
        # nothing is flushed yet: what a crash of the machine spoils does not have its checksum, and is encoded again
        path.with_suffix(".ends").write_bytes(ends)
        record = shard | so_far | {"ends": hashlib.sha256(ends).hexdigest()}
        path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")


def remove_journal(folder: Path) -> None:
    """Remove the records of how far each shard reaches, once all shards are complete."""
    for path in folder.glob("*-*.*"):
        if path.suffix in (".json", ".ends"):
            path.unlink()
