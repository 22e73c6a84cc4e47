"""Describe an option of a command beyond its type: its placeholder and default in the help, and its valid values.

One annotation holds all of this, so the help, the completion and the check agree:

    top_k: Annotated[int, option("N"), Expected(lambda k: k >= 0, "a number of tokens, or 0 to keep all")] = 0

Nothing here imports torch, so a wrong value is refused in a fraction of a second.
"""

import dataclasses
import functools
import itertools
import math
import shlex
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, cast

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, UseAppendAction, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from pellucid.destination import check_destination
from pellucid.model_names import check_checkpoint, check_revision, exists, may_be_model

if TYPE_CHECKING:
    from pellucid.text.read.find import ReadOptions
    from pellucid.trust import Trust

Arguments = ParamSpec("Arguments")
#: options have no prefix inside a group, and flags have no --no- form
CONFIG = (OmitArgPrefixes, FlagCreatePairsOff)
#: the marker of a positional argument
(POSITIONAL,) = typing.get_args(Positional[int])[1:]
#: the marker of an option that may be given several times
(REPEATABLE,) = typing.get_args(UseAppendAction[tuple[str, ...]])[1:]

#: how often each option of the command that runs stands on its command line, by its flag
FLAG_COUNTS: ContextVar[Mapping[str, int]] = ContextVar("FLAG_COUNTS", default=types.MappingProxyType({}))
#: the words of the command that runs, for one that starts itself again in several processes
ARGV: ContextVar[tuple[str, ...]] = ContextVar("ARGV", default=())


class OptionError(ValueError):
    """An option has an invalid value."""


def option(
    metavar: str | None = None,
    *,
    default: str = "",
    name: str | None = None,
    aliases: tuple[str, ...] | None = None,
    repeatable: bool = False,
    help: str | None = None,
) -> Any:
    """How an option looks in the help; `default` describes what happens without it, and `help` is what it says, of an
    option of several commands; others say it in the docstring below them.
    """

    def hint(value: str) -> str:
        if repeatable:
            return "(repeatable)"
        said = default or ("" if value in ("None", "False", "True", "", "''") else value)
        return f"(default: {said})" if said else ""

    return arg(name=name, metavar=metavar, aliases=aliases, help=help, help_behavior_hint=hint)


@dataclass(frozen=True)
class Expected:
    """The valid values of an option: `accepts` tests one, `what` completes "expected ..." for the others."""

    accepts: Callable[[Any], bool]
    what: str

    def error(self, value: Any) -> str:
        """The complaint about a value, "" if it is valid."""
        return "" if self.accepts(value) else f"expected {self.what}"


@dataclass(frozen=True)
class NewPath:
    """A path at which the command will write."""

    may_exist: bool = False

    def error(self, value: Path) -> str:
        """The complaint about a path at which nothing can be written, "" for a usable one."""
        try:
            check_destination(value)
        except ValueError as error:
            return str(error).removeprefix(f"{value} ")
        if self.may_exist:
            return "is a folder: give the name of a file" if value.is_dir() else ""
        return "exists: choose a new name" if value.exists() else ""


