"""The report: one file with every part, nothing fetched, nothing of a text taken for markup."""

import itertools
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import FIELDS, SHAKESPEARE

import pellucid
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.report import write_page
from pellucid.report.charts import (
    HEIGHT,
    MARGIN_BOTTOM,
    MARGIN_LEFT,
    MARGIN_RIGHT,
    MARGIN_TOP,
    POINTS,
    WIDTH,
    Line,
    ReferenceLine,
    chart,
    spaced,
    thinned,
    tick_label,
    ticks,
)
from pellucid.report.contents import STEPS_TOGETHER, Contents
from pellucid.report.page import e, named_options, page_of
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.training.config import ParallelOptions
from running import any_architectures

PARTS = (
    "Learning",
    "Beside counting",
    "What it writes",
    "What it computes",
    "The course of training",
    "Speed",
    "What it read",
    "Train it again",
)
VOID = {"meta", "br", "hr", "img", "input", "link"}
#: what HTML lets be left open
OPEN = {"td", "tr", "th"}
HOSTILE = "</pre><script>alert(1)</script><img src=https://example.com/x onerror=alert(2)> & \"'"


class Page(HTMLParser):
    """Elements, attributes and text of a page; an end that closes nothing is an error."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID | OPEN:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack, tag
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.stack or self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def assert_self_contained(text: str) -> None:
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "srcset", "action", "data"), (name, value)
    assert "@import" not in text
    assert not [found for found in re.findall(r"url\((.*?)\)", text) if not found.startswith("#")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of several evaluations and samples."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text(SHAKESPEARE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        return pellucid.train(folder / "text.txt", out=folder / "run", fields={**FIELDS, "sample_every": 3}).path


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it that a test may spoil."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_ends_with_its_report(trained):
    text = (trained / "report.html").read_text(encoding="utf-8")
    assert_self_contained(text)
    page = Page(text)
    for part in PARTS:
        assert part in page.text, part
    about = Contents.of(trained)
    last = [row for row in about.rows if "held_out_loss" in row][-1]
    machine = json.loads((trained / "machine.json").read_bytes())
    for said in (
        f"{last['bits_per_byte']:.3f}",
        f"{about.parameters['total']:,}",
        "5-gram",
        "text.txt",
        f"--steps {about.recipe.n_steps}",
        "tokens per second",
        machine["processor"],
        *(f"step {step}" for step in (3, 12)),
    ):
        assert said in page.text, said
    charts = sum(tag == "figure" and at.get("class") == "chart" for tag, at in page.tags)
    assert charts == 4 + (len(about.speeds()) > 1)  # how fast it is takes more than one measured stretch
    for line in about.baselines.predictors if about.baselines else ():
        assert f"{line.bits_per_byte:.3f}" in page.text


def test_what_is_measured_on_the_way_is_said_in_the_legend(run):
    """ "Its beginning" in figures, in both pictures and in a sentence, where it is not all of the held-out text."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "held_out_part" in row and row["step"] == 12:
            row["held_out_loss"] = row["held_out_part"] + 0.25
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = Contents.of(run)
    asked, total = about.recipe.train.evaluate_tokens, about.data["parts"]["held_out"]["tokens"]
    said = Page(page_of(about)).text
    assert said.count(f"held-out, its first {asked:,} tokens") == 2
    assert said.count(f"all of it, {total:,} tokens") == 2
    assert f"During training the loss is measured on the first {asked:,} of the {total:,} held-out tokens" in said


def test_a_point_of_all_of_the_text_is_called_that_though_a_part_was_measured_later(run):
    """As where a run was made longer and stopped on the way."""
    about = Contents.of(run)
    row = next(row for row in reversed(about.rows) if "held_out_loss" in row)
    later = row | {"step": 15, "whole": False, "read": 128, "held_out_part": row["held_out_loss"]}
    row["held_out_part"] = row["held_out_loss"] + 0.25
    said = Page(page_of(replace(about, rows=[*about.rows, later]))).text
    assert said.count("all of it, ") == 2
    assert "its first 128 tokens" not in said
    assert "bits per byte of the first 128 held-out tokens" in said


