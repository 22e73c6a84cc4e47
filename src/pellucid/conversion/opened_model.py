"""The model that is converted: what was opened, and what was said when it was."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.files import ADAPTER, read_object
from pellucid.hub.folder import Folder, TextRules
from pellucid.hub.open import find_folder, open_folder, read_network
from pellucid.hub.tables import Family
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.model_names import FolderError, check_checkpoint, is_local
from pellucid.runs.checkpoint import metrics_path
from pellucid.runs.metrics import last_evaluation, part_measured, read_metrics
from pellucid.runs.run_dir import MACHINE, read_data, read_json
from pellucid.starting_model import base_weights
from pellucid.text.chat_template import read_chat_template
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.training.config import Base
from pellucid.training.kinds import run_kind
from pellucid.training.load import as_trained, load_run, read_recipe
from pellucid.trust import Trust


@dataclass(frozen=True)
class OpenedModel:
    """The model to convert: parameters under our names, read on demand, and everything else that belongs to it.

    `folder` is its folder, None if the weights are in memory; `about` is for the model card; `run` is its run;
    `notes` say what was left out or done otherwise when it, or the model that its run started from, was read.
    """

    architecture: Architecture
    texts: TextRules
    ours: Callable[[], Iterator[tuple[str, Tensor]]]
    folder: Folder | None = None
    about: dict[str, Any] = field(default_factory=dict)
    run: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, None where its texts are ids."""
        return self.texts.own_tokenizer

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


def read_model(
    given: str | Path, *, checkpoint: str = "best", revision: str | None = None, trust: Trust = False
) -> OpenedModel:
    """The model in a run, a saved folder or a Hugging Face folder, or of that name (and revision) on the hub.

    Raises FolderError for a checkpoint of anything but a run.
    """
    check_checkpoint(Path(given), checkpoint)
    path = find_folder(given, revision, trust=trust)
    if not (path / "recipe.json").exists():
        folder = open_folder(path, trust=trust)
        source = Path(given).name + (f" ({revision})" if revision else "")
        about, texts = {"source": source}, folder.text_rules()
        if folder.adapter is not None:
            about |= base_on_card(read_object(folder.adapter, ADAPTER).get("base_model_name_or_path"))
        notes = folder.notes_to_store(texts.notes, source)
        return OpenedModel(folder.architecture, texts, folder.ours, folder, about, None, notes)
    if (kind := run_kind(path)) != "transformer":
        raise FolderError(f"{path} is a run of kind {kind}: only transformers are converted")
    run_recipe = read_recipe(path)
    weights_of_base, device = partial(base_weights, trust=trust), torch.device("cpu")
    network, tokenizer, step = load_run(path, checkpoint, device, weights_of_base, trust=trust)
    texts = TextRules(as_trained(tokenizer, run_recipe), read_chat_template(path))
    state = state_of(network)
    about = {"source": f"{path.name}, step {step}", "data": read_data(path)}
    base, written = run_recipe.record.base, run_recipe.to_dict()
    about["recipe"] = {**written["options"], **written["record"]}
    if run_recipe.adapt.rank and base:
        about |= base_on_card(base.path)
    rows = read_metrics(metrics_path(path, checkpoint, step))
    about["losses"] = losses_of(rows, step)
    about["part_measured"] = part_of_losses(rows, step)
    about["training"] = training_of(path, rows, step)
    notes = notes_on_base(base, trust)
    return OpenedModel(network.architecture, texts, lambda: iter(state.items()), None, about, path, notes)


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
                return folder.notes_to_store(folder.notes_on_model(), path.name)
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


def part_of_losses(rows: Sequence[Mapping[str, Any]], step: int) -> int:
    """How many held-out tokens the held-out loss of `losses_of` is over, 0 where it is over all of them."""
    return part_measured(last_evaluation([row for row in rows if row["step"] <= step]))


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
