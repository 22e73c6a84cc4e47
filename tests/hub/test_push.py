"""What is written goes to the hub where it is asked for, and nowhere else. The client is a stand-in."""

import huggingface_hub
import pytest
import torch

from drawing import make_network
from pellucid.cli import main
from pellucid.language_model import LanguageModel
from pellucid.presets import preset
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

SIZES = {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 8, "mlp.activation": "gelu_tanh"}


class Client:
    """What was asked of it."""

    asked: list[tuple[str, dict]] = []  # noqa: RUF012 (emptied by the fixture)

    def create_repo(self, repo, **options):
        self.asked.append(("create", {"repo": repo, **options}))
        return f"https://hub.example/{repo}"

    def upload_folder(self, **options):
        self.asked.append(("folder", options | {"files": sorted(p.name for p in options["folder_path"].iterdir())}))

    def upload_file(self, **options):
        self.asked.append(("file", options))


@pytest.fixture
def own(tmp_path, shakespeare, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Client)
    Client.asked.clear()
    tokenizer = learn_tokenizer("bpe", [shakespeare[:5000]], 280)
    a = preset("gpt2", tokenizer.n_vocab).with_fields(SIZES)
    LanguageModel(make_network(a, 0, torch.float32), tokenizer, {}).save(tmp_path / "own")
    return tmp_path


def test_a_folder_with_everything_that_goes_with_it(own, capsys):
    given = ["convert", str(own / "own"), str(own / "out"), "--push", "somebody/model", "--licence", "cc0-1.0"]
    assert main(given) == 0
    assert "pushed to https://hub.example/somebody/model" in capsys.readouterr().out
    (created, create), (kind, uploaded) = Client.asked
    assert (created, create) == ("create", {"repo": "somebody/model", "private": True, "exist_ok": True})
    assert (kind, uploaded["repo_id"]) == ("folder", "somebody/model")
    assert uploaded["files"] == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "license: cc0-1.0" in (own / "out/README.md").read_text()


def test_a_file(own):
    assert main(["convert", str(own / "own"), str(own / "out.gguf"), "--push", "somebody/model"]) == 0
    assert Client.asked[1] == (
        "file",
        {"repo_id": "somebody/model", "path_or_fileobj": own / "out.gguf", "path_in_repo": "out.gguf"},
    )


def test_nothing_is_sent_unless_asked_or_where_the_conversion_fails(own):
    assert main(["convert", str(own / "own"), str(own / "out")]) == 0
    assert main(["convert", str(own / "own"), str(own / "out"), "--push", "somebody/model"]) == 2
    assert Client.asked == []


def test_a_refusal_is_one_line_and_what_was_written_stays(own, capsys, monkeypatch):
    def refuse(self, repo, **options):
        raise OSError("the hub is not there\nat all")

    monkeypatch.setattr(Client, "create_repo", refuse)
    assert main(["convert", str(own / "own"), str(own / "out"), "--push", "somebody/model"]) == 2
    said = capsys.readouterr().err
    assert "was written, but could not be uploaded to the hub as somebody/model: the hub is not there" in said
    assert len(said.splitlines()) == 1
    assert (own / "out/model.safetensors").exists()
