"""Every field that `--set` takes, with its meaning from the docstring below it.

The docstring of its class holds the formulas of its values.
"""

import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pellucid.field_docs import field_docs
from pellucid.option_values import option_text

RecipeKind = Literal["transformer", "ngram", "neural-probabilistic", "recurrent"]


@dataclass(frozen=True)
class Field:
    """One field: its dotted name, its values, its default, and its meaning."""

    name: str
    values: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """The fields of one part of a recipe, below the docstring that explains the part."""

    title: str
    about: str
    fields: list[Field]


def allowed_values(hint: Any) -> str:
    """The values that a field of this type takes."""
    if types.NoneType in (choices := typing.get_args(hint)):
        (kind,) = set(choices) - {types.NoneType}
        return f"auto | {allowed_values(kind)}"
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return {int: "whole numbers, such as 2,3", float: "numbers, such as 1.0,2.5", str: "a path"}[
            typing.get_args(hint)[0]
        ]
    return {int: "whole number", float: "number", str: "text"}[hint]


def section(title: str, kind: type, prefix: str, names: list[str], defaults: Any) -> Section:
    """The named fields of a dataclass, with their defaults from the object `defaults`."""
    hints, texts = typing.get_type_hints(kind), field_docs(kind)
    fields = [
        Field(f"{prefix}{name}", allowed_values(hints[name]), option_text(getattr(defaults, name)), texts[name])
        for name in names
    ]
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    about = "\n\n".join(text for text in paragraphs if not text.startswith(("Raises", "One run")))
    return Section(title, about, fields)


def sections(kind: RecipeKind) -> Iterator[Section]:
    """The fields of a run of this kind, in sections."""
    if kind == "transformer":
        yield from transformer_sections()
    else:
        yield from predictor_sections(kind)


def transformer_sections() -> Iterator[Section]:
    """A transformer's architecture, with the defaults of the preset "small", and its text, training and adapters."""
    from pellucid.architecture import OPTION_GROUPS as ARCHITECTURE_PARTS
    from pellucid.architecture import Architecture
    from pellucid.presets import preset
    from pellucid.training.recipe import OPTION_CLASSES

    small, hints = preset("small"), typing.get_type_hints(Architecture)
    own = [f.name for f in dataclasses.fields(Architecture) if f.name not in (*ARCHITECTURE_PARTS, "encoder")]
    yield section("model", Architecture, "model.", own, small)
    for part in ARCHITECTURE_PARTS:
        names = [f.name for f in dataclasses.fields(hints[part])]
        yield section(f"model.{part}", hints[part], f"model.{part}.", names, getattr(small, part))
    for part, choices in OPTION_CLASSES.items():
        yield section(part, choices, f"{part}.", [f.name for f in dataclasses.fields(choices)], choices())


def predictor_sections(kind: str) -> Iterator[Section]:
    """A predictor's own fields, and the fields of text and training that it uses."""
    from pellucid.predictors.recipe import DESCRIPTION_OF_KIND, TRAIN, predictor_fields
    from pellucid.training.recipe import OPTION_CLASSES

    known = predictor_fields(kind)
    chosen = {
        part: [n.partition(".")[2] for n in known if n.startswith(f"{part}.")] for part in ("model", *OPTION_CLASSES)
    }
    described = DESCRIPTION_OF_KIND[kind](n_vocab=1, separator=0)
    yield section("model", DESCRIPTION_OF_KIND[kind], "model.", chosen["model"], described)
    yield section("text", OPTION_CLASSES["text"], "text.", chosen["text"], OPTION_CLASSES["text"]())
    yield section("train", OPTION_CLASSES["train"], "train.", chosen["train"], TRAIN)


INTRODUCTION = (
    "The fields of {kind} runs, each with its default. --set NAME=VALUE sets one; if only one field "
    "has this last part, that is enough (--set {example})."
)
OF_TRANSFORMERS = (
    " The defaults of model.* are those of the preset small; --preset gives others, and with "
    "--minutes but no sizes, Pellucid chooses them. dropout=0.1 sets all of model.dropout.*, "
    "model.encoder.NAME=VALUE sets a field of the encoder only."
)


def print_fields(kind: RecipeKind) -> int:
    """Print every field that `--set` takes for a run of this kind. Returns exit code 0."""
    width, all_sections = min(shutil.get_terminal_size().columns, 100), list(sections(kind))
    first = all_sections[0].fields[-1]
    example = f"{first.name.rpartition('.')[2]}={first.default}" if kind != "transformer" else "d_model=256"
    about = INTRODUCTION.format(kind=kind, example=example) + (OF_TRANSFORMERS if kind == "transformer" else "")
    print(textwrap.fill(about, width))
    for part in all_sections:
        print(f"\n{part.title}\n{'-' * len(part.title)}" + f"\n{fitted(part.about, width)}" * bool(part.about))
        for field in part.fields:
            head = f"  {field.name} = {field.default}".rstrip(" =")
            values = f"({field.values})"
            fits = len(head) + len(values) + 3 <= width
            values = f"   {values}" if fits else f"\n{fitted(values, width, '      ')}"
            print(f"\n{head}{values}\n{fitted(field.meaning, width, '      ')}")
    return 0


def fitted(text: str, width: int, indent: str = "") -> str:
    """Wrap text to `width`. Rows of a table, which contain several blanks in a row, stay separate."""
    pieces: list[str] = []
    for line in text.splitlines():
        row = "  " in line.strip()
        if line.startswith(" ") and pieces and pieces[-1]:
            pieces[-1] += f" {line.strip()}"
        elif row or not line or not pieces or "  " in pieces[-1] or not pieces[-1]:
            pieces.append(line)
        else:
            pieces[-1] += f" {line}"
    return "\n".join(_filled(piece, width, indent) for piece in pieces)


def _filled(piece: str, width: int, indent: str) -> str:
    """Wrap a paragraph, or a row of a table with a hanging indent at its second column."""
    column = re.match(r"\s*\S*\s{2,}", piece)
    deeper = " " * min(len(column.group()), width // 3) if column else ""
    return textwrap.fill(piece, width, initial_indent=indent, subsequent_indent=indent + deeper, break_on_hyphens=False)
