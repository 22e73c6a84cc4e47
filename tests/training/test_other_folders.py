"""Run folders from elsewhere: whatever stands in their small files, a command works or says what is wrong with which
file; and a recipe of a huge network is refused before anything of its size is made.
"""

import copy
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import KINDS
from tiny import Heard, resume

import pellucid
from pellucid.conversion import read_model
from pellucid.hub.card import write_card
from pellucid.look.session import Session
from pellucid.look.training import training_curves
from pellucid.model.weights import WeightsError
from pellucid.plan.accelerators import PlanError
from pellucid.plan.planning import make_plan
from pellucid.presets import preset
from pellucid.report.contents import Contents
from pellucid.report.page import page_of
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import read_data
from pellucid.training.kinds import FUNCTIONS, run_kind

BY_NAME = {kind.name: kind for kind in KINDS}
#: what takes the place of a value; texts that stand for JSON that json.dumps does not write, and for no entry at all
HUGE, DEEP, GONE = "a number beyond floats", "a deep list", "no entry"
SPELLED = {HUGE: "1e400", DEEP: "[" * 1000 + "]" * 1000}
VALUES = (None, True, -1, 0, 1e308, 10**300, HUGE, "x", "\ud800", [], [None], {}, {"x": 1}, DEEP, GONE)
FILES = (
    "recipe.json",
    "data.json",
    "metrics.jsonl",
    "machine.json",
    "baselines.json",
    "mixture.json",
    "ngram/ngram.json",
)
FILES += ("checkpoints/best.json", "checkpoints/good.json", "architecture.json")


