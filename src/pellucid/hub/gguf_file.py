"""Open a GGUF file, llama.cpp's single file, as a model: the inverse of `pellucid.hub.gguf`.

The architectures are those that are written: gpt2, llama (with experts: Mixtral), qwen3, qwen3moe and olmoe, as
llama.cpp's own conversion stores them. Tensors in fewer bits (q8_0, q4_0, ...) are turned into float32 as they are
read, one at a time, the experts' one by one.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.config import check_sizes, check_weights
from pellucid.hub.families import FamilyError, architecture_of
from pellucid.hub.files import FolderError
from pellucid.hub.folder import Folder
from pellucid.hub.gguf import (
    CONTROL,
    NAMES,
    PATTERNS,
    THEIR_NAMES,
    UNUSED,
    USER_DEFINED,
    frequency_factors,
    gguf_tensors,
    separated,
)
from pellucid.text.chat_template import ChatError, ChatTemplate
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.bpe import GPT2_PATTERN, BPETokenizer
from pellucid.text.tokenizers.post_processor import template_around
from pellucid.text.tokenizers.tokenizer import Tokenizer

FACTORS = "rope_freqs.weight"
#: positions.factor, low, high and n_trained of the Llama 3 models; a file holds only the factors computed of them
LLAMA3 = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))
#: families of mixtures of experts, with the entries that say how llama.cpp divides the shares of their experts
MIXTURE_ENTRIES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "olmoe": {"norm_topk_prob": False},
}
#: the pre-tokenizer whose texts llama.cpp begins with the bos token unless the file says otherwise (Llama 3)
BEGUN = "llama-bpe"
#: formats that lose no digits of float32
EXACT = ("F32", "F64")


class GGUFTensors(Mapping[str, Tensor]):
    """The tensors of a GGUF file under its names, float32, each read when it is asked for."""

    def __init__(self, reader: Any):
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, ...)

    def read(self, name: str, part: Any) -> Tensor:
        """A tensor, or a part of its first axis: nothing else of it is read."""
        import gguf

        tensor = self.tensors[name]
        return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data[part], tensor.tensor_type), np.float32))

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


class OurTensors(Mapping[str, Tensor]):
    """The same under our names; of several that their tensor joins each is read by itself."""

    def __init__(self, theirs: GGUFTensors, a: Architecture):
        self.theirs, self.architecture = theirs, a
        self.sources = {name: (source, ours, layout) for source, ours, layout in gguf_tensors(a) for name in ours}

    def __getitem__(self, name: str) -> Tensor:
        source, ours, layout = self.sources[name]
        if layout == "experts":
            return self.theirs.read(source, ours.index(name))
        return dict(separated(self.theirs[source], ours, layout, self.architecture))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class GGUFFile(Folder):
    """A model in one file, whose entries beside the tensors are `keys`."""

    keys: Mapping[str, Any] = field(default_factory=dict)

    def tokenizer(self, given: Tokenizer | str | Path | None = None) -> Tokenizer | None:
        tokenizer = self.own_tokenizer()[0] if given is None else given
        return None if tokenizer is None else super().tokenizer(tokenizer)

    def own_tokenizer(self) -> tuple[Tokenizer | None, str]:
        """The tokenizer that the keys describe, or None and why it cannot be used."""
        try:
            return tokenizer_from(self.keys), ""
        except TokenizerError as error:
            return None, str(error)

    def why_no_tokenizer(self) -> str:
        return f"holds a tokenizer that cannot be used ({self.own_tokenizer()[1]})"

    def chat_template(self) -> tuple[ChatTemplate | None, list[str]]:
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

    def notes(self, tokenizer: Tokenizer) -> list[str]:
        notes, formats = super().notes(tokenizer), cast(OurTensors, self.shards).theirs.formats()
        if any(name not in EXACT for name, _ in formats):
            counts = ", ".join(f"{n} tensors as {name}" for name, n in formats)
            notes.append(
                f"{self.path} holds {counts}: they are converted to float32, and keep the rounding with which they "
                "were stored"
            )
        return notes


def open_gguf(path: Path) -> GGUFFile:
    """Open the model in a GGUF file, without allocating it.

    Raises FolderError or FamilyError with one line if the file is damaged or holds another kind of model.
    """
    try:
        import gguf
    except ImportError:
        raise FolderError(f"{path}: GGUF files are read by the package gguf: pip install gguf") from None
    try:
        reader = gguf.GGUFReader(path)
        entries = {name: entry.contents() for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
        # 1e-5 was rounded to float32, whose shortest decimal is 1e-5 again
        keys = {name: float(str(np.float32(x))) if isinstance(x, float) else x for name, x in entries.items()}
        tensors = GGUFTensors(reader)
        architecture = architecture_from(keys, tensors)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise FolderError(f"{path} is no GGUF file, or is damaged: {str(error)[:200] or repr(error)}") from None
    check_sizes(path, architecture)
    check_weights(path, architecture, tensors.n_numbers)
    ours = OurTensors(tensors, architecture)
    expected = {source for source, _, _ in ours.sources.values()}
    if missing := sorted(expected - tensors.keys()):
        raise FolderError(f"{path}: the tensor {missing[0]} is missing: the architecture needs it")
    if extra := sorted(tensors.keys() - expected - {FACTORS}):
        raise FamilyError(
            f"{path}: unexpected tensor {extra[0]}: the reader of {keys['general.architecture']} has no place for it, "
            "so the file computes something else; give the model's Hugging Face folder"
        )
    return GGUFFile(path, architecture, None, {}, ours, keys=keys)


# Keys ---------------------------------------------------------------------------------------------


def architecture_from(keys: Mapping[str, Any], tensors: GGUFTensors) -> Architecture:
    """The architecture of the file: the one that a config.json with the same entries describes.

    Raises FamilyError for another kind of model, and LookupError for entries that are missing.
    """
    kind = keys["general.architecture"]
    own = {name.removeprefix(f"{kind}."): value for name, value in keys.items() if name.startswith(f"{kind}.")}
    families = {(THEIR_NAMES.get(name, name), name in MIXTURE_ENTRIES): name for name in NAMES}
    family = families.get((kind, bool(own.get("expert_count"))))
    if family is None:
        known = ", ".join(f"{name} with experts" if experts else name for name, experts in families)
        given = f"{kind} with {own['expert_count']} experts" if own.get("expert_count") else kind
        raise FamilyError(
            f"general.architecture = {given}: expected one of {known}; for another architecture give the model's "
            "Hugging Face folder"
        )
    n_vocab = int(tensors.tensors["token_embd.weight"].shape[-1])
    config: dict[str, Any] = {"model_type": family, "vocab_size": n_vocab}
    config["tie_word_embeddings"] = "output.weight" not in tensors
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
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "rope_parameters": {"rope_theta": own.get("rope.freq_base", 10_000.0)} | scaling_from(kind, own),
    }
    if family != "olmoe":
        config["head_dim"] = d_head
    if family == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if family in MIXTURE_ENTRIES:
        config |= MIXTURE_ENTRIES[family] | {"num_experts": own["expert_count"]}
        config["num_experts_per_tok"] = own["expert_used_count"]
    if family == "qwen3_moe":
        config["moe_intermediate_size"] = own["expert_feed_forward_length"]
    a = architecture_of(config)
    return with_factors(a, tensors[FACTORS]) if FACTORS in tensors else a


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


def with_factors(a: Architecture, factors: Tensor) -> Architecture:
    """The architecture whose rotary frequencies are divided by these factors: one of the Llama 3 models."""
    if a.scales_rotation:
        raise FamilyError(
            f"{FACTORS} and a rope factor of {a.positions.factor:g} both scale rotary positions: expected one of them; "
            "give the model's Hugging Face folder"
        )
    for factor, low, high, n_trained in LLAMA3:
        fields = {"factor": factor, "low": low, "high": high, "n_trained": n_trained, "scaling": "llama3"}
        scaled = a.with_fields({f"positions.{name}": value for name, value in fields.items()})
        expected = frequency_factors(scaled)
        if expected.shape == factors.shape and torch.allclose(expected, factors, rtol=1e-5):
            return scaled
    raise FamilyError(
        f"{FACTORS} holds other factors than the Llama 3 models have, {factors.min():g} to {factors.max():g}: give the "
        "model's Hugging Face folder"
    )


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
    while kinds and kinds[-1] == UNUSED:  # rows of the embedding that no token has
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
    if (first := first_token(own)) is not None and first < len(names):
        content["post_processor"] = template_around({first: names[first]}, {})
    content |= {"decoder": of_bytes | {"use_regex": True}, "model": model}
    end = own.get("eos_token_id")
    return BPETokenizer(json.dumps(content), ends=[end] if type(end) is int else [])


def first_token(own: Mapping[str, Any]) -> int | None:
    """The id that llama.cpp puts before every text, None if it puts none there."""
    first = own.get("bos_token_id")
    return first if type(first) is int and own.get("add_bos_token", own["pre"] == BEGUN) else None
