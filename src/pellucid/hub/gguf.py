"""Write GGUF, the single file that llama.cpp reads, for the GPT-2, Llama and Qwen3 architectures, with byte-level BPE.

Names, keys and layouts are those of llama.cpp's own conversion. Matrices are stored out x in, as ours are (a GGUF file
lists the sizes in reverse). For Llama, llama.cpp rotates neighbouring coordinates (2d, 2d + 1) of queries and keys, so
the rows of a model that rotates halves (d, d + d_head / 2) are reordered head by head. For Qwen3 it rotates halves, as
we do.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError, architecture_of, parameter_shapes
from pellucid.hub.round_trip import able_target
from pellucid.hub.tables import FAMILIES
from pellucid.hub.tables.rows import QKV
from pellucid.text.sanitize import sanitize
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import GPT2_PATTERN, GPT4_PATTERN, QWEN_PATTERN, BPETokenizer

#: their tensor -> our module, or the several modules that it joins; {i} is the layer
GPT2_NAMES = {
    "token_embd": "embed.token",
    "position_embd": "embed.position",
    "blk.{i}.attn_norm": "blocks.{i}.norm_1",
    "blk.{i}.attn_qkv": QKV,
    "blk.{i}.attn_output": "blocks.{i}.attn.out",
    "blk.{i}.ffn_norm": "blocks.{i}.norm_2",
    "blk.{i}.ffn_up": "blocks.{i}.mlp.up.0",
    "blk.{i}.ffn_down": "blocks.{i}.mlp.down",
    "output_norm": "final_norm",
    "output": "unembed",
}
LLAMA_NAMES = {
    "token_embd": "embed.token",
    "blk.{i}.attn_norm": "blocks.{i}.norm_1",
    "blk.{i}.attn_q": "blocks.{i}.attn.query",
    "blk.{i}.attn_k": "blocks.{i}.attn.key",
    "blk.{i}.attn_v": "blocks.{i}.attn.value",
    "blk.{i}.attn_output": "blocks.{i}.attn.out",
    "blk.{i}.ffn_norm": "blocks.{i}.norm_2",
    "blk.{i}.ffn_gate": "blocks.{i}.mlp.gate",
    "blk.{i}.ffn_up": "blocks.{i}.mlp.up.0",
    "blk.{i}.ffn_down": "blocks.{i}.mlp.down",
    "output_norm": "final_norm",
    "output": "unembed",
}
QWEN3_NAMES = LLAMA_NAMES | {
    "blk.{i}.attn_q_norm": "blocks.{i}.attn.query_norm",
    "blk.{i}.attn_k_norm": "blocks.{i}.attn.key_norm",
}
#: by the family whose options they are
METADATA_KEYS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "gpt2": dict(GPT2_NAMES),
    "llama": dict(LLAMA_NAMES),
    "qwen3": dict(QWEN3_NAMES),
}
FACTORS = "rope_freqs.weight"
#: positions.factor, low, high and n_trained of the Llama 3 models; a file holds only the factors computed of them
LLAMA3 = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))
#: entries that change what some architecture computes, with the values that change nothing in those that are read here
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "use_parallel_residual": (False,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": (0, 1),  # the softmax
    "expert_group_count": (0, 1),
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
    "nextn_predict_layers": (0,),
}
#: entries that say again what others say, or nothing of what is computed
WITHOUT_EFFECT = ("vocab_size", "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned")
TURNED = ("blk.{i}.attn_q", "blk.{i}.attn_k")
#: our name of a number format -> theirs, and its number for general.file_type
WEIGHTS = {"float32": ("F32", 0), "float16": ("F16", 1), "q8_0": ("Q8_0", 7), "q5_0": ("Q5_0", 8), "q4_0": ("Q4_0", 2)}
#: their names of pre-tokenizer patterns, and whether merges are ignored for whole words
PATTERNS = {GPT2_PATTERN: ("gpt-2", False), GPT4_PATTERN: ("llama-bpe", True), QWEN_PATTERN: ("qwen2", False)}
#: the normalizer of Qwen, and what is said of it
COMPOSES = {"type": "NFC"}
NOT_COMPOSED = (
    "llama.cpp does not compose characters (NFC) as this tokenizer does, so text with combining characters may get "
    "other ids there."
)
NORMAL, CONTROL, USER_DEFINED, UNUSED_TOKEN = 1, 3, 4, 5


@dataclass(frozen=True)
class FileFacts:
    """What the tensors of a file say of the architecture: sizes and names, and the factors of rope_freqs.

    scalings  positions.factor, low, high and n_trained that the factors may have been computed of
    """

    n_vocab: int
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    factors: Tensor | None
    scalings: tuple[tuple[float, float, float, int], ...]


@dataclass(frozen=True)
class GGUFTarget:
    """A GGUF file of one of the architectures of NAMES, as `pellucid.hub.round_trip.Target` describes it."""

    name: str
    has_encoder = False

    def round_trip(self, a: Architecture) -> Architecture:
        """Dropout has no effect in a file, and of queries and keys that llama.cpp turns either layout is written."""
        p = a.positions
        turned = self.name == "llama" and p.scaling == "llama3"
        facts = FileFacts(
            a.n_vocab,
            a.unembed == "tied",
            a.attention.bias != "none",
            a.mlp.bias != "none",
            frequency_factors(a) if turned else None,
            ((p.factor, p.low, p.high, p.n_trained),),
        )
        keys = {f"{self.name}.{name}": value for name, value in keys_of(a, self.name).items()}
        read = architecture_from(OwnEntries({"general.architecture": self.name, **keys}), facts)
        free: dict[str, Any] = {f"dropout.{site}": rate for site, rate in a.to_dict()["dropout"].items()}
        free |= {"positions.layout": p.layout} if self.name == "llama" and p.kind == "rotary" else {}
        return read.with_fields(free)

    def unmet_limits(self, a: Architecture) -> list[str]:
        return FAMILIES[self.name].unmet_limits(a)

    def unreadable_field(self, a: Architecture, error: FamilyError) -> str:
        return FAMILIES[self.name].unreadable_field(a, error)


TARGETS = tuple(map(GGUFTarget, METADATA_KEYS))


@functools.lru_cache(maxsize=8)
def gguf_architecture(a: Architecture) -> str:
    """The name of NAMES that represents it. Raises FamilyError with the options that are in the way."""
    return able_target(a, TARGETS, "GGUF").name


# Tensors ------------------------------------------------------------------------------------------


def tensors_of(state: Mapping[str, Tensor], a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Our tensors under their names, one at a time. A tied readout is omitted: llama.cpp reads the embedding
    instead.
    """
    for theirs, ours, layout in gguf_tensors(a):
        yield theirs, in_their_layout([state[name] for name in ours], layout, a)
    if gguf_architecture(a) == "llama" and a.positions.scaling == "llama3":
        yield "rope_freqs.weight", frequency_factors(a)


