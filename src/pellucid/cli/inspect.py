"""The command that looks inside: one page about one prompt."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from pellucid.cli.loading import loaded_from, transformer_of
from pellucid.cli.options import MODEL, CheckpointOptions, NewPath, command, make_missing_folder, option


@dataclass(frozen=True)
class PromptOptions:
    """What the model reads."""

    bos: Annotated[bool, option()] = False
    """Put the separator before the prompt, unless the model's own tokenizer puts something there."""
    source: Annotated[str | None, option("TEXT")] = None
    """Give this text to the encoder of an encoder-decoder."""


@dataclass(frozen=True)
class PageOptions:
    """Where the page is written."""

    out: Annotated[Path, option("FILE", aliases=("-o",)), NewPath(may_exist=True)] = Path("page.html")
    """Write the page into this file. A file that exists is replaced."""


@command
def inspect_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    prompt: Annotated[Positional[str], option("PROMPT")],
    *,
    input: PromptOptions,
    model_options: Annotated[CheckpointOptions, option(name="model")],
    output: PageOptions,
) -> int:
    """Write a page about one prompt: attention, logit lens, attribution.

    The page is one self-contained file: it opens offline, and you can send it to somebody.

    Args:
        model: Use the model of this run, this saved model, or this name on the Hugging Face hub.
        prompt: Look at this text; - reads it from standard input.

    Examples:
        pellucid inspect runs/my_texts "To be, or not to be"
        pellucid inspect runs/my_texts "To be, or not to be" -o hamlet.html --bos
    """
    make_missing_folder(output.out)
    loaded = transformer_of(loaded_from(model, model_options), model)

    from pellucid.lens.core.inputs import last_tokens
    from pellucid.lens.show.pages import inspect_page
    from pellucid.text.read.chunks import counted

    text = sys.stdin.read() if prompt == "-" else prompt
    trace_options = {"source": input.source, "bos": input.bos or None}
    if loaded.architecture.encoder is None:
        text, note = last_tokens(loaded, text, trace_options["bos"])
        if note:
            print(note, file=sys.stderr)
    trace = loaded.trace(text, **{name: value for name, value in trace_options.items() if value is not None})
    path = inspect_page(trace, name=model).save(output.out)
    read = counted(trace.inputs.lengths[0], "token")
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB, {read}; open it in a browser")
    return 0
