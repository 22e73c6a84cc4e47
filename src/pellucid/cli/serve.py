"""The command that answers clients of the OpenAI interface."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.loading import mixed_from
from pellucid.cli.options import (
    FLAG_COUNTS,
    MODEL,
    Expected,
    OptionError,
    WritingModelOptions,
    at_least,
    command,
    option,
)
from pellucid.extras import require_extra

if TYPE_CHECKING:
    from pellucid.serve.opening import EngineOptions
    from pellucid.serve.served import ServedModel

PORT = Expected(lambda port: 1 <= port <= 65535, "a port from 1 to 65535")


@dataclass(frozen=True)
class AddressOptions:
    """Where the server listens, and who may use it."""

    listen: Annotated[str, option("ADDRESS")] = "127.0.0.1"
    """Listen on this address. Another one than this machine's own needs a key."""
    port: Annotated[int, option("PORT"), PORT] = 8000
    """Listen on this port."""
    host: Annotated[UseAppendAction[tuple[str, ...]], option("NAME", repeatable=True)] = ()
    """Answer requests for this host name too, such as that of a reverse proxy."""
    allow_origin: Annotated[UseAppendAction[tuple[str, ...]], option("ORIGIN", repeatable=True)] = ()
    """Let web pages of this origin, such as https://app.example.org, ask and read answers (CORS)."""
    api_key_file: Annotated[Path | None, option("FILE", default="PELLUCID_API_KEY, or no key")] = None
    """Read the key that clients must send from this file."""


@dataclass(frozen=True)
class CapacityOptions:
    """How much is computed and kept at once."""

    memory: Annotated[float, option("GIB"), at_least(0)] = 1.0
    """Keep keys and values of running requests in at most this many GiB."""
    prefix_memory: Annotated[float, option("GIB"), at_least(0)] = 0.25
    """Keep keys and values of earlier prompts in at most this many GiB, so that they need not be read again."""
    max_batch: Annotated[int, option("N"), at_least(1)] = 64
    """Decode at most this many sequences together."""
    max_queue: Annotated[int, option("N"), at_least(1)] = 256
    """Let at most this many sequences wait; more are told to try again later."""
    max_tokens: Annotated[int | None, option("N", default="the context, and at least 4096"), at_least(1)] = None
    """Refuse requests for more tokens than this."""
    drain: Annotated[float, option("SECONDS"), at_least(0)] = 10.0
    """On Ctrl-C or SIGTERM, let running requests finish for this long."""


@command
def serve_command(
    model: Annotated[Positional[tuple[str, ...]], option("MODEL [MODEL ...]")],
    *,
    model_names: Annotated[str | None, option("NAMES", default="the folders' names")] = None,
    model_options: Annotated[WritingModelOptions, option(name="model")],
    address: AddressOptions,
    capacity: CapacityOptions,
) -> int:
    """Answer clients of the OpenAI interface.

    Requests are computed together, and each gets the tokens and log-probabilities that it would get alone. Ctrl-C lets
    running requests finish.

    Args:
        model: Serve these runs, saved models, or names on the Hugging Face hub; clients choose one by its name.
        model_names: Give the models these names, separated by commas.

    Examples:
        pellucid serve runs/my_texts
        pellucid serve runs/first runs/second --model-names first,second --port 9000
    """
    require_extra("serve")
    key, names = check_serving(model, model_names, model_options, address)

    from pellucid.serve.app import LOOPBACK, make_app
    from pellucid.serve.served import ServedModel
    from pellucid.serve.server import run_app, url_of

    served: list[ServedModel] = []
    hosts = (*LOOPBACK, address.listen, *address.host)
    app = make_app(served, key=key, hosts=hosts, origins=address.allow_origin)

    def announce() -> None:
        url = url_of(address.listen, address.port)
        authorised = " -H 'Authorization: Bearer KEY'" if key else ""
        body = '{"prompt": "Once upon a time", "max_tokens": 40}'
        print(
            f"page: {url} (open it in a browser)\nOpenAI interface: {url}/v1, for example\n"
            f"  curl {url}/v1/completions{authorised} -H 'Content-Type: application/json' -d '{body}'",
            file=sys.stderr,
        )

    options = engine_options(model_options.weights, capacity, len(model))
    load = partial(served_models, names, model, model_options, options)
    run_app(app, served, load, address.listen, address.port, capacity.drain, announce)
    print("stopped", file=sys.stderr)
    return 0