def test_of_conversations_the_tokens_read_are_no_part_of_those_predicted(run):
    about = Contents.of(run)
    row = next(row for row in reversed(about.rows) if "held_out_loss" in row)
    row["held_out_part"] = row["held_out_loss"] + 0.25
    parts = {"held_out": {"tokens": 90, "answer_tokens": 30}}
    chat = replace(about, recipe=with_record(about.recipe, tokens_per_row=3.5), data=about.data | {"parts": parts})
    said = Page(page_of(chat)).text
    read = about.recipe.train.evaluate_tokens
    assert f"measured on the first {read:,} held-out tokens; at the end, on all of them." in said
    assert "all of it, 30 tokens" in said


@pytest.mark.parametrize("known", [True, False])
def test_a_last_evaluation_that_was_cut_is_said_to_be_of_a_part(run, known):
    """Wherever its figure stands: in the headline, in the charts, and beside the baselines, which read all."""
    if not known:
        (run / "baselines.json").unlink()
    about = Contents.of(run)
    row = next(row for row in reversed(about.rows) if "held_out_loss" in row)
    row |= {"whole": False, "cut": 1234, "held_out_part": row["held_out_loss"] + 0.25}
    said = Page(page_of(about)).text
    assert f"{row['bits_per_byte']:.3f} bits per byte of the first 1,234 held-out tokens" in said
    assert said.count("its first 1,234 tokens") == 2
    assert "held-out tokens; at the end, on the first 1,234." in said
    assert "all of it, " not in said
    assert ("this model, first 1,234 tokens" in said) == known
    assert ("No verdict: the model was measured on the first 1,234 held-out tokens alone" in said) == known
    assert "the same held-out text" not in said
    assert "The model is " not in said


def test_samples_are_whole(run):
    """However long: no box cuts them, and nothing is left out."""
    long = "".join(f"line {i} of many\n" for i in range(300))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 12, "sample": long}) + "\n")
    page = page_of(Contents.of(run))
    assert long in Page(page).text
    assert not re.search(r"max-height: (?!none)|-webkit-line-clamp|text-overflow", page)


def test_tables_scroll_by_themselves(run):
    """Each in a box of its own that a keyboard can reach, so that the page is never wider than the screen."""
    data = json.loads((run / "data.json").read_text())
    data["skipped"] = [["a.bin", "not text"]]
    data["held_out"] = {"note": "two", "documents": [["text.txt", 0, 3000], ["b.txt", 0, 0]]}
    (run / "data.json").write_text(json.dumps(data))
    page = page_of(Contents.of(run))
    boxes = re.findall(r'<div class=scroll tabindex=0 role=region aria-label="[^"]+"><table>', page)
    assert len(boxes) == page.count("<table") == 3
    assert re.search(r"\.scroll \{ overflow-x: auto;", page)


def test_what_was_replaced_is_counted_by_its_kind(run):
    data = json.loads((run / "data.json").read_text())
    data["sources"] = [data["sources"][0] | {"path": f"{n}.jsonl", "replaced": 2, "halves": 3} for n in "ab"]
    (run / "data.json").write_text(json.dumps(data))
    said = Page(page_of(Contents.of(run))).text
    assert "not UTF-8, replaced4" in said
    assert "lone surrogates in JSON, replaced6" in said


def test_the_held_out_documents_are_listed(run):
    data = json.loads((run / "data.json").read_text())
    data["sources"] = [{"path": "many.jsonl", "n_documents": 500, "n_bytes": 9, "sha256": "0"}]
    data["sources"] += [{"path": "one.txt", "n_documents": 1, "n_bytes": 9, "sha256": "1"}]
    chosen = [["one.txt", 0, 1234], *(["many.jsonl", k, 0] for k in range(0, 500, 2))]
    data["held_out"] = {"note": "251 of 501 documents are held out", "documents": chosen}
    data["parts"]["held_out"]["documents"] = 251
    (run / "data.json").write_text(json.dumps(data))
    said = Page(page_of(Contents.of(run))).text
    assert "251 of 501 documents are held out." in said
    assert "one.txtthe filefrom character 1,235 on" in said
    assert "many.jsonl1 of 500all of it" in said
    assert "many.jsonl397 of 500all of it" in said
    assert "188 more" in said
    assert "and 51 more that are not listed here" in said
    data["held_out"] = {"note": "9 of 90 pairs are held out"}
    (run / "data.json").write_text(json.dumps(data))
    assert "Held out9 of 90 pairs are held out." in Page(page_of(Contents.of(run))).text


