"""What commands wait for on a device that says cuda, and that they give there what they give on the CPU."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run_commands(folder: Path, *options: str) -> dict[str, Any]:
    """What `commands.py` prints, in a process of its own."""
    text = folder / "text.txt"
    text.write_text((HERE.parent / "data" / "shakespeare.txt").read_text(encoding="utf-8")[:6000], encoding="utf-8")
    command = [sys.executable, str(HERE / "commands.py"), str(text), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results(tmp_path_factory, needs_locked_torch) -> dict[str, Any]:
    return run_commands(tmp_path_factory.mktemp("pretended"))


def test_a_training_step_waits_for_nothing(results):
    assert results["a training step"] == results["a step in bfloat16"] == {}


def test_experts_wait_in_one_place_alone(results):
    """A layer asks how many rows each expert has, to divide them."""
    assert results["a step of experts"]
    assert all("model/mlp.py" in line for line in results["a step of experts"])


def test_an_evaluation_and_a_checkpoint_wait_twice_at_most(results):
    by_file: Counter[str] = Counter()
    for line, n in results["a run"].items():
        by_file[line.rpartition(", ")[2].partition(":")[0]] += n
    assert by_file["runs/figures.py"] <= 2  # the one evaluation
    assert by_file["model/transfer.py"] <= 2 * 2  # weights, and averages, of the checkpoints of steps 0 and 1
    assert not {"runs/checkpoint.py", "training/trainable.py", "runs/trainer.py"} & {*by_file}


@pytest.mark.parametrize("how", ["a token, likeliest", "a token, drawn", "a token of many rows"])
def test_a_token_waits_once(results, how):
    assert sum(results[how].values()) == 3  # of three further tokens
    assert [line.rpartition(":")[0] for line in results[how]] == ["tolist, generate/decode.py"]


@pytest.mark.parametrize(
    "what",
    [
        "trains as the CPU does",
        "resumes bit for bit",
        "likeliest as the CPU",
        "drawn as the CPU",
        "scores and traces as the CPU",
        "saved",
    ],
)
def test_the_device_gives_what_the_cpu_gives(results, what):
    assert results[what] is True


def test_a_device_without_float64_trains_samples_and_scores(tmp_path, needs_locked_torch):
    found = run_commands(tmp_path, "no-float64")
    assert len(found["texts"]) == 2
    assert -1000 < found["loss"] < 0