def agrees(question: str, otherwise: str) -> bool:
    """Whether the user answers yes. Raises OptionError, with what to do `otherwise`, where nobody can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise OptionError(otherwise)
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False


def make_missing_folder(path: Path) -> None:
    """Make the folder of a file that will be written, if the user agrees. Raises OptionError if it stays missing."""
    folder = path.parent
    if folder.is_dir():
        return
    missing = (
        f"{path} cannot be written: there is no folder {folder}; make it first: mkdir -p {shlex.quote(str(folder))}"
    )
    if not agrees(f"make the folder {folder}?", missing):
        raise OptionError(missing)
    folder.mkdir(parents=True)


@dataclass(frozen=True)
class NoEffect:
    """When an option would be ignored, and is therefore refused.

    `when` tests the values of all options of the command, by name; `why` is the reason, with these values filled in.
    """

    when: Callable[[Any], bool]
    why: str


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
    may_be_model,
    "the folder of a run or of a saved model, a GGUF file, or a name on the Hugging Face hub such as gpt2; nothing is "
    "there",
)
#: what makes options of sampling be ignored: all of them, or those that choose among several tokens
NO_SAMPLING = NoEffect(lambda o: getattr(o, "beams", 0) > 0, "--beams {beams} does not sample")
NO_DRAW = (
    NO_SAMPLING,
    NoEffect(lambda o: o.temperature == 0, "--temperature 0 always takes the likeliest token"),
    NoEffect(
        lambda o: o.temperature is None and o.source is not None,
        "with --source the likeliest token is always taken, unless --temperature is given",
    ),
)
#: options of several commands, each with its one text of help
Checkpoint = Annotated[
    str,
    option(
        "STEP",
        help="Load this checkpoint of a run: best (the lowest held-out loss), last, or the number of a step.",
    ),
    CHECKPOINT,
]
Revision = Annotated[
    str,
    option(
        "NAME",
        default="main",
        help="Open this branch, tag or commit of a name on the Hugging Face hub, such as step1000 of "
        "EleutherAI/pythia-70m.",
    ),
]
Device = Annotated[
    str, option("DEVICE", help="Compute on auto, cpu, cuda or mps; auto takes a GPU where there is one."), DEVICE
]
#: the risks of files from elsewhere (`pellucid.trust`)
TrustOption = Annotated[
    Literal["no", "pickles", "tokenizer", "all"],
    option(
        "WHAT", help="Take this risk: pickles (read pickled weights), tokenizer (patterns that may be slow), or all."
    ),
]
TrustedTokenizer = Annotated[
    Literal["no", "tokenizer"], option("WHAT", help="Take the risk of a tokenizer whose patterns may be slow.")
]
WeightFormat = Annotated[
    Literal["auto", "loaded", "int8", "int4"],
    option("FORMAT", help="Store the matrices in this format on a CPU: loaded, int8 or int4; auto rounds no weight."),
]
FOLDER = Expected(lambda path: Path(path).is_dir(), "the folder of a run, such as runs/NAME")
NGRAM_RUN = Expected(
    lambda name: name == "auto" or Path(name).is_dir(),
    "the folder of a run of n-grams, such as runs/NAME, or auto for the n-gram that a run of train --mix auto holds",
)
FILE = Expected(exists, "a file or folder that exists")
INPUT_FILE = Expected(lambda path: path == "-" or exists(path), "a file or folder that exists, or - for standard input")


@dataclass(frozen=True)
class DrawnTokenOptions:
    """How a token is drawn, in texts and in conversations."""

    temperature: Annotated[float | None, option("N"), at_least(0)] = 0.8
    """Divide the logits by this; 0 always takes the likeliest token."""
    top_k: Annotated[
        int, option("N", default="all"), at_least(0, "a whole number of tokens to keep, or 0 to keep all"), *NO_DRAW
    ] = 0
    """Sample from this many of the likeliest tokens."""
    top_p: Annotated[float, option("SHARE", default="all"), SHARE, *NO_DRAW] = 1.0
    """Sample from the fewest likeliest tokens that together have this probability."""
    min_p: Annotated[float, option("SHARE", default="all"), SHARE, *NO_DRAW] = 0.0
    """Sample from tokens that are at least this share as likely as the likeliest."""
    repetition_penalty: Annotated[float, option("N", default="off"), above(0), NO_SAMPLING] = 1.0
    """Divide the logits of tokens that were read or generated already by this (multiply, if negative)."""
    seed: Annotated[int | None, option("N", default="drawn and printed"), *NO_DRAW] = None
    """Generate the same text again from the same seed."""


@dataclass(frozen=True)
class FilesOptions:
    """The files to read, and how to read them."""

    field: Annotated[UseAppendAction[tuple[str, ...]], option("NAME", repeatable=True)] = ()
    """Read text from this field of JSON or column of a table, of the files of a pattern if it is PATTERN=NAME."""
    format: Annotated[
        Literal["auto", "plain", "markdown", "html", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "epub", "docx"]
        | None,
        option("FORMAT", default="by the file's name"),
    ] = None
    """Read plain, markdown, html, jsonl, json, csv, tsv, parquet, arrow, epub or docx, whatever the file's name."""
    encoding: Annotated[str | None, option("NAME", default="bytes that are not UTF-8 become U+FFFD")] = None
    """Read files that are not UTF-8 in this encoding, such as latin-1."""
    html: Annotated[Literal["all", "main"] | None, option("PART", default="all")] = None
    """Of HTML pages read all that a reader sees, or the main text without menus and banners."""
    split_at: Annotated[str | None, option("TEXT", default="files and rows are whole documents")] = None
    """End a document, and begin another, wherever the text holds this, such as '<|endoftext|>'."""
    include: Annotated[UseAppendAction[tuple[str, ...]], option("PATTERN", repeatable=True)] = ()
    """Read only files whose names match this pattern, such as '*.md'; commas separate several."""
    exclude: Annotated[UseAppendAction[tuple[str, ...]], option("PATTERN", repeatable=True)] = ()
    """Leave out files whose names match this pattern; commas separate several."""
    skip_bad: Annotated[bool, option()] = False
    """Leave out files that cannot be read, and list them, instead of stopping."""

    def joined_fields(self) -> str:
        """The fields as one text, the one without a pattern first. Raises OptionError for two without one."""
        alone = [name for name in self.field if "=" not in name]
        if len(alone) > 1:
            named = " ".join(f"--field {name}" for name in alone)
            raise OptionError(
                f"{named}: one field is that of all files; name those of each, such as --field 'chat.csv={alone[0]}' "
                f"--field 'table.csv={alone[1]}'"
            )
        return ",".join([*alone, *(name for name in self.field if "=" in name)])

    def reading(self) -> "ReadOptions":
        """These options as `ReadOptions`."""
        from pellucid.text.read.find import ReadOptions

        return ReadOptions(
            field=self.joined_fields(),
            format=self.format or "auto",
            encoding=self.encoding or "",
            html=self.html or "all",
            split_at=self.split_at or "",
            include=",".join(self.include),
            exclude=",".join(self.exclude),
            skip_bad=self.skip_bad,
        )


