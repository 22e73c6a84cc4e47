"""The commands of features, from a small run to a graph of one of its predictions."""

import json
import shutil

import pytest

import pellucid
from pellucid.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory, shakespeare):
    folder = tmp_path_factory.mktemp("features_command")
    (folder / "text.txt").write_text(shakespeare[:30_000])
    fields = {"n_layers": 2, "d_model": 16, "n_heads": 2, "n_ctx": 32, "batch": 4, "device": "cpu", "vocabulary": 300}
    run = pellucid.train(folder / "text.txt", out=folder / "run", steps=10, fields=fields, show=False).path
    assert main(["features", str(run), "--steps", "4", "--n-features", "48", "--active", "4", "--quiet"]) == 0
    return run


def printed(capsys, *arguments):
    capsys.readouterr()
    assert main(["features", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_from_a_run_to_a_graph(run, capsys):
    rows = json.loads(printed(capsys, "active", run / "features", "First Citizen", "--json"))
    features = pellucid.load_features(run / "features")
    assert rows == [row._asdict() for row in features.active("First Citizen").rows]
    name = f"{rows[0]['layer']}.{rows[0]['feature']}"
    card = json.loads(printed(capsys, "card", run / "features", name, "--tokens", "1000", "--json"))
    assert card["feature"] == rows[0]["feature"]
    assert card["passages"][0]["place"]["file"].endswith("text.txt")
    assert "times" not in printed(capsys, "card", run / "features", name, "--tokens", "1000")
    assert "nodes" in printed(capsys, "graph", run / "features", "First Citizen")
    whole = json.loads(printed(capsys, "graph", run / "features", "First Citizen", "--all-nodes", "--json"))
    assert whole == json.loads(json.dumps(features.graph("First Citizen").to_dict()))
    assert "higher" not in printed(capsys, "active", run / "features", "First", "--more-than", "Citizen")


def test_the_run_of_the_model_stands_for_its_features(run, capsys, tmp_path):
    assert printed(capsys, "active", run, "First") == printed(capsys, "active", run / "features", "First")
    shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("features"))
    assert main(["features", "active", str(tmp_path / "bare"), "First"]) == 2
    assert f"has no features yet: learn them with pellucid features train {tmp_path}" in capsys.readouterr().err


def test_other_commands_say_what_reads_features(run, capsys):
    for command, *arguments in (["generate", "text"], ["inspect", "text"], ["verify"]):
        assert main([command, str(run / "features"), *arguments]) == 2
        assert "look at them with pellucid features active, card or graph" in capsys.readouterr().err
    assert main(["sources", "find", str(run / "features"), "text"]) == 2
    assert "give the run of the model itself" in capsys.readouterr().err
    (summary,) = pellucid.list_runs(run)
    assert (summary.kind, summary.status) == ("features", "finished")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["card", "features", "638"], "'638' is no feature: expected LAYER.NUMBER, such as 0.638"),
        (["card", "features", "0.99"], "there is no feature 99: there are 48, from 0 on"),
        (["card", "features", "7.1"], "there is no dictionary of layer 7"),
        (["train", "features"], "is a run of kind features"),
    ],
)
def test_what_is_wrong_is_said(arguments, message, run, capsys):
    name, folder, *rest = arguments
    assert main(["features", name, str(run / folder), *rest]) == 2
    assert message in capsys.readouterr().err


def test_a_name_that_runs_list_shows_is_answered_with_its_path(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "runs" / "mine")
    assert main(["generate", "mine", "text"]) == 2
    assert "there is no mine here: did you mean runs/mine?" in capsys.readouterr().err
    assert main(["runs", "compare", "mine", "runs/mine"]) == 2
    assert "mine does not exist: did you mean runs/mine?" in capsys.readouterr().err
    assert main(["sources", "find", "runs/mine", "texts/none.txt"]) == 2
    assert "there is no file texts/none.txt: give one that exists, or a text" in capsys.readouterr().err


def test_a_command_with_a_typing_error_is_no_model(capsys):
    assert main(["features", "activ", "runs/mine", "text"]) == 2
    assert "did you mean pellucid features active?" in capsys.readouterr().err


def test_train_resumes_a_run_of_features_as_the_line_of_a_stopped_one_says(run, capsys, tmp_path):
    shutil.copytree(run / "features", tmp_path / "features")
    (tmp_path / "features" / "features.json").unlink()
    assert main(["train", "--resume", "--out", str(tmp_path / "features"), "--steps", "6", "--quiet"]) == 0
    assert pellucid.load_features(tmp_path / "features").figures["n_tokens"] > 0
