"""Write models that no family of transformers can represent, together with their own code.

Such a folder has `model_type = "pellucid"`. Its config.json holds the architecture, its tensors have our names behind a
prefix, and `auto_map` names the classes of its modeling_pellucid.py, which transformers runs if the user trusts it.
Pellucid reads the configuration and the tensors of such a folder and never runs its code.
"""

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.standalone import CONFIGURATION, MODELING, code_files
from pellucid.model_names import FolderError

MODEL_TYPE = "pellucid"
#: the prefix of every tensor's name: the attribute of transformers' model that holds the network
PREFIX = "network."


def auto_classes(a: Architecture) -> dict[str, str]:
    """The classes that open a model of this architecture, by their auto class; the main one is last."""
    classes = {"AutoModel": "PellucidModel"}
    if a.encoder is not None:
        return classes | {"AutoModelForSeq2SeqLM": "PellucidForConditionalGeneration"}
    if a.attention.mask == "bidirectional":
        return classes | {"AutoModelForMaskedLM": "PellucidForMaskedLM"}
    return classes | {"AutoModelForCausalLM": "PellucidForCausalLM"}


def code_config(a: Architecture, end_token: int | None = None) -> dict[str, Any]:
    """The config.json of an architecture. `end_token` is the id of the separator, which ends generation."""
    classes = auto_classes(a)
    auto_map = {"AutoConfig": f"{CONFIGURATION}.PellucidConfig"}
    auto_map |= {auto: f"{MODELING}.{name}" for auto, name in classes.items()}
    config: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "architectures": [list(classes.values())[-1]],
        "auto_map": auto_map,
        "architecture": a.to_dict(),
        "is_encoder_decoder": a.encoder is not None,
        "tie_word_embeddings": a.unembed == "tied",
    }
    return config | ({} if end_token is None else {"bos_token_id": end_token, "eos_token_id": end_token})


def has_pellucid_code(config: Mapping[str, Any]) -> bool:
    """Whether a config.json belongs to such a folder."""
    return config.get("model_type") == MODEL_TYPE


def architecture_in(config: Mapping[str, Any]) -> Architecture:
    """The architecture in the config.json of such a folder. Raises ArchitectureError if it is not one."""
    return Architecture.from_dict(config.get("architecture") or {})


def write_code(folder: Path) -> None:
    """Write the two files of code into the folder."""
    for name, text in code_files().items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8", newline="\n")


def model_class(a: Architecture) -> Any:
    """The transformers class that a folder's code defines for this architecture.

    It comes from the text that `write_code` writes, not from a file: files in a folder are never run.
    """
    return getattr(_modules()[MODELING], list(auto_classes(a).values())[-1])


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    """The two files of code as modules of a package without a file."""
    package = types.ModuleType("pellucid_written")
    package.__path__ = []
    modules = {name: types.ModuleType(f"{package.__name__}.{name}") for name in code_files()}
    for module in modules.values():
        module.__package__ = package.__name__
    sys.modules |= {package.__name__: package} | {module.__name__: module for module in modules.values()}
    for name, text in code_files().items():
        exec(compile(text, f"<{name}.py>", "exec"), modules[name].__dict__)
    return modules


class Unprefixed(Mapping[str, Tensor]):
    """The tensors of such a folder under our names, each read when it is looked up."""

    def __init__(self, tensors: Mapping[str, Tensor], where: Path):
        self.tensors = tensors
        if wrong := next((name for name in tensors if not name.startswith(PREFIX)), None):
            raise FolderError(
                f"{where}: the tensor {wrong[:80]} is not one of {MODEL_TYPE}'s, which begin with {PREFIX}"
            )

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[PREFIX + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(PREFIX) for name in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return f"{PREFIX}{name}" in self.tensors
