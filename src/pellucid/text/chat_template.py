"""Chat templates: a conversation as the text, and as the ids, that a model was trained to read.

A template is a Jinja text, as Hugging Face keeps it in tokenizer_config.json or chat_template.jinja. It may come from
anywhere, so it is rendered by `pellucid.text.sandbox`. Its markers (`<|im_start|>`) become special ids, but only where
the template writes them: the same characters in a message are encoded as plain text.
"""

import functools
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any

from pellucid.text import sandbox
from pellucid.text.regular import read_regular
from pellucid.text.tokenizers.base import Tokenizer

#: the template of models that are trained here on conversations (OpenAI's ChatML)
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: the special tokens that CHATML writes
CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")
#: who may speak; another role is refused only if a special token could be made of it
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
#: characters of a template; the longest in use have a tenth of it
LONGEST_SOURCE = 1 << 18
#: the files that may hold a template, and how many bytes of them are read
CONFIG, JINJA, LONGEST_CONFIG = "tokenizer_config.json", "chat_template.jinja", 1 << 24
#: seconds of computing that one rendering may take; ordinary ones take a thousandth of it
SECONDS = 1.0
#: a rendering may have so many characters for each of the messages, and so many besides
LONGEST_OUTPUT = (4, 1 << 20)
#: seconds after which a process that does not even start, or answer, is ended
WAITING = 60.0
#: the entries of tokenizer_config.json that a template may use
TOKEN_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
#: stands in the characters of a special token that a message contains: noncharacters, which text does not have
BREAK = "\ufdd0{}\ufdd1"

Message = Mapping[str, Any]


class ChatError(ValueError):
    """Messages that are no conversation, or a chat template that cannot be used for them."""


@dataclass(frozen=True)
class ChatTemplate:
    """Turns messages, `[{"role": "user", "content": "..."}, ...]`, into text and ids.

    source     the Jinja template
    variables  the special tokens that the template may write, such as {"bos_token": "<s>"}

    Templates other than `CHATML` are rendered in a process of their own, which starts when it is first needed.
    Raises ChatError for a template that is too long.
    """

    source: str = CHATML
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: seconds of computing that one rendering may take
    seconds: float = field(default=SECONDS, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not 0 < len(self.source) <= LONGEST_SOURCE:
            size = f"{len(self.source):,} characters" if isinstance(self.source, str) else type(self.source).__name__
            raise ChatError(f"the chat template has {size}: expected a text of 1 to {LONGEST_SOURCE:,} characters")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], source: str | None = None) -> "ChatTemplate | None":
        """The template of a tokenizer_config.json, or `source` (its chat_template.jinja), None if there is neither.

        Of several named templates the one named `default` is taken. Raises ChatError for an entry of another type.
        """
        entry = config.get("chat_template") if source is None else source
        if isinstance(entry, list):
            named = {one.get("name"): one.get("template") for one in entry if isinstance(one, Mapping)}
            if "default" not in named:
                raise ChatError("tokenizer_config.json has several chat templates, but none is named default")
            entry = named["default"]
        if entry is None:
            return None
        values = {role: config.get(role) for role in TOKEN_ROLES}
        names = {role: value.get("content") if isinstance(value, Mapping) else value for role, value in values.items()}
        return cls(entry, {role: name for role, name in names.items() if isinstance(name, str)})

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, now: str | None = None) -> str:
        """The text of a conversation, as transformers' `apply_chat_template` gives it.

        add_generation_prompt  end with what stands before an answer of the assistant
        now                    the date, such as 2026-01-31, for templates that write one; today unless given

        Raises ChatError for messages without role or content, and where the template fails, refuses the messages,
        or exceeds its limits of time, memory and output.
        """
        return self._render([(check_messages(messages), add_generation_prompt)], now)[0]

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        now: str | None = None,
    ) -> list[int]:
        """The ids of a conversation. Special tokens that a message contains are encoded as plain text.

        Raises ChatError as `render` does, and for a role that a special token could be made of.
        """
        checked, marker = self._marked(messages, tokenizer)
        text = self._render([(checked, add_generation_prompt)], now)[0]
        return tokenizer.encode_parts(marker.parts(text))[0]

    def encode_answers(
        self, messages: Sequence[Message], tokenizer: Tokenizer, *, now: str | None = None
    ) -> tuple[list[int], list[bool]]:
        """The ids of a whole conversation, and which of them the assistant writes: its texts, each with what ends it.

        Raises ChatError as `encode` does, and for a template that changes earlier messages when later ones follow.
        """
        checked, marker = self._marked(messages, tokenizer)
        turns = [i for i, message in enumerate(checked) if is_learned(message)]
        calls = [call for i in turns for call in ((checked[:i], False), (checked[:i], True), (checked[: i + 1], False))]
        text, *parts = self._render([(checked, False), *calls], now)
        spans = []
        for i, before, prompt, answered in zip(turns, parts[::3], parts[1::3], parts[2::3], strict=True):
            start = shared_length(text, prompt)
            if not text.startswith(answered) or start < len(before):
                raise ChatError(
                    f"the chat template writes the first {i + 1} messages differently once others follow, so that "
                    "the assistant's texts cannot be told from the rest: train with another template, such as ChatML"
                )
            spans.append((start, marker.end_of_answer(text, start, len(answered))))
        return tokenizer.encode_parts(marker.parts(text, spans))

    def end_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids that end an answer: those that the template writes behind one, its eos_token, and the separator."""
        ids, scored = self.encode_answers(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], tokenizer
        )
        special = {*tokenizer.special.values()}
        behind = [token for token, answer in zip(ids, scored, strict=True) if answer and token in special]
        named = [tokenizer.special[name] for name in [self.variables.get("eos_token")] if name in tokenizer.special]
        return sorted({*behind, *named, *tokenizer.ends})

    def _marked(self, messages: Sequence[Message], tokenizer: Tokenizer) -> tuple[list[dict[str, Any]], "Marker"]:
        """The messages with the special tokens in them broken, and what finds those that the template writes."""
        checked = check_messages(messages)
        for message in checked:
            check_role(message["role"], tokenizer)
        marker = Marker(tokenizer, str(checked))
        return [marker.broken(message) | {"role": message["role"]} for message in checked], marker

    def _render(self, calls: Sequence[tuple[Sequence[Message], bool]], now: str | None = None) -> list[str]:
        """The texts of several conversations, each with or without the beginning of an answer."""
        fixed = {**self.variables} if now is None else {**self.variables, "now": now}
        requests = [fixed | {"messages": part, "add_generation_prompt": prompted} for part, prompted in calls]
        longest = max(sum(len(str(message)) for message in part) for part, _ in calls)
        most = LONGEST_OUTPUT[0] * longest + LONGEST_OUTPUT[1]
        if self.source == CHATML:
            return [sandbox.render_template(chatml(), request, most) for request in requests]
        return process_of(self.source).render(self.source, requests, most, self.seconds)


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in a folder's chat_template.jinja or tokenizer_config.json, None if it has none.

    Raises ChatError for files that cannot be read.
    """
    config, source = {}, None
    path, own = folder / CONFIG, folder / JINJA
    try:
        if path.exists():
            config = json.loads(_read_short(path))
        if own.exists():
            source = _read_short(own).decode("utf-8")
    except (OSError, ValueError, RecursionError) as error:
        raise ChatError(f"the chat template of {folder} cannot be read: {str(error)[:200]}") from None
    if not isinstance(config, dict):
        raise ChatError(f"{path} holds {type(config).__name__}: expected an object with named entries")
    return ChatTemplate.from_config(config, source)