def in_their_layout(parts: list[Tensor], layout: str, a: Architecture) -> Tensor:
    """The tensor of theirs that joins ours: row after row ("rows"), or each head's halves in turns ("halves")."""
    tensor = torch.cat(parts) if len(parts) > 1 else parts[0]
    return interleave_halves(tensor, a.d_head) if layout == "halves" else tensor


def from_gguf(tensors: Mapping[str, Tensor], a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `tensors_of`, with which a written file is checked."""
    for theirs, ours, layout in gguf_tensors(a):
        yield from separated(tensors[theirs], ours, layout, a)


def separated(tensor: Tensor, ours: tuple[str, ...], layout: str, a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Our tensors that one of theirs joins, by name."""
    shapes = parameter_shapes(a)
    tensor = separate_halves(tensor, a.d_head) if layout == "halves" else tensor
    return zip(ours, tensor.split([shapes[name][0] for name in ours]), strict=True)


def gguf_tensors(a: Architecture) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(their tensor, our tensors, how it joins them: "rows" or "halves", as `in_their_layout`)."""
    shapes, shape = parameter_shapes(a), gguf_architecture(a)
    for theirs, ours in METADATA_KEYS[shape].items():
        modules = (ours,) if isinstance(ours, str) else ours
        layout = "halves" if shape == "llama" and theirs in TURNED and a.positions.layout == "halves" else "rows"
        for i in range(a.n_layers) if "{i}" in theirs else [0]:
            for ours_part, part in (("weight", "weight"), ("gain", "weight"), ("bias", "bias")):
                names = tuple(f"{module.format(i=i)}.{ours_part}" for module in modules)
                if names[0] in shapes:
                    yield f"{theirs.format(i=i)}.{part}", names, layout


def interleave_halves(rows: Tensor, d_head: int) -> Tensor:
    """Reorder rows so that (d, d + d_head / 2) of each head become neighbours (2d, 2d + 1)."""
    return rows.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2)


def separate_halves(rows: Tensor, d_head: int) -> Tensor:
    """The inverse of `interleave_halves`."""
    return rows.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2)


def frequency_factors(a: Architecture) -> Tensor:
    """The divisor of each rotary frequency (Llama 3.1), float32 [d_head / 2]."""
    p = a.positions
    base = p.base ** (-np.arange(0, a.d_head, 2, dtype=np.float64) / a.d_head)
    turns = p.n_trained * base / (2 * np.pi)
    share = np.clip((turns - p.low) / (p.high - p.low), 0, 1)
    return torch.from_numpy((1 / ((1 - share) / p.factor + share)).astype(np.float32))


# Keys ---------------------------------------------------------------------------------------------


def keys_of(a: Architecture, kind: str) -> dict[str, Any]:
    """Every key of the architecture, without its prefix; `kind` is one of NAMES."""
    keys: dict[str, Any] = {
        "block_count": a.n_layers,
        "context_length": a.n_ctx,
        "embedding_length": a.d_model,
        "feed_forward_length": a.d_ff,
        "attention.head_count": a.n_heads,
    }
    if kind == "gpt2":
        return keys | {"attention.layer_norm_epsilon": a.norm.eps}
    keys |= {
        "attention.head_count_kv": a.n_kv_heads,
        "attention.layer_norm_rms_epsilon": a.norm.eps,
        "rope.freq_base": a.positions.base,
        "attention.key_length": a.d_head,
        "attention.value_length": a.d_head,
    }
    if kind == "llama":
        keys |= {"rope.dimension_count": a.d_head, "vocab_size": a.n_vocab}
    if a.positions.scaling == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": a.positions.factor}
    return keys


class OwnEntries(dict[str, Any]):
    """The entries of the file's architecture, without its name, and which of them were read.

    kind  the name of the architecture. Raises FamilyError for one that is not in NAMES
    """

    def __init__(self, keys: Mapping[str, Any]):
        self.kind, self.read = keys["general.architecture"], set[str]()
        before = f"{self.kind}."
        super().__init__({name.removeprefix(before): x for name, x in keys.items() if name.startswith(before)})
        n_experts = self.get("expert_count")
        if self.kind not in METADATA_KEYS or n_experts:
            kind = f"{self.kind} with {n_experts} experts" if n_experts else self.kind
            raise FamilyError(
                f"general.architecture = {kind}: expected one of {', '.join(METADATA_KEYS)}, without experts; "
                "for another "
                "architecture give the model's Hugging Face folder"
            )

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (through __getitem__)

    def check(self, a: Architecture) -> None:
        """Raise FamilyError for an entry that was not read and says that the model computes something else."""
        usual = {
            **NEUTRAL,
            "attention.scale": (0, float(np.float32(a.d_head**-0.5))),
            "attention.sliding_window": (0,),
        }
        for name in sorted(self.keys() & usual.keys() - self.read):
            value = self[name]
            is_wide = name == "attention.sliding_window" and isinstance(value, int) and value >= a.n_ctx
            is_number = isinstance(value, int | float)
            if not is_wide and not (is_number and any(np.isclose(value, same, rtol=1e-6) for same in usual[name])):
                raise FamilyError(
                    f"{self.kind}.{name} = {str(value)[:40]}: expected {' or '.join(map(str, usual[name]))}, as this "
                    "reader computes nothing else; give the model's Hugging Face folder"
                )

    @property
    def unread(self) -> list[str]:
        """The full names of the entries that neither `architecture_from` nor `check` knows."""
        return [f"{self.kind}.{name}" for name in sorted(self.keys() - self.read - set(WITHOUT_EFFECT))]


def architecture_from(own: OwnEntries, facts: FileFacts) -> Architecture:
    """The architecture of the file: the one that a config.json with the same entries describes.

    Raises FamilyError for what cannot be represented, and LookupError for entries that are missing.
    """
    kind = own.kind
    config: dict[str, Any] = {"model_type": kind, "vocab_size": facts.n_vocab, "tie_word_embeddings": facts.tied}
    if kind == "gpt2":
        sizes = {"n_layer": "block_count", "n_positions": "context_length", "n_embd": "embedding_length"}
        sizes |= {"n_head": "attention.head_count", "layer_norm_epsilon": "attention.layer_norm_epsilon"}
        config |= {name: own[key] for name, key in sizes.items()}
        is_usual = own["feed_forward_length"] == 4 * own["embedding_length"]
        return architecture_of(config | ({} if is_usual else {"n_inner": own["feed_forward_length"]}))
    n_heads, width = own["attention.head_count"], own["embedding_length"]
    d_head = own.get("attention.key_length", width // n_heads)
    same = {"attention.value_length": d_head, "rope.dimension_count": d_head}
    if wrong := [key for key, value in same.items() if own.get(key, value) != value]:
        raise FamilyError(f"{kind}.{wrong[0]} = {own[wrong[0]]}, and heads have {d_head} coordinates: expected as many")
    config |= {
        "num_hidden_layers": own["block_count"],
        "max_position_embeddings": own["context_length"],
        "hidden_size": width,
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": n_heads,
        "num_key_value_heads": own.get("attention.head_count_kv", n_heads),
        "head_dim": d_head,
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": own.get("rope.freq_base", 10_000.0)} | scaling_from(kind, own),
    }
    if kind == "llama":
        config |= {"attention_bias": facts.attention_bias, "mlp_bias": facts.mlp_bias}
    a = architecture_of(config)
    return a if facts.factors is None else with_factors(a, facts.factors, facts.scalings)


def scaling_from(kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of rope_parameters for the file's scaling. Raises FamilyError for one that is not read.

    As in llama.cpp, a missing type is linear, the factor may have its older name, and 0 stands for 1.
    """
    word = own.get("rope.scaling.type", "linear")
    if word not in ("none", "linear"):
        raise FamilyError(f"{kind}.rope.scaling.type = {word}: expected none or linear")
    if (multiplier := own.get("rope.scaling.attn_factor", 1.0)) != 1:
        raise FamilyError(
            f"{kind}.rope.scaling.attn_factor = {multiplier}: expected 1, as nothing multiplies what is rotated; give "
            "the model's Hugging Face folder"
        )
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 0.0))
    scales = word == "linear" and factor not in (0, 1)
    return {"rope_type": "linear", "factor": factor} if scales else {"rope_type": "default"}


