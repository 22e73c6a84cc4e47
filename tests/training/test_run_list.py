"""Runs in a folder are listed, compared, pruned, renamed and deleted; nothing else is, and nothing that is trained."""

import contextlib
import sys
from pathlib import Path

import pytest
from tiny import start, write_text

import pellucid
from pellucid.cli import main
from pellucid.report.comparison import differing_options, points_over
from pellucid.report.run_list import RunList, RunSummary
from pellucid.runs.checkpoint import best_step, steps_of
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import training_lock

FIELDS = {"checkpoint_every": 4, "evaluate_every": 4, "sample_every": 4, "keep_last": 3}


@pytest.fixture
def runs(tmp_path):
    folder, text = tmp_path / "runs", write_text(tmp_path)
    folder.mkdir()
    start(text, folder / "a", **FIELDS)
    start(text, folder / "b", **FIELDS, seed=2)
    (folder / "no run").mkdir()
    return folder


def test_runs_are_listed_with_their_figures_and_status(runs):
    listed = pellucid.list_runs(runs)
    assert [(run.path.name, run.kind, run.status) for run in listed] == [
        ("a", "transformer", "finished"),
        ("b", "transformer", "finished"),
    ]
    first = listed[0]
    assert first.n_bytes == sum(path.stat().st_size for path in (runs / "a").rglob("*") if path.is_file())
    assert first.tokens == 12 * 2 * 2 * 16
    assert first.bits_per_byte is not None
    heading, *rows = repr(listed).splitlines()
    assert heading.split() == ["run", "MB", "tokens", "minutes", "bits/byte", "status"]
    assert [row.split()[0] for row in rows] == ["a", "b"]


def test_a_list_fits_a_narrow_window():
    """Columns are left out, then names lose their middle; bits per byte and the status are the last to go."""

    def summary(name: str, status: str) -> RunSummary:
        return RunSummary(Path(name), "transformer", 12_345_678, 9_876_543, 600.0, 1.2345, status)

    runs = RunList([summary("a-run-with-a-rather-long-name-2", "stopped at step 1,200"), summary("b", "finished")])
    assert runs.table(100) == runs.table() == repr(runs)
    headings = {width: runs.table(width).splitlines()[0].split() for width in (80, 70, 50, 40)}
    assert headings == {
        80: ["run", "MB", "bits/byte", "status"],
        70: ["run", "bits/byte", "status"],
        50: ["run", "bits/byte", "status"],
        40: ["run", "status"],
    }
    for width in headings:
        assert all(len(line) <= width for line in runs.table(width).splitlines())
    assert runs.table(40).splitlines()[1:] == [
        "a-run-wi\u2026g-name-2  stopped at step 1,200",
        "b                  finished",
    ]
    damaged = RunList([summary("c", "damaged: " + "x" * 80)])
    assert damaged.table(40).endswith("x" * 80)


def test_a_damaged_a_stopped_and_a_trained_run_say_so(runs):
    with training_lock(runs / "a"):
        assert [run.status for run in pellucid.list_runs(runs)] == ["being trained", "finished"]
    (runs / "b" / "recipe.json").write_text("{}")
    assert pellucid.list_runs(runs)[1].status.startswith("damaged: ")
    for step in steps_of(runs / "a")[1:]:
        (runs / "a" / "checkpoints" / f"step-{step:08}").rename(runs / "a" / "checkpoints" / f"gone-{step}")
    (left,) = steps_of(runs / "a")
    assert pellucid.list_runs(runs)[0].status == f"stopped at step {left}"


def test_a_run_whose_last_evaluation_is_missing_is_not_finished(runs):
    metrics = runs / "a" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if not ('"step": 12' in line and "held_out_loss" in line)))
    assert pellucid.list_runs(runs)[0].status == "stopped at step 12"


def test_a_run_with_the_weights_of_adapters_stays(runs, tmp_path):
    fields = {"adapt.rank": 2, "evaluate_every": 1}
    adapters = pellucid.train(
        tmp_path / "text.txt", from_model=runs / "a", out=runs / "c", steps=1, fields=fields, show=False
    ).path
    for change in (pellucid.delete_run, lambda run: pellucid.rename_run(run, "z")):
        with pytest.raises(RecipeError, match="c has adapters of the weights of"):
            change(runs / "a")
    pellucid.delete_run(adapters)
    pellucid.delete_run(runs / "a")


