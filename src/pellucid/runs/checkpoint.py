"""Checkpoints that a crash cannot spoil: written aside, checksummed, flushed to disk, then named.

A checkpoint is the folder `checkpoints/step-00000100`. Its manifest lists every file with size and SHA-256 and every
tensor with its global shape and its parts: of several processes each writes what it holds, and any number of them can
read it. The manifest carries a checksum of itself. Tensors are safetensors, the rest is JSON; nothing is pickled.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save
from torch import Tensor

from pellucid.destination import flush_folder, naming, replace_file, write_durably
from pellucid.json_files import MOST_BYTES_OF_LIST, JSONFileError, parse_json_object, read_json_file, read_regular
from pellucid.json_shapes import COUNT, Fields
from pellucid.model.transfer import on_host
from pellucid.runs.processes import SINGLE_PROCESS, Processes
from pellucid.runs.shards import (
    ShardError,
    StreamedTensors,
    TensorFiles,
    check_parts,
    described,
    joined_entries,
    parts_to_write,
)
from pellucid.text.locking import locked

MANIFEST, METRICS = "manifest.json", "metrics.jsonl"
#: the ending of the name of a checkpoint that a run had when it was shorter, and that adapters need
NEEDED_SUFFIX = ".needed"
#: ... and of the best one of the shorter run
SHORTER_SUFFIX = ".shorter"
#: best.json and good.json, which name a checkpoint
MARK = Fields({"step": COUNT}, needed=("step",))
FORMAT = 1
#: why a file cannot be written, and what helps, by the error that the system gives
NO_ROOM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("the disk{whose} is full", "Free that much")),
    errno.EFBIG: ("a file{whose} is larger than the system allows (ulimit -f)", "Raise that limit"),
}


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or that could not be written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: weights, the optimiser's numbers, and plain values."""

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: dict[str, Any]


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of a step stands, whether there is one or not."""
    return run / "checkpoints" / f"step-{step:08d}"


def kept_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step stands: that of a shorter run, if adapters need it or the run has no other."""
    folder = folder_of(run, step)
    if folder.exists() and step not in needed_steps(run):
        return folder
    return next(filter(Path.exists, (folder.with_suffix(ending) for ending in (NEEDED_SUFFIX, SHORTER_SUFFIX))), folder)


def metrics_path(run: Path, name: str, step: int) -> Path:
    """The metrics that led to a checkpoint, by its name (best, last, or a step) and its step: those of the run, or of
    the shorter run whose checkpoint it is.
    """
    folder = (marked_folder(run, "best.json")[0] if name == "best" else None) or kept_folder(run, step)
    of_shorter = folder / METRICS
    return of_shorter if name != "last" and of_shorter.exists() else run / METRICS


def steps_of(run: Path) -> list[int]:
    """The steps that have a checkpoint folder, verified or not, in order."""
    matches = (re.fullmatch(r"step-(\d{8,})", p.name) for p in (run / "checkpoints").glob("step-*"))
    return sorted(int(m[1]) for m in matches if m)


@dataclass(frozen=True)
class CheckpointFiles:
    """What one process writes of a checkpoint: files by name, and the manifest's entries for their tensors."""

    step: int
    contents: dict[str, bytes | StreamedTensors]
    tensors: dict[str, dict[str, Any]]


def files_of(checkpoint: Checkpoint, processes: Processes = SINGLE_PROCESS) -> CheckpointFiles:
    """The files that this process writes, with its part of each tensor; they share no memory with the tensors."""
    contents: dict[str, bytes | StreamedTensors] = {}
    tensors = {}
    for kind, values in (("model", checkpoint.weights), ("optimizer", checkpoint.optimizer)):
        parts = parts_to_write(values, processes.is_first)
        if parts or processes.is_first:
            name = f"{kind}-{processes.part_number:05d}-of-{processes.n_parts:05d}.safetensors"
            contents[name] = save(on_host({key: part.values for key, part in parts.items()}))
            tensors |= described(parts, name)
    if processes.is_first:
        contents["state.json"] = json.dumps(checkpoint.state, indent=1).encode()
    return CheckpointFiles(checkpoint.step, contents, tensors)


