"""From a split corpus and a tokenizer to a folder of tokens. An interrupted call leaves its finished shards for the
next.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pellucid.destination import flush_files, flush_folder, replace_file
from pellucid.json_files import JSONFileError, open_for_locking, read_json_file
from pellucid.text.locking import lock
from pellucid.text.read.chunks import TextChunk
from pellucid.text.read.known_scans import CHECK_TEXT, is_stamp_settled, stamp_of
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
    final = prepared_folder(split, tokenizer, folder)
    tokens, notes = existing_tokens(final, tokenizer)
    if tokens:
        return tokens
    final.parent.mkdir(parents=True, exist_ok=True)
    with working_folder(final) as working:
        content = {
            "sources": [vars(source) for source in split.corpus.sources],
            "split": split.to_dict(),
            "parts": _write_split(split, tokenizer, working, progress, shard_tokens, workers),
            "held_out": {"note": split.note, "documents": split.held_out_documents()},
        }
        write_manifest(working, tokenizer, content)
        publish(working, final)
    tokens = Tokens.open(final, tokenizer)
    tokens.notes = notes
    return tokens


def existing_tokens(final: Path, tokenizer: Tokenizer) -> tuple[Tokens | None, tuple[str, ...]]:
    """The finished tokens of this folder; None where there are none, and where damaged ones were removed, with a
    sentence about the damage.
    """
    try:
        tokens = Tokens.open(final, tokenizer)
        verify_changed(tokens)
        return tokens, ()
    except (TokensError, FileNotFoundError) as error:  # the text to encode again is at hand
        if not final.exists():
            return None, ()
        shutil.rmtree(final)
        why = str(error).removesuffix(": prepare the tokens again")
        return None, (f"prepared tokens were damaged and have been encoded again: {why}",)


def verify_changed(tokens: Tokens) -> None:
    """Verify the tokens unless every file is as it was when they were verified last; CHECK_TEXT verifies them always.

    Raises TokensError as `Tokens.verify`.
    """
    path = tokens.folder / VERIFIED
    stamps = {name: stamp_of(tokens.folder / name) for name in tokens.checksums}
    with contextlib.suppress(OSError, JSONFileError):
        if not CHECK_TEXT.get() and read_json_file(path) == stamps:
            return
    were_settled = all(map(is_stamp_settled, stamps.values()))
    tokens.verify()
    if were_settled:
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(stamps).encode())


def prepared_folder(split: Split, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """The folder in which `prepare_tokens` puts, or has put, these tokens."""
    sources = [list(source.key) for source in split.corpus.sources]
    content: list[Any] = [FORMAT, sources, tokenizer.hash, tokenizer.separator, split.to_dict()]
    if read := split.corpus.reading.to_dict():
        content.append(read)
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
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
