"""Encode byte-level BPE by a table of the pre-tokens that were seen before: several times as fast as the engine alone.

Ordinary text repeats its pre-tokens (GPT-2: words with the blank before them). Python's `re` divides the text, a table
has the ids of every pre-token that was seen, and the engine merges the bytes of a new one. The ids are those of the
engine on the whole text: each known pattern matches a pre-token that stands alone as it does inside a text, and the
engine is asked which characters are letters, numbers and white space, because Python may know another version of
Unicode. Characters beyond U+FFFF are encoded by the engine, together with what is between the borders around them.
"""

import functools
import re
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Regex, pre_tokenizers

#: fewer characters than these are left to the engine: the first table takes milliseconds to make
WORTH_DIVIDING = 1 << 14
#: characters of pre-tokens in a table before a new one is begun; each pre-token counts as so many more
TABLE_SIZE, ENTRY_SIZE = 1 << 22, 64
#: after texts whose new pre-tokens have more than this share of their characters, so many calls are left to the engine
MOST_NEW, CALLS_LEFT = 0.5, 16
#: characters in a row of Unicode's that are asked about together
BLOCK = 1 << 8
#: every character, and the classes that are asked about: letters, numbers and white space
ANY = r"[\s\S]"
EXPRESSIONS = (ANY, r"\p{L}", r"\p{N}", r"\s")
#: left to the engine: what Python's sets of characters find slowly, and what equals s or st in upper or lower case
UNUSUAL = re.compile("[\U00010000-\U0010ffff\u017f\ufb05\ufb06]")
#: one such character in so many, and the engine encodes the text
RARE = 64
#: what GPT-4's and Qwen's patterns write for the ends of English contractions, and the same without folding of case
FOLDED, SPELT_OUT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#: a repetition after which a known pattern never gives a character back: Python matches it faster if it is told so
NEVER_GIVEN_BACK = re.compile(r"(?<=[ \]}])[?+]")
#: a set of characters, or a class by itself, in a pattern
CLASS = re.compile(r"\[\^?[^]]*\]|\\p\{L\}|\\p\{N\}|\\s|\\S")

#: a pre-token to its ids, and texts to their ids
Merge = Callable[[str], Sequence[int]]
EncodeTexts = Callable[[list[str]], Sequence[Sequence[int]]]