def write_chat_template(folder: Path, template: ChatTemplate, end: str = "") -> Path:
    """Write the template and its tokens into the folder's tokenizer_config.json, whose other entries stay.

    `end` is the name by which the folder's tokenizer is opened where its tokenizer.json does not say it (`named_end`).
    """
    path = folder / CONFIG
    config = json.loads(read_regular(path)) if path.exists() else {}
    config |= {**template.variables, **({"eos_token": end} if end else {}), "chat_template": template.source}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    return path


def _read_short(path: Path) -> bytes:
    if path.is_file() and path.stat().st_size > LONGEST_CONFIG:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes: expected {LONGEST_CONFIG:,} at most")
    return read_regular(path)


def shared_length(one: str, other: str) -> int:
    """How many characters at the beginning of both are the same."""
    if one.startswith(other):
        return len(other)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as dictionaries without empty entries; content in parts of text is joined by line ends.

    Raises ChatError for an empty list, and for a message without role or text.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ChatError(
            'expected a list of at least one message, such as [{"role": "user", "content": "Good morning."}]'
        )
    return [_checked_message(i, message) for i, message in enumerate(messages, 1)]


def _checked_message(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatError(f"message {i} is {type(message).__name__}: expected an object with role and content")
    entries = {str(name): value for name, value in message.items() if value is not None}
    if not isinstance(entries.get("role"), str) or not entries["role"]:
        raise ChatError(f"message {i} has no role: expected one of {', '.join(ROLES)}")
    content = entries.get("content")
    if isinstance(content, list):
        if other := [part for part in content if not isinstance(part, Mapping) or part.get("type") != "text"]:
            kind = other[0].get("type") if isinstance(other[0], Mapping) else type(other[0]).__name__
            raise ChatError(f"message {i} has a part of type {kind!r}: expected parts of type text")
        content = text_of_parts(content)
    if not isinstance(content, str):
        raise ChatError(f"message {i} ({entries['role']}) has no content: expected a text")
    return entries | {"content": content}


def text_of_parts(parts: Sequence[Message]) -> str:
    """The text of a message whose content is given in parts: each on a line of its own."""
    return "\n".join(str(part.get("text", "")) for part in parts)


def is_learned(message: Message) -> bool:
    """Whether a message is an answer to learn: the assistant's, unless its `weight` is 0, as OpenAI's files have it."""
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def check_role(role: str, tokenizer: Tokenizer) -> None:
    """Raise ChatError for an unknown role that is part of a special token: templates write roles inside of markers."""
    inside = [name for name in tokenizer.special if role in name]
    if role not in ROLES and inside:
        raise ChatError(f"there is no role {role!r}: expected one of {', '.join(ROLES)}")


class Marker:
    """Tells the special tokens that a template writes from the same characters in a message.

    Those in messages are broken by characters that no message contains, and mended behind the template.
    """

    def __init__(self, tokenizer: Tokenizer, said: str):
        self.special = {name: i for name, i in tokenizer.special.items() if len(name) > 1 and i != tokenizer.unknown}
        self.mark = next(mark for n in itertools.count() if (mark := BREAK.format(n)) not in said)
        names = "|".join(map(re.escape, sorted(self.special, key=len, reverse=True))) or "(?!)"
        self.markers = re.compile(f"({names})")
        self.beginnings = tuple(name[:k] for name in self.special for k in range(1, len(name)))
        self.ends = tuple(name[k:] for name in self.special for k in range(1, len(name)))
        self.first_characters = re.compile(f"(?={names})(.)", re.DOTALL)

    def broken(self, value: Any) -> Any:
        """The value, the special tokens in its texts broken, and what could become one beside another text."""
        if isinstance(value, Mapping):
            return {name: self.broken(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.broken(one) for one in value]
        if not isinstance(value, str) or not value.strip():
            return value
        text = self.first_characters.sub(lambda match: match[1] + self.mark, value)
        inner = text.strip()
        at = text.index(inner)
        if inner.endswith(self.beginnings):
            inner += self.mark
        if inner.startswith(self.ends):
            inner = self.mark + inner
        return text[:at] + inner + text[at + len(text.strip()) :]

    def end_of_answer(self, text: str, start: int, end: int) -> int:
        """Where an answer ends: behind the last marker, if nothing but white space follows it."""
        last = max((match.end() for match in self.markers.finditer(text, start, end)), default=end)
        return end if text[last:end].strip() else last

    def parts(self, text: str, spans: Sequence[tuple[int, int]] = ()) -> list[tuple[str | int, bool]]:
        """The rendered text as texts and special ids in turn, each with whether it lies in one of the spans."""
        borders = [0, *itertools.chain(*spans), len(text)]
        parts: list[tuple[str | int, bool]] = []
        for k, (start, end) in enumerate(itertools.pairwise(borders)):
            for piece in self.markers.split(text[start:end]):
                if piece in self.special:
                    parts.append((self.special[piece], k % 2 == 1))
                elif plain := piece.replace(self.mark, ""):
                    parts.append((plain, k % 2 == 1))
        return parts


@functools.cache
def chatml() -> Any:
    """CHATML, compiled; it is ours, and needs no process of its own."""
    return sandbox.compile_template(CHATML)


@functools.lru_cache(maxsize=8)
def process_of(source: str) -> "TemplateProcess":
    """The process that renders this template; no other template shares it."""
    return TemplateProcess()


class TemplateProcess:
    """A process that renders templates, started when it is first needed and again after one that had to be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, source: str, requests: Sequence[Mapping[str, Any]], most: int, seconds: float) -> list[str]:
        """The text of the template for each request. Raises ChatError with what is wrong with the template."""
        try:
            line = json.dumps({"source": source, "calls": requests, "most": most, "seconds": seconds})
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatError(f"the messages cannot be given to the chat template: {error}") from None
        with self._lock:
            reply = self._ask(line.encode() + b"\n")
        if reply is None:
            raise ChatError(f"the chat template was stopped: it takes more than {seconds:g} s, or too much memory")
        answer = json.loads(reply)
        if "error" in answer:
            raise ChatError(f"the chat template cannot be used for these messages: {answer['error']}")
        return answer["texts"]

    def _ask(self, line: bytes) -> bytes | None:
        """The process's answer to a line, None where it ended instead."""
        process = self._process if self._process and self._process.poll() is None else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(WAITING, process.kill)  # the process's own limit counts its computing alone
        watch.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = b""
        finally:
            watch.cancel()
        if reply.endswith(b"\n"):
            return reply
        end_process(process)
        return None

    def _start(self) -> "subprocess.Popen[bytes]":
        """A process that knows nothing of this one: isolated, without its environment, and without its files."""
        package = importlib.util.find_spec("jinja2")
        assert package is not None
        assert package.origin is not None
        command = [sys.executable, "-I", sandbox.__file__, str(Path(package.origin).parent.parent)]
        kept = {name: value for name, value in environ.items() if name in ("TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=kept)
        weakref.finalize(self, end_process, self._process)
        return self._process


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """End the process and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
