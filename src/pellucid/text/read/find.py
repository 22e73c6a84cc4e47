"""Find the files to read: named files, folders, glob patterns, and standard input."""

import codecs
import fnmatch
import glob
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pellucid.destination import naming
from pellucid.json_files import MOST_BYTES_OF_LIST, read_json_file
from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError
from pellucid.text.read.decompress import PACKED, Origin
from pellucid.text.read.formats import ENDINGS, READERS
from pellucid.text.read.html import HTML_PARTS

#: the path that means standard input
STANDARD_INPUT = "-"
#: files that describe a Hugging Face data set, next to its tables
DESCRIPTIONS = ("dataset_dict.json", "dataset_info.json", "state.json")
#: the files that the folder of every run has, whatever it trains
FILES_OF_RUN = ("recipe.json", "data.json", "architecture.json")
#: the first bytes of compressed streams: standard input has no name that ends in .gz
PACKED_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
#: temporary copies of standard input, kept until this process ends
_SPOOLED: list[tuple[Any, Any]] = []


#: reasons for leaving out what is no text of the user's: hidden files, folders of runs, descriptions of data sets
HIDDEN, FOLDER_OF_RUN, DESCRIPTION = "hidden", "the folder of a run", "describes a data set, holds no text"
#: the beginning of the reason for leaving out an unreadable file
UNREADABLE = "it cannot be read"
#: how many unreadable files one error names
N_NAMED_FILES = 20


class Skipped(NamedTuple):
    """A file that was found but not read, and the reason."""

    path: str
    reason: str


class Unreadable(NamedTuple):
    """An unreadable file: its relative path, its name for messages, and what is wrong with it."""

    path: str
    name: str
    message: str

    @property
    def skipped(self) -> Skipped:
        """The entry for this file in a list of files that were left out."""
        return Skipped(self.path, f"{UNREADABLE}: {self.message.removeprefix(self.name).lstrip(' ,:')}")