def test_a_predictor_is_printed_with_its_own_functions(tmp_path):
    text = write_text(tmp_path)
    fields = {"d_embed": 8, "d_hidden": 8, "tokenizer": "byte"}
    run = pellucid.train_predictor(
        text, kind="neural-probabilistic", out=tmp_path / "run", steps=1, fields=fields, show=False
    )
    assert str(run).splitlines()[-1] == f"next: model = pellucid.load_predictor({str(run.path)!r})"


def test_pruning_keeps_what_a_run_needs_to_go_on(runs):
    run = runs / "a"
    best, last = best_step(run), steps_of(run)[-1]
    before, after = pellucid.prune_run(run)
    assert after < before
    assert {best, last} <= {*steps_of(run)}
    assert pellucid.load(run, checkpoint="last").provenance["step"] == last
    assert pellucid.prune_run(run) == (after, after)
    with pytest.raises(RecipeError, match="keeps 1 checkpoint or more"):
        pellucid.prune_run(run, 0)


def test_runs_are_renamed_and_deleted(runs, capsys, monkeypatch):
    moved = pellucid.rename_run(runs / "a", "first")
    assert moved == runs / "first"
    for name, says in (("b", "exists"), ("x/y", "without slashes"), ("", "no name")):
        with pytest.raises(RecipeError, match=says):
            pellucid.rename_run(moved, name)
    assert main(["runs", "delete", str(moved)]) == 2
    assert "give --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["runs", "delete", str(moved)]) == 0
    assert moved.exists()
    assert main(["runs", "delete", str(moved), "--yes"]) == 0
    assert sorted(path.name for path in runs.iterdir()) == ["b", "no run"]


@pytest.mark.parametrize("change", [pellucid.delete_run, pellucid.prune_run, lambda run: pellucid.rename_run(run, "x")])
def test_no_other_folder_and_no_run_that_is_trained_is_changed(runs, change):
    with pytest.raises(RecipeError, match=r"has no recipe\.json"):
        change(runs / "no run")
    with training_lock(runs / "b"), pytest.raises(RecipeError, match="is being trained"):
        change(runs / "b")
    assert (runs / "b" / "recipe.json").exists()


def test_an_interrupted_removal_leaves_no_half_of_a_run(runs, monkeypatch):
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        pellucid.delete_run(runs / "a")
    assert not (runs / "a").exists()
    assert [run.path.name for run in pellucid.list_runs(runs)] == ["b"]


def test_runs_are_compared_on_one_page(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["runs", "compare", str(runs / "a"), str(runs / "b"), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg viewBox") == 3
    assert "<td class=path>train.seed<td>1337<td>2" in text
    assert text.count("<figure class=sample>") == 2
    assert "<script" not in text
    missing = tmp_path / "none" / "page.html"
    assert main(["runs", "compare", str(runs / "a"), str(runs / "b"), "-o", str(missing)]) == 2
    assert f"mkdir -p {missing.parent}" in capsys.readouterr().err
    assert main(["runs", "compare", str(runs / "a"), "-o", str(page)]) == 2
    assert "name two to 6" in capsys.readouterr().err


def test_options_differ_where_one_run_has_another_value_or_none():
    assert differing_options({"a": {"x": 1, "y": 2}, "b": {"x": 1, "z": 3}}) == {"y": [2, None], "z": [None, 3]}


def test_an_evaluation_stands_at_what_was_reached_before_it():
    rows = [{"step": 1, "tokens": 8}, {"step": 2, "tokens": 16}, {"step": 2, "bits_per_byte": 3.0, "seconds": 5.0}]
    assert points_over(rows, "steps") == [(2.0, 3.0)]
    assert points_over(rows, "tokens") == [(16.0, 3.0)]
    assert points_over(rows, "seconds") == [(5.0, 3.0)]


def test_a_report_links_to_its_neighbours(runs):
    from pellucid.report.page import write_page

    write_page(runs / "b")
    assert '<a href="../b/report.html">b</a>' in write_page(runs / "a").read_text(encoding="utf-8")


def test_runs_without_a_word_lists_them(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("a ")
    assert main(["help", "train"]) == 0
    assert capsys.readouterr().out.startswith("usage: pellucid train")
