"""Names of models: paths of this machine, and names on the Hugging Face hub. Nothing here imports torch."""

from pathlib import Path


class FolderError(ValueError):
    """A model folder is damaged, incomplete or malicious, or a name is not that of a model."""


def exists(path: str | Path) -> bool:
    """Whether the path exists; an impossible name does not."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_local(name: str | Path) -> bool:
    """Whether this is a path of this machine, there or not; anything else is a name on the hub (gpt2, OWNER/NAME)."""
    path = Path(name)
    plain = len(path.parts) in (1, 2) and not path.is_absolute() and ".." not in path.parts
    return exists(path) or not plain or path.parts[0] == "runs"


def may_be_model(name: str | Path) -> bool:
    """Whether this path exists or is a possible name on the hub."""
    return exists(name) or not is_local(name)


def check_revision(path: Path, revision: str | None) -> None:
    """Raise FolderError for a revision of a path of this machine: only repositories on the hub have them."""
    if revision is None or not is_local(path):
        return
    instead = "leave it out"
    if (path / "recipe.json").exists():
        instead = "a run has checkpoints: give the step as checkpoint"
    raise FolderError(f"revision {revision} needs a name on the Hugging Face hub, but {path} is a path here: {instead}")


def check_checkpoint(path: Path, checkpoint: str, is_given: bool = False) -> None:
    """Raise FolderError for a checkpoint of anything but a run: only runs have them. `best`, the default, is refused
    only where it was given.
    """
    if (is_given or checkpoint != "best") and not (path / "recipe.json").exists():
        raise FolderError(
            f"checkpoint {checkpoint} needs a run, but {path} is not a run: leave it out; a name on the Hugging "
            "Face hub has revisions"
        )
