"""The command line: which command, what it answers when something is wrong, and the exit code.

Nothing heavy is imported until a command runs, so that `pellucid --help` answers at once.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence

import tyro

from pellucid.cli.commands import COMMANDS, FAILED, NUMERICS, OK, WRONG_INPUT
from pellucid.cli.commands import parse_fields as parse_fields
from pellucid.cli.tokenizer import TOKENIZER_COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done; 1 a check failed; 2 the input or the options are wrong; 3 stopped by numerics; 130 and 143
    interrupted by Ctrl-C and SIGTERM, after saving.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands, program, about = COMMANDS, "pellucid", "Language models you can see through."
    if arguments[:1] == ["tokenizer"]:
        commands, program, about = TOKENIZER_COMMANDS, "pellucid tokenizer", "Make, use and look at tokenizers."
        arguments = arguments[1:]
    try:
        if arguments[:1] not in ([name] for name in commands):
            return overview(arguments, commands, program, about)
        function = commands[arguments[0]]
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
            return tyro.cli(function, prog=f"{program} {arguments[0]}", args=arguments[1:])
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return interrupt.args[0] if interrupt.args else 130
    except BrokenPipeError:
        # the reader of our output has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ValueError, OSError) as error:
        complain(error)
        return FAILED if type(error).__name__ == "ParityError" else WRONG_INPUT
    except (RuntimeError, MemoryError) as error:
        if type(error).__name__ == "NumericsError":
            complain(error)
            return NUMERICS
        # PyTorch has no class of its own for this on the CPU
        if isinstance(error, MemoryError) or "out of memory" in str(error) or "not enough memory" in str(error):
            complain(f"out of memory: make batch, n_ctx or the model smaller ({str(error).splitlines()[:1]})")
            return WRONG_INPUT
        raise


def complain(what: object) -> None:
    """One line on standard error."""
    from pellucid.text.visible import visible

    print(f"pellucid: {visible('; '.join(str(what).splitlines()))}", file=sys.stderr)


def overview(arguments: list[str], commands: dict[str, Callable[..., int]], program: str, about: str) -> int:
    """The list of commands, for --help, for nothing, and for a command that does not exist."""
    lines = [about, "", f"usage: {program} COMMAND ...   ({program} COMMAND --help says more)", ""]
    rows = {name: (function.__doc__ or "").splitlines()[0] for name, function in commands.items()}
    if commands is COMMANDS:
        rows["tokenizer"] = "Make, use and look at tokenizers."
    lines += [f"  {name:<12}{text}" for name, text in rows.items()]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("\n".join(lines))
        return OK
    if arguments[0] in ("-V", "--version"):
        from pellucid import __version__

        print(f"pellucid {__version__}")
        return OK
    print(f"pellucid: there is no command {arguments[0]!r}\n\n" + "\n".join(lines), file=sys.stderr)
    return WRONG_INPUT
