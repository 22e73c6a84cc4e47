"""A model from one layout of files to another, compared with the other implementation before it is given its name."""

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pellucid.adapters import base_weights, family_of_base, write_run_adapter
from pellucid.architecture import Architecture
from pellucid.destination import check_destination
from pellucid.hub import transformers_bridge as source
from pellucid.hub.card import write_card
from pellucid.hub.families import FAMILIES, FamilyError, LazyStateDict, config_of, each_to_ours, each_to_theirs
from pellucid.hub.files import FolderError
from pellucid.hub.gguf import from_gguf as gguf_to_ours
from pellucid.hub.gguf import read_gguf, write_gguf
from pellucid.hub.open import Folder, copy_parameters, find_folder, open_folder
from pellucid.hub.own_code import MODEL_TYPE, PREFIX, model_class, write_code
from pellucid.hub.peft import Changed, read_adapter
from pellucid.hub.standalone import write_loader
from pellucid.hub.tables import Family
from pellucid.hub.write import (
    SHARD,
    Progress,
    dtype_of,
    exported_as,
    no_progress,
    write_config,
    write_object,
    write_tensors,
    write_tokenizer,
)
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.training.metrics import read_metrics
from pellucid.training.run_dir import load_run, read_json, read_recipe
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

#: what a card says where rates of dropout are left out
NO_DROPOUT = "The rates of dropout, which act in training alone, are left out: this family has no fields for them."
Layout = Literal["pellucid", "huggingface", "gguf", "adapter"]
Kept = Literal["float32", "float16", "q8_0"]
#: of max(1, largest logit): the code in a folder is the network's own source, so that sums alone may be rounded apart
CODE_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class SourceModel:
    """What is converted: parameters under our names, read when asked for, and all that goes with them.

    `folder` is where it lies, None where the weights are in memory; `about` is what the card tells of it; `run` is
    the run that it is of.
    """

    architecture: Architecture
    tokenizer: Tokenizer | None
    ours: Callable[[], Iterator[tuple[str, Tensor]]]
    folder: Folder | None = None
    about: dict[str, Any] = field(default_factory=dict)
    run: Path | None = None

    @property
    def family(self) -> Family | None:
        """The Hugging Face family that it comes from, None for a model of ours."""
        return self.folder.family if self.folder else None

    def state(self) -> Mapping[str, Tensor]:
        """The parameters by name, of a folder each read when it is looked up."""
        if self.folder is None:
            return dict(self.ours())
        return LazyStateDict(self.folder.shards, self.folder.config, self.family) if self.family else self.folder.shards

    def network(self, dtype: torch.dtype) -> Transformer:
        """The network in memory, in eval mode."""
        return copy_parameters(Transformer(self.architecture).to(dtype), self.ours()).eval()


@dataclass(frozen=True)
class Converted:
    """What was written: where, the layout, the bytes of its tensors, and how far the models are apart if compared.

    `code`: transformers opens the folder by code in it, which asks for trust_remote_code=True.
    """

    folder: Path
    layout: Layout
    n_bytes: int
    parity: Parity | None
    code: bool = False


