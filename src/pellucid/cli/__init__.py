"""The command line: choose the command, report errors in one line, and set the exit code.

Nothing heavy is imported until a command runs, so that `pellucid --help` answers at once.
"""

import difflib
import errno
import functools
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from inspect import getdoc
from typing import Any

import tyro

from pellucid.cli.command_groups import COMMAND_GROUPS, DEFAULT_COMMANDS
from pellucid.cli.commands import COMMANDS as MODEL_COMMANDS
from pellucid.cli.commands import FAILED, NUMERICS, OK, WRONG_INPUT
from pellucid.cli.completion import completion
from pellucid.cli.options import ARGV, CONFIG, FLAG_COUNTS, count_options, registry
from pellucid.cli.progress import sigterm_as_ctrl_c
from pellucid.cli.train import parse_fields as parse_fields

COMMANDS: dict[str, Callable[..., int]] = {**MODEL_COMMANDS, "completion": completion}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done; 1 a check failed; 2 the input or the options are wrong; 3 stopped by numerics; 130, 143 and
    129 interrupted by Ctrl-C, SIGTERM and SIGHUP, after saving.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    ARGV.set(tuple(arguments))
    commands, program, about = COMMANDS, "pellucid", "Language models you can see through."
    if arguments[:1] == ["help"] and arguments[1:]:  # pellucid help train
        arguments = [*arguments[1:], "--help"]
    if group := COMMAND_GROUPS.get(next(iter(arguments), "")):
        (commands, about), program = group, f"pellucid {arguments[0]}"
        default, arguments = DEFAULT_COMMANDS.get(arguments[0], ""), arguments[1:]
        # `runs` alone lists them; the others need to know what of
        names_none = bool(arguments) and arguments[0][:1] != "-" and arguments[0] not in commands
        # a word that is nearly a command, and nothing that is there, is a command with a typing error
        names_none = names_none and (
            os.path.exists(arguments[0]) or not difflib.get_close_matches(arguments[0], commands, 1, 0.8)
        )
        if default and (names_none if default != "list" else not arguments):
            arguments = [default, *arguments]

    def chosen() -> int:
        if arguments[:1] not in ([name] for name in commands):
            return overview(arguments, commands, program, about)
        with warnings.catch_warnings(), sigterm_as_ctrl_c():
            warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
            return run(commands[arguments[0]], f"{program} {arguments[0]}", arguments[1:])

    return exit_code_of(chosen)


def open_closed_streams() -> None:
    """Open the null device where a standard stream is closed (`>&-`), before a file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                null = os.open(os.devnull, os.O_RDWR)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


#: what allocators say, in lower case, where there is no memory left: PyTorch has no exception class for it on the CPU
NO_MEMORY = re.compile(
    r"out of memory|not enough memory|(can.?t|cannot|could not|couldn.?t|failed to|unable to) "
    r"(allocate|reserve|map|mmap)|bad.?alloc|memory allocation|insufficient memory|alloc_failed"
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocator, of Python, PyTorch, a device or the system, has no memory left."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error).lower()))


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command, and turn what stops it into one line on standard error and an exit code (see `main`)."""
    try:
        code = command()
        sys.stdout.flush()  # here, where a reader that has gone away is no error
        return code
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return interrupt.args[0] if interrupt.args else 130
    except BrokenPipeError:
        # nobody reads our output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        if type(error).__name__ == "NumericsError":
            complain(error)
            return NUMERICS
        if is_out_of_memory(error):
            complain(f"out of memory: reduce batch, n_ctx or the model's size ({str(error).splitlines()[:1]})")
            return WRONG_INPUT
        if not isinstance(error, ValueError | OSError):
            raise
        # what is left in the buffer of a full disk fails once more
        if isinstance(error, OSError) and not flush_or_discard() and error.filename is None:
            error.filename = "standard output"
        complain(error)
        return FAILED if type(error).__name__ == "ParityError" else WRONG_INPUT


def flush_or_discard() -> bool:
    """Write what standard output has in its buffer, or let it go nowhere where that fails; whether it was written."""
    from pellucid.runs.reporter import discard

    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)
        return False
    return True


class HelpPage(io.StringIO):
    """Collects tyro's help, with the characters and colours that standard output supports."""

    def __init__(self, terminal: Any):
        super().__init__()
        self.terminal = terminal

    @property
    def encoding(self) -> str:
        """The encoding of standard output, spelled as tyro expects it."""
        return (getattr(self.terminal, "encoding", None) or "utf-8").lower()

    def isatty(self) -> bool:
        """Whether standard output is a terminal."""
        return self.terminal.isatty()


