"""The text that a recipe names, and what is said of how it was read."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pellucid.runs.options import RecipeError
from pellucid.text.read.chunks import counted
from pellucid.text.read.documents import Corpus, read_corpus, read_with_held_out
from pellucid.text.read.find import ReadOptions, Skipped
from pellucid.text.read.pairs import Pairs, read_pairs, read_pairs_with_held_out
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokens.pairs import PairTokens
from pellucid.text.tokens.store import Tokens
from pellucid.training.recipe import Recipe, TextRecipe

#: files that were left out, of those that are printed
PRINTED = 5
#: what a caller may hold out: a share of the text, or files and folders of its own
HeldOut = float | str | os.PathLike | Sequence[float | str | os.PathLike]


def held_out_fields(held_out: HeldOut) -> dict[str, Any]:
    """The fields of a recipe that hold this out: one number is a share, everything else is a file or a folder.

    A string that spells a number is that number; `./0.1` and `Path("0.1")` are paths. Raises RecipeError for a share
    beside anything else.
    """
    single = isinstance(held_out, float | int | str | os.PathLike)
    given: list[Any] = [held_out] if single else list(held_out)  # type: ignore[arg-type]
    shares = [value for value in given if _is_number(value)]
    if shares and len(given) > 1:
        raise RecipeError(
            f"{', '.join(map(str, given))} cannot all be held out: give one share of the text, or files and folders of "
            f"your own; a file called {shares[0]} is ./{shares[0]}"
        )
    if shares:
        return {"text.held_out": float(shares[0])}
    return {"text.held_out_files": tuple(str(value) for value in given)} if given else {}


def add_held_out(fields: Mapping[str, Any], held_out: HeldOut | None) -> dict[str, Any]:
    """The fields, and those that hold out what is to be held out; RecipeError where that is said twice."""
    asked = {} if held_out is None else held_out_fields(held_out)
    names = {"held_out", "held_out_files"}
    if twice := [name for name in fields if asked and name.removeprefix("text.") in names]:
        raise RecipeError(f"what is held out is given twice, by held_out = {held_out} and by {twice[0]}: give it once")
    return {**fields, **asked}


def _is_number(value: Any) -> bool:
    if isinstance(value, os.PathLike):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def reading_of(recipe: TextRecipe) -> ReadOptions:
    """How the recipe finds and reads files."""
    t = recipe.text
    named = {name: getattr(t, name) for name in ("field", "format", "encoding", "include", "exclude", "licence")}
    return ReadOptions(drop_duplicates=t.drop_duplicates == "yes", skip_bad=t.skip_bad == "yes", **named)


def read_recipe_text(recipe: TextRecipe, progress: Callable | None = None) -> Corpus:
    """The recipe's text, and the files that it holds out."""
    t, reading = recipe.text, reading_of(recipe)
    if t.held_out_files:
        return read_with_held_out(recipe.inputs, t.held_out_files, progress, reading)
    return read_corpus(recipe.inputs, progress, reading)


def read_recipe_pairs(recipe: Recipe, progress: Callable[..., None] | None = None) -> Pairs:
    """The recipe's pairs, and those of the files that it holds out."""
    t, reading = recipe.text, reading_of(recipe)
    if t.held_out_files:
        return read_pairs_with_held_out(recipe.inputs, t.held_out_files, progress, reading)
    return read_pairs(recipe.inputs, progress, reading)


def lines_on_unknown(tokens: Tokens | PairTokens, tokenizer: Tokenizer) -> list[str]:
    """How many characters or words of the text the tokenizer does not know, as a line to print; none where it is 0."""
    unknown = sum(part["unknown"] for part in tokens.manifest["parts"].values())
    are, they = ("is", "it") if unknown == 1 else ("are", "they")
    named = counted(unknown, tokenizer.units.removesuffix("s"))
    line = f"{named} {are} not in the tokenizer's vocabulary: {they} became its unknown token"
    return [line] if unknown else []


def lines_on_skipped(skipped: Sequence[Skipped]) -> list[str]:
    """The first of the files that were left out, each with the reason, and how many more there are: lines to print."""
    lines = [f"skipped {file.path}: {file.reason}" for file in skipped[:PRINTED]]
    if more := len(skipped[PRINTED:]):
        lines.append(f"skipped {counted(more, 'more file')}, listed in the run's data.json")
    return lines