def with_factors(
    a: Architecture, factors: Tensor, scalings: tuple[tuple[float, float, float, int], ...]
) -> Architecture:
    """The architecture whose rotary frequencies are divided by these factors: one of the Llama 3 models."""
    if a.scales_rotation:
        raise FamilyError(
            f"{FACTORS} and a rope factor of {a.positions.factor:g} both scale rotary positions: expected one of them; "
            "give the model's Hugging Face folder"
        )
    for factor, low, high, n_trained in scalings:
        fields = {"factor": factor, "low": low, "high": high, "n_trained": n_trained, "scaling": "llama3"}
        scaled = a.with_fields({f"positions.{name}": value for name, value in fields.items()})
        expected = frequency_factors(scaled)
        if expected.shape == factors.shape and torch.allclose(expected, factors, rtol=1e-5):
            return scaled
    raise FamilyError(
        f"{FACTORS} holds other factors than the Llama 3 models have, {factors.min():g} to {factors.max():g}: give the "
        "model's Hugging Face folder"
    )


def check_gguf_tokenizer(tokenizer: Tokenizer) -> BPETokenizer:
    """The same tokenizer. Raises FamilyError for one that llama.cpp cannot run."""
    if not isinstance(tokenizer, BPETokenizer) or not tokenizer.merges:
        raise FamilyError(
            f"GGUF: llama.cpp cannot run a tokenizer of kind {tokenizer.kind}: expected byte-level BPE with merges"
        )
    pattern_of(json.loads(tokenizer.to_json()))
    return tokenizer


