"""Convert a model between file layouts, and compare it with the other implementation before publishing the result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.conversion.comparison import compare_conversion
from pellucid.conversion.layouts import WRITERS
from pellucid.conversion.opened_model import OpenedModel, read_model
from pellucid.conversion.request import GGUFWeightFormat, Layout, Request
from pellucid.destination import atomic_output
from pellucid.hub import transformers_bridge
from pellucid.hub.card import write_card
from pellucid.hub.files import GENERATION, read_object
from pellucid.hub.folder import NO_TOKENIZER, Folder
from pellucid.hub.gguf import notes_on_gguf_tokenizer, notes_on_gguf_weights
from pellucid.hub.write import SHARD
from pellucid.option_values import suggest_keywords
from pellucid.trust import Trust
from pellucid.verify.parity import Parity

#: what is said of a run that holds an n-gram
NO_NGRAM = (
    "The n-gram that the run stores (train --mix auto) is left out: this is the network alone, and its losses are "
    "those without the n-gram."
)
#: what is said of a model whose tokenizer cannot be used here (`TextRules.why_ids`)
TOKENIZER_LEFT_OUT = "The tokenizer of the model is left out, because Pellucid cannot use it."
#: what a card says where rates of dropout are left out
NO_DROPOUT = "Dropout rates, which matter only in training, are left out: this family has no fields for them."
#: entries of generation_config.json by which texts are drawn
DRAWING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "num_beams")


@dataclass(frozen=True)
class Converted:
    """The result: where it was written, the layout, the bytes of its tensors, and the parity if it was compared.

    `code` is True if transformers opens the folder with code in it, which needs trust_remote_code=True. `notes` are
    sentences about what is left out.
    """

    folder: Path
    layout: Layout
    n_bytes: int
    parity: Parity | None
    code: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.layout}, {self.n_bytes:,} bytes of weights"]
        lines += [str(self.parity or "logits not compared"), *self.notes]
        if self.code:
            lines.append(
                "transformers opens it with the code in the folder: from_pretrained(..., trust_remote_code=True), see "
                "README.md there"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        parity = str(self.parity) if self.parity else None
        facts = {"path": str(self.folder), "layout": self.layout, "n_bytes": self.n_bytes, "parity": parity}
        return {**facts, "notes": list(self.notes), "needs_code": self.code}


@suggest_keywords()
def convert(
    given: str | Path,
    destination: str | Path,
    *,
    to: Layout | None = None,
    family: str | None = None,
    checkpoint: str = "best",
    revision: str | None = None,
    trust: Trust = False,
    licence: str | None = None,
    shard: int = SHARD,
    weights: GGUFWeightFormat | None = None,
    compare: bool = True,
    progress: Callable[[str, int, int], object] = lambda stage, done, total: None,
) -> Converted:
    """Write the model in `given` (a run, a saved model, a Hugging Face folder or name) in another layout.

    to          pellucid or huggingface, a new folder; gguf, a new file for llama.cpp; adapter, a run's adapters alone
                as a folder for peft. By default NAME.gguf is gguf, folders of Hugging Face become pellucid,
                and everything else becomes huggingface
    family      the Hugging Face family to write, by default the first that can represent the architecture. If none can,
                or for "pellucid", the folder holds code that transformers' auto classes open
    checkpoint  of a run: best (lowest held-out loss), last, or the number of a step
    revision    a branch, a tag or a commit of a name on the Hugging Face hub; None for its main one
    trust       read pickled tensors, and tokenizers with patterns that are not known to be safe
    licence     the licence on the model card, or in the file of gguf; adapters are written without a card
    shard       the most bytes in one weight file
    weights     the number format of matrices in a gguf file, float32 by default
    compare     False skips the comparison, which holds the whole network, for models larger than memory
    progress    called with what is being done, how much is done, and of how much: 0 of 0 if unknown

    The logits of a source of Hugging Face, by transformers and peft, are compared with Pellucid's, and Pellucid's with
    those of the result by what opens it; where transformers or peft is not installed, the definition takes its place,
    and a note says so. Raises ParityError if they differ and ValueError for a model or a layout that is refused; then
    nothing is left behind.
    """
    destination = Path(destination)
    to = to or ("gguf" if destination.suffix == ".gguf" else None)
    request = Request(destination, to, family, shard, weights, licence, checkpoint, trust, compare, progress)
    request.check()
    progress("reading the model", 0, 0)
    model = read_model(given, checkpoint=checkpoint, revision=revision, trust=trust)
    request, written = request.settled(model)
    layout = request.layout
    assert layout is not None
    progress("writing the weights", 0, 0)
    left_out = notes_on_conversion(model, request)
    code = layout == "huggingface" and request.exported_family is None
    with atomic_output(destination, single_file=layout == "gguf") as folder:
        n_bytes, parity = WRITERS[layout](written, folder, request), None
        if compare:
            progress("comparing the logits", 0, 0)
            parity = compare_conversion(written, folder, request)
        if layout in ("pellucid", "huggingface"):
            compared = str(parity or "the logits were not compared with those of another implementation")
            notes = [*left_out, *([NO_DROPOUT] if written.architecture != model.architecture else [])]
            write_card(folder, written.architecture, layout, compared, licence, model.about | {"notes": notes}, code)
    return Converted(destination, layout, n_bytes, parity, code, left_out)


def notes_on_conversion(model: OpenedModel, request: Request) -> tuple[str, ...]:
    """What the result lacks, or does otherwise than the model or the request, and what no other reader saw."""
    notes, layout = list(model.notes), request.layout
    if model.run is not None and (model.run / "ngram").exists():
        notes.append(NO_NGRAM)
    if model.texts.why_ids not in ("", NO_TOKENIZER):
        notes.append(TOKENIZER_LEFT_OUT)
    if layout == "gguf" and model.tokenizer is not None:
        notes += notes_on_gguf_tokenizer(model.tokenizer)
    if layout == "gguf" and request.weights is not None:
        notes += notes_on_gguf_weights(model.architecture, request.weights)
    if layout != "huggingface" and model.family is not None and model.folder is not None:
        beside = read_object(model.folder.path, GENERATION) if (model.folder.path / GENERATION).exists() else {}
        if settings := [f"{name} = {beside[name]}"[:40] for name in DRAWING if beside.get(name)]:
            notes.append(f"{GENERATION} of the model sets {', '.join(settings)}, which this layout does not hold.")
    if request.compare and model.folder is not None and (why := why_not_compared(model.folder)):
        notes.append(
            f"The source was not compared with another implementation ({why}): what is written has been compared with "
            "Pellucid's own reading of it."
        )
    return tuple(notes)


def why_not_compared(folder: Folder) -> str:
    """Why no other implementation reads a source of another project here, "" where one does."""
    if folder.path.suffix == ".gguf":
        return "Pellucid alone reads GGUF files here"
    if folder.family is None or transformers_bridge.is_installed(folder.adapter):
        return ""
    return f"not installed: {transformers_bridge.missing(folder.adapter)}"
