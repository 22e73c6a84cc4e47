"""The model card tells of a run what happened in it, up to the checkpoint that was written out."""

import json
import os
import shutil

import pytest
import yaml

import pellucid
from pellucid.conversion import read_model
from pellucid.hub.card import write_card
from pellucid.runs.metrics import part_measured, predicted_tokens, read_metrics

FIELDS = {
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "n_ctx": 16,
    "batch": 4,
    "device": "cpu",
    "precision": "float32",
    "compile": "no",
    "attention": "fused",
    "text.tokenizer": "byte",
    "checkpoint_every": 2,
    "keep_last": 9,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, shakespeare):
    """Five steps of a run whose length was given in tokens, and three more when it was made longer."""
    folder = tmp_path_factory.mktemp("card")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        (folder / "text.txt").write_text(shakespeare[:4000])
        made = pellucid.train(folder / "text.txt", out=folder / "run", preset="gpt2", tokens=5 * 64, fields=FIELDS)
        pellucid.train(out=made.path, resume=True, steps=8)
    return made.path


def training_section(run, tmp_path, checkpoint):
    """What the card says of the training, by name."""
    model = read_model(run, checkpoint=checkpoint)
    (tmp_path / "new").mkdir()
    card = write_card(tmp_path / "new", model.architecture, "pellucid", "", None, model.about).read_text()
    section = card.split("## Training\n\n")[1].split("\n\n##")[0]
    return dict(line.removeprefix("- ").split(": ", 1) for line in section.splitlines())


@pytest.mark.parametrize(("checkpoint", "steps"), [("4", "4 (this checkpoint; the run went to step 8)"), ("last", "8")])
def test_steps_tokens_and_minutes_are_those_of_the_checkpoint(run, tmp_path, checkpoint, steps):
    """Of a run of 5 steps by tokens, made longer to 8: its recipe says tokens = 320, minutes = 0, steps = 8."""
    step = int(steps[0])
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["step"] <= step]
    seconds, said = max(row["seconds"] for row in rows if "seconds" in row), training_section(run, tmp_path, checkpoint)
    assert said["steps taken"] == steps
    read = json.loads((run / "data.json").read_text())["parts"]["train"]["tokens"]
    assert said["tokens seen"] == f"{64 * step:,}, {64 * step / read:.2f} times the {read:,} of the training text"
    assert said["minutes"] == f"{seconds / 60:,.2f}, with measuring, sampling and saving"
    assert said["rows in a step"] == "4"
    assert not {"tokens", "epochs", "steps", "warmup", "mask_share"} & said.keys()
    assert not {"-1", "0", "0.0", "auto", ""} & set(said.values())


def test_a_run_that_ended_early_and_passed_over_steps_says_so(run, tmp_path):
    model = read_model(run, checkpoint="last")
    about = dict(model.about)
    about["training"] = about["training"] | {"steps": 6, "last_step": 6, "passed_over": 2}
    card = write_card(tmp_path, model.architecture, "pellucid", "", None, about).read_text()
    assert "steps taken: 6, of 8 planned; 2 of them were skipped, because their loss or gradient was not finite" in card


def test_losses_of_a_part_of_the_held_out_text_say_of_which(run, tmp_path):
    """Where the last evaluation was cut, and at a checkpoint at which only a part was read."""
    shutil.copytree(run, tmp_path / "run")
    rows = read_metrics(run / "metrics.jsonl")
    row = next(row for row in reversed(rows) if "held_out_loss" in row)
    row |= {"whole": False, "cut": 123}
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = []
    for path in (run, tmp_path / "run"):
        model = read_model(path, checkpoint="last")
        card = write_card(tmp_path, model.architecture, "pellucid", "", None, model.about).read_text()
        said.append("- the held-out numbers are over the first 123 held-out tokens, not all of them" in card)
    assert said == [False, True]
    assert part_measured({"whole": False, "read": 70}) == 70
    assert part_measured({"whole": False, "read": 0}) == part_measured({"whole": True}) == 0


def test_tokens_to_predict_are_counted_by_one_rule():
    parts = {"train": {"tokens": 300, "answer_tokens": 100}, "held_out": {"tokens": 7}}
    assert [predicted_tokens({"parts": parts}, name) for name in ("train", "held_out", "test")] == [100, 7, 0]
    assert predicted_tokens({}, "held_out") == 0


def test_a_model_without_a_run_has_no_section_on_training(run, tmp_path):
    model = read_model(run)
    card = write_card(tmp_path, model.architecture, "pellucid", "", None, {"source": "mine"}).read_text()
    assert "## Training" not in card
    assert card.count("Unknown to the author of this folder.") == 2


def front_matter(card: str) -> dict:
    """The hub's entries at the top of a card."""
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        (None, {"license": "unknown"}),
        ("MIT", {"license": "mit"}),
        ("no", {"license": "other", "license_name": "no"}),
        ("Ours: see LICENCE", {"license": "other", "license_name": "Ours: see LICENCE"}),
        ("\"quoted\" 'both' # ways", {"license": "other", "license_name": "\"quoted\" 'both' # ways"}),
        ("two\nlines: 1", {"license": "other", "license_name": "two\nlines: 1"}),
    ],
)
def test_the_front_matter_is_yaml_whatever_the_licence_is(run, tmp_path, licence, expected):
    model = read_model(run, checkpoint="last")
    front = front_matter(write_card(tmp_path, model.architecture, "huggingface", "", licence, model.about).read_text())
    assert {name: front.get(name) for name in ("license", "license_name") if name in front} == expected
    assert (front["library_name"], front["tags"], front["pipeline_tag"]) == (
        "transformers",
        ["pellucid"],
        "text-generation",
    )


@pytest.mark.parametrize("to", ["pellucid", "huggingface"])
def test_names_that_are_not_utf_8_are_written_escaped(run, tmp_path, to):
    shutil.copytree(run, tmp_path / "run")
    data = json.loads((run / "data.json").read_text())
    data["sources"][0]["path"] = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / "run" / "data.json").write_text(json.dumps(data))
    card = (pellucid.convert(tmp_path / "run", tmp_path / "out", to=to).folder / "README.md").read_text("utf-8")
    assert "`caf\\udce9.txt`: " in card


def test_a_card_recommends_no_tokenizer_that_is_not_there(run, tmp_path):
    model = read_model(run, checkpoint="last")
    for name, there in (("without", False), ("with", True)):
        (tmp_path / name).mkdir()
        if there:
            (tmp_path / name / "tokenizer_config.json").write_text("{}")
        card = write_card(tmp_path / name, model.architecture, "huggingface", "", None, model.about).read_text()
        assert ("AutoTokenizer" in card) is there


def test_merged_adapters_name_the_model_that_they_change(run, tmp_path):
    fields = {"adapt.rank": 2, "sample_every": 0, "device": "cpu", "batch": 4, "precision": "float32"}
    adapted = pellucid.train(run.parent / "text.txt", out=tmp_path / "adapted", from_model=run, steps=1, fields=fields)
    merged = pellucid.convert(adapted.path, tmp_path / "merged").folder
    card = (merged / "README.md").read_text()
    assert f"It is the model of the folder `{run.name}`, with low-rank adapters merged into it." in card
    assert "base_model" not in front_matter(card)  # which is for names on the hub