def test_the_share_of_the_peak_is_what_its_formula_says(run):
    (run / "machine.json").write_text(json.dumps({"product_flops": 1e9, "precision": "float32"}))
    rows = [{"step": s, "loss": 2.0, "tokens": 64 * s, "seconds": s / 100} for s in range(1, 13)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = Page(page_of(Contents.of(run))).text
    share = Contents.of(run).flops.training * 6400 / 1e9
    assert f"× 6,400 tokens/s / 1 GFLOP/s = {share:.1%}" in said


@settings(deadline=None, max_examples=40)
@given(st.floats(10, 1e6), st.integers(0, 60))
def test_speed_is_that_of_timed_steps_and_a_slow_one_does_not_count(trained, speed, n_steps):
    """The first step may be compiled first."""
    speeds = [speed / 100 if step == 1 else speed for step in range(1, n_steps + 1)]
    rows = [{"step": step, "tokens_per_second": known} for step, known in enumerate(speeds, 1)]
    rows.insert(0, {"step": 0, "sample": "text"})
    found = replace(Contents.of(trained), rows=rows).speeds()
    ends = [*range(STEPS_TOGETHER, n_steps, STEPS_TOGETHER), n_steps] if n_steps else []
    assert [step for step, _ in found] == ends
    assert all(known == speed for _, known in found) or n_steps < 3


def test_of_pairs_no_share_is_told(run):
    about = Contents.of(run)
    said = Page(page_of(replace(about, recipe=with_record(about.recipe, tokens_per_row=3.5)))).text
    assert "no share of the peak is given" in said
    assert "GFLOP/s" not in said


def test_held_out_text_is_one_curve_and_one_end(run):
    """What is read on the way, and at the end all of it: a number of other text is no point of the curve."""
    rows = [
        {"step": 4, "held_out_loss": 3.0, "held_out_part": 3.0, "bits_per_byte": 4.0},
        {"step": 8, "held_out_loss": 2.0, "held_out_part": 2.0, "bits_per_byte": 3.0},
        {"step": 12, "held_out_loss": 2.5, "held_out_part": 2.2, "bits_per_byte": 5.0},
    ]
    about = replace(Contents.of(run), rows=rows, best=(8, 2.0))
    (begun, bits), (whole, all_bits) = about.held_out()
    assert begun == [(4, 3.0), (8, 2.0), (12, 2.2)]
    assert bits == [(4, 4.0), (8, 3.0), (12, pytest.approx(4.4))]
    assert (whole, all_bits) == ([(12, 2.5)], [(12, 5.0)])
    said = Page(page_of(about)).text
    assert "all of it" in said
    assert "The best checkpoint is that of step 8, whose held-out loss was lower by 0.2000 nats per token" in said
    about = replace(about, rows=rows[:2])
    assert about.held_out()[1] == ([], [])
    said = Page(page_of(about)).text
    assert "all of it" not in said
    assert "The best checkpoint" not in said


def test_parts_of_the_parameters_are_all_of_them(trained):
    parts = Contents.of(trained).parameters
    assert sum(n for part, n in parts.items() if part != "total") == parts["total"]
    assert parts["n-gram tables"] == 32 * FIELDS["d_model"]


@pytest.mark.slow
def test_the_command_trains_the_same_run_again(run, monkeypatch):
    """Its recipe is read as it stands: the same choices, the same length."""
    monkeypatch.chdir(run.parent)
    said = Contents.of(run).command
    assert main(said.split()[1:]) == 0
    first, second = (Contents.of(folder).series("loss") for folder in (run, run.with_name("run-again")))
    assert first == second


@pytest.mark.slow
def test_the_command_names_the_model_that_a_run_started_from(run, tmp_path, monkeypatch):
    """Of all its weights, and of adapters: the same losses again."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    given = {"batch": 2, "accumulate": 1, "compile": "no", "precision": "float32", "attention": "fused"}
    for name, rank in (("on", 0), ("lora", 2)):
        fields = given | {"adapt.rank": rank, "sample_every": 0}
        text = Contents.of(run).recipe.inputs[0]
        path = pellucid.train(text, out=tmp_path / name, from_model=run, steps=4, fields=fields).path
        said = Contents.of(path).command
        assert f"--from {run}" in said
        assert f"as long as {run} holds the weights" in Page(page_of(Contents.of(path))).text
        assert main(said.split()[1:]) == 0
        first, second = (Contents.of(folder).series("loss") for folder in (path, path.with_name(f"{name}-again")))
        assert first == second


@pytest.mark.slow
def test_the_command_of_a_chat_trains_it_again(run, tmp_path, monkeypatch):
    """Its recipe.json has the size of the vocabulary with the tokens that the chat brought."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    chats = tmp_path / "chats.jsonl"
    with chats.open("w") as file:
        for i in range(20):
            said = {"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"{i}"}
            file.write(json.dumps({"messages": said}) + "\n")
    fields = {
        "batch": 2,
        "compile": "no",
        "precision": "float32",
        "attention": "fused",
        "n_ctx": 64,
        "sample_every": 0,
    }
    path = pellucid.train(chats, out=tmp_path / "chat", from_model=run, steps=2, fields=fields).path
    about = Contents.of(path)
    assert about.recipe.record.new_ids
    assert main(about.command.split()[1:]) == 0
    assert Contents.of(path.with_name("chat-again")).series("loss") == about.series("loss")


def test_only_a_run_that_followed_the_steps_alone_is_the_same_again(run):
    """Not one whose decay began by the clock, or that was made shorter: that of the command begins by its number of
    steps.
    """
    about = Contents.of(run)
    first, end = about.recipe.record.decay
    by_clock = with_train(about.recipe, minutes=1.0)
    for recipe in (about.recipe, by_clock):
        assert "the same run, bit for bit" in Page(page_of(replace(about, recipe=recipe))).text
    for decay, began in (((first + 1, end), f"began to fall after step {first + 1}"), (None, "has not begun to fall")):
        moved = replace(about, recipe=with_record(by_clock, decay=decay, planned=end))
        said = Page(page_of(moved)).text
        assert "bit for bit" not in said
        assert began in said
        assert f"the command lets it fall after step {first}, so the weights differ" in said
        assert f"--steps {end} " in moved.command


def test_the_command_starts_as_many_processes_with_the_same_layout(run):
    about = Contents.of(run)
    assert "--processes" not in about.command
    for layout, options in (
        (ParallelOptions(replicate=4, shard=1, tensor=1), "--processes 4"),
        (
            ParallelOptions(replicate=2, shard=3, tensor=1, gather="bfloat16"),
            "--processes 6 --set parallel.shard=3 --set parallel.gather=bfloat16",
        ),
        (ParallelOptions(replicate=1, shard=1, tensor=2), "--processes 2 --set parallel.tensor=2"),
    ):
        assert replace(about, recipe=replace(about.recipe, parallel=layout)).command.endswith(f"-again {options}")


def test_what_came_through_a_pipe_cannot_be_trained_again_by_a_command(run):
    about = Contents.of(run)
    about = replace(about, recipe=replace(about.recipe, inputs=("-",)))
    assert about.command == ""
    said = page_of(about)
    assert "came through a pipe" in Page(said).text
    assert "bit for bit" not in Page(said).text
    assert "class=command" not in said


@pytest.mark.parametrize(
    "missing", ["baselines.json", "machine.json", "data.json", "metrics.jsonl", "tokenizer.json", "checkpoints"]
)
def test_what_is_missing_is_left_out(run, missing):
    path = run / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = page_of(Contents.of(run))
    assert_self_contained(text)
    assert "What it computes" in text
    assert "Train it again" in text
    assert ("Beside counting" in text) == (missing != "baselines.json")
    assert ("What it writes" in text) == (missing != "metrics.jsonl")
    assert ("What it read" in text) == (missing != "data.json")


@pytest.mark.parametrize("name", ["baselines.json", "machine.json", "data.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", ["", "[1, 2", "[]", "{}", '{"sources": 3}', '"text"', '{"step": 1, "loss": null}'])
def test_damaged_parts_do_not_break_it(run, name, content):
    (run / name).write_text(content)
    assert_self_contained(page_of(Contents.of(run)))


def test_hostile_text_is_text(run):
    """In samples, in paths, in the names of files and of the machine, in warnings."""
    values = json.loads((run / "recipe.json").read_bytes())
    values["options"]["inputs"] = [HOSTILE]
    (run / "recipe.json").write_text(json.dumps(values))
    data = json.loads((run / "data.json").read_bytes())
    data["sources"][0]["path"] = data["tokenizer"]["kind"] = data["sources"][0]["sha256"] = HOSTILE
    (run / "data.json").write_text(json.dumps(data))
    (run / "machine.json").write_text(json.dumps({"processor": HOSTILE, "product_flops": HOSTILE}))
    rows = [{"step": 1, "sample": HOSTILE + "\ud800\0"}, {"step": 2, "warning": HOSTILE}, {"step": 3, "loss": HOSTILE}]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    hostile = run.with_name("<b>run & co")
    run.rename(hostile)
    text = write_page(hostile).read_text(encoding="utf-8")
    assert_self_contained(text)
    page = Page(text)
    assert page.text.count(HOSTILE) >= 5
    assert HOSTILE + "\\ud800\\u0000" in page.text
    assert "<b>run & co" in page.text


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Lu", "Lo", "Po"])))
def test_any_text_is_shown_and_turns_nothing_else(text):
    """What it was can be read back; no control character and no override of the direction is left."""
    made = e(text)
    shown = Page(made).text
    assert not [c for c in shown if (ord(c) < 32 and c not in "\t\n") or "\u202a" <= c <= "\u202e"]
    assert re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), shown) == text.replace("\r\n", "\n")
    made.encode()


def test_what_was_skipped_is_told_with_its_reason(run):
    data = json.loads((run / "data.json").read_bytes())
    data["skipped"] = [[f"a{i}.bin", "it is binary"] for i in range(30)]
    said = Page(page_of(replace(Contents.of(run), data=data))).text
    assert "30 files were skipped" in said
    assert "a0.bin" in said
    assert "and 18 more, in data.json" in said


def test_only_a_transformer_s_run_has_one(run, capsys):
    assert main(["report", str(run)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(run / "nothing")]) == 2
    values = json.loads((run / "recipe.json").read_bytes())
    values["options"]["kind"] = "ngram"
    (run / "recipe.json").write_text(json.dumps(values))
    with pytest.raises(RecipeError, match="kind ngram"):
        write_page(run)


def test_a_report_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    before = (run / "report.html").read_bytes()

    def broken(contents):
        raise OSError(28, "no space left")

    monkeypatch.setattr("pellucid.report.page.page_of", broken)
    with pytest.raises(OSError, match="no space"):
        write_page(run)
    assert (run / "report.html").read_bytes() == before


# The architecture ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(any_architectures())
def test_the_options_that_are_named_are_the_architecture(a):
    for stack in (a, *([a.encoder] if a.encoder is not None else [])):
        named = Architecture(n_vocab=1, n_ctx=1, d_model=4, n_layers=0).with_fields(dict(named_options(stack)))
        assert named == replace(stack, encoder=None, mlp=replace(stack.mlp, d_ff=stack.d_ff))


# Charts ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=600),
    st.lists(st.floats(-1e6, 1e6), max_size=5),
)
def test_any_numbers_make_a_picture(values, levels):
    points = [(float(i), v) for i, v in enumerate(values)]
    made = chart("a <b> & c", [Line("x", points)], [ReferenceLine(f"<{i}>", v) for i, v in enumerate(levels)])
    if not thinned(points):
        assert made == ""
        return
    page = Page(made)
    assert "nan" not in made.lower().replace("name", "")
    assert "a <b> & c" in page.text
    if len(thinned(points)) == 1:
        assert [attributes["class"] for tag, attributes in page.tags if tag == "circle"] == ["end model ring"]
        return
    (line,) = [attributes["points"] for tag, attributes in page.tags if tag == "polyline"]
    places = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(places) <= POINTS
    # what leaves the picture is cut by the svg that the line is in
    assert all(-4 * HEIGHT <= y <= 5 * HEIGHT for _, y in places)
    assert made[: made.index("<polyline")].count("<svg") == 2
    late = [y for x, y in places if x > MARGIN_LEFT + (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / 19]
    assert all(MARGIN_TOP - 1 <= y <= HEIGHT - MARGIN_BOTTOM + 1 for y in late)


def test_names_do_not_lie_on_each_other():
    found = spaced([(50.0, "b"), (48.0, "a"), (197.0, "d"), (196.0, "c"), (10.0, "e")])
    assert [name for _, name in found] == ["e", "a", "b", "c", "d"]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(found)]
    assert min(gaps) >= 11.4
    assert found[-1][0] < HEIGHT - 30


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(0, 9), min_size=1, max_size=12), st.lists(st.floats(1, 8), min_size=2, max_size=30))
def test_labels_of_baselines_never_collide(levels, values):
    """With each other, with the dashed lines, with the curve, or with the picture's edge, wherever the numbers lie."""
    given_ = [ReferenceLine(f"{i}-gram", v) for i, v in enumerate(levels)]
    made = chart("Held-out text", [Line("held-out", list(enumerate(values)))], given_)
    tags = Page(made).tags
    names = [at for tag, at in tags if tag == "text" and at["class"].startswith("name")]
    drawn = [at for tag, at in tags if tag == "line" and at["class"] == "level"]
    assert len(names) == len(drawn)
    below = Page(made).text.partition("Above the picture:")[2]
    assert all(f"{v.name} {v.value:.2f}" in below for v in given_ if f"{v.label}</text>" not in made)
    if not names:
        return
    places = sorted(float(at["y"]) for at in names)
    assert all(after - before >= 11.4 for before, after in itertools.pairwise(places))
    assert places[0] >= 8
    assert places[-1] <= HEIGHT - MARGIN_BOTTOM + 4
    edge = max(float(at["x2"]) for at in drawn)
    labels = re.findall(r'<text class="name quiet" x="([\d.]+)" y="[\d.]+">([^<]+)</text>', made)
    for x, label in labels:
        assert float(x) > edge + 5
        assert float(x) + 6.8 * len(label) <= WIDTH + 0.1
    for tag, at in tags:
        if tag in ("polyline", "circle") and at["class"].split()[0] in ("line", "end"):
            xs = [at["cx"]] if tag == "circle" else [pair.split(",")[0] for pair in at["points"].split()]
            assert all(float(x) <= edge + 0.1 for x in xs)


