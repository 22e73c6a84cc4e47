"""What is held out: a share by the rule that the recipe names, or files of one's own; and that a run keeps to it."""

import json
from pathlib import Path

import pytest
from tiny import FIELDS, SHAKESPEARE, Heard, recipe_for, resume, rows, start_recipe, write_text

import pellucid
from pellucid import cli
from pellucid.predictors.recipe import make_predictor_recipe
from pellucid.runs.options import RecipeError
from pellucid.training.config import TextOptions
from pellucid.training.recipe import (
    check_changes,
    differences,
    make_recipe,
    make_recipe_on,
    overlay,
)
from pellucid.training.text_parts import add_held_out, held_out_fields

TINY = {name: value for name, value in FIELDS.items() if name != "steps"}


def train(*paths, out, **given):
    return pellucid.train(*paths, out=out, steps=given.pop("steps", 4), fields=TINY | given.pop("fields", {}), **given)


def data_of(run):
    return json.loads((run / "data.json").read_bytes())


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (0.2, {"text.held_out": 0.2}),
        ("0.2", {"text.held_out": 0.2}),
        (["0.2"], {"text.held_out": 0.2}),
        ((), {}),
        ("./0.2", {"text.held_out_files": ("./0.2",)}),
        (Path("0.2"), {"text.held_out_files": ("0.2",)}),
        ("valid.txt", {"text.held_out_files": ("valid.txt",)}),
        (["a, b.txt", Path("c")], {"text.held_out_files": ("a, b.txt", "c")}),
    ],
)
def test_a_number_is_a_share_and_anything_else_a_path(given, fields):
    assert held_out_fields(given) == fields


def test_what_is_held_out_is_said_once():
    with pytest.raises(RecipeError, match=r"a file called 0\.2 is \./0\.2"):
        held_out_fields(["0.2", "valid.txt"])
    for fields in ({"held_out": 0.1}, {"text.held_out_files": ["a.txt"]}):
        with pytest.raises(RecipeError, match="given twice"):
            add_held_out(fields, 0.2)
    for name, value in (("held_out", 0.3), ("split", "tail")):
        with pytest.raises(RecipeError, match=f"text.{name} = {value} and text.held_out_files"):
            recipe_for(Path("x"), held_out_files=["a.txt"], **{name: value})
    with pytest.raises(RecipeError, match=r"expected stratified, documents or tail; files stands for .* --held-out"):
        recipe_for(Path("x"), split="files")
    with pytest.raises(RecipeError, match=r"split = tail: expected files, as text\.held_out_files are given"):
        TextOptions(held_out_files=("a.txt",), split="tail").check()
    with pytest.raises(RecipeError, match="a share between 0 and 1"):
        recipe_for(Path("x"), held_out=0)


@pytest.mark.parametrize(
    "make", [recipe_for, lambda path, **fields: make_predictor_recipe((str(path),), "ngram", fields, {})]
)
def test_a_recipe_says_what_is_held_out_and_can_be_used_again(make, tmp_path):
    """One file, whatever characters are in its name, is one file."""
    recipe = make(Path("x"), held_out_files="a, [b].txt")
    t = recipe.text
    assert (t.held_out, t.held_out_files, t.split) == (0.0, ("a, [b].txt",), "files")
    assert type(recipe).from_dict(recipe.to_dict()) == recipe
    share = make(Path("x"), held_out=0.3).text
    assert (share.held_out, share.held_out_files, share.split) == (0.3, (), "stratified")


def test_the_recipe_of_a_run_is_one_for_another(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe_for(Path("x"), held_out_files=["a.txt", "b.txt"]).to_dict()))
    assert make_recipe(("y",), None, {}, path).text.held_out_files == ("a.txt", "b.txt")
    assert make_recipe(("y",), None, {"held_out_files": ["c.txt"]}, path).text.held_out_files == ("c.txt",)


