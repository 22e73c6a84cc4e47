"""The command that is prepared for the minutes in which a GPU is at hand, run dry on the CPU."""

import json
import subprocess
import sys

import pytest

FIGURES = {
    "machine": {"processor", "product_tflops_float32", "memory_gib"},
    "reference": {"largest_difference"},
    "resume": {"passed"},
    "training": {"tokens_per_second", "share_of_products"},
    "decoding": {"tokens_per_second_of_1", "tokens_per_second_of_4"},
    "tests": {"skipped"},
}


def drill(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_drill", "--device", "cpu", "--scale", "tiny", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_part_of_the_drill_runs_dry_on_the_cpu(tmp_path):
    lines = tmp_path / "results" / "drill.jsonl"
    done = drill("--out", str(lines), "--slower", "3")
    results = {row["part"]: row for row in map(json.loads, lines.read_text().splitlines())}
    assert [*results] == [*FIGURES], done.stderr
    for part, figures in FIGURES.items():
        assert figures <= {*results[part]}, results[part]
        assert results[part].get("passed", True) is True
    assert done.returncode == 0
    assert f"| training | tokens per second | {results['training']['tokens_per_second']:.4g} |" in done.stdout


@pytest.mark.slow
def test_a_part_that_takes_too_long_has_no_figures_and_ends_no_other(tmp_path):
    lines = tmp_path / "drill.jsonl"
    done = drill("--out", str(lines), "--slower", "0.001", "--parts", "training", "reference")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["part"] for row in rows] == ["training", "reference"]
    assert [{*row} for row in rows] == [{"part", "seconds", "failed"}] * 2
    assert all(row["failed"].startswith("not done after") for row in rows)
    assert done.returncode == 1
