"""Write GGUF, the single file that llama.cpp reads, for the GPT-2, Llama and Qwen3 architectures, and for Mixtral's,
Qwen3's and OLMoE's mixtures of experts, with byte-level BPE.

Names, keys and layouts are those of llama.cpp's own conversion. Matrices are stored out x in, as ours are (a GGUF file
lists the sizes in reverse). For Llama, llama.cpp rotates neighbouring coordinates (2d, 2d + 1) of queries and keys, so
the rows of a model that rotates halves (d, d + d_head / 2) are reordered head by head. For Qwen3 and OLMoE it rotates
halves, as we do. The maps of all experts of a layer are one tensor, experts x out x in.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError, because_of, each_in_the_way, in_the_way, n_in_the_way, parameter_shapes
from pellucid.hub.tables import FAMILIES
from pellucid.hub.tables.rows import QKV, visible_windows
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
EXPERT_NAMES = {
    "blk.{i}.ffn_gate_inp": "blocks.{i}.mlp.router",
    "blk.{i}.ffn_gate_exps": "blocks.{i}.mlp.experts.{e}.gate",
    "blk.{i}.ffn_up_exps": "blocks.{i}.mlp.experts.{e}.up.0",
    "blk.{i}.ffn_down_exps": "blocks.{i}.mlp.experts.{e}.down",
}


def _with_experts(names: dict[str, str]) -> dict[str, str]:
    """The same with a router and experts, whose number is {e}, in the place of the MLP."""
    return {theirs: ours for theirs, ours in names.items() if ".mlp." not in ours} | EXPERT_NAMES


#: by the family whose options they are
NAMES: dict[str, dict[str, str | tuple[str, ...]]] = {
    "gpt2": dict(GPT2_NAMES),
    "llama": dict(LLAMA_NAMES),
    "qwen3": dict(QWEN3_NAMES),
    "mixtral": dict(_with_experts(LLAMA_NAMES)),
    "qwen3_moe": dict(_with_experts(QWEN3_NAMES)),
    "olmoe": dict(_with_experts(QWEN3_NAMES)),
}
#: general.architecture, where it is not the family's name
THEIR_NAMES = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}
SILU, SCALED = ("silu",), ("none", "linear")
#: options that llama.cpp fixes, with the values it allows
FIXED: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {"mlp.activation": ("gelu_tanh",), "attention.scale": ("1/sqrt(d_head)",)},
    "llama": {"mlp.activation": SILU, "positions.scaling": (*SCALED, "llama3")},
    "qwen3": {"mlp.activation": SILU, "attention.bias": ("none",), "positions.scaling": SCALED},
    "mixtral": {"mlp.activation": SILU, "positions.scaling": SCALED},
    # the scores of the chosen experts sum to one for the first, and are left as they are for the second
    "qwen3_moe": {
        "mlp.activation": SILU,
        "attention.bias": ("none",),
        "positions.scaling": SCALED,
        "mlp.router_softmax": ("chosen",),
    },
    "olmoe": {
        "mlp.activation": SILU,
        "attention.bias": ("none",),
        "positions.scaling": SCALED,
        "mlp.router_softmax": ("all",),
    },
}
#: families whose queries and keys llama.cpp rotates by neighbours
ROTATES_NEIGHBOURS = ("llama", "mixtral")
#: how a tensor of theirs joins ours: row after row, with the rows of every head in another order, one for each expert
LAYOUTS = ("rows", "halves", "experts")
TURNED = ("blk.{i}.attn_q", "blk.{i}.attn_k")
#: our name of a number format -> theirs, and its number for general.file_type
WEIGHTS = {"float32": ("F32", 0), "float16": ("F16", 1), "q8_0": ("Q8_0", 7)}
#: their names of pre-tokenizer patterns, and whether merges are ignored for whole words
PATTERNS = {GPT2_PATTERN: ("gpt-2", False), GPT4_PATTERN: ("llama-bpe", True), QWEN_PATTERN: ("qwen2", False)}
#: the normalizer of Qwen, and what is said of it
COMPOSES = {"type": "NFC"}
NOT_COMPOSED = (
    "llama.cpp does not compose characters (NFC) as this tokenizer does, so text with combining characters may get "
    "other ids there."
)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def gguf_architecture(a: Architecture) -> str:
    """The family of NAMES that represents it.

    Raises FamilyError with the option that each of them cannot represent, that of the nearest family first. The error
    names only families with experts if the architecture has experts, and only families without them if it has none.
    """
    ways = {name: _in_the_way(a, name) for name in NAMES}
    if able := next((name for name, way in ways.items() if not way), None):
        return able
    of_its_kind = [name for name in NAMES if ("mlp.experts" in FAMILIES[name].limits) == bool(a.mlp.experts)]
    nearest_first = sorted(of_its_kind, key=lambda name: _n_in_the_way(a, name))
    said = because_of([(name, _each_in_the_way(a, name)) for name in nearest_first])
    raise FamilyError(f"this architecture cannot be written as GGUF: {said}")


def _without_free_choices(a: Architecture, name: str) -> Architecture:
    """The architecture without what no file of this family says: dropout has no effect there, and of these families
    either rotary layout can be converted.
    """
    return a.with_fields({"dropout": 0.0} | ({"positions.layout": "halves"} if name in ROTATES_NEIGHBOURS else {}))


def _n_in_the_way(a: Architecture, name: str) -> float:
    return max(n_in_the_way(_without_free_choices(a, name), FAMILIES[name]), len(_each_in_the_way(a, name)))


def _each_in_the_way(a: Architecture, name: str) -> list[str]:
    theirs = each_in_the_way(_without_free_choices(a, name), FAMILIES[name])
    each: dict[str, str] = {}
    for way in (_in_the_way(a, name), *theirs, *_fixed_otherwise(a, name)):
        each.setdefault(way.partition(" = ")[0], way)
    return list(each.values())


def _in_the_way(a: Architecture, name: str) -> str:
    way = in_the_way(_without_free_choices(a, name), FAMILIES[name])
    return way or next(iter(_fixed_otherwise(a, name)), "")


def _fixed_otherwise(a: Architecture, name: str) -> list[str]:
    """The options that llama.cpp fixes at other values, with the architecture's."""
    values = {
        "mlp.activation": a.mlp.activation,
        "attention.scale": a.attention.scale,
        "attention.bias": a.attention.bias,
        "positions.scaling": a.positions.scaling,
        "mlp.router_softmax": a.mlp.router_softmax,
    }
    ways = [f"attention.windows = {list(a.attention.windows)}"] if any(visible_windows(a)) else []
    if name == "olmoe" and a.n_kv_heads != a.n_heads:
        ways.append(f"attention.n_kv_heads = {a.n_kv_heads}")
    fixed = FIXED[name].items()
    return ways + [f"{field} = {values[field]}" for field, allowed in fixed if values[field] not in allowed]


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
    """The tensor of theirs that joins ours, in one of the LAYOUTS."""
    if layout == "experts":
        return torch.stack(parts)
    tensor = torch.cat(parts) if len(parts) > 1 else parts[0]
    return interleave_halves(tensor, a.d_head) if layout == "halves" else tensor