def convert(
    given: str | Path,
    destination: str | Path,
    *,
    to: Layout | None = None,
    family: str | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    licence: str | None = None,
    shard: int = SHARD,
    weights: Kept | None = None,
    compare: bool = True,
    progress: Callable[[str, int, int], object] = lambda stage, done, total: None,
) -> Converted:
    """Write the model in `given` (a run, a saved model, a Hugging Face folder or name) in another layout.

    to        pellucid or huggingface, a new folder; gguf, a new file for llama.cpp; adapter, a run's adapters alone as
              a folder for peft. Unless given, NAME.gguf is gguf, folders of Hugging Face become pellucid and all else
              huggingface
    family    the Hugging Face family to write: the first that can represent the architecture unless given. Where none
              can, or for "pellucid", the folder holds code that transformers' auto classes open
    trust     read pickled tensors, and tokenizers with patterns that are not known to be safe
    licence   what the model card says
    shard     the most bytes in one file of weights
    weights   of gguf: what matrices are kept in, float32 unless given
    compare   False leaves out the comparison, which holds the whole network, for models larger than memory
    progress  is told what is being done, and how much of it, of how much: 0 of 0 where nobody knows

    The logits of what was written are compared with the source implementation's, or the definition's where that is
    not installed. Raises ParityError where they differ, ValueError for a model or a layout that is refused; then
    nothing is left behind.
    """
    destination = Path(destination)
    if destination.exists():
        raise FolderError(f"{destination} exists: choose a new name")
    if to is not None and to not in get_args(Layout):
        raise FolderError(f"to = {to!r}: say one of {', '.join(get_args(Layout))}")
    check_request(destination, to, family, weights)
    progress("reading the model", 0, 0)
    model = read_model(given, checkpoint=checkpoint, trust=trust)
    theirs = model.folder is not None and bool(model.folder.config)
    layout = to or ("gguf" if destination.suffix == ".gguf" else "pellucid" if theirs else "huggingface")
    goal = Goal(layout, destination.name, family, shard, weights, licence, checkpoint, compare, progress)
    goal.check()
    if model.architecture.readout == "none" and (layout != "pellucid" or compare):
        raise FolderError(
            "readout = none: a model without a head has no logits to compare, and is written in the layout pellucid "
            "alone, without a comparison (to='pellucid', compare=False; --no-compare)"
        )
    progress("writing the weights", 0, 0)
    with aside(destination, file=layout == "gguf") as folder:
        n_bytes, parity = WRITERS[layout](model, folder, goal)
        exported_family, written = goal.exported(model) if layout == "huggingface" else (None, model)
        code = layout == "huggingface" and exported_family is None
        if layout in ("pellucid", "huggingface"):
            said = str(parity or "the logits were not compared with those of another implementation")
            notes = [NO_DROPOUT] if written.architecture != model.architecture else []
            write_card(folder, written.architecture, layout, said, licence, model.about | {"notes": notes}, code)
    return Converted(destination, layout, n_bytes, parity, code)


