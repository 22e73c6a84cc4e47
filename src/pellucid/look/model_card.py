"""What the page knows of the model before any prompt: its sizes, its tensors by name, its checkpoints."""

from typing import Any

from pellucid.look.known_answer import KNOWN_ANSWER, PROMPTS
from pellucid.look.session import Session
from pellucid.parameter_counts import count_parameters
from pellucid.tensor_names import axes, names, row
from pellucid.text.tokenizers.base import BLANK

#: the first prompt of a model whose run says nothing better
EXAMPLE = "When Mary and John went to the shops, John gave a drink to"


def model_facts(session: Session, checkpoint: str = "") -> dict[str, Any]:
    """The model card, the table of its tensors, and its checkpoints, as JSON."""
    model = session.model(checkpoint)
    a = model.architecture
    tokenizer = model.tokenizer
    return {
        "name": session.name,
        "folder": model.provenance.get("folder"),
        "step": model.provenance.get("step"),
        "steps": list(session.steps),
        "parameters": count_parameters(a)["total"],
        "architecture": a.to_dict(),
        "n_layers": a.n_layers,
        "n_heads": a.attention.n_heads,
        "n_ctx": a.n_ctx,
        "n_vocab": a.n_vocab,
        "encoder_layers": a.encoder.n_layers if a.encoder is not None else 0,
        "reads_source": a.encoder is not None,
        "masked": a.attention.mask == "bidirectional",
        "tokenizer": tokenizer.kind,
        "special": dict(tokenizer.special),
        "begins_with": "".join(map(tokenizer.token_str, tokenizer.before if a.encoder is None else ())),
        "tensors": [tensor_facts(name) for name in names(a)],
        "example": example_text(session),
        "example_source": example_text(session),
    }


def tensor_facts(name: str) -> dict[str, Any]:
    """One tensor: its full name, its axes, its equation and its symbols in the source texts."""
    entry = row(name)
    return {"name": name, "axes": axes(name), "equation": entry.equation, "symbol": entry.symbol}


def example_text(session: Session) -> str:
    """A prompt to begin with, in the tokens of this model."""
    tokenizer = session.opened.tokenizer
    if "example" not in session.results:
        if session.predictor_kind:
            session.results["example"] = tokenizer.decode(tokenizer.encode(EXAMPLE)[:64])
            return session.results["example"]
        a = session.opened.architecture
        if session.opened.provenance.get("folder") == KNOWN_ANSWER:
            session.results["example"] = PROMPTS[0][0]
        elif tokenizer.kind == "ids":
            session.results["example"] = " ".join(str(i) for i in range(min(8, a.n_ctx, a.n_vocab)))
        else:
            # a masked model guesses a word
            masks = a.attention.mask == "bidirectional"
            text = EXAMPLE.replace("drink", BLANK) if tokenizer.mask is not None and masks else EXAMPLE
            known = text if BLANK in text else tokenizer.decode(tokenizer.encode(text)[: max(1, a.n_ctx - 1)])
            session.results["example"] = known
    return session.results["example"]
