"""Convert a model between file layouts, and compare it with the other implementation before publishing the result."""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pellucid.adapters import family_of_base, open_base, write_run_adapter
from pellucid.architecture import Architecture
from pellucid.destination import atomic_output, check_destination
from pellucid.hub import transformers_bridge as source
from pellucid.hub.card import write_card
from pellucid.hub.families import FAMILIES, FamilyError, config_of, each_to_ours, each_to_theirs
from pellucid.hub.files import ADAPTER, GENERATION, read_object
from pellucid.hub.folder import NO_TOKENIZER, Folder
from pellucid.hub.gguf import from_gguf as gguf_to_ours
from pellucid.hub.gguf import gguf_architecture, notes_on_gguf_tokenizer, notes_on_gguf_weights, read_gguf, write_gguf
from pellucid.hub.open import find_folder, open_folder, read_network
from pellucid.hub.own_code import MODEL_TYPE, PREFIX, model_class, write_code
from pellucid.hub.peft import MergedTensors, read_adapter
from pellucid.hub.standalone import write_loader
from pellucid.hub.tables import Family
from pellucid.hub.text_towers import text_model_name
from pellucid.hub.write import (
    SHARD,
    Progress,
    carry_over,
    dtype_of,
    exported_as,
    no_progress,
    without_dropout,
    write_chat,
    write_config,
    write_notes,
    write_object,
    write_tensors,
    write_tokenizer,
)
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.model_names import FolderError, check_checkpoint, is_local
from pellucid.runs.checkpoint import metrics_path
from pellucid.runs.metrics import last_evaluation, part_measured, predicted_tokens, read_metrics
from pellucid.runs.run_dir import MACHINE, read_data, read_json
from pellucid.starting_model import base_weights
from pellucid.text.chat_template import ChatTemplate, read_chat_template, write_chat_template
from pellucid.text.tokenizers.base import Tokenizer, write_model_ids
from pellucid.training.config import Base
from pellucid.training.kinds import kind_of
from pellucid.training.load import as_trained, load_run, read_recipe
from pellucid.trust import Trust, check_trust
from pellucid.verify.parity import (
    Parity,
    ParityError,
    ProbeInput,
    check_masks,
    compare_logits,
    defined_logits,
    first_beside_definition,
    first_of_networks,
    first_of_streams,
    logits_of_float32_angles,
    make_probe,
    our_logits,
)

#: what is said of a run that holds an n-gram
NO_NGRAM = (
    "The n-gram that the run stores (train --mix auto) is left out: this is the network alone, and its losses are "
    "those without the n-gram."
)
#: what is said of a model whose tokenizer cannot be used here (`Folder.own_tokenizer`)
TOKENIZER_LEFT_OUT = "The tokenizer of the model is left out, because Pellucid cannot use it."
#: what a card says where rates of dropout are left out
NO_DROPOUT = "Dropout rates, which matter only in training, are left out: this family has no fields for them."
#: entries of generation_config.json by which texts are drawn
DRAWING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "num_beams")
Layout = Literal["pellucid", "huggingface", "gguf", "adapter"]
GGUFWeightFormat = Literal["float32", "float16", "q8_0"]
#: tolerance relative to max(1, largest logit): a folder's code is the network's own source, so that only sums may round
#: differently
CODE_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class SourceModel:
    """The model to convert: parameters under our names, read on demand, and everything else that belongs to it.

    `folder` is its folder, None if the weights are in memory; `about` is for the model card; `run` is its run;
    `notes` say what was left out or done otherwise when it, or the model that its run started from, was read.
    """

    architecture: Architecture
    tokenizer: Tokenizer | None
    ours: Callable[[], Iterator[tuple[str, Tensor]]]
    folder: Folder | None = None
    about: dict[str, Any] = field(default_factory=dict)
    run: Path | None = None
    chat_template: ChatTemplate | None = None
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> Family | None:
        """The Hugging Face family that it comes from, None for a model of our layout."""
        return self.folder.family if self.folder else None

    def state(self) -> Mapping[str, Tensor]:
        """The parameters by name; those of a folder are read when they are looked up."""
        if self.folder is None:
            return dict(self.ours())
        return self.folder.state()

    def network(self, dtype: torch.dtype) -> Transformer:
        """The network in memory, in eval mode."""
        return read_network(self.architecture, self.ours(), dtype)


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
    is_theirs = model.folder is not None and bool(model.folder.config)
    layout = to or ("pellucid" if is_theirs else "huggingface")
    request = replace(request, layout=layout)
    request.check()
    if model.architecture.readout == "none" and (layout != "pellucid" or compare):
        raise FolderError(
            "readout = none: a model without a head has no logits to compare: write it in the layout pellucid, "
            "without a comparison (to='pellucid', compare=False; --no-compare)"
        )
    if layout == "gguf":
        gguf_architecture(model.architecture)  # raises FamilyError with the option that is in the way
    progress("writing the weights", 0, 0)
    left_out = sentences_on_conversion(model, layout, weights, compare)
    with atomic_output(destination, single_file=layout == "gguf") as folder:
        n_bytes, parity = WRITERS[layout](model, folder, request)
        exported_family, written = request.exported(model) if layout == "huggingface" else (None, model)
        code = layout == "huggingface" and exported_family is None
        if layout in ("pellucid", "huggingface"):
            said = str(parity or "the logits were not compared with those of another implementation")
            notes = [*left_out, *([NO_DROPOUT] if written.architecture != model.architecture else [])]
            write_card(folder, written.architecture, layout, said, licence, model.about | {"notes": notes}, code)
    return Converted(destination, layout, n_bytes, parity, code, left_out)


