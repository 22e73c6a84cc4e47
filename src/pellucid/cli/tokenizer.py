"""The commands about tokenizers: make one, use it, look at it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from pellucid.cli.commands import OK


def tokenizer_train(
    paths: Positional[tuple[str, ...]],
    *,
    out: Path,
    kind: Literal["bpe", "char", "byte"] = "bpe",
    vocabulary: int = 8192,
) -> int:
    """Make a tokenizer from text.

    Args:
        paths: files and folders of plain text.
        out: the folder to write tokenizer.json into; an existing tokenizer.json is refused.
        kind: byte-level byte-pair encoding, characters, or bytes.
        vocabulary: how many ids byte-pair encoding learns.
    """
    import pellucid

    made = pellucid.train_tokenizer(*paths, kind=kind, vocabulary=vocabulary, out=out)
    print(f"{made.n_vocab:,} ids, written to {out / 'tokenizer.json'}")
    for note in made.notes:
        print(note)
    return OK


def tokenizer_encode(tokenizer: Positional[str], text: Positional[str] = "-", *, allow_special: bool = False) -> int:
    """Show the ids of a text and what each stands for.

    Args:
        tokenizer: a tokenizer.json, or a folder or run that holds one.
        text: the text; - reads standard input.
        allow_special: read <|endoftext|> and the like as special tokens.
    """
    from pellucid.text.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    text = sys.stdin.read() if text == "-" else text
    ids = loaded.encode(text, allow_special=tuple(loaded.special) if allow_special else ())
    for i in ids:
        print(f"{i}\t{loaded.token_str(i)}")
    return OK


def tokenizer_decode(tokenizer: Positional[str], ids: Positional[tuple[int, ...]]) -> int:
    """The text that ids stand for.

    Args:
        tokenizer: a tokenizer.json, or a folder or run that holds one.
        ids: token ids, separated by spaces.
    """
    from pellucid.text.tokenizer import load_tokenizer

    print(load_tokenizer(tokenizer).decode(list(ids)))
    return OK


TOKENIZER_COMMANDS: dict[str, Callable[..., int]] = {
    "train": tokenizer_train,
    "encode": tokenizer_encode,
    "decode": tokenizer_decode,
}
