"""Memory that is freed between steps: kept while steps are taken, given back afterwards, and never beyond a bound."""

import os
import subprocess
import sys

import pytest
from tests.training.tiny import assert_same_run, start, write_text

from pellucid.runs import kept_memory as module
from pellucid.runs.kept_memory import (
    DEFAULT_THRESHOLDS,
    MOST_OF_MEMORY,
    TRAINING_THRESHOLDS,
    KeptMemory,
    glibc,
    kept_memory,
    resident_bytes,
)
from pellucid.runs.trainer import Trainer


@pytest.fixture
def thresholds(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """What is told to a C library that only listens."""
    told: list[dict[int, int]] = []

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            told.append({name: value})
            return 1

        def malloc_trim(self, keep: int) -> int:
            told.append({})
            return 1

    monkeypatch.setattr(module, "glibc", Library)
    return told


def test_thresholds_are_raised_once_and_put_back_at_the_end_of_the_outermost_context(thresholds):
    kept = KeptMemory()
    with kept():
        raised = list(thresholds)
        with kept():
            pass
        assert thresholds == raised == [{name: value} for name, value in TRAINING_THRESHOLDS.items()]
        assert kept.is_on
    assert thresholds[len(raised) :] == [*({name: value} for name, value in DEFAULT_THRESHOLDS.items()), {}]
    assert not kept.is_on


def test_they_are_put_back_where_the_steps_fail(thresholds):
    kept = KeptMemory()
    with pytest.raises(ZeroDivisionError), kept():
        _ = 1 / 0
    assert thresholds[-1] == {}
    assert not kept.is_on


def test_a_process_above_its_share_of_memory_keeps_nothing_more(thresholds, monkeypatch):
    monkeypatch.setattr(module, "memory_bytes", lambda device: 1000)
    kept = KeptMemory()
    with kept():
        thresholds.clear()
        monkeypatch.setattr(module, "resident_bytes", lambda: int(1000 * MOST_OF_MEMORY / 2))
        kept.bound(2)
        assert thresholds == []
        assert kept.is_on
        monkeypatch.setattr(module, "resident_bytes", lambda: int(1000 * MOST_OF_MEMORY / 2) + 1)
        kept.bound(2)
        assert thresholds[-1] == {}
        assert not kept.is_on
        thresholds.clear()
        kept.bound(2)  # once is enough
        assert thresholds == []


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_sets_is_left_alone(monkeypatch, name):
    for other in [other for other in os.environ if other.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(other)
    assert glibc() is not None
    monkeypatch.setenv(name, "glibc.malloc.trim_threshold=1" if name == "GLIBC_TUNABLES" else "65536")
    assert glibc() is None


def test_the_resident_memory_grows_with_what_is_touched():
    assert resident_bytes() > 1 << 20
    before = resident_bytes()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert resident_bytes() - before > len(block) // 2


FAULTS = """
import resource, sys, torch
from pellucid.runs.kept_memory import kept_memory, resident_bytes

def faults_of_steps():
    for _ in range(3):
        torch.ones(12 << 20)  # 48 MiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(16):
        torch.ones(12 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults_of_steps()
before = resident_bytes()
with kept_memory():
    kept = faults_of_steps()
print(usual, kept, resident_bytes() - before)
"""


def test_pages_are_found_again_and_given_back():
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, env=environment, check=True)
    usual, kept, more = map(int, done.stdout.split())
    assert usual >= 16 * 48 // 2  # where all pages are large ones, of 2 MiB
    assert kept < usual / 4  # something small may take the beginning of a free block, and the heap grows by one more
    assert more < 8 << 20


def test_a_run_takes_its_steps_while_memory_is_kept_and_ends_the_same_without(tmp_path, thresholds, monkeypatch):
    users, take = [], Trainer.take_step
    monkeypatch.setattr(Trainer, "take_step", lambda self: (users.append(kept_memory.users), take(self))[1])
    text = write_text(tmp_path)
    start(text, tmp_path / "kept")
    assert users == [1] * 12
    assert kept_memory.users == 0

    # each step of a process without any room gives back what it has freed, and computes the same
    monkeypatch.setattr(module, "memory_bytes", lambda device: 1)
    thresholds.clear()
    start(text, tmp_path / "bounded")
    assert thresholds.count({}) == 2  # after the first step, and at the end
    assert_same_run(tmp_path / "kept", tmp_path / "bounded")
