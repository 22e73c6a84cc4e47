"""Law: where processes divide the weights, a run that starts from given weights takes the same ones as in one process,
bit for bit, and no process makes the network they belong to or holds more of them than its parts and one tensor.
"""

import itertools
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds import write_conversations
from tiny import FIELDS, Heard, assert_same_tensors, write_text
from together import laid_out, together, train
from torch.distributed.tensor import DTensor

import pellucid
from pellucid import training_run
from pellucid.model import Transformer
from pellucid.model.lora import MergedWeights
from pellucid.model.weights import StoredWeights, state_of
from pellucid.runs.checkpoint import load_checkpoint
from pellucid.starting_model import FileWeights
from pellucid.training.load import read_recipe
from pellucid.training.trainable import TransformerTrainable

#: sizes that two processes divide
SIZES = {"tokenizer": "bpe", "vocabulary": 260, "n_heads": 4, "steps": 1, "evaluate_every": 1, "sample_every": 0}
#: what a run that starts from a model may choose
NAMES = ("dropout", "batch", "accumulate", "steps", "evaluate_tokens", "precision", "compile", "attention", "device")
GIVEN = {name: FIELDS[name] for name in NAMES} | {"batch": 4, "steps": 1, "sample_every": 0, "dropout": 0.0}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def write_run(text: Path, folder: Path, preset: str = "small", **fields: Any) -> Path:
    return train(text, folder / "run", options={"preset": preset}, **SIZES, **fields)


def write_ours(text: Path, folder: Path) -> Path:
    return pellucid.convert(write_run(text, folder), folder / "ours", to="pellucid").folder


def write_theirs(text: Path, folder: Path, preset: str = "llama-mini", family: str = "llama") -> Path:
    """A folder of transformers with several files of weights; query, key and value of GPT-2 are one tensor."""
    run = write_run(text, folder, preset, ngrams=(), ngram_rows=16_384)
    out = pellucid.convert(run, folder / "theirs", family=family, shard=12_000, compare=False).folder
    assert len(list(out.glob("*.safetensors"))) > 2
    return out


def write_gpt2(text: Path, folder: Path) -> Path:
    return write_theirs(text, folder, "gpt2", "gpt2")


def write_adapters(text: Path, folder: Path) -> Path:
    """A run of adapters, which change the weights of another run."""
    base, out = write_run(text, folder, unembed="untied"), folder / "adapters"
    pellucid.train(text, out=out, from_model=base, fields={**GIVEN, "steps": 4, "adapt.rank": 2})
    return out


def write_new_rows(text: Path, folder: Path) -> Path:
    """The same with rows for tokens that are new to the vocabulary, those of the template of conversations."""
    base, out = write_run(text, folder, n_ctx=160), folder / "adapters"
    fields = {**GIVEN, "steps": 4, "adapt.rank": 2}
    pellucid.train(write_conversations(folder), out=out, from_model=base, fields=fields)
    assert read_recipe(out).record.new_ids == (260, 261)
    return out


SOURCES = {"several files": write_theirs, "run": write_run, "our layout": write_ours, "joined tensors": write_gpt2}
SOURCES |= {"adapters": write_adapters, "adapters and new rows": write_new_rows}
LAYOUTS = [(1, 2, 1), (1, 1, 2)]


@pytest.fixture(scope="module")
def sources(text, tmp_path_factory):
    """The folder of each source, written when it is asked for."""
    written: dict[str, Path] = {}

    def source(name: str) -> Path:
        if name not in written:
            written[name] = SOURCES[name](text, tmp_path_factory.mktemp("source"))
        return written[name]

    return source


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def watch_lookups(monkeypatch, kind: type[StoredWeights]) -> None:
    """Fail where a given weight is read while another one is still held."""
    alive: list[weakref.ref[torch.Tensor]] = []
    real = kind.__getitem__

    def read(self: StoredWeights, name: str) -> torch.Tensor:
        assert not any(ref() is not None for ref in alive), f"another weight is in memory when {name} is read"
        alive.append(weakref.ref(values := real(self, name)))
        return values

    monkeypatch.setattr(kind, "__getitem__", read)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "layout"), [*itertools.product(SOURCES, LAYOUTS)])
def test_given_weights_are_read_in_parts(text, tmp_path, sources, source, layout, monkeypatch):
    """The network has no memory before it is divided, and then each process has about half of the given weights."""
    given = sources(source)
    plain = pellucid.train(text, out=tmp_path / "one", from_model=given, fields=GIVEN)
    expected = state_of(pellucid.load(given, device="cpu").network)
    one, two = Transformer.__init__, TransformerTrainable.begin
    has_begun: list[int] = []

    def make(self: Transformer, *arguments: Any) -> None:
        assert torch.get_default_device().type == "meta", "a process makes the whole network"
        one(self, *arguments)

    def begin(self: TransformerTrainable) -> None:
        assert all(p.is_meta for p in self.network.parameters())
        two(self)
        parameters = dict(self.network.named_parameters())
        own = sum(self.processes.local_part(p).numel() for p in parameters.values())
        assert own <= 0.55 * sum(p.numel() for p in parameters.values())
        weights = {name: whole(p.detach()) for name, p in parameters.items()}
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights)
        has_begun.append(len(weights))

    monkeypatch.setattr(Transformer, "__init__", make)
    monkeypatch.setattr(TransformerTrainable, "begin", begin)
    watch_lookups(monkeypatch, FileWeights)
    watch_lookups(monkeypatch, MergedWeights)

    def do(rank: int) -> None:
        pellucid.train(text, out=tmp_path / "two", from_model=given, fields={**GIVEN, **laid_out(layout)})
        assert has_begun

    together(2, do)
    for name in ("one", "two"):
        assert_same_tensors(dict(load_checkpoint(tmp_path / name, 0)[0].weights), expected)
    assert plain.recipe.record.base == read_recipe(tmp_path / "two").record.base


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_that_cannot_be_read_by_parts_are_read_whole_and_that_is_said(text, tmp_path, layout, monkeypatch):
    """An adapter of a Hugging Face family is added as its base is read; the weights are those of one process."""
    base = write_theirs(text, tmp_path)
    pellucid.train(text, out=tmp_path / "adapters", from_model=base, fields={**GIVEN, "adapt.rank": 2})
    adapted = tmp_path / "adapters" / "adapter"
    heard = Heard()
    monkeypatch.setattr(training_run, "make_reporter", lambda *given: heard)
    said = "every process reads all given weights before it keeps its parts: an adapter is added"

    def do(rank: int, n: int = 2) -> None:
        fields = {**GIVEN, **(laid_out(layout) if n == 2 else {})}
        pellucid.train(text, out=tmp_path / str(n), from_model=adapted, fields=fields, show=True)
        assert rank or bool(re.search(said, heard.text)) == (n == 2)

    do(0, n=1)
    heard.lines.clear()
    together(2, do)
    weights = state_of(pellucid.load(adapted, device="cpu").network)
    for name in ("1", "2"):
        assert_same_tensors(dict(load_checkpoint(tmp_path / name, 0)[0].weights), weights)
