"""Escape control characters in text from outside, such as file names, before a terminal or a page shows it."""

import re

#: control characters but tabs and line ends, the marks that override the direction of writing (Unicode Standard
#: Annex 9, section 2), and halves of surrogate pairs, which no file can hold
INVISIBLE_CHARACTERS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def sanitize(text: str) -> str:
    """The text with invisible and direction-changing characters escaped, such as \\u001b. Line ends become \\n."""
    return INVISIBLE_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))
