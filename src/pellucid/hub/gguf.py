"""Write GGUF, the single file that llama.cpp reads, for the GPT-2, Llama and Qwen3 architectures, with byte-level BPE.

Names, keys and layouts are those of llama.cpp's own conversion (`pellucid.hub.tables.llama_cpp`). Matrices are stored
out x in, as ours are (a GGUF file lists the sizes in reverse).
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.canonical_fields import without_dropout
from pellucid.hub.families import FamilyError, each_to_theirs, parameter_shapes, tensor_pairs
from pellucid.hub.round_trip import able_family
from pellucid.hub.tables import Family
from pellucid.hub.tables.llama_cpp import GGUF_FAMILIES
from pellucid.text.sanitize import sanitize
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import GPT2_PATTERN, GPT4_PATTERN, QWEN_PATTERN, BPETokenizer

#: the divisors of the rotary frequencies, where they are scaled as in Llama 3
FACTORS = "rope_freqs.weight"
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


@functools.lru_cache(maxsize=8)
def gguf_family(a: Architecture) -> Family:
    """The architecture of llama.cpp that represents it; rates of dropout, which no file holds, do not count.

    Raises FamilyError with the options that are in the way.
    """
    return able_family(without_dropout(a), GGUF_FAMILIES.values(), "GGUF")


def tensors_of(state: Mapping[str, Tensor], a: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Our tensors under their names, one at a time. A tied readout is left out: llama.cpp reads the embedding
    instead.
    """
    yield from each_to_theirs(state, without_dropout(a), gguf_family(a))
    if a.positions.scaling == "llama3":
        yield FACTORS, frequency_factors(a)


def frequency_factors(a: Architecture) -> Tensor:
    """The divisor of each rotary frequency (Llama 3.1), float32 [d_head / 2]."""
    p = a.positions
    base = p.base ** (-np.arange(0, a.d_head, 2, dtype=np.float64) / a.d_head)
    turns = p.n_trained * base / (2 * np.pi)
    share = np.clip((turns - p.low) / (p.high - p.low), 0, 1)
    return torch.from_numpy((1 / ((1 - share) / p.factor + share)).astype(np.float32))


def keys_of(a: Architecture) -> dict[str, Any]:
    """Every key of the architecture, with its prefix."""
    family = gguf_family(a)
    entries = flat_entries(family.entries(without_dropout(a)))
    return {f"{family.name}.{path}": value for path, value in entries.items() if not path.startswith("tensors.")}


def flat_entries(entries: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The entries of nested objects by their paths."""
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        flat |= flat_entries(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat


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

    architecture = gguf_family(a).name
    if tokenizer is None:
        raise FamilyError("a GGUF file includes a tokenizer, but this model has none: load it with tokenizer=PATH")
    said = tokenizer_keys(tokenizer, a.n_vocab)
    word, number = WEIGHTS[weights]
    general = {"type": "model", "name": sanitize(name) or "model", "file_type": number, "quantization_version": 2}
    general |= {"license": licence} if licence else {}
    writer = gguf.GGUFWriter(path, architecture)
    keys = {f"general.{key}": value for key, value in general.items()} | keys_of(a)
    keys |= {f"tokenizer.ggml.{key}": value for key, value in said.items()}
    keys |= {} if chat_template is None else {"tokenizer.chat_template": chat_template}
    for key, value in keys.items():
        _add_metadata(writer, key, value)
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
    pairs = tensor_pairs(gguf_family(a), shapes, a)
    formats = [_tensor_format(theirs, shapes[ours[0]], word) for ours, theirs, _ in pairs]
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
