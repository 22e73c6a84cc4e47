"""Encode one corpus on several machines, each a share of its documents, in a folder that all of them reach.

    .tokens-KEY.4-shares/share-0/ ...     shards, as in the finished folder, and share.json: what the share holds
                         share-3/

A share is a contiguous range of documents. Ids do not depend on the number of shares, because no token crosses a
document's end. The process that finishes the last share links all shards into one folder and publishes it under its
name, so nothing is copied.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.destination import flush_files, replace_file, written_aside
from pellucid.text.locking import lock
from pellucid.text.split import PARTS, Split
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.prepare import (
    LOCK,
    SHARD_TOKENS,
    Progress,
    existing_tokens,
    finish_folder,
    prepared_folder,
    publish,
    working_folder,
    write_parts,
)
from pellucid.text.tokens.store import Tokens, TokensError

#: what one share holds; it is written last
SHARE = "share.json"


def documents_of_share(split: Split, number: int, of: int) -> range:
    """The documents of share `number` of `of`: about as many bytes in each share. A document is never divided."""
    if not 0 <= number < of:
        raise TokensError(f"share {number} of {of}: the shares of {of} are 0 to {of - 1}")
    ends = np.cumsum(np.asarray(split.corpus.documents.n_bytes), dtype=np.int64)
    middles = ends - np.asarray(split.corpus.documents.n_bytes) // 2
    first, last = (int(np.searchsorted(middles, int(ends[-1]) * k / of)) for k in (number, number + 1))
    return range(first, len(ends) if number == of - 1 else last)


def prepare_share(
    split: Split,
    tokenizer: Tokenizer,
    folder: str | Path,
    number: int,
    of: int,
    *,
    progress: Progress = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
) -> Tokens | None:
    """Encode share `number` of `of` into `folder`; the tokens of the whole corpus if it was the last one, else None.

    The other arguments are those of `prepare_tokens`, whose folder this one equals but for the sizes of its shards. An
    interrupted call loses at most the shard that it was writing. A finished share is not encoded again. Raises
    TokensError for a number outside 0 ... of - 1, and DocumentError if a file changed.
    """
    documents = documents_of_share(split, number, of)
    final = prepared_folder(split, tokenizer, folder)
    if tokens := existing_tokens(final, tokenizer):
        return tokens
    shares = final.with_name(f".{final.name}.{of}-shares")
    shares.mkdir(parents=True, exist_ok=True)
    share = shares / f"share-{number}"
    if not share.exists():
        with working_folder(share) as working:
            tokenizer.save(working)
            parts = write_parts(split, tokenizer, working, progress, shard_tokens, workers, documents)
            replace_file(working / SHARE, json.dumps(parts).encode())
            publish(working, share)
    return join_shares(split, tokenizer, final, [shares / f"share-{k}" for k in range(of)])


def join_shares(split: Split, tokenizer: Tokenizer, final: Path, shares: Sequence[Path]) -> Tokens | None:
    """Publish the tokens of all shares as `final`, or return None while some share is unfinished."""
    if not all(share.is_dir() for share in shares):
        return None
    with (shares[0] / LOCK).open("ab") as file:
        if not lock(file):
            return None  # another process is joining them
        with written_aside(final) as aside:
            parts = {name: _join_part(name, shares, aside) for name in PARTS}
            finish_folder(split, tokenizer, aside, parts)
            flush_files(aside)
    shutil.rmtree(shares[0].parent, ignore_errors=True)
    return Tokens.open(final, tokenizer)


def _join_part(name: str, shares: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Link one part's shards of every share into the folder, and return the part's entry in the manifest."""
    joined: dict[str, Any] = {"shards": [], "documents_file": f"{name}.documents.npy"}
    starts = []
    for share in shares:
        part = json.loads((share / SHARE).read_bytes())[name]
        starts.append(np.load(share / part["documents_file"], allow_pickle=False) + joined.get("tokens", 0))
        for shard in part["shards"]:
            file = f"{name}-{len(joined['shards']):05d}.bin"
            _link(share / shard["file"], folder / file)
            joined["shards"].append({**shard, "file": file})
        for count in ("tokens", "documents", "unknown", "bytes", "characters"):
            joined[count] = joined.get(count, 0) + part[count]
    np.save(folder / joined["documents_file"], np.concatenate(starts), allow_pickle=False)
    return joined


def _link(source: Path, target: Path) -> None:
    """A second name for the file, or a copy on a file system without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
