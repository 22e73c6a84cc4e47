"""What is downloaded of a repository: its weights once, and pickles where there is nothing else and they are trusted.

The hub is a folder here: its client's two functions that Pellucid calls take files from it by their patterns.
"""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from their_folders import write_theirs

import pellucid
from pellucid.cli import main
from pellucid.conversion import convert
from pellucid.model_names import FolderError

NAME = "someone/model-tiny"


class FakedHub:
    """A repository in a folder, the folder of what was downloaded of it, and the names of these files in order."""

    def __init__(self, folder: Path):
        self.repository, self.snapshot = folder / "repository", folder / "snapshot"
        self.downloaded: list[str] = []
        self.asked: list[str] = []

    def download(self, name, *, revision=None, allow_patterns, ignore_patterns):
        files = sorted(p.relative_to(self.repository).as_posix() for p in self.repository.rglob("*") if p.is_file())
        for file in filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            if not (self.snapshot / file).exists():
                (self.snapshot / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.repository / file, self.snapshot / file)
                self.downloaded.append(file)
        return str(self.snapshot)

    def has(self, name, file, *, revision=None):
        self.asked.append(file)
        return (self.repository / file).exists()


@pytest.fixture
def hub(tmp_path, tokenizer, monkeypatch):
    """The hub with one repository: a GPT-NeoX in one file of safetensors."""
    hub = FakedHub(tmp_path)
    write_theirs(hub.repository, "gpt_neox", tokenizer)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    monkeypatch.setattr(huggingface_hub, "file_exists", hub.has)
    monkeypatch.chdir(tmp_path)
    return hub


def pickle_weights(hub, n_files=1):
    """The repository with pickles in the place of safetensors; returns the tensors."""
    tensors = load_file(hub.repository / "model.safetensors")
    (hub.repository / "model.safetensors").unlink()
    if n_files == 1:
        torch.save(tensors, hub.repository / "pytorch_model.bin")
        return tensors
    shard_of = {name: f"pytorch_model-{i % n_files + 1:05d}-of-{n_files:05d}.bin" for i, name in enumerate(tensors)}
    for shard in set(shard_of.values()):
        own = {name: tensor for name, tensor in tensors.items() if shard_of[name] == shard}
        torch.save(own, hub.repository / shard)
    index = {"metadata": {}, "weight_map": shard_of}
    (hub.repository / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return tensors


def weights_of(model):
    return model.network.embed.token.weight


@pytest.mark.parametrize("n_files", [1, 2])
def test_pickles_alone_are_read_with_trust_and_named_without(hub, n_files):
    tensors = pickle_weights(hub, n_files)
    with pytest.raises(
        FolderError, match=r"keeps its weights as a pickle \(pytorch_model\.bin.*pass --trust pickles \(trust="
    ):
        pellucid.load(NAME, device="cpu")
    assert not any(file.endswith(".bin") for file in hub.downloaded)
    model = pellucid.load(NAME, device="cpu", trust="pickles")
    assert torch.equal(weights_of(model), tensors["gpt_neox.embed_in.weight"])
    assert sum(file.endswith(".bin") for file in hub.downloaded) == n_files


def test_the_command_downloads_pickles_with_trust(hub, capfd):
    pickle_weights(hub)
    assert main(["convert", NAME, "converted", "--no-compare"]) == 2
    assert "--trust" in capfd.readouterr().err
    assert main(["convert", NAME, "converted", "--no-compare", "--trust", "pickles"]) == 0
    assert torch.equal(weights_of(pellucid.load("converted")), weights_of(pellucid.load(NAME, trust=True)))


@pytest.mark.parametrize("trust", [False, True])
def test_weights_are_downloaded_once(hub, trust):
    """Not under a second name, not in subfolders, and not as pickles beside safetensors."""
    weights = hub.repository / "model.safetensors"
    (hub.repository / "original").mkdir()
    for copy in ("consolidated.safetensors", "consolidated-00001-of-00002.safetensors", "original/model.safetensors"):
        shutil.copyfile(weights, hub.repository / copy)
    (hub.repository / "pytorch_model.bin").write_bytes(b"a pickle")
    (hub.repository / "original" / "params.json").write_text("{}")
    pellucid.load(NAME, device="cpu", trust=trust)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(hub.downloaded) == names
    assert hub.asked == []


def test_without_an_answer_the_folder_has_no_weights(hub, monkeypatch):
    pickle_weights(hub)

    def offline(*given, **options):
        raise OfflineModeIsEnabled("no network here")

    monkeypatch.setattr(huggingface_hub, "file_exists", offline)
    with pytest.raises(FolderError, match="has no weights: expected model"):
        pellucid.load(NAME, device="cpu")


# Checkpoints and licences of what has none ----------------------------------------------------------


def test_only_runs_have_checkpoints(hub, tmp_path):
    for asked in (NAME, hub.repository):
        for open_ in (pellucid.load, lambda model, **given: convert(model, "new", **given)):
            with pytest.raises(FolderError, match=r"checkpoint 500 needs a run, but .* is not a run: leave"):
                open_(asked, checkpoint="500")
    assert hub.downloaded == []
    assert not (tmp_path / "new").exists()
    convert(hub.repository, "new", checkpoint="best", compare=False)


def test_adapters_have_no_card_to_name_a_licence_on(hub, tmp_path, capfd):
    with pytest.raises(FolderError, match=r"the licence mit is written on a model card, and adapters have none"):
        convert(hub.repository, "new", to="adapter", licence="mit")
    assert main(["convert", str(hub.repository), "new", "--to", "adapter", "--licence", "mit"]) == 2
    assert "the licence mit is written on a model card" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()