def extends_ascii(encoding: str) -> bool:
    """Whether the encoding writes ASCII as ASCII and uses those bytes for nothing else."""
    ascii_ = bytes(range(128))
    letters = (letter.encode(encoding, "ignore") for letter in "\u00e9\u0434\u65e5\u4f60\uac00")
    return ascii_.decode(encoding, "replace") == ascii_.decode("ascii") and not any(
        map(bytes.isascii, filter(None, letters))
    )


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for finding and reading files.

    field             JSON field or table column that holds the text; "": `text`, or the only one that holds text. For
                      files of several kinds PATTERN=FIELD, separated by commas, behind the field of all others
    format            a key of formats.READERS for every file; auto: by the ending of each name
    encoding          of files that are neither UTF-8 nor begin with a byte order mark, or, where it does not extend
                      ASCII (UTF-16, ISO-2022, ...), of all that do not; "": what is not UTF-8 becomes U+FFFD
    include, exclude  patterns, separated by commas, of file names or of paths within the folder: what is found and
                      matches none of `include`, or one of `exclude`, is left out; a file that is named is read
    html              the part of HTML pages that is read: all that a reader sees, or the main text without menus,
                      banners and footers
    split_at          the characters at which a document ends and another begins, such as <|endoftext|>; they, and line
                      ends beside them, are part of neither
    drop_duplicates   whether to leave out a document whose text already occurred
    skip_bad          whether to leave out unreadable files; otherwise they raise DocumentError
    licence           the licence of the text, as free text; the manifest keeps it
    folder            the folder in which relative paths are looked up; "": the current one
    """

    field: str = ""
    format: str = "auto"
    encoding: str = ""
    include: str = ""
    exclude: str = ""
    html: str = "all"
    split_at: str = ""
    drop_duplicates: bool = False
    skip_bad: bool = False
    licence: str = ""
    folder: str = ""

    def __post_init__(self):
        if self.format != "auto" and self.format not in READERS:
            raise DocumentError(f"text.format = {self.format!r}: choose auto or one of {', '.join(READERS)}")
        if self.html not in HTML_PARTS:
            raise DocumentError(f"text.html = {self.html!r}: choose one of {', '.join(HTML_PARTS)}")
        try:
            known = not self.encoding or codecs.lookup(self.encoding)._is_text_encoding  # type: ignore[attr-defined]
        except LookupError:
            known = False
        if not known:
            raise DocumentError(
                f"text.encoding = {self.encoding!r}: there is no such encoding; choose latin-1, cp1251, ..."
            )
        _ = self.field_patterns

    @cached_property
    def field_patterns(self) -> dict[str, str]:
        """The field of the files that match each pattern. Raises DocumentError for an empty pattern or field."""
        fields: dict[str, str] = {}
        pattern = ""
        for part in self.field.split(","):
            before, equals, after = part.partition("=")
            pattern = before.strip() if equals else pattern
            if pattern and equals:
                fields[pattern] = after.strip()
            elif pattern:  # a comma of the field's name
                fields[pattern] += f",{part}"
        if "=" in self.field and not (fields and all(fields.values())):
            raise DocumentError(
                f"text.field = {self.field!r}: expected a field, or PATTERN=FIELD for the files of a pattern, such as "
                "chat.csv=message"
            )
        return fields

    def field_of(self, relative: str) -> str:
        """The field of a file: that of the first pattern that it matches, or the one without a pattern."""
        for pattern, field in self.field_patterns.items():
            if _matches(relative, pattern):
                return field
        return self.field.partition("=")[0].rpartition(",")[0] if self.field_patterns else self.field

    def to_dict(self) -> dict[str, Any]:
        """The options that change which documents are read, where they differ from the default."""
        names = ("field", "format", "encoding", "html", "split_at", "drop_duplicates")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in names and self._is_set(f)}

    def _is_set(self, field: Any) -> bool:
        return getattr(self, field.name) != field.default

    def why_left_out(self, relative: str) -> str:
        """Why a file in a folder is not read; empty if it is."""
        for pattern in _patterns(self.exclude):
            if _matches(relative, pattern):
                return f"excluded by {pattern}"
        included = _patterns(self.include)
        return "" if not included or any(_matches(relative, p) for p in included) else "not included"


def _patterns(listed: str) -> list[str]:
    return [pattern.strip() for pattern in listed.split(",") if pattern.strip()]


def _matches(relative: str, pattern: str) -> bool:
    """Whether the path, a folder above it, or one of its parts (for a pattern without /) matches."""
    pattern = pattern.removeprefix("./").rstrip("/")
    if "/" in pattern:
        folders = (str(folder) for folder in PurePosixPath(relative).parents)
        return any(fnmatch.fnmatchcase(path, pattern) for path in (relative, *folders))
    return any(fnmatch.fnmatchcase(part, pattern) for part in relative.split("/"))


class FoundFile(NamedTuple):
    """A file to read, and whether the user named it (rather than its folder)."""

    path: Path
    explicit: bool


def find_files(
    named: list[Path], skipped: list[Skipped], reading: ReadOptions | None = None, bad: list[Unreadable] | None = None
) -> dict[str, FoundFile]:
    """The files to read, by relative path. Files left out are added to `skipped`, unreadable ones to `bad`.

    Raises DocumentError for paths that do not exist, naming all of them, and for an unreadable file if `bad` is None.
    """
    reading = reading or ReadOptions()
    files: dict[str, FoundFile] = {}
    if Path(STANDARD_INPUT) in named:
        files[STANDARD_INPUT] = FoundFile(spool(), True)
    paths, patterns = _expanded([Path(located(path, reading.folder)) for path in named if path != Path(STANDARD_INPUT)])
    one_folder = len(paths) == 1 and paths[0].is_dir()
    here = Path(reading.folder)  # which is its own parent, as Path(".") is
    parents = [os.path.abspath(path if one_folder or path == here else path.parent) for path in paths]
    try:
        base = os.path.commonpath(parents) if parents else ""
    except ValueError:  # different drives on Windows
        base = ""
    seen: list[str] = []
    for path in paths:
        folder = path.is_dir()
        for file in _walk(path, base, skipped) if folder else [path]:
            relative = _relative(file, base)
            searched = folder or path in patterns
            seen += [relative] if searched else []
            try:
                reason = (reading.why_left_out(relative) or _why_no_table(file)) if searched else ""
            except DocumentError as error:
                if bad is None:
                    raise
                bad.append(Unreadable(relative, str(file), str(error)))
                continue
            if reason and relative not in files:
                skipped.append(Skipped(relative, reason))
            elif relative == STANDARD_INPUT:
                raise DocumentError(f"{file} has the name that means standard input: rename it")
            elif not reason:
                files[relative] = FoundFile(file, not searched or files.get(relative, (file, False))[1])
    for name, listed in (("include", reading.include), ("exclude", reading.exclude)):
        for pattern in _patterns(listed):
            if not any(_matches(relative, pattern) for relative in seen):
                skipped.append(Skipped(f"--{name} {pattern}", f"it matches none of the {len(seen):,} files there"))
    return files


def located(path: str | Path, folder: str) -> str:
    """A path or pattern as it is found from the current folder, where relative ones are looked up in `folder`; ""
    stands for the current folder itself.
    """
    if not folder or str(path) == STANDARD_INPUT:
        return str(path)
    if not Path(folder, path).exists() and glob.has_magic(str(path)):
        folder = glob.escape(folder)
    return str(Path(folder, path))


def refuse_or_skip(
    bad: list[Unreadable],
    skipped: list[Skipped],
    reading: ReadOptions,
    n_files: int,
    kind: type[DocumentError] = DocumentError,
) -> None:
    """Add unreadable files to `skipped` if `reading.skip_bad` is set; otherwise raise an error of type `kind`.

    The error names each such file and what is wrong with it. `n_files` is how many files were found in all.
    """
    if not bad or reading.skip_bad:
        skipped[:0] = [file.skipped for file in bad]
        return
    messages = list(dict.fromkeys(file.message for file in bad))
    if len(messages) == 1:
        raise kind(messages[0] + ("; --skip-bad leaves such files out" if n_files > 1 else ""))
    more = [f"and {len(messages) - N_NAMED_FILES:,} more"] if len(messages) > N_NAMED_FILES else []
    listed = "\n".join([*messages[:N_NAMED_FILES], *more])
    raise kind(f"{len(bad):,} files cannot be read; repair them, or leave them out with --skip-bad\n{listed}")


def leave_out(files: dict[str, FoundFile], without: Collection[Path], skipped: list[Skipped]) -> None:
    """Remove the files of `without` from those to read. Raises DocumentError if such a file was named itself."""
    for relative, (path, explicit) in list(files.items()) if without else ():
        if path.resolve() in without:
            if explicit:
                raise DocumentError(f"{path} is named both as text to train on and as text to hold out: name it once")
            del files[relative]
            skipped.append(Skipped(relative, "held out"))


#: what is said of a pattern without files; hidden ones and the folders of runs are no text
NO_MATCH = "no file but hidden ones and those of runs matches this pattern"


def _expanded(named: list[Path]) -> tuple[list[Path], set[Path]]:
    """The paths with patterns replaced by what they match, and the set of paths that a pattern matched."""
    paths, matched, missing = [], set(), []
    for path in named:
        if path.exists():
            paths.append(path)
            continue
        matches = sorted(_globbed(path)) if glob.has_magic(str(path)) else []
        if not matches:
            what = NO_MATCH if glob.has_magic(str(path)) else "there is no such file or folder"
            missing.append(f"{path}: {what}")
        paths += matches
        matched |= set(matches)
    if missing:
        raise DocumentError("\n".join(missing))
    return paths, matched


def _globbed(pattern: Path) -> Iterator[Path]:
    """The paths that a pattern matches, without hidden files and the folders of runs, and without following links to
    folders for **.
    """
    fixed = next(k for k, part in enumerate(pattern.parts) if glob.has_magic(part))
    folder = Path(*pattern.parts[:fixed])
    for path in folder.glob(str(Path(*pattern.parts[fixed:]))):
        inner = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in inner.parts)
        if not is_hidden and not any(_is_run(folder / above) for above in (inner, *inner.parents[:-1])):
            yield path


def _is_run(folder: Path) -> bool:
    """Whether this is the folder of a run, whose files are records of training and no text to train on."""
    return all(os.path.isfile(folder / name) for name in FILES_OF_RUN)  # False where a folder may not be opened


def _walk(folder: Path, base: str, skipped: list[Skipped]) -> Iterator[Path]:
    """The files of a folder that was named and of those in it, without hidden ones, links to folders, and runs."""

    def closed(error: OSError) -> None:
        skipped.append(Skipped(_relative(Path(error.filename), base), f"it cannot be opened: {error.strerror}"))

    for here, folders, names in os.walk(folder, onerror=closed):
        left_out = {name: HIDDEN for name in (*folders, *names) if name.startswith(".")}
        for name in set(folders) - left_out.keys():
            if os.path.islink(os.path.join(here, name)):
                left_out[name] = "a link to a folder, which is not followed"
            elif _is_run(Path(here, name)):
                left_out[name] = FOLDER_OF_RUN
        skipped += [Skipped(_relative(Path(here, name), base), left_out[name]) for name in sorted(left_out)]
        folders[:] = sorted(set(folders) - left_out.keys())
        yield from (Path(here, name) for name in sorted(names) if not name.startswith("."))


def _why_no_table(path: Path) -> str:
    """Why a file in the folder of a Hugging Face data set is not one of its tables; empty if it is."""
    if path.name in DESCRIPTIONS:
        return DESCRIPTION
    state = path.with_name("state.json")
    if path.suffix != ".arrow" or not state.is_file():
        return ""
    try:
        tables = [str(entry["filename"]) for entry in read_json_file(state, MOST_BYTES_OF_LIST)["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DocumentError(f"{state} is damaged: it does not list the data set's files ({error!r})") from None
    if missing := [name for name in tables if not path.with_name(name).is_file()]:
        raise DocumentError(f"{state} lists {missing[0]}, which is not there: the data set is not complete")
    return "" if path.name in tables else "not among the files of the data set that state.json lists"


def _relative(path: Path, base: str) -> str:
    return Path(os.path.relpath(os.path.abspath(path), base)).as_posix() if base else path.as_posix()


def origin_of(path: Path, name: str, reading: ReadOptions, relative: str = "") -> Origin:
    """How to read this file, judged by the ending of its name unless the format is set. `relative` is the path by which
    patterns know it.
    """
    packed, inner = "", path.name
    if path.suffix.lower() in PACKED:
        packed, inner = path.suffix.lower(), path.stem
    known = reading.format if reading.format != "auto" else ENDINGS.get(Path(inner).suffix.lower(), "plain")
    encoding = "utf-8" if not reading.encoding or extends_ascii(reading.encoding) else reading.encoding
    field = reading.field_of(relative or path.name)
    return Origin(path, name, known, packed, encoding, field, reading.split_at, reading.html)


def spool() -> Path:
    """Copy standard input to a temporary file, since text is read more than once; later calls return the same copy."""
    if sys.stdin is None or sys.stdin.isatty():
        raise DocumentError("standard input is a terminal: pipe text into it, or name files")
    stream = sys.stdin.buffer
    if known := next((copy for spooled, copy in _SPOOLED if spooled is stream), None):
        return Path(known.name)
    head = stream.read(4)
    suffix = next((ending for magic, ending in PACKED_MAGIC.items() if head.startswith(magic)), "")
    copy = tempfile.NamedTemporaryFile(prefix="pellucid-", suffix=suffix)  # noqa: SIM115 (it is needed until the end)
    _SPOOLED.append((stream, copy))
    while head:
        with naming(Path(copy.name)):
            copy.write(head)
            copy.flush()
        head = stream.read(CHUNK_BYTES)
    return Path(copy.name)
