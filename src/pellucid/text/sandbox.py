"""Render Jinja templates from outside: in a process of its own, with limits on time, memory and output.

Jinja's sandbox keeps a template from the attributes of Python's objects, but not from running for ever or from filling
the memory: `'a' * 10**10` is one instruction. Only a process that the system stops holds such a limit. The file runs by
its path, without the rest of the package, so that starting it costs a tenth of a second.

A template sees the messages as they are. Every character of its output carries its origin (`TracedText`), so that a
special token that the template writes is told from the same characters in a message.
"""

import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

#: bytes of memory that the process may ask for. Linux holds the limit; macOS and Windows know no such limit
MEMORY_BYTES = 1 << 29
#: origins of a character: the template or its variables; unknown; message k has the origin FIRST_MESSAGE + k
TEMPLATE, UNKNOWN, FIRST_MESSAGE = 0, 1, 2
#: who may speak; these names count as the template's, because templates write them inside of markers
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
#: a stretch of characters of the same origin
_STRETCH = re.compile(r"(.)\1*", re.DOTALL)

#: a rendered text, and its stretches as [origin, number of characters]
Rendered = tuple[str, list[list[int]]]


class OutputLimitError(ValueError):
    """A template wrote more than it may."""


class TracedText(str):
    """A text whose every character has an origin, kept by the operations that templates use.

    `_origins` has one character for each of the text, `chr(origin)`. What an operation that is not listed here returns
    is a plain str, whose origin is unknown: it can yield no special token, and a template that writes the name of one
    in it is refused.
    """

    _origins: str

    def __new__(cls, text: str, origins: str | None = None) -> "TracedText":
        traced = super().__new__(cls, text)
        traced._origins = chr(UNKNOWN) * len(text) if origins is None else origins
        return traced

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return join_traced((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return join_traced((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, n: Any) -> "TracedText":
        return TracedText(str.__mul__(self, n), self._origins * n)

    def __rmul__(self, n: Any) -> "TracedText":
        return self * n

    def __getitem__(self, key: Any) -> "TracedText":
        return TracedText(str.__getitem__(self, key), self._origins[key])

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __mod__(self, values: Any) -> str:
        return self._of_one_origin(str.__mod__(self, values), *(values if isinstance(values, tuple) else (values,)))

    def lstrip(self, characters: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None) -> str:
        return self[: len(str.rstrip(self, characters))]

    def strip(self, characters: str | None = None) -> str:
        return self.lstrip(characters).rstrip(characters)

    def removeprefix(self, prefix: str) -> str:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> str:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: int = -1) -> Any:
        return self._located(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: int = -1) -> Any:
        return self._located(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> Any:
        return self._located(str.splitlines(self, keepends), None)

    def partition(self, sep: str) -> Any:
        return tuple(self._located(str.partition(self, sep), ""))

    def rpartition(self, sep: str) -> Any:
        return tuple(self._located(str.rpartition(self, sep), ""))

    def replace(self, old: str, new: str, count: Any = -1) -> str:
        return join_traced(self.split(old, count), new) if old else str.replace(self, old, new, count)

    def join(self, texts: Iterable[str]) -> str:
        return join_traced(texts, self)

    def lower(self) -> str:
        return self._of_one_origin(str.lower(self))

    def upper(self) -> str:
        return self._of_one_origin(str.upper(self))

    def capitalize(self) -> str:
        return self._of_one_origin(str.capitalize(self))

    def title(self) -> str:
        return self._of_one_origin(str.title(self))

    def _of_one_origin(self, text: str, *values: Any) -> str:
        """This text, made of this one and of `values`, with their origin if all of them have the same."""
        origins = {*self._origins, *(origin for value in values for origin in origins_of(str(value)))}
        return TracedText(text, origins.pop() * len(text)) if len(origins) == 1 else text

    def _located(self, pieces: Sequence[str], sep: str | None) -> list[str]:
        """These pieces, which follow one another in this text with `sep`, or white space for None, between them."""
        traced, at = [], 0
        for piece in pieces:
            at = str.find(self, piece, at) if sep is None else at
            traced.append(self[at : at + len(piece)])
            at += len(piece) + len(sep or "")
        return traced


def origins_of(text: str) -> str:
    """The origins of a text's characters, one character for each."""
    return text._origins if isinstance(text, TracedText) else chr(UNKNOWN) * len(text)


def join_traced(texts: Iterable[str], between: str = "") -> TracedText:
    """The joined texts with their origins."""
    listed = list(texts)
    return TracedText(str.join(between, listed), origins_of(between).join(map(origins_of, listed)))


def traced(value: Any, origin: int) -> Any:
    """The value with this origin for all texts in it; the names of entries have none."""
    if isinstance(value, str):
        return TracedText(value, chr(origin) * len(value))
    if isinstance(value, Mapping):
        return {name: traced(one, origin) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [traced(one, origin) for one in value]
    return value


def traced_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A message whose texts have its number as their origin; a known role is the template's."""
    entries = traced(message, FIRST_MESSAGE + number)
    return entries | ({"role": traced(message["role"], TEMPLATE)} if message["role"] in ROLES else {})


def compile_template(source: str) -> Any:
    """The template in the environment that transformers gives chat templates: Jinja's immutable sandbox with
    trim_blocks, lstrip_blocks, break and continue, raise_exception, strftime_now, tojson, and the tag `generation`.
    Its own texts have the origin TEMPLATE.

    Raises jinja2.TemplateError for a template that is not valid.
    """
    from jinja2 import TemplateError, nodes, pass_environment
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.filters import make_attrgetter
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class GenerationTag(Extension):
        """{% generation %} marks what an assistant writes. The marks are not needed here; what is inside is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class PlainNamespace(Namespace):
        """namespace(...) without attributes that begin with an underscore."""

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise SecurityError(f"a namespace has no attribute {name!r}")
            super().__setitem__(name, value)

    def make_namespace(*args: Any, **attributes: Any) -> Namespace:
        namespace = PlainNamespace()
        for name, value in dict(*args, **attributes).items():
            namespace[name] = value
        return namespace

    def raise_exception(message: Any) -> None:
        raise TemplateError(str(message))

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    @pass_environment
    def join(environment: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> TracedText:
        values = value if attribute is None else map(make_attrgetter(environment, attribute), value)
        return join_traced(map(str, values), str(d))

    class TracingGenerator(CodeGenerator):
        """Compiles every text of the template as a TracedText, and `~` as a join that keeps origins."""

        def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
            if isinstance(node.value, str):
                self.write(f"environment.own({node.value!r})")
            else:
                super().visit_Const(node, frame)

        def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
            self.write(f"environment.own({node.data!r})")

        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
            self.write("environment.concat(map(str, (")
            for one in node.nodes:
                self.visit(one, frame)
                self.write(", ")
            self.write(")))")

        def _output_const_repr(self, group: Iterable[Any]) -> str:
            return f"environment.own({super()._output_const_repr(group)})"

    class Environment(ImmutableSandboxedEnvironment):
        code_generator_class = TracingGenerator
        concat = staticmethod(join_traced)
        own = staticmethod(functools.cache(lambda text: traced(text, TEMPLATE)))

    # without the optimizer, which would fold texts into constants of other types
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], optimized=False
    )
    environment.filters |= {"tojson": tojson, "join": join}
    environment.globals |= {"raise_exception": raise_exception, "namespace": make_namespace}
    return environment.from_string(source)


def render_template(template: Any, variables: Mapping[str, Any], most: int) -> Rendered:
    """The template's text. `now`, an ISO date among the variables, is the day that strftime_now knows, today if absent.

    Raises OutputLimitError for more than `most` characters.
    """
    values = dict(variables)
    now, messages, tools = values.pop("now", None), values.pop("messages"), values.pop("tools", None)
    values = traced(values, TEMPLATE) | {"messages": [traced_message(one, k) for k, one in enumerate(messages)]}
    # a client writes them, as it writes messages
    values["tools"] = traced(tools, UNKNOWN)

    def strftime_now(form: str) -> str:
        return (datetime.fromisoformat(now) if now else datetime.now()).strftime(form)

    blocks, length = [], 0
    for block in template.generate(**values, strftime_now=strftime_now):
        length += len(block)
        if length > most:
            raise OutputLimitError(f"it writes more than {most:,} characters")
        blocks.append(block)
    origins = "".join(map(origins_of, blocks))
    stretches = [[ord(match[1]), match.end() - match.start()] for match in _STRETCH.finditer(origins)]
    return "".join(blocks), stretches


def limit_process() -> None:
    """Take from this process what a template never needs: memory above MEMORY_BYTES, files, processes, core dumps."""
    with suppress(ImportError):  # Windows has no such limits
        import resource

        limits = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0}
        for name, limit in limits.items():
            with suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (limit, limit))


def limit_time(seconds: float) -> None:
    """Have the system end this process after so many seconds of computing; 0 takes the limit away."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def answer(templates: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The rendered texts of one request, or what is wrong."""
    source, texts = request["source"], []
    try:
        for variables in request["calls"]:
            limit_time(request["seconds"])
            if source not in templates:
                templates[source] = compile_template(source)
            texts.append(render_template(templates[source], variables, request["most"]))
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "it is nested too deeply, or calls itself without end"}
    except Exception as error:  # whatever a template from outside does is an answer
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    finally:
        limit_time(0)
    return {"texts": texts}


def answer_requests() -> None:
    """Answer requests, one JSON object on each line, until the input ends."""
    compile_template("{{ 1 }}").render()  # everything is imported before files are out of reach
    limit_process()
    templates: dict[str, Any] = {}
    for line in sys.stdin.buffer:
        reply = json.dumps(answer(templates, json.loads(line)))
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    # the folder of the jinja2 that the parent has; python -I reads no PYTHONPATH
    sys.path.append(cast(Sequence[str], sys.argv)[1])
    answer_requests()
