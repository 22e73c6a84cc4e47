"""What texts made to do harm cost: a megabyte of one thing, learned from and encoded, by every pattern and by words.

python -m benchmarks.hostile_texts
"""

import time

from rich.console import Console
from rich.table import Table

from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import PATTERNS
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

UNITS = {
    "one letter": "a",
    "blanks": " ",
    "newlines": "\n",
    "emoji": "\U0001f600",
    "digits": "7",
    "no blanks at all": "".join(chr(ord("a") + i * i % 23) for i in range(997)),
}
WAYS = {f"bpe, {pattern}": ("bpe", {"pattern": pattern}) for pattern in PATTERNS} | {"words": ("word", {})}


def measure(text: str, kind: str, options: dict[str, str]) -> tuple[float, float]:
    """Seconds to learn 1,024 ids and to encode; the round trip is checked."""
    start = time.perf_counter()
    tokenizer: Tokenizer = learn_tokenizer(kind, [text], 1024, **options)  # type: ignore[arg-type]
    learned = time.perf_counter()
    ids = [i for piece in tokenizer.encode_pieces([text]) for i in piece.tolist()]
    encoded = time.perf_counter()
    assert tokenizer.decode(ids) == text
    return learned - start, encoded - learned


def main() -> None:
    """A row for each text, seconds to learn and to encode for each way."""
    table = Table("1 MB of", *WAYS, title="seconds to learn, to encode")
    for name, unit in UNITS.items():
        text = unit * (1_000_000 // len(unit.encode()))
        cells = [measure(text, kind, options) for kind, options in WAYS.values()]
        table.add_row(name, *(f"{learn:.2f}, {encode:.2f}" for learn, encode in cells))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
