"""Which software opens a model, known from its architecture and tokenizer before any weight exists."""

from pathlib import Path

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError
from pellucid.hub.gguf import check_gguf_tokenizer, gguf_family
from pellucid.hub.write import exported_as
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.tokenizer import load_tokenizer


def opens_in(a: Architecture, tokenizer: Tokenizer | None = None) -> str:
    """One line that lists the software that opens a model of this architecture, and the preset that more would open.

    Without a tokenizer, the model is assumed to have one that llama.cpp can represent.
    """
    try:
        names, hint = [f"transformers (as {exported_as(a)[0].name})"], ""
    except FamilyError:
        names = ["transformers (its own code)"]
        hint = f"; --preset {preset_for(a)} trains a model that opens there without code" if preset_for(a) else ""
    try:
        gguf_family(a)
    except FamilyError:
        return f"opens in: {', '.join([*names, 'pellucid'])}{hint}"
    try:
        if tokenizer is not None:
            check_gguf_tokenizer(tokenizer)
        names.append("llama.cpp (GGUF)")
    except FamilyError:
        hint += "; for llama.cpp train with --tokenizer bpe"
    return f"opens in: {', '.join([*names, 'pellucid'])}{hint}"


def preset_for(a: Architecture) -> str:
    """A small preset that transformers opens as one of its own and whose objective is that of `a`, "" where none is."""
    if a.encoder is not None:
        return "t5-mini"
    return {"causal": "small", "bidirectional": "bert-mini"}.get(a.attention.mask, "")


def run_opens_in(run: Path, a: Architecture) -> str:
    """The same line for the model in a run's folder, with the tokenizer that it has."""
    # no text is read with it, whatever its patterns are
    return opens_in(a, load_tokenizer(run, trust=True) if (run / "tokenizer.json").exists() else None)