#: options of other programs, which nobody spells otherwise here, and what they are called here
MEANT_FLAGS = {
    **dict.fromkeys(("lr", "rate", "max-lr"), "--learning-rate"),
    **dict.fromkeys(("bs", "batch-size", "batchsize"), "--batch"),
    **dict.fromkeys(("n-ctx", "block-size", "seq-len", "context-length", "max-seq-len"), "--context"),
    **dict.fromkeys(("n-layers", "n-layer", "num-layers", "depth"), "--layers"),
    **dict.fromkeys(("d-model", "n-embd", "hidden-size", "dim"), "--width"),
    **dict.fromkeys(("max-steps", "max-iters", "iters", "num-steps"), "--steps"),
    **dict.fromkeys(("n-epochs", "num-epochs", "num-train-epochs"), "--epochs"),
    **dict.fromkeys(("output", "output-dir", "out-dir"), "--out"),
    **dict.fromkeys(("max-new-tokens", "length", "n-tokens", "num-tokens"), "--max-tokens"),
    **dict.fromkeys(("temp", "t"), "--temperature"),
    **dict.fromkeys(("vocab-size", "vocab", "n-vocab"), "--vocabulary"),
    **dict.fromkeys(("val", "validation", "val-data", "test-size"), "--held-out"),
}


def run(function: Callable[..., int], program: str, arguments: list[str]) -> int:
    """Run a command, or print its help, which ends with notes and examples."""
    about, _, notes = description_of(function).partition("\n\n")
    page = HelpPage(sys.stdout)
    options = itertools.takewhile(lambda argument: argument != "--", arguments)
    flags = [argument[2:].partition("=")[0] for argument in options if argument.startswith("--")]
    if other := next((flag for flag in flags if flag in MEANT_FLAGS), None):
        complain(f"there is no option --{other}: did you mean {MEANT_FLAGS[other]}? {program} --help lists all")
        return WRONG_INPUT
    try:
        with redirect_stdout(page):
            ready = tyro.cli(
                bind_arguments(function),
                prog=program,
                description=about,
                args=arguments,
                config=CONFIG,
                registry=registry(),
            )
    except SystemExit as ended:  # tyro printed the help or an error
        if ended.code:
            return WRONG_INPUT
        print(with_short_usage(page.getvalue()))
        print(f"{notes}\n\n" * bool(notes) + "examples:\n" + "\n".join(f"  {e}" for e in examples_of(function)))
        return OK
    token = FLAG_COUNTS.set(count_options(function, arguments))
    try:
        return ready()
    finally:
        FLAG_COUNTS.reset(token)


def bind_arguments(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """A function with the command's options that returns the command, ready to run."""

    @functools.wraps(function)
    def ready(*arguments: Any, **named: Any) -> Callable[[], int]:
        return functools.partial(function, *arguments, **named)

    return ready


def description_of(function: Callable[..., int]) -> str:
    """The part of a command's docstring above its arguments, wrapped for the terminal."""
    above, _, _ = (getdoc(function) or "").partition("\nArgs:\n")
    width = min(shutil.get_terminal_size().columns, 100)
    return "\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in above.strip().split("\n\n"))


def examples_of(function: Callable[..., int]) -> list[str]:
    """The commands below "Examples:" in a command's docstring."""
    _, _, below = (getdoc(function) or "").partition("\nExamples:\n")
    return [line.strip() for line in below.splitlines() if line.strip()]


def with_short_usage(page: str) -> str:
    """The help page. Its usage line lists [OPTIONS] instead of every option if these would not fit."""
    usage, line_end, rest = page.partition("\n")
    if len(usage) <= shutil.get_terminal_size().columns:
        return page
    return re.sub(r"( \[--[^\]]*\])+", " [OPTIONS]", usage) + line_end + rest


def complain(what: object) -> None:
    """Print one line on standard error. For an OSError it names the file and the reason, without the number."""
    from pellucid.runs.reporter import say_on_stderr
    from pellucid.text.sanitize import sanitize

    if isinstance(what, OSError) and what.strerror:
        what = f"{what.filename}: {what.strerror}" if what.filename is not None else what.strerror

    say_on_stderr(f"pellucid: {sanitize('; '.join(str(what).splitlines()))}")


def overview(arguments: list[str], commands: Mapping[str, Callable[..., int]], program: str, about: str) -> int:
    """Print the list of commands: for --help, without arguments, and after an unknown command."""
    lines = [about, "", f"usage: {program} COMMAND ...", f"help:  {program} COMMAND --help", ""]
    rows = {name: (function.__doc__ or "").splitlines()[0] for name, function in commands.items()}
    if commands is COMMANDS:
        rows |= {name: about for name, (_, about) in COMMAND_GROUPS.items()}
    width = max(12, *(len(name) + 2 for name in rows))
    lines += [f"  {name:<{width}}{text}" for name, text in rows.items()]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("\n".join(lines))
        return OK
    if arguments[0] in ("-V", "--version"):
        from pellucid import __version__

        print(f"pellucid {__version__}")
        return OK
    near = difflib.get_close_matches(arguments[0], rows, 1)
    hint = f"; did you mean {program} {near[0]}?" if near else f"\n\n{chr(10).join(lines)}"
    print(f"pellucid: there is no command {arguments[0]!r}{hint}", file=sys.stderr)
    return WRONG_INPUT
