"""What a run starts from: the weights of files are read one by one, and are those that `pellucid.load` opens."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from their_folders import KINDS, write_theirs

import pellucid
from pellucid.model.weights import WeightsError, WithNewRows
from pellucid.model_names import FolderError
from pellucid.starting_model import fingerprint, open_starting_model
from some_cases import one_in

pytestmark = pytest.mark.filterwarnings("ignore::pellucid.hub.folder.LoadWarning")


def assert_those_of_load(folder):
    """Names, shapes and numbers, bit for bit; whatever the order in which they are looked up."""
    model, start = pellucid.load(folder, device="cpu"), open_starting_model(folder)
    expected = dict(model.network.named_parameters())
    assert start.weights.keys() == expected.keys()
    for name in reversed(list(expected)):
        assert start.weights.shapes[name] == tuple(expected[name].shape)
        assert torch.equal(start.weights[name], expected[name]), name
    assert start.architecture == model.architecture
    assert start.base.sha256 == fingerprint({name: p.detach() for name, p in expected.items()})
    return start


@pytest.mark.parametrize("family", one_in(2, KINDS))
def test_weights_are_those_of_load(tmp_path, family, tokenizer):
    start = assert_those_of_load(write_theirs(tmp_path / "theirs", family, tokenizer))
    assert start.tokenizer.to_json() == tokenizer.to_json()
    assert not start.weights.why_whole


def test_what_load_refuses_is_refused(tmp_path, tokenizer):
    folder = write_theirs(tmp_path / "theirs", "llama", tokenizer)
    tensors = load_file(folder / "model.safetensors")
    for change, error, message in (
        ({"model.norm.weight": torch.full((32,), torch.nan)}, WeightsError, "32 numbers of final_norm.gain are NaN"),
        ({"model.norm.weight": torch.ones(33)}, ValueError, r"model.norm.weight has shape \[33\]"),
        ({"more": torch.ones(2)}, ValueError, "the tensor more is unknown"),
    ):
        save_file(tensors | change, folder / "model.safetensors", {"format": "pt"})
        for opens in (pellucid.load, open_starting_model):
            with pytest.raises(error, match=message):
                opens(folder)
    pellucid.convert(write_theirs(tmp_path / "again", "llama", tokenizer), tmp_path / "ours")
    own = load_file(tmp_path / "ours/model.safetensors")
    save_file(own | {"final_norm.gain": torch.ones(33)}, tmp_path / "ours/model.safetensors")
    for opens in (pellucid.load, open_starting_model):
        with pytest.raises(FolderError, match=r"final_norm.gain is torch.float32 \[33\]"):
            opens(tmp_path / "ours")


def test_new_rows_are_the_mean_of_those_before():
    table = torch.arange(12.0).view(4, 3)
    rows = WithNewRows({"embed.token.weight": table, "final_norm.gain": torch.ones(3)}, 6, [3, 4])
    mean = table[:3].mean(0)
    assert rows.shapes == {"embed.token.weight": (6, 3), "final_norm.gain": (3,)}
    assert torch.equal(rows["embed.token.weight"], torch.stack([*table[:3], mean, mean, mean]))
    assert torch.equal(rows["final_norm.gain"], torch.ones(3))
    assert torch.equal(table, torch.arange(12.0).view(4, 3))
