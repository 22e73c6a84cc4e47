"""Which software opens a model, known from its architecture and tokenizer before any weight exists."""

from pathlib import Path
from typing import Literal, get_args

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError
from pellucid.hub.gguf import gguf_architecture, tokenizer_keys
from pellucid.hub.write import exported_as
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.tokenizer import Kind, learn_tokenizer, load_tokenizer

#: the software that a model can be trained for, so that it opens there without extra code
Target = Literal["transformers", "gguf"]
#: the preset that a run for such a target starts from, by objective; prefix models have none
PRESET_FOR = {"next-token": "qwen3-mini", "chat": "qwen3-mini", "masked": "bert-mini", "source-target": "t5-mini"}
SOFTWARE = {"transformers": "transformers", "gguf": "llama.cpp"}


def check_target(target: Target, a: Architecture, tokenizer: str, pattern: str = "gpt2") -> None:
    """Raise FamilyError, which names the option, if the target cannot represent this architecture or tokenizer.

    tokenizer  bpe, word, char, byte or the path of a tokenizer.json, as a recipe names it
    pattern    how a byte-level BPE that is still to be trained splits text
    """
    if target not in get_args(Target):
        raise FamilyError(f"a model cannot be trained for {target!r}: choose one of {', '.join(get_args(Target))}")
    try:
        if target == "transformers":
            exported_as(a)
            return
        gguf_architecture(a)
        tokenizer_keys(_example(tokenizer, pattern), a.n_vocab)
    except FamilyError as error:
        raise FamilyError(f"{SOFTWARE[target]} cannot open this model without extra code: {error}") from None


def _example(tokenizer: str, pattern: str) -> Tokenizer:
    """The tokenizer of that path, or a small one of that kind, which differs from the trained one only in its ids."""
    if tokenizer not in get_args(Kind):
        return load_tokenizer(Path(tokenizer), trust=True)  # no text is read with it
    n_vocab = 300 if tokenizer in ("bpe", "word") else None
    return learn_tokenizer(tokenizer, ["a model that opens, a model that opens"], n_vocab, pattern=pattern)


def opens_in(a: Architecture, tokenizer: Tokenizer | None = None) -> str:
    """One line that lists the software that opens a model of this architecture, and how to train for llama.cpp.

    Without a tokenizer, the model is assumed to have one that llama.cpp can represent.
    """
    try:
        names = [f"transformers (as {exported_as(a)[0].name})"]
    except FamilyError:
        names = ["transformers (its own code)"]
    try:
        gguf_architecture(a)
        if tokenizer is not None:
            tokenizer_keys(tokenizer, a.n_vocab)
        names.append("llama.cpp (GGUF)")
        hint = ""
    except FamilyError:
        hint = how_to_train_for_gguf(a)
    return f"opens in: {', '.join([*names, 'pellucid'])}{hint}"


def how_to_train_for_gguf(a: Architecture) -> str:
    """What to add to a sentence on a model that llama.cpp cannot open; "" if it generates no text, as all do there."""
    generates = a.attention.mask == "causal" and a.encoder is None
    return "; for llama.cpp train with --for gguf" if generates else ""


def run_opens_in(run: Path, a: Architecture) -> str:
    """The same line for the model in a run's folder, with the tokenizer that it has."""
    # no text is read with it, whatever its patterns are
    return opens_in(a, load_tokenizer(run, trust=True) if (run / "tokenizer.json").exists() else None)