def paths_in(value: Any, above: tuple = ()) -> list[tuple]:
    """The way to every value inside a JSON value, by names and numbers; of a list the way to its first one alone."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [above, *(path for key, part in inside for path in paths_in(part, (*above, key)))]


def spelled(value: Any, path: tuple, other: Any) -> str:
    """A JSON value as text, in which `other` takes the place of what is at the end of the path."""
    whole = {"all": copy.deepcopy(value)}
    *above, last = ("all", *path)
    part: Any = whole
    for key in above:
        part = part[key]
    if other == GONE:
        del part[last]
    else:
        part[last] = other
    text = json.dumps(whole.get("all", ""))
    for name, json_text in SPELLED.items():
        text = text.replace(json.dumps(name), json_text)
    return text


def changed_files(run: Path) -> list[tuple[str, int, tuple, Any]]:
    """Every change of one value in a small file of a run: the file, the row of metrics, the path, the other value."""
    changes = []
    for name in FILES:
        if (run / name).exists():
            content = (run / name).read_text()
            rows = [json.loads(row) for row in (content.splitlines() if name.endswith("l") else [content])]
            of_each_kind = {tuple(row): number for number, row in enumerate(rows)}.values()
            changes += [(name, n, path, value) for n in of_each_kind for path in paths_in(rows[n]) for value in VALUES]
    return changes


def load(run: Path) -> Any:
    return getattr(pellucid, FUNCTIONS[run_kind(run)][1])(run, device="cpu")


def convert(run: Path) -> None:
    model = read_model(run)
    write_card(run, model.architecture, "pellucid", "", None, model.about)


COMMANDS = {
    "load": load,
    "score": lambda run: load(run).score("To be", baselines=True),
    "look": lambda run: training_curves(Session(load(run))),
    "report": lambda run: page_of(Contents.of(run)).encode(),
    "plan": lambda run: make_plan(run, measure=False),
    "convert": convert,
    "resume": lambda run: pellucid.train(out=run, resume=True),
    "resume for longer": lambda run: pellucid.train(out=run, resume=True, steps=13),
}
#: the commands for each kind of run
CASES = [("mixed transformer", command) for command in COMMANDS]
CASES += [("mixture", command) for command in ("load", "resume for longer")]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "command"), CASES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_another_value_in_a_small_file_is_harmless_or_refused(whole_runs, tmp_path, kind, command, data):
    whole = whole_runs(BY_NAME[kind])
    name, number, path, value = data.draw(st.sampled_from(changed_files(whole)))
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    rows = (run / name).read_text().splitlines() if name.endswith("l") else [(run / name).read_text()]
    rows[number] = spelled(json.loads(rows[number]), path, value)
    (run / name).write_text("\n".join(rows) + "\n")
    with suppress(OSError):
        try:
            COMMANDS[command](run)
        except ValueError as error:
            if not type(error).__module__.startswith("pellucid."):
                raise


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("sources",), 3, r"sources of \S+data.json is 3: expected a list"),
        (("sources", 0, "n_bytes"), "x", r"sources\[0\].n_bytes of \S+data.json is 'x': expected a whole number"),
        (("tokenizer", "hash"), GONE, r"tokenizer of \S+data.json is \{.*: expected an object with 'hash'"),
        (("parts", "train", "tokens"), -1, r"parts.train.tokens of \S+data.json is -1: expected a whole number"),
        (("bytes",), HUGE, r"data.json is damaged, .* a number is larger than"),
    ],
)
def test_a_wrong_type_in_data_json_is_named(whole_runs, tmp_path, path, value, said):
    run = shutil.copytree(whole_runs(BY_NAME["transformer"]), tmp_path / "run")
    (run / "data.json").write_text(spelled(json.loads((run / "data.json").read_text()), path, value))
    with pytest.raises(RecipeError, match=said):
        read_data(run)
    with pytest.raises(RecipeError, match=said):
        pellucid.train(out=run, resume=True)
    page = page_of(Contents.of(run))
    assert "the report is without data.json: " in page
    assert "What it read" not in page


@pytest.mark.parametrize("wrong", [{"loss": "x"}, {"held_out_loss": []}, {"tokens": -1}, {"whole": 1}, {"sample": 3}])
def test_a_row_of_metrics_of_wrong_types_is_counted_as_unreadable(whole_runs, tmp_path, wrong):
    run = shutil.copytree(whole_runs(BY_NAME["transformer"]), tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[2] |= wrong
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "1 line of metrics.jsonl cannot be read: the report is without them" in page_of(Contents.of(run))
    heard = Heard()
    resume(run, heard, steps=13)
    assert "1 line of metrics.jsonl cannot be read and stay there (from line 3 on)" in heard.text


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "changes", [{"n_layers": 10**9}, {"ngram_rows": 10**9}, {"n_ctx": 10**12}, {"d_model": 10**200}]
)
@pytest.mark.parametrize("command", ["load", "report", "plan", "resume", "resume for longer"])
def test_a_recipe_of_a_huge_network_is_refused_before_it_is_built(whole_runs, tmp_path, changes, command):
    run = shutil.copytree(whole_runs(BY_NAME["transformer"]), tmp_path / "run")
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["options"]["model"] |= changes
    (run / "recipe.json").write_text(json.dumps(recipe))
    said = (
        r"a larger network|would be a table of|would need at least|n_layers = 1000000000: expected at most|below 2\^63"
    )
    with pytest.raises(ValueError, match=said):
        COMMANDS[command](run)


@pytest.mark.parametrize("sizes", [{"n_ctx": 10**12}, {"d_model": 2**40}])
def test_what_no_machine_has_room_for_is_not_planned(sizes):
    with pytest.raises(PlanError, match="for which no machine has room"):
        make_plan(replace(preset("small"), **sizes), measure=False)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("recurrent", {"d_hidden": 10**9}),
        ("recurrent", {"d_embed": 10**200}),
        ("neural-probabilistic", {"order": 10**200}),
    ],
)
def test_a_recipe_of_tensors_that_cannot_be_counted_is_refused(whole_runs, tmp_path, kind, sizes):
    run = shutil.copytree(whole_runs(BY_NAME[kind]), tmp_path / "run")
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["options"]["model"] |= sizes
    (run / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(WeightsError, match="the recipe describes a larger network"):
        load(run)
