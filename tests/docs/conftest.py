"""A folder as a reader of the pages has it: texts, a chapter, pairs, conversations, a small run, and a tiny GPT-2."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT

import pellucid

SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 48, "n_ctx": 32, "sample_every": 0, "compile": "no"}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; `desk` is a copy of it."""
    folder = tmp_path_factory.mktemp("desk")
    text = (ROOT / "tests" / "data" / "shakespeare.txt").read_text(encoding="utf-8")
    (folder / "my_texts").mkdir()
    for i in range(10):
        (folder / "my_texts" / f"{i}.txt").write_text(text[2000 * i : 2000 * (i + 1)], encoding="utf-8")
    (folder / "shakespeare.txt").write_text(text[:20_000], encoding="utf-8")
    (folder / "chapter.txt").write_text(text[:1000], encoding="utf-8")
    numbers = ["one", "two", "three", "four", "five"]
    pairs = [f"{a} {b} {c}\t{c} {b} {a}" for a in numbers for b in numbers for c in numbers]
    (folder / "pairs.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    lines = [json.dumps({"messages": [said[0] | {"content": f"hi {i}"}, said[1]]}) for i in range(20)]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        pellucid.train("my_texts", steps=2, out="runs/my_texts", fields=SIZES)
        pellucid.train("my_texts", steps=2, out="runs/tiny-gpt2", preset="gpt2", fields=SIZES)
        pellucid.convert("runs/tiny-gpt2", "gpt2")
    return folder


@pytest.fixture
def desk(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy without runs, which the pages make themselves, to work in."""
    return _copy(prepared, tmp_path / "desk", monkeypatch, without=("runs",))


@pytest.fixture
def desk_with_runs(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy with the run `runs/my_texts`."""
    return _copy(prepared, tmp_path / "desk", monkeypatch)


def _copy(prepared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...] = ()) -> Path:
    shutil.copytree(prepared, folder, ignore=shutil.ignore_patterns("cache", *without))
    monkeypatch.setenv("PELLUCID_CACHE", str(prepared / "cache"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Good morning.\n"))
    return folder
