"""Open a GGUF file, llama.cpp's single file, as a model: the inverse of `pellucid.hub.gguf`.

The architectures are those that are written: gpt2, llama and qwen3, as llama.cpp's own conversion stores them. Tensors
in fewer bits (q8_0, q4_0, ...) are turned into float32 as they are read, one at a time.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.extras import install_command, is_importable
from pellucid.hub.canonical_fields import set_at
from pellucid.hub.config import check_sizes, check_weights
from pellucid.hub.families import (
    FamilyError,
    LazyStateDict,
    architecture_of,
    parameter_shapes,
    read_paths,
    tensor_pairs,
)
from pellucid.hub.folder import Folder, first_five
from pellucid.hub.gguf import CONTROL, FACTORS, PATTERNS, UNUSED_TOKEN, USER_DEFINED, frequency_factors
from pellucid.hub.tables import Family
from pellucid.hub.tables.llama_cpp import GGUF_FAMILIES, LLAMA3_FIELDS
from pellucid.json_files import check_regular
from pellucid.model_names import FolderError
from pellucid.text.chat_template import ChatError, ChatTemplate
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.bpe import GPT2_PATTERN, BPETokenizer
from pellucid.text.tokenizers.post_processor import template_around
from pellucid.text.tokenizers.tokenizer import Tokenizer

#: the pre-tokenizer whose texts llama.cpp begins with the bos token unless the file says otherwise (Llama 3)
BOS_PRETOKENIZER = "llama-bpe"
#: formats that lose no digits of float32
EXACT = ("F32", "F64")
#: entries of an array beside the tensors; the largest in use, the merges of a vocabulary, have a tenth of it
LONGEST_ARRAY = 1 << 22
#: LLAMA3_FIELDS of the Llama 3 models; a file holds only the factors computed of them
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
    "rope.scaling.attn_factor": (1,),
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
WITHOUT_EFFECT = ("expert_count", "vocab_size", "tensor_data_layout")
WITHOUT_EFFECT += ("rope.scaling.original_context_length", "rope.scaling.finetuned")


class GGUFTensors(Mapping[str, Tensor]):
    """The tensors of a GGUF file under its names, float32, each read when it is asked for."""

    def __init__(self, reader: Any):
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def __getitem__(self, name: str) -> Tensor:
        import gguf

        tensor = self.tensors[name]
        return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def n_numbers(self) -> int:
        """How many numbers there are."""
        return sum(int(tensor.n_elements) for tensor in self.tensors.values())

    def formats(self) -> list[tuple[str, int]]:
        """The number formats of the tensors and how many have each, the most frequent first."""
        return Counter(tensor.tensor_type.name for tensor in self.tensors.values()).most_common()


def bounded_reader(path: Path) -> Any:
    """The gguf package's reader of a file, which refuses, before reading on, what leads behind the file's end, arrays
    of arrays, and arrays longer than any vocabulary. Raises ValueError and OSError.
    """
    import gguf

    class BoundedReader(gguf.GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):
                raise ValueError(f"an entry ends at byte {end:,}, and the file has {len(self.data):,}")
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == gguf.GGUFValueType.ARRAY:
                kind, length = int(self._get(orig_offs, np.uint32)[0]), int(self._get(orig_offs + 4, np.uint64)[0])
                if kind == gguf.GGUFValueType.ARRAY:
                    raise ValueError("an array of arrays: expected arrays of numbers, of truth values or of texts")
                if length > LONGEST_ARRAY:
                    raise ValueError(f"an array of {length:,} entries: expected at most {LONGEST_ARRAY:,}")
            return super()._get_field_parts(orig_offs, raw_type)

    return BoundedReader(check_regular(path))


@dataclass(frozen=True)
class GGUFFile(Folder):
    """A model in one file, whose entries beside the tensors are `keys`."""

    keys: Mapping[str, Any] = field(default_factory=dict)

    def stored_tokenizer(self) -> tuple[Tokenizer | None, str]:
        """The tokenizer that the keys describe, or None and why it cannot be used."""
        try:
            return tokenizer_from(self.keys), ""
        except TokenizerError as error:
            return None, f"holds a tokenizer that cannot be used ({error})"

    def stored_chat_template(self) -> tuple[ChatTemplate | None, list[str]]:
        source = self.keys.get("tokenizer.chat_template")
        if source is None:
            return None, []
        tokens = self.keys.get("tokenizer.ggml.tokens", [])
        ids = {name: self.keys.get(f"tokenizer.ggml.{name}_id") for name in ("bos_token", "eos_token")}
        variables = {name: tokens[i] for name, i in ids.items() if type(i) is int and 0 <= i < len(tokens)}
        try:
            return ChatTemplate(source, variables), []
        except ChatError as error:
            return None, [f"{error}; without one the model takes part in no conversation"]

    @property
    def end_ids(self) -> list[int]:
        end = self.keys.get("tokenizer.ggml.eos_token_id")
        return [end] if type(end) is int and 0 <= end < self.architecture.n_vocab else []


def open_gguf(path: Path) -> GGUFFile:
    """Open the model in a GGUF file, without allocating it.

    Raises FolderError or FamilyError with one line if the file is damaged or holds another kind of model.
    """
    if not is_importable("gguf"):  # before anything is said of the file
        raise FolderError(f"{path}: GGUF files are read by the package gguf: {install_command('gguf')}")
    try:
        reader = bounded_reader(path)
        entries = {name: entry.contents() for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
        # 1e-5 was rounded to float32, whose shortest decimal is 1e-5 again
        keys = {name: float(str(np.float32(x))) if isinstance(x, float) else x for name, x in entries.items()}
        if (parts := keys.get("split.count", 0)) > 1:
            number = keys.get("split.no", 0) + 1
            raise FamilyError(
                f"part {number} of {parts} of a model: join them into one file (llama-gguf-split of llama.cpp does)"
            )
        tensors = GGUFTensors(reader)
        kind: Any = keys["general.architecture"]
        own = {name.removeprefix(f"{kind}."): x for name, x in keys.items() if name.startswith(f"{kind}.")}
        family, entries = family_of_file(kind, own), nested_entries(own)
        entries["tensors"] = facts_of_tensors(tensors)
        if FACTORS in tensors:
            a = architecture_of(entries, family)
            entries["tensors"]["llama3"] = scaling_of_factors(a, tensors[FACTORS])
        a = architecture_of(entries, family)
        unread = unread_entries(own, read_paths(entries, family), kind, a)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise FolderError(f"{path} is no GGUF file, or is damaged: {str(error)[:200] or repr(error)}") from None
    check_sizes(path, a)
    check_weights(path, a, tensors.n_numbers)
    expected = {theirs for _, theirs, _ in tensor_pairs(family, parameter_shapes(a), a)}
    if missing := sorted(expected - tensors.keys()):
        raise FolderError(f"{path}: the tensor {missing[0]} is missing: the architecture needs it")
    if extra := sorted(tensors.keys() - expected - {FACTORS}):
        raise FamilyError(
            f"{path}: unexpected tensor {extra[0]}: the reader of {kind} has no place for it, so the file computes "
            "something else; give the model's Hugging Face folder"
        )
    notes, formats = [], tensors.formats()
    if unread:
        notes.append(
            f"{path} has unknown entries, which are ignored: {first_five(unread)}; if one of them changes what the "
            "model computes, the result here differs"
        )
    if any(name not in EXACT for name, _ in formats):
        counts = ", ".join(f"{n} tensors as {name}" for name, n in formats)
        notes.append(
            f"{path} holds {counts}: they are converted to float32, and keep the rounding with which they were stored"
        )
    ours = LazyStateDict(tensors, entries, family)
    return GGUFFile(path, a, None, {}, ours, file_notes=tuple(notes), keys=keys)


def family_of_file(kind: str, own: Mapping[str, Any]) -> Family:
    """The table of the architecture of this name. Raises FamilyError for others, and for mixtures of experts."""
    n_experts = own.get("expert_count")
    if kind not in GGUF_FAMILIES or n_experts:
        kind = f"{kind} with {n_experts} experts" if n_experts else kind
        raise FamilyError(
            f"general.architecture = {kind}: expected one of {', '.join(GGUF_FAMILIES)}, without experts; for another "
            "architecture give the model's Hugging Face folder"
        )
    return GGUF_FAMILIES[kind]


def nested_entries(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The entries as nested objects. Raises TypeError or AttributeError where one is both a value and an object."""
    entries: dict[str, Any] = {}
    for path, value in sorted(flat.items()):  # a value comes before the entries of an object of its name
        set_at(entries, path, value)
    return entries


