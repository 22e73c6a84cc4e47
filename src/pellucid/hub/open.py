"""Open model folders, of the hub's layout or of Pellucid's, and check them before anything is allocated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.config import (
    check_sizes,
    check_weights,
    is_body,
    missing_tensor,
    read_config,
    refuse_quantised,
)
from pellucid.hub.families import family_of
from pellucid.hub.files import (
    ADAPTER,
    ARCHITECTURE,
    CONFIG,
    PICKLE,
    TRUSTED,
    is_adapter,
    read_description,
    weight_files,
)
from pellucid.hub.folder import Folder
from pellucid.hub.gguf_file import open_gguf
from pellucid.hub.own_code import Unprefixed, has_pellucid_code
from pellucid.hub.peft import MergedTensors, read_adapter
from pellucid.hub.shards import Shards
from pellucid.hub.text_towers import TextTensors, text_config, text_model_name, text_tower
from pellucid.model import Transformer
from pellucid.model.weights import empty_network
from pellucid.model_names import FolderError, check_revision, is_local
from pellucid.parameter_counts import count_parameters
from pellucid.runs.device import check_fits
from pellucid.text.chat_template import JINJA
from pellucid.trust import Trust, trusts

#: the files of a repository that are downloaded, and those of them that are not: what its subfolders hold, and the same
#: weights once more as other software names them. Pickles are downloaded where the caller trusts them
DOWNLOADED_FILES = ("*.safetensors", "*.json", "merges.txt", "vocab.bpe", "vocab.txt", JINJA)
UNWANTED = ("*/*", "consolidated*.safetensors")
PICKLES = ("pytorch_model*.bin",)


def open_folder(path: Path, *, trust: Trust = False) -> Folder:
    """Open the model in a folder or in a GGUF file, without allocating it.

    Raises ValueError with one line if the folder holds no model, is damaged, or needs more numbers than its files hold.
    `trust` allows pickled tensors and tokenizers with patterns that are not known to be safe. Code is never run.
    """
    if path.suffix == ".gguf":
        return open_gguf(path)
    name, description = read_description(path)
    if name == ADAPTER:
        return _adapted(path, description, trust)
    tower = text_tower(description) if name != ARCHITECTURE else None
    if tower is not None:
        refuse_quantised(path, description)
        description = text_config(description, tower)
    if name == ARCHITECTURE:
        config, family, architecture = {}, None, Architecture.from_dict(description)
        check_sizes(path, architecture)
    else:
        config = description
        architecture = read_config(path, config)
        check_sizes(path, architecture)
        family = None if has_pellucid_code(config) else family_of(config)
    shards = Shards(*weight_files(path, trust=trust))
    refuse_quantised(path, config, shards)
    tensors: Mapping[str, Tensor] = TextTensors(shards) if tower is not None else shards
    if family is not None and is_body(config, family, tensors):
        config = config | {"architectures": [family.body]}
        architecture = read_config(path, config)
    check_weights(
        path, architecture, shards.n_numbers, lambda: missing_tensor(tensors, config, family) if family else ""
    )
    tensors = Unprefixed(shards, path) if has_pellucid_code(config) else tensors
    return Folder(path, architecture, family, config, tensors, trust, files=shards, tower=tower)


def _adapted(path: Path, config: Mapping[str, Any], trust: Trust) -> Folder:
    """The base model of an adapter, with the changes applied as its tensors are read."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise FolderError(f"{path / ADAPTER} names no model that it changes (base_model_name_or_path)")
    revision = config.get("revision")  # of a base on the hub; peft writes null for the main one
    base_folder = find_folder(name, None if is_local(name) or not revision else str(revision), trust=trust)
    if is_adapter(base_folder):
        raise FolderError(f"{path} changes {name}, which is an adapter itself: merge that one first (pellucid convert)")
    if base_folder.suffix == ".gguf":
        raise FolderError(
            f"{path} changes {name}, a GGUF file, whose tensors have other names than the modules of an adapter: name "
            "the model's Hugging Face folder there (base_model_name_or_path)"
        )
    if (base_folder / "recipe.json").exists():
        raise FolderError(f"{path} changes the run {name}: load the run of the adapters instead, {path.parent}")
    base = open_folder(base_folder, trust=trust)
    changes = read_adapter(path, config)
    if base.tower is not None:
        changes = {text_model_name(module): change for module, change in changes.items()}
    return replace(base, shards=MergedTensors(base.shards, changes, base.family, base.architecture), adapter=path)


