"""Writes docs/families.md: each family, its fixed options, and how far its logits are from those of transformers."""

import importlib
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pellucid.hub import FAMILIES, architecture_of, to_ours
from pellucid.hub.tables.entries import WITHOUT_EFFECT
from pellucid.model import Transformer
from pellucid.model.weights import load_state

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "families.md"
HEAD = """# Families

This page is written by `python docs/build_families.py`, which needs transformers. One table for each family, in
`src/pellucid/hub/tables`, translates its config.json and its tensors in both directions. If a table cannot represent
a model, Pellucid refuses it and names the entry or the option.

Rotary positions scaled as longrope (Phi-3) have two lists of factors: a text of more than
`original_max_position_embeddings` tokens has the second list for all its tokens, as in transformers, so that its
first logits differ from those of a shorter text. A text that crosses this length while it is generated is read
again there. `pellucid serve` ends texts at this length and says so. Positions scaled as dynamic have the
frequencies of transformers for texts of up to `max_position_embeddings`, where the context ends: transformers
changes them with every further token, so that keys in its cache are those of a shorter text
([decisions](decisions.md#the-network)).

The last two columns are the largest differences of logits from transformers', over tiny random models with every gain
and bias perturbed, under all options of the family in `tests/parity/random_models.py`. For "in float64", every
float32 in transformers' code is read as float64. "As published" leaves that code unchanged: there the rotary tables,
the mean square of Llama's norms or the softmax are float32 whatever the precision of the weights. BLOOM's own gelu
writes sqrt(2/pi) with eight digits. Experts are computed one by one (`experts_implementation = "eager"`). The
encoders of T5, BART, mBART and Marian have the options of their decoders unless the table names others.

If no family can represent a model, its folder holds code made from the network's own source, with `model_type =
"pellucid"`. transformers opens it with `trust_remote_code=True` and computes the same logits, to 1e-12 in float64. As
with any model of transformers, you can use `generate` (with and without a cache, with beams, in batches padded on the
left, and beyond the context as in `pellucid generate`), pipelines, `save_pretrained`, losses of `labels`, hidden
states and attention patterns. These raise an error with a reason: static, quantised and offloaded caches, a
vocabulary of another size, gradient checkpointing, and assisted generation beyond the context.

A folder of a class without a head (`BertModel`) opens too: you can ask for its traces and hidden states; what needs
probabilities raises an error (`readout = none`). A folder without a tokenizer takes and gives ids in digits, unless
`load(folder, tokenizer=PATH)` names one; a `vocab.txt` is read as WordPiece, with the options of
`tokenizer_config.json`. Weights that hold NaN or infinity are refused, unless you pass `allow_nan=True`.

"""
TABLE = """
| family | class of transformers | fixed options | directions | in float64 | as published |
|---|---|---|---|---|---|
"""
LEFT_OUT = {
    "proportional rotary positions": "no option",
    "quantised weights": "their numbers are in a layout of each method",
    "mixtures of experts in some layers alone (decoder_sparse_step, mlp_only_layers)": "all layers have one form",
    "DeepSeek-V3": "its router chooses among groups of experts, with a bias that the experts' weights do not have",
    "OLMo and OLMoE with clip_qkv": "no option that cuts queries, keys and values off",
    "Falcon with ALiBi (rw)": "transformers rounds slope times position to bfloat16, so that neighbouring keys beyond "
    "position 256 share one bias, and its eager code adds it twice where its sdpa code adds it once",
    "Phi and StableLM with an odd number of rotated coordinates": "transformers cuts off an odd number of coordinates "
    "and rotates them by tables of an even width, which fails; GPT-NeoX rotates one coordinate more, and is read",
    "what reads images in Gemma 3 (gemma3) and Qwen3-VL (qwen3_vl)": "their language model opens alone, as gemma3_text "
    "and as qwen3, and a note says so",
    "Gemma 3n": "options of its own",
    "T5 with a tied readout that is not scaled, or the other way round": "transformers 5 writes the same entries for a "
    "tied and an untied one; scale_decoder_outputs = false is read as untied, as in v1.1, and refused where the file "
    "holds no lm_head.weight",
    "UMT5, Pegasus and other pairs": "no table yet; UMT5's biases differ from layer to layer",
    "texts of mBART and Marian": "their models are read and give logits of ids, but mBART's tokenizer puts codes of "
    "languages beside sources and targets, and Marian has two files of SentencePiece: texts are ids in digits",
    "the head of ELECTRA's discriminators": "it gives each token one number, for which there is no readout; they open "
    "as streams (readout = none)",
    "ModernBERT with another classifier_activation than hidden_activation": "mlp.activation is both",
    "dropout inside of MLPs and of whole layers (T5's there, BART's activation_dropout and layerdrop)": "no option, "
    "and only training reads them",
}
PASSED_OVER = """
## Entries without effect

Pellucid reads every entry of config.json that changes a logit; if it cannot represent the entry's value, it stops and
names the entry. The following entries change no logit and are ignored, except for the two that say which ids end texts
and start targets. An entry that is neither read nor in this list is named in a warning.

"""
#: what cannot come back: rows of position tables that only padding reads
ONE_WAY = "both; rows before the first position come back as 0"


def own_words(family: Any) -> list[tuple[str, Any]]:
    """The family's fixed options; an encoder's only where they differ from the decoder's."""
    own = ((name, word, name.removeprefix("encoder.")) for name, word in family.fixed.items())
    return [(name, word) for name, word, same in own if same == name or family.fixed.get(same) != word]


def rows() -> list[str]:
    """A line for each family, without the two measured columns."""
    lines = []
    for name, family in FAMILIES.items():
        words = ", ".join(f"{field} = {word}" for field, word in own_words(family)) or "none"
        directions = ONE_WAY if any(row.position_offset for row in family.rows) else "both"
        lines.append(f"| {name} | {family.model_class} | {words} | {directions} |")
    return lines


def left_out() -> str:
    """What is not supported, each with its reason."""
    lines = (f"- {name}: {why}" for name, why in LEFT_OUT.items())
    return "\n## Left out\n\n" + "\n".join(lines) + "\n"


def without_effect() -> str:
    """The entries of config.json that are ignored because no logit depends on them, by the reason."""
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
    # RoBERTa and XLM-RoBERTa count their padding token, 1, as no position
    tokens = torch.randint(2, network.architecture.n_vocab, (3, network.architecture.n_ctx), generator=generator)
    shared = importlib.import_module("theirs")
    return (shared.our_logits(network, tokens) - shared.logits_of(model, tokens)).abs().max().item()


def measured() -> str:
    """When the differences were measured, and with what."""
    return f"Measured on {date.today()} with transformers {version('transformers')} and torch {version('torch')}.\n"


def build() -> str:
    """The whole page."""
    sys.path[:0] = [str(ROOT / "tests" / "parity"), str(ROOT / "tests")]
    models = importlib.import_module("random_models")
    lines = []
    for name, line in zip(FAMILIES, rows(), strict=True):
        variants = models.TINY[name][2]
        published = max(difference(models, name, variant) for variant in variants)
        with models.in_float64():
            exact = max(difference(models, name, variant) for variant in variants)
        lines.append(f"{line} {exact:.0e} | {published:.0e} |")
    return HEAD + measured() + TABLE + "\n".join(lines) + "\n" + left_out() + without_effect()


if __name__ == "__main__":
    PAGE.write_text(build(), encoding="utf-8")
