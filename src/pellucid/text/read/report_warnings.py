"""Warnings of a report on text: a file that outweighs the others, other encodings than UTF-8, and texts that repeat."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from pellucid.text.read.chunks import counted
from pellucid.text.read.decompress import Origin, as_utf8, unpacked
from pellucid.text.read.documents import Corpus
from pellucid.text.read.formats import SEEKING, unit_of
from pellucid.text.read.guess_encoding import fitting_encoding
from pellucid.text.read.report import TextFile
from pellucid.text.read.scan import Source

#: the share of the text from which on one file is warned of
OUTWEIGHS = 0.5
#: bytes of a file that are searched for the first that is not UTF-8, and those from there on that an encoding must fit
SEARCHED_BYTES, SAMPLE_BYTES = 1 << 24, 1 << 14
#: the most files whose encoding is guessed
MOST_GUESSED = 100
#: characters of a sample that are shown
SHOWN_CHARACTERS = 40


def warnings_about(corpus: Corpus, files: Sequence[TextFile]) -> tuple[str, ...]:
    """Sentences about what the owner of the text should probably change; `files` are those of a report."""
    return (*_on_weight(files), *_on_encodings(corpus), *_on_duplicates(corpus))


def _on_weight(files: Sequence[TextFile]) -> Iterator[str]:
    if len(files) > 1 and files[0].share > OUTWEIGHS:
        yield (
            f"{files[0].path} is {files[0].share:.0%} of the text, and a model learns most what it reads most: leave "
            f"it out with --exclude '{files[0].path}', or give more of the other text"
        )


def _on_encodings(corpus: Corpus) -> Iterator[str]:
    """One warning for each encoding that fits files with bytes that are not UTF-8, and one for those that none fits."""
    pairs = zip(corpus.sources, corpus.documents.origins, strict=True)
    bad = [(source, origin) for source, origin in pairs if source.replaced and origin.format not in SEEKING]
    sources: dict[str, list[Source]] = defaultdict(list)
    samples: dict[str, str] = {}
    for source, origin in sorted(bad, key=lambda pair: -pair[0].replaced)[:MOST_GUESSED]:
        content = _first_undecodable(origin)
        encoding = fitting_encoding(content)
        sources[encoding].append(source)
        samples.setdefault(encoding, _sample_text(content, encoding or "utf-8"))
    for encoding, of_encoding in sources.items():
        first, more = of_encoding[0], counted(len(of_encoding) - 1, "more file")
        has = f" and {more} have" if len(of_encoding) > 1 else " has"
        n = counted(sum(source.replaced for source in of_encoding), "sequence")
        what = f"{first.path}{has} {n} of bytes that are not UTF-8 and became U+FFFD"
        if not encoding:
            yield f"{what}; no usual encoding fits: the file is damaged, the first time at {first.first_replaced}"
            continue
        reads = f"they fit {encoding}, which reads “{samples[encoding]}”"
        yield f"{what}; {reads}: if that is right, add --encoding {encoding}"
    if len(fitting := sources.keys() - {""}) > 1:
        yield (
            f"--encoding names one encoding for all such files, and these have {len(fitting)}: convert some to UTF-8, "
            f"such as with iconv -f {min(fitting)} -t utf-8 FILE"
        )


def _first_undecodable(origin: Origin) -> bytes:
    """Bytes of a file from the beginning of the first line on that is not UTF-8."""
    with origin.path.open("rb") as file:
        content = as_utf8(unpacked(file, origin), origin, "surrogateescape").read(SEARCHED_BYTES)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        start = max(content.rfind(b"\n", 0, error.start) + 1, error.start - SAMPLE_BYTES // 4)
        return content[start : error.start + SAMPLE_BYTES]
    return b""


def _sample_text(content: bytes, encoding: str) -> str:
    """Some characters from just before the first that is not ASCII."""
    text = " ".join(content.decode(encoding, "replace").split())
    first = next((i for i, character in enumerate(text) if character > "\x7f"), 0)
    start = max(0, first - SHOWN_CHARACTERS // 2)
    return text[start : start + SHOWN_CHARACTERS]


def _on_duplicates(corpus: Corpus) -> Iterator[str]:
    documents, n = corpus.documents, len(corpus.documents)
    firsts, text_numbers = documents.same_text()
    repeats = np.setdiff1d(np.arange(n), firsts)
    if not len(repeats):
        return
    lengths = documents.rows["n_characters"]
    share = lengths[repeats].sum() / lengths.sum()
    k = int(repeats[np.argmax(lengths[repeats])])
    again, first = _document_name(corpus, k), _document_name(corpus, int(firsts[text_numbers[k]]))
    have = "has" if len(repeats) == 1 else "have"
    yield (
        f"{len(repeats):,} of {counted(n, 'document')} {have} the text of an earlier one, {share:.1%} of all "
        f"characters ({again} is {first} again): --drop-duplicates reads each text once"
    )


def _document_name(corpus: Corpus, k: int) -> str:
    document = corpus.documents[k]
    unit = unit_of(document.origin)
    return corpus.sources[document.source].path + (f", {unit} {document.index + 1:,}" if unit else "")
