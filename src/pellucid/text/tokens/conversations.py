"""Conversations as ids on disk, with a mask of those that the assistant writes; and how they are packed into rows."""

import bisect
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text.chat_template import ChatError, ChatTemplate, is_learned
from pellucid.text.read.conversations import ConversationsError, ConversationSplit
from pellucid.text.read.known_scans import hash_of_code
from pellucid.text.read.rows import Progress
from pellucid.text.split import SPLIT_PARTS
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.prepare import prepare_rows, write_rows
from pellucid.text.tokens.store import Tokens, TokenSequence, save_array

#: the day that templates know which write one: a run that is resumed on another day reads the same ids
DAY = "2024-07-26"
#: conversations that are rendered and encoded together
BATCH = 256


class PackedPart:
    """One part of the conversations in rows of `n_ctx` tokens to read, each row as full as whole conversations make it.

    Of a conversation of n tokens n - 1 are read, and all but the first are targets. A longer one than the context is
    cut at its end; one without an answer in what is left is left out.
    """

    def __init__(self, part: TokenSequence, n_ctx: int):
        self.part, self.n_ctx = part, n_ctx
        reads = np.clip(part.lengths - 1, 0, n_ctx)
        first = np.minimum(part.starts + 1, len(part))  # a template may write nothing of a conversation
        before = answers_before(part)
        answers = before[first + reads] - before[first]
        usable = np.flatnonzero(answers > 0)
        self.n_cut = int((part.lengths - 1 > n_ctx).sum())
        self.n_left_out = len(reads) - len(usable)
        self.rows = pack(reads[usable], usable, n_ctx)
        #: targets of each row that are scored
        self.targets_per_row = np.array([answers[row].sum() for row in self.rows], dtype=np.int64)

    @property
    def n_targets(self) -> int:
        """How many targets of all rows are scored: those of one epoch."""
        return int(self.targets_per_row.sum())

    def arrays(self, numbers: np.ndarray, fill: int) -> tuple[np.ndarray, ...]:
        """These rows as inputs, targets, conversation and position of each input, and which targets are scored.

        Each is [len(numbers), n_ctx]. What no conversation fills reads `fill`, and is a conversation of its own.
        """
        shape = len(numbers), self.n_ctx
        inputs, targets = (np.full(shape, fill, dtype=np.int64) for _ in range(2))
        documents, positions = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        counts = np.zeros(shape, dtype=bool)
        ids, is_answer = self.part.ids, _mask_of(self.part)
        for i, number in enumerate(numbers):
            at = 0
            for k, conversation in enumerate(self.rows[number]):
                start = int(self.part.starts[conversation])
                n = min(int(self.part.lengths[conversation]) - 1, self.n_ctx)
                inputs[i, at : at + n] = ids[start : start + n]
                targets[i, at : at + n] = ids[start + 1 : start + 1 + n]
                counts[i, at : at + n] = is_answer[start + 1 : start + 1 + n]
                documents[i, at : at + n] = k
                positions[i, at : at + n] = np.arange(n)
                at += n
            documents[i, at:] = len(self.rows[number])
            positions[i, at:] = np.arange(self.n_ctx - at)
        return inputs, targets, documents, positions, counts


def pack(lengths: np.ndarray, numbers: np.ndarray, capacity: int) -> list[np.ndarray]:
    """Rows of these numbers, whose lengths sum to `capacity` at most: the longest first, each where least is left over
    (best fit decreasing).
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # what is left in a row, and its number, in order
    for i in np.argsort(-lengths, kind="stable"):
        length = int(lengths[i])
        j = bisect.bisect_left(open_rows, (length, -1))
        left, row = open_rows.pop(j) if j < len(open_rows) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(int(numbers[i]))
        if left - length > 1:  # the shortest conversation reads two tokens
            bisect.insort(open_rows, (left - length, row))
    return [np.array(row, dtype=np.int64) for row in rows]


class ConversationTokens(Tokens):
    """Both parts of the conversations as ids, of which each conversation is a document and `answers` marks what the
    assistant writes, each text with the marker that ends it.
    """

    split: ConversationSplit
    template: ChatTemplate

    def __init__(self, *stored: Any):
        super().__init__(*stored)
        self._packed: dict[tuple[str, int], PackedPart] = {}

    def targets(self, name: str) -> TokenSequence:
        """The ids that the assistant writes, of which those of each conversation are a document."""
        part = self.part(name)
        starts = answers_before(part)[part.starts]
        return TokenSequence([part.ids[_mask_of(part)]], starts, self.n_vocab, part.n_bytes, name)

    def packed(self, name: str, n_ctx: int) -> PackedPart:
        """The conversations of a part in rows of `n_ctx` tokens to read, which are laid out once."""
        if (name, n_ctx) not in self._packed:
            self._packed[name, n_ctx] = PackedPart(self.part(name), n_ctx)
        return self._packed[name, n_ctx]


def answers_before(part: TokenSequence) -> np.ndarray:
    """How many of the ids before each position the assistant writes, int64 [n_ids + 1]."""
    return np.concatenate([[0], np.cumsum(_mask_of(part))])


def _mask_of(part: TokenSequence) -> np.ndarray:
    assert part.answers is not None
    return part.answers


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
    tokens = prepare_rows(
        ConversationTokens,
        split,
        tokenizer,
        folder,
        [_code(), DAY, template.source, dict(template.variables), list(template.tools)],
        lambda working: {
            name: _write_part_tokens(split, name, tokenizer, template, working, progress) for name in SPLIT_PARTS
        },
        chat_template=hashlib.sha256(template.source.encode()).hexdigest(),
    )
    tokens.split, tokens.template = split, template
    return tokens


@cache
def _code() -> str:
    """What decides how conversations become ids: this package's code for it, and the library of templates."""
    return hash_of_code((Path(__file__), *Path(__file__).parents[1].glob("*.py")), ("jinja2",))


def _write_part_tokens(
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
    answers = np.concatenate(marks)
    sizes = {"bytes": n_bytes, "answer_tokens": int(answers.sum())}
    return {**entry, **save_array(folder, name, "answers", answers), **sizes}


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
