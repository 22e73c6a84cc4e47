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

import numpy as np

from pellucid.destination import flush_files, flush_folder, naming
from pellucid.text.locking import lock
from pellucid.text.read.chunks import TextChunk
from pellucid.text.split import PARTS, Split
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens import encode as encoding
from pellucid.text.tokens.encode import Counter, Encoders, units_of
from pellucid.text.tokens.store import FORMAT, Tokens, TokensError
from pellucid.text.tokens.writer import PartWriter, remove_journal
from pellucid.text.workers import WORTH_ENCODERS, choose_workers

#: ids per shard, 32 MiB in uint16: the most that an interruption loses
SHARD_TOKENS = 1 << 24
#: the file that a process locks while it writes in a folder
LOCK = "lock"

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
    after them. An existing folder is left untouched unless its checksums show damage; then it is written again. Raises
    DocumentError if a file changed.
    """
    final = prepared_folder(split, tokenizer, folder)
    if tokens := existing_tokens(final, tokenizer):
        return tokens
    final.parent.mkdir(parents=True, exist_ok=True)
    with working_folder(final) as working:
        finish_folder(
            split, tokenizer, working, write_parts(split, tokenizer, working, progress, shard_tokens, workers)
        )
        publish(working, final)
    return Tokens.open(final, tokenizer)


def existing_tokens(final: Path, tokenizer: Tokenizer) -> Tokens | None:
    """The finished tokens of this folder; None where there are none, and where damaged ones were removed."""
    try:
        tokens = Tokens.open(final, tokenizer)
        tokens.verify()
        return tokens
    except (TokensError, FileNotFoundError):  # the text to encode again is at hand
        if final.exists():
            shutil.rmtree(final)
        return None


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
            file = stack.enter_context((shared / LOCK).open("ab"))
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


def write_parts(
    split: Split,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Progress,
    shard_tokens: int,
    workers: int | None,
    documents: range | None = None,
) -> dict[str, dict[str, Any]]:
    """Write the shards of both parts, of all documents or of these, and return the parts' entries in the manifest."""
    n_bytes = np.asarray(split.corpus.documents.n_bytes)
    total, counted = int((n_bytes if documents is None else n_bytes[documents.start : documents.stop]).sum()), Counter()
    tokenizer.save(folder)
    n = choose_workers(total, WORTH_ENCODERS) if workers is None else workers
    with Encoders(tokenizer, folder, n) as encoders:
        return {
            name: _write_part(
                split.documents(name, documents),
                name,
                tokenizer,
                folder,
                shard_tokens,
                encoders,
                counted,
                lambda done: progress("encoding", done, total) if progress else None,
            )
            for name in PARTS
        }


def finish_folder(split: Split, tokenizer: Tokenizer, folder: Path, parts: dict[str, dict[str, Any]]) -> None:
    """Write the tokenizer, and then the manifest."""
    tokenizer.save(folder)
    about = {
        "kind": tokenizer.kind,
        "hash": tokenizer.hash,
        "n_vocab": tokenizer.n_vocab,
        "separator": tokenizer.separator,
        "notes": list(tokenizer.notes),
    }
    manifest = {
        "format": FORMAT,
        "sources": [vars(source) for source in split.corpus.sources],
        "tokenizer": about,
        "split": split.to_dict(),
        "parts": parts,
        "held_out": {"note": split.note, "documents": split.held_out_documents()},
    }
    path = folder / "manifest.json"
    with naming(path), path.open("w", encoding="utf-8", newline="\n") as file:
        json.dump(manifest, file, indent=1)


def _write_part(
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
    made_by = (tokenizer.n_vocab, tokenizer.hash, tokenizer.separator, shard_tokens, tokenizer.unknown)
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