def first_files(weights: Mapping[str, Tensor]) -> CheckpointFiles:
    """The files of a checkpoint of step 0 with these weights, which are read one by one as the files are written."""
    files = files_of(Checkpoint(0, {}, {}, {"step": 0, "bad_in_a_row": 0, "seconds": 0.0}))
    name, streamed = next(iter(files.contents)), StreamedTensors(weights)
    return CheckpointFiles(0, files.contents | {name: streamed}, streamed.described(name))


def write_checkpoint(run: Path, files: CheckpointFiles, processes: Processes = SINGLE_PROCESS) -> Path:
    """Write it under its final name in one rename; what was there before is untouched until then.

    Each of the processes writes its own files and flushes them; then the first one renames the folder.
    Raises CheckpointError with the bytes needed where there is no room for it (NO_ROOM), in every process; no partial
    folder is left.
    """
    target = folder_of(run, files.step)
    aside = target.with_name(f"{target.name}.writing")
    entries = {name: size_and_digest(content) for name, content in files.contents.items()}
    of_all = processes.gathered((entries, files.tensors))
    manifest = {
        "format": FORMAT,
        "step": files.step,
        "files": {name: said for own, _ in of_all for name, said in own.items()},
        "tensors": joined_entries(own for _, own in of_all),
    }
    sealed = seal(manifest)
    need = sum(said["bytes"] for said in manifest["files"].values()) + len(sealed)

    def make_room() -> bool:
        """Whether the checkpoint is to be written; training is deterministic, and it may have been saved already."""
        if target.exists() and not verify_files(target):
            return False
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return True

    def write() -> None:
        own = files.contents | ({MANIFEST: sealed} if processes.is_first else {})
        for name, content in own.items():
            write_durably(aside / name, content)

    def publish() -> None:
        flush_folder(aside)
        os.rename(aside, target)
        flush_folder(target.parent)

    def agreed(do: Callable[[], Any]) -> Any:
        """Do it; what it gave in the first process. Raises in every process where it failed in one."""
        return result_of_first_process(processes, do, files.step, need, target.parent)

    try:
        if agreed(lambda: processes.is_first and make_room()):
            agreed(write)
            agreed(lambda: processes.is_first and publish())
    except Exception:
        if processes.is_first:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def size_and_digest(content: bytes | StreamedTensors) -> dict[str, Any]:
    """What the manifest says of a file: its bytes and their SHA-256."""
    digest, n_bytes = hashlib.sha256(), 0
    for piece in [content] if isinstance(content, bytes) else content:
        digest.update(piece)
        n_bytes += len(piece)
        del piece  # before the next one is read
    return {"bytes": n_bytes, "sha256": digest.hexdigest()}


def result_of_first_process(processes: Processes, do: Callable[[], Any], step: int, need: int, where: Path) -> Any:
    """What `do` gives in the first of the processes; raises CheckpointError in all of them where one has no room for
    its files (NO_ROOM).

    Other errors are raised as they are in the process that has them, and as CheckpointError in the others.
    """
    result = error = None
    try:
        result = do()
    except Exception as raised:
        error = raised
    failure = error and (str(error), error.errno if isinstance(error, OSError) else None)
    outcomes = processes.gathered((result, failure))
    failures = [(number, *failure) for number, (_, failure) in enumerate(outcomes) if failure]
    for number, _, code in failures:
        if code in NO_ROOM:
            reason, remedy = NO_ROOM[code]
            reason = reason.format(whose="" if processes.n == 1 else f" of process {number}")
            saved = steps_of(where.parent)
            before = f"the checkpoint of step {saved[-1]} is intact" if saved else "no checkpoint was saved before it"
            raise CheckpointError(
                f"{reason}: the checkpoint of step {step} needs {need:,} bytes in {where}; {before}. "
                f"{remedy} and resume"
            ) from error
    if error:
        raise error
    if failures:
        number, message, _ = failures[0]
        raise CheckpointError(f"process {number} could not write the checkpoint of step {step}: {message}")
    return outcomes[0][0]