def facts_of_tensors(tensors: GGUFTensors) -> dict[str, Any]:
    """What the names and sizes of the tensors say. Raises LookupError where there is no embedding."""
    return {
        "n_vocab": int(tensors.tensors["token_embd.weight"].shape[-1]),
        "tied": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }


def scaling_of_factors(a: Architecture, factors: Tensor) -> tuple[float, float, float, int]:
    """The scaling of the Llama 3 models whose rotary frequencies are divided by these factors."""
    if a.scales_rotation:
        raise FamilyError(
            f"{FACTORS} and a rope factor of {a.positions.factor:g} both scale rotary positions: expected one of them; "
            "give the model's Hugging Face folder"
        )
    for scaling in LLAMA3:
        scaled = a.with_fields({"positions.scaling": "llama3", **dict(zip(LLAMA3_FIELDS, scaling, strict=True))})
        expected = frequency_factors(scaled)
        if expected.shape == factors.shape and torch.allclose(expected, factors, rtol=1e-5):
            return scaling
    raise FamilyError(
        f"{FACTORS} holds other factors than the Llama 3 models have, {factors.min():g} to {factors.max():g}: give the "
        "model's Hugging Face folder"
    )


def unread_entries(own: Mapping[str, Any], read: Collection[str], kind: str, a: Architecture) -> list[str]:
    """The full names of the entries of which nothing is known.

    Raises FamilyError for an entry that the table does not read and that says that the model computes something else.
    """
    usual = {
        **NEUTRAL,
        "attention.scale": (0, float(np.float32(a.d_head**-0.5))),
        "attention.sliding_window": (0,),
        **dict.fromkeys(("attention.value_length", "rope.dimension_count"), (a.d_head,)),
    }
    for name in sorted(own.keys() & usual.keys() - set(read)):
        value = own[name]
        is_wide = name == "attention.sliding_window" and isinstance(value, int) and value >= a.n_ctx
        is_number = isinstance(value, int | float)
        if not is_wide and not (is_number and any(np.isclose(value, same, rtol=1e-6) for same in usual[name])):
            raise FamilyError(
                f"{kind}.{name} = {str(value)[:40]}: expected {' or '.join(map(str, usual[name]))}, as this reader "
                "computes nothing else; give the model's Hugging Face folder"
            )
    return [f"{kind}.{name}" for name in sorted(own.keys() - set(read) - usual.keys() - set(WITHOUT_EFFECT))]


