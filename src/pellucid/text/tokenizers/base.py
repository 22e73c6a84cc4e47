"""The interface of every tokenizer: text to ids and back.

Two laws hold for all of them. First, text never yields a special id unless the caller names it in `allow_special`, so
nobody can type a separator into a prompt or a corpus. Second, a token is a byte string: text is what the bytes spell,
and bytes are counted, never guessed through U+FFFD.
"""

import abc
import codecs
import copy
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.destination import replace_file
from pellucid.json_files import JSONFileError, parse_json_object, read_json_file

#: the separator between documents, a special token of every vocabulary
SEPARATOR = "<|endoftext|>"
#: how many chunks of a text are encoded in one call
CHUNKS_AT_ONCE = 16


#: our mask token
MASK = "<|mask|>"
#: how a blank is written in a prompt
BLANK = "[MASK]"
#: names of the mask token: ours first, then those of other projects
MASKS = (MASK, "[MASK]", "<mask>")
#: the file beside a tokenizer.json that names the end of a text where the tokenizer.json does not
OPTIONS_FILE = "tokenizer_config.json"
#: the file beside it for the ids with a use of their own that a model's files name: which start targets and end texts
IDS_FILE = "ids.json"


class TokenizerError(ValueError):
    """Text that cannot be encoded, ids that cannot be decoded, or a tokenizer file that cannot be used."""


class NoEndError(TokenizerError):
    """A tokenizer file that does not say which token ends a text."""


