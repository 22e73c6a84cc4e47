"""What is wrong with the text, a choice or the machine: one line, exit code 2, and nothing written."""

import io
import json
import os
import resource
import sys
from pathlib import Path

import pytest
from tiny import FIELDS, SHAKESPEARE, forked

from pellucid import cli
from pellucid.runs.checkpoint import steps_of

TINY = [f"--set={name}={value}" for name, value in FIELDS.items() if name != "steps"] + ["--steps", "2"]


def tiny_with(*arguments: str) -> list[str]:
    """The options of TINY in which these arguments are not given, and these."""
    flags = [word for word in arguments if word.startswith("-") or "=" in word]
    names = {flag.lstrip("-").removeprefix("set=").partition("=")[0] for flag in flags}
    return [word for word in TINY if word.removeprefix("--set=").partition("=")[0] not in names] + [*arguments]


def refused(tmp_path: Path, capsys, *arguments: object, tiny: bool = True) -> str:
    """The line on stderr; shows that there is one, without a traceback, and that no folder was made."""
    before = sorted(p for p in tmp_path.rglob("*") if "cache" not in p.parts)
    given = [*map(str, arguments), *(TINY if tiny else [])]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "run")]
    assert cli.main(["train", *given]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("pellucid: ")
    assert len(errors.splitlines()) == 1, errors
    assert sorted(p for p in tmp_path.rglob("*") if "cache" not in p.parts) == before
    assert not list((tmp_path / "cache").glob(".*"))
    return errors


def test_no_such_path(tmp_path, capsys):
    assert "there is no such file or folder" in refused(tmp_path, capsys, tmp_path / "none.txt")
    assert "no text was named" in refused(tmp_path, capsys)


def test_an_empty_folder_and_an_empty_file(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    assert "there is no text to read" in refused(tmp_path, capsys, tmp_path / "texts")
    (tmp_path / "texts" / "a.txt").write_text("")
    assert "there is no text to read" in refused(tmp_path, capsys, tmp_path / "texts")


def test_a_binary_file(tmp_path, capsys):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 10)
    assert "it is binary" in refused(tmp_path, capsys, tmp_path / "a.bin")


@pytest.mark.parametrize("content", ["x", "To be", "To be, or not"])
def test_too_little_text(tmp_path, capsys, content):
    (tmp_path / "a.txt").write_text(content)
    errors = refused(tmp_path, capsys, tmp_path / "a.txt")
    assert "too few" in errors


def test_fewer_tokens_than_a_window_whatever_the_length(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("To be, or not to be, that is the question.")
    for length in (["--steps", "2"], ["--minutes", "0.01"]):
        given = [tmp_path / "a.txt", "--tokenizer", "byte", "--set", "n_ctx=64", "--set", "d_model=16", *length]
        errors = refused(tmp_path, capsys, *given, "--set", "n_heads=2", tiny=False)
        assert "too few for one window of n_ctx + 1 = 65: give more text or a smaller n_ctx" in errors


def test_an_output_folder_that_exists(tmp_path, capsys, text):
    (tmp_path / "there").mkdir()
    errors = refused(tmp_path, capsys, text, "--out", tmp_path / "there")
    assert "exists: choose another folder, or continue that run with --resume" in errors


def test_without_out_the_next_free_name_is_taken(tmp_path, text, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(["train", str(text), *TINY]) == 0
    assert "run: runs/text-2" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["text", "text-2"]


@pytest.mark.parametrize(
    "sizes", [["d_model=3000000"], ["n_layers=9999", "d_model=4096"], ["n_ctx=100000000"], ["batch=900000000"]]
)
def test_sizes_that_cannot_fit_are_refused_before_anything_is_allocated(tmp_path, text, sizes):
    def train() -> int:
        # address space for what there is and half a gigabyte: building the network would end in MemoryError
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fields = tiny_with(*(f"--set={size}" for size in sizes))
        code = cli.main(["train", str(text), "--out", str(tmp_path / "run"), *fields])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
        return code

    code, _, errors = forked(train, tmp_path)
    assert code == 2, errors
    assert "would need at least " in errors
    assert " GiB and cpu has " in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "d_model=18", "--set", "n_heads=4"], "expected a divisor of d_model = 18"),
        (["--preset", "big"], "there is no preset 'big'"),
        (["--tokenizer", "bep"], "bep: there is no such tokenizer; did you mean bpe? expected bpe, word, char, byte"),
        (["--tokenizer", "byte", "--vocabulary", "400"], "expected auto where text.tokenizer = byte"),
        (["--device", "gpu"], "--device gpu: expected auto, cpu, cuda, mps"),
        (["--set", "device=meta"], "train.device = 'meta': say auto, cpu, cuda, mps"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--set", "modle.d_model=3"], "did you mean 'model.d_model'?"),
        (["--set", "lr=1"], "did you mean 'train.learning_rate'?"),
        (["--set", "d_model"], "expected FIELD=VALUE"),
        (["--held-out", "2"], "expected a share between 0 and 1"),
        (["--minutes", "1"], "the length is given twice, by minutes and steps"),
        (["--set", "tokens=9"], "the length is given twice, by steps and tokens"),
        (["--from", "nowhere"], "nowhere is not a folder here and could not be downloaded from the hub"),
        (["--recipe", "none.toml"], "--recipe none.toml: expected a file"),
    ],
)
def test_a_choice_that_does_not_exist(tmp_path, capsys, text, arguments, says):
    assert says in refused(tmp_path, capsys, text, *tiny_with(*arguments), tiny=False)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_length_that_is_none(tmp_path, capsys, text, minutes):
    assert "expected a number above 0" in refused(tmp_path, capsys, text, "--minutes", minutes, tiny=False)


