"""A run does not depend on where its lines go; what else ends a command is one line."""

import errno
import io
import os
import re
import resource
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import FIELDS, Heard, forked, recipe_for, write_text

import pellucid
from pellucid import cli
from pellucid.destination import atomic_output
from pellucid.runs import pipeline
from pellucid.runs.checkpoint import mark_needed, needed_steps, steps_of
from pellucid.runs.device import check_fits
from pellucid.runs.interrupt import Interruption
from pellucid.runs.options import RecipeError
from pellucid.runs.reporter import PlainReporter
from pellucid.text.locking import locked
from pellucid.training.trainable import TransformerTrainable


def command(text: Path, out: Path) -> list[str]:
    fields = FIELDS | {"n_layers": 1, "steps": 2, "evaluate_every": 2, "sample_every": 0}
    pairs = {name: value for name, value in fields.items() if name != "ngrams"} | {"model.ngrams": ""}
    return ["train", str(text), f"--out={out}", *(f"--set={name}={value}" for name, value in pairs.items())]


@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
def test_a_full_disk_where_the_lines_go_does_not_end_a_run(tmp_path, numbers):
    text = write_text(tmp_path)

    def do() -> int:
        for number in numbers:
            os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        return cli.main(command(text, tmp_path / "run"))

    code, _, errors = forked(do, tmp_path, hang=60)
    assert code == 0, errors
    assert steps_of(tmp_path / "run")[-1] == 2
    if 2 not in numbers:
        assert errors.count("the output cannot be written (No space left on device)") == 1


def test_a_command_whose_answer_cannot_be_written_says_so_once(tmp_path):
    def do() -> int:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        return cli.main(["--version"])

    code, _, errors = forked(do, tmp_path, hang=60)
    assert (code, errors.splitlines()) == (2, ["pellucid: standard output: No space left on device"])


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_closed_standard_streams_do_not_end_a_run(tmp_path, closed):
    text = write_text(tmp_path)

    def do() -> int:
        for number in closed:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python does where it finds them closed
        code = cli.main(command(text, tmp_path / "run"))
        assert all(os.path.samestat(os.fstat(n), os.stat(os.devnull)) for n in closed)
        return code

    code, _, errors = forked(do, tmp_path, hang=60)
    assert code == 0, errors
    assert steps_of(tmp_path / "run")[-1] == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("unable to mmap 400 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("could not allocate memory"),
        RuntimeError("Failed to allocate 12 bytes"),
    ],
)
def test_what_any_allocator_says_is_reported_in_one_line(capsys, error):
    def do() -> int:
        raise error

    assert cli.exit_code_of(do) == 2
    assert capsys.readouterr().err.startswith("pellucid: out of memory: reduce batch, n_ctx or the model's size")


def test_other_errors_of_a_program_are_not_taken_for_memory():
    def do() -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        cli.exit_code_of(do)


def test_weights_that_do_not_fit_are_refused_before_they_are_allocated(tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match=r"1,099,511,627,776 parameters in float32 need 4096\.0 GiB and cpu has"):
        check_fits(1 << 40, torch.float32, "cpu")
    check_fits(1 << 40, torch.float32, "meta")
    run = pellucid.train(write_text(tmp_path), out=tmp_path / "run", fields=FIELDS, preset="small").path
    pellucid.load(run).save(tmp_path / "ours")
    monkeypatch.setattr("pellucid.runs.device.memory_bytes", lambda device: 1000)
    for model in (run, tmp_path / "ours"):
        with pytest.raises(RecipeError, match="parameters in float32 need"):
            pellucid.load(model, device="cpu")


def test_two_runs_started_together_without_a_name_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, heard = write_text(tmp_path), Heard()
    real = pipeline.write_run_dir

    def overtaken(run_dir: Path, *given) -> None:
        if run_dir == Path("runs") / "text":
            (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)  # the other run
        real(run_dir, *given)

    monkeypatch.setattr(pipeline, "write_run_dir", overtaken)
    run = pipeline.start_run(TransformerTrainable(recipe_for(text, steps=1)), None, heard)
    assert run.path == Path("runs") / "text-2"
    assert steps_of(run.path) == [1]
    assert "run: runs/text-2, because another run has taken that name" in heard.lines


def test_a_checkpoint_is_marked_as_needed_by_one_run_at_a_time(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with locked(tmp_path / "checkpoints" / "needed.lock"):
        threads = [threading.Thread(target=mark_needed, args=(tmp_path, step)) for step in (1, 2)]
        for thread in threads:
            thread.start()
        threads[0].join(0.05)
        assert needed_steps(tmp_path) == set()
    for thread in threads:
        thread.join()
    assert needed_steps(tmp_path) == {1, 2}


def test_a_closed_terminal_stops_as_sigterm_does_unless_it_is_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for is_ignored in (False, True):
            signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
            with Interruption() as interruption:
                if not is_ignored:
                    assert callable(signal.getsignal(signal.SIGHUP))  # else this test would end here
                os.kill(os.getpid(), signal.SIGHUP)
                assert interruption.exit_code == (0 if is_ignored else 129)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_line_that_cannot_be_written_is_left(tmp_path, capsys):
    with open("/dev/full", "w") as file:
        reporter = PlainReporter(file)
        reporter.line("one")
        reporter.line("two")
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_an_error_of_a_full_disk_names_the_result_that_was_being_written(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, atomic_output(tmp_path / "model.gguf"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "model.gguf")


def test_what_safetensors_cannot_write_names_the_result_that_was_being_written(tmp_path):
    def write() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError) as caught, atomic_output(tmp_path / "model") as folder:
            save_file({"weight": torch.zeros(1000)}, folder / "model.safetensors")
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "model"))
        return 0

    code, _, errors = forked(write, tmp_path, hang=60)
    assert code == 0, errors


def test_a_copy_of_standard_input_that_does_not_fit_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 2000)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def copy() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return cli.main(["tokenizer", "train", "-", f"--out={tmp_path}/tokenizer"])

    code, _, errors = forked(copy, tmp_path, hang=60)
    assert code == 2
    assert re.fullmatch(rf"pellucid: {tmp_path}/pellucid-\w+: File too large\n", errors)
