"""Checkpoints that a crash cannot spoil: written aside, checksummed, flushed to disk, then named.

A checkpoint is the folder `checkpoints/step-00000100`. Its manifest lists every file with size and
SHA-256 and every tensor with its global shape, so that a checkpoint written by several processes can be
read by any number of them; the manifest carries a checksum of itself. Tensors are safetensors,
everything else is JSON; nothing is pickled.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save
from torch import Tensor

from pellucid.destination import flush_folder, replace_file, write_durably
from pellucid.text.regular import read_regular

MANIFEST = "manifest.json"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or that could not be written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: weights, the optimiser's numbers, and plain values."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of a step stands, whether there is one or not."""
    return run / "checkpoints" / f"step-{step:08d}"


def steps_of(run: Path) -> list[int]:
    """The steps that have a checkpoint folder, verified or not, in order."""
    found = (re.fullmatch(r"step-(\d{8,})", p.name) for p in (run / "checkpoints").glob("step-*"))
    return sorted(int(m[1]) for m in found if m)


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> Path:
    """Write it under its final name in one rename; what was there before is untouched until then.

    Raises CheckpointError with the bytes needed when the disk is full; no partial folder is left.
    """
    target = folder_of(run, checkpoint.step)
    if target.exists():
        if not verify_files(target):
            return target  # training is deterministic: this step has been saved already
        shutil.rmtree(target)
    files = {
        "model-00001-of-00001.safetensors": save({k: v.contiguous().cpu() for k, v in checkpoint.weights.items()}),
        "optimizer-00001-of-00001.safetensors": save(
            {k: v.contiguous().cpu() for k, v in checkpoint.optimizer.items()}
        ),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
    }
    manifest = {
        "format": FORMAT,
        "step": checkpoint.step,
        "files": {n: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in files.items()},
        "tensors": {
            name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
            for name, t in {**checkpoint.weights, **checkpoint.optimizer}.items()
        },
    }
    files[MANIFEST] = seal(manifest)
    aside = target.with_name(f"{target.name}.writing")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, content in files.items():
            write_durably(aside / name, content)
        flush_folder(aside)
        os.rename(aside, target)
        flush_folder(target.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        need = sum(map(len, files.values()))
        raise CheckpointError(
            f"the disk is full: the checkpoint of step {checkpoint.step} needs {need:,} bytes in {target.parent}; "
            "the checkpoint before it is intact. Free that much and resume"
        ) from error
    return target


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
        raw = read_regular(folder / MANIFEST)
        manifest = json.loads(raw)
        del manifest["sha256"]
        if seal(manifest) != raw:  # whatever was changed, white space included, is written differently now
            return f"{MANIFEST} has changed since it was written: its checksum differs"
        if manifest["format"] != FORMAT or folder_of(Path(), manifest["step"]).name != folder.name:
            return f"{MANIFEST} is of format {manifest['format']} and step {manifest['step']}, which is not this one's"
        for name, said in manifest["files"].items():
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
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} has changed since it was written: it is not a manifest any more"
    return ""


def load_checkpoint(run: Path, step: int | None = None) -> tuple[Checkpoint, list[str]]:
    """The checkpoint of `step`, or the newest one that verifies, and a sentence for each one passed over.

    Raises CheckpointError when there is none, or the one asked for is damaged.
    """
    steps = steps_of(run) if step is None else [step]
    passed = []
    for candidate in reversed(steps):
        folder = folder_of(run, candidate)
        wrong = verify_files(folder)
        if not wrong:
            state = json.loads((folder / "state.json").read_bytes())
            weights, optimizer = (load_file(folder / f"{n}-00001-of-00001.safetensors") for n in ("model", "optimizer"))
            return Checkpoint(candidate, weights, optimizer, state), passed
        passed.append(f"checkpoint of step {candidate} passed over: {wrong}")
    if step is not None and step not in steps_of(run):
        raise CheckpointError(f"{run} has no checkpoint of step {step}: {sentence_on_steps(run)}")
    gone = [f"the checkpoint of step {n} was set aside, because training diverged" for n in diverged_steps(run)]
    reasons = "; ".join([*passed, *gone]) or "nothing has been saved yet"
    raise CheckpointError(f"{run}: no usable checkpoint: {reasons}")