@dataclass(frozen=True)
class DocumentOptions(FilesOptions):
    """The files to read, how to read them, and which documents of them count."""

    drop_duplicates: Annotated[bool, option()] = False
    """Read only the first of several documents with the same text."""

    def reading(self) -> "ReadOptions":
        """These options as `ReadOptions`."""
        return dataclasses.replace(super().reading(), drop_duplicates=self.drop_duplicates)


@dataclass(frozen=True)
class CorpusOptions(DocumentOptions):
    """The text, and what of it is held out."""

    check_text: Annotated[bool, option()] = False
    """Read and hash all files and their prepared tokens, also those whose size and times have not changed."""
    held_out: Annotated[
        UseAppendAction[tuple[str, ...]], option("SHARE|TEXT", default="0.1; a path is repeatable")
    ] = ()
    """Measure on this share of the text, or on this file or folder (such as ./0.1), and never train on it."""


def trust_of(word: str) -> "Trust":
    """The value of `trust` in Python for the word after --trust."""
    return cast("Trust", {"no": False, "all": True}.get(word, word))


@dataclass(frozen=True)
class OpenedModelOptions:
    """The weights to use."""

    checkpoint: Checkpoint = "best"
    revision: Revision = ""
    trust: TrustOption = "no"

    def check(self, model: str) -> None:
        """Raise FolderError for a checkpoint of anything but a run, and for a revision of a path here."""
        check_checkpoint(Path(model), self.checkpoint, is_given="--checkpoint" in FLAG_COUNTS.get())
        check_revision(Path(model), self.revision or None)


