"""The command that prints shell completions for the others."""

import contextlib
from typing import Annotated, Literal

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from pellucid.cli.commands import COMMANDS, OK
from pellucid.cli.options import CONFIG, command, option, registry
from pellucid.cli.tokenizer import TOKENIZER_COMMANDS


@command
def completion(shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], option("bash|zsh|fish")]) -> int:
    """Print a script that completes commands and options in your shell.

    Args:
        shell: Print the script for this shell.

    Examples:
        pellucid completion bash > ~/.local/share/bash-completion/completions/pellucid
        pellucid completion fish > ~/.config/fish/completions/pellucid.fish
    """
    app, tokenizers = SubcommandApp(), SubcommandApp()
    for name, function in (*COMMANDS.items(), ("completion", completion)):
        app.command(name=name)(function)
    for name, function in TOKENIZER_COMMANDS.items():
        tokenizers.command(name=name)(function)
    app.command(tokenizers, name="tokenizer", help="Make, use and look at tokenizers.")
    with registry(), contextlib.suppress(SystemExit):  # tyro exits after printing the script
        app.cli(prog="pellucid", args=["--tyro-print-completion", shell], config=CONFIG)
    return OK
