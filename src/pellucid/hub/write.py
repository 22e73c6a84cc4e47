"""Write folders that other projects open: weights in safetensors, one tensor at a time, and all other files."""

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.canonical_fields import without_dropout
from pellucid.hub.families import FAMILIES, FamilyError, config_of
from pellucid.hub.files import GENERATION, NOTES, read_object
from pellucid.hub.folder import Folder
from pellucid.hub.own_code import code_config
from pellucid.hub.round_trip import able_family, first_lossless_family
from pellucid.hub.shards import FORMATS
from pellucid.hub.tables import Family
from pellucid.json_files import MOST_BYTES, read_regular
from pellucid.text.chat_template import JINJA, ChatError, ChatTemplate, write_chat_template
from pellucid.text.tokenizers.base import MASKS, OPTIONS_FILE, Tokenizer, token_name
from pellucid.text.tokenizers.beside import options_beside
from pellucid.text.tokenizers.external import ExternalTokenizer
from pellucid.text.tokenizers.post_processor import template_around
from pellucid.text.tokenizers.tokenizer import tokenizer_files

Tensors = Callable[[], Iterator[tuple[str, Tensor]]]

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
#: bytes in one weight file, as the hub prefers
SHARD = 5 * 10**9
#: if the context is no longer than this, a family's generate needs a limit: pipelines generate 256 tokens
SHORT_CONTEXT = 1024
#: the entries of config.json that name tokens with a use of their own
TOKEN_IDS = tuple(f"{role}_token_id" for role in ("bos", "eos", "pad", "decoder_start", "forced_bos", "forced_eos"))


def exported_as(a: Architecture, name: str | None = None) -> tuple[Family, Architecture]:
    """The family of this name, or the first that can represent the architecture, and the architecture that is written.

    Dropout rates are set to 0 if no such family has them. Raises FamilyError, which names the option.
    """
    if name is not None and name not in FAMILIES:
        raise FamilyError(f"there is no family {name!r}: choose one of {', '.join(FAMILIES)}")
    families = list(FAMILIES.values()) if name is None else [FAMILIES[name]]
    bare = without_dropout(a)
    if a != bare and (family := first_lossless_family(a, families)):
        return family, a
    advice = ". Without --family, pellucid convert writes it with code that transformers opens"
    return able_family(bare, families, "a model of another project", advice), bare