def test_what_is_asked_for_takes_the_place_of_how_the_recipe_holds_out(tmp_path):
    """The fields of a run's recipe.json are all given, its share and its rule among them."""
    share, files = tmp_path / "share.json", tmp_path / "files.json"
    share.write_text(json.dumps(recipe_for(Path("x"), held_out=0.3, split="tail").to_dict()))
    files.write_text(json.dumps(recipe_for(Path("x"), held_out_files=["a.txt"]).to_dict()))
    for written in (share, files):
        for named in ("held_out_files", "text.held_out_files"):
            text = make_recipe(("y",), None, {named: ("b.txt",)}, written).text
            assert (text.held_out_files, text.held_out, text.split) == (("b.txt",), 0.0, "files")
        check_changes({"text.held_out_files": ("b.txt",)}, written)
        check_changes({"held_out": 0.2}, written)
    text = make_recipe(("y",), None, {"text.held_out": 0.2}, files).text
    assert (text.held_out_files, text.held_out, text.split) == ((), 0.2, "stratified")
    text = make_recipe(("y",), None, {"text.held_out": 0.2}, share).text
    assert (text.held_out_files, text.held_out, text.split) == ((), 0.2, "tail")
    other = recipe_for(Path("x"), held_out_files=["a.txt"], tokenizer="bpe")
    recipe = make_recipe_on(other.model, ("y",), {"text.held_out": 0.2}, other)
    assert (recipe.text.held_out_files, recipe.text.held_out) == ((), 0.2)
    with pytest.raises(RecipeError, match="are both given"):
        make_recipe(("y",), None, {"text.held_out": 0.2, "text.held_out_files": ("b.txt",)}, share)
    # the same words on the run that they have started
    for written, changes in ((share, {"text.held_out_files": ("b.txt",)}), (files, {"text.held_out": 0.2})):
        run = make_recipe(("y",), None, changes, written)
        assert not differences(run, overlay(run, None, changes, written))


def test_held_out_files_are_measured_on_alone(tmp_path):
    """The held-out loss is that of these bytes; they are read as the text is, hashed, and listed."""
    text, valid = write_text(tmp_path), tmp_path / "valid.jsonl"
    valid.write_text('{"text": "To be, or not to be: that is the question."}\n{"text": "Words, words, words."}\n')
    run = train(text, out=tmp_path / "run", held_out=valid)
    about = data_of(run.path)
    assert run.recipe.text.held_out_files == (str(valid),)
    assert (about["parts"]["train"]["bytes"], about["parts"]["held_out"]["bytes"]) == (4000, 62)
    assert about["parts"]["held_out"]["documents"] == 2
    assert about["split"] == {"held_out": 0.0, "seed": 0, "rule": "files"}
    assert [(s["path"], s["held_out"]) for s in about["sources"]] == [("valid.jsonl", True), ("text.txt", False)]
    assert about["held_out"]["documents"] == [["valid.jsonl", 0, 0], ["valid.jsonl", 1, 0]]


def test_a_run_keeps_to_its_held_out_files(tmp_path):
    """A changed one, another and none are refused by name; one that has moved is not."""
    text, valid = write_text(tmp_path), tmp_path / "valid.txt"
    valid.write_text("To be, or not to be: that is the question.\n" * 3)
    run = train(text, out=tmp_path / "run", held_out=[str(valid)]).path
    other = write_text(tmp_path, 300, "other.txt")
    for given, message in (
        ({"held_out": other}, r"the held-out file other\.txt is new; the held-out file valid\.txt is gone"),
        ({"held_out": 0.1}, r"text\.held_out: 0\.0 in the run, 0\.1 asked for"),
    ):
        with pytest.raises(RecipeError, match=message):
            pellucid.train(out=run, resume=True, steps=6, **given)
    moved = tmp_path / "elsewhere" / "valid.txt"
    moved.parent.mkdir()
    valid.rename(moved)
    with pytest.raises(RecipeError, match=r"valid\.txt: there is no such file .* train INPUTS --held-out FILES"):
        pellucid.train(out=run, resume=True, steps=6)
    pellucid.train(out=run, resume=True, steps=6, held_out=moved)
    assert rows(run)[-1]["step"] == 6
    moved.write_text(moved.read_text() + "more")
    with pytest.raises(RecipeError, match=r"the held-out file valid\.txt changed, from 129 to 133 bytes"):
        pellucid.train(out=run, resume=True, steps=8)
    share = train(text, out=tmp_path / "share").path
    with pytest.raises(RecipeError, match=r"text\.held_out_files: \[\] in the run") as refused:
        pellucid.train(out=share, resume=True, steps=8, held_out=other)
    assert "0.0 asked for" not in str(refused.value)


