"""In which script a text is written, told by a sample of its letters."""

import unicodedata
from collections import Counter
from functools import lru_cache

#: the name of a text's script where it holds no letters
NO_LETTERS = "no letters"
#: characters of a text that are looked at, evenly spread over it
SAMPLED = 64


def script_of(text: str) -> str:
    """The script that most letters of a text are written in, as Unicode calls it: Latin, Cyrillic, ..."""
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else NO_LETTERS
    scripts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            scripts[_script_of_letter(character)] += count
    return scripts.most_common(1)[0][0] if scripts else NO_LETTERS


def sampled_script_of(text: str) -> str:
    """The script of a text as its sample of about SAMPLED characters has it: the same cost for every length."""
    return script_of(text[:: max(1, len(text) // SAMPLED)])


@lru_cache(maxsize=1 << 16)
def _script_of_letter(letter: str) -> str:
    return unicodedata.name(letter, "unnamed").split()[0].capitalize()