def read_network(
    a: Architecture,
    each: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """A network of this architecture, in eval mode, with its parameters copied from `each`, one at a time.

    Raises FolderError for unknown, missing or misshapen ones, and RecipeError where memory does not suffice.
    """
    check_fits(count_parameters(a)["total"], dtype, device)
    network = empty_network(a, dtype, device)
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, tensor in checked_parameters(each, {name: tuple(p.shape) for name, p in parameters.items()}):
            parameters[name].copy_(tensor)
    return network.eval()


def checked_parameters(
    each: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """The same pairs. Raises FolderError for unknown, missing and misshapen tensors, and for those of integers."""
    missing = dict(shapes)
    for name, tensor in each:
        shape = missing.pop(name, None)
        if shape is None or shape != tensor.shape or not tensor.is_floating_point():
            asked = "none of this name" if shape is None else f"a floating-point tensor of shape {list(shape)}"
            raise FolderError(f"the tensor {name} is {tensor.dtype} {list(tensor.shape)}: expected {asked}")
        yield name, tensor
    if missing:
        raise FolderError(f"the tensor {next(iter(missing))} is missing: the architecture needs it")


def download(name: str, revision: str | None = None, *, trust: Trust = False) -> Path:
    """The folder of a model on the hub, downloaded if it is not cached; `main` without a revision.

    With `trust`, pickled weights are downloaded where there are no others. Raises FolderError for unknown names and
    revisions, without a network, and without `trust` for a model whose weights are pickles.
    """
    folder = download_files(name, revision, DOWNLOADED_FILES)
    # what has no config.json is an adapter or a model of another kind, and its weights have other names
    if any(folder.glob("*.safetensors")) or not (folder / CONFIG).exists():
        return folder
    if trusts(trust, "pickles"):
        return download_files(name, revision, (*DOWNLOADED_FILES, *PICKLES))
    if not (folder / PICKLE).exists() and is_on_hub(name, revision, PICKLE):
        raise FolderError(
            f"{name} keeps its weights as a pickle ({PICKLE}): use a repository with safetensors, or {TRUSTED}"
        )
    return folder


def download_files(name: str, revision: str | None, wanted: Sequence[str]) -> Path:
    """The folder of a repository with the files that match one of these patterns, and none of UNWANTED.

    Raises FolderError for unknown names and revisions, and without a network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = {"allow_patterns": list(wanted), "ignore_patterns": list(UNWANTED)}
        return Path(snapshot_download(name, revision=revision, **patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = str(error).splitlines()[0][:160]
        what, names = (f"{name} is", "the name") if revision is None else (f"{name} ({revision}) is", "both names")
        raise FolderError(
            f"{what} not a folder here and could not be downloaded from the hub ({why}): give a folder, or check "
            f"{names} and the network"
        ) from None


def is_on_hub(name: str, revision: str | None, file: str) -> bool:
    """Whether a repository has this file; False without a network."""
    from huggingface_hub import file_exists

    try:
        return file_exists(name, file, revision=revision)
    except Exception:  # its versions raise errors of different libraries
        return False


def find_folder(name: str | Path, revision: str | None = None, *, trust: Trust = False) -> Path:
    """The folder of this name if it exists, else the hub's model of that name (`gpt2`, `OWNER/NAME`).

    `revision` is a branch, a tag or a commit of the repository on the hub, and `trust` downloads pickled weights where
    it has no others. Raises FolderError for a revision of a local path.
    """
    path = Path(name)
    check_revision(path, revision)
    return path if is_local(path) else download(path.as_posix(), revision, trust=trust)
