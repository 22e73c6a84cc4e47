"""Read model folders from outside safely: file names cannot lead out of the folder, and JSON has size limits."""

from pathlib import Path
from typing import Any

from pellucid.json_files import JSONFileError, parse_json_object, read_regular
from pellucid.model_names import FolderError
from pellucid.text.tokenizers.base import IDS_FILE
from pellucid.trust import Trust, trusts

#: the files that may describe a model, in the order in which they are looked for
CONFIG, ADAPTER, ARCHITECTURE = "config.json", "adapter_config.json", "architecture.json"
ADAPTER_TENSORS = "adapter_model.safetensors"
#: how transformers generates with the model
GENERATION = "generation_config.json"
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
#: what was said when the model was read from another folder, in our layout
NOTES = "notes.json"
#: the files that other parts read from the same folder: tokenizers, chat templates, the tensors of an adapter
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt")
TOKENIZER_FILES += ("tokenizer_config.json", IDS_FILE, NOTES, "chat_template.jinja", ADAPTER_TENSORS)
#: how a pickle is read after all
TRUSTED = 'pass --trust pickles (trust="pickles") to read the tensors of the pickle, and nothing else of it'
#: limits in bytes; the largest files in use have a tenth of this or less
MOST_BYTES_OF = {CONFIG: 1 << 20, ARCHITECTURE: 1 << 20}
LONGEST_INDEX = 1 << 24


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter alone, without the model that it changes."""
    return (folder / ADAPTER).exists() and not (folder / CONFIG).exists()


def path_inside(folder: Path, name: Any) -> Path:
    """The path of file `name` in the folder. Raises FolderError unless it is a plain name whose links stay inside.

    The download cache keeps its files as links from snapshots/ID to blobs/, which are followed.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise FolderError(f"{folder} names the file {str(name)[:80]!r}: expected a plain name inside the folder")
    path, real = folder / name, folder.resolve()
    allowed = [real, *([real.parent.parent / "blobs"] if real.parent.name == "snapshots" else [])]
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise FolderError(f"{path} is a link that leads nowhere ({error})") from None
    if not any(target.is_relative_to(root) for root in allowed):
        raise FolderError(f"{path} is a link to a file outside the folder: copy the file itself into it")
    return path


def read_description(folder: Path) -> tuple[str, dict[str, Any]]:
    """The file that describes the model in a folder, CONFIG, ADAPTER or ARCHITECTURE, and its content.

    Raises FolderError if there is none, it is damaged, or one of the files beside it is a link out of the folder.
    """
    for name in TOKENIZER_FILES:
        path_inside(folder, name)
    for name in (CONFIG, ADAPTER, ARCHITECTURE):
        if (folder / name).exists():
            return name, read_object(folder, name)
    what = "holds no model" if folder.exists() else "does not exist"
    raise FolderError(f"{folder} {what}: expected config.json, or architecture.json, beside its weights")


def weight_files(folder: Path, *, trust: Trust = False) -> tuple[dict[str, Path], dict[str, str] | None]:
    """The weight files of a folder by name, and, if there is an index, the file that it names for each tensor.

    Raises FolderError if there are none, one leads out of the folder, or they are pickles without `trust`.
    """
    for single in (SAFETENSORS, PICKLE):
        index_name = f"{single}.index.json"
        weight_file = next((n for n in (single, index_name) if path_inside(folder, n).is_file()), None)
        if weight_file is None:
            continue
        if single.endswith(".bin") and not trusts(trust, "pickles"):
            raise FolderError(
                f"{folder} keeps its weights as a pickle ({weight_file}): use a folder with {SAFETENSORS}, or {TRUSTED}"
            )
        if weight_file == single:
            return {single: folder / single}, None
        index = read_object(folder, index_name).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise FolderError(f"{folder / index_name} has no weight_map: expected which tensor is in which file")
        suffix = Path(single).suffix
        for name in index.values():
            if not path_inside(folder, name).is_file() or not name.endswith(suffix):
                raise FolderError(f"{folder / index_name} names {name[:80]!r}: expected a {suffix} file in the folder")
        return {name: folder / name for name in sorted(set(index.values()))}, index
    raise FolderError(f"{folder} has no weights: expected model.safetensors, or its index and shards")


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from the folder. Raises FolderError if it is missing, too long, damaged, or repeats a name."""
    path = path_inside(folder, name)
    if not path.is_file():
        raise FolderError(f"{folder} has no file {name}")
    try:
        return parse_object(read_regular(path, MOST_BYTES_OF.get(name, LONGEST_INDEX)), str(path))
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from None


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse the bytes of a JSON object."""
    try:
        return parse_json_object(content, where)
    except JSONFileError as error:
        raise FolderError(str(error)) from None
