"""Measure a tokenizer on texts: its compression, what its ids are made of, and which ids never occur."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pellucid.text.scripts import script_of
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.symbols import byte_characters

#: a run of letters and digits
WORD = re.compile(r"\w+")
#: how many characters of a text decide its script
SCRIPT_CHARACTERS = 4096


@dataclass
class Measure:
    """Sums over texts; a ratio is nan if its denominator is 0."""

    documents: int = 0
    n_bytes: int = 0
    n_characters: int = 0
    n_words: int = 0
    n_tokens: int = 0
    n_unknown: int = 0

    @property
    def bytes_per_token(self) -> float:
        return self.n_bytes / self.n_tokens if self.n_tokens else float("nan")

    @property
    def characters_per_token(self) -> float:
        return self.n_characters / self.n_tokens if self.n_tokens else float("nan")

    @property
    def tokens_per_word(self) -> float:
        """Words are runs of letters and digits; scripts without blanks have long ones."""
        return self.n_tokens / self.n_words if self.n_words else float("nan")

    def add(self, text: str, ids: np.ndarray, unknown: int | None) -> None:
        """Add one text and its ids."""
        self.documents += 1
        self.n_bytes += len(text.encode())
        self.n_characters += len(text)
        self.n_words += sum(1 for _ in WORD.finditer(text))
        self.n_tokens += len(ids)
        self.n_unknown += 0 if unknown is None else int((ids == unknown).sum())


@dataclass
class Survey:
    """A tokenizer measured on texts: in total, by file and by script, and the number of occurrences of each id
    [n_vocab].
    """

    tokenizer: Tokenizer
    total: Measure = field(default_factory=Measure)
    by_file: dict[str, Measure] = field(default_factory=dict)
    by_script: dict[str, Measure] = field(default_factory=dict)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def longest(self, k: int = 10) -> list[int]:
        """The ids of the k longest tokens in bytes, ties by id."""
        return sorted(range(self.tokenizer.n_vocab), key=lambda i: (-len(self.tokenizer.token_bytes(i)), i))[:k]

    def rarest(self, k: int = 10) -> list[int]:
        """The ids of the k rarest tokens that occur, ties by id."""
        seen = np.flatnonzero(self.counts)
        return seen[np.argsort(self.counts[seen], kind="stable")][:k].tolist()

    @property
    def unused(self) -> int:
        """How many ids that plain text can produce never occurred."""
        unreachable = {*self.tokenizer.special.values()}
        return sum(not count for i, count in enumerate(self.counts.tolist()) if i not in unreachable)


def survey(tokenizer: Tokenizer, texts: Iterable[tuple[str, str]]) -> Survey:
    """Measure `texts`, pairs (name of the file, text of a document)."""
    result = Survey(tokenizer, counts=np.zeros(tokenizer.n_vocab, dtype=np.int64))
    for name, text in texts:
        ids = np.concatenate([*tokenizer.encode_pieces([text]), np.zeros(0, dtype=np.int64)])
        result.counts += np.bincount(ids, minlength=tokenizer.n_vocab)
        script = script_of(text[:SCRIPT_CHARACTERS])
        measures = result.by_file.setdefault(name, Measure()), result.by_script.setdefault(script, Measure())
        for measure in (result.total, *measures):
            measure.add(text, ids, tokenizer.unknown)
    return result


@dataclass(frozen=True)
class Merged:
    """A token and the two tokens it was merged from, with the rank of the merge (0 is the first); None for a base
    token.
    """

    token: bytes
    rank: int | None = None
    parts: tuple["Merged", ...] = ()


def merge_trees(tokenizer: Tokenizer, word: str) -> list[Merged]:
    """The merge tree of each token of a word, down to bytes. Only BPE merges tokens."""
    tokens = [tokenizer.token_bytes(i) for i in tokenizer.encode(word)]
    if not isinstance(tokenizer, BPETokenizer):
        return [Merged(token) for token in tokens]
    value_of = {character: value for value, character in enumerate(byte_characters())}
    made_of: dict[bytes, tuple[int, bytes, bytes]] = {}
    for rank, pair in enumerate(tokenizer.merges):
        left, right = (bytes(value_of[c] for c in part) for part in pair)
        made_of.setdefault(left + right, (rank, left, right))

    def tree(token: bytes) -> Merged:
        if token not in made_of:
            return Merged(token)
        rank, left, right = made_of[token]
        return Merged(token, rank, (tree(left), tree(right)))

    return [tree(token) for token in tokens]