def sentences_on_conversion(
    model: SourceModel, layout: Layout, weights: GGUFWeightFormat | None = None, compare: bool = True
) -> tuple[str, ...]:
    """What the result lacks, or does otherwise than the model or than `weights` asks, and what no other reader saw."""
    said = list(model.notes)
    if model.run is not None and (model.run / "ngram").exists():
        said.append(NO_NGRAM)
    if model.folder is not None and model.tokenizer is None and model.folder.why_no_tokenizer() != NO_TOKENIZER:
        said.append(TOKENIZER_LEFT_OUT)
    if layout == "gguf" and model.tokenizer is not None:
        said += notes_on_gguf_tokenizer(model.tokenizer)
    if layout == "gguf" and weights is not None:
        said += notes_on_gguf_weights(model.architecture, weights)
    if layout != "huggingface" and model.family is not None and model.folder is not None:
        beside = read_object(model.folder.path, GENERATION) if (model.folder.path / GENERATION).exists() else {}
        if settings := [f"{name} = {beside[name]}"[:40] for name in DRAWING if beside.get(name)]:
            said.append(f"{GENERATION} of the model sets {', '.join(settings)}, which this layout does not hold.")
    if compare and model.folder is not None and (why := why_not_compared(model.folder)):
        said.append(
            f"The source was not compared with another implementation ({why}): what is written has been compared with "
            "Pellucid's own reading of it."
        )
    return tuple(said)


def why_not_compared(folder: Folder) -> str:
    """Why no other implementation reads a source of another project here, "" where one does."""
    if folder.path.suffix == ".gguf":
        return "Pellucid alone reads GGUF files here"
    if folder.family is None or source.is_installed(folder.adapter):
        return ""
    return f"not installed: {source.missing(folder.adapter)}"