def strict(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step: a reader sees the old one or the new one, whole."""
    replace_file(path, (json.dumps(strict(value), indent=1, allow_nan=False) + "\n").encode())


def seal(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes, its own SHA-256 the last entry."""
    digest = hashlib.sha256(json.dumps(manifest, indent=1).encode()).hexdigest()
    return json.dumps(manifest | {"sha256": digest}, indent=1).encode()


def verify_files(folder: Path) -> str:
    """What is wrong with a checkpoint folder, or "" when every file is byte for byte as it was written."""
    name = MANIFEST
    try:
        raw = read_regular(folder / MANIFEST, MOST_BYTES_OF_LIST)
        manifest = parse_json_object(raw, MANIFEST)
        del manifest["sha256"]
        if seal(manifest) != raw:  # whatever was changed, white space included, is written differently now
            return f"{MANIFEST} has changed since it was written: its checksum differs"
        if manifest["format"] != FORMAT or folder_of(Path(), manifest["step"]).name != folder.stem:
            return f"{MANIFEST} is of format {manifest['format']} and step {manifest['step']}, which is not this one's"
        for tensor, entry in manifest["tensors"].items():
            if "parts" in entry:
                check_parts(tensor, entry)
        for name, said in manifest["files"].items():
            if Path(name).name != name:
                raise ValueError(f"{name} is not the name of a file in this folder")
            if (folder / name).exists() and not (folder / name).is_file():
                return f"{name} is no regular file"
            with open(folder / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != said["bytes"]:
                    return f"{name} has {size:,} bytes, {said['bytes']:,} were written"
                if hashlib.file_digest(file, "sha256").hexdigest() != said["sha256"]:
                    return f"{name} has changed since it was written: its checksum differs"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} has changed since it was written: it is not a manifest any more"
    return ""


def load_checkpoint(
    run: Path, step: int | None = None, at_once: bool = True, folder: Path | None = None
) -> tuple[Checkpoint, list[str]]:
    """The checkpoint of `step`, or the newest one that verifies, and a sentence for each one passed over.

    at_once  whether its tensors are read now, and not each when it is asked for
    folder   where the checkpoint of `step` stands, `kept_folder` unless given

    Raises CheckpointError when there is none, or the one asked for is damaged.
    """
    steps = steps_of(run) if step is None else [step]
    passed = []
    for candidate in reversed(steps):
        where = folder or (folder_of if step is None else kept_folder)(run, candidate)
        wrong = verify_files(where)
        if not wrong:
            try:
                return read_verified(where, candidate, at_once), passed
            except (ShardError, JSONFileError, OSError) as error:
                wrong = str(error)
        passed.append(f"checkpoint of step {candidate} passed over: {wrong}")
    if step is not None and not where.exists():
        raise CheckpointError(f"{run} has no checkpoint of step {step}: {sentence_on_steps(run)}")
    gone = [f"the checkpoint of step {n} was set aside, because training diverged" for n in diverged_steps(run)]
    reasons = "; ".join([*passed, *gone]) or "nothing has been saved yet"
    raise CheckpointError(f"{run}: no usable checkpoint: {reasons}")


def read_verified(folder: Path, step: int, at_once: bool = True) -> Checkpoint:
    """The checkpoint in a folder whose files are as they were written.

    Raises ShardError where its parts do not fit, and as `read_json_file` where its state is no object.
    """
    manifest = read_json_file(folder / MANIFEST, MOST_BYTES_OF_LIST)
    weights, optimizer = (
        TensorFiles(folder, manifest["tensors"], [name for name in manifest["files"] if name.startswith(kind)])
        for kind in ("model-", "optimizer-")
    )
    if at_once:
        weights, optimizer = dict(weights), dict(optimizer)
    return Checkpoint(step, weights, optimizer, read_json_file(folder / "state.json", MOST_BYTES_OF_LIST))


def sentence_on_steps(run: Path) -> str:
    """What can be asked for instead of a checkpoint that is not there."""
    steps = steps_of(run)
    return (
        f"say best, last, or one of the steps {', '.join(map(str, steps))}" if steps else "nothing has been saved yet"
    )


def named_checkpoint(run: Path, name: str, at_once: bool = True) -> Checkpoint:
    """The one that is called best, last, or by its step; `at_once` as in `load_checkpoint`.

    Warns where no checkpoint is marked as the best and the last one is taken, and where that is damaged and the one
    before it is taken; a damaged best one is refused.
    """
    if name not in ("best", "last") and not name.isdigit():
        raise CheckpointError(f"checkpoint {name!r}: {sentence_on_steps(run)}")
    folder, why = marked_folder(run, "best.json") if name == "best" else (None, "")
    step = step_in_name(folder) if folder else int(name) if name.isdigit() else None
    checkpoint, passed = load_checkpoint(run, step, at_once, folder)
    for sentence in [*([f"no checkpoint is known to be the best ({why})"] if why else []), *passed]:
        warnings.warn(f"{run}: {sentence}; taking step {checkpoint.step}", stacklevel=3)
    return checkpoint


def mark_best(run: Path, step: int, loss: float | None) -> None:
    """Record which checkpoint has the lowest held-out loss (nats per token). None is higher than any: it was measured
    on too few tokens to compare, and there was no other.
    """
    write_json(run / "checkpoints" / "best.json", {"step": step, "held_out_loss": loss})


def mark_good(run: Path, step: int) -> None:
    """Record the newest checkpoint whose held-out loss is finite and from which training went on."""
    write_json(run / "checkpoints" / "good.json", {"step": step})


def mark_needed(run: Path, step: int) -> None:
    """Record that another run has adapters of the weights of this checkpoint, so that pruning keeps it.

    Raises OSError where that cannot be written.
    """
    path = run / "checkpoints" / "needed.json"
    with locked(path.with_name("needed.lock")):
        write_json(path, {"steps": sorted({*needed_steps(run), step})})


def needed_steps(run: Path) -> set[int]:
    """The steps that `mark_needed` recorded."""
    try:
        steps = read_json_file(run / "checkpoints" / "needed.json")["steps"]
        return {step for step in steps if isinstance(step, int)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # there is no such file, or another program wrote it


def best_step(run: Path) -> int | None:
    """The step that `mark_best` recorded, where that checkpoint still stands."""
    folder, _ = marked_folder(run, "best.json")
    return folder and step_in_name(folder)


def good_step(run: Path) -> int | None:
    """The step that `mark_good` recorded, where that checkpoint still stands."""
    folder, _ = marked_folder(run, "good.json")
    return folder and step_in_name(folder)


def facts_on_step(run: Path, name: str, step: int) -> dict[str, Any]:
    """What is known of the checkpoint that was loaded by a name: its step, and whether it is the best one of a shorter
    run, as whose step the longer run may have another.
    """
    folder, _ = marked_folder(run, "best.json")
    of_shorter = name == "best" and folder is not None and bool(folder.suffix)
    return {"step": step} | ({"of_shorter_run": True} if of_shorter else {})


def step_in_name(folder: Path) -> int:
    """The step of a checkpoint by the name of its folder."""
    return int(folder.stem.removeprefix("step-"))


def marked_folder(run: Path, name: str) -> tuple[Path | None, str]:
    """The checkpoint that a file of the folder `checkpoints` names; None and the reason where none such is there.

    That of a shorter run (`discard_later_checkpoints`) may stand under its former name still.
    """
    try:
        marked = read_json_file(run / "checkpoints" / name)
        MARK.check(marked, name)
        folder, step = folder_of(run, marked["step"]), marked["step"]
        if marked.get("of_shorter_run"):
            of_shorter = (folder.with_suffix(ending) for ending in (SHORTER_SUFFIX, NEEDED_SUFFIX))
            folder = next(filter(Path.is_dir, of_shorter), folder)
        is_there = folder.is_dir()
    except FileNotFoundError:
        return None, f"there is no {name}"
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{name} is damaged"  # or another program wrote it
    return (folder, "") if is_there else (None, f"{name} names step {step}, whose checkpoint is not there")


def best_loss(run: Path) -> float:
    """The held-out loss of `best_step`, infinite where there is none."""
    if best_step(run) is None:
        return math.inf
    loss = read_json_file(run / "checkpoints" / "best.json").get("held_out_loss")
    return float(loss) if isinstance(loss, int | float) else math.inf


def rename_later_checkpoints(run: Path, after: int, reason: Literal["damaged", "diverged"] = "damaged") -> None:
    """Rename checkpoints later than step `after`, so that nothing loads them and pruning does not count them."""
    for step in steps_of(run):
        if step > after:
            gone = folder_of(run, step).with_suffix(f".{reason}")
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(folder_of(run, step), gone)


def discard_later_checkpoints(run: Path, after: int) -> None:
    """Give up the checkpoints later than step `after`, from which a run that is made longer goes on to another end.

    The best one, or the last where none is known to be the best, is renamed: it stays what is loaded until another is
    better. Those that adapters need are renamed too, unless they need that of a still shorter run. What is renamed has
    the metrics that led to it beside it (`metrics_path`). The others are removed.
    """
    later = [step for step in steps_of(run) if step > after]
    best, _ = marked_folder(run, "best.json")
    if best is None and later:
        best = folder_of(run, later[-1])
    if best is not None and not best.suffix and step_in_name(best) > after:
        write_json(
            run / "checkpoints" / "best.json",
            {"step": step_in_name(best), "held_out_loss": best_loss(run), "of_shorter_run": True},
        )
    needed = needed_steps(run)
    for step in later:
        folder = folder_of(run, step)
        for_adapters, of_best = (folder.with_suffix(ending) for ending in (NEEDED_SUFFIX, SHORTER_SUFFIX))
        if step in needed and of_best.exists() and not for_adapters.exists():
            os.rename(of_best, for_adapters)  # of a still shorter run
        is_needed = step in needed and not for_adapters.exists()
        if not is_needed and folder != best:
            remove_folder(folder)
            continue
        if (run / METRICS).exists():
            with naming(folder / METRICS):
                shutil.copyfile(run / METRICS, folder / METRICS)
        if is_needed:
            os.rename(folder, for_adapters)
        else:
            shutil.rmtree(of_best, ignore_errors=True)
            os.rename(folder, of_best)


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that a crash in the middle leaves nothing that looks like one."""
    gone = folder.with_suffix(".removing")
    os.rename(folder, gone)
    shutil.rmtree(gone)


def diverged_steps(run: Path) -> list[int]:
    """The steps whose checkpoints were set aside because training diverged, in order."""
    return sorted(int(p.stem.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*.diverged"))


def prune(run: Path, keep_last: int, before_decay: int | None = None) -> None:
    """Remove all but the newest `keep_last` checkpoints, the best, the last good one, those that adapters need, and the
    one of step `before_decay`, from which a longer run goes on.

    As long as there is no good one, step 0 stays too: it has the weights that a run started from.
    What an interrupted save left aside goes too, and what diverged before the last good checkpoint.
    """
    for left in (*(run / "checkpoints").glob("*.removing"), *(run / "checkpoints").glob("*.writing")):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    best, good = best_step(run), good_step(run)
    for step in diverged_steps(run):
        if good is not None and step <= good:
            shutil.rmtree(folder_of(run, step).with_suffix(".diverged"))
    keep = {*steps_of(run)[-keep_last:], best, 0 if good is None else good, *needed_steps(run), before_decay}
    for step in steps_of(run):
        if step not in keep:
            remove_folder(folder_of(run, step))
    of_best, _ = marked_folder(run, "best.json")
    for folder in [
        folder for ending in (NEEDED_SUFFIX, SHORTER_SUFFIX) for folder in (run / "checkpoints").glob(f"step-*{ending}")
    ]:
        is_needed = step_in_name(folder) in needed_steps(run) and folder.suffix == NEEDED_SUFFIX
        is_needed |= step_in_name(folder) in needed_steps(run) and not folder.with_suffix(NEEDED_SUFFIX).exists()
        if folder != of_best and not is_needed:
            remove_folder(folder)
