"""Describe an option of a command beyond its type: its placeholder and default in the help, and its valid values.

One annotation holds all of this, so the help, the completion and the check agree:

    top_k: Annotated[int, option("N"), Expected(lambda k: k >= 0, "a number of tokens, or 0 to keep all")] = 0

Nothing here imports torch, so a wrong value is refused in a fraction of a second.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, UseAppendAction, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from pellucid.destination import check_destination

if TYPE_CHECKING:
    from pellucid.text.read.find import ReadOptions

Arguments = ParamSpec("Arguments")
#: options have no prefix inside a group, and flags have no --no- form
CONFIG = (OmitArgPrefixes, FlagCreatePairsOff)
#: the marker of a positional argument
(POSITIONAL,) = typing.get_args(Positional[int])[1:]


#: the words of the command that runs, for one that starts itself again in several processes
WORDS: ContextVar[tuple[str, ...]] = ContextVar("WORDS", default=())


class OptionError(ValueError):
    """An option has an invalid value."""


def option(
    metavar: str | None = None,
    *,
    default: str = "",
    name: str | None = None,
    aliases: tuple[str, ...] | None = None,
    repeatable: bool = False,
) -> Any:
    """How an option looks in the help; `default` describes what happens without it."""

    def hint(value: str) -> str:
        if repeatable:
            return "(repeatable)"
        said = default or ("" if value in ("None", "False", "True", "", "''") else value)
        return f"(default: {said})" if said else ""

    return arg(name=name, metavar=metavar, aliases=aliases, help_behavior_hint=hint)


@dataclass(frozen=True)
class Expected:
    """The valid values of an option: `holds` tests one, `what` completes "expected ..." for the others."""

    holds: Callable[[Any], bool]
    what: str

    def refusal(self, value: Any) -> str:
        """The complaint about a value, "" if it is valid."""
        return "" if self.holds(value) else f"expected {self.what}"


@dataclass(frozen=True)
class NewPath:
    """A path at which the command will write."""

    may_exist: bool = False

    def refusal(self, value: Path) -> str:
        """The complaint about a path at which nothing can be written, "" for a usable one."""
        try:
            check_destination(value)
        except ValueError as error:
            return str(error).removeprefix(f"{value} ")
        if self.may_exist:
            return "is a folder: give the name of a file" if value.is_dir() else ""
        return "exists: choose a new name" if value.exists() else ""


def _exists(path: str | Path) -> bool:
    """Whether the path exists; an impossible name does not."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _may_be_model(name: str) -> bool:
    """Whether this is an existing folder, or a possible name on the hub (`gpt2`, OWNER/NAME)."""
    path = Path(name)
    on_hub = len(path.parts) in (1, 2) and not path.is_absolute() and ".." not in path.parts
    return _exists(path) or (on_hub and path.parts[0] != "runs")


def at_least(least: float, what: str = "") -> Expected:
    """Numbers from `least` on."""
    return Expected(lambda x: math.isfinite(x) and x >= least, what or f"a number from {least} on")


def above(least: float) -> Expected:
    """Numbers above `least`."""
    return Expected(lambda x: math.isfinite(x) and x > least, f"a number above {least}")


SHARE = Expected(lambda x: 0 <= x <= 1, "a share from 0 to 1")
DEVICE = Expected(
    lambda word: word == "auto" or word.partition(":")[0] in ("cpu", "cuda", "mps"),
    "auto, cpu, cuda, mps, or cuda:1 and so on",
)
CHECKPOINT = Expected(lambda word: word in ("best", "last") or word.isdigit(), "best, last, or the number of a step")
MODEL = Expected(
    _may_be_model,
    "the folder of a run or of a saved model, a GGUF file, or a name on the Hugging Face hub such as gpt2; nothing is "
    "there",
)
#: the option of every command that opens a model
Revision = Annotated[str, option("NAME", default="main")]
FOLDER = Expected(lambda path: Path(path).is_dir(), "the folder of a run, such as runs/NAME")
NGRAM_RUN = Expected(
    lambda name: name == "auto" or Path(name).is_dir(),
    "the folder of a run of n-grams, such as runs/NAME, or auto for the n-gram that a run of train --mix auto holds",
)
FILE = Expected(_exists, "a file or folder that exists")
INPUT_FILE = Expected(
    lambda path: path == "-" or _exists(path), "a file or folder that exists, or - for standard input"
)


@dataclass(frozen=True)
class FilesOptions:
    """The files to read, and how to read them."""

    field: Annotated[str | None, option("NAME", default="text, or the only one")] = None
    """Read the text from this field of JSON lines, or from this column of a table."""
    format: Annotated[
        Literal["auto", "plain", "html", "jsonl", "csv", "tsv", "parquet", "arrow"] | None,
        option("FORMAT", default="by the file's name"),
    ] = None
    """Read plain, html, jsonl, csv, tsv, parquet or arrow, whatever the file's name."""
    encoding: Annotated[str | None, option("NAME", default="bytes that are not UTF-8 become U+FFFD")] = None
    """Read files that are not UTF-8 in this encoding, such as latin-1."""
    include: Annotated[UseAppendAction[tuple[str, ...]], option("PATTERN", repeatable=True)] = ()
    """Read only files whose names match this pattern, such as '*.md'; commas separate several."""
    exclude: Annotated[UseAppendAction[tuple[str, ...]], option("PATTERN", repeatable=True)] = ()
    """Leave out files whose names match this pattern; commas separate several."""
    skip_bad: Annotated[bool, option()] = False
    """Leave out files that cannot be read, and list them, instead of stopping."""

    def reading(self) -> "ReadOptions":
        """These options as `ReadOptions`."""
        from pellucid.text.read.find import ReadOptions

        return ReadOptions(
            field=self.field or "",
            format=self.format or "auto",
            encoding=self.encoding or "",
            include=",".join(self.include),
            exclude=",".join(self.exclude),
            skip_bad=self.skip_bad,
        )