@dataclass(frozen=True)
class Request:
    """What to write, and how: the arguments of `convert`. `layout` is None where the source decides it."""

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
        if self.layout == "gguf" and find_spec("gguf") is None:
            raise FolderError(f"{self.destination}: GGUF files are written by the package gguf: pip install gguf")
        if self.family is not None and self.layout not in (None, "huggingface", "adapter"):
            raise FolderError(
                f"the family {self.family} needs the layout huggingface, and {self.layout} is written: leave it out"
            )
        if self.weights is not None and self.layout != "gguf":
            raise FolderError(
                f"the number format {self.weights} is for GGUF alone: leave it out, or name the result NAME.gguf"
            )
        if self.licence is not None and self.layout == "adapter":
            raise FolderError(
                f"the licence {self.licence} is written on a model card, and adapters have none: leave it out"
            )

    def report_comparing(self) -> None:
        """Report that the comparison begins."""
        self.progress("comparing the logits", 0, 0)

    def report_written(self, done: int, total: int) -> None:
        """Report how many tensors are written."""
        self.progress("writing the weights", done, total)

    def exported(self, model: SourceModel) -> tuple[Family | None, SourceModel]:
        """The family to write, and the model without dropout rates that the family lacks; None for our own code.

        Raises FamilyError if the requested family, or the one that the model comes from, cannot represent it.
        """
        wanted = self.family or (model.family.name if model.family else None)
        if wanted == MODEL_TYPE:
            return None, model
        try:
            family, a = exported_as(model.architecture, wanted)
        except FamilyError:
            if wanted:
                raise
            return None, model
        return family, replace(model, architecture=a)


def read_model(
    given: str | Path, *, checkpoint: str = "best", revision: str | None = None, trust: Trust = False
) -> SourceModel:
    """The model in a run, a saved folder or a Hugging Face folder, or of that name (and revision) on the hub.

    Raises FolderError for a checkpoint of anything but a run.
    """
    check_checkpoint(Path(given), checkpoint)
    path = find_folder(given, revision, trust=trust)
    if not (path / "recipe.json").exists():
        folder = open_folder(path, trust=trust)
        source = Path(given).name + (f" ({revision})" if revision else "")
        about, (template, why_none) = {"source": source}, folder.chat_template()
        if folder.adapter is not None:
            about |= base_on_card(read_object(folder.adapter, ADAPTER).get("base_model_name_or_path"))
        notes = folder.named_so([*folder.reading_notes(), *why_none], source)
        return SourceModel(folder.architecture, folder.tokenizer(), folder.ours, folder, about, None, template, notes)
    if (kind := kind_of(path)) != "transformer":
        raise FolderError(f"{path} is a run of kind {kind}: only transformers are converted")
    run_recipe = read_recipe(path)
    weights_of_base, device = partial(base_weights, trust=trust), torch.device("cpu")
    network, tokenizer, step = load_run(path, checkpoint, device, weights_of_base, trust=trust)
    tokenizer = as_trained(tokenizer, run_recipe)
    state = state_of(network)
    about = {"source": f"{path.name}, step {step}", "data": read_data(path)}
    base, written = run_recipe.record.base, run_recipe.to_dict()
    about["recipe"] = recipe = {**written["options"], **written["record"]}
    if run_recipe.adapt.rank and base:
        about |= base_on_card(base.path)
    rows = read_metrics(metrics_path(path, checkpoint, step))
    about["losses"] = losses_of(rows, step)
    about["part_measured"] = part_of_losses(rows, step, recipe, about["data"])
    about["training"] = training_of(path, rows, step)
    template, notes = read_chat_template(path), notes_on_base(base, trust)
    return SourceModel(network.architecture, tokenizer, lambda: iter(state.items()), None, about, path, template, notes)


def notes_on_base(base: Base | None, trust: Trust) -> tuple[str, ...]:
    """The notes on the model from which a run started, and where it cannot be opened, a sentence that says so."""
    seen: set[Path] = set()
    while base:
        path = Path(base.path)
        try:
            if path in seen:  # a run that has been renamed to the model that it started from
                break
            seen.add(path)
            if not (path / "recipe.json").exists():
                folder = open_folder(path, trust=trust)
                return folder.named_so(folder.reading_notes(), path.name)
            base = read_recipe(path).record.base
        except (ValueError, OSError):  # what is converted is the run, which is complete without it
            break
    else:
        return ()
    return (f"The run started from {base_name(path)}; what opening that model says of it is not repeated here.",)


def base_on_card(name: Any) -> dict[str, str]:
    """The entry for a card about the model that an adapter changes: a name on the hub, or a folder here, which nobody
    finds there.
    """
    return {"base_folder" if is_local(str(name)) else "base_model": base_name(name)}


