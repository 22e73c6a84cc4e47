"""The command that converts models between file layouts."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from pellucid.cli.options import MODEL, Expected, NewPath, OpenedModelOptions, command, option, trust_of
from pellucid.cli.progress import progress_on_stderr

REPOSITORY = Expected(
    lambda name: re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None, "the name of a repository, OWNER/NAME"
)


@dataclass(frozen=True)
class WrittenOptions:
    """What is written."""

    to: Annotated[
        Literal["pellucid", "huggingface", "gguf", "adapter"] | None, option("LAYOUT", default="see below")
    ] = None
    """Write pellucid, huggingface, gguf (one file for llama.cpp), or adapter (the low-rank adapters of a run)."""
    family: Annotated[str | None, option("NAME", default="the first that can represent the model")] = None
    """Write this family of Hugging Face, such as llama, or pellucid for code that transformers opens."""
    weights: Annotated[
        Literal["float32", "float16", "q8_0", "q5_0", "q4_0"] | None, option("FORMAT", default="float32")
    ] = None
    """Store the matrices of a .gguf file as float32, float16, q8_0, q5_0 or q4_0."""
    licence: Annotated[str | None, option("TEXT")] = None
    """Name this licence on the model card."""
    compare: Annotated[bool, option()] = True
    """Do not compare the logits. Comparing holds the whole model in memory."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print one JSON object: where and what was written, its parity, and notes."""
    push: Annotated[str | None, option("OWNER/NAME"), REPOSITORY] = None
    """Upload the result to this repository of the Hugging Face hub, private if it is new."""


@command
def convert_command(
    source: Annotated[Positional[str], option("MODEL"), MODEL],
    destination: Annotated[Positional[Path], option("OUT"), NewPath()],
    *,
    input: Annotated[OpenedModelOptions, option(name="model")],
    output: WrittenOptions,
) -> int:
    """Write a model in another layout, and compare the logits.

    Unless --to is given, NAME.gguf is written as gguf, a Hugging Face model as pellucid, and a model
    trained here as huggingface. If no family can represent the model, its folder holds code that
    transformers opens (trust_remote_code).

    Args:
        source: Convert this run, this saved model or Hugging Face folder, or this name on the hub.
        destination: Write this new folder, or this new file NAME.gguf.

    Examples:
        pellucid convert runs/my_texts exported
        pellucid convert runs/my_texts model.gguf --weights q8_0
    """
    input.check(source)

    import pellucid

    with progress_on_stderr("converting") as progress:
        done = pellucid.convert(
            source,
            destination,
            to=output.to,
            family=output.family,
            checkpoint=input.checkpoint,
            revision=input.revision or None,
            trust=trust_of(input.trust),
            licence=output.licence,
            weights=output.weights,
            compare=output.compare,
            progress=progress,
        )
    if not output.as_json:
        print(done)
    pushed = None
    if output.push is not None:
        from pellucid.hub.push import push as push_to_hub

        pushed = push_to_hub(done.folder, output.push)
    if output.as_json:
        print(json.dumps(done.to_dict() | {"pushed": pushed}))
    elif pushed:
        print(f"pushed to {pushed}")
    return 0
