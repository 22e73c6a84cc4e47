"""Open a GGUF file, llama.cpp's single file, as a model: the inverse of `pellucid.hub.gguf`.

The architectures are those that are written: gpt2, llama and qwen3, as llama.cpp's own conversion stores them. Tensors
in fewer bits (q8_0, q4_0, ...) are turned into float32 as they are read, one at a time.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.config import check_sizes, check_weights
from pellucid.hub.families import FamilyError
from pellucid.hub.folder import Folder, first_five
from pellucid.hub.gguf import (
    CONTROL,
    FACTORS,
    LLAMA3,
    PATTERNS,
    UNUSED_TOKEN,
    USER_DEFINED,
    FileFacts,
    OwnEntries,
    architecture_from,
    gguf_tensors,
    separated,
)
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


class OurTensors(Mapping[str, Tensor]):
    """The same under our names; of several that their tensor joins each is read by itself."""

    def __init__(self, theirs: GGUFTensors, a: Architecture):
        self.theirs, self.architecture = theirs, a
        self.sources = {name: (source, ours, layout) for source, ours, layout in gguf_tensors(a) for name in ours}

    def __getitem__(self, name: str) -> Tensor:
        source, ours, layout = self.sources[name]
        return dict(separated(self.theirs[source], ours, layout, self.architecture))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


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
    unread: Sequence[str] = ()
    """entries of the architecture that were not read"""

    def tokenizer(self, replacement: Tokenizer | str | Path | None = None) -> Tokenizer | None:
        tokenizer = self.own_tokenizer()[0] if replacement is None else replacement
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

    def reading_notes(self) -> list[str]:
        notes, formats = super().reading_notes(), cast(OurTensors, self.shards).theirs.formats()
        if self.unread:
            notes.append(
                f"{self.path} has unknown entries, which are ignored: {first_five(list(self.unread))}; if one of them "
                "changes what the model computes, the result here differs"
            )
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
        import gguf  # noqa: F401 (before anything is said of the file)
    except ImportError:
        raise FolderError(f"{path}: GGUF files are read by the package gguf: pip install gguf") from None
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
        own = OwnEntries(keys)
        architecture = architecture_from(own, file_facts(tensors))
        own.check(architecture)
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
    return GGUFFile(path, architecture, None, {}, ours, keys=keys, unread=own.unread)


def file_facts(tensors: GGUFTensors) -> FileFacts:
    """What the names and sizes of the tensors say. Raises LookupError where there is no embedding."""
    return FileFacts(
        int(tensors.tensors["token_embd.weight"].shape[-1]),
        "output.weight" not in tensors,
        "blk.0.attn_q.bias" in tensors,
        "blk.0.ffn_up.bias" in tensors,
        tensors.get(FACTORS),
        LLAMA3,
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