# Tokenizer ----------------------------------------------------------------------------------------


def tokenizer_from(keys: Mapping[str, Any]) -> BPETokenizer:
    """The tokenizer of the file, by the tokenizer.json that says the same. Raises TokenizerError for other kinds."""
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()}
    patterns = {name: (pattern, ignores) for pattern, (name, ignores) in PATTERNS.items()}
    if own.get("model") != "gpt2" or own.get("pre") not in patterns:
        raise TokenizerError(
            f"it is of kind {own.get('model')}, {own.get('pre')}: expected byte-level BPE (gpt2) that splits text as "
            f"one of {', '.join(patterns)}"
        )
    pattern, ignores_merges = patterns[own["pre"]]
    names = list(own["tokens"])
    kinds = own.get("token_type") or [1] * len(names)
    while kinds and kinds[-1] == UNUSED_TOKEN:  # rows of the embedding that no token has
        names.pop()
        kinds = kinds[:-1]
    added = [
        {"id": i, "content": name, "special": kind == CONTROL, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    splits: dict[str, Any] = of_bytes | {"use_regex": True}
    if pattern != GPT2_PATTERN:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        splits = {"type": "Sequence", "pretokenizers": [split, of_bytes | {"use_regex": False}]}
    added_names = {token["content"] for token in added}
    model = {
        "type": "BPE",
        "vocab": {name: i for i, name in enumerate(names) if name not in added_names},
        "merges": [merge.split(" ") for merge in own.get("merges", [])],
        "ignore_merges": ignores_merges,
    }
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": splits}
    end = own.get("eos_token_id")
    around = [first_token(own), end if own.get("add_eos_token") else None]
    before, after = ({i: names[i]} if type(i) is int and 0 <= i < len(names) else {} for i in around)
    if before or after:
        content["post_processor"] = template_around(before, after)
    content |= {"decoder": of_bytes | {"use_regex": True}, "model": model}
    return BPETokenizer(json.dumps(content), ends=[end] if type(end) is int else [])


def first_token(own: Mapping[str, Any]) -> int | None:
    """The id that llama.cpp puts before every text, None if it puts none there."""
    first = own.get("bos_token_id")
    return first if type(first) is int and own.get("add_bos_token", own["pre"] == BOS_PRETOKENIZER) else None