def base_name(name: Any) -> str:
    """What is said of the model that a run or an adapter changes: its name on the hub, or the last part of its path."""
    return Path(str(name)).name if is_local(str(name)) else str(name)


def losses_of(rows: Sequence[Mapping[str, Any]], step: int) -> dict[str, Any]:
    """The last metrics of a run up to a step: loss and held-out loss (nats), bits per byte."""
    losses: dict[str, Any] = {}
    for row in rows:
        if row["step"] <= step:
            names = ("loss", "held_out_loss", "bits_per_byte")
            losses |= {name: row[name] for name in names if row.get(name) is not None}
    return losses


def part_of_losses(rows: Sequence[Mapping[str, Any]], step: int, recipe: dict[str, Any], data: dict[str, Any]) -> int:
    """How many held-out tokens the held-out loss of `losses_of` is over, 0 where it is over all of them."""
    known = predicted_tokens(data, "held_out")
    before = [row for row in rows if row["step"] <= step]
    return part_measured(last_evaluation(before), recipe["train"].get("evaluate_tokens", 0), known)


def training_of(run: Path, rows: Sequence[Mapping[str, Any]], step: int) -> dict[str, Any]:
    """What happened in a run up to a checkpoint, by the metrics that led to it: steps, tokens, seconds, skipped steps.

    `last_step` is the step that the run reached; `machine` describes the machine on which it began.
    """
    before = [row for row in rows if row["step"] <= step]
    last = max((row["step"] for row in read_metrics(run / "metrics.jsonl")), default=0)
    facts: dict[str, Any] = {"steps": step, "last_step": max(step, last)}
    for name in ("tokens", "seconds"):
        if values := [row[name] for row in before if isinstance(row.get(name), int | float)]:
            facts[name] = max(values)
    facts["passed_over"] = sum(1 for row in before if row.get("skipped") is True)
    machine = run / MACHINE
    return facts | {"machine": read_json(machine) if machine.exists() else {}}


# The layouts: each writes and compares ------------------------------------------------------------


def to_pellucid(model: SourceModel, folder: Path, request: Request) -> tuple[int, Parity | None]:
    """Write our layout, and compare it with the source implementation."""
    n_bytes = write_pellucid(model, folder, request.report_written)
    if not request.compare:
        return n_bytes, None
    request.report_comparing()
    return n_bytes, check_import(model, folder).require()


def to_huggingface(model: SourceModel, folder: Path, request: Request) -> tuple[int, Parity | None]:
    """Write a family's layout, or ours with its own code, and compare it with the implementation that opens it."""
    family, model = request.exported(model)
    n_bytes = write_huggingface(model, folder, family, request.shard, request.report_written)
    if not request.compare:
        return n_bytes, None
    request.report_comparing()
    of_source = check_source(model, make_probe(model.architecture, model.tokenizer))
    return n_bytes, replace(check_export(model, folder, family).require(), of_source=of_source)


def to_gguf(model: SourceModel, folder: Path, request: Request) -> tuple[int, Parity | None]:
    """Write one file for llama.cpp and read it back: the same logits in float32, else every tensor within rounding."""
    a, path = model.architecture, folder / request.destination.name
    about = {"name": Path(str(model.about.get("source", "model"))).name, "licence": request.licence}
    about["chat_template"] = None if model.chat_template is None else model.chat_template.source
    n_bytes = write_gguf(path, model.state(), a, model.tokenizer, request.weights or "float32", **about)
    if not request.compare:
        return n_bytes, None
    request.report_comparing()
    _, tensors = read_gguf(path)
    read = dict(gguf_to_ours(tensors, a))
    probe = make_probe(a, model.tokenizer)
    of_source = check_source(model, probe)
    network = read_network(a, read.items(), probe.dtype)
    ours = our_logits(model.network(probe.dtype), probe)
    parity = compare_logits(our_logits(network, probe), ours, "the model itself", probe)
    parity = parity.named(lambda n: first_of_networks(network, model.network(probe.dtype), probe.cases[n]))
    parity = replace(parity, of_source=of_source)
    if request.weights in (None, "float32"):
        return n_bytes, parity.require()
    check_rounding(read, model.state(), request.weights)
    return n_bytes, parity


