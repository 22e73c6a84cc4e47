"""The text of a corpus of one document, and what its bytes are counted from; names of documents."""

from dataclasses import dataclass

from pellucid.text.read.decompress import encoding_of, unpacked
from pellucid.text.read.documents import Corpus, Document
from pellucid.text.read.find import STANDARD_INPUT
from pellucid.text.read.formats import ROWS, unit_of

#: how formats are named in messages
FORMATS = {name: name.upper() for name in ("html", "json", "csv", "tsv", "epub", "docx")}
FORMATS |= {"jsonl": "JSON lines", "markdown": "Markdown", "parquet": "Parquet", "arrow": "Arrow"}


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


def one_text(corpus: Corpus) -> OneText:
    """The text of a corpus that holds one document."""
    return OneText("".join(corpus.texts()), corpus.n_bytes, _counted(corpus), tuple(corpus.notes))


def _counted(corpus: Corpus) -> str:
    """Describe where the bytes of a corpus of one document come from."""
    number = corpus.documents[0].source  # files whose documents are duplicates are among the sources too
    origin, source = corpus.documents.origins[number], corpus.sources[number]
    steps = []
    if origin.format in ROWS:
        steps.append(f"read from a row of {FORMATS[origin.format]}")
    elif origin.format not in ("plain", "markdown") or source.front_matter:
        steps.append(f"extracted from {FORMATS.get(origin.format, origin.format)}")
    with origin.path.open("rb") as file:
        encoding = encoding_of(unpacked(file, origin), origin) if origin.format in ("plain", "markdown") else "utf-8"
    if encoding not in ("utf-8", "utf-8-sig"):
        steps.append(f"converted from {encoding.upper()}")
    if origin.packed:
        steps.append(f"unpacked from {origin.packed}")
    where = "standard input" if source.path == STANDARD_INPUT else "the file"
    if not steps:
        mark = ", without its byte order mark" if encoding == "utf-8-sig" else ""
        return f"the bytes of {where}{mark}"
    return f"the bytes in UTF-8 of the text {', '.join(steps)}; {where} has {source.n_bytes:,}"


def document_number(document: Document, unit: str) -> int | None:
    """The document's number among the rows, or documents, of its file, from 1 on; None where it is no such `unit`."""
    return document.index + 1 if unit_of(document.origin) == unit else None


def document_name(document: Document) -> str:
    """What messages call a document."""
    unit = unit_of(document.origin)
    return document.origin.name + (f", {unit} {document.index + 1:,}" if unit else "")
