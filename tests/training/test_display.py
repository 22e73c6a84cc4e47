"""What a run prints: few lines where it is short, an ETA that is known, and evaluations spread over the time."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tiny import FIELDS, rows, start, write_text

import pellucid
from pellucid.cli import main
from pellucid.runs import device, length, pace
from pellucid.runs import reporter as display
from pellucid.runs.length import LONGEST_INTERVAL, SHORTEST_INTERVAL, evaluation_interval
from pellucid.runs.live_reporter import LiveReporter, make_reporter
from pellucid.runs.options import INTERVALS, RecipeError, with_record, with_train
from pellucid.runs.pace import Pace, last_evaluation_units
from pellucid.runs.reporter import Detail, NotebookReporter, PlainReporter
from pellucid.runs.schedule import decay_of
from pellucid.training.build import FEW_DOCUMENTS
from pellucid.training.recipe import make_recipe

TINY_SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "tokenizer": "byte"}
TWO_STEPS = ["--steps", "2", *(word for pair in TINY_SIZES.items() for word in ("--set", "{}={}".format(*pair)))]


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def recipe_of(steps, **fields):
    return length.with_steps(make_recipe(("a",), None, FIELDS | fields | {"steps": steps}), steps)


def lines_of(durations, every=10.0, seconds_in_all=0.0):
    """What a plain reporter prints of steps that take so many seconds each, of a run of minutes if it has seconds."""
    clock, out = Clock(), io.StringIO()
    reporter = PlainReporter(out, every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "time", clock)
        patch.setattr(pace, "time", clock)
        reporter.begin(recipe_of(len(durations)), 0, pace=Pace.of_minutes(seconds_in_all / 60))
        for step, seconds in enumerate(durations, 1):
            clock.now += seconds
            reporter.step({"step": step, "loss": 2.0, "learning_rate": 1e-3}, len(durations))
    return out.getvalue().splitlines()


def test_a_short_run_prints_its_last_step_alone():
    lines = lines_of([0.1] * 50)
    assert len(lines) == 1
    assert lines[0].startswith("step 50/50  loss 2.0000")
    assert lines[0].endswith("640 tokens/s  0:05, ETA 0:00")


def test_one_step_has_a_speed():
    assert lines_of([2.0]) == ["step 1/1  loss 2.0000 nats/token  32 tokens/s  0:02, ETA 0:00"]


def test_a_long_run_prints_a_line_now_and_then():
    lines = lines_of([30.0] + [1.0] * 60)  # the first step compiles
    assert [line.split()[1] for line in lines] == ["2/61", "12/61", "22/61", "32/61", "42/61", "61/61"]
    assert lines[0].endswith("64 tokens/s  0:31, ETA 0:59")


def test_a_run_of_minutes_shows_its_time():
    lines = lines_of([1.0] * 88, seconds_in_all=90.0)
    assert [line.split("  ")[-1] for line in lines][:2] == ["0:02 of 1:30, ETA 1:28", "0:12 of 1:30, ETA 1:18"]


@given(st.floats(0.01, 5.0), st.integers(20, 400))
def test_after_ten_seconds_the_time_that_is_left_is_known(seconds, n):
    for line in lines_of([seconds] * n):
        step, (done, left) = int(line.split()[1].partition("/")[0]), line.split("  ")[-1].split(", ETA ")
        if step * seconds > 10:
            assert seconds_of(done) == pytest.approx(step * seconds, abs=1)
            assert seconds_of(left) == pytest.approx((n - step) * seconds, rel=0.1, abs=1)


def seconds_of(clock):
    """3:05 in seconds."""
    return sum(60**place * int(part) for place, part in enumerate(reversed(clock.split(":"))))


def test_details_are_for_those_who_ask():
    for explains, printed in ((False, ["model: one"]), (True, ["model: one", "because"])):
        out = io.StringIO()
        reporter = PlainReporter(out, explains=explains)
        reporter.start(["model: one", Detail("because")])
        assert out.getvalue().splitlines() == printed
        assert reporter.choices == ["model: one", "because"]


def test_six_lines_come_before_the_first_step_and_the_rest_is_in_the_report(tmp_path, capsys):
    run = pellucid.train(write_text(tmp_path), out=tmp_path / "run", steps=2, fields=TINY_SIZES, show=True)
    before, _, _ = capsys.readouterr().out.partition(f"run: {run.path}\n")
    lines = [line for line in before.splitlines() if not line.startswith("warning:")]
    assert len(lines) <= 5
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "weight decay: " not in before
    assert "weight decay: " in page
    assert str(run).splitlines()[0] == f"run: {run.path}"
    assert str(run).splitlines()[-1] == f"next: model = pellucid.load({str(run.path)!r})"


def test_a_notebook_has_one_line_about_steps(monkeypatch):
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(display, "time", clock)
    reporter = NotebookReporter()
    reporter.file = out
    reporter.begin(recipe_of(3), 0)
    for step in (1, 2, 3):
        clock.now += 1
        reporter.step({"step": step, "loss": 2.0, "learning_rate": 1e-3}, 3)
    reporter.note("done")
    shown = out.getvalue()
    assert shown.count("\n") == 2
    assert [part.split()[1] for part in shown.partition("\n")[0].split("\r") if part] == ["1/3", "2/3", "3/3"]
    assert shown.endswith("\ndone\n")


def test_json_has_one_object_a_line(tmp_path, capsys):
    text, out = write_text(tmp_path), tmp_path / "run"
    assert main(["train", str(text), *TWO_STEPS, "--out", str(out), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {event["event"] for event in events} == {"choice", "step", "evaluation", "sample", "note", "end"}
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2]
    assert events[-1]["run"] == str(out)
    assert events[-1]["held_out_loss"] > 0


def test_warnings_are_printed_wherever_they_stand_in_a_line_and_other_kinds_of_output_are_refused(capsys):
    reporter = make_reporter("warnings")
    for line in ("text: 1 document", "held out: 3 pairs; warning: 1 of them is also trained on"):
        reporter.line(line)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "held out: 3 pairs; warning: 1 of them is also trained on\n")
    with pytest.raises(RecipeError, match="show = 'jsno': expected True, False, 'warnings' or 'json'"):
        make_reporter("jsno")


def test_quiet_prints_the_folder_alone(tmp_path, capsys):
    text, out = write_text(tmp_path), tmp_path / "run"
    assert main(["train", str(text), *TWO_STEPS, "--out", str(out), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert all(line.startswith("warning:") for line in shown.err.splitlines())


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=60), st.sampled_from([0.0, 1.0, 10.0]))
def test_every_line_says_how_long_it_takes(durations, every):
    lines = lines_of(durations, every)
    assert lines
    assert not [line for line in lines if "--:--" in line or " 0 tokens/s" in line]
    assert len(lines) <= 2 + (sum(durations) / every if every else len(durations))


def test_the_panel_waits_for_the_speed():
    page = Console(record=True, width=80, file=io.StringIO())
    reporter = LiveReporter(Console(file=io.StringIO(), force_terminal=True))
    reporter.begin(recipe_of(9), 0)
    try:
        reporter.step({"step": 1, "loss": 2.0, "learning_rate": 1e-3}, 9)
        page.print(reporter)
    finally:
        reporter.close()
    shown = page.export_text()
    assert "--:--" not in shown
    assert "after the next step" in shown


# Evaluations ------------------------------------------------------------------------------------


@given(st.integers(1, 200_000), st.floats(1e-4, 10.0))
def test_evaluations_are_spread_by_time(steps, seconds_per_step):
    """Ten in a run, but neither within seconds of each other nor hours apart; the last one at the end."""
    every = evaluation_interval(recipe_of(steps, evaluate_every=None), seconds_per_step)
    evaluations, total = -(-steps // every), steps * seconds_per_step
    assert 1 <= every <= steps
    assert evaluations <= max(10, total / LONGEST_INTERVAL + 1)
    if evaluations > 1:
        assert every * seconds_per_step >= min(SHORTEST_INTERVAL / 1.5, total / 2)
    assert every * seconds_per_step <= LONGEST_INTERVAL + seconds_per_step


@pytest.mark.parametrize(
    ("steps", "seconds_per_step", "every"),
    [
        *[(50, 0.1, 50), (50, 1.0, 25), (240, 1.0, 30), (6000, 0.1, 600), (100_000, 1.0, 893)],
        *[(10, None, 10), (50, None, 25), (1000, None, 100), (1, None, 1)],
    ],
)
def test_intervals(steps, seconds_per_step, every):
    assert evaluation_interval(recipe_of(steps, evaluate_every=None), seconds_per_step) == every


def test_minutes_and_compiling_are_times_too():
    minutes = recipe_of(0, evaluate_every=None, minutes=1.0)
    assert evaluation_interval(with_record(minutes, planned=300), None) == 150
    compiled = recipe_of(300, evaluate_every=None, compile="yes")
    saved = device.COMPILE_SAVES["cpu"]
    assert evaluation_interval(compiled, 0.2 / (1 - saved)) == evaluation_interval(recipe_of(300), 0.2) == 150


def test_a_run_made_longer_has_the_intervals_of_a_run_of_its_new_length():
    """By the time of its steps; its minutes were those of its former length."""
    trial = with_record(
        length.resolve_intervals(with_record(recipe_of(0, evaluate_every=None, minutes=0.1), planned=10)), decay=(8, 10)
    )
    assert trial.train.evaluate_every == 10
    for steps, seconds_per_step, every in ((50, 0.1, 50), (240, 1.0, 30), (100_000, 1.0, 893), (50, None, 25)):
        longer = length.length_asked(trial, 10, {"steps": steps}, 1000)
        longer = length.choose_intervals_again(longer, seconds_per_step)
        assert [getattr(longer.train, name) for name in INTERVALS] == [every] * 3
        assert longer.record.decay == decay_of("wsd", steps, 0)
        assert longer.train.minutes == trial.train.minutes


def test_a_trial_made_longer_by_minutes_is_not_planned_with_its_intervals():
    trial = length.resolve_intervals(recipe_of(10, evaluate_every=None))
    clock = Pace.of_minutes(1.0)
    assert clock is not None
    clock.know(100_000, 1000)
    clock.start(0.01)
    longer, _ = length.plan_in_time(
        trial, with_train(trial, evaluate_every=None, checkpoint_every=None, sample_every=None), clock, 10
    )
    assert longer.record.decay is None
    assert longer.n_steps > 2000
    assert longer.train.evaluate_every >= longer.n_steps // 3


@given(st.integers(1, 100_000), st.sampled_from([0.01, 0.3, 5.0, None]), st.sampled_from([64, 8192]))
def test_measuring_takes_a_tenth_of_a_run_at_most(steps, seconds_per_step, tokens):
    """In forward passes over tokens, of which a step takes three; below 4,096 tokens the last evaluation is not cut."""
    recipe = recipe_of(steps, evaluate_every=None, evaluate_tokens=None, batch=tokens // 16, accumulate=1)
    recipe = length.resolve_intervals(recipe, seconds_per_step)
    t, taken = recipe.train, 3 * steps * tokens
    on_the_way = (steps - 1) // t.evaluate_every
    at_the_end = last_evaluation_units(recipe)
    assert on_the_way * t.evaluate_tokens <= 0.03 * taken
    assert at_the_end <= max(4096, 0.07 * taken)
    assert t.evaluate_tokens <= at_the_end
    assert t.evaluate_every == t.checkpoint_every == t.sample_every


def test_what_is_asked_for_is_done():
    recipe = length.resolve_intervals(recipe_of(50, evaluate_every=3, sample_every=4, checkpoint_every=5), 0.1)
    assert (recipe.train.evaluate_every, recipe.train.sample_every, recipe.train.checkpoint_every) == (3, 4, 5)


def test_a_short_run_is_measured_and_sampled_once(tmp_path):
    """Below what is said before training there are two lines and a sample."""
    out = io.StringIO()
    run = start(
        write_text(tmp_path), tmp_path / "run", PlainReporter(out), evaluate_every=None, compile="auto", steps=30
    )
    assert sum("held_out_loss" in row for row in rows(run.path)) == 1
    _, _, below = out.getvalue().partition(f"run: {run.path}\n")
    heads = [line.partition("  ")[0] for line in below.splitlines()]
    assert heads[:3] == ["step 30/30", "step 30", "--- sample at step 30"]
    assert heads[4:] == ["---"]


@pytest.mark.parametrize(
    ("n_documents", "words", "fields", "prompt"),
    [
        (1, "to be\nor not\n", {}, "\n"),
        (FEW_DOCUMENTS + 4, "to be\nor not\n", {}, ""),
        (1, "to be\nor not\n", {"sample_prompt": "be"}, "be"),
        (1, "to be or not ", {"tokenizer": "char"}, ""),
    ],
    ids=["one document", "many", "a prompt of one's own", "no new line"],
)
def test_samples_begin_with_a_new_line_where_few_documents_show_how_one_begins(
    tmp_path, n_documents, words, fields, prompt
):
    folder = tmp_path / "texts"
    folder.mkdir()
    for k in range(n_documents):
        (folder / f"{k:02}.txt").write_text(f"{words * 60}{k}", encoding="utf-8")
    run = start(folder, tmp_path / "run", steps=1, evaluate_every=1, held_out=0.05, **fields)
    assert run.recipe.train.sample_prompt == prompt
