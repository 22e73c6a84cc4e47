"""Chat templates: a conversation as the text, and as the ids, that a model was trained to read.

A template is a Jinja text, as Hugging Face keeps it in tokenizer_config.json or chat_template.jinja. It may come from
anywhere, so it is rendered by `pellucid.text.sandbox`. It sees the messages as they are. Its markers (`<|im_start|>`)
become special ids, but only where the template writes them: the same characters in a message are encoded as plain text.
"""

import bisect
import functools
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import environ
from pathlib import Path
from typing import Any

from pellucid.json_files import MOST_BYTES, read_json_file, read_regular
from pellucid.text import sandbox
from pellucid.text.sandbox import ROLES, Rendered
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.beside import named_tokens, options_beside

#: the template of models that are trained here on conversations (OpenAI's ChatML)
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: the special tokens that CHATML writes
CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")
#: characters of a template; the longest in use have a tenth of it
LONGEST_SOURCE = 1 << 18
#: the files that may hold a template
CONFIG, JINJA = "tokenizer_config.json", "chat_template.jinja"
#: seconds of computing that one rendering may take; ordinary ones take a thousandth of it
RENDERING_SECONDS = 1.0
#: a rendering may have so many characters for each of the messages, and so many besides
LONGEST_OUTPUT = (4, 1 << 20)
#: seconds after which a process that does not even start, or answer, is ended
WAITING = 60.0

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
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False, hash=False)
    """JSON descriptions of the tools that an answer may call"""
    seconds: float = field(default=RENDERING_SECONDS, repr=False, compare=False)
    """seconds of computing that one rendering may take"""

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
        return cls(entry, named_tokens(config))

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, now: str | None = None) -> str:
        """The text of a conversation, as transformers' `apply_chat_template` gives it.

        add_generation_prompt  end with what stands before an answer of the assistant
        now                    the date, such as 2026-01-31, for templates that write one; today unless given

        Raises ChatError for messages without role or content, and where the template fails, refuses the messages,
        or exceeds its limits of time, memory and output.
        """
        return self._render([(check_messages(messages), add_generation_prompt)], now)[0][0]

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        now: str | None = None,
    ) -> list[int]:
        """The ids of a conversation. Special tokens that a message contains are encoded as plain text.

        Raises ChatError as `render` does, and for an unknown role that is part of a special token's name.
        """
        checked = check_messages(messages)
        check_roles(checked, tokenizer)
        rendered, marker = self._render([(checked, add_generation_prompt)], now)[0], Marker(tokenizer)
        self._check_origins(rendered, (checked, add_generation_prompt), marker, now)
        return tokenizer.encode_parts(split_at_markers(rendered[0], marker.find(*rendered)))[0]

    @property
    def reads_tools(self) -> bool:
        """Whether the template mentions tools."""
        return re.search(r"\btools\b", self.source) is not None

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> "ChatTemplate":
        """The template that writes these tools, where it reads any."""
        if not tools or not self.reads_tools:
            return self
        return replace(self, tools=tuple(tools))

    def encode_answers(
        self, messages: Sequence[Message], tokenizer: Tokenizer, *, now: str | None = None
    ) -> tuple[list[int], list[bool]]:
        """The ids of a whole conversation, and which of them the assistant writes: its texts, each with what ends it.

        Raises ChatError as `encode` does, and for a template that changes earlier messages when later ones follow.
        """
        return self.encode_answers_batch([messages], tokenizer, now=now)[0]

    def encode_answers_batch(
        self, conversations: Sequence[Sequence[Message]], tokenizer: Tokenizer, *, now: str | None = None
    ) -> list[tuple[list[int], list[bool]]]:
        """What `encode_answers` gives for each conversation, rendered and encoded together."""
        checked, marker = [check_messages(messages) for messages in conversations], Marker(tokenizer)
        rows = []
        for messages in checked:
            check_roles(messages, tokenizer)
        for messages, rendered in zip(checked, self._render([(one, False) for one in checked], now), strict=True):
            self._check_origins(rendered, (messages, False), marker, now)
            text, markers = rendered[0], marker.find(*rendered)
            areas = self._answers_like_others(messages, rendered, now) or self._answers(messages, text, now)
            spans = [(start, end_of_answer(text, markers, start, end)) for start, end in areas]
            rows.append(split_at_markers(text, markers, spans))
        return tokenizer.encode_parts_batch(rows)

    def _check_origins(
        self, rendered: Rendered, call: tuple[Sequence[Message], bool], marker: "Marker", now: str | None
    ) -> None:
        """Raise ChatError where the template writes the name of a special token in characters of unknown origin.

        The name may be that of a message or a tool, which is text. It is the template's own if the text has it even
        when they do not.
        """
        if names := marker.of_unknown_origin(*rendered):
            pattern, (messages, prompted) = pattern_of_names(tuple(sorted(names, key=len, reverse=True))), call
            others = [without_role_names(message, pattern) | {"role": message["role"]} for message in messages]
            masked = replace(self, tools=without_role_names(self.tools, pattern))
            names = marker.of_unknown_origin(*masked._render([(others, prompted)], now)[0])
        if names:
            raise ChatError(
                f"the chat template writes {min(names)} by an operation, such as format, behind which its own text "
                "cannot be told from that of a message: join the parts with + or ~ instead"
            )

    def _answers(self, messages: Sequence[Message], text: str, now: str | None) -> list[tuple[int, int]]:
        """Where each learned answer starts in the text, and where the text of the messages up to it ends: three
        renderings for each.
        """
        turns = [i for i, message in enumerate(messages) if is_learned(message)]
        calls = [
            call for i in turns for call in ((messages[:i], False), (messages[:i], True), (messages[: i + 1], False))
        ]
        parts = [part for part, _ in self._render(calls, now)]
        areas = []
        for i, before, prompt, answered in zip(turns, parts[::3], parts[1::3], parts[2::3], strict=True):
            start = shared_length(text, prompt)
            if not text.startswith(answered) or start < len(before):
                raise ChatError(
                    f"the chat template writes the first {i + 1} messages differently once others follow, so that "
                    "the assistant's texts cannot be told from the rest: train with another template, such as ChatML"
                )
            areas.append((start, len(answered)))
        return areas

    def _answers_like_others(
        self, messages: Sequence[Message], rendered: Rendered, now: str | None
    ) -> list[tuple[int, int]] | None:
        """What `_answers` gives, without rendering: around each answer stands what stands around that of another
        conversation of the same roles.

        None where the messages have other entries than role and content, or the text is not as expected.
        """
        text, stretches = rendered
        if not all(message.keys() <= {"role", "content", "weight"} for message in messages):
            return None
        roles = tuple(message["role"] for message in messages)
        around = around_answers(self, roles, now) if all(role in ROLES for role in roles) else None
        spans = places_of_contents(stretches)
        areas = []
        for i, message in enumerate(messages):
            if around is None or not is_learned(message):
                continue
            (before, behind), (start, end) = around[i], spans.get(i, (0, 0))
            intact = start < end and text[start:end].strip() == message["content"].strip()
            if not intact or not text.startswith(behind, end) or not text.endswith(before, 0, start):
                return None
            areas.append((start - len(before), end + len(behind)))
        return None if around is None else areas

    def end_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids that end an answer: those that the template writes behind one, its eos_token, and the separator."""
        ids, scored = self.encode_answers(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], tokenizer
        )
        special = {*tokenizer.special.values()}
        behind = [token for token, answer in zip(ids, scored, strict=True) if answer and token in special]
        named = [tokenizer.special[name] for name in [self.variables.get("eos_token")] if name in tokenizer.special]
        return sorted({*behind, *named, *tokenizer.ends})

    def _render(self, calls: Sequence[tuple[Sequence[Message], bool]], now: str | None = None) -> list[Rendered]:
        """The texts of several conversations, each with or without the beginning of an answer."""
        # as in transformers, a template may ask whether there are tools or documents
        fixed = {"tools": list(self.tools) or None, "documents": None, **self.variables} | (
            {} if now is None else {"now": now}
        )
        requests = [fixed | {"messages": part, "add_generation_prompt": prompted} for part, prompted in calls]
        longest = max((sum(len(str(message)) for message in part) for part, _ in calls), default=0)
        longest += len(str(self.tools))
        most = LONGEST_OUTPUT[0] * longest + LONGEST_OUTPUT[1]
        if self.source == CHATML:
            return [sandbox.render_template(chatml(), request, most) for request in requests]
        return process_of(self.source).render(self.source, requests, most, self.seconds)


@functools.lru_cache(maxsize=1024)
def around_answers(
    template: ChatTemplate, roles: tuple[str, ...], now: str | None
) -> dict[int, tuple[str, str]] | None:
    """What the template writes before and behind each answer in a conversation of these roles: between where the answer
    starts and its content, and between that and the end of its message. None where the template refuses it.
    """
    messages = [{"role": role, "content": f"Text {k} here."} for k, role in enumerate(roles)]
    turns = [i for i, message in enumerate(messages) if is_learned(message)]
    try:
        text, stretches = template._render([(messages, False)], now)[0]
        areas, spans = template._answers(messages, text, now), places_of_contents(stretches)
    except ChatError:
        return None
    if any(text[slice(*spans.get(i, (0, 0)))] != messages[i]["content"] for i in turns):
        return None
    return {
        i: (text[start : spans[i][0]], text[spans[i][1] : end]) for i, (start, end) in zip(turns, areas, strict=True)
    }


def places_of_contents(stretches: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Where the text of each message, whose role is a known one, starts and ends; those that are cut are left out."""
    spans: dict[int, tuple[int, int]] = {}
    at, cut = 0, set()
    for origin, length in stretches:
        number = origin - sandbox.FIRST_MESSAGE
        if number >= 0:
            cut |= {number} & spans.keys()
            spans[number] = (at, at + length)
        at += length
    return {number: span for number, span in spans.items() if number not in cut}


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in a folder's chat_template.jinja or tokenizer_config.json, None if it has none.

    Raises ChatError for files that cannot be read.
    """
    config, source = {}, None
    path, own = folder / CONFIG, folder / JINJA
    try:
        if path.exists():
            config = options_beside(folder)
        if own.exists():
            source = read_regular(own, MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ChatError(f"the chat template of {folder} cannot be read: {str(error)[:200]}") from None
    return ChatTemplate.from_config(config, source)


def write_chat_template(folder: Path, template: ChatTemplate, end: str = "") -> Path:
    """Write the template and its tokens into the folder's tokenizer_config.json, whose other entries stay.

    `end` is the name by which the folder's tokenizer is opened where its tokenizer.json does not say it (`named_end`).
    """
    path = folder / CONFIG
    config = read_json_file(path) if path.exists() else {}
    config |= {**template.variables, **({"eos_token": end} if end else {}), "chat_template": template.source}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    return path


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


def check_roles(messages: Sequence[Message], tokenizer: Tokenizer) -> None:
    """Raise ChatError for an unknown role that is part of the name of a special token."""
    for role in {message["role"] for message in messages} - {*ROLES}:
        if any(role in name for name in tokenizer.special):
            raise ChatError(f"there is no role {role!r}: expected one of {', '.join(ROLES)}")


class Marker:
    """Finds the special tokens that a template writes: none of their characters comes from a message."""

    def __init__(self, tokenizer: Tokenizer):
        self.special = {name: i for name, i in tokenizer.special.items() if len(name) > 1 and i != tokenizer.unknown}
        self.names = pattern_of_names(tuple(sorted(self.special, key=len, reverse=True)))

    def find(self, text: str, stretches: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
        """Where each special token that the template writes starts and ends, and its id."""
        return [(*match.span(), self.special[match[0]]) for match in self._names_in(sandbox.TEMPLATE, text, stretches)]

    def of_unknown_origin(self, text: str, stretches: Sequence[Sequence[int]]) -> set[str]:
        """The names of special tokens in characters whose origin an operation has lost."""
        return {match[0] for match in self._names_in(sandbox.UNKNOWN, text, stretches)}

    def _names_in(self, wanted: int, text: str, stretches: Sequence[Sequence[int]]) -> Iterator[re.Match[str]]:
        at = 0
        for origin, length in stretches:
            if origin == wanted:
                yield from self.names.finditer(text, at, at + length)
            at += length


def without_role_names(value: Any, pattern: re.Pattern[str]) -> Any:
    """Messages or tools with as many other characters in the place of each of the names that `pattern` finds."""
    if isinstance(value, str):
        return pattern.sub(lambda match: "x" * len(match[0]), value)
    if isinstance(value, Mapping):
        return {without_role_names(name, pattern): without_role_names(one, pattern) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_role_names(one, pattern) for one in value]
    return value


@functools.lru_cache(maxsize=8)
def pattern_of_names(names: tuple[str, ...]) -> re.Pattern[str]:
    """The expression that finds these names, the first of those that start at the same place."""
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def end_of_answer(text: str, markers: Sequence[tuple[int, int, int]], start: int, end: int) -> int:
    """Where an answer ends: behind the last marker, if nothing but white space follows it."""
    inside = markers[bisect.bisect_left(markers, (start,)) : bisect.bisect_left(markers, (end,))]
    last = inside[-1][1] if inside else end
    return end if text[last:end].strip() else last


def split_at_markers(
    text: str, markers: Sequence[tuple[int, int, int]], spans: Sequence[tuple[int, int]] = ()
) -> list[tuple[str | int, bool]]:
    """The text as texts and special ids in turn, each with whether it lies in one of the spans."""
    special = {start: (end, token) for start, end, token in markers}
    within = {position for start, end, _ in markers for position in range(start + 1, end)}
    borders = {0, len(text), *itertools.chain(*spans), *itertools.chain(*(marker[:2] for marker in markers))}
    parts: list[tuple[str | int, bool]] = []
    for start, end in itertools.pairwise(sorted(borders - within)):
        number = bisect.bisect_right(spans, (start, len(text))) - 1
        inside = number >= 0 and end <= spans[number][1]
        parts.append((special[start][1] if start in special else text[start:end], inside))
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

    def render(self, source: str, requests: Sequence[Mapping[str, Any]], most: int, seconds: float) -> list[Rendered]:
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
        variables = {name: value for name, value in environ.items() if name in ("TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=variables)
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
