"""Every command and every Python block of the README runs, with lengths cut short."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import pellucid
from pellucid.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = ROOT / "tests" / "data"

#: what a command of the README takes minutes for, and what is run here instead
SHORTER = {
    "--minutes 10": "--steps 3 --set n_layers=1 --set d_model=48 --set n_ctx=32",
    "--set n_layers=4 --set n_heads=4 --set d_model=128": "--set n_layers=1 --set n_heads=4 --set d_model=32",
    "--steps 2000": "--steps 3",
    "minutes=10": "steps=3, fields={'n_layers': 1, 'd_model': 48, 'n_ctx': 32}",
    "max_tokens=200": "max_tokens=5",
    "--seed 1": "--seed 1 --max-tokens 5",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shortened(text: str) -> str:
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader of the README has it: some texts, a chapter, and the repository's source."""
    (tmp_path / "my_texts").mkdir()
    text = (TEXTS / "shakespeare.txt").read_text(encoding="utf-8")[:20_000]
    for i in range(10):
        (tmp_path / "my_texts" / f"{i}.txt").write_text(text[2000 * i : 2000 * (i + 1)], encoding="utf-8")
    (tmp_path / "chapter.txt").write_text(text[:300], encoding="utf-8")
    (tmp_path / "src").symlink_to(ROOT / "src")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> int:
    """The exit code of the command, in this process: fifteen new ones would spend most of their time on imports."""
    program, *words = shlex.split(command, comments=True)
    assert program == "pellucid"
    if ">" in words:  # a shell would write what is printed into the file
        words, file = words[: words.index(">")], words[words.index(">") + 1]
        with open(file, "w") as written, contextlib.redirect_stdout(written):
            return main(words)
    return main(words)


@pytest.mark.item("S1-1.1-m", "S4-learn-a")
def test_commands(desk: Path, capfd: pytest.CaptureFixture):
    """In the order they stand: the later ones use the run of the first."""
    commands = [c for block in blocks("sh") for c in shortened(block.replace("\\\n", " ")).splitlines() if c.strip()]
    assert len(commands) == 18
    for command in commands:
        assert run(command) == 0, f"{command}\n{capfd.readouterr().err}"
    assert (desk / "runs" / "my_texts" / "recipe.json").exists()
    assert (desk / "runs" / "my_texts-2").exists()
    assert (desk / "page.html").exists()
    assert (desk / "adapted.gguf").exists()
    for folder, own in (("my_model", True), ("exported", False)):
        assert (desk / folder / "modeling_pellucid.py").exists() == own
        opened = AutoModelForCausalLM.from_pretrained(desk / folder, trust_remote_code=own)
        assert opened.config.vocab_size == pellucid.load(desk / folder).architecture.n_vocab


@pytest.mark.item("S1-1.1-a")
def test_python(desk: Path):
    code = blocks("python")
    assert len(code) == 1
    done = subprocess.run([sys.executable, "-c", shortened(code[0])], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+\.\d+\s*$", done.stdout)


def test_make_targets_exist():
    """The first screen's two commands are targets of the Makefile."""
    assert shutil.which("make")
    for target in ("demo", "test", "check"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert README.index("make demo") < README.index("make test") < 2000


def test_paths_exist():
    """Every path that the README names in backticks is there."""
    named = re.findall(r"`((?:src|docs|tests)/[\w./-]+)`", README)
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]
