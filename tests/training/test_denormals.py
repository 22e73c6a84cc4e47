import platform

import pytest
import torch
from tests.training.tiny import assert_same_run, start, write_text

from pellucid.runs import denormals as module
from pellucid.runs.denormals import flushed_denormals
from pellucid.runs.trainer import Trainer

#: on other processors than these the file changes nothing
FLUSHES = platform.machine() in ("x86_64", "AMD64")


def zeros() -> float:
    """The share of a large product that is 0 though it is the denormal number 1e-40, which every thread computes."""
    return float((torch.full((1 << 20,), 1e-30) * 1e-10 == 0).double().mean())


def test_where_there_is_a_compiler_the_file_can_be_used():
    """Every machine that the tests run on has one."""
    assert module.SOURCE.load()[1] == ""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_flushes_inside_and_none_behind(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert zeros() == 0
        with flushed_denormals():
            assert zeros() == FLUSHES
            with flushed_denormals():
                assert zeros() == FLUSHES
            assert zeros() == FLUSHES
        assert zeros() == 0
    finally:
        torch.set_num_threads(before)


def test_denormal_operands_count_as_zero_too():
    tiny = torch.full((1 << 20,), 1e-40)
    assert (tiny * 1e10 > 0).all()
    with flushed_denormals():
        assert (tiny * 1e10 == 0).double().mean() == FLUSHES


def test_an_error_ends_it():
    with pytest.raises(ZeroDivisionError), flushed_denormals():
        raise ZeroDivisionError
    assert zeros() == 0


def test_who_had_asked_for_it_before_keeps_it():
    asked = torch.set_flush_denormal(True)
    try:
        with flushed_denormals():
            pass
        assert zeros() > 0 or not asked
    finally:
        torch.set_flush_denormal(False)
        with flushed_denormals():  # the other threads of the team took the calling one's setting
            pass
    assert zeros() == 0


def test_without_a_compiler_no_thread_changes(monkeypatch):
    monkeypatch.setattr(module.SOURCE, "is_loaded", False)
    with flushed_denormals():
        assert zeros() == 0


def test_a_run_takes_its_steps_so_and_ends_the_same_as_one_of_ordinary_numbers(tmp_path, monkeypatch):
    seen, take = [], Trainer.take_step
    monkeypatch.setattr(Trainer, "take_step", lambda self: (seen.append(zeros()), take(self))[1])
    text = write_text(tmp_path)
    start(text, tmp_path / "flushed")
    assert seen == [FLUSHES] * 12
    assert zeros() == 0

    monkeypatch.setattr(module.SOURCE, "is_loaded", False)
    start(text, tmp_path / "ordinary")
    assert seen == [FLUSHES] * 12 + [0] * 12
    assert_same_run(tmp_path / "flushed", tmp_path / "ordinary")