def tokenizer_keys(tokenizer: Tokenizer, n_vocab: int) -> dict[str, Any]:
    """Every key of the tokenizer, without its prefix. Raises FamilyError for a tokenizer that llama.cpp cannot run.

    Embedding rows without a token are called [PAD...] and never generated.
    """
    tokenizer = check_gguf_tokenizer(tokenizer)
    content = json.loads(tokenizer.to_json())
    ids = content["model"]["vocab"] | {token["content"]: token["id"] for token in content.get("added_tokens", ())}
    plain = {token["content"] for token in content.get("added_tokens", ()) if not token["special"]}
    names = {i: name for name, i in ids.items()}
    tokens = [names.get(i, f"[PAD{i}]") for i in range(n_vocab)]
    special = set(tokenizer.special)
    kinds = [
        CONTROL if t in special else USER_DEFINED if t in plain else NORMAL if i in names else UNUSED_TOKEN
        for i, t in enumerate(tokens)
    ]
    return {
        "model": "gpt2",
        "pre": pattern_of(content),
        "tokens": tokens,
        "token_type": kinds,
        "merges": [f"{a} {b}" for a, b in tokenizer.merges],
        "bos_token_id": tokenizer.before[0] if len(tokenizer.before) == 1 else tokenizer.separator,
        "eos_token_id": tokenizer.separator,
        "padding_token_id": tokenizer.separator,
        "add_bos_token": len(tokenizer.before) == 1,
    }


