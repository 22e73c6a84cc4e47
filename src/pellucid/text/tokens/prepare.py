"""From a split corpus, or rows of files, and a tokenizer to a folder of tokens. An interrupted call leaves the finished
shards of a corpus for the next.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from pellucid.destination import flush_files, flush_folder, replace_file
from pellucid.json_files import JSONFileError, open_for_locking, read_json_file
from pellucid.text.locking import lock
from pellucid.text.read.chunks import TextChunk
from pellucid.text.read.known_scans import CHECK_TEXT, is_stamp_settled, stamp_of
from pellucid.text.read.rows import RowSplit
from pellucid.text.split import SPLIT_PARTS, Split
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens import encode as encoding
from pellucid.text.tokens.encode import Counter, Encoders, units_of
from pellucid.text.tokens.store import FORMAT, Tokens, TokensError, write_manifest
from pellucid.text.tokens.writer import PartWriter, remove_journal
from pellucid.text.workers import choose_workers

#: ids per shard, 32 MiB in uint16: the most that an interruption loses
SHARD_TOKENS = 1 << 24
#: the file that a process locks while it writes in a folder
LOCK = "lock"
#: the file of a tokens folder with the size, the times and the number of each file when it was verified last
VERIFIED = "verified.json"

Progress = Callable[[str, int, int], None] | None
TokensT = TypeVar("TokensT", bound=Tokens)


def prepare_tokens(
    split: Split,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    progress: Progress = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
) -> Tokens:
    """The tokens of both parts of `split` in `folder`/tokens-KEY, encoded unless they are there already.

    `progress(stage, done, total)` is called with bytes of text. `workers` processes encode (None: chosen by size); the
    ids are the same for any number. An interrupted call keeps its finished shards aside, and the next call continues
    after them. An existing folder is left untouched unless its checksums show damage; then it is written again, and
    `notes` of the tokens say so. Files that have not changed since they were verified are not read again. Raises
    DocumentError if a file changed.
    """

    def write(working: Path) -> dict[str, Any]:
        return {
            "sources": [vars(source) for source in split.corpus.sources],
            "split": split.to_dict(),
            "parts": _write_split(split, tokenizer, working, progress, shard_tokens, workers),
            "held_out": {"note": split.note, "documents": split.held_out_documents()},
        }

    return _open_or_write(Tokens, prepared_folder(split, tokenizer, folder), tokenizer, write)


def prepare_rows(
    kind: type[TokensT],
    split: RowSplit[Any],
    tokenizer: Tokenizer,
    folder: str | Path,
    decided_by: Sequence[Any],
    write_parts: Callable[[Path], dict[str, dict[str, Any]]],
    **more: Any,
) -> TokensT:
    """The tokens of `split` in `folder`/tokens-KEY, whose parts `write_parts` writes unless they are there already;
    `more` of their manifest.

    KEY is a hash of the rows' content, wherever they were read, of the tokenizer, and of `decided_by`, what else
    decides the ids.
    """
    rows = [hashlib.sha256() for _ in SPLIT_PARTS]
    for digest, name in zip(rows, SPLIT_PARTS, strict=True):
        for number in split.numbers(name):
            digest.update(json.dumps(split.corpus.rows[number]).encode() + b"\n")
    final = _folder_for(
        folder, [[digest.hexdigest() for digest in rows], tokenizer.hash, tokenizer.separator, *decided_by]
    )
    about = {
        "sources": [vars(source) for source in split.corpus.files],
        "split": split.to_dict(),
        "held_out": {"note": split.note},
        **more,
    }
    tokens = _open_or_write(kind, final, tokenizer, lambda working: {**about, "parts": write_parts(working)})
    tokens.manifest |= about  # the same rows may have been encoded from other files
    return tokens


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


def _open_or_write(
    kind: type[TokensT], final: Path, tokenizer: Tokenizer, write: Callable[[Path], dict[str, Any]]
) -> TokensT:
    """The finished tokens of the folder `final`. Where there are none, or damaged ones, `write` puts the shards into
    the folder it is given and returns the content of the manifest, and `notes` say what was damaged.
    """
    notes = ()
    try:
        tokens = kind.open(final, tokenizer)
        verify_changed(tokens)
        return tokens
    except (TokensError, FileNotFoundError) as error:  # the text to encode again is at hand
        if final.exists():
            shutil.rmtree(final)
            why = str(error).removesuffix(": prepare the tokens again")
            notes = (f"prepared tokens were damaged and have been encoded again: {why}",)
    final.parent.mkdir(parents=True, exist_ok=True)
    with working_folder(final) as working:
        write_manifest(working, tokenizer, write(working))
        publish(working, final)
    tokens = kind.open(final, tokenizer)
    tokens.notes = notes
    return tokens


class VerifiedFolder(Protocol):
    """A folder of files with checksums."""

    folder: Path

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file by its name."""
        ...

    def verify(self) -> None:
        """Raise ValueError that names a file that differs."""
        ...


