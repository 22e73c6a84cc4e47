"""What a conversion compares: long rows, later positions, padded batches; what differs is named."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import TINY, model_of_theirs
from theirs import as_ours

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.conversion.comparison import class_of_transformers, compare_implementations, definition
from pellucid.hub import FAMILIES
from pellucid.model import Transformer
from pellucid.verify import parity
from pellucid.verify.parity import ParityError, compare_logits, hidden_state_names, make_probe, our_logits
from planted import ClampedRows, EncodesPadding, FirstTurns, NoPadding
from some_cases import one_in

CONTEXT = 80
PRODUCTS = "int8 and int4 products"
#: the names of transformers for the length of the context
NAMES = ("n_positions", "max_position_embeddings", "seq_length", "max_seq_len")


@dataclass(frozen=True)
class Theirs:
    """A model of transformers in a folder, and ours of the same weights."""

    name: str
    folder: Path
    network: Transformer

    def parity(self) -> parity.Parity:
        probe = make_probe(self.network.architecture, None)
        theirs = class_of_transformers(self.folder, FAMILIES[self.name].model_class, probe)
        return compare_implementations(self.network, theirs, probe)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tiny model of a family, whose context is longer than a text of the probe."""

    def make(name: str, **options: Any) -> Theirs:
        kind, common, variants = TINY[name]
        longer = {key: CONTEXT + (value - 9) if key in NAMES else value for key, value in common.items()}
        monkeypatch.setitem(TINY, name, (kind, longer | options, variants))
        model, config = model_of_theirs(name, next(iter(variants)))
        model.save_pretrained(tmp_path)
        return Theirs(name, tmp_path, as_ours(model, config)[0])

    return make


WINDOWS = {
    "mistral": {"sliding_window": 60},
    "gemma3_text": {"sliding_window": 60},
}


@pytest.mark.parametrize("name", one_in(2, TINY))
def test_every_family_holds_on_all_of_the_probe(name: str, theirs):
    made = theirs(name, **WINDOWS.get(name, {}))
    found = made.parity()
    assert found.holds, str(found)
    assert found.n_tokens > CONTEXT
    # BART, mBART and Marian of transformers take no positions of the target
    assert len(found.uncovered) == (3 if name in ("bart", "mbart", "marian") else 1)
    assert found.uncovered[0] == PRODUCTS
    assert found.require() is found


@pytest.mark.parametrize("name", one_in(18, TINY))
def test_the_first_tensor_is_named(name: str, theirs):
    """A weight of each block in turn is changed: what transformers shows behind it is the first that differs."""
    made = theirs(name)
    state_names = hidden_state_names(made.network.architecture)
    for layer, block in enumerate(made.network.blocks):
        # of a mixture every expert is changed, since there may be one that no position uses
        changed = block.mlp.experts if made.network.architecture.mlp.experts else [block.mlp]
        with torch.no_grad():
            for mlp in changed:
                mlp.down.weight[0] += 0.5
        found = made.parity()
        behind = state_names[state_names.index(f"blocks.{layer}.resid_pre") + 1]
        assert not found.holds
        assert found.first == behind
        with pytest.raises(ParityError, match=f"the first tensor that differs.* is {behind}; nothing was written"):
            found.require()
        with torch.no_grad():
            for mlp in changed:
                mlp.down.weight[0] -= 0.5


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_positions_that_are_clamped_are_found(name: str, theirs):
    made = theirs(name)
    made.network.embed.position.__class__ = ClampedRows
    found = made.parity()
    assert found.worst[1] in (f"a row of {CONTEXT} tokens", f"48 tokens at positions up to {CONTEXT - 1}")
    assert found.first == "blocks.0.resid_pre"