def sentence_on_steps(run: Path) -> str:
    """What can be asked for instead of a checkpoint that is not there."""
    steps = steps_of(run)
    return (
        f"say best, last, or one of the steps {', '.join(map(str, steps))}" if steps else "nothing has been saved yet"
    )


def named_checkpoint(run: Path, name: str) -> Checkpoint:
    """The one that is called best, last, or by its step.

    Warns where the last one is damaged and the one before it is taken; a damaged best one is refused.
    """
    if name not in ("best", "last") and not name.isdigit():
        raise CheckpointError(f"checkpoint {name!r}: {sentence_on_steps(run)}")
    found, passed = load_checkpoint(run, int(name) if name.isdigit() else best_step(run) if name == "best" else None)
    for sentence in passed:
        warnings.warn(f"{run}: {sentence}; taking step {found.step}", stacklevel=3)
    return found


def mark_best(run: Path, step: int, loss: float) -> None:
    """Record which checkpoint has the lowest held-out loss (nats per token)."""
    write_json(run / "checkpoints" / "best.json", {"step": step, "held_out_loss": loss})


def mark_good(run: Path, step: int) -> None:
    """Record the newest checkpoint whose held-out loss is finite and from which training went on."""
    write_json(run / "checkpoints" / "good.json", {"step": step})


def best_step(run: Path) -> int | None:
    """The step that `mark_best` recorded, where that checkpoint still stands."""
    return _marked(run, "best.json")


def good_step(run: Path) -> int | None:
    """The step that `mark_good` recorded, where that checkpoint still stands."""
    return _marked(run, "good.json")


def _marked(run: Path, name: str) -> int | None:
    try:
        step = json.loads(read_regular(run / "checkpoints" / name))["step"]
    except (OSError, ValueError, KeyError):
        return None
    return step if folder_of(run, step).is_dir() else None


def best_loss(run: Path) -> float:
    """The held-out loss of `best_step`, infinite where there is none."""
    if best_step(run) is None:
        return math.inf
    loss = json.loads((run / "checkpoints" / "best.json").read_bytes())["held_out_loss"]
    return math.inf if loss is None else loss


def set_aside(run: Path, after: int, reason: Literal["damaged", "diverged"] = "damaged") -> None:
    """Rename checkpoints later than step `after`, so that nothing loads them and pruning does not count them."""
    for step in steps_of(run):
        if step > after:
            gone = folder_of(run, step).with_suffix(f".{reason}")
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(folder_of(run, step), gone)


def diverged_steps(run: Path) -> list[int]:
    """The steps whose checkpoints were set aside because training diverged, in order."""
    return sorted(int(p.stem.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*.diverged"))


def prune(run: Path, keep_last: int) -> None:
    """Remove all but the newest `keep_last` checkpoints, the best and the last good one.

    What an interrupted save left aside goes too, and what diverged before the last good checkpoint.
    """
    for left in (*(run / "checkpoints").glob("*.removing"), *(run / "checkpoints").glob("*.writing")):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    best, good = best_step(run), good_step(run)
    for step in diverged_steps(run):
        if good is not None and step <= good:
            shutil.rmtree(folder_of(run, step).with_suffix(".diverged"))
    keep = {*steps_of(run)[-keep_last:], best, good}
    for step in steps_of(run):
        if step not in keep:
            # renamed first, so that a crash in the middle leaves nothing that looks like a checkpoint
            gone = folder_of(run, step).with_suffix(".removing")
            os.rename(folder_of(run, step), gone)
            shutil.rmtree(gone)
