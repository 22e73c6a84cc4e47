"""The command that opens the web inspector."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from pellucid.cli.loading import loaded_from
from pellucid.cli.options import (
    MODEL,
    CheckpointOptions,
    Expected,
    command,
    flags_of,
    option,
    refuse_given,
)
from pellucid.extras import require_extra

if TYPE_CHECKING:
    from pellucid.language_model import LanguageModel
    from pellucid.predictors.predictor import Predictor

PORT = Expected(lambda port: 0 <= port <= 65535, "a port from 1 to 65535, or 0 for a free one")


@dataclass(frozen=True)
class LookOptions:
    """Where the page is found."""

    port: Annotated[int, option("PORT"), PORT] = 8008
    """Listen on this port of 127.0.0.1; 0 takes a free one."""
    no_browser: Annotated[bool, option()] = False
    """Print the address, and open no browser."""


@command
def look_command(
    model: Annotated[Positional[str], option("[MODEL]"), MODEL] = "",
    *,
    model_options: Annotated[CheckpointOptions, option(name="model")],
    page: LookOptions,
) -> int:
    """Look inside a model in the browser: every number of its computation.

    The page is served on this machine only, and needs no internet connection. Ctrl-C ends it.

    Args:
        model: Look into this run, this saved model, or this name on the Hugging Face hub. Without it, look into a
            small model whose weights are written by hand, so that every analysis can be seen to find what is there.

    Examples:
        pellucid look runs/my_texts
        pellucid look runs/my_texts --checkpoint 500 --port 9000 --no-browser
    """
    require_extra("look")
    if not model:
        refuse_given(flags_of(CheckpointOptions), "the model that is shown without a MODEL is always the same")

    from pellucid.language_model import known_answer
    from pellucid.look.known_answer import KNOWN_ANSWER
    from pellucid.look.server import listen_on, run_look
    from pellucid.look.session import Session
    from pellucid.runs.checkpoint import steps_of
    from pellucid.serve.app import LOOPBACK

    if model:
        model_options.check(model)
    listening = listen_on("127.0.0.1", page.port)
    loaded = loaded_from(model, model_options) if model else known_answer()
    # an n-gram is counted once: its run has no checkpoints
    is_run = bool(model) and (Path(model) / "recipe.json").exists() and getattr(loaded, "kind", "") != "ngram"

    def at_step(step: int) -> "LanguageModel | Predictor":
        return loaded_from(model, replace(model_options, checkpoint=str(step)))

    session = Session(
        loaded,
        name=Path(model or KNOWN_ANSWER).name,
        load=at_step if is_run else None,
        steps=steps_of(Path(model)) if is_run else (),
    )
    run_look(session, listening, key=None, hosts=LOOPBACK, browser=not page.no_browser)
    return 0