#: called with the number of tensors written, and of all tensors
Progress = Callable[[int, int], object]


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def write_tensors(folder: Path, tensors: Tensors, shard: int = SHARD, progress: Progress = no_progress) -> int:
    """Write model.safetensors, or shards of at most `shard` bytes and their index. Returns the bytes of tensors.

    `tensors` is called twice, because a file begins with the offsets of all tensors. One tensor is in memory at a time.
    """
    entries = [(name, DTYPES[t.dtype], list(t.shape)) for name, t in tensors()]
    groups = _grouped(entries, shard)
    names = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in range(1, len(groups) + 1)]
    names = ["model.safetensors"] if len(groups) == 1 else names
    waiting = report_each(tensors(), len(entries), progress)
    for name, group in zip(names, groups, strict=True):
        _write_file(folder / name, group, waiting)
    total = sum(_size(entry) for entry in entries)
    if len(groups) > 1:
        placed = {entry[0]: name for name, group in zip(names, groups, strict=True) for entry in group}
        write_object(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": placed})
    return total


def report_each(tensors: Iterable[tuple[str, Tensor]], total: int, progress: Progress) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors and report to `progress` how many were taken."""
    for n, named in enumerate(tensors):
        progress(n, total)
        yield named


Entry = tuple[str, str, list[int]]


def _size(entry: Entry) -> int:
    return math.prod(entry[2]) * FORMATS[entry[1]].itemsize


def _grouped(entries: list[Entry], shard: int) -> list[list[Entry]]:
    groups: list[list[Entry]] = [[]]
    held = 0
    for entry in entries:
        if groups[-1] and held + _size(entry) > shard:
            groups.append([])
            held = 0
        groups[-1].append(entry)
        held += _size(entry)
    return groups


def _write_file(path: Path, entries: list[Entry], waiting: Iterator[tuple[str, Tensor]]) -> None:
    """Write the entries' tensors, taken from `waiting`; wider numbers come first, so that all are aligned."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in sorted(entries, key=lambda entry: -FORMATS[entry[1]].itemsize):
        end = at + _size((name, dtype, shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for expected, _, _ in entries:
            name, tensor = next(waiting)
            assert name == expected
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            if tensor.numel():
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tofile(file)


def write_object(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object, indented."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def write_notes(folder: Path, notes: Sequence[str]) -> None:
    """Keep what was said of a model beside it, in our layout: `Folder.notes_on_model` says it again."""
    if notes:
        write_object(folder / NOTES, {"notes": list(notes)})


def write_config(
    folder: Path,
    a: Architecture,
    family: Family | None,
    tokenizer: Tokenizer | None,
    dtype: str,
    source: Folder | None = None,
) -> None:
    """Write config.json and generation_config.json; the separator ends generation. Without a family, those of
    our code.

    Without a tokenizer, the ids that begin, end and pad texts are those of `source`, the folder that the model comes
    from, and so is generation_config.json. Raises FamilyError if the family reads an id of text as padding.
    """
    if family is not None and tokenizer is not None:
        check_padding(family, tokenizer)
    end = None if tokenizer is None else tokenizer.separator
    config = (code_config(a, end) if family is None else config_of(a, family, end)) | {"dtype": dtype}
    if tokenizer is None:
        fixed = {} if family is None else family.constants
        config |= {"bos_token_id": None, "eos_token_id": None}
        config |= {name: i for name, i in token_ids_of(source).items() if name not in fixed}
        if source is not None and source.config and (source.path / GENERATION).exists():
            write_object(folder / GENERATION, read_object(source.path, GENERATION))
    else:
        ids = {f"{role}_id": tokenizer.special[name] for role, name in roles_of(tokenizer).items()}
        config |= {"bos_token_id": ids["bos_token_id"]}
        ends: dict[str, Any] = {name: ids[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        ends |= {"eos_token_id": tokenizer.ends} if tokenizer.model_ends else {}
        if a.encoder is not None:
            # their classes shift targets by one, and put this token first
            config |= {"decoder_start_token_id": tokenizer.start, "pad_token_id": ids["pad_token_id"]}
            ends |= {"decoder_start_token_id": tokenizer.start}
        if family is not None and a.n_ctx <= SHORT_CONTEXT:
            ends |= {"max_length": a.n_ctx}
        write_object(folder / GENERATION, ends | {"do_sample": False})
    config.setdefault("pad_token_id", None)
    write_object(folder / "config.json", config)


def token_ids_of(source: Folder | None) -> dict[str, Any]:
    """The entries of TOKEN_IDS that the files of a model without a tokenizer hold."""
    if source is None:
        return {}
    if not source.config:  # our layout, which keeps these two alone
        ends, start = source.end_ids, source.start_id
        ids = {"eos_token_id": ends if len(ends) > 1 else ends[0]} if ends else {}
        return ids | ({} if start is None else {"decoder_start_token_id": start})
    return {name: source.config[name] for name in TOKEN_IDS if source.config.get(name) is not None}


def check_padding(family: Family, tokenizer: Tokenizer) -> None:
    """Raise FamilyError if the one id that the family can pad with is not for padding alone in this tokenizer.

    Its class gives that id no position, wherever it stands, and counts the positions after it without it.
    """
    padding = family.constants.get("pad_token_id")
    own = tokenizer.special[roles_of(tokenizer)["pad_token"]]
    if padding is not None and (padding != own or padding == tokenizer.separator):
        raise FamilyError(
            f"id {padding} is {tokenizer.token_str(padding)!r} in this tokenizer, and padding in every model of the "
            f"family {family.name}, which gives it no position: expected a pad token of this id; write the model as "
            "one of another family, with --family bert"
        )


def write_tokenizer(folder: Path, tokenizer: Tokenizer, n_ctx: int, a: Architecture | None = None) -> None:
    """Write tokenizer.json, and a tokenizer_config.json that makes transformers use it unchanged.

    The architecture decides two things: batches of prompts are padded on the left if the model continues them, and an
    encoder reads the separator after a source.
    """
    path = tokenizer.save_alone(folder)
    if a is not None and a.encoder is not None and not isinstance(tokenizer, ExternalTokenizer):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not content.get("post_processor"):  # the file of another project's tokenizer stays as it is
            write_object(path, content | {"post_processor": source_post_processor(tokenizer)})
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles_of(tokenizer),
        "model_max_length": n_ctx,
        "clean_up_tokenization_spaces": False,
    }
    if a is not None and a.encoder is None and a.attention.mask != "bidirectional":
        config["padding_side"] = "left"
    if tokenizer.unknown is not None:
        config["unk_token"] = tokenizer.token_str(tokenizer.unknown)
    write_object(folder / "tokenizer_config.json", config)


def write_chat(folder: Path, tokenizer: Tokenizer, template: ChatTemplate) -> None:
    """Write the chat template into tokenizer_config.json, and what ends its answers into generation_config.json.

    A template that cannot be used is written as it is, with the ends as they are.
    """
    write_chat_template(folder, template, tokenizer.named_end)
    with suppress(ChatError):
        path = folder / GENERATION
        write_object(path, json.loads(path.read_bytes()) | {"eos_token_id": template.end_ids(tokenizer)})


def carry_over(folder: Path, source: Folder, family: Family, has_tokenizer: bool) -> None:
    """Put what a source of Hugging Face says about generation and its tokenizer in the place of what was written anew.

    Code of the tokenizer's own (auto_map) is left out. An adapter with a tokenizer of its own keeps that one's ids.
    """
    beside = source.path / GENERATION
    theirs = read_object(source.path, GENERATION) if beside.exists() else {}
    if source.adapter is not None and tokenizer_files(source.adapter):
        write_object(folder / GENERATION, theirs | read_object(folder, GENERATION))
        return
    config = {name: source.config.get(name) for name in TOKEN_IDS if name not in family.constants}
    plain = read_object(folder, "config.json")
    named = {name: i for name, i in config.items() if i is not None or name in plain}
    write_object(folder / "config.json", plain | named)
    (folder / GENERATION).unlink(missing_ok=True)
    if beside.exists():
        write_object(folder / GENERATION, theirs)
    if has_tokenizer and (options := options_beside(source.path)):
        if options.pop("auto_map", None):
            options["tokenizer_class"] = "PreTrainedTokenizerFast"
        for use, entry in options.items():
            if use.endswith("_token") and isinstance(entry, dict) and "__type" not in entry:
                options[use] = token_name(entry)
        write_object(folder / OPTIONS_FILE, options)
        if (source.path / JINJA).exists():
            (folder / JINJA).write_bytes(read_regular(source.path / JINJA, MOST_BYTES))


def source_post_processor(tokenizer: Tokenizer) -> dict[str, Any]:
    """The post_processor that turns a text's ids into `Tokenizer.source_ids`."""
    *before, behind = tokenizer.source_ids([])
    first, last = ({token: tokenizer.token_str(token) for token in side} for side in (before, [behind]))
    return template_around(first, last)


#: names of tokens with special roles; without one, the separator begins, ends and pads
ROLES = {"bos_token": ("<s>", "<bos>", "<|begin_of_text|>"), "pad_token": ("<pad>", "[PAD]", "<|pad|>")}
ROLES |= {"cls_token": ("[CLS]",), "sep_token": ("[SEP]",), "mask_token": MASKS}


def roles_of(tokenizer: Tokenizer) -> dict[str, str]:
    """The special token of each role, by name."""
    end = next(name for name, i in tokenizer.special.items() if i == tokenizer.separator)
    roles = {role: name for role, names in ROLES.items() for name in names if name in tokenizer.special}
    roles = {"bos_token": end, "eos_token": end, "pad_token": end} | roles
    if len(tokenizer.before) == 1 and "cls_token" not in roles:
        names = {i: name for name, i in tokenizer.special.items()}
        roles["bos_token"] = names.get(tokenizer.before[0], roles["bos_token"])
    return roles


def dtype_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The precision that holds the numbers of all tensors, as config.json names it; transformers reads them all so."""
    dtypes = [tensor.dtype for _, tensor in tensors]
    return str(functools.reduce(torch.promote_types, dtypes)).removeprefix("torch.")
