"""Which engine serves a loaded model, and what it says of itself."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from pellucid.generate.errors import GenerationError
from pellucid.model.embed import NoReadout
from pellucid.model.positions import RotaryTable
from pellucid.predictors.predictor import Predictor
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.engine import Engine
from pellucid.serve.stepwise import EncoderDecoderEngine, PredictorEngine


@dataclass(frozen=True)
class EngineOptions:
    """How much one model's engine may take, and how it computes.

    memory      bytes of keys and values of running sequences
    prefixes    bytes of keys and values of earlier prompts
    weights     the number format of the matrices (`pellucid.generate.pack_weights`)
    given       the flags of those options that a user gave for this model, which is refused where it ignores them
    """

    memory: int = 2**30
    prefixes: int = 2**28
    max_rows: int = 64
    max_queue: int = 256
    max_tokens: int | None = None
    weights: str = "auto"
    given: tuple[str, ...] = ()


def engine_for(model: Any, options: EngineOptions) -> Engine:
    """The engine of a LanguageModel or a Predictor; GenerationError for options that it would ignore."""
    limits: dict[str, Any] = {
        "max_rows": options.max_rows,
        "max_queue": options.max_queue,
        "max_tokens": options.max_tokens,
    }
    if isinstance(model, Predictor):
        refuse_computing(options, f"a predictor of kind {model.kind}")
        refuse_memory(options, ("--memory", "--prefix-memory"), f"a predictor of kind {model.kind}")
        return PredictorEngine(model, **limits)
    network, tokenizer = model.network, model.tokenizer
    a = network.architecture
    if a.encoder is not None:
        refuse_memory(options, ("--prefix-memory",), "an encoder-decoder")
        return EncoderDecoderEngine(network, tokenizer, memory=options.memory, weights=options.weights, **limits)
    if a.attention.mask == "bidirectional" or a.readout == "none":
        refuse_computing(options, "a model that generates no text")
        refuse_memory(options, ("--memory", "--prefix-memory"), "a model that generates no text")
        engine = Engine(network, tokenizer, n_ctx=a.n_ctx, n_vocab=a.n_vocab, **limits)
        if a.readout == "none":
            engine.no_text = NoReadout.why
        return engine
    if a.frequency_border:
        # longer texts have other frequencies, so that rows of both kinds, and known beginnings, do not go together
        network = copy(network)
        network.architecture = replace(a, n_ctx=a.frequency_border)
    memory = {"memory": options.memory, "prefixes": options.prefixes}
    return BatchingEngine(network, tokenizer, weights=options.weights, **limits, **memory)


def refuse_computing(options: EngineOptions, what: str) -> None:
    """Raise GenerationError for packed weights where there is nothing to pack."""
    if options.weights != "auto":
        raise GenerationError(
            f"--weights {options.weights} works on a transformer that generates text, not on {what}: leave it out"
        )


def refuse_memory(options: EngineOptions, flags: tuple[str, ...], what: str) -> None:
    """Raise GenerationError for a given limit of keys and values where none of that kind are kept."""
    if ignored := [flag for flag in flags if flag in options.given]:
        which = "earlier prompts" if ignored[0] == "--prefix-memory" else "running requests"
        raise GenerationError(f"{ignored[0]} limits keys and values of {which}, and {what} keeps none: leave it out")


def shortened(engine: BatchingEngine) -> str:
    """What is said of a context that is served in part, "" for a whole one."""
    table = engine.loaded.rotary_table
    if not isinstance(table, RotaryTable) or table.short is None:
        return ""
    return (
        f"; texts end at {table.border} tokens here (positions.n_trained), because longrope has other frequencies for "
        f"longer ones: `generate`, `chat` and `score` read up to {table.exact.size(2)}"
    )


def describe_engine(engine: Engine) -> str:
    """What one engine serves at once, for the person who starts it."""
    if not engine.no_text:
        rows = f"up to {engine.max_rows} requests at once"
        if isinstance(engine, BatchingEngine):
            full = "as many" if engine.full_rows == engine.max_rows else str(engine.full_rows)
            return (
                f"{rows}, {full} where each fills the context of {engine.n_ctx} tokens "
                f"({engine.memory / 2**20:,.0f} MiB of keys and values), {engine.weights_line}{shortened(engine)}"
            )
        weights = f", {engine.weights_line}" if isinstance(engine, EncoderDecoderEngine) else ""
        return f"{rows}, one after another{weights}"
    fills = "" if engine.network.architecture.readout == "none" else "fills masked tokens and "
    return f"it generates no text, but {fills}embeds texts"
