"""The command that looks inside: one page about one prompt."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def inspect(
    model: Positional[str],
    prompt: Positional[str],
    *,
    out: Annotated[Path, arg(aliases=("-o",))] = Path("page.html"),
    bos: bool = False,
    source: str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> int:
    """Write one page about one prompt: surprisal, attention, logit lens, attribution, heads.

    The page is one file that fetches nothing: it can be sent to somebody, and opens without a network.

    Args:
        model: a run folder or a saved model.
        prompt: the text to look at; - reads it from standard input.
        out: the page; a file that exists is replaced.
        bos: put the separator before the text; otherwise nothing is fed that the prompt does not say.
        source: what an encoder-decoder reads.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
        device: cpu, cuda, mps or auto.
    """
    import pellucid
    from pellucid.cli.loading import transformer_of
    from pellucid.lens.show import inspect_page

    loaded = transformer_of(pellucid.load(model, checkpoint=checkpoint, device=device), model)
    text = sys.stdin.read() if prompt == "-" else prompt
    given = {"source": source, "bos": bos or None}
    trace = loaded.trace(text, **{name: value for name, value in given.items() if value is not None})
    path = inspect_page(trace, name=model).save(out)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB, {trace.inputs.lengths[0]} tokens; open it in a browser")
    return 0
