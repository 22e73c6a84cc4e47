"""A name on the hub has revisions: `load`, `convert` and the commands open the one that is named.

The download cache is made by hand, as huggingface_hub lays it out: `refs/NAME` holds the commit of a branch or a tag,
and `snapshots/COMMIT` its files, which are links into `blobs/`. Nothing is downloaded.
"""

import hashlib
import json
import os
import re
import shutil

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from their_folders import write_theirs

import pellucid
from pellucid.cli import main
from pellucid.conversion import convert
from pellucid.hub.open import download
from pellucid.language_model import LanguageModel
from pellucid.model_names import FolderError
from pellucid.training_run import train

NAME, STEPS = "someone/series-tiny", ["step1", "step1000"]
SERIES = {"main": 1000, "step1": 1, "step1000": 1000}


def keep_in_cache(cache, name, revision, folder):
    """The files of a folder as a revision of a repository in the download cache. Returns the commit."""
    repository = cache / f"models--{name.replace('/', '--')}"
    commit = hashlib.sha1(revision.encode()).hexdigest()
    for part in ("refs", "blobs", f"snapshots/{commit}"):
        (repository / part).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    for file in folder.iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        (repository / "snapshots" / commit / file.name).symlink_to(
            os.path.relpath(blob, repository / "snapshots" / commit)
        )
    return commit