def verify_changed(files: VerifiedFolder) -> None:
    """Verify a folder unless every file is as it was when it was verified last; CHECK_TEXT verifies it always.

    Raises what its `verify` does.
    """
    path = files.folder / VERIFIED
    stamps = {name: stamp_of(files.folder / name) for name in files.checksums}
    with contextlib.suppress(OSError, JSONFileError):
        if not CHECK_TEXT.get() and read_json_file(path) == stamps:
            return
    were_settled = all(map(is_stamp_settled, stamps.values()))
    files.verify()
    if were_settled:
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(stamps).encode())


def prepared_folder(split: Split, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """The folder in which `prepare_tokens` puts, or has put, these tokens."""
    sources = [list(source.key) for source in split.corpus.sources]
    content: list[Any] = [sources, tokenizer.hash, tokenizer.separator, split.to_dict()]
    if read := split.corpus.reading.to_dict():
        content.append(read)
    return _folder_for(folder, content)


def _folder_for(folder: str | Path, decided_by: list[Any]) -> Path:
    """The folder of tokens that this decides, and the format."""
    key = hashlib.sha256(json.dumps([FORMAT, *decided_by], sort_keys=True).encode()).hexdigest()
    return Path(folder) / f"tokens-{key[:16]}"


@contextmanager
def working_folder(final: Path) -> Iterator[Path]:
    """The folder in which these tokens are written, with the shards of an interrupted call.

    If another process is writing there, this call gets a folder of its own. After a failure, finished shards stay.
    """
    # journals count units, so tokens with another unit size use another folder
    shared = final.with_name(f".{final.name}.{encoding.UNIT}.partial")
    shared.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        working = shared
        try:
            file = stack.enter_context(open_for_locking(shared / LOCK))
            # another process may have renamed the folder meanwhile
            ours = lock(file) and os.path.samestat(os.fstat(file.fileno()), os.stat(shared / LOCK))
        except FileNotFoundError:
            ours = False
        if not ours:
            working = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}")
            working.mkdir()
        try:
            yield working
        finally:
            if not ours or not list(working.glob("*-*.json")):
                shutil.rmtree(working, ignore_errors=True)


def _write_split(
    split: Split, tokenizer: Tokenizer, folder: Path, progress: Progress, shard_tokens: int, workers: int | None
) -> dict[str, dict[str, Any]]:
    """Write the shards of both parts, and return the parts' entries in the manifest."""
    total, counted = int(split.corpus.documents.rows["n_bytes"].sum()), Counter()
    tokenizer.save(folder)
    n = choose_workers(total) if workers is None else workers
    with Encoders(tokenizer, folder, n) as encoders:
        return {
            name: _write_shards(
                split.documents(name),
                name,
                tokenizer,
                folder,
                shard_tokens,
                encoders,
                counted,
                lambda done: progress("encoding", done, total) if progress else None,
            )
            for name in SPLIT_PARTS
        }


def _write_shards(
    documents: Iterator[Iterator[TextChunk]],
    name: str,
    tokenizer: Tokenizer,
    folder: Path,
    shard_tokens: int,
    encoders: Encoders,
    counted: Counter,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """Write one part's shards after those that are finished already, and return its entry in the manifest."""
    before = (counted.n_bytes, counted.n_characters)
    made_by = (tokenizer.n_vocab, tokenizer.hash, shard_tokens, tokenizer.unknown)
    with contextlib.closing(PartWriter(folder, name, *made_by)) as writer:
        writer.take_over()
        units, done = units_of(documents, tokenizer, counted), writer.unit
        left = (unit for number, unit in enumerate(units) if number >= done)
        for unit, (ids, ends) in encoders.encode(left):
            writer.add(ids, ends)
            progress(unit.n_bytes)
        sizes = {"bytes": counted.n_bytes - before[0], "characters": counted.n_characters - before[1]}
        return {**writer.finish(), **sizes}


def publish(working: Path, final: Path) -> None:
    """Flush the finished folder and rename it in one step. If another process was faster, it wrote the same tokens."""
    flush_files(working)
    try:
        os.rename(working, final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(working, ignore_errors=True)
    remove_journal(final)
    (final / LOCK).unlink(missing_ok=True)
    flush_folder(final.parent)
