"""Writes docs/families.md: every family of the tables, its words, and how far its logits are from transformers'."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

from pellucid.hub import FAMILIES, architecture_of, to_ours
from pellucid.hub.tables.entries import WITHOUT_EFFECT
from pellucid.model import Transformer
from pellucid.model.weights import load_state

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "families.md", ROOT / "README.md"
#: the table stands between them in the README
MARKS = ("<!-- families -->\n", "<!-- /families -->")
HEAD = """# Families

This page is written by `python docs/build_families.py` (which asks for transformers). Their config.json and tensors
become ours and ours theirs by one table each, in `src/pellucid/hub/tables`; what a table cannot say is refused with the
entry or the word that is in the way. The differences are the largest in the logits of tiny random models with every
gain and bias perturbed, all of the family's options in `tests/parity/random_models.py`: with every float32 in their
code read as float64, and as published, where rotary tables, the mean square of Llama's norms or the softmax are
float32 whatever the precision of the weights. BLOOM's own gelu writes sqrt(2/pi) with eight digits. Of T5 and BART the
words of the encoder are those of the decoder but where they are named.

A model that no family can represent is written with code of its own, made from the network's own source. Its folder
has `model_type = "pellucid"`; transformers opens it with `trust_remote_code=True` and gives the same logits, to 1e-12
in float64. These work as in any model of transformers: `generate` (with and without a cache, with beams, in batches
padded on the left, and beyond the context as `pellucid generate`), pipelines, `save_pretrained`, losses of `labels`,
hidden states and attention patterns. These are not offered, and refused in a sentence: static, quantised and offloaded
caches, a vocabulary of another size, gradient checkpointing, and tokens guessed ahead beyond the context.

A folder of a class without a head (`BertModel`) opens too: its traces and hidden states can be asked for, and what
needs probabilities says that there are none (`readout = none`). A folder without a tokenizer takes and gives ids in
digits, unless `load(folder, tokenizer=PATH)` names one; a `vocab.txt` is read as WordPiece, with the options of
`tokenizer_config.json`. Weights that hold NaN or infinity are refused, unless `load(folder, allow_nan=True)` asks for
them.

| family | class of transformers | words it fixes | directions | in float64 | as published |
|---|---|---|---|---|---|
"""
LEFT_OUT = {
    "rotary positions scaled as yarn, longrope or dynamic": "yarn also scales the scores, by a second formula; the "
    "others' frequencies depend on how long the text is",
    "Falcon with ALiBi (rw)": "its distances are divided by sqrt(d_head) with the scores",
    "Phi and StableLM with normalised queries and keys (qk_layernorm)": "theirs are layer norms",
    "Phi and StableLM with an odd number of rotated coordinates": "transformers cuts off an odd number of coordinates "
    "and rotates them by tables of an even width, which fails; GPT-NeoX rotates one coordinate more, and is read",
    "Gemma 3 with images (gemma3), and Gemma 3n": "the text model alone (gemma3_text) is read; 3n has words of its own",
    "OPT 350m": "no word for embeddings narrower than the stream",
    "T5 with a tied readout that is not scaled, or the other way round": "transformers 5 writes the same entries for a "
    "tied and an untied one; scale_decoder_outputs = false is read as untied, as in v1.1",
    "UMT5, mBART, Pegasus, Marian and other pairs": "no table yet; UMT5's biases differ from layer to layer",
    "dropout inside of MLPs and of whole layers (T5's there, BART's activation_dropout and layerdrop)": "no word, and "
    "only training reads them",
}
PASSED_OVER = """
## Entries that decide nothing

Every entry of config.json that changes a logit is read, or refused by its name where it has another value than the one
that is read. The following are passed over: whatever they hold, the logits are the same. An entry that is neither read
nor in this list is named in a warning.

"""
#: what cannot come back: rows of position tables that only padding reads
ONE_WAY = "both; rows before the first position come back as 0"


def own_words(family: Any) -> list[tuple[str, Any]]:
    """The family's words, those of an encoder where they are others than the decoder's."""
    own = ((name, word, name.removeprefix("encoder.")) for name, word in family.words.items())
    return [(name, word) for name, word, same in own if same == name or family.words.get(same) != word]


def rows() -> list[str]:
    """What the tables alone say, a line for each family, without the two measured columns."""
    lines = []
    for name, family in FAMILIES.items():
        words = ", ".join(f"{field} = {word}" for field, word in own_words(family)) or "none"
        directions = ONE_WAY if any(row.unread for row in family.rows) else "both"
        lines.append(f"| {name} | {family.model_class} | {words} | {directions} |")
    return lines


def left_out() -> str:
    """The families that cannot be said, each with what is in the way."""
    lines = (f"- {name}: {why}" for name, why in LEFT_OUT.items())
    return "\n## Left out\n\n" + "\n".join(lines) + "\n"


def without_effect() -> str:
    """The entries of config.json that are passed over because no logit depends on them, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in WITHOUT_EFFECT.items():
        reasons.setdefault(why, []).append(name)
    lines = [f"- {why}: {', '.join(f'`{name}`' for name in names)}" for why, names in reasons.items()]
    for family in FAMILIES.values():
        each = [f"`{name}` ({why})" for name, why in family.without_effect.items()]
        lines += [f"- {family.name} alone: {', '.join(each)}"] if each else []
    return PASSED_OVER + "\n".join(lines) + "\n"


def difference(models: Any, name: str, variant: str) -> float:
    """max |ours - theirs| over the logits of one tiny model."""
    model, config = models.model_of_theirs(name, variant)
    network = Transformer(architecture_of(config)).double().eval()
    load_state(network, to_ours(model.state_dict(), config))
    generator = torch.Generator().manual_seed(0)
    # RoBERTa counts its padding token, 1, as no position
    tokens = torch.randint(2, network.architecture.n_vocab, (3, network.architecture.n_ctx), generator=generator)
    shared = importlib.import_module("theirs")
    return (shared.our_logits(network, tokens) - shared.logits_of(model, tokens)).abs().max().item()


def build() -> str:
    """The whole page."""
    sys.path.insert(0, str(ROOT / "tests" / "parity"))
    models = importlib.import_module("random_models")
    lines = []
    for name, line in zip(FAMILIES, rows(), strict=True):
        variants = models.TINY[name][2]
        published = max(difference(models, name, variant) for variant in variants)
        with models.in_float64():
            exact = max(difference(models, name, variant) for variant in variants)
        lines.append(f"{line} {exact:.0e} | {published:.0e} |")
    return HEAD + "\n".join(lines) + "\n" + left_out() + without_effect()


def in_readme(page: str) -> str:
    """README.md with the page's table, without the column of classes."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = [f"| {' | '.join([row[0], *row[2:]])} |" for row in cells]
    table[1] = "|" + "---|" * (len(cells[0]) - 1)
    text = README.read_text(encoding="utf-8")
    before, after = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    head = "Largest difference of logits from transformers', tiny random models, every option (docs/families.md):"
    return "\n".join([text[:before], head, "", *table, ""]) + text[after:]


if __name__ == "__main__":
    PAGE.write_text(made := build(), encoding="utf-8")
    README.write_text(in_readme(made), encoding="utf-8")