class CharacterClasses:
    """Which characters the engine takes for letters, numbers and white space, in the blocks asked about so far.

    members   regular expression of the class -> its characters as ranges inside a set: `\\u0041-\\u005a...`
    unknown   matches a character that was not asked about and is not UNUSUAL
    """

    def __init__(self, blocks: frozenset[int] = frozenset()):
        self.blocks = blocks | {0}
        members = [members_of(block) for block in sorted(self.blocks)]
        self.members = {expression: "".join(one[expression] for one in members) for expression in EXPRESSIONS}
        self.unknown = re.compile(f"[^{self.members[ANY]}{UNUSUAL.pattern[1:]}")

    def with_those_of(self, texts: Sequence[str]) -> "CharacterClasses":
        """The classes, asked about the blocks of these texts too."""
        others = (text for text in texts if not text.isascii())
        new = {ord(character) // BLOCK for text in others for character in self.unknown.findall(text)}
        return CharacterClasses(self.blocks | new) if new else self

    def translate(self, pattern: str) -> re.Pattern[str]:
        """A known pattern for Python's `re`, which has no \\p{L}."""

        def spell(match: re.Match[str]) -> str:
            part = match[0]
            if part.startswith("["):
                for expression, members in self.members.items():
                    part = part.replace(expression, members)
                return part
            return f"[^{self.members[part.lower()]}]" if part == r"\S" else f"[{self.members[part]}]"

        pattern = NEVER_GIVEN_BACK.sub(r"\g<0>+", pattern.replace(FOLDED, SPELT_OUT))
        return re.compile(CLASS.sub(spell, pattern))


@functools.cache  # at most 256 blocks
def members_of(block: int) -> dict[str, str]:
    """The characters of a block that each expression matches, as ranges inside a set."""
    points = range(block * BLOCK, (block + 1) * BLOCK)
    text = "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)
    return {expression: ranges(matching(expression, text)) for expression in EXPRESSIONS}


def matching(expression: str, text: str) -> str:
    """The characters of a text that a regular expression of one character matches, as the engine sees it."""
    pieces = pre_tokenizers.Split(Regex(expression), "removed", invert=True).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


def ranges(characters: str) -> str:
    """Characters as they are written inside a set of a regular expression."""
    points = np.array(sorted({ord(character) for character in characters}))
    runs = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return "".join(f"\\u{run[0]:04x}-\\u{run[-1]:04x}" for run in runs if len(run))


class PreTokenIds(dict[str, bytes]):
    """The ids of each piece of text that was asked for, uint32 one after another; a new piece is encoded.

    merge   ids of a single pre-token
    encode  the engine: ids of texts
    size    characters of the pieces in the table, with ENTRY_SIZE for each
    n_new   characters of all pieces that were new when they were asked for
    """

    def __init__(self, merge: Merge, encode: EncodeTexts):
        super().__init__()
        self.merge, self.encode, self.size, self.n_new = merge, encode, 0, 0

    def __missing__(self, piece: str) -> bytes:
        # a pre-token, or a piece of several with an unusual character
        usual = piece.isascii() or UNUSUAL.search(piece) is None
        ids = array("I", self.merge(piece) if usual else self.encode([piece])[0]).tobytes()
        if self.size > TABLE_SIZE:
            self.clear()
            self.size = 0
        self[piece] = ids
        self.size += len(piece) + ENTRY_SIZE
        self.n_new += len(piece)
        return ids


class PreTokenTable:
    """Encodes texts of a tokenizer with a known pattern.

    pattern   how text is divided into pre-tokens
    border    matches two characters between which the pattern always divides
    merge     ids of a single pre-token
    encode    the engine: ids of texts
    """

    def __init__(self, pattern: str, border: re.Pattern[str], merge: Merge, encode: EncodeTexts):
        self.pattern, self.border = pattern, border
        self.divider: tuple[CharacterClasses, re.Pattern[str]] | None = None
        self.table, self.calls_left = PreTokenIds(merge, encode), 0

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray] | None:
        """Ids of each text, int64, or None where the engine alone is as fast."""
        n_characters, n_new = sum(map(len, texts)), self.table.n_new
        if n_characters < WORTH_DIVIDING:
            return None
        if self.calls_left:
            self.calls_left -= 1
            return None
        expression, ids_of = self.divider_of(texts), self.table.__getitem__
        joined = [b"".join(map(ids_of, self.divide(text, expression))) for text in texts]
        if self.table.n_new - n_new > MOST_NEW * n_characters:
            self.calls_left = CALLS_LEFT
        return [np.frombuffer(ids, np.uint32).astype(np.int64) for ids in joined]

    def divider_of(self, texts: Sequence[str]) -> re.Pattern[str]:
        """What matches the pre-tokens of these texts and of those before; the texts are looked at together."""
        classes, expression = self.divider or self.begin(CharacterClasses())
        if (more := classes.with_those_of(texts)) is not classes:
            _, expression = self.begin(more)
        return expression

    def divide(self, text: str, expression: re.Pattern[str]) -> list[str]:
        """The text in pieces that the engine may encode one by one: pre-tokens, and what is unusual."""
        if text.isascii() or (unusual := UNUSUAL.search(text)) is None:
            return expression.findall(text)
        if len(UNUSUAL.findall(text)) > len(text) // RARE:
            return [text]
        pieces, start = [], 0
        while unusual is not None:
            first, after = self.border_before(text, start, unusual.start()), self.border.search(text, unusual.end() - 1)
            end = after.start() + 1 if after else len(text)
            pieces += [*expression.findall(text, start, first), text[first:end]]
            start, unusual = end, UNUSUAL.search(text, end)
        return pieces + expression.findall(text, start)

    def begin(self, classes: CharacterClasses) -> tuple[CharacterClasses, re.Pattern[str]]:
        """Divide further texts with these classes."""
        self.divider = classes, classes.translate(self.pattern)
        return self.divider

    def border_before(self, text: str, start: int, stop: int) -> int:
        """A position from `start` to `stop` where the text may be cut, near `stop`; `start` if there is no other."""
        width = 64
        while True:
            low = max(start, stop - width)
            cuts = [match.start() + 1 for match in self.border.finditer(text, low, stop + 1)]
            if cuts or low == start:
                return cuts[-1] if cuts else start
            width *= 4