def test_compiling_without_a_compiler(tmp_path, capsys, text, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    errors = refused(tmp_path, capsys, text, *tiny_with("--set", "compile=yes"), tiny=False)
    assert "there is no C++ compiler here" in errors


def test_a_full_disk_leaves_no_folder(tmp_path, capsys, text, monkeypatch):
    import errno

    from pellucid import destination

    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(destination, "open", full, raising=False)
    assert "No space left on device" in refused(tmp_path, capsys, text)


def test_bytes_that_are_not_text_are_counted_replaced_and_reported(tmp_path, capsys):
    content = SHAKESPEARE.read_bytes()[:3000]
    (tmp_path / "a.txt").write_bytes(content[:500] + b"\xff\xfe" + content[500:] + b"\xc3")
    assert cli.main(["train", str(tmp_path / "a.txt"), "--out", str(tmp_path / "run"), *TINY]) == 0
    out = capsys.readouterr().out
    assert "3 sequences of bytes are not UTF-8 and became U+FFFD" in out
    assert steps_of(tmp_path / "run")[-1] == 2


def test_files_that_are_left_out_are_reported(tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(SHAKESPEARE.read_bytes()[:3000])
    (folder / "b.bin").write_bytes(b"\0\1\2")
    assert cli.main(["train", str(folder), "--out", str(tmp_path / "run"), *TINY]) == 0
    assert "skipped b.bin: it is binary" in capsys.readouterr().out


def test_characters_without_an_id_are_counted(tmp_path, capsys):
    content = SHAKESPEARE.read_text(encoding="utf-8")[:3000]
    (tmp_path / "a.txt").write_text(content + "éé" * 2, encoding="utf-8")
    fields = [field for field in TINY if "tokenizer" not in field]
    assert (
        cli.main(["train", str(tmp_path / "a.txt"), "--out", str(tmp_path / "run"), "--tokenizer=char", *fields]) == 0
    )
    assert "4 characters are not in the tokenizer's vocabulary" in capsys.readouterr().out


class Piped:
    """Standard input with a text in it."""

    def __init__(self, text: bytes):
        self.buffer = io.BytesIO(text)

    def isatty(self) -> bool:
        return False


def test_text_of_standard_input_is_trained_on(tmp_path, monkeypatch):
    """It can be read once, and is looked into before it is read."""
    monkeypatch.setattr(sys, "stdin", Piped(SHAKESPEARE.read_bytes()[:3000]))
    assert cli.main(["train", "-", "--out", str(tmp_path / "run"), *TINY]) == 0
    [source] = json.loads((tmp_path / "run" / "data.json").read_bytes())["sources"]
    assert (source["path"], source["n_bytes"]) == ("-", 3000)
