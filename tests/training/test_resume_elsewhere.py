"""A run is resumed in another folder than it was started in: its relative inputs are those of the first one."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from kinds import KINDS, OBJECTIVES, TRANSFORMER
from tiny import SHAKESPEARE, assert_same_run, write_text

import pellucid
from pellucid import cli
from pellucid.report.contents import Contents
from pellucid.runs.options import RecipeError
from pellucid.text.read.find import ReadOptions, find_files
from pellucid.training.load import read_recipe


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, in which a run is started; `elsewhere` lies beside it and holds other files of its names."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def elsewhere(here, tmp_path) -> Path:
    return tmp_path / "elsewhere"


def data_of(run: Path) -> dict:
    return json.loads((run / "data.json").read_bytes())


@pytest.mark.parametrize(
    "kind", [*KINDS, *(kind for kind in OBJECTIVES if kind.name in ("chat", "pairs"))], ids=lambda kind: kind.name
)
def test_a_run_of_any_kind_reads_the_inputs_of_where_it_was_started(here, elsewhere, monkeypatch, kind):
    source = Path(kind.write_input(here).name)
    (elsewhere / source).write_text("other")
    whole = kind.start(source, here / "whole", steps=6).path
    run = kind.start(source, Path("run"), steps=4).path
    before = read_recipe_json(here / run)
    monkeypatch.chdir(elsewhere)
    assert kind.resume(here / run, steps=6).step == 6
    after = read_recipe_json(here / run)
    assert after["options"]["inputs"] == before["options"]["inputs"] == [str(source)]
    assert after["record"]["started_in"] == str(here)
    assert data_of(here / run) == data_of(whole)


def read_recipe_json(run: Path) -> dict:
    return json.loads((run / "recipe.json").read_bytes())


@pytest.mark.parametrize(
    "inputs",
    [["texts"], ["texts/*.txt"], [".", "texts/a.txt"], ["../all [2026]/texts", "b.txt"], ["texts/sub/..", "ABSOLUTE"]],
    ids=" ".join,
)
def test_documents_keep_their_names_wherever_the_run_is_resumed(here, elsewhere, monkeypatch, inputs):
    """Through a folder whose name looks like a pattern, and with held-out files too."""
    folder = here / "all [2026]"
    (folder / "texts" / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for k, name in enumerate(("b.txt", "texts/a.txt", "texts/sub/c.txt", "held.txt")):
        Path(name).write_text(SHAKESPEARE.read_text()[3000 * k : 3000 * k + 3000])
    inputs = [str(folder / "b.txt") if path == "ABSOLUTE" else path for path in inputs]
    found = find_files([Path(path) for path in inputs], [])
    fields = TRANSFORMER | {"text.held_out_files": ("held.txt",)}
    run = pellucid.train(*inputs, out=here / "run", steps=4, fields=fields).path
    sources = data_of(run)["sources"]
    monkeypatch.chdir(elsewhere)
    again = find_files([Path(path) for path in inputs], [], ReadOptions(folder=str(folder)))
    assert {name: (folder / file.path).resolve() for name, file in found.items()} == {
        name: file.path.resolve() for name, file in again.items()
    }
    assert [file.explicit for file in found.values()] == [file.explicit for file in again.values()]
    assert pellucid.train(out=run, resume=True, steps=5).step == 5
    assert data_of(run)["sources"] == sources


def test_the_command_says_where_relative_inputs_are_looked_up(here, elsewhere, monkeypatch, capsys):
    write_text(here)
    options = [f"--set={name}={value}" for name, value in TRANSFORMER.items() if name != "ngrams"]
    command = ["train", "text.txt", "--set=ngrams=2", *options]
    assert cli.main([*command, "--steps", "4", "--out", "run"]) == 0
    assert "looked up" not in capsys.readouterr().out
    assert cli.main(["train", "--resume", "--out", "run", "--steps", "5"]) == 0
    assert "looked up" not in capsys.readouterr().out
    monkeypatch.chdir(elsewhere)
    assert cli.main(["train", "--resume", "--out", "../here/run", "--steps", "6"]) == 0
    said = f"relative inputs are looked up in {here}, where the run was started or last given inputs"
    assert said in " ".join(capsys.readouterr().out.split())
    (here / "text.txt").write_text("other")
    assert cli.main(["train", "--resume", "--out", "../here/run"]) == 2
    assert f"put it back in {here}, where the run was started" in capsys.readouterr().err
    (here / "text.txt").unlink()
    assert cli.main(["train", "--resume", "--out", "../here/run"]) == 2
    assert capsys.readouterr().err == (
        f"pellucid: {here}/text.txt: there is no such file or folder; {said}. Put it back, or name all inputs where "
        "they are now: pellucid train INPUTS --resume --out ../here/run\n"
    )


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=lambda kind: kind.name)
def test_inputs_of_a_run_that_has_moved_are_named_anew(here, elsewhere, monkeypatch, kind):
    """As on another machine; from then on relative inputs are those of the folder where they were named."""
    source = Path(kind.write_input(here).name)
    (here / "held.txt").write_text(SHAKESPEARE.read_text()[9000:10000])
    run = kind.train(source, out=here / "run", steps=4, held_out="held.txt", fields=kind.fields).path
    run = Path(shutil.move(run, elsewhere / "run"))
    shutil.move(here / source, elsewhere / source)
    monkeypatch.chdir(elsewhere)
    expected = "pellucid train INPUTS --held-out FILES --resume --out"
    command = f"{here / source}: there is no such file .* {expected} {run}$"
    with pytest.raises(RecipeError, match=command):
        kind.resume(run, steps=5)
    assert kind.train(source, out=run, resume=True, steps=5).step == 5  # what is held out is still in `here`
    monkeypatch.chdir(here)
    assert kind.resume(run, steps=6).step == 6
    Path("moved").mkdir()
    shutil.move("held.txt", "moved")
    with pytest.raises(RecipeError, match=re.escape(f"{here / 'held.txt'}: there is no such file")):
        kind.resume(run, steps=7)
    assert kind.resume(run, steps=7, held_out="moved/held.txt").step == 7
    monkeypatch.chdir(elsewhere)
    assert kind.resume(run, steps=8).step == 8


def test_a_predictor_with_a_held_out_share_takes_no_held_out_files(here):
    kind = KINDS[2]
    run = kind.start(kind.write_input(here), here / "run", steps=4).path
    with pytest.raises(RecipeError, match="cannot be resumed with other options"):
        kind.resume(run, steps=5, held_out=here / "text.txt")


def test_a_base_model_and_a_tokenizer_at_relative_paths(here, elsewhere, monkeypatch):
    text = Path(write_text(here).name)
    base = pellucid.train(text, out="base", steps=4, fields=TRANSFORMER).path
    adapted = pellucid.train(
        text, out=here / "adapted", from_model=base, steps=4, fields={"rank": 2, "device": "cpu", "compile": "no"}
    ).path
    tokenizer = {"tokenizer": "base/tokenizer.json"}
    custom = pellucid.train(text, out=here / "custom", steps=4, fields=TRANSFORMER | tokenizer).path
    assert read_recipe(custom).text.tokenizer == "base/tokenizer.json"
    monkeypatch.chdir(elsewhere)
    for run in (adapted, custom):
        assert pellucid.train(out=run, resume=True, steps=5).step == 5


def test_standard_input_is_no_path(here, elsewhere, monkeypatch):
    with write_text(here).open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        run = pellucid.train("-", out=here / "run", steps=4, fields=TRANSFORMER).path
        monkeypatch.chdir(elsewhere)
        assert pellucid.train(out=run, resume=True, steps=5).step == 5


def test_the_recipe_of_a_run_begins_another_one_elsewhere(here, elsewhere, monkeypatch):
    """In Python, and by the command of the report."""
    (here / "held.txt").write_text(SHAKESPEARE.read_text()[9000:10000])
    text = write_text(here)
    run = pellucid.train("text.txt", out=here / "run", steps=4, fields=TRANSFORMER, held_out="held.txt").path
    recipe = read_recipe(run)
    assert f"train text.txt --recipe {run}" in Contents.of(run).command
    monkeypatch.chdir(elsewhere)
    again = pellucid.train(recipe=recipe, out=elsewhere / "run", steps=4)
    assert_same_run(again.path, run)
    assert again.recipe.record.started_in == str(elsewhere)
    assert f"train {text} --recipe {run}" in Contents.of(run).command
