"""Guess the encoding of bytes that are not UTF-8, by the letters that stand side by side in each language.

Of 33 samples of 1,500 bytes, of the Universal Declaration of Human Rights in languages and their encodings, chardet 7
names the encoding of all, and charset-normalizer, as it is called here, of 29. The first is in the extra `data`; the
second is a dependency, which tiktoken has too.
"""

import codecs
import re
import warnings
from importlib import import_module
from typing import Any

#: the encodings that are considered: those of Windows, which hold the letters of ISO 8859, and those of East Asia
CANDIDATES = (
    *("cp1252", "cp1251", "cp1250", "gb18030", "cp932", "euc-jp", "cp949", "big5", "koi8-r"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
)
#: chardet's confidence is at most 0.026 in 3,000 random bytes (six draws), and 0.08 to 0.4 in sentences of 4 languages
LEAST_CONFIDENCE = 0.05
#: the candidates for a text in a Latin script
LATIN_CANDIDATES = ("cp1252", "cp1250", "cp1254", "cp1257")
#: bytes beyond ASCII below which charset-normalizer's scores may differ by the tolerance
FEW_BYTES, TOLERANCE = 30, 0.5


def fitting_encoding(content: bytes) -> str:
    """The encoding that the bytes are most likely in, such as cp1252.

    "" where none fits, and where most characters beyond ASCII are UTF-8: such a text is damaged, not in another
    encoding.
    """
    read = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(content)
    beyond_ascii = [character for character in read if character > "\x7f"]
    if 2 * sum("\udc80" <= character <= "\udcff" for character in beyond_ascii) <= len(beyond_ascii):
        return ""
    try:
        encoding = codecs.lookup(_detected(content, candidates_for(content))).name
        codecs.getincrementaldecoder(encoding)("strict").decode(content)
    except (LookupError, UnicodeDecodeError):
        return ""
    return encoding


def candidates_for(content: bytes) -> tuple[str, ...]:
    """The encodings that are considered: those of Latin scripts alone where most bytes beyond ASCII stand alone.

    Such bytes are letters with an accent between ASCII letters; words of other scripts consist of them.
    """
    alone = re.findall(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])", content)
    return LATIN_CANDIDATES if 2 * len(alone) > sum(byte >= 0x80 for byte in content) else CANDIDATES


def _detected(content: bytes, candidates: tuple[str, ...]) -> str:
    """The name of the encoding by the better of the two libraries that is installed, "" for none."""
    try:
        chardet: Any = import_module("chardet")
    except ImportError:
        return _normalized(content, candidates)
    with warnings.catch_warnings():  # it warns that ascii, its word for no match, is no candidate
        warnings.filterwarnings("ignore", message="no_match_encoding", category=UserWarning)
        match = chardet.detect(content, include_encodings=candidates, no_match_encoding="ascii")
    return match["encoding"] or "" if match["confidence"] >= LEAST_CONFIDENCE else ""


def _normalized(content: bytes, candidates: tuple[str, ...]) -> str:
    """The encoding whose text charset-normalizer finds the most coherent. Few bytes beyond ASCII tell little: of the
    encodings that are about as good then, and of those with the same text, this is the first of the candidates.
    """
    from charset_normalizer import from_bytes

    ranks = {name.replace("-", "_"): rank for rank, name in enumerate(candidates)}
    matches = list(from_bytes(content, cp_isolation=list(ranks), threshold=0.3))
    scores = {match.encoding: match.coherence - 2 * match.chaos for match in matches}
    few = sum(byte > 0x7F for byte in content) < FEW_BYTES
    least = max(scores.values(), default=0.0) - (TOLERANCE if few else 1e-3)
    good = [match for match in matches if scores[match.encoding] >= least]
    names = {name for match in good for name in (match.encoding, *(same.encoding for same in match.submatch))}
    return min(names, key=lambda name: ranks[name], default="")
