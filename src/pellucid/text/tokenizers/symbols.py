"""Tokenizers that need no training: characters and bytes.

Both are saved as a Hugging Face tokenizer.json that gives the same ids: characters as a WordLevel model with a
pre-tokenizer that isolates every character, bytes as byte-level BPE without merges. The encoders here are lookup tables
instead, some hundred times faster.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from pellucid.text.tokenizers.base import SEPARATOR, Tokenizer, check_text

UNKNOWN = "<|unknown|>"
#: any one character, newlines included
ANY_CHARACTER = r"[\s\S]"


class CharTokenizer(Tokenizer):
    """One id for each character: the sorted characters of the training text, then the separator and the unknown.

    A character that is not in the vocabulary becomes the unknown id, which decodes as U+FFFD.
    """

    kind, units = "char", "characters"
    unknown: int

    def __init__(self, characters: Iterable[str], more_special: Sequence[str] = ()):
        self.characters = "".join(sorted(set(characters)))
        check_text(self.characters)
        self._points = np.array([ord(c) for c in self.characters], dtype=np.uint32)
        self.separator, self.unknown = len(self.characters), len(self.characters) + 1
        self.special = {SEPARATOR: self.separator} | _numbered(more_special, len(self.characters) + 2)
        self.n_vocab = len(self.characters) + 2 + len(more_special)
        self._bytes = [c.encode() for c in self.characters] + [b"", "\ufffd".encode()] + [b""] * len(more_special)

    @classmethod
    def train(cls, texts: Iterable[str]) -> "CharTokenizer":
        """The tokenizer whose vocabulary is the characters of these texts."""
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        return cls(seen)

    def _encode(self, text: str) -> list[int]:
        return self._lookup(text).tolist()

    def _lookup(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        if not len(self._points):
            return np.full(len(points), self.unknown, dtype=np.int64)
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points
        return np.where(known, ids, self.unknown).astype(np.int64)

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self._lookup(text) for text in texts]

    def _table(self) -> Sequence[bytes]:
        return self._bytes

    def token_str(self, token: int) -> str:
        return UNKNOWN if token == self.unknown else super().token_str(token)

    def _with_special(self, *names: str) -> "CharTokenizer":
        return CharTokenizer(self.characters, [*list(self.special)[1:], *names])

    def to_json(self) -> str:
        names = [*self.characters, SEPARATOR, UNKNOWN, *list(self.special)[1:]]
        engine = Engine(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), "isolated")
        engine.decoder = decoders.Fuse()
        special = (SEPARATOR, UNKNOWN, *list(self.special)[1:])
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
        return engine.to_str(pretty=True)


class ByteTokenizer(Tokenizer):
    """One id for each byte of UTF-8, equal to the byte; the separator is 256."""

    kind, units = "byte", "bytes"
    separator = 256

    def __init__(self, more_special: Sequence[str] = ()):
        self.special = {SEPARATOR: self.separator} | _numbered(more_special, 257)
        self.n_vocab = 257 + len(more_special)
        self._bytes = [bytes([value]) for value in range(256)] + [b""] * (1 + len(more_special))

    def _encode(self, text: str) -> list[int]:
        return list(text.encode())

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]

    def _table(self) -> Sequence[bytes]:
        return self._bytes

    def _with_special(self, *names: str) -> "ByteTokenizer":
        return ByteTokenizer([*list(self.special)[1:], *names])

    def to_json(self) -> str:
        vocabulary = {character: value for value, character in enumerate(byte_characters())}
        engine = Engine(models.BPE(vocabulary, []))
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        engine.decoder = decoders.ByteLevel()
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in self.special])
        return engine.to_str(pretty=True)


def _numbered(names: Sequence[str], first: int) -> dict[str, int]:
    return {name: first + i for i, name in enumerate(names)}


def byte_characters() -> list[str]:
    """The printable character that stands for each byte 0 ... 255 in byte-level BPE.

    Source: GPT-2's encoder.py, bytes_to_unicode. Printable bytes of Latin-1 stand for themselves; the others are
    U+0100, U+0101, ... in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    spare = iter(range(0x100, 0x200))
    return [chr(value) if value in printable else chr(next(spare)) for value in range(256)]


def read_symbols(content: dict[str, Any]) -> Tokenizer | None:
    """The character or byte tokenizer of a tokenizer.json with this content, None if it holds another kind."""
    model, before = content.get("model") or {}, content.get("pre_tokenizer") or {}
    added = [str(token.get("content")) for token in content.get("added_tokens") or () if isinstance(token, dict)]
    more = [name for name in added if name not in (SEPARATOR, UNKNOWN)]
    if model.get("type") == "WordLevel" and (before.get("pattern") or {}).get("Regex") == ANY_CHARACTER:
        characters = CharTokenizer((name for name in model["vocab"] if name not in added), more)
        return characters if json.loads(characters.to_json())["model"] == model else None
    if model.get("type") == "BPE" and not model.get("merges") and before.get("use_regex") is False:
        tokenizer = ByteTokenizer(more)
        return tokenizer if json.loads(tokenizer.to_json())["model"]["vocab"] == model["vocab"] else None
    return None
