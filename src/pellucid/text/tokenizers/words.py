"""Word tokenizers: one id for each of the most frequent words of a text, and one id for all other words."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from pellucid.text.tokenizers.base import SEPARATOR, Tokenizer, TokenizerError, check_text
from pellucid.text.tokenizers.bpe import cut_at_borders
from pellucid.text.tokenizers.symbols import UNKNOWN

#: a run of letters and digits, or any other character, each with the blank before it; other white space is a word by
#: itself
WORD_PATTERN = r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]|\s"


class WordTokenizer(Tokenizer):
    """One id for each word with the blank before it: the most frequent first, then the separator and the unknown.

    A word that is not in the vocabulary becomes the unknown id, which decodes as U+FFFD (Dobriban, "Symbol
    Representation": symbols may be words). Without blanks these are the words of `reference.tokens.split_words`.
    """

    kind, units = "word", "words"
    unknown: int

    def __init__(self, words: Sequence[str], more_special: Sequence[str] = (), notes: tuple[str, ...] = ()):
        self.words, self.notes = list(words), notes
        self.separator, self.unknown = len(self.words), len(self.words) + 1
        self.special = {SEPARATOR: self.separator} | {name: self.unknown + 1 + i for i, name in enumerate(more_special)}
        self.n_vocab = len(self.words) + 2 + len(more_special)
        self._bytes = [w.encode() for w in self.words] + [b"", "\ufffd".encode()] + [b""] * len(more_special)
        self._engine = Engine.from_str(self.to_json())
        self._engine.encode_special_tokens = True

    @classmethod
    def train(cls, texts: Iterable[str], n_vocab: int) -> "WordTokenizer":
        """The n_vocab - 2 most frequent words of these texts, ties in alphabetical order; fewer if there are
        no more.
        """
        if n_vocab < 3:
            raise TokenizerError(f"n_vocab = {n_vocab}: words need at least 3, one word, the separator and the unknown")
        divide, counts = _divider(), Counter()
        for text in texts:
            check_text(text)
            for chunk in cut_at_borders([text]):
                counts.update(word for word, _ in divide.pre_tokenize_str(chunk))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        vocabulary, total = ranked[: n_vocab - 2], counts.total()
        left = total - sum(counts[word] for word in vocabulary)
        notes = (
            (f"{len(ranked) - len(vocabulary):,} rarer words, {left / total:.1%} of all, became unknown",)
            if left
            else ()
        )
        if len(vocabulary) + 2 < n_vocab:
            notes = (
                f"the vocabulary stopped at {len(vocabulary) + 2} of the {n_vocab} requested ids: there are no "
                "more words",
            )
        return cls(vocabulary, notes=notes)

    def _encode(self, text: str) -> list[int]:
        return self._engine.encode(text, add_special_tokens=False).ids

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        encoded = self._engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.int64) for one in encoded]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return [span for _, span in _divider().pre_tokenize_str(text)]

    def chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        return cut_at_borders(pieces)

    def _table(self) -> Sequence[bytes]:
        return self._bytes

    def token_str(self, token: int) -> str:
        return UNKNOWN if token == self.unknown else super().token_str(token)

    def _with_special(self, *names: str) -> "WordTokenizer":
        if taken := [name for name in names if name in self.words]:
            raise TokenizerError(
                f"special token {taken[0]!r}: the vocabulary has this word already; choose another name"
            )
        return WordTokenizer(self.words, [*list(self.special)[1:], *names], self.notes)

    def to_json(self) -> str:
        special = (SEPARATOR, UNKNOWN, *list(self.special)[1:])
        engine = Engine(models.WordLevel({w: i for i, w in enumerate([*self.words, *special])}, unk_token=UNKNOWN))
        engine.pre_tokenizer = _divider()
        engine.decoder = decoders.Fuse()
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
        return engine.to_str(pretty=True)


def _divider() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")


def read_words(content: dict[str, Any]) -> WordTokenizer | None:
    """The word tokenizer of a tokenizer.json with this content, None if it holds another kind."""
    model, before = content.get("model") or {}, content.get("pre_tokenizer") or {}
    if model.get("type") != "WordLevel" or (before.get("pattern") or {}).get("Regex") != WORD_PATTERN:
        return None
    added = [str(token.get("content")) for token in content.get("added_tokens") or () if isinstance(token, dict)]
    words = sorted((name for name in model["vocab"] if name not in added), key=model["vocab"].__getitem__)
    tokenizer = WordTokenizer(words, [name for name in added if name not in (SEPARATOR, UNKNOWN)])
    return tokenizer if json.loads(tokenizer.to_json())["model"] == model else None