def pattern_of(content: dict[str, Any]) -> str:
    """llama.cpp's name for the pre-tokenizer of this tokenizer.json. Raises FamilyError if it has none."""
    before = content.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    patterns += [GPT2_PATTERN for step in steps if step.get("type") == "ByteLevel" and step.get("use_regex", True)]
    spaced = any(step.get("add_prefix_space") for step in steps)
    plain = not spaced and {s.get("type") for s in steps} <= {"Split", "ByteLevel"}
    known_pattern = PATTERNS.get(patterns[0]) if plain and len(patterns) == 1 else None
    if known_pattern is None or known_pattern[1] != bool(content["model"].get("ignore_merges")):
        known = ", ".join(name for name, _ in PATTERNS.values())
        raise FamilyError(
            f"GGUF: llama.cpp has no name for the way this tokenizer splits text: expected one of {known}"
        )
    # llama.cpp's own conversion of Qwen's models leaves the composing of characters out
    if (changes := content.get("normalizer")) and (changes != COMPOSES or known_pattern[0] != "qwen2"):
        raise FamilyError(
            f"GGUF: this tokenizer changes text before it splits it ({changes.get('type')}), and llama.cpp does not"
        )
    return known_pattern[0]


def notes_on_gguf_tokenizer(tokenizer: Tokenizer) -> list[str]:
    """Sentences about texts for which llama.cpp gives other ids than the tokenizer."""
    composes = isinstance(tokenizer, BPETokenizer) and json.loads(tokenizer.to_json()).get("normalizer") == COMPOSES
    return [NOT_COMPOSED] if composes else []