def test_pairs_are_held_out_by_file_too(tmp_path):
    words = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for name, some in (("train.tsv", words), ("valid.tsv", ["qa", "qb", "aei"])):
        (pairs / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in some))
    heard = Heard()
    fields = {"objective": "source-target", "held_out_files": [str(pairs / "valid.tsv")]}
    made = make_recipe((str(pairs),), "original", FIELDS | {"steps": 2} | fields)
    run = start_recipe(made, tmp_path / "run", heard).path
    about = data_of(run)
    assert tuple(about["parts"][name]["documents"] for name in ("train", "held_out")) == (64, 3)
    assert about["split"]["rule"] == "files"
    assert (
        "held out: 3 pairs of 1 file of your own; warning: the sources of 1 of them are also trained on" in heard.text
    )
    assert "skipped valid.tsv: held out" in heard.text
    (pairs / "valid.tsv").write_text("qa\taq\n")
    with pytest.raises(RecipeError, match=r"the held-out file valid\.tsv changed"):
        resume(run)


@pytest.mark.parametrize("kind", ["ngram", "recurrent"])
def test_predictors_are_measured_on_held_out_files(kind, tmp_path):
    text, valid = write_text(tmp_path), write_text(tmp_path, 400, "valid.txt")
    length = {} if kind == "ngram" else {"steps": 2}
    run = pellucid.train_predictor(
        text, out=tmp_path / "run", kind=kind, fields={"tokenizer": "byte"}, held_out=valid, **length
    )
    assert data_of(run.path)["parts"]["held_out"]["bytes"] == 400


def test_the_command_line_holds_out_and_leaves_out(tmp_path, capsys, monkeypatch):
    """A share, or several files; files that cannot be read are left out on request, and said."""
    monkeypatch.chdir(tmp_path)
    Path("texts/sub").mkdir(parents=True)
    write_text(Path("texts"), 3000, "a.txt")
    write_text(Path(), 300, "0.1")
    Path("texts/sub/b.txt").write_text(SHAKESPEARE.read_text()[5000:5200])
    Path("texts/broken.jsonl").write_text('{"text": }\n')
    options = [f"--set={name}={value}" for name, value in TINY.items() if name not in ("ngrams",)]
    command = ["train", "texts", "--steps", "2", "--set=ngrams=2", *options]
    assert cli.main([*command, "--out", "x"]) == 2
    assert "broken.jsonl, line 1" in capsys.readouterr().err
    held = ["--held-out", "./0.1", "--held-out", "texts/sub", "--skip-bad", "--field", "body"]
    assert cli.main([*command, *held, "--out", "one", "--explain"]) == 0
    said = capsys.readouterr().out
    assert "held out: 2 documents, 500 bytes, of 2 files of your own" in said
    assert "1 file that cannot be read was left out" in said
    assert "skipped broken.jsonl: it cannot be read: line 1, character 10: not valid JSON" in said
    assert data_of(Path("one"))["parts"]["train"]["bytes"] == 3000
    assert cli.main([*command, "--skip-bad", "--held-out", "0.25", "--out", "two"]) == 0
    assert data_of(Path("two"))["split"]["held_out"] == 0.25
    capsys.readouterr()
    assert cli.main([*command, "--held-out", "0.1", "--held-out", "texts/sub"]) == 2
    assert "a file called 0.1 is ./0.1" in capsys.readouterr().err