def test_an_axis_that_is_cut_says_so():
    """The first twentieth of the steps does not decide the picture; what is cut off is in a sentence."""
    points = [(float(step), 9.5 if step < 3 else 3 - step / 100) for step in range(1, 101)]
    said = Page(chart("Loss", [Line("training", points)])).text
    assert "The axis is cut at 3: training is above it until step 2, and reaches 9.5." in said
    low = [(float(step), 0.5 if step < 3 else 20_000.0 + step) for step in range(1, 101)]
    assert "speed is below it until step 2, and reaches 0.5." in Page(chart("Speed", [Line("", low)])).text
    assert "cut" not in Page(chart("Loss", [Line("training", points[10:])])).text


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=60))
def test_a_point_outside_the_picture_is_never_passed_over_in_silence(values):
    made = chart("Loss", [Line("", list(enumerate(values)))])
    (line,) = re.findall(r'<polyline class="line model" points="([^"]+)"', made)
    places = [float(pair.split(",")[1]) for pair in line.split()]
    outside = any(not MARGIN_TOP - 0.1 <= y <= HEIGHT - MARGIN_BOTTOM + 0.1 for y in places)
    assert outside == ("The axis is cut" in made)


def test_ticks_are_round_and_inside():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(2.1, 3.4) == pytest.approx([2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4])
    assert [tick_label(x) for x in (0, 0.5, 2000.0, 20_000.0, 3e6, 2e-5)] == ["0", "0.5", "2000", "20k", "3M", "2e-5"]


def test_parameters_of_a_narrower_embedding_are_counted_by_its_width(trained):
    about = Contents.of(trained)
    model = about.recipe.model.with_fields({"d_embed": 3, "embed_projection": "sum"})
    parts = replace(about, recipe=replace(about.recipe, model=model)).parameters
    assert parts["n-gram tables"] == 32 * 3
    assert min(parts.values()) > 0
    assert sum(n for part, n in parts.items() if part != "total") == parts["total"]
