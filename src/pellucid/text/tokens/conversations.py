"""Conversations as ids on disk: one flat array, which of its ids the assistant writes, and where each begins."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.chat_template import ChatError, ChatTemplate, is_learned
from pellucid.text.read.conversations import ConversationsError, ConversationSplit
from pellucid.text.read.known_scans import hash_of_code
from pellucid.text.read.rows import Progress
from pellucid.text.split import PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import save_array
from pellucid.text.tokens.stored_rows import RowTokens, StoredRows, manifest_of, prepare_rows, write_rows

#: the day that templates know which write one: a run that is resumed on another day reads the same ids
DAY = "2024-07-26"
#: conversations that are rendered and encoded together
BATCH = 256


@dataclass(frozen=True)
class ConversationPart(StoredRows):
    """One part of the conversations, of which each is a row; `answers` marks what the assistant writes, each text with
    the marker that ends it. Its length is the number of these ids, and `n_bytes` the bytes of their texts.
    """

    name: str
    numbers: np.ndarray

    def __len__(self) -> int:
        return int(self.answers.sum())

    @property
    def answers(self) -> np.ndarray:
        assert self.stored.answers is not None
        return self.stored.answers

    def answer_starts(self) -> np.ndarray:
        """Where each conversation begins among the ids that the assistant writes, int64 [conversations]."""
        return np.concatenate([[0], np.cumsum(self.answers)])[self.starts[:-1]]


@dataclass(frozen=True)
class ConversationTokens(RowTokens[ConversationSplit, ConversationPart]):
    """Both parts of the conversations as ids."""

    template: ChatTemplate


def prepare_conversations(
    split: ConversationSplit,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    folder: str | Path,
    progress: Progress = None,
) -> ConversationTokens:
    """Both parts of `split` in `folder`/tokens-KEY, encoded as `ChatTemplate.encode_answers` does unless they are there
    already; a damaged folder is written again, and `notes` of the result say so.

    Raises ConversationsError, naming file and line, for a conversation that the template refuses.
    """
    decided_by = [_code(), DAY, template.source, dict(template.variables), list(template.tools)]
    stored, notes = prepare_rows(
        split,
        tokenizer,
        folder,
        decided_by,
        lambda working: {name: _write_part(split, name, tokenizer, template, working, progress) for name in PARTS},
    )
    about = stored.manifest["parts"]
    parts = {
        name: ConversationPart(stored.part(name), about[name]["unknown"], name, split.numbers(name)) for name in PARTS
    }
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
    manifest = manifest_of(split, tokenizer, counts, chat_template=hashlib.sha256(template.source.encode()).hexdigest())
    return ConversationTokens(manifest, parts, split, tokenizer.n_vocab, tokenizer.separator, notes, template)


@cache
def _code() -> str:
    """What decides how conversations become ids: this package's code for it, and the library of templates."""
    return hash_of_code((Path(__file__), *Path(__file__).parents[1].glob("*.py")), ("jinja2",))


def _write_part(
    split: ConversationSplit,
    name: str,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Write one part, and return its entry in the manifest."""
    numbers, marks, n_bytes = split.numbers(name), [np.zeros(0, dtype=bool)], 0

    def batches() -> Iterator[list[Sequence[int]]]:
        nonlocal n_bytes
        for done in range(0, len(numbers), BATCH):
            batch = numbers[done : done + BATCH]
            encoded = _encode_batch(split, batch, tokenizer, template)
            yield [row for row, _ in encoded]
            marks.extend(np.asarray(answers, dtype=bool) for _, answers in encoded)
            learned = (one for number in batch for one in split.corpus.rows[number] if is_learned(one))
            n_bytes += sum(len(message["content"].encode()) for message in learned)
            if progress:
                progress("encoding", done, len(numbers))

    entry = write_rows(folder, name, tokenizer, batches())
    return {**entry, **save_array(folder, name, "answers", np.concatenate(marks)), "bytes": n_bytes}


def _encode_batch(
    split: ConversationSplit, numbers: np.ndarray, tokenizer: Tokenizer, template: ChatTemplate
) -> list[tuple[list[int], list[bool]]]:
    """These conversations, encoded together; where one is refused, one at a time to name it."""
    try:
        return template.encode_answers_batch([split.corpus.rows[k] for k in numbers], tokenizer, now=DAY)
    except ChatError as error:
        if len(numbers) == 1:
            raise ConversationsError(f"{split.corpus.place(int(numbers[0]))}: {error}") from None
        return [_encode_batch(split, numbers[k : k + 1], tokenizer, template)[0] for k in range(len(numbers))]
