"""Which engine serves a loaded model, and what it says of itself."""

from dataclasses import dataclass
from typing import Any

from pellucid.generate.errors import GenerationError
from pellucid.model.embed import NoReadout
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
    speculate   guess up to this many tokens at once
    """

    memory: int = 2**30
    prefixes: int = 2**28
    max_rows: int = 64
    max_queue: int = 256
    max_tokens: int | None = None
    weights: str = "auto"
    speculate: int = 0


def engine_for(model: Any, options: EngineOptions) -> Engine:
    """The engine of a LanguageModel or a Predictor; GenerationError for options that it would ignore."""
    limits: dict[str, Any] = {
        "max_rows": options.max_rows,
        "max_queue": options.max_queue,
        "max_tokens": options.max_tokens,
    }
    computing: dict[str, Any] = {"weights": options.weights, "speculate": options.speculate}
    if isinstance(model, Predictor):
        refuse_computing(options, f"a predictor of kind {model.kind}")
        return PredictorEngine(model, **limits)
    network, tokenizer = model.network, model.tokenizer
    a = network.architecture
    if a.encoder is not None:
        return EncoderDecoderEngine(network, tokenizer, memory=options.memory, **limits, **computing)
    if a.attention.mask == "bidirectional" or a.readout == "none":
        refuse_computing(options, "a model that generates no text")
        engine = Engine(network, tokenizer, n_ctx=a.n_ctx, n_vocab=a.n_vocab, **limits)
        if a.readout == "none":
            engine.no_text = NoReadout.why
        return engine
    memory = {"memory": options.memory, "prefixes": options.prefixes}
    return BatchingEngine(network, tokenizer, **limits, **memory, **computing)


def refuse_computing(options: EngineOptions, what: str) -> None:
    """Raise GenerationError for packed weights and speculation where there is nothing to pack and to guess."""
    if options.speculate or options.weights != "auto":
        option = f"speculate {options.speculate}" if options.speculate else f"weights {options.weights}"
        raise GenerationError(f"--{option} works on a transformer that generates text, not on {what}: leave it out")


def describe_engine(engine: Engine) -> str:
    """What one engine serves at once, for the person who starts it."""
    if not engine.no_text:
        rows = f"up to {engine.max_rows} requests at once"
        if isinstance(engine, BatchingEngine):
            full = "as many" if engine.full_rows == engine.max_rows else str(engine.full_rows)
            return (
                f"{rows}, {full} where each fills the context of {engine.n_ctx} tokens "
                f"({engine.memory / 2**20:,.0f} MiB of keys and values), {engine.said}"
            )
        said = f", {engine.said}" if isinstance(engine, EncoderDecoderEngine) else ""
        return f"{rows}, one after another{said}"
    fills = "" if engine.network.architecture.readout == "none" else "fills masked tokens and "
    return f"it generates no text, but {fills}embeds texts"
