"""The files of each layout, written from a model that was opened. Each function returns the bytes of the tensors."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from pellucid.adapters import write_run_adapter
from pellucid.conversion.opened_model import OpenedModel
from pellucid.conversion.request import Layout, Request
from pellucid.hub.families import each_to_theirs
from pellucid.hub.gguf import write_gguf
from pellucid.hub.own_code import PREFIX, write_code
from pellucid.hub.standalone import write_loader
from pellucid.hub.write import (
    carry_over,
    dtype_of,
    write_chat,
    write_config,
    write_notes,
    write_object,
    write_tensors,
    write_tokenizer,
)
from pellucid.model_names import FolderError
from pellucid.text.chat_template import write_chat_template
from pellucid.text.tokenizers.base import write_model_ids


def write_pellucid(model: OpenedModel, folder: Path, request: Request) -> int:
    """Write our layout, with a single-file loader that does not need Pellucid."""
    write_object(folder / "architecture.json", model.architecture.to_dict())
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
    else:
        write_model_ids(folder, model.texts.tokenizer)
    if model.texts.chat_template is not None:
        write_chat_template(folder, model.texts.chat_template, model.tokenizer.named_end if model.tokenizer else "")
    write_notes(folder, model.notes)
    write_loader(folder)
    return write_tensors(folder, model.ours, sys.maxsize, request.report_written)


def write_huggingface(model: OpenedModel, folder: Path, request: Request) -> int:
    """Write config.json, generation_config.json, weights, the tokenizer's files, and code if there is no family."""
    family = request.exported_family
    a = model.architecture
    write_config(folder, a, family, model.tokenizer, dtype_of(model.ours()), model.folder)
    if model.tokenizer is not None:
        write_tokenizer(folder, model.tokenizer, a.n_ctx, a)
        if model.texts.chat_template is not None:
            write_chat(folder, model.tokenizer, model.texts.chat_template)
    if family is not None and model.folder is not None and model.folder.family is not None:
        carry_over(folder, model.folder, family, model.tokenizer is not None)
    if family is None:
        write_code(folder)
    state = model.state()

    def named() -> Iterator[tuple[str, Tensor]]:
        """The tensors by the names of the class that opens the folder."""
        if family is not None:
            return each_to_theirs(state, a, family)
        return ((PREFIX + name, tensor) for name, tensor in model.ours())

    return write_tensors(folder, named, request.shard, request.report_written)


def write_gguf_file(model: OpenedModel, folder: Path, request: Request) -> int:
    """Write one file for llama.cpp."""
    about = {"name": Path(str(model.about.get("source", "model"))).name, "licence": request.licence}
    about["chat_template"] = None if model.texts.chat_template is None else model.texts.chat_template.source
    path, weights = folder / request.destination.name, request.weights or "float32"
    return write_gguf(path, model.state(), model.architecture, model.tokenizer, weights, **about)


def write_adapter_layout(model: OpenedModel, folder: Path, request: Request) -> int:
    """Write a run's adapters alone."""
    if model.run is None:
        raise FolderError("to = adapter: the model is not a run of adapters (pellucid train --from MODEL --lora 8)")
    return write_run_adapter(model.run, folder, request.checkpoint, request.family, trust=request.trust)


WRITERS: dict[Layout, Callable[[OpenedModel, Path, Request], int]] = {
    "pellucid": write_pellucid,
    "huggingface": write_huggingface,
    "gguf": write_gguf_file,
    "adapter": write_adapter_layout,
}
