"""Conversations, for training a model to answer.

    .jsonl   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
             {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}  (ShareGPT)

There is one conversation on each line, in UTF-8 (or the encoding of a byte order mark); other fields are ignored and
blank lines are skipped. Files may be compressed (.gz, .zst). An error names the file and line of an unreadable
conversation.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pellucid.text.chat_template import check_messages, is_learned
from pellucid.text.read.chunks import DocumentError
from pellucid.text.read.find import ReadOptions, find_files
from pellucid.text.read.formats import is_turns
from pellucid.text.read.rows import (
    Progress,
    RowFormat,
    Rows,
    RowSplit,
    held_out_rows,
    lines_of_file,
    read_json_object,
    read_rows,
    row_suffix,
    rows_of_named_files,
)

Messages = list[dict[str, Any]]
#: files of a folder that are looked into to find out what they hold
LOOKED_INTO = 3
#: the roles of those who speak in ShareGPT's rows
ROLE_OF = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


class ConversationsError(DocumentError):
    """A file of conversations is unreadable, or there are too few of them."""


class Conversations(Rows[Messages]):
    """Conversations in the order of their files."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all messages in UTF-8."""
        return sum(map(content_bytes, self.rows))


def content_bytes(messages: Messages) -> int:
    """Bytes of the messages' texts in UTF-8."""
    return sum(len(message["content"].encode()) for message in messages)


def read_conversations(
    paths: str | Path | Sequence[str | Path],
    held_out: Sequence[str | Path] = (),
    progress: Progress = None,
    reading: ReadOptions | None = None,
) -> Conversations:
    """The conversations of these .jsonl files and folders, and those of `held_out`; see `read_rows`. Raises
    ConversationsError.
    """
    return read_rows(Conversations, CONVERSATIONS, paths, held_out, progress, reading)


def holds_conversations(paths: Sequence[str], reading: ReadOptions | None = None) -> bool:
    """Whether the first line of the first .jsonl files of these paths is a conversation, and no file is another. Of the
    `reading` options, `include` and `exclude` apply; empty files count for nothing.
    """
    try:
        files_by_name = find_files([Path(path) for path in paths], [], reading)
        files = [files_by_name[name].path for name in sorted(files_by_name)]
        others = (file for file in files if row_suffix(file) not in CONVERSATIONS.readers)
        if any(not file.is_file() or file.stat().st_size for file in others):  # usually the first of them says so
            return False
        files = [file for file in files if row_suffix(file) in CONVERSATIONS.readers]
        if not all(file.is_file() for file in files):  # opening a named pipe would wait for its writer
            return False
        files = [file for file in files if file.stat().st_size]
        first_rows = filter(None, map(_first_row, files))
        are_turns = [_is_conversation(row) for row in itertools.islice(first_rows, LOOKED_INTO)]
        return bool(are_turns) and all(are_turns)
    except (OSError, ValueError, RecursionError):
        return False  # whoever reads the files says what is wrong with them


def _first_row(file: Path) -> str:
    """The first line that is not blank, "" where there is none."""
    with file.open("rb") as opened:
        return next((line.decode() for line in lines_of_file(file, opened) if line.strip()), "")


def _is_conversation(line: str) -> bool:
    row = json.loads(line)
    return isinstance(row, dict) and (isinstance(row.get("messages"), list) or is_turns(row.get("conversations")))


def _messages(line: str) -> Messages:
    row = read_json_object(line, "an object with the field messages")
    turns = row.get("messages")
    if not isinstance(turns, list) and is_turns(row.get("conversations")):
        turns = [_message_of(turn) for turn in row["conversations"]]
    if not isinstance(turns, list):
        raise ValueError(f"no field 'messages', expected a list; the fields are {', '.join(row) or 'none'}")
    messages = check_messages(turns)
    for number, message in enumerate(messages, 1):
        if message["role"] == "assistant" and message.get("weight", 1) not in (0, 1):
            raise ValueError(f"message {number} has the weight {message['weight']}, expected 1, or 0 to not learn it")
    if not any(is_learned(message) and message["content"] for message in messages):
        raise ValueError("no message of the assistant, expected at least one, whose text is learned")
    json.dumps(messages, ensure_ascii=False).encode()
    return messages


def _message_of(turn: Any) -> Any:
    """A turn of ShareGPT's, {"from": ..., "value": ...}, as a message; others as they are."""
    if not isinstance(turn, dict) or "from" not in turn:
        return turn
    if str(turn["from"]) not in ROLE_OF:
        raise ValueError(f"a turn from {turn['from']!r}, expected one of {', '.join(ROLE_OF)}")
    return {"role": ROLE_OF[str(turn["from"])], "content": turn.get("value"), "weight": turn.get("weight")}


CONVERSATIONS = RowFormat(
    "conversations", ".jsonl", "conversations are read from .jsonl files", {".jsonl": _messages}, ConversationsError
)


# Setting conversations aside --------------------------------------------------------------------


class ConversationSplit(RowSplit[Conversations]):
    """Conversations, of which some are held out."""

    def texts(self, part: str) -> Iterator[str]:
        """Every message of one part, such as the tokenizer is trained on."""
        for k in self.numbers(part):
            yield from (message["content"] for message in self.corpus.rows[k])

    @property
    def n_bytes(self) -> int:
        """Bytes of the conversations, without the files that were named to be held out."""
        return sum(content_bytes(self.corpus.rows[k]) for k in self.numbers("train")) + (
            0 if self.has_named_files else sum(content_bytes(self.corpus.rows[k]) for k in self.numbers("held_out"))
        )


def split_conversations(conversations: Conversations, held_out: float = 0.1, seed: int = 0) -> ConversationSplit:
    """Hold out about `held_out` of the bytes: whole conversations, in the order of a hash with the seed.

    All conversations that begin with the same messages, up to the first answer, are on one side; where all of them do,
    as where the assistant speaks first, those that are the same as a whole. If files were named to be held out,
    exactly their conversations are. Raises ConversationsError as `held_out_rows` does.
    """
    rows = conversations.rows
    keys = [json.dumps(list(itertools.takewhile(lambda m: m["role"] != "assistant", messages))) for messages in rows]
    of_key = "opening"
    if len(set(keys)) < 2:
        keys, of_key = [json.dumps(messages) for messages in rows], "conversation"
    if any(file.held_out for file in conversations.files):
        chosen = rows_of_named_files(conversations, keys, of_key)
        return ConversationSplit(conversations, 0.0, 0, *chosen, f"{of_key}s")
    sizes = [content_bytes(messages) for messages in rows]
    chosen = held_out_rows(CONVERSATIONS, keys, sizes, held_out, seed, of_key)
    return ConversationSplit(conversations, held_out, seed, *chosen, f"{of_key}s")
