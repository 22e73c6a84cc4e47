"""The command that opens the web inspector."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from pellucid.cli.loading import check_checkpoint_options, loaded_from
from pellucid.cli.options import MODEL, CheckpointOptions, Expected, OptionError, command, option

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


def readable_from(model: str, options: CheckpointOptions) -> "LanguageModel | Predictor":
    """The model at the requested checkpoint. Raises OptionError for one that reads no text."""
    from pellucid.vision.run import ImageModel

    loaded = loaded_from(model, options)
    if isinstance(loaded, ImageModel):
        raise OptionError(f"{model} holds a classifier of images, and this command shows how a model reads text")
    return loaded


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
    from pellucid.language_model import known_answer
    from pellucid.look.known_answer import KNOWN_ANSWER
    from pellucid.look.server import listen_on, run_look
    from pellucid.look.session import Session
    from pellucid.runs.checkpoint import steps_of
    from pellucid.serve.app import LOOPBACK

    if not model and model_options != CheckpointOptions():
        said = "--checkpoint, --revision, --device and --trust belong to a MODEL: name one, or leave them out"
        raise OptionError(said)
    if model:
        check_checkpoint_options(model, model_options.checkpoint, model_options.revision)
    listening = listen_on("127.0.0.1", page.port)
    loaded = readable_from(model, model_options) if model else known_answer()
    # an n-gram is counted once: its run has no checkpoints
    is_run = bool(model) and (Path(model) / "recipe.json").exists() and getattr(loaded, "kind", "") != "ngram"

    def at_step(step: int) -> "LanguageModel | Predictor":
        return readable_from(model, replace(model_options, checkpoint=str(step)))

    session = Session(
        loaded,
        name=Path(model or KNOWN_ANSWER).name,
        load=at_step if is_run else None,
        steps=steps_of(Path(model)) if is_run else (),
    )
    run_look(session, listening, key=None, hosts=LOOPBACK, browser=not page.no_browser)
    return 0