def to_adapter(model: SourceModel, folder: Path, request: Request) -> tuple[int, Parity | None]:
    """Write a run's adapters alone; peft must give the run's logits with them, or where it is not installed, or the
    base is no folder that transformers opens, the weights that are merged from the written files.
    """
    if model.run is None:
        raise FolderError("to = adapter: the model is not a run of adapters (pellucid train --from MODEL --lora 8)")
    n_bytes = write_run_adapter(model.run, folder, request.checkpoint, request.family, trust=request.trust)
    if not request.compare:
        return n_bytes, None
    request.report_comparing()
    recipe, probe = read_recipe(model.run), make_probe(model.architecture, model.tokenizer)
    opened = open_base(recipe, request.trust)
    if opened is not None and opened.family is not None and source.is_installed(folder):
        network = model.network(probe.dtype)
        return n_bytes, beside_theirs(network, opened.path, opened.their_class, probe, folder).require()
    family = FAMILIES[request.family] if request.family else family_of_base(recipe, request.trust)
    # the rates have no effect on the logits, and not every family has entries for them
    a, base = without_dropout(model.architecture), base_weights(recipe, request.trust)
    changes = {
        text_model_name(module): change for module, change in read_adapter(folder, read_object(folder, ADAPTER)).items()
    }
    theirs = dict(each_to_theirs(base, a, family)) if family else base
    merged = MergedTensors(theirs, changes, family, a)
    ours = each_to_ours(merged, config_of(a, family), family) if family else merged.items()
    network = read_network(a, ours, probe.dtype)
    expected = our_logits(model.network(probe.dtype), probe)
    parity = compare_logits(our_logits(network, probe), expected, "the run itself", probe)
    parity = parity.named(lambda n: first_of_networks(network, model.network(probe.dtype), probe.cases[n]))
    return n_bytes, parity.require()


def write_pellucid(model: SourceModel, folder: Path, progress: Progress = no_progress) -> int:
    """Write our layout, with a single-file loader that does not need Pellucid."""
    write_object(folder / "architecture.json", model.architecture.to_dict())
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
    elif model.folder is not None:
        write_model_ids(folder, model.folder.ids())
    if model.chat_template is not None:
        write_chat_template(folder, model.chat_template, model.tokenizer.named_end if model.tokenizer else "")
    write_notes(folder, model.notes)
    write_loader(folder)
    return write_tensors(folder, model.ours, sys.maxsize, progress)


def write_huggingface(
    model: SourceModel, folder: Path, family: Family | None, shard: int = SHARD, progress: Progress = no_progress
) -> int:
    """Write config.json, generation_config.json, weights, the tokenizer's files, and code if there is no family."""
    a = model.architecture
    write_config(folder, a, family, model.tokenizer, dtype_of(model.ours()), model.folder)
    if model.tokenizer is not None:
        write_tokenizer(folder, model.tokenizer, a.n_ctx, a)
        if model.chat_template is not None:
            write_chat(folder, model.tokenizer, model.chat_template)
    if family is not None and model.folder is not None and model.folder.family is not None:
        carry_over(folder, model.folder, family, model.tokenizer is not None)
    if family is None:
        write_code(folder)
        return write_tensors(
            folder, lambda: ((PREFIX + name, tensor) for name, tensor in model.ours()), shard, progress
        )
    state = model.state()
    return write_tensors(folder, lambda: each_to_theirs(state, a, family), shard, progress)


def check_import(model: SourceModel, folder: Path) -> Parity:
    """Compare the written files of our layout with the source implementation on its files, or with the definition."""
    probe = make_probe(model.architecture, model.tokenizer)
    written = open_folder(folder)
    network = read_network(model.architecture, written.ours(), probe.dtype)
    if model.folder is None or model.family is None or not source.is_installed(model.folder.adapter):
        return beside_definition(network, model, probe)
    return beside_theirs(network, model.folder.path, model.folder.their_class, probe, model.folder.adapter)


