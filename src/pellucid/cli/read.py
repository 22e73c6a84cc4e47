"""The command that says what training would read."""

import json
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional

from pellucid.cli.options import DocumentOptions, above, command, option
from pellucid.cli.progress import progress_on_stderr


@dataclass(frozen=True)
class ReadReportOptions:
    """What is printed."""

    minutes: Annotated[float | None, option("N"), above(0)] = None
    """Also choose the size of a run of this many minutes, which times this machine for a few seconds."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print the report, with every file, as JSON."""


@command
def read_command(
    paths: Annotated[Positional[tuple[str, ...]], option("TEXT [TEXT ...]")],
    *,
    input: DocumentOptions,
    output: ReadReportOptions,
) -> int:
    """Show what training would read of text files and folders.

    The exit code is 2 if something would stop the training, such as a file that cannot be read.

    Args:
        paths: Read these files, folders and patterns as train does; - reads standard input.

    Examples:
        pellucid read my_texts/
        pellucid read my_texts/ --exclude '*.log' --minutes 10
    """
    import pellucid

    with progress_on_stderr("reading") as progress:
        report = pellucid.read(*paths, reading=input.reading(), minutes=output.minutes, progress=progress)
    print(json.dumps(report.to_dict(), ensure_ascii=False) if output.as_json else report)
    return 2 if report.stops else 0
