"""benchmarks/quick.py compares ratios with those logged for this kind of machine; nothing is timed here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import quick, training_worker
from benchmarks.quick import LoggedRatio, compare, kind_of_machine, read_log, verdict, write_log
from benchmarks.side_by_side import Measured
from benchmarks.training import peak_of

LOGGED = {"encoding": LoggedRatio(1.9, 2.0, 2.1)}
ENTRY = {"commit": "abc1234", "date": "2026-11-23"}


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("avx avx2 avx512f avx512_bf16 amx_tile amx_bf16", "amx, 2 threads"),
        ("avx avx2 avx512f avx512_bf16", "avx512_bf16, 2 threads"),
        ("avx avx2 avx512f", "avx512, 2 threads"),
        ("avx avx2", "avx2, 2 threads"),
        ("neon", "other, 2 threads"),
    ],
)
def test_a_machine_is_of_the_kind_of_its_widest_instructions(flags, kind):
    assert kind_of_machine(f"model name : A\nflags : fpu {flags}\n", 2) == kind


def test_another_number_of_threads_is_another_kind():
    assert kind_of_machine("flags: avx2", 1) == "avx2, 1 thread"


@pytest.mark.parametrize(
    ("values", "slower"),
    [
        ([1.5, 1.6, 1.55, 1.5], True),
        # within a tenth
        ([1.82, 1.83, 1.82, 1.84], False),
        # the spread reaches what was logged
        ([1.2, 1.3, 1.6, 2.2, 2.3], False),
        ([2.6, 2.5, 2.7], False),
    ],
)
def test_a_ratio_is_slower_beyond_the_margin_and_the_spread(values, slower):
    rows, names = compare({"encoding": Measured("", values)}, LOGGED)
    assert names == (["encoding"] if slower else [])
    assert ("SLOWER" in rows[0][-1]) == slower
    assert verdict(names, ENTRY, "avx2, 2 threads").startswith(
        "SLOWER than commit abc1234" if slower else "No ratio is"
    )


@pytest.mark.parametrize(
    ("chip", "peak"),
    [
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", 756e12),
    ],
)
def test_a_chip_s_peak_is_not_that_of_one_whose_name_begins_its_own(chip, peak):
    assert peak_of(chip) == peak


def test_what_was_not_logged_or_not_measured_has_a_row():
    rows, names = compare({"new": Measured("", [1.0])}, LOGGED)
    assert [row[:3] for row in rows] == [
        ["new", "1.00 (1.00 ... 1.00)", "not logged"],
        ["encoding", "not measured", "2.00"],
    ]
    assert names == []
    assert "Nothing is logged for this kind of machine (amx, 2 threads)" in verdict(names, None, "amx, 2 threads")


def test_the_log_is_read_as_written_and_other_kinds_keep_theirs(tmp_path):
    path = tmp_path / "quick.json"
    assert read_log(path) == {}
    for kind, values in (("amx, 2 threads", [3.0]), ("avx2, 2 threads", [1.23456, 2.0, 1.5])):
        write_log(path, kind, {"encoding": Measured("", values)}, **ENTRY, versions="torch 2")
    assert read_log(path)["amx, 2 threads"]["ratios"] == {"encoding": [3.0, 3.0, 3.0]}
    assert read_log(path)["avx2, 2 threads"] == {
        **ENTRY,
        "versions": "torch 2",
        "ratios": {"encoding": [1.23, 1.5, 2.0]},
    }


def test_what_is_logged_is_what_is_measured():
    """A ratio that gets another name, or another meaning, is logged again."""
    names = [name for names in quick.GROUPS.values() for name in names]
    assert len(set(names)) == len(names) == 10
    for kind, entry in read_log(quick.LOG_FILE).items():
        assert list(entry["ratios"]) == sorted(names), kind
        assert all(low <= median <= high for low, median, high in entry["ratios"].values())


def test_the_measured_step_of_training_is_a_step_of_a_run():
    shape = (1, 2, 32, 16, 2, 64)
    given = {"shape": shape, "device": "cpu", "precision": "float32", "compile": False}
    ids = np.random.default_rng(0).integers(0, 64, 1 << 10)
    with training_worker.UNTIL_THE_END:
        network, step = training_worker.pellucid(given, ids)
        before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
        step()
        step()
    assert not any(torch.equal(weight, before[name]) for name, weight in network.named_parameters())