def check_source(model: SourceModel, probe: ProbeInput) -> Parity | None:
    """Compare our reading of a source of Hugging Face with its own implementation; None for other sources and where
    that is not installed.

    Raises ParityError if they differ.
    """
    folder = model.folder
    if folder is None or model.family is None or not source.is_installed(folder.adapter):
        return None
    network = model.network(probe.dtype)
    return beside_theirs(network, folder.path, folder.their_class, probe, folder.adapter).require()


def check_export(model: SourceModel, folder: Path, family: Family | None) -> Parity:
    """Compare a written hub folder, read by its own implementation, with our logits; without it, with the definition.

    Without a family, the implementation is the code in the folder. If transformers is not installed, the files are read
    back through the tables. `check_source` compares our logits with those of the source.
    """
    probe = make_probe(model.architecture, model.tokenizer)
    if not source.is_installed():
        network = read_network(model.architecture, open_folder(folder).ours(), probe.dtype)
        return beside_definition(network, model, probe)
    network = model.network(probe.dtype)
    if family is None:
        return beside_code(network, folder, probe)
    return beside_theirs(network, folder, family.model_class, probe)


def beside_theirs(
    network: Transformer, folder: Path, their_class: str, probe: ProbeInput, adapter: Path | None = None
) -> Parity:
    """Compare our network with their class on a folder; if they differ, its hidden states say from where."""

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        asked = folder, their_class, probe.tokens, probe.dtype, adapter
        return source.their_logits(*asked, hidden_of=hidden_of, **probe.given)

    check_masks(network)
    ours, rounded = our_logits(network, probe), logits_of_float32_angles(network, probe)
    parity = compare_logits(ours, read(), source.version(adapter), probe, rounded)
    return parity.named(lambda n: first_of_streams(network, probe.cases[n], read(n), parity.allowed))


def beside_code(network: Transformer, folder: Path, probe: ProbeInput) -> Parity:
    """Compare our network with the code in the folder, which is the network's own source."""
    inputs = dict(probe.given)
    if probe.a.encoder is not None:
        for name in ("token_type_ids", "position_ids"):
            inputs |= {f"decoder_{name}": inputs.pop(name)} if name in inputs else {}

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        asked = folder, model_class(probe.a), probe.tokens, probe.dtype, None
        return source.their_logits(*asked, hidden_of=hidden_of, **inputs)

    check_masks(network)
    other = f"{source.version()} by the code in the folder"
    tolerance = CODE_TOLERANCES[probe.dtype]
    parity = compare_logits(our_logits(network, probe), read(), other, probe, tolerance=tolerance)
    return parity.named(lambda n: first_of_streams(network, probe.cases[n], read(n), tolerance))


def beside_definition(network: Transformer, model: SourceModel, probe: ProbeInput) -> Parity:
    """Compare a network read from the written files with the definition on the model's own weights."""
    check_masks(network)
    exact = model.network(torch.float64)
    parity = compare_logits(our_logits(network, probe), defined_logits(exact, probe), "the NumPy reference", probe)
    return parity.named(lambda n: first_beside_definition(network, exact, probe.cases[n]))


#: the allowed change of a tensor in fewer bits, relative to its largest number: half a step, and that of the scale
ROUNDING = {"float16": 2**-10, "q8_0": 0.5 / 127 + 2**-9}


def check_rounding(read: Mapping[str, Tensor], written: Mapping[str, Tensor], number_format: str) -> None:
    """Raise ParityError if a tensor differs from what was to be written by more than rounding."""
    for name, tensor in written.items():
        apart = (read[name] - tensor.float()).abs().max().item() if tensor.numel() else 0.0
        if apart > ROUNDING[number_format] * tensor.abs().max().item():
            raise ParityError(f"{name} is {apart:.1e} from what was to be written: rounding to {number_format} is less")


WRITERS: dict[str, Callable[[SourceModel, Path, Request], tuple[int, Parity | None]]] = {
    "pellucid": to_pellucid,
    "huggingface": to_huggingface,
    "gguf": to_gguf,
    "adapter": to_adapter,
}
