"""Read a file, or standard input, that holds exactly one document, and say what its bytes are counted from."""

import os
from dataclasses import dataclass
from pathlib import Path

from pellucid.text.read.chunks import DocumentError
from pellucid.text.read.decompress import encoding_of, unpacked
from pellucid.text.read.documents import Corpus, read_corpus
from pellucid.text.read.find import STANDARD_INPUT, ReadOptions, find_files
from pellucid.text.read.formats import ROWS

#: how formats are named in messages
FORMATS = {"html": "HTML", "jsonl": "JSON lines", "csv": "CSV", "tsv": "TSV", "parquet": "Parquet", "arrow": "Arrow"}


@dataclass(frozen=True)
class OneText:
    """The text of one document.

    n_bytes   its bytes as training counts them: bytes that are not UTF-8 count as they stand in the file
    counted   a phrase that says what these bytes are
    notes     sentences about how the file was read
    """

    text: str
    n_bytes: int
    counted: str
    notes: tuple[str, ...]


def read_one_text(path: str | os.PathLike, reading: ReadOptions | None = None) -> OneText:
    """Read a file that holds one document, in the way training reads it; - is standard input.

    A folder with one file also works. Raises DocumentError for more than one document, and as `read_corpus` does.
    """
    reading, path = reading or ReadOptions(), Path(path)
    if path.is_dir() and len(files := find_files([path], [], reading)) > 1:
        raise DocumentError(
            f"{path} is a folder of {len(files):,} files, but this command reads one text: name one file, such as "
            f"{min(file.path for file in files.values())}"
        )
    corpus = read_corpus(path, reading=reading)
    if len(corpus.documents) > 1:
        raise DocumentError(
            f"{path} holds {len(corpus.documents):,} documents, but this command reads one text: give a file that "
            "holds one"
        )
    return OneText("".join(corpus.texts()), corpus.n_bytes, _counted(corpus), tuple(corpus.notes))


def _counted(corpus: Corpus) -> str:
    """Describe where the bytes of a corpus of one document come from."""
    origin, (source,) = corpus.documents.origins[corpus.documents.source[0]], corpus.sources
    steps = []
    if origin.format in ROWS:
        steps.append(f"read from a row of {FORMATS[origin.format]}")
    elif origin.format != "plain":
        steps.append(f"extracted from {FORMATS.get(origin.format, origin.format)}")
    with origin.path.open("rb") as file:
        encoding = encoding_of(unpacked(file, origin), origin) if origin.format == "plain" else "utf-8"
    if encoding not in ("utf-8", "utf-8-sig"):
        steps.append(f"converted from {encoding.upper()}")
    if origin.packed:
        steps.append(f"unpacked from {origin.packed}")
    where = "standard input" if source.path == STANDARD_INPUT else "the file"
    if not steps:
        mark = ", without its byte order mark" if encoding == "utf-8-sig" else ""
        return f"the bytes of {where}{mark}"
    return f"the bytes in UTF-8 of the text {', '.join(steps)}; {where} has {source.n_bytes:,}"