class Tokenizer(abc.ABC):
    """Encodes text as ids and decodes ids as text.

    kind       bpe, word, char or byte
    units      the noun for what an id stands for, in the plural
    n_vocab    the number of ids, special ones included: 0 ... n_vocab - 1
    special    name -> id of the special tokens, which plain text never produces
    unknown    the id for characters or words outside the vocabulary, None if every text can be encoded
    before     the ids that another project's tokenizer puts before a text that a model reads, such as <bos> or [CLS]
    after      and after one that a masked model reads, such as [SEP]; our own tokenizers put nothing anywhere
    notes      sentences about how it was made

    What a model's files say goes before what the tokenizer's own say (`with_model_ids`):

    model_start  the id that starts targets, None where the files name none or the one that the tokenizer names too
    model_ends   the ids that end generation beside the separator
    """

    kind: str
    units: str = "tokens"
    n_vocab: int
    special: dict[str, int]
    separator: int
    unknown: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    #: whether decoding returns every text without unknown characters unchanged
    lossless: bool = True
    notes: tuple[str, ...] = ()
    #: the name of the separator where tokenizer.json does not say it; `save` writes it into OPTIONS_FILE
    named_end: str = ""
    model_start: int | None = None
    model_ends: tuple[int, ...] = ()

    @abc.abstractmethod
    def to_json(self) -> str:
        """The tokenizer as the text of a Hugging Face tokenizer.json."""

    @abc.abstractmethod
    def _with_special(self, *names: str) -> "Tokenizer":
        """A tokenizer with these special ids too, whose names have been checked."""

    @abc.abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of checked text without special tokens."""

    @abc.abstractmethod
    def _table(self) -> Sequence[bytes]:
        """The bytes of every id; b"" for special ones."""

    @property
    def mask(self) -> int | None:
        """The id of the mask token, None if the vocabulary has none."""
        return next((self.special[name] for name in MASKS if name in self.special), None)

    @property
    def start(self) -> int:
        """The id that starts a target when there is a source: what the model's files name, else the separator, or <pad>
        in T5's vocabularies.
        """
        if self.model_start is not None:
            return self.model_start
        padded = "<extra_id_0>" in self.special and "<pad>" in self.special
        return self.special["<pad>"] if padded else self.separator

    @property
    def ends(self) -> list[int]:
        """The ids that end generation: the separator, if there is one, and those that the model's files name."""
        return [self.separator, *self.model_ends]

    @property
    def opening(self) -> list[int]:
        """What is read before a text whose first token is predicted too: `before`, or else the separator."""
        return list(self.before) or [self.separator]

    def prompt_ids(self, ids: Sequence[int]) -> list[int]:
        """What a decoder reads of a text with these ids: `before` and the ids, or the separator for nothing at all."""
        return [*self.before, *ids] or [self.separator]

    def masked_ids(self, ids: Sequence[int]) -> list[int]:
        """What a masked model reads of a text with these ids: `before`, the ids, and `after`."""
        return [*self.before, *ids, *self.after]

    def blanked_ids(self, text: str) -> list[int]:
        """Ids of a text in which each [MASK] is the mask token; a blank before it may belong to it, as in RoBERTa."""
        if self.mask is None:
            return self.encode(text)
        first, *others = text.split(BLANK)
        parts: list[tuple[str | int, bool]] = [(first, False)]
        for part in others:
            parts += [(self.mask, False), (part, False)]
        return self.encode_parts(parts)[0]

    def source_ids(self, ids: Sequence[int]) -> list[int]:
        """The encoder's input for these ids: the separator after them, and <s> before them if the vocabulary has it."""
        first = [self.special["<s>"]] if "<s>" in self.special else []
        return [*first, *(int(i) for i in ids), self.separator]

    def with_special(self, *names: str) -> "Tokenizer":
        """The same tokenizer with more special ids at the end, such as `<|mask|>`. Raises TokenizerError for a taken
        name.
        """
        check_special(self, names)
        return self._with_special(*names).with_model_ids(self.model_start, self.ends)

    def with_model_ids(self, start: int | None, ends: Sequence[int]) -> "Tokenizer":
        """The same tokenizer with the ids that a model's files name for starting targets and for ending texts.

        Without a `start`, or without `ends`, those of this tokenizer stay. `save` keeps both in IDS_FILE.
        """
        model_start = self.model_start if start in (None, self.start) else start
        model_ends = tuple(i for i in ends if i != self.separator) if ends else self.model_ends
        if (model_start, model_ends) == (self.model_start, self.model_ends):
            return self
        changed = copy.copy(self)
        changed.model_start, changed.model_ends = model_start, model_ends
        return changed

    def bare(self) -> "Tokenizer":
        """The same tokenizer with nothing before and after a text, for a model that was trained without that.

        Its file says so too, so that `hash` is another one; `ids_hash` stays.
        """
        if not self.before and not self.after:
            return self
        bare, content = copy.copy(self), json.loads(self.to_json()) | {"post_processor": None}
        text = json.dumps(content, ensure_ascii=False, indent=2)
        vars(bare).pop("hash", None)  # kept for the other file
        vars(bare).update(before=(), after=(), _json=text)
        return bare

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content, independent of the layout of the JSON."""
        return _hash_of(json.loads(self.to_json()))

    @property
    def ids_hash(self) -> str:
        """SHA-256 of the content that decides the ids of a text: all but what is put before and after it."""
        return _hash_of(json.loads(self.to_json()) | {"post_processor": None})

    def save(self, folder: str | Path) -> Path:
        """Write `save_alone`'s files into `folder` and return the path of `tokenizer.json`.

        What the files of a model say of the ids (`with_model_ids`) goes into `ids.json` beside it.
        """
        path = self.save_alone(folder)
        if self.model_start is not None or self.model_ends:
            write_model_ids(path.parent, self)
        return path

    def save_alone(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder`, whole or not at all, and return its path.

        Where that file does not say which token ends a text, `tokenizer_config.json` beside it does.
        """
        path = Path(folder) / "tokenizer.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, self.to_json().encode())
        if self.named_end:
            beside = path.with_name(OPTIONS_FILE)
            options = read_json_file(beside) if beside.exists() else {}
            content = json.dumps(options | {"eos_token": self.named_end}, ensure_ascii=False, indent=2)
            replace_file(beside, content.encode())
        return path

    # Text to ids ----------------------------------------------------------------------------

    def encode(self, text: str, allow_special: Collection[str] = ()) -> list[int]:
        """Ids of `text`. Names of special tokens are ordinary text unless `allow_special` lists them.

        Raises TokenizerError for lone surrogates and for names that are not special tokens.
        """
        check_text(text)
        if not allow_special:
            return self._encode(text)
        names = {allow_special} if isinstance(allow_special, str) else set(allow_special)
        if strange := sorted(names - set(self.special)):
            known = ", ".join(self.special)
            raise TokenizerError(
                f"allow_special names {strange[0]!r}, which is not a special token: choose one of {known}"
            )
        ids: list[int] = []
        longest_first = sorted(names, key=len, reverse=True)
        for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text):
            ids += [self.special[part]] if part in names else self._encode(part)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Ids of each text, int64, without special ids."""
        texts = list(texts)
        for text in texts:
            check_text(text)
        return self._encode_batch(texts)

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of texts that have been checked."""
        return [np.asarray(self._encode(text), dtype=np.int64) for text in texts]

    def chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same text, cut so that the concatenated ids of the chunks are the ids of the whole text."""
        return iter(pieces)

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of one text that arrives in chunks: concatenated, they are the ids of the whole text.

        Memory is bounded if the tokenizer knows where a text may be cut; otherwise the text is joined first. Exception:
        a stretch of more than 16 million characters without such a border is cut anyway.
        """
        chunks = self.chunks(pieces)
        while batch := list(itertools.islice(chunks, CHUNKS_AT_ONCE)):
            yield from self.encode_batch(batch)

    def encode_parts(self, parts: Sequence[tuple[str | int, bool]]) -> tuple[list[int], list[bool]]:
        """Ids of texts and special ids in turn, and which of them stand for something of a part that is marked True.

        Neighbouring texts are encoded as one, so that a mark changes no id.
        """
        return self.encode_parts_batch([parts])[0]

    def encode_parts_batch(
        self, rows: Sequence[Sequence[tuple[str | int, bool]]]
    ) -> list[tuple[list[int], list[bool]]]:
        """What `encode_parts` gives for each of these, their texts encoded in one batch."""
        runs = [
            (number, list(run))
            for number, parts in enumerate(rows)
            for _, run in itertools.groupby(parts, key=lambda part: isinstance(part[0], str))
        ]
        texts = ["".join(str(piece) for piece, _ in run) for _, run in runs if isinstance(run[0][0], str)]
        encoded = iter(zip(texts, self.encode_batch(texts), strict=True))
        results: list[tuple[list[int], list[bool]]] = [([], []) for _ in rows]
        for number, run in runs:
            ids, marked = results[number]
            if not isinstance(run[0][0], str):
                ids += [int(special) for special, _ in run]
                marked += [mark for _, mark in run]
                continue
            text, own = next(encoded)
            ids += own.tolist()
            if len(run) == 1:
                marked += [run[0][1]] * len(own)
            else:
                exact = self.lossless and self.unknown is None
                n_bytes = self._widths[own] if exact else [len(piece) for piece in self.pieces_of(text, own.tolist())]
                ends = np.cumsum(n_bytes)
                widths = [len(str(piece).encode()) for piece, _ in run]
                marked += which_overlap([0, *ends[:-1]], ends, widths, [mark for _, mark in run])
        return results

    # Ids to text ----------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The text of `ids`, without special ids.

        `errors` is what happens to bytes that are not UTF-8, as in `bytes.decode`.
        """
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, without special ids."""
        return b"".join(self.token_bytes(i) for i in _integers(ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, b"" for a special one."""
        table = self._table()
        if not 0 <= token < len(table):
            raise TokenizerError(f"token {token} is outside this vocabulary: ids run from 0 to {self.n_vocab - 1}")
        return table[token]

    def token_str(self, token: int) -> str:
        """One token as readable text: its text, its name if it is special, \\x escapes for part of a character."""
        for name, special in self.special.items():
            if special == token:
                return name
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    @cached_property
    def _widths(self) -> np.ndarray:
        """The number of bytes of every id, int64 [n_vocab]."""
        return np.array([len(data) for data in self._table()], dtype=np.int64)

    def pieces_of(self, text: str, ids: Sequence[int]) -> list[bytes]:
        """The bytes of `text` that each of its `ids` stands for; joined, they are the text.

        If the ids do not spell the text (an unknown word, a tokenizer that normalizes the text), an id stands for the
        characters it was made from. Raises TokenizerError if the tokenizer does not report these.
        """
        if (pieces := self.spelled_by(text, ids)) is not None:
            return pieces
        spans = self._spans(text)
        if spans is None or len(spans) != len(ids):
            raise TokenizerError(
                "the tokenizer changes this text before encoding it and does not report which characters each id "
                "was made from, so the bytes of each id cannot be counted"
            )
        # the text between two spans, such as a dropped space, belongs to the earlier one
        starts = np.maximum.accumulate([0, *(start for start, _ in spans[1:])]).tolist() if ids else []
        return [text[a:b].encode() for a, b in itertools.pairwise([*starts, len(text)])] if ids else []

    def spelled_by(self, text: str, ids: Sequence[int]) -> list[bytes] | None:
        """The bytes of each id if joined they are `text`; None otherwise.

        The bytes of an unknown character are looked up in the text. A blank that another project's tokenizer puts
        before every text is not counted.
        """
        data = text.encode("utf-8")
        if b"".join(pieces := self._spelled(data, ids)) == data:
            return pieces
        if self.lossless or b"".join(pieces := self._spelled(b" " + data, ids)) != b" " + data:
            return None
        return [pieces[0].removeprefix(b" "), *pieces[1:]]

    def _spelled(self, data: bytes, ids: Sequence[int]) -> list[bytes]:
        pieces, at = [], 0
        for token in ids:
            known = token != self.unknown or at >= len(data)
            pieces.append(self.token_bytes(token) if known else data[at : at + _character_length(data[at])])
            at += len(pieces[-1])
        return pieces

    def _spans(self, text: str) -> list[tuple[int, int]] | None:
        """The (start, end) characters of `text` that each id was made from; None if the tokenizer does not report
        them.
        """
        return None

    def stream(self) -> "Stream":
        """A decoder for ids that arrive one at a time."""
        return Stream(self)


class Stream:
    """Decodes ids one at a time into complete characters: all pushed text plus `finish()` equals `decode(ids)`."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes, possibly none."""
        return self._decoder.decode(self.tokenizer.token_bytes(int(token)))

    def breaks_off(self, token: int) -> bool:
        """Whether `token` begins before the character is complete, which becomes U+FFFD in front of it."""
        begun, first = self._decoder.getstate()[0], self.tokenizer.token_bytes(int(token))[:1]
        try:
            codecs.getincrementaldecoder("utf-8")().decode(begun + first)
        except UnicodeDecodeError:
            return bool(begun and first)
        return False

    def finish(self) -> str:
        """The rest: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def _character_length(lead: int) -> int:
    """The number of bytes of the UTF-8 character that begins with this byte."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def which_overlap(
    starts: Sequence[int] | np.ndarray, ends: Sequence[int] | np.ndarray, widths: Sequence[int], marks: Sequence[bool]
) -> list[bool]:
    """Which of the stretches [start, end) contain something of a part that is marked; parts of these widths follow
    one another.
    """
    until = np.concatenate([[0], np.cumsum(np.repeat(marks, widths))])
    return (until[np.asarray(ends, dtype=np.int64)] > until[np.asarray(starts, dtype=np.int64)]).tolist()


def settle_end(content: dict[str, Any], known: Sequence[str], ends: Sequence[str | int]) -> tuple[int, str]:
    """The id that ends a text, and its name where another file had to say it, else "".

    It is the first of the `known` names that a tokenizer.json of this content declares as a special token, else the
    first of `ends`, names and ids from the files beside it, that is one of its added tokens. That one becomes special
    in `content`, because some files declare it as an ordinary one. Raises NoEndError where there is none.
    """
    added = content.get("added_tokens") or []
    special = {token["content"]: token["id"] for token in added if token["special"]}
    for name in known:
        if name in special:
            return special[name], ""
    for end in ends:
        for token in added:
            if end in (token["content"], token["id"]):
                token["special"] = True
                return token["id"], token["content"]
    raise NoEndError(
        f"this tokenizer declares no end-of-text token: expected a special token called {', '.join(known[:-1])} or "
        f"{known[-1]}, or an added token that eos_token in {OPTIONS_FILE} names"
    )


def write_model_ids(folder: Path, tokenizer: Tokenizer) -> None:
    """Write IDS_FILE: the ids that end a text, the separator first, and the one that starts targets; nothing where
    neither is known.
    """
    content: dict[str, Any] = {"ends": tokenizer.ends} if tokenizer.ends else {}
    content |= {} if tokenizer.model_start is None else {"start": tokenizer.model_start}
    if content:
        replace_file(folder / IDS_FILE, (json.dumps(content, indent=2) + "\n").encode())


def options_in(text: str, name: str = OPTIONS_FILE) -> dict[str, Any]:
    """The content of a tokenizer_config.json, or of another file of this `name` beside a tokenizer's.

    Raises TokenizerError where it is no object.
    """
    try:
        return parse_json_object(text, f"{name} beside it")
    except JSONFileError as error:
        raise TokenizerError(str(error)) from None


def token_name(entry: Any) -> str:
    """The name in an entry like eos_token of a tokenizer_config.json, a string or an object; "" where there is none."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else ""


def check_special(tokenizer: "Tokenizer", names: Sequence[str]) -> None:
    """Raise TokenizerError for special names that are too short, repeated or taken."""
    for i, name in enumerate(names):
        if len(name) < 2 or name in names[:i] or name in tokenizer.special:
            raise TokenizerError(f"special token {name!r}: expected two characters or more, named once, not taken yet")


def check_text(text: Any) -> None:
    """Raise TokenizerError for anything but str, and for lone surrogates, which UTF-8 cannot encode."""
    if not isinstance(text, str):
        raise TokenizerError(f"expected text as str, got {type(text).__name__}: decode bytes as UTF-8 first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
        raise TokenizerError(
            f"character {error.start} of the text is the lone surrogate {surrogate}, which is half a character: "
            "replace it, for example by U+FFFD"
        ) from None


def _integers(ids: Any) -> list[int]:
    """Ids from lists, arrays and tensors as plain integers."""
    return ids.tolist() if hasattr(ids, "tolist") else [int(i) for i in ids]


def _hash_of(content: Any) -> str:
    """SHA-256 of a JSON value, independent of its layout."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
