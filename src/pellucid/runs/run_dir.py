"""A run's folder: its name, its files, and who may write in it."""

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pellucid.compiled_source import library_folder
from pellucid.destination import DestinationError, atomic_output, check_destination, flush_files
from pellucid.json_files import MOST_BYTES_OF_LIST, JSONFileError, open_for_locking, read_json_file
from pellucid.json_shapes import COUNT, FLAG, NUMBER, OBJECT, TEXT, Fields, ListOf, ObjectOf, OrNull, Row, Shape
from pellucid.runs.checkpoint import write_json
from pellucid.runs.options import RecipeError
from pellucid.text.locking import lock

#: facts about the machine on which the run began
MACHINE = "machine.json"
#: the lines about what was read and chosen before training
CHOICES = "choices.json"
LINES = Fields({"lines": ListOf(TEXT)})
#: data.json of a run on text: what was read, and how it was divided
DATA = Fields(
    {
        "sources": ListOf(
            Fields(
                {
                    **dict.fromkeys(("path", "sha256"), TEXT),
                    **dict.fromkeys(("n_bytes", "n_documents", "replaced", "halves"), COUNT),
                    "held_out": FLAG,
                },
                needed=("path", "n_bytes", "n_documents", "sha256"),
            )
        ),
        "tokenizer": Fields({"kind": TEXT, "hash": TEXT, "n_vocab": COUNT}, needed=("kind", "hash", "n_vocab")),
        "split": Fields({"held_out": NUMBER, "rule": TEXT}),
        "parts": ObjectOf(
            Fields(dict.fromkeys(("tokens", "answer_tokens", "bytes", "characters", "documents"), COUNT))
        ),
        "held_out": OrNull(Fields({"note": TEXT, "documents": ListOf(Row((TEXT, COUNT, COUNT)))})),
        "skipped": ListOf(Row((TEXT, TEXT))),
        "set_aside": ListOf(Row((COUNT, COUNT))),
        **dict.fromkeys(("documents", "duplicates"), COUNT),
        **dict.fromkeys(("hash", "licence"), TEXT),
    },
    needed=("sources", "tokenizer", "split"),
)


def cache_folder() -> Path:
    """Where prepared tokens are kept between runs: PELLUCID_CACHE, or the user's cache folder."""
    if named := os.environ.get("PELLUCID_CACHE"):
        return Path(named)
    try:
        return library_folder()
    except RuntimeError:
        raise RecipeError(
            "there is no home folder to keep prepared tokens in: name a folder in the environment variable "
            "PELLUCID_CACHE"
        ) from None


def check_cache() -> None:
    """Raise RecipeError, before any text is read, where prepared tokens could not be written.

    A folder that holds tokens already is not checked: those of this text may be among them, and are only read.
    """
    folder = cache_folder()
    if next(folder.glob("tokens-*"), None) is not None:
        return
    try:
        check_destination(folder / "tokens")
    except DestinationError as error:
        why = str(error).removesuffix("choose another path")
        raise RecipeError(
            f"{why}name a folder for prepared tokens in the environment variable PELLUCID_CACHE"
        ) from None


def choose_folder(out: Path | None, inputs: tuple[str, ...]) -> Path:
    """The folder of a new run: the one asked for, which may not exist, or the next free runs/NAME.

    Raises ValueError where it cannot be written, so that this is known before anything is read.
    """
    if out is not None:
        if out.exists():
            raise RecipeError(f"{out} exists: choose another --out, or continue that run with --resume --out {out}")
        check_destination(out)
        return out
    named = next((part for part in reversed(Path(inputs[0]).resolve().parts) if not glob.has_magic(part)), "")
    name = "stdin" if inputs[0] == "-" else re.sub(r"[^\w.-]+", "-", Path(named).stem) or "run"
    candidates = [Path("runs") / name, *(Path("runs") / f"{name}-{i}" for i in range(2, 10_000))]
    chosen = next(path for path in candidates if not path.exists())
    check_destination(chosen)
    return chosen


def write_run_dir(
    run_dir: Path, recipe: dict[str, Any], files: Mapping[str, Any], fill: Callable[[Path], object]
) -> None:
    """Make the folder of a run, complete and flushed to disk, or not at all.

    recipe  the content of recipe.json
    files   the JSON values of other files by their names
    fill    writes whatever else the folder holds

    Raises DestinationError where the folder has come into being since it was chosen.
    """
    with atomic_output(run_dir) as aside:
        fill(aside)
        flush_files(aside)
        for name, content in files.items():
            write_json(aside / name, content)
        write_json(aside / "recipe.json", recipe)


@contextmanager
def training_lock(run_dir: Path) -> Iterator[None]:
    """Let one process at a time train in a folder; the system takes the lock back however the process ends.

    Raises RecipeError where another process has the lock, and OSError where it is no regular file.
    """
    with open_for_locking(run_dir / "lock") as file:
        if not lock(file):
            raise RecipeError(f"{run_dir} is being trained by another process: wait for it, or stop it first")
        yield


def read_json(path: Path, shape: Shape = OBJECT) -> dict[str, Any]:
    """The object in a JSON file of a run; raises RecipeError where it is missing, damaged or of another shape."""
    try:
        values = read_json_file(path, MOST_BYTES_OF_LIST)
        shape.check(values, str(path))
        return values
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    except JSONFileError as error:
        raise RecipeError(str(error)) from None


def read_data(run: Path) -> dict[str, Any]:
    """What data.json says of the text of a run; raises RecipeError as `read_json`."""
    return read_json(run / "data.json", DATA)