@dataclass(frozen=True)
class CorpusOptions(FilesOptions):
    """The text, and what of it is held out."""

    drop_duplicates: Annotated[bool, option()] = False
    """Read only the first of several documents with the same text."""
    held_out: Annotated[
        UseAppendAction[tuple[str, ...]], option("SHARE|TEXT", default="0.1; a path is repeatable")
    ] = ()
    """Measure on this share of the text, or on this file or folder (such as ./0.1), and never train on it."""

    def reading(self) -> "ReadOptions":
        """These options as `ReadOptions`."""
        return dataclasses.replace(super().reading(), drop_duplicates=self.drop_duplicates)


@dataclass(frozen=True)
class CheckpointOptions:
    """The weights to use, and the device."""

    checkpoint: Annotated[str, option("STEP"), CHECKPOINT] = "best"
    """Load this checkpoint of a run: best (the lowest held-out loss), last, or the number of a step."""
    device: Annotated[str, option("DEVICE"), DEVICE] = "auto"
    """Compute on auto, cpu, cuda or mps; auto takes a GPU where there is one."""
    revision: Revision = ""
    """Open this branch, tag or commit of a name on the Hugging Face hub, such as step1000 of EleutherAI/pythia-70m."""
    trust: Annotated[bool, option()] = False
    """Read pickled weights, and tokenizers whose patterns are not known to be safe."""


WeightFormat = Annotated[Literal["auto", "loaded", "float32", "float16", "bfloat16", "int8", "int4"], option("FORMAT")]


@dataclass(frozen=True)
class ChatModelOptions(CheckpointOptions):
    """The weights to use, and how to compute with them."""

    weights: WeightFormat = "auto"
    """Store the matrices in this format on a CPU: auto, loaded, float32, float16, bfloat16, int8 or int4."""


@dataclass(frozen=True)
class MixOptions(CheckpointOptions):
    """The weights to use, and the device."""

    mix: Annotated[str, option("RUN", default="off"), NGRAM_RUN] = ""
    """Mix in the probabilities of this n-gram run, trained on the same tokens, or of the model's own n-gram (auto)."""
    mix_weight: Annotated[float | None, option("SHARE", default="0.5; as fitted with --mix auto"), SHARE] = None
    """Give the model this share of the mixture, and the n-gram the rest."""


@dataclass(frozen=True)
class WritingModelOptions(MixOptions):
    """The weights to use, and how to compute with them."""

    weights: WeightFormat = "auto"
    """Store the matrices in this format on a CPU: auto, loaded, float32, float16, bfloat16, int8 or int4."""
    speculate: Annotated[int, option("N", default="off"), at_least(0)] = 0
    """Guess up to this many tokens at once from earlier text; the result is the same."""


# Types ------------------------------------------------------------------------------------------


def registry() -> ConstructorRegistry:
    """How arguments become values: numbers with plain error messages, and `X | None` like X."""
    constructors = ConstructorRegistry()

    @constructors.primitive_rule
    def plain(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type in (int, float):
            return _number(info.type)
        inner = [kind for kind in typing.get_args(info.type) if kind is not types.NoneType]
        if typing.get_origin(info.type) not in (typing.Union, types.UnionType) or len(inner) != 1:
            return None
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner[0], info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec):
            return None
        return dataclasses.replace(
            spec,
            is_instance=lambda value: value is None or spec.is_instance(value),
            str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        )

    return constructors


def _number(kind: type) -> PrimitiveConstructorSpec:
    what = "an integer" if kind is int else "a number"

    def parse(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {what}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


# Checks -----------------------------------------------------------------------------------------


def command(function: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorate a command so that its arguments are checked before it does anything."""

    @functools.wraps(function)
    def checked(*arguments: Arguments.args, **named: Arguments.kwargs) -> int:
        check_arguments(function, named)
        return function(*arguments, **named)

    return checked


def check_arguments(function: Callable[..., Any], named: Mapping[str, Any]) -> None:
    """Raise OptionError for the first invalid value."""
    for flag, value, checks in _checked_values(typing.get_type_hints(function, include_extras=True), named):
        values = value if isinstance(value, tuple) else () if value in (None, "") else (value,)
        for one in values:
            for check in checks:
                if said := check.refusal(one):
                    # "expected ..." follows a colon, "cannot be written ..." and "exists ..." the value itself
                    colon = ":" if said.startswith("expected") else ""
                    raise OptionError(f"{flag} {one}{colon} {said}".strip())


def _checked_values(
    hints: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, Any, list[Expected | NewPath]]]:
    """Every option of a command and of its groups: its flag ("" for a positional one), value and checks."""
    for name, hint in hints.items():
        if name not in values:
            continue
        value = values[name]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = typing.get_type_hints(type(value), include_extras=True)
            yield from _checked_values(inner, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
            continue
        metadata = getattr(hint, "__metadata__", ())
        named = next((m.name for m in metadata if getattr(m, "name", None)), name).strip("_").replace("_", "-")
        flag = "" if POSITIONAL in metadata else f"--{named}"
        yield flag, value, [m for m in metadata if isinstance(m, Expected | NewPath)]
