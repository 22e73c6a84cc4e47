"""Conversations as ids in memory: one flat array, which of its ids the assistant writes, and where each begins."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pellucid.text.chat_template import ChatError, ChatTemplate, is_learned
from pellucid.text.read.conversations import ConversationsError, ConversationSplit
from pellucid.text.read.rows import TOGETHER, Progress
from pellucid.text.split import PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import FORMAT, check_ids, dtype_for

#: the day that templates know which write one: a run that is resumed on another day reads the same ids
DAY = "2024-07-26"


@dataclass(frozen=True)
class ConversationPart:
    """One part of the conversations. Conversation k is ids[starts[k] : starts[k + 1]]; `answers` marks what the
    assistant writes, each text with the marker that ends it. Its length is the number of these ids.
    """

    name: str
    numbers: np.ndarray
    ids: np.ndarray
    answers: np.ndarray
    starts: np.ndarray
    n_bytes: int
    unknown: int = 0

    def __len__(self) -> int:
        return int(self.answers.sum())

    @property
    def lengths(self) -> np.ndarray:
        """The number of ids of each conversation, int64 [conversations]."""
        return np.diff(self.starts)

    def answer_starts(self) -> np.ndarray:
        """Where each conversation begins among the ids that the assistant writes, int64 [conversations]."""
        return np.concatenate([[0], np.cumsum(self.answers)])[self.starts[:-1]]


@dataclass(frozen=True)
class ConversationTokens:
    """Both parts as ids, with a manifest of what they depend on; `key` is a hash of the manifest."""

    manifest: dict[str, Any]
    parts: dict[str, ConversationPart]
    split: ConversationSplit = field(repr=False)
    template: ChatTemplate
    n_vocab: int
    separator: int

    def part(self, name: str) -> ConversationPart:
        """The part called `name`: train or held_out."""
        return self.parts[name]

    @property
    def key(self) -> str:
        """A hash of files, tokenizer, template and split: equal keys mean equal ids."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the ids take."""
        return sum(part.ids.nbytes + part.answers.nbytes + part.starts.nbytes for part in self.parts.values())


def encode_conversations(
    split: ConversationSplit, tokenizer: Tokenizer, template: ChatTemplate, progress: Progress = None
) -> ConversationTokens:
    """Encode both parts of `split` in memory, as `ChatTemplate.encode_answers` does.

    Raises ConversationsError, naming file and line, for a conversation that the template refuses.
    """
    parts = {name: _encode(split, name, tokenizer, template, progress) for name in PARTS}
    about = {"kind": tokenizer.kind, "hash": tokenizer.hash}
    about |= {"n_vocab": tokenizer.n_vocab, "separator": tokenizer.separator}
    counts = {
        name: {
            "conversations": len(part.numbers),
            "tokens": len(part.ids),
            "answer_tokens": len(part),
            "answer_bytes": part.n_bytes,
            "unknown": part.unknown,
        }
        for name, part in parts.items()
    }
    manifest = {
        "format": FORMAT,
        "sources": [vars(source) for source in split.corpus.files],
        "tokenizer": about,
        "chat_template": hashlib.sha256(template.source.encode()).hexdigest(),
        "split": split.to_dict(),
        "parts": counts,
    }
    return ConversationTokens(manifest, parts, split, template, tokenizer.n_vocab, tokenizer.separator)


def _encode(
    split: ConversationSplit, name: str, tokenizer: Tokenizer, template: ChatTemplate, progress: Progress
) -> ConversationPart:
    numbers = split.numbers(name)
    rows, marks, n_bytes, unknown = [], [], 0, 0
    for done, number in enumerate(numbers):
        messages = split.corpus.rows[number]
        try:
            ids, answers = template.encode_answers(messages, tokenizer, now=DAY)
        except ChatError as error:
            raise ConversationsError(f"{split.corpus.place(int(number))}: {error}") from None
        rows.append(np.asarray(ids, dtype=np.int64))
        marks.append(np.asarray(answers, dtype=bool))
        n_bytes += sum(len(message["content"].encode()) for message in messages if is_learned(message))
        if progress and not done % TOGETHER:
            progress("encoding", done, len(numbers))
    ids = np.concatenate(rows)
    check_ids(ids, tokenizer.n_vocab)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    if tokenizer.unknown is not None:
        unknown = int((ids == tokenizer.unknown).sum())
    dtype = dtype_for(tokenizer.n_vocab)
    return ConversationPart(name, numbers, ids.astype(dtype), np.concatenate(marks), starts, n_bytes, unknown)
