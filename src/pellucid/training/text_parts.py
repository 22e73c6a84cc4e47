"""Which files a recipe reads and holds out, and lines about files and words that were left out."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pellucid.runs.options import RecipeError
from pellucid.text.read.chunks import counted
from pellucid.text.read.find import ReadOptions, Skipped
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.store import Tokens
from pellucid.training.recipe import TextRecipe

#: most files that are printed of those that were left out
PRINTED = 5
#: the held-out text: a share of the text, or files and folders
HeldOut = float | str | os.PathLike | Sequence[float | str | os.PathLike]


def held_out_fields(held_out: HeldOut) -> dict[str, Any]:
    """The fields of a recipe for a held-out text: a single number is a share, anything else is a file or a folder.

    A string that spells a number is that number; `./0.1` and `Path("0.1")` are paths. Raises RecipeError for a share
    together with anything else.
    """
    single = isinstance(held_out, float | int | str | os.PathLike)
    values: list[Any] = [held_out] if single else list(held_out)  # type: ignore[arg-type]
    shares = [value for value in values if _is_plain_number(value)]
    if shares and len(values) > 1:
        raise RecipeError(
            f"{', '.join(map(str, values))} cannot all be held out: give one share of the text, or files and folders "
            f"of your own; a file called {shares[0]} is ./{shares[0]}"
        )
    if shares:
        return {"text.held_out": float(shares[0])}
    return {"text.held_out_files": tuple(str(value) for value in values)} if values else {}


def add_held_out(fields: Mapping[str, Any], held_out: HeldOut | None) -> dict[str, Any]:
    """The fields, with those for the held-out text. Raises RecipeError where both give one."""
    asked = {} if held_out is None else held_out_fields(held_out)
    names = {"held_out", "held_out_files"}
    if twice := [name for name in fields if asked and name.removeprefix("text.") in names]:
        raise RecipeError(f"the held-out text is given twice, by held_out = {held_out} and by {twice[0]}: give it once")
    return {**fields, **asked}


def _is_plain_number(value: Any) -> bool:
    if isinstance(value, os.PathLike):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def reading_of(recipe: TextRecipe) -> ReadOptions:
    """The options of the recipe for finding and reading files."""
    t = recipe.text
    names = ("field", "format", "encoding", "html", "split_at", "include", "exclude", "licence")
    named = {name: getattr(t, name) for name in names} | {"folder": recipe.input_folder}
    return ReadOptions(drop_duplicates=t.drop_duplicates == "yes", skip_bad=t.skip_bad == "yes", **named)


class InputFiles(TypedDict):
    """What `read_corpus`, `read_pairs` and `read_conversations` read."""

    paths: tuple[str, ...]
    held_out: tuple[str, ...]
    reading: ReadOptions


def input_files(recipe: TextRecipe) -> InputFiles:
    """The files of the recipe, those that it holds out, and how they are read."""
    return {"paths": recipe.inputs, "held_out": recipe.text.held_out_files, "reading": reading_of(recipe)}


def lines_on_unknown(tokens: Tokens, tokenizer: Tokenizer) -> list[str]:
    """A line about the characters or words that the tokenizer does not know; no line where there are none."""
    unknown = sum(part["unknown"] for part in tokens.manifest["parts"].values())
    are, they = ("is", "it") if unknown == 1 else ("are", "they")
    named = counted(unknown, tokenizer.units.removesuffix("s"))
    line = f"{named} {are} not in the tokenizer's vocabulary: {they} became its unknown token"
    return [line] if unknown else []


def lines_on_skipped(skipped: Sequence[Skipped], where: str = ", listed in the run's data.json") -> list[str]:
    """Lines about the first files that were left out, each with the reason, and about the number of the others."""
    lines = [f"skipped {file.path}: {file.reason}" for file in skipped[:PRINTED]]
    if more := len(skipped[PRINTED:]):
        lines.append(f"skipped {counted(more, 'more file')}{where}")
    return lines