def from_gguf(tensors: Mapping[str, Tensor], a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `tensors_of`, with which a written file is checked."""
    for theirs, ours, layout in gguf_tensors(a):
        yield from separated(tensors[theirs], ours, layout, a)


def separated(tensor: Tensor, ours: tuple[str, ...], layout: str, a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Our tensors that one of theirs joins, by name."""
    if layout == "experts":
        return zip(ours, tensor, strict=True)
    shapes = parameter_shapes(a)
    tensor = separate_halves(tensor, a.d_head) if layout == "halves" else tensor
    return zip(ours, tensor.split([shapes[name][0] for name in ours]), strict=True)


def gguf_tensors(a: Architecture) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(their tensor, our tensors, how it joins them: one of LAYOUTS)."""
    shapes, shape = parameter_shapes(a), gguf_architecture(a)
    for theirs, ours in NAMES[shape].items():
        modules = (ours,) if isinstance(ours, str) else ours
        layout = (
            "halves" if shape in ROTATES_NEIGHBOURS and theirs in TURNED and a.positions.layout == "halves" else "rows"
        )
        if theirs.endswith("_exps"):
            modules = tuple(modules[0].replace("{e}", str(e)) for e in range(a.mlp.experts))
            layout = "experts"
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


def keys_of(a: Architecture) -> dict[str, Any]:
    """Every key of the architecture, without its prefix."""
    keys: dict[str, Any] = {
        "block_count": a.n_layers,
        "context_length": a.n_ctx,
        "embedding_length": a.d_model,
        "feed_forward_length": a.d_ff,
        "attention.head_count": a.n_heads,
    }
    shape = gguf_architecture(a)
    if shape == "gpt2":
        return keys | {"attention.layer_norm_epsilon": a.norm.eps}
    keys |= {
        "attention.head_count_kv": a.n_kv_heads,
        "attention.layer_norm_rms_epsilon": a.norm.eps,
        "rope.freq_base": a.positions.base,
    }
    if shape != "olmoe":  # whose heads are d_model / n_heads wide
        keys |= {"attention.key_length": a.d_head, "attention.value_length": a.d_head}
    if shape in ROTATES_NEIGHBOURS:
        keys |= {"rope.dimension_count": a.d_head, "vocab_size": a.n_vocab}
    if a.mlp.experts:
        keys |= {"expert_count": a.mlp.experts, "expert_used_count": a.mlp.experts_per_token}
    if shape == "qwen3_moe":  # the first is of layers without experts, of which there are none; Qwen gives this product
        keys |= {"feed_forward_length": a.d_ff * a.mlp.experts_per_token, "expert_feed_forward_length": a.d_ff}
    if a.positions.scaling == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": a.positions.factor}
    return keys


def tokenizer_keys(tokenizer: Tokenizer, n_vocab: int) -> dict[str, Any]:
    """Every key of the tokenizer, without its prefix. Raises FamilyError for a tokenizer that llama.cpp cannot run.

    Embedding rows without a token are called [PAD...] and never generated.
    """
    if not isinstance(tokenizer, BPETokenizer) or not tokenizer.merges:
        raise FamilyError(
            f"GGUF: llama.cpp cannot run a tokenizer of kind {tokenizer.kind}: expected byte-level BPE with merges"
        )
    content = json.loads(tokenizer.to_json())
    ids = content["model"]["vocab"] | {token["content"]: token["id"] for token in content.get("added_tokens", ())}
    plain = {token["content"] for token in content.get("added_tokens", ()) if not token["special"]}
    names = {i: name for name, i in ids.items()}
    tokens = [names.get(i, f"[PAD{i}]") for i in range(n_vocab)]
    special = set(tokenizer.special)
    kinds = [
        CONTROL if t in special else USER_DEFINED if t in plain else NORMAL if i in names else UNUSED
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

    weights  number format of matrices: float32, float16 or q8_0 (8 bits, with a scale for every 32 numbers). Vectors,
             position tables and routers stay float32, as llama.cpp requires.
    """
    import gguf

    shape = gguf_architecture(a)
    shape = THEIR_NAMES.get(shape, shape)
    if tokenizer is None:
        raise FamilyError("a GGUF file includes a tokenizer, but this model has none: load it with tokenizer=PATH")
    said = tokenizer_keys(tokenizer, a.n_vocab)
    word, number = WEIGHTS[weights]
    general = {"type": "model", "name": name or "model", "file_type": number, "quantization_version": 2}
    general |= {"license": licence} if licence else {}
    writer = gguf.GGUFWriter(path, shape)
    chat = {} if chat_template is None else {"chat_template": chat_template}
    for scope, keys in (("general", general), (shape, keys_of(a)), ("tokenizer.ggml", said), ("tokenizer", chat)):
        for key, value in keys.items():
            _add(writer, f"{scope}.{key}", value)
    total = 0
    for theirs, tensor in tensors_of(state, a):
        kind = gguf.GGMLQuantizationType[_kept_in(theirs, tensor.shape, word)]
        size, block = gguf.GGML_QUANT_SIZES[kind][1], gguf.GGML_QUANT_SIZES[kind][0]
        n_bytes = tensor.numel() // block * size
        writer.add_tensor_info(theirs, list(tensor.shape), np.dtype(np.float32), n_bytes, raw_dtype=kind)
        total += n_bytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for theirs, tensor in tensors_of(state, a):
        kind = gguf.GGMLQuantizationType[_kept_in(theirs, tensor.shape, word)]
        writer.write_tensor_data(gguf.quants.quantize(tensor.detach().float().contiguous().numpy(), kind))
    writer.close()
    return total


def _kept_in(theirs: str, shape: Sequence[int], word: str) -> str:
    """The number format of a tensor: float32 for vectors, positions and routers; float16 for q8_0 matrices whose rows
    are not whole blocks of 32; else the one that was asked for.
    """
    if len(shape) == 1 or theirs.startswith("position_embd") or "ffn_gate_inp" in theirs:
        return "F32"
    return "F16" if word == "Q8_0" and shape[-1] % 32 else word


def notes_on_gguf_weights(a: Architecture, weights: str) -> list[str]:
    """A sentence about matrices that are written in another number format than `weights`, where there are some."""
    shapes, word = parameter_shapes(a), WEIGHTS[weights][0]
    kept = [_kept_in(theirs, shapes[ours[0]], word) for theirs, ours, _ in gguf_tensors(a)]
    matrices = [kind for kind in kept if kind != "F32"]
    if word == "F32" or not (others := sum(kind != word for kind in matrices)):
        return []
    return [
        f"{others} of {len(matrices)} matrices are written as float16, not {weights}, because the length of their rows "
        "is not a multiple of 32."
    ]


def _add(writer: Any, key: str, value: Any) -> None:
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
