"""What the page knows of the model before any prompt: its sizes, its tensors by name, its checkpoints."""

from pathlib import Path
from typing import Any

import torch

from pellucid.look.first_prompts import first_prompts
from pellucid.look.known_answer import KNOWN_ANSWER
from pellucid.look.session import AnyModel, Session
from pellucid.parameter_counts import count_parameters
from pellucid.predictors.mixture import NGramMixture
from pellucid.predictors.predictor import Predictor
from pellucid.tensor_names import axes, names, row


def model_facts(session: Session, checkpoint: str = "") -> dict[str, Any]:
    """The model card, the table of its tensors, and its checkpoints, as JSON."""
    model = session.transformer(checkpoint)
    a = model.architecture
    tokenizer = model.tokenizer
    return {
        "name": session.name,
        "loading": loading_code(model),
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
        **examples(session),
    }


def loading_code(model: AnyModel) -> str:
    """Python that opens the model that is shown at its checkpoint, which every copied code begins with."""
    provenance = model.provenance
    folder, step = provenance.get("folder"), provenance.get("step")
    if folder == KNOWN_ANSWER:
        return "import pellucid\nfrom pellucid.language_model import known_answer\n\nmodel = known_answer()\n"
    known = {"folder", "step", "of_shorter_run", "revision", "trust", "allow_nan", "tokenizer", "notes"}
    if not folder or provenance.keys() - known or provenance.get("tokenizer", "") is None:
        return "import pellucid\n\n# model is the one that your program opened this inspector with: no folder has it\n"
    checkpoint = "" if step is None or provenance.get("of_shorter_run") else f", checkpoint={str(step)!r}"
    options = "".join(f", {name}={provenance[name]!r}" for name in ("trust", "allow_nan") if provenance.get(name))
    if isinstance(model, Predictor):
        # of a run with an n-gram the best checkpoint alone, which is the default, is opened with it
        options = options if isinstance(model.network, NGramMixture) else checkpoint + options
        return f"import pellucid\n\nmodel = pellucid.load_predictor({str(Path(folder).absolute())!r}{options})\n"
    dtype = model.network.embed.token.weight.dtype
    imported = "" if dtype == torch.float32 else "import torch\n\n"
    options = checkpoint + options + ("" if dtype == torch.float32 else f", dtype={dtype}")
    if tokenizer := provenance.get("tokenizer"):
        options += f", tokenizer={str(Path(tokenizer).absolute())!r}"
    return f"import pellucid\n{imported or chr(10)}model = pellucid.load({str(Path(folder).absolute())!r}{options})\n"


def tensor_facts(name: str) -> dict[str, Any]:
    """One tensor: its full name, its axes, its equation and its symbols in the source texts."""
    entry = row(name)
    return {"name": name, "axes": axes(name), "equation": entry.equation, "symbol": entry.symbol}


def examples(session: Session) -> dict[str, str]:
    """The prompts to begin with, chosen once: a text, another for experiments, and the source of both."""
    if "examples" not in session.results:
        session.results["examples"] = first_prompts(session.opened)
    prompts = session.results["examples"]
    return {"example": prompts.text, "example_b": prompts.other, "example_source": prompts.source}
