"""What a conversion is asked to write."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from pellucid.conversion.opened_model import OpenedModel
from pellucid.destination import check_destination
from pellucid.extras import install_command, is_importable
from pellucid.hub.families import FAMILIES, FamilyError
from pellucid.hub.gguf import gguf_family
from pellucid.hub.own_code import MODEL_TYPE
from pellucid.hub.tables import Family
from pellucid.hub.write import exported_as
from pellucid.model_names import FolderError
from pellucid.trust import Trust, check_trust

Layout = Literal["pellucid", "huggingface", "gguf", "adapter"]
GGUFWeightFormat = Literal["float32", "float16", "q8_0", "q5_0", "q4_0"]


@dataclass(frozen=True)
class Request:
    """What to write, and how: the arguments of `convert`. `layout` is None where the source decides it, and `family`
    where the architecture does.
    """

    destination: Path
    layout: Layout | None
    family: str | None
    shard: int
    weights: GGUFWeightFormat | None
    licence: str | None
    checkpoint: str
    trust: Trust
    compare: bool
    progress: Callable[[str, int, int], object]

    def check(self) -> None:
        """Raise ValueError for what is wrong whatever the model is: the destination, and options of another layout."""
        check_trust(self.trust)
        if self.destination.exists():
            raise FolderError(f"{self.destination} already exists: choose a new name")
        check_destination(self.destination)
        for name, value, words in (
            ("to", self.layout, get_args(Layout)),
            ("weights", self.weights, get_args(GGUFWeightFormat)),
        ):
            if value is not None and value not in words:
                raise FolderError(f"{name} = {value!r}: choose one of {', '.join(words)}")
        families = (*FAMILIES, MODEL_TYPE)
        if self.family is not None and self.family not in families:
            near = difflib.get_close_matches(self.family, families, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise FamilyError(f"there is no family {self.family!r}: {hint}choose one of {', '.join(families)}")
        if self.destination.suffix == ".gguf" and self.layout != "gguf":
            raise FolderError(
                f"{self.destination} is the name of a file for llama.cpp, and the layout {self.layout} is a folder: "
                "give a name that does not end in .gguf, or leave the layout out"
            )
        if self.layout == "gguf" and not is_importable("gguf"):
            raise FolderError(
                f"{self.destination}: GGUF files are written by the package gguf: {install_command('gguf')}"
            )
        if self.family is not None and self.layout not in (None, "huggingface", "adapter"):
            raise FolderError(
                f"the family {self.family} (--family) needs to = huggingface (--to huggingface), and {self.layout} is "
                "written: leave one of them out"
            )
        if self.weights is not None and self.layout != "gguf":
            raise FolderError(
                f"the number format {self.weights} is for GGUF alone: leave it out, or name the result NAME.gguf"
            )
        if self.licence is not None and self.layout == "adapter":
            raise FolderError(
                f"the licence {self.licence} is written on a model card, and adapters have none: leave it out"
            )

    def report_written(self, done: int, total: int) -> None:
        """Report how many tensors are written."""
        self.progress("writing the weights", done, total)

    def settled(self, model: OpenedModel) -> tuple["Request", OpenedModel]:
        """The request with its layout, and the family or the code as which huggingface is written; and the model
        without dropout rates that the family lacks.

        Raises FolderError and FamilyError for a layout that cannot hold the model: one of a family, where it is asked
        for or the model comes from it, or any.
        """
        is_theirs = model.folder is not None and bool(model.folder.config)
        request = replace(self, layout=self.layout or ("pellucid" if is_theirs else "huggingface"))
        request.check()
        if model.architecture.readout == "none" and (request.layout != "pellucid" or self.compare):
            raise FolderError(
                "readout = none: a model without a head has no logits to compare: write it in the layout pellucid, "
                "without a comparison (to='pellucid', compare=False; --no-compare)"
            )
        if request.layout == "gguf":
            gguf_family(model.architecture)  # raises FamilyError with the option that is in the way
        wanted = self.family or (model.family.name if model.family else None)
        if request.layout != "huggingface" or wanted == MODEL_TYPE:
            return request, model
        try:
            family, a = exported_as(model.architecture, wanted)
        except FamilyError:
            if wanted:
                raise
            return replace(request, family=MODEL_TYPE), model
        return replace(request, family=family.name), replace(model, architecture=a)

    @property
    def exported_family(self) -> Family | None:
        """The family that is written, None for code that transformers opens. Only of a settled request."""
        return FAMILIES.get(self.family or "")