# Writing and reading ------------------------------------------------------------------------------


def write_gguf(
    path: Path,
    state: Mapping[str, Tensor],
    a: Architecture,
    tokenizer: Tokenizer | None,
    weights: str = "float32",
    name: str = "",
    licence: str | None = None,
    chat_template: str | None = None,
) -> int:
    """Write the file, one tensor at a time. Returns the bytes of tensors. Raises ImportError without the package gguf.

    weights  number format of matrices: float32, float16, or q8_0, q5_0 or q4_0 (8, 5 or 4 bits, with a scale for
             every 32 numbers; the package gguf writes no other of llama.cpp's, such as q6_k). Vectors and position
             tables stay float32, as llama.cpp requires.
    """
    import gguf

    shape = gguf_architecture(a)
    if tokenizer is None:
        raise FamilyError("a GGUF file includes a tokenizer, but this model has none: load it with tokenizer=PATH")
    said = tokenizer_keys(tokenizer, a.n_vocab)
    word, number = WEIGHTS[weights]
    general = {"type": "model", "name": sanitize(name) or "model", "file_type": number, "quantization_version": 2}
    general |= {"license": licence} if licence else {}
    writer = gguf.GGUFWriter(path, shape)
    chat = {} if chat_template is None else {"chat_template": chat_template}
    for scope, keys in (
        ("general", general),
        (shape, keys_of(a, shape)),
        ("tokenizer.ggml", said),
        ("tokenizer", chat),
    ):
        for key, value in keys.items():
            _add_metadata(writer, f"{scope}.{key}", value)
    total = 0
    for theirs, tensor in tensors_of(state, a):
        kind = gguf.GGMLQuantizationType[_tensor_format(theirs, tensor.shape, word)]
        size, block = gguf.GGML_QUANT_SIZES[kind][1], gguf.GGML_QUANT_SIZES[kind][0]
        n_bytes = tensor.numel() // block * size
        writer.add_tensor_info(theirs, list(tensor.shape), np.dtype(np.float32), n_bytes, raw_dtype=kind)
        total += n_bytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for theirs, tensor in tensors_of(state, a):
        kind = gguf.GGMLQuantizationType[_tensor_format(theirs, tensor.shape, word)]
        writer.write_tensor_data(gguf.quants.quantize(tensor.detach().float().contiguous().numpy(), kind))
    writer.close()
    return total


def _tensor_format(theirs: str, shape: Sequence[int], word: str) -> str:
    """The number format of a tensor: float32 for vectors and positions; float16 for matrices in fewer bits
    whose rows are not whole blocks of 32; else the one that was asked for.
    """
    if len(shape) == 1 or theirs.startswith("position_embd"):
        return "F32"
    return "F16" if word.startswith("Q") and shape[-1] % 32 else word


def notes_on_gguf_weights(a: Architecture, weights: str) -> list[str]:
    """A sentence about matrices that are written in another number format than `weights`, where there are some."""
    shapes, word = parameter_shapes(a), WEIGHTS[weights][0]
    formats = [_tensor_format(theirs, shapes[ours[0]], word) for theirs, ours, _ in gguf_tensors(a)]
    matrices = [kind for kind in formats if kind != "F32"]
    if word == "F32" or not (others := sum(kind != word for kind in matrices)):
        return []
    return [
        f"{others} of {len(matrices)} matrices are written as float16, not {weights}, because the length of their rows "
        "is not a multiple of 32."
    ]


def _add_metadata(writer: Any, key: str, value: Any) -> None:
    """Write numbers in their GGUF type: ids, sizes and counts unsigned, token types signed, all 32 bits."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys and tensors (as float32) of a GGUF file that was just written."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {
        t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), np.float32))
        for t in reader.tensors
    }
    return keys, tensors