@pytest.fixture
def cache(tmp_path, tokenizer, monkeypatch):
    """The download cache, with three revisions of a GPT-NeoX whose weights differ by the seed they are drawn from."""
    for revision, seed in SERIES.items():
        folder = write_theirs(tmp_path / "written" / revision, "gpt_neox", tokenizer, seed=seed)
        keep_in_cache(tmp_path / "cache", NAME, revision, folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def weights_of(model: LanguageModel) -> torch.Tensor:
    return model.network.embed.token.weight


@pytest.mark.parametrize("revision", SERIES)
def test_the_revision_that_is_named_is_opened(revision, cache, tmp_path):
    model = pellucid.load(NAME, revision=revision, device="cpu")
    written = load_file(tmp_path / "written" / revision / "model.safetensors")
    assert torch.equal(weights_of(model), written["gpt_neox.embed_in.weight"])
    assert model.provenance["revision"] == revision


def test_a_commit_is_a_revision_and_main_needs_no_name(cache):
    by_name = pellucid.load(NAME, revision="step1", device="cpu")
    commit = (cache / "models--someone--series-tiny" / "refs" / "step1").read_text()
    assert torch.equal(weights_of(pellucid.load(NAME, revision=commit, device="cpu")), weights_of(by_name))
    unnamed = pellucid.load(NAME, device="cpu")
    assert torch.equal(weights_of(unnamed), weights_of(pellucid.load(NAME, revision="step1000", device="cpu")))
    assert not torch.equal(weights_of(unnamed), weights_of(by_name))
    assert "revision" not in unnamed.provenance


def test_a_revision_that_is_not_there_is_named(cache):
    with pytest.raises(
        FolderError, match=r"someone/series-tiny \(step7\) is not a folder here and could not be"
    ) as told:
        pellucid.load(NAME, revision="step7")
    assert "check both names" in str(told.value)


def test_the_name_of_the_revision_reaches_the_download(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **given: asked.append((name, given)) or "/x")
    download(NAME, "step512")
    download(NAME)
    assert [(name, given["revision"]) for name, given in asked] == [(NAME, "step512"), (NAME, None)]


@pytest.mark.parametrize("open_", [pellucid.load, lambda path, **given: convert(path, "new", **given)])
def test_a_path_of_this_machine_has_no_revisions(open_, cache, tmp_path):
    with pytest.raises(FolderError, match=r"revision step1 needs a name on the Hugging Face hub, but .* leave"):
        open_(tmp_path / "written" / "step1", revision="step1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(FolderError, match=r"a run has checkpoints: give the step as checkpoint"):
        open_(tmp_path / "run", revision="step1")
    with pytest.raises(FolderError, match="leave it out"):
        open_(tmp_path / "gone" / "away" / "from" / "here", revision="step1")
    assert not (tmp_path / "new").exists()


def test_an_adapter_names_the_revision_of_its_base(cache, tmp_path):
    """peft writes the revision of the base beside its name."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": NAME, "revision": "step1", "r": 1, "lora_alpha": 1}
    config |= {"target_modules": ["attention.dense"], "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.gpt_neox.layers.0.attention.dense"
    factors = {f"{module}.lora_A.weight": torch.ones(1, 32), f"{module}.lora_B.weight": torch.zeros(32, 1)}
    save_file(factors, adapter / "adapter_model.safetensors")
    base = pellucid.load(NAME, revision="step1", device="cpu")
    assert torch.equal(weights_of(pellucid.load(adapter, device="cpu")), weights_of(base))


# The commands ---------------------------------------------------------------------------------------


def test_generate_and_convert_open_the_revision(cache, tmp_path, capfd):
    texts = {}
    for revision in STEPS:
        given = ["generate", NAME, "To be", "--max-tokens", "12", "--temperature", "0", "--device", "cpu"]
        assert main([*given, "--revision", revision]) == 0
        texts[revision] = capfd.readouterr().out
        model = pellucid.load(NAME, revision=revision, device="cpu")
        assert texts[revision] == f"To be{model.generate('To be', max_tokens=12, temperature=0).text}\n"
    assert texts["step1"] != texts["step1000"]
    assert main(["convert", NAME, "converted", "--revision", "step1"]) == 0
    converted = pellucid.load("converted", device="cpu")
    assert torch.equal(weights_of(converted), weights_of(pellucid.load(NAME, revision="step1", device="cpu")))
    assert "series-tiny (step1)" in (tmp_path / "converted" / "README.md").read_text()


def test_every_command_that_opens_a_model_has_the_option(capfd):
    for command in ("generate", "chat", "score", "fill", "verify", "serve", "look", "inspect", "convert", "train"):
        assert main([command, "--help"]) == 0
        assert re.search(r"--revision NAME", capfd.readouterr().out), command


@pytest.mark.parametrize("command", ["generate", "verify", "look", "convert new", "serve"])
def test_a_command_refuses_the_revision_of_a_path(command, cache, tmp_path, capfd):
    name, *destination = command.split()
    assert main([name, str(tmp_path / "written" / "step1"), *destination, "--revision", "step1"]) == 2
    assert "revision step1 needs a name on the Hugging Face hub" in capfd.readouterr().err


def test_training_starts_from_a_revision_and_its_adapters_name_it(cache, tmp_path, shakespeare):
    """It is recorded: the base of the adapters is opened in that revision whenever they are, here and by peft."""
    (tmp_path / "text.txt").write_text(shakespeare[:4_000])
    given = ["train", "text.txt", "--from", NAME, "--lora", "1", "--steps", "1", "--set", "batch=2", "--device", "cpu"]
    assert main([*given, "--revision", "step1", "--out", "adapted"]) == 0
    run = tmp_path / "adapted"
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["record"]["base"]["revision"] == "step1"
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (NAME, "step1")
    base = pellucid.load(NAME, revision="step1", device="cpu")
    for opened in (run, run / "adapter"):
        assert torch.equal(weights_of(pellucid.load(opened, device="cpu")), weights_of(base))
        card = (convert(opened, tmp_path / f"merged {opened.name}", to="pellucid").folder / "README.md").read_text()
        assert f"\nbase_model: {NAME}\n" in card


def test_a_revision_of_nothing_and_of_a_path_is_refused(cache, tmp_path, shakespeare, capfd):
    (tmp_path / "text.txt").write_text(shakespeare[:4_000])
    assert main(["train", "text.txt", "--revision", "step1", "--out", "new"]) == 2
    assert "--revision step1 is of the model to start from: give --from" in capfd.readouterr().err
    path = str(tmp_path / "written" / "step1")
    assert main(["train", "text.txt", "--from", path, "--revision", "step1", "--steps", "1", "--out", "new"]) == 2
    assert "needs a name on the Hugging Face hub" in capfd.readouterr().err
    with pytest.raises(ValueError, match="is of the model to start from"):
        train("text.txt", revision="step1", steps=1)
    assert not (tmp_path / "new").exists()
