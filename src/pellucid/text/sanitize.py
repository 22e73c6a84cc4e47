"""Text of others, such as names of files, that a terminal or a page shows and does not obey."""

import re

#: control characters but tabs and line ends, the marks that override the direction of writing (Unicode Standard
#: Annex 9, section 2), and halves of surrogate pairs, which no file can hold
UNSEEN = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def sanitize(text: str) -> str:
    """The text with what would show nothing, or turn what follows, by its number: \\u001b. Line ends become \\n."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))
