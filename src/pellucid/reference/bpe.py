"""Byte pair encoding: the construction of the vocabulary and the tokens of a text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from pellucid.reference.tokens import END_OF_TEXT, pretokenise, utf8_encode

Pair = tuple[int, int]


@dataclass(frozen=True)
class BPE:
    """B = (V_0, (M_i)): base symbols, and merges in the order in which they were learned.   S0 1.1

    Token k < |base| is a base symbol, token |base| + i the result of merge i; special tokens come last and are never
    parsed from text unless allowed (E-15). With `pretokenised` merges stay inside the pieces of GPT-2's pattern.
    """

    base: tuple[bytes, ...]
    merges: tuple[Pair, ...]
    special: tuple[str, ...] = (END_OF_TEXT,)
    pretokenised: bool = True

    @property
    def n_vocab(self) -> int:
        return len(self.base) + len(self.merges) + len(self.special)

    @cached_property
    def index(self) -> dict[bytes, int]:
        """The token of each base symbol."""
        return {symbol: k for k, symbol in enumerate(self.base)}

    @cached_property
    def ranks(self) -> dict[Pair, int]:
        """The index of each merge in the order in which they were learned."""
        return {pair: k for k, pair in enumerate(self.merges)}


BYTES = tuple(bytes([b]) for b in range(256))


# Construction -------------------------------------------------------------------------------------


def count_pairs(
    sequences: Iterable[Sequence[int]], weights: Sequence[int] | None = None, special: frozenset[int] = frozenset()
) -> dict[Pair, int]:
    """The number of times that two symbols are adjacent, overlaps included, in order of first appearance

    S0 1.1 "Byte Pair Encoding", excluding pairs with a special symbol. Erratum E-12. `weights` says how often each
    sequence occurs.
    """
    counts: dict[Pair, int] = {}
    for k, sequence in enumerate(sequences):
        for pair in pairwise(sequence):
            if not special.intersection(pair):
                counts[pair] = counts.get(pair, 0) + (1 if weights is None else weights[k])
    return counts


def merge_pair(sequence: Sequence[int], pair: Pair, new: int) -> list[int]:
    """Every occurrence of the pair replaced by `new`, from left to right.   S0 1.1; erratum E-12 for s = s'."""
    out, i = [], 0
    while i < len(sequence):
        is_pair = tuple(sequence[i : i + 2]) == pair
        out.append(new if is_pair else sequence[i])
        i += 2 if is_pair else 1
    return out


def most_frequent(counts: Mapping[Pair, int], tie_break: str = "smallest") -> Pair:
    """The pair with the highest count; among equals the smallest ids, or the first seen.   S0 1.1; erratum E-11."""
    if tie_break == "smallest":
        return min(counts, key=lambda pair: (-counts[pair], pair))
    if tie_break == "first":
        return max(counts, key=lambda pair: counts[pair])
    raise ValueError(f"tie_break = {tie_break!r}: expected smallest or first")


def bpe_merges(
    sequences: Iterable[Sequence[int]], n_base: int, n_merges: int, *, weights: Sequence[int] | None = None,
    tie_break: str = "smallest", special: frozenset[int] = frozenset(),
) -> tuple[list[Pair], list[list[int]]]:  # fmt: skip
    """M_1 ... M_m and C_m: the iteration (V_i, C_i) -> (V_{i+1}, C_{i+1}), merge i making the symbol n_base + i

    S0 1.1 "Byte Pair Encoding". It stops early when no pair is left: erratum E-13, whose lemma says that a new symbol
    is always a new string, so |V_{i+1}| = |V_i| + 1.
    """
    corpus, merges = [list(s) for s in sequences], []
    while len(merges) < n_merges and (counts := count_pairs(corpus, weights, special)):
        pair = most_frequent(counts, tie_break)
        corpus = [merge_pair(s, pair, n_base + len(merges)) for s in corpus]
        merges.append(pair)
    return merges, corpus


def bpe_train(
    documents: Iterable[str], n_vocab: int, *, base: Sequence[bytes] = BYTES, special: Sequence[str] = (END_OF_TEXT,),
    tie_break: str = "smallest", pretokenised: bool = True,
) -> BPE:  # fmt: skip
    """The byte pair encoding of a corpus with n_vocab tokens, or fewer when no pair is left

    S0 1.1; S4 "Compromise for Symbol Representation". Documents are separate sequences, and so are pieces where
    pretokenised, so no merge crosses their borders. Errata E-09 to E-13. Raises ValueError when n_vocab is too small.
    """
    n_merges = n_vocab - len(base) - len(special)
    if n_merges < 0:
        raise ValueError(
            f"n_vocab = {n_vocab}: expected at least {len(base) + len(special)}, the base "
            "symbols and the special tokens"
        )
    start = BPE(tuple(base), (), tuple(special), pretokenised)
    pieces: dict[str, int] = {}
    for document in documents:
        for piece in pretokenise(document) if pretokenised else [document]:
            pieces[piece] = pieces.get(piece, 0) + 1
    sequences = [_base_tokens(piece, start) for piece in pieces]
    merges, _ = bpe_merges(sequences, len(base), n_merges, weights=list(pieces.values()), tie_break=tie_break)
    return BPE(tuple(base), tuple(merges), tuple(special), pretokenised)


