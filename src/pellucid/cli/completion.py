"""The command that prints shell completions for the others."""

import contextlib
from typing import Annotated, Literal

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from pellucid.cli.command_groups import COMMAND_GROUPS
from pellucid.cli.commands import COMMANDS, OK
from pellucid.cli.options import CONFIG, command, option, registry


@command
def completion(shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], option("bash|zsh|fish")]) -> int:
    """Print a script that completes commands and options in your shell.

    Args:
        shell: Print the script for this shell.

    Examples:
        pellucid completion bash > ~/.local/share/bash-completion/completions/pellucid
        pellucid completion fish > ~/.config/fish/completions/pellucid.fish
    """
    app = SubcommandApp()
    for name, function in (*COMMANDS.items(), ("completion", completion)):
        app.command(name=name)(function)
    for group, (commands, about) in COMMAND_GROUPS.items():
        inner = SubcommandApp()
        for name, function in commands.items():
            inner.command(name=name)(function)
        app.command(inner, name=group, help=about)
    with registry(), contextlib.suppress(SystemExit):  # tyro exits after printing the script
        app.cli(prog="pellucid", args=["--tyro-print-completion", shell], config=CONFIG)
    return OK