@dataclass(frozen=True)
class CheckpointOptions(OpenedModelOptions):
    """The weights to use, and the device."""

    device: Device = "auto"


@dataclass(frozen=True)
class ChatModelOptions(CheckpointOptions):
    """The weights to use, and how to compute with them."""

    weights: WeightFormat = "auto"


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


# Types ------------------------------------------------------------------------------------------


def registry() -> ConstructorRegistry:
    """How arguments become values: numbers with plain error messages, and `X | None` like X."""
    constructors = ConstructorRegistry()

    @constructors.primitive_rule
    def plain(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type in (int, float):
            return _number_parser(info.type)
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


def _number_parser(kind: type) -> PrimitiveConstructorSpec:
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
    """Raise OptionError for the first invalid value, and for the first option that is given twice or ignored."""
    rows = [(path[-1], flag, _argument_at(named, path), metadata) for path, flag, metadata in _options(function)]
    options = types.SimpleNamespace(**{name: value for name, _, value, _ in rows})
    for _, flag, value, metadata in rows:
        values = value if isinstance(value, tuple) else () if value in (None, "") else (value,)
        for one in values:
            for check in metadata:
                if isinstance(check, Expected | NewPath) and (said := check.error(one)):
                    # "expected ..." follows a colon, "cannot be written ..." and "exists ..." the value itself
                    colon = ":" if said.startswith("expected") else ""
                    raise OptionError(f"{flag} {one}{colon} {said}".strip())
    for _, flag, _, metadata in rows:
        n_times = FLAG_COUNTS.get().get(flag, 0)
        if n_times > 1 and REPEATABLE not in metadata:
            raise OptionError(f"{flag} is given {n_times} times: give it once")
        for check in metadata:
            if n_times and isinstance(check, NoEffect) and check.when(options):
                refuse_given([flag], check.why.format(**vars(options)))


def refuse_given(flags: Iterable[str], why: str) -> None:
    """Raise OptionError where one of these options, which are ignored for the reason `why`, was given."""
    if ignored := [flag for flag in flags if flag in FLAG_COUNTS.get()]:
        raise OptionError(f"{why}: leave out {ignored[0]}")


def count_options(function: Callable[..., Any], arguments: Sequence[str]) -> Mapping[str, int]:
    """How often each option of a command stands on a command line, by its flag."""
    flags = {}
    for _, flag, metadata in _options(function):
        aliases = [alias for m in metadata for alias in getattr(m, "aliases", None) or ()]
        flags |= dict.fromkeys((flag, flag[:2] + "no" + flag[1:], *aliases), flag)
    words = itertools.takewhile(lambda word: word != "--", arguments)
    names = (word.partition("=")[0].replace("_", "-") if word.startswith("--") else word[:2] for word in words)
    return Counter(flags[name] for name in names if name in flags)


def flags_of(group: type) -> list[str]:
    """The flags of a group of options."""
    return [flag for _, flag, _ in _options(group)]


def _options(of: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, tuple[Any, ...]]]:
    """Every option of a command, and of its groups: the name behind that of its group, its flag ("" for a positional
    one), and its annotations.
    """
    for name, hint in typing.get_type_hints(of, include_extras=True).items():
        metadata = getattr(hint, "__metadata__", ())
        group = hint.__origin__ if metadata else hint
        if dataclasses.is_dataclass(group):
            yield from _options(group, (*path, name))
            continue
        named = next((m.name for m in metadata if getattr(m, "name", None)), name).strip("_").replace("_", "-")
        yield (*path, name), "" if POSITIONAL in metadata else f"--{named}", metadata


def _argument_at(named: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value of an option among the arguments of a command, None where it is not among them."""
    value = named.get(path[0])
    return getattr(value, path[1], None) if path[1:] else value