# Encoding and decoding ----------------------------------------------------------------------------


def bpe_encode(text: str, bpe: BPE, *, order: str = "lowest-rank", allowed_special: Iterable[str] = ()) -> list[int]:
    """The tokens of a text.   S0 1.1, 1+)

    lowest-rank  merge the earliest learned pair present, until none is; sequential  apply M_1, ..., M_m in turn:
    the same result (E-14). A special token is made from its text only if named in `allowed_special` (E-15).
    Raises ValueError for a character that is not in the alphabet of a character-level base.
    """
    allowed = sorted(set(allowed_special), key=len, reverse=True)
    for name in allowed:
        before, match, after = text.partition(name)
        if match:
            around = [bpe_encode(part, bpe, order=order, allowed_special=allowed) for part in (before, after)]
            return [*around[0], special_token(name, bpe), *around[1]]
    merge = {"lowest-rank": _merge_by_rank, "sequential": _merge_in_order}[order]
    pieces = pretokenise(text) if bpe.pretokenised else [text]
    return [t for piece in pieces for t in merge(_base_tokens(piece, bpe), bpe)]


def _base_tokens(text: str, bpe: BPE) -> list[int]:
    """The text over V_0: its bytes, or its characters where the base has those."""
    symbols = [bytes([b]) for b in text.encode()] if b"\xff" in bpe.index else utf8_encode(text)
    if unknown := [s for s in symbols if s not in bpe.index]:
        raise ValueError(f"{unknown[0].decode()!r} is not in the alphabet of this vocabulary")
    return [bpe.index[s] for s in symbols]


def _merge_by_rank(tokens: list[int], bpe: BPE) -> list[int]:
    while present := [p for p in pairwise(tokens) if p in bpe.ranks]:
        first = min(present, key=bpe.ranks.__getitem__)
        tokens = merge_pair(tokens, first, len(bpe.base) + bpe.ranks[first])
    return tokens


def _merge_in_order(tokens: list[int], bpe: BPE) -> list[int]:
    for k, pair in enumerate(bpe.merges):
        tokens = merge_pair(tokens, pair, len(bpe.base) + k)
    return tokens


def special_token(name: str, bpe: BPE) -> int:
    """The id of a special token; ValueError if there is none of that name.   S0 1.1 (the special character)."""
    if name not in bpe.special:
        raise ValueError(f"there is no special token {name!r}: there are {', '.join(bpe.special) or 'none'}")
    return len(bpe.base) + len(bpe.merges) + bpe.special.index(name)


def unmerge(token: int, bpe: BPE) -> list[int]:
    """The token written in symbols of V_0.   S0 Remark 1.1(2). Raises ValueError for a special or unknown token."""
    if token < 0 or token >= len(bpe.base) + len(bpe.merges):
        raise ValueError(f"token {token} is special or not in the vocabulary: it has no base symbols")
    if token < len(bpe.base):
        return [token]
    left, right = bpe.merges[token - len(bpe.base)]
    return unmerge(left, bpe) + unmerge(right, bpe)


def token_bytes(token: int, bpe: BPE) -> bytes:
    """The byte string of a token.   S0 Remark 1.1(2)"""
    return b"".join(bpe.base[k] for k in unmerge(token, bpe))


def token_str(token: int, bpe: BPE) -> str:
    """The token as text: its bytes decoded as UTF-8, parts of characters shown as U+FFFD.

    S0 Remark 1.1(2); erratum E-09.
    """
    if token >= len(bpe.base) + len(bpe.merges):
        return bpe.special[token - len(bpe.base) - len(bpe.merges)]
    return token_bytes(token, bpe).decode(errors="replace")


def bpe_decode(tokens: Iterable[int], bpe: BPE, errors: str = "replace") -> str:
    """The text of the tokens, special ones left out.   S0 1.1 (E_UTF-8 inverted after un-merging)."""
    end = len(bpe.base) + len(bpe.merges)
    return b"".join(token_bytes(t, bpe) for t in tokens if t < end).decode(errors=errors)


# GPT-2's files ------------------------------------------------------------------------------------


def printable_bytes() -> dict[str, int]:
    """The printable character that stands for each byte in GPT-2's merges file, in the order of its token ids

    S1 [2] (Radford et al. 2019), the vocabulary of GPT-2.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + k): b for k, b in enumerate(hidden)}


def read_gpt2_merges(text: str) -> BPE:
    """The byte pair encoding in GPT-2's merges file (vocab.bpe or merges.txt), with GPT-2's token ids.   S1 [2]"""
    index = {symbol: k for k, symbol in enumerate(printable_bytes())}
    base = tuple(bytes([b]) for b in printable_bytes().values())
    merges = []
    for line in text.splitlines():
        if line and not line.startswith("#version"):
            left, right = line.split(" ")
            merges.append((index[left], index[right]))
            index[left + right] = len(index)
    return BPE(base, tuple(merges))
