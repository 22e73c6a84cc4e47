"""`pellucid doctor` says what is here, what is slow or missing, and what helps."""

import pytest
import torch

from pellucid import machine_check
from pellucid.cli import main
from pellucid.machine_check import DISK_ROOM, check_machine, problems, usable_cores

SPEEDS = {"float32": 1e11, "bfloat16": 2e11}
CPU = torch.device("cpu")


def test_facts_of_the_machine_and_the_installation_are_printed(capsys):
    assert main(["doctor"]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"processor", "cores, threads", "memory", "device", "products", "torch", "cache folder"} <= set(names)


@pytest.fixture
def sound(monkeypatch):
    """A machine where nothing is missing."""
    monkeypatch.setattr(machine_check, "missing_functions", lambda device: {})
    monkeypatch.setattr(machine_check, "compiling_lacks", lambda device: "")
    monkeypatch.setattr(machine_check, "usable_cores", torch.get_num_threads)
    monkeypatch.setattr(machine_check, "missing_packages", lambda extra: [])
    monkeypatch.setattr(machine_check.shutil, "which", lambda name: None)


def test_a_sound_machine_has_no_problems(sound):
    assert problems(CPU, SPEEDS, DISK_ROOM) == []


@pytest.mark.parametrize(
    ("changed", "value", "says"),
    [
        ("missing_functions", lambda device: {"step_functions": "there is no C++ compiler"}, "Install g++"),
        ("compiling_lacks", lambda device: "there is no C++ compiler here", "torch.compile cannot be used"),
        ("usable_cores", lambda: torch.get_num_threads() + 3, "set OMP_NUM_THREADS="),
        (
            "missing_packages",
            lambda extra: ["gguf"] if extra == "gguf" else [],
            "missing: gguf, for files of llama.cpp: pip install 'pellucid[gguf]'",
        ),
    ],
)
def test_each_problem_says_what_helps(sound, monkeypatch, changed, value, says):
    monkeypatch.setattr(machine_check, changed, value)
    (only,) = problems(CPU, SPEEDS, DISK_ROOM)
    assert says in only


def test_slow_products_a_full_disk_and_an_unused_gpu_are_named(sound, monkeypatch):
    assert "take float32" in problems(CPU, {"float32": 2e11, "bfloat16": 1e11}, DISK_ROOM)[0]
    assert "PELLUCID_CACHE" in problems(CPU, SPEEDS, DISK_ROOM - 1)[0]
    monkeypatch.setattr(machine_check.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "a build of torch with CUDA" in problems(CPU, SPEEDS, DISK_ROOM)[0]


def test_a_check_that_finds_nothing_says_so(sound, monkeypatch):
    monkeypatch.setattr(machine_check, "matmul_seconds", lambda *_: 1e-3)
    monkeypatch.setattr(machine_check, "free_on_disk", lambda folder: DISK_ROOM)
    assert str(check_machine()).endswith("nothing is missing or slower than it need be")
    assert usable_cores() >= 1
