"""Render Jinja templates from outside: in a process of its own, with limits on time, memory and output.

Jinja's sandbox keeps a template from the attributes of Python's objects, but not from running for ever or from filling
the memory: `'a' * 10**10` is one instruction. Only a process that the system stops holds such a limit. The file runs by
its path, without the rest of the package, so that starting it costs a tenth of a second.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

#: bytes of memory that the process may ask for. Linux holds the limit; macOS and Windows know no such limit
MEMORY = 1 << 29


class OutputLimitError(ValueError):
    """A template wrote more than it may."""


def compile_template(source: str) -> Any:
    """The template in the environment that transformers gives chat templates: Jinja's immutable sandbox with
    trim_blocks, lstrip_blocks, break and continue, raise_exception, strftime_now, tojson, and the tag `generation`.

    Raises jinja2.TemplateError for a template that is not valid.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
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

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "namespace": make_namespace}
    return environment.from_string(source)


def render_template(template: Any, variables: Mapping[str, Any], most: int) -> str:
    """The template's text. `now`, an ISO date among the variables, is the day that strftime_now knows, today if absent.

    Raises OutputLimitError for more than `most` characters.
    """
    values = dict(variables)
    now = values.pop("now", None)

    def strftime_now(form: str) -> str:
        return (datetime.fromisoformat(now) if now else datetime.now()).strftime(form)

    blocks, length = [], 0
    for block in template.generate(**values, strftime_now=strftime_now):
        length += len(block)
        if length > most:
            raise OutputLimitError(f"it writes more than {most:,} characters")
        blocks.append(block)
    return "".join(blocks)


def limit_process() -> None:
    """Take from this process what a template never needs: memory above MEMORY, files, other processes, core dumps."""
    with suppress(ImportError):  # Windows has no such limits
        import resource

        limits = {"RLIMIT_AS": MEMORY, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0}
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
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
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