def test_a_window_read_as_another_is_found(theirs):
    """By the mask alone, which is the definition's or not, and by the logits where all of ours has another window."""
    made = theirs("mistral", sliding_window=60)
    made.network.blocks[1].attn.mask.window = 61
    with pytest.raises(ParityError, match=r"blocks.1.attn.scores differs from the reference"):
        made.parity()
    network = make_network(replace_window(made.network.architecture, 61))
    network.load_state_dict(made.network.state_dict())
    found = Theirs("mistral", made.folder, network).parity()
    assert (found.worst[1], found.first) == (f"a row of {CONTEXT} tokens", "blocks.1.resid_pre")


def replace_window(a: Architecture, window: int) -> Architecture:
    return a.with_fields({"attention.windows": (window,)})


@pytest.mark.parametrize(
    ("name", "plant", "first"),
    [
        ("gpt2", lambda network: network.blocks[1].attn.mask, "blocks.2.resid_pre"),
        ("t5", lambda network: network.encoder.blocks[0].attn.mask, "encoder.blocks.1.resid_pre"),
    ],
)
def test_padding_that_is_read_is_found(name: str, plant, first: str, theirs):
    made = theirs(name)
    plant(made.network).__class__ = NoPadding
    found = made.parity()
    assert found.worst[1].startswith("a batch padded on the ")
    assert found.first == first


def test_positions_of_another_row_are_found(theirs):
    made = theirs("llama")
    made.network.rotary_table.__class__ = FirstTurns
    found = made.parity()
    assert (found.worst[1], found.first) == ("a batch padded on the left", "blocks.1.resid_pre")


def test_an_encoder_that_reads_padding_is_found(theirs):
    made = theirs("bart")
    made.network.__class__ = EncodesPadding
    found = made.parity()
    assert (found.worst[1], found.first) == ("a batch padded on the right", "encoder.blocks.1.resid_pre")


def test_parts_that_are_not_compared_are_listed(monkeypatch: pytest.MonkeyPatch, theirs):
    monkeypatch.setattr("pellucid.verify.coverage.MAX_ROW_TOKENS", 60)
    found = theirs("gemma3_text", sliding_window=70).parity()
    assert found.uncovered == (
        PRODUCTS,
        "more than 60 tokens in a row",
        "attention across windows of 70 tokens, but for our masks",
    )
    assert str(found).endswith(f"; not compared: {'; '.join(found.uncovered)}")


def test_beside_the_definition_every_tensor_is_named():
    """Where transformers is not installed: the engine on what was written, NumPy on what should have been."""
    a = Architecture(n_vocab=13, n_ctx=70, d_model=8, n_layers=2)
    probe = make_probe(a, None)

    expected = definition(make_network(a, dtype=torch.float64), probe)
    assert compare_implementations(make_network(a), expected, probe).holds
    for name, first in {"blocks.1.attn.key.weight": "blocks.1.attn.k", "embed.position.weight": "pos_embed"}.items():
        wrong = make_network(a)
        with torch.no_grad():
            wrong.get_parameter(name)[..., :1] += 0.1
        found = compare_implementations(wrong, expected, probe)
        assert not found.holds
        assert found.first == first


def test_padding_itself_is_not_compared():
    a = Architecture(n_vocab=13, n_ctx=20, d_model=8, n_layers=1)
    probe = make_probe(a, None)
    ours = our_logits(make_network(a), probe)
    theirs = [logits.clone() for logits in ours]
    batch = next(n for n, case in enumerate(probe.cases) if case.name == "a batch padded on the right")
    theirs[batch][0, -1] = torch.nan
    assert compare_logits(ours, theirs, "another", probe).largest == 0
    theirs[batch][1, -1] += 1
    found = compare_logits(ours, theirs, "another", probe)
    assert found.worst == (batch, "a batch padded on the right")
    assert not found.holds
    none = compare_logits(ours, [*theirs[:batch], *[None] * (len(theirs) - batch)], "another", probe)
    assert none.holds
    assert none.uncovered == (PRODUCTS, *(f"{c.name} (the other takes no such input)" for c in probe.cases[batch:]))
    assert replace(none, excess=1.1).holds is False
