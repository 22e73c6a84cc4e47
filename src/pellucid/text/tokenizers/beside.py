"""What stands beside a tokenizer's file and belongs to it, read as transformers (5) does when it opens the folder.

Tokens may be listed with their ids, in `added_tokens_decoder` of tokenizer_config.json or in added_tokens.json, or only
be named by their use (`pad_token`, `extra_special_tokens`). Those that the tokenizer's own file lacks are added to it.
"""

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pellucid.json_files import MOST_BYTES, read_regular
from pellucid.text.tokenizers.base import OPTIONS_FILE, TokenizerError, options_in, token_name
from pellucid.text.tokenizers.post_processor import pipeline_steps

ADDED_TOKENS_ENTRY, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE = (
    "added_tokens_decoder",
    "special_tokens_map.json",
    "added_tokens.json",
)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: files that stand in Pellucid's own folders, whose tokenizer.json is complete
OWN_FILES = ("recipe.json", "architecture.json")
#: classes that leave the pre-tokenizer as tokenizer.json has it
PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def options_beside(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json; without a list of tokens in it, special_tokens_map.json goes before it."""
    options = _read_json_object(folder / OPTIONS_FILE)
    return options if ADDED_TOKENS_ENTRY in options else options | _read_json_object(folder / SPECIAL_TOKENS_FILE)


def named_tokens(options: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by use: bos_token and its like, and what a model names besides, such as image_token."""
    groups = (options, options.get("extra_special_tokens"), options.get("model_specific_special_tokens"))
    named = {
        use: token_name(entry)
        for group in groups
        if isinstance(group, Mapping)
        for use, entry in group.items()
        if group is not options or use.endswith("_token")
    }
    return {use: name for use, name in named.items() if name}


def with_tokens_beside(text: str, content: Mapping[str, Any], folder: Path) -> str:
    """The `text` of a tokenizer.json of this content, with what the files of its folder add to it.

    Raises TokenizerError for files that are damaged, and where a token would have another id than is listed.
    """
    options = options_beside(folder)
    added = [dict(token) for token in content.get("added_tokens") or []]
    vocabulary = content["model"].get("vocab") or {}
    ids = vocabulary if isinstance(vocabulary, dict) else {entry[0]: i for i, entry in enumerate(vocabulary)}
    by_name = {token["content"]: token for token in added}
    in_our_folder = any((folder / name).exists() for name in OWN_FILES)
    named = dict.fromkeys(() if in_our_folder else [*named_tokens(options).values(), *_extra_special_tokens(options)])
    free = max([len(ids) - 1, *(token["id"] for token in by_name.values())]) + 1
    for entry, listed in _listed_tokens(options, folder, named):
        name = entry["content"]
        known = by_name.get(name, {})
        if known and (ADDED_TOKENS_ENTRY not in options or all(known.get(flag) == entry[flag] for flag in FLAGS)):
            entry = known
        elif name in named:
            entry["special"] = True
        free = _add_token(entry, by_name, ids, free)
        if by_name[name]["id"] != listed:
            raise TokenizerError(
                f"the files beside it give the token {name[:60]!r} id {listed}, where this file leaves id "
                f"{by_name[name]['id']} for it: save the tokenizer again with the software that wrote it, as one "
                "tokenizer.json"
            )
    for name in named:
        if name not in by_name:
            flags = dict.fromkeys(FLAGS, False) | {"special": True}
            free = _add_token({"content": name} | flags, by_name, ids, free)
    changed = dict(content) | {"added_tokens": sorted(by_name.values(), key=lambda token: token["id"])}
    spaced = _with_prefix_space(changed, options)
    unchanged = not spaced and len(by_name) == len(added) and all(by_name[t["content"]] == t for t in added)
    return text if unchanged else json.dumps(changed, ensure_ascii=False)


def _read_json_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return options_in(read_regular(path, MOST_BYTES).decode("utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path.name} beside it cannot be read: {error}") from None


def _extra_special_tokens(options: Mapping[str, Any]) -> list[str]:
    """The special tokens without a use of their own."""
    extra = options.get("extra_special_tokens") or options.get("additional_special_tokens")
    return [name for entry in extra if (name := token_name(entry))] if isinstance(extra, list) else []


def _listed_tokens(options: Mapping[str, Any], folder: Path, named: Container[str]) -> list[tuple[dict[str, Any], int]]:
    """The listed tokens as entries of `added_tokens` without ids, and their ids, which are in order."""
    file, tokens = OPTIONS_FILE, options.get(ADDED_TOKENS_ENTRY)
    if ADDED_TOKENS_ENTRY not in options:
        file = ADDED_TOKENS_FILE
        tokens = {
            number: {"content": name, "special": name in named}
            for name, number in _read_json_object(folder / ADDED_TOKENS_FILE).items()
        }
    if not isinstance(tokens, Mapping):
        raise TokenizerError(f"{ADDED_TOKENS_ENTRY} in {file} is {type(tokens).__name__}: expected tokens by id")
    listed = []
    for number, token in tokens.items():
        name = token.get("content") if isinstance(token, Mapping) else None
        if not isinstance(name, str) or not name or not str(number).isdecimal() or len(str(number)) > 9:
            raise TokenizerError(
                f"{file} beside it lists {str(token)[:60]} with id {str(number)[:20]}: expected a token"
            )
        special = token.get("special") is True
        flags = {"normalized": not special, "special": special}
        flags = {flag: bool(token.get(flag, flags.get(flag, False))) for flag in FLAGS}
        listed.append(({"content": name} | flags, int(number)))
    return sorted(listed, key=lambda one: one[1])


def _add_token(entry: dict[str, Any], by_name: dict[str, dict[str, Any]], ids: Mapping[str, int], free: int) -> int:
    """Add an entry under the id that the engine of tokenizers gives it: that of its name, else the next free one.
    Returns the next free one behind it.
    """
    name = entry["content"]
    known = by_name.get(name, {}).get("id", ids.get(name, free))
    by_name[name] = {"id": known} | entry
    return max(free, known + 1)


def _with_prefix_space(content: dict[str, Any], options: Mapping[str, Any]) -> bool:
    """Set `add_prefix_space` of byte-level steps where the options say it and the class follows them."""
    asked = options.get("add_prefix_space")
    if not isinstance(asked, bool) or options.get("tokenizer_class") in PLAIN_CLASSES:
        return False
    content["pre_tokenizer"] = json.loads(json.dumps(content.get("pre_tokenizer")))
    steps = pipeline_steps(content["pre_tokenizer"], "pretokenizers")
    changed = [step for step in steps if step.get("type") == "ByteLevel" and step.get("add_prefix_space") != asked]
    for step in changed:
        step["add_prefix_space"] = asked
    return bool(changed)
