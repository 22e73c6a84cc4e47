"""The script that a text is written in, judged by a sample of its letters."""

import unicodedata
from collections import Counter
from functools import lru_cache

#: the script of a text without letters
NO_LETTERS = "no letters"
#: how many evenly spaced characters of a text are looked at
SAMPLED_CHARACTERS = 64


def script_of(text: str) -> str:
    """The Unicode name of the script that most letters of the text belong to: Latin, Cyrillic, ..."""
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else NO_LETTERS
    scripts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            scripts[_script_of_letter(character)] += count
    return scripts.most_common(1)[0][0] if scripts else NO_LETTERS


def sampled_script_of(text: str) -> str:
    """The script of a text judged by about SAMPLED_CHARACTERS of it, so that the cost does not grow with its length."""
    return script_of(text[:: max(1, len(text) // SAMPLED_CHARACTERS)])


@lru_cache(maxsize=1 << 16)
def _script_of_letter(letter: str) -> str:
    return unicodedata.name(letter, "unnamed").split()[0].capitalize()