def check_request(destination: Path, to: Layout | None, family: str | None, weights: Kept | None) -> None:
    """Refuse what can be seen to be wrong before the model is read: where it goes, and options of another layout."""
    check_destination(destination)
    known = (*FAMILIES, MODEL_TYPE)
    if family is not None and family not in known:
        near = difflib.get_close_matches(family, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise FamilyError(f"there is no family {family!r}: {hint}say one of {', '.join(known)}")
    layout = to or ("gguf" if destination.suffix == ".gguf" else None)
    if family is not None and layout not in (None, "huggingface", "adapter"):
        raise FolderError(f"family = {family} goes with to = huggingface, not {layout}: leave it out")
    if weights is not None and layout != "gguf":
        raise FolderError(f"weights = {weights} goes with to = gguf, or a destination NAME.gguf: leave it out")


@dataclass(frozen=True)
class Goal:
    """What is to be written, and how; the fields are those of `convert`, `name` the last part of the destination."""

    layout: Layout
    name: str
    family: str | None
    shard: int
    weights: Kept | None
    licence: str | None
    checkpoint: str
    compare: bool
    progress: Callable[[str, int, int], object]

    @property
    def compares(self) -> bool:
        """Whether what was written is to be compared, which then begins."""
        if self.compare:
            self.progress("comparing the logits", 0, 0)
        return self.compare

    def written(self, done: int, total: int) -> None:
        """Say how many tensors are written."""
        self.progress("writing the weights", done, total)

    def check(self) -> None:
        """Refuse what another layout would have read."""
        for name, of in (("family", ("huggingface", "adapter")), ("weights", ("gguf",))):
            if getattr(self, name) is not None and self.layout not in of:
                raise FolderError(f"{name} = {getattr(self, name)} goes with to = {of[0]}: leave it out")
        if self.weights is not None and self.weights not in get_args(Kept):
            raise FolderError(f"weights = {self.weights!r}: say one of {', '.join(get_args(Kept))}")

    def exported(self, model: SourceModel) -> tuple[Family | None, SourceModel]:
        """The family to write, and the model without rates of dropout that the family lacks; None for code of our own.

        Raises FamilyError where the family that was asked for, or that the model comes from, cannot represent it.
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


def read_model(given: str | Path, *, checkpoint: str = "best", trust: bool = False) -> SourceModel:
    """The model in a run, a saved folder, a Hugging Face folder, or of that name on the hub."""
    path = find_folder(given)
    if not (path / "recipe.json").exists():
        folder = open_folder(path, trust=trust)
        return SourceModel(folder.architecture, folder.tokenizer(), folder.ours, folder, {"source": Path(given).name})
    recipe = read_json(path / "recipe.json")
    if (kind := recipe.get("kind", "transformer") if isinstance(recipe, dict) else None) != "transformer":
        raise FolderError(f"{path} is a run of kind {kind}: only transformers are converted")
    network, tokenizer, step = load_run(path, checkpoint, torch.device("cpu"), base_weights)
    state = state_of(network)
    about = {"source": f"{path.name}, step {step}", "data": read_json(path / "data.json")}
    about["recipe"] = recipe
    about["losses"] = losses_of(path, step)
    about["training"] = training_of(path, step)
    return SourceModel(network.architecture, tokenizer, lambda: iter(state.items()), None, about, path)


def losses_of(run: Path, step: int) -> dict[str, Any]:
    """The last figures of a run's metrics up to a step: loss and held-out loss (nats), bits per byte."""
    found: dict[str, Any] = {}
    for row in read_metrics(run / "metrics.jsonl"):
        if row["step"] <= step:
            names = ("loss", "held_out_loss", "bits_per_byte")
            found |= {name: row[name] for name in names if row.get(name) is not None}
    return found


def training_of(run: Path, step: int) -> dict[str, Any]:
    """What happened in a run up to a checkpoint, by its metrics: steps, tokens, seconds, steps passed over.

    `last_step` is the step that the run reached; `machine` is what the run says of the machine it began on.
    """
    rows = read_metrics(run / "metrics.jsonl")
    before = [row for row in rows if row["step"] <= step]
    found: dict[str, Any] = {"steps": step, "last_step": max([step, *(row["step"] for row in rows)])}
    for name in ("tokens", "seconds"):
        if values := [row[name] for row in before if isinstance(row.get(name), int | float)]:
            found[name] = max(values)
    found["passed_over"] = sum(1 for row in before if row.get("skipped") is True)
    machine = run / "machine.json"
    return found | {"machine": read_json(machine) if machine.exists() else {}}


@contextmanager
def aside(destination: Path, file: bool = False) -> Iterator[Path]:
    """A folder that gets the destination's name when the block ends well, and goes with all it holds when not.

    `file`: the one file of the folder, of the destination's name, gets it instead.
    """
    folder = destination.with_name(f".{destination.name}.writing-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        if destination.exists():  # somebody else's since it was chosen
            raise FolderError(f"{destination} exists: choose a new name")
        os.rename(folder / destination.name if file else folder, destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# The layouts: each writes and compares ------------------------------------------------------------


def to_pellucid(model: SourceModel, folder: Path, goal: Goal) -> tuple[int, Parity | None]:
    """Our layout, beside the implementation that the model comes from."""
    n_bytes = write_pellucid(model, folder, goal.written)
    return n_bytes, check_import(model, folder).require() if goal.compares else None


def to_huggingface(model: SourceModel, folder: Path, goal: Goal) -> tuple[int, Parity | None]:
    """A family's layout, or ours with code of its own, beside the implementation that it goes to."""
    family, model = goal.exported(model)
    n_bytes = write_huggingface(model, folder, family, goal.shard, goal.written)
    return n_bytes, check_export(model, folder, family).require() if goal.compares else None


def to_gguf(model: SourceModel, folder: Path, goal: Goal) -> tuple[int, Parity | None]:
    """One file for llama.cpp, read back by us: in float32 the same logits, else every tensor within rounding."""
    a, path = model.architecture, folder / goal.name
    about = {"name": Path(str(model.about.get("source", "model"))).name, "licence": goal.licence}
    n_bytes = write_gguf(path, model.state(), a, model.tokenizer, goal.weights or "float32", **about)
    if not goal.compares:
        return n_bytes, None
    _, tensors = read_gguf(path)
    read = dict(gguf_to_ours(tensors, a))
    probe = make_probe(a, model.tokenizer)
    network = copy_parameters(Transformer(a).to(probe.dtype), read.items()).eval()
    ours = our_logits(model.network(probe.dtype), probe)
    parity = compare_logits(our_logits(network, probe), ours, "the model itself", probe)
    parity = parity.named(lambda n: first_of_networks(network, model.network(probe.dtype), probe.cases[n]))
    if goal.weights in (None, "float32"):
        return n_bytes, parity.require()
    check_rounding(read, model.state(), goal.weights)
    return n_bytes, parity


def to_adapter(model: SourceModel, folder: Path, goal: Goal) -> tuple[int, Parity | None]:
    """A run's adapters alone; merged by what was read back they give the run's logits."""
    if model.run is None:
        raise FolderError("to = adapter: the model is no run of adapters (pellucid train --from MODEL --lora 8)")
    n_bytes = write_run_adapter(model.run, folder, goal.checkpoint, goal.family)
    if not goal.compares:
        return n_bytes, None
    recipe = read_recipe(model.run)
    family = FAMILIES[goal.family] if goal.family else family_of_base(recipe)
    a, changes, base = model.architecture, read_adapter(folder), base_weights(recipe)
    theirs = dict(each_to_theirs(base, a, family)) if family else base
    merged = Changed(theirs, changes, "" if family else PREFIX)
    ours = each_to_ours(merged, config_of(a, family), family) if family else merged.items()
    probe = make_probe(a, model.tokenizer)
    network = copy_parameters(Transformer(a).to(probe.dtype), ours).eval()
    expected = our_logits(model.network(probe.dtype), probe)
    parity = compare_logits(our_logits(network, probe), expected, "the run itself", probe)
    parity = parity.named(lambda n: first_of_networks(network, model.network(probe.dtype), probe.cases[n]))
    return n_bytes, parity.require()


def write_pellucid(model: SourceModel, folder: Path, progress: Progress = no_progress) -> int:
    """Our layout, with a loader in one file that needs no Pellucid."""
    write_object(folder / "architecture.json", model.architecture.to_dict())
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
    write_loader(folder)
    return write_tensors(folder, model.ours, sys.maxsize, progress)


def write_huggingface(
    model: SourceModel, folder: Path, family: Family | None, shard: int = SHARD, progress: Progress = no_progress
) -> int:
    """config.json, generation_config.json, weights, the tokenizer's files, and code where there is no family."""
    a = model.architecture
    write_config(folder, a, family, model.tokenizer, dtype_of(model.ours()))
    if model.tokenizer is not None:
        write_tokenizer(folder, model.tokenizer, a.n_ctx, a)
    if family is None:
        write_code(folder)
        return write_tensors(
            folder, lambda: ((PREFIX + name, tensor) for name, tensor in model.ours()), shard, progress
        )
    state = model.state()
    return write_tensors(folder, lambda: each_to_theirs(state, a, family), shard, progress)


def check_import(model: SourceModel, folder: Path) -> Parity:
    """What was written in our layout, beside the source implementation on the source's files, or the definition."""
    probe = make_probe(model.architecture, model.tokenizer)
    written = open_folder(folder)
    network = copy_parameters(Transformer(model.architecture).to(probe.dtype), written.ours()).eval()
    if model.folder is None or model.family is None or not source.is_installed(model.folder.adapter):
        return beside_definition(network, model, probe)
    return beside_theirs(network, model.folder.path, model.family, probe, model.folder.adapter)


def check_export(model: SourceModel, folder: Path, family: Family | None) -> Parity:
    """What was written for the hub, read by its own implementation, beside our logits; or read by us, the definition's.

    Without a family, the implementation is the code in the folder. Where transformers is not installed, the files are
    read back through the tables.
    """
    probe = make_probe(model.architecture, model.tokenizer)
    if not source.is_installed():
        network = copy_parameters(Transformer(model.architecture).to(probe.dtype), open_folder(folder).ours()).eval()
        return beside_definition(network, model, probe)
    network = model.network(probe.dtype)
    return beside_theirs(network, folder, family, probe) if family else beside_code(network, folder, probe)


def beside_theirs(
    network: Transformer, folder: Path, family: Family, probe: ProbeInput, adapter: Path | None = None
) -> Parity:
    """Our network beside transformers on a folder; where they differ, its hidden states say from where on."""

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        asked = folder, family.model_class, probe.tokens, probe.dtype, adapter
        return source.their_logits(*asked, hidden_of=hidden_of, **probe.given)

    check_masks(network)
    ours, rounded = our_logits(network, probe), logits_of_float32_angles(network, probe)
    parity = compare_logits(ours, read(), source.version(adapter), probe, rounded)
    return parity.named(lambda n: first_of_streams(network, probe.cases[n], read(n), parity.allowed))


def beside_code(network: Transformer, folder: Path, probe: ProbeInput) -> Parity:
    """The same beside the code in the folder, which is the network's own source."""
    given = dict(probe.given)
    if probe.a.encoder is not None:
        for name in ("token_type_ids", "position_ids"):
            given |= {f"decoder_{name}": given.pop(name)} if name in given else {}

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        asked = folder, model_class(probe.a), probe.tokens, probe.dtype, None
        return source.their_logits(*asked, hidden_of=hidden_of, **given)

    check_masks(network)
    other = f"{source.version()} by the code in the folder"
    tolerance = CODE_TOLERANCES[probe.dtype]
    parity = compare_logits(our_logits(network, probe), read(), other, probe, tolerance=tolerance)
    return parity.named(lambda n: first_of_streams(network, probe.cases[n], read(n), tolerance))


def beside_definition(network: Transformer, model: SourceModel, probe: ProbeInput) -> Parity:
    """A network that was read from what was written beside the definition on the model's own weights."""
    check_masks(network)
    exact = model.network(torch.float64)
    parity = compare_logits(our_logits(network, probe), defined_logits(exact, probe), "the NumPy reference", probe)
    return parity.named(lambda n: first_beside_definition(network, exact, probe.cases[n]))


#: by how much of its largest number a tensor may change where it is kept in fewer bits: half a step, and the scale's
ROUNDING = {"float16": 2**-10, "q8_0": 0.5 / 127 + 2**-9}


def check_rounding(read: Mapping[str, Tensor], written: Mapping[str, Tensor], kept: str) -> None:
    """ParityError for a tensor that is farther from what was to be written than rounding makes it."""
    for name, tensor in written.items():
        apart = (read[name] - tensor.float()).abs().max().item() if tensor.numel() else 0.0
        if apart > ROUNDING[kept] * tensor.abs().max().item():
            raise ParityError(f"{name} is {apart:.1e} from what was to be written: rounding to {kept} is less")


WRITERS: dict[str, Callable[[SourceModel, Path, Goal], tuple[int, Parity | None]]] = {
    "pellucid": to_pellucid,
    "huggingface": to_huggingface,
    "gguf": to_gguf,
    "adapter": to_adapter,
}