def check_serving(
    models: Sequence[str], model_names: str | None, options: WritingModelOptions, address: AddressOptions
) -> tuple[str | None, list[str]]:
    """The key of the server and the names of its models. Raises ServeError or OptionError before anything is loaded."""
    from pellucid.serve.server import (
        ServeError,
        check_address,
        check_host_name,
        check_origin,
        model_names_of,
        read_key,
    )

    if not models:
        raise ServeError("no model was named: give the folder of a run, such as runs/NAME")
    for path in models:
        if not MODEL.accepts(path):
            raise ServeError(f"{path}: expected {MODEL.what}")
        options.check(path)
        check_model_options(path, models, options)
    for host in address.host:
        check_host_name(host)
    for origin in address.allow_origin:
        check_origin(origin)
    key = read_key(address.api_key_file)
    check_address(address.listen, key)
    return key, model_names_of(models, model_names)


def engine_options(weights: str, capacity: CapacityOptions, n_models: int) -> "EngineOptions":
    """What each of the models' engines may take: an equal part of the memory."""
    from pellucid.serve.opening import EngineOptions

    return EngineOptions(
        memory=int(capacity.memory * 2**30 / n_models),
        prefixes=int(capacity.prefix_memory * 2**30 / n_models),
        max_rows=capacity.max_batch,
        max_queue=capacity.max_queue,
        max_tokens=capacity.max_tokens,
        weights=weights,
        # of several models one may ignore them and another not
        given=tuple(FLAG_COUNTS.get()) if n_models == 1 else (),
    )


def served_models(
    names: Sequence[str], paths: Sequence[str], model_options: WritingModelOptions, options: "EngineOptions"
) -> "Iterator[ServedModel]":
    """Load the models, one after another, and print what serves each; called in a thread of the server's."""
    from pellucid.serve.opening import describe_engine, engine_for
    from pellucid.serve.served import ServedModel

    for name, path in zip(names, paths, strict=True):
        model = mixed_from(path, model_options)
        engine = engine_for(model, options)
        print(f"{name}: {path}, {describe_engine(engine)}", file=sys.stderr)
        # a predictor has no template
        yield ServedModel(name, engine, getattr(model, "chat_template", None))


def check_model_options(path: str, models: Sequence[str], options: WritingModelOptions) -> None:
    """Raise OptionError for a kind of model that is not served, and for options that it would ignore, before loading.

    Masked models that are no runs are only known when they are loaded, and `engine_for` refuses their options.
    """
    from pellucid.training.kinds import run_kind
    from pellucid.training.load import read_recipe

    recipe = Path(path) / "recipe.json"
    kind = run_kind(Path(path)) if recipe.exists() else "transformer"
    if options.mix and len(models) > 1:
        raise OptionError(
            f"--mix {options.mix} with {len(models)} models: it mixes one model with an n-gram; serve one"
        )
    if not options.mix and options.mix_weight is not None:
        raise OptionError(f"--mix-weight {options.mix_weight} needs --mix: name the n-gram run to mix with")
    masked = kind == "transformer" and recipe.exists() and read_recipe(Path(path)).train.objective == "masked"
    what = "a mixture" if options.mix else "a masked model" if masked else f"a predictor of kind {kind}"
    if (options.mix or masked or kind != "transformer") and options.weights != "auto":
        raise OptionError(
            f"--weights {options.weights} works on a transformer that generates text, and {path} is {what}: leave "
            "it out"
        )
    if options.mix and (masked or kind != "transformer"):
        raise OptionError(f"--mix {options.mix} mixes a transformer that generates text with an n-gram: leave it out")
