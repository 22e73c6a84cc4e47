"""The command line as a user meets it: what it prints, what it refuses, and the exit codes."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pellucid import __version__, cli

SHAKESPEARE = Path(__file__).parent.parent / "data" / "shakespeare.txt"
FIELDS = ["d_model=16", "n_layers=2", "n_heads=2", "n_ctx=16", "compile=no", "precision=float32", "evaluate_every=2"]
TINY = ["--tokenizer", "byte", "--device", "cpu", *(f"--set={field}" for field in FIELDS)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of four steps, made by a process of its own in an empty folder."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "my texts.txt"
    text.write_text(SHAKESPEARE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    environment = os.environ | {"PELLUCID_CACHE": str(folder / "cache"), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "pellucid", "train", text.name, "--steps", "4", *TINY]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout  # no terminal: plain lines
    (folder / "output").write_text(done.stdout)
    return folder / "runs" / "my-texts"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))


def test_training_says_what_it_does(trained):
    output = (trained.parent.parent / "output").read_text()
    for piece in (
        "text: 1 document, 4,000 bytes",
        " parameters, 2 layers, width 16",
        "device: cpu",
        "; float32, fused attention",
        "length: 4 steps of 2,048 tokens, as asked",
        f"run: {Path('runs') / 'my-texts'}",
        "step 4/4  loss ",
        "bits/byte",
        "--- sample at step 4",
    ):
        assert piece in output, piece
    made = {p.name for p in trained.iterdir()}
    assert made == {
        "architecture.json",
        "checkpoints",
        "data.json",
        "lock",
        "machine.json",
        "metrics.jsonl",
        "recipe.json",
        "report.html",
        "tokenizer.json",
        "baselines.json",
        "choices.json",
    }
    assert json.loads((trained / "recipe.json").read_bytes())["options"]["train"]["steps"] == 4


def test_generated_texts_and_conversions_are_json_for_scripts(trained, tmp_path, capsys):
    asked = ["generate", str(trained), "ROMEO:", "--n", "2", "--seed", "1", "--max-tokens", "5", "--json"]
    assert cli.main(asked) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["prompt"] == second["prompt"] == "ROMEO:"
    assert (first["seed"], first["sample"], second["sample"]) == (1, 0, 1)
    assert len(first["ids"]) == 5
    assert cli.main([*asked, "--no-stream"]) == 2
    assert "--json prints texts that are complete" in capsys.readouterr().err
    assert cli.main(["convert", str(trained), str(tmp_path / "out"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["path"] == str(tmp_path / "out")
    assert written["parity"].startswith("parity with")
    assert written["needs_code"] == any((tmp_path / "out").glob("*.py"))


def test_a_trained_run_is_used(trained, capsys):
    for extra in ([], ["--no-stream"]):
        assert cli.main(["generate", str(trained), "ROMEO:", "--seed", "1", "--max-tokens", "20", *extra]) == 0
    first, second = capsys.readouterr().out.split("ROMEO:")[1:]
    assert first == second
    text = trained.parent.parent / "my texts.txt"
    assert cli.main(["score", str(trained), str(text)]) == 0
    assert "bits per byte" in capsys.readouterr().out
    assert cli.main(["generate", str(trained), "x", "--checkpoint", "7"]) == 2
    assert "step 7" in capsys.readouterr().err


def test_a_damaged_last_checkpoint_is_warned_of(trained, capsys, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "checkpoints" / "step-00000004" / "state.json").write_text("{}")
    given = ["generate", str(run), "x", "--max-tokens", "1", "--seed", "1", "--checkpoint"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main([*given, "last"]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith("pellucid: warning: ")
    assert "step 4 passed over: state.json" in errors
    assert "taking step 3" in errors  # the one before the decay
    assert len(errors.splitlines()) == 1
    assert cli.main([*given, "4"]) == 2
    assert "no usable checkpoint" in capsys.readouterr().err


def test_tokenizers(tmp_path, capsys):
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be " * 50)
    folder = tmp_path / "tokenizer"
    assert cli.main(["tokenizer", "train", str(text), "--out", str(folder), "--kind", "char"]) == 0
    assert "ids, written to" in capsys.readouterr().out
    assert cli.main(["tokenizer", "encode", str(folder), "to be"]) == 0
    ids = [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(ids) == 5
    text.write_text("to\nbe\x1b[2J " * 50)
    assert cli.main(["tokenizer", "train", str(text), "--out", str(tmp_path / "other"), "--kind", "char"]) == 0
    capsys.readouterr()
    assert cli.main(["tokenizer", "encode", str(tmp_path / "other"), "o\n\x1b"]) == 0
    assert [line.partition("\t")[2] for line in capsys.readouterr().out.splitlines()] == ["'o'", r"'\n'", r"'\x1b'"]
    assert cli.main(["tokenizer", "decode", str(folder), *ids]) == 0
    assert capsys.readouterr().out == "to be\n"
    assert cli.main(["tokenizer", "train", str(text), "--out", str(folder)]) == 2
    assert "exists" in capsys.readouterr().err


def test_files_that_are_left_out_are_named_by_the_commands_of_tokenizers(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "good.txt").write_text("to be or not to be " * 50)
    (texts / "bad.jsonl").write_text("{")
    for command in (["show", str(trained), str(texts)], ["encode-corpus", str(texts), "--tokenizer", str(trained)]):
        assert cli.main(["tokenizer", *command, "--skip-bad"]) == 0
        errors = capsys.readouterr().err
        assert "1 file that cannot be read was left out" in errors
        assert "skipped bad.jsonl: it cannot be read: line 1" in errors


def test_a_gguf_file_is_refused_at_once_without_its_package(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pellucid.conversion.request.is_importable", lambda name: False)
    assert cli.main(["convert", str(trained), str(tmp_path / "model.gguf")]) == 2
    assert "GGUF files are written by the package gguf: pip install 'pellucid[gguf]'" in capsys.readouterr().err
    assert not (tmp_path / "model.gguf").exists()


def test_hosts_may_be_named_several_times(trained, monkeypatch):
    """Each --host is another name by which the server is asked."""
    heard = []
    monkeypatch.setattr("pellucid.serve.app.make_app", lambda served, **given: heard.extend(given["hosts"]))
    monkeypatch.setattr("pellucid.serve.server.run_app", lambda *given: None)
    assert cli.main(["serve", str(trained), "--host", "a.example", "--host", "b.example"]) == 0
    assert heard[-2:] == ["a.example", "b.example"]


def test_texts_are_scored_by_what_can(trained, tmp_path, capsys):
    """A predictor has no windows to move by a stride, nor has a mixture with one."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / "two").mkdir(exist_ok=True)
        (tmp_path / "two" / name).write_text("to be, or not to be, that is the question: " * 9)
    assert cli.main(["score", str(trained), str(tmp_path / "two")]) == 0
    assert " over 2 documents, " in capsys.readouterr().out
    assert cli.main(["score", str(trained), str(tmp_path / "two" / "a.txt"), "--stride", "5"]) == 0
    counted = [str(tmp_path / "two"), "--predictor", "ngram", "--tokenizer", "byte", "--out", str(tmp_path / "ngram")]
    assert cli.main(["train", *counted]) == 0
    capsys.readouterr()
    one = str(tmp_path / "two" / "a.txt")
    for model in ([str(tmp_path / "ngram"), one], [str(trained), one, "--mix", str(tmp_path / "ngram")]):
        assert cli.main(["score", *model]) == 0
        assert cli.main(["score", *model, "--stride", "5"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"], ["-h"]])
def test_the_overview(arguments, capsys):
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name:<12}" in out for name in (*cli.COMMANDS, "tokenizer"))


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pellucid {__version__}\n"


@pytest.mark.parametrize("arguments", [["trian"], ["tokenizer", "trian"], ["--fast"]])
def test_a_command_that_does_not_exist(arguments, capsys):
    assert cli.main(arguments) == 2
    assert f"there is no command {arguments[-1]!r}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["train", "--stepz", "3"], ["train", "x", "--steps", "many"], ["generate"]])
def test_an_option_that_does_not_exist_ends_with_2(arguments, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err


def test_fields_are_split_at_the_first_equals_sign():
    assert cli.parse_fields(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for pair in ("a", "=1"):
        with pytest.raises(ValueError, match="expected FIELD=VALUE"):
            cli.parse_fields([pair])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("wrong\nsecond line"), 2),
        (FileNotFoundError(2, "No such file", "x"), 2),
        (KeyboardInterrupt(), 130),
        (KeyboardInterrupt(143), 143),
        (MemoryError(), 2),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried"), 2),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(error, code, monkeypatch, capsys):
    def fail() -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "score", fail)
    assert cli.main(["score"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "runs/x"), "pellucid: runs/x: Permission denied\n"),
        (OSError(28, "No space left on device"), "pellucid: No space left on device\n"),
        (OSError("the disk is gone"), "pellucid: the disk is gone\n"),
    ],
)
def test_an_error_of_the_system_is_said_in_words(error, said, monkeypatch, capsys):
    def fail() -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "score", fail)
    assert cli.main(["score"]) == 2
    assert capsys.readouterr().err == said


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail() -> int:
        raise RuntimeError("a bug")

    monkeypatch.setitem(cli.COMMANDS, "score", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["score"])


def test_a_reader_that_goes_away_is_no_error():
    script = "import sys; from pellucid.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert errors == b""


def test_help_imports_nothing_heavy():
    script = "import sys, pellucid.cli as c; c.main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_weights_are_chosen_and_said(trained, capsys):
    given = ["generate", str(trained), "the the the", "--max-tokens", "30", "--temperature", "0"]
    assert cli.main([*given, "--weights", "loaded"]) == 0
    plain = capsys.readouterr()
    assert "weights: as loaded" in plain.err
    assert cli.main([*given, "--weights", "int8"]) == 0
    assert re.search(r"^weights: int8, [01]\.\d\d% from float32 \(", capsys.readouterr().err, re.MULTILINE)
    assert cli.main([*given, "--weights", "float16"]) == 2
    assert "int4" in capsys.readouterr().err
    assert cli.main([*given, "--weights", "int8", "--compile", "yes", "--n", "2"]) == 2
    assert "it reads a single text and 2 are generated together; leave compile at auto" in capsys.readouterr().err
