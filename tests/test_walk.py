"""A new user's walk, each step by its command: from a folder of odd files to a model that other software opens."""

import gzip
import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import pellucid
from pellucid.cli import main

#: a run of a second
TINY = ("n_layers=1", "d_model=32", "n_heads=2", "n_ctx=32", "batch=8", "ngram_rows=500", "vocabulary=300")
#: what a run would measure for itself
TINY += ("device=cpu", "precision=float32", "attention=fused", "compile=no", "sample_every=0", "learning_rate=0.02")


@pytest.fixture
def desk(tmp_path, monkeypatch, shakespeare):
    """A folder as people have them: several formats and encodings, an empty file, names with blanks and accents."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "my texts"
    (texts / "more").mkdir(parents=True)
    parts = [shakespeare[2_000 * i : 2_000 * (i + 1)] for i in range(9)]
    (texts / "plain.txt").write_text(parts[0])
    (texts / "windows.txt").write_bytes(parts[1].replace("\n", "\r\n").encode())
    (texts / "sixteen bits.txt").write_text(parts[2], encoding="utf-16")
    (texts / "emp\u00e9t\u00e9.md").write_text(f"# Caf\u00e9\n\n{parts[3]}")
    (texts / "page.html").write_text(f"<html><head><script>no()</script></head><body><p>{parts[4]}</p></body></html>")
    (texts / "more" / "rows.jsonl").write_text("".join(json.dumps({"text": p}) + "\n" for p in parts[5:7]))
    (texts / "more" / "old.txt.gz").write_bytes(gzip.compress(parts[7].encode()))
    (texts / "more" / "empty.txt").write_text("")
    (tmp_path / "chapter.txt").write_text(parts[8][:400])
    return tmp_path


def test_a_new_users_walk(desk, capfd):
    """Train, generate, score, convert, open in transformers, inspect: one model with one answer all along the way."""

    def run(*words):
        assert main(list(words)) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    settings = [word for field in TINY for word in ("--set", field)]
    said = run("train", "my texts", "--out", "runs/mine", "--steps", "6", *settings)
    assert "opens in: transformers (its own code)" in said
    text = run("generate", "runs/mine", "First Citizen:", "--max-tokens", "12", "--temperature", "0")
    score = run("score", "runs/mine", "chapter.txt")
    assert 2 < float(re.search(r"bits per byte +([\d.]+)", score).group(1)) < 6
    assert "trust_remote_code=True" in run("convert", "runs/mine", "out")
    assert run("score", "out", "chapter.txt") == score
    run("inspect", "runs/mine", "To be, or not", "-o", "page.html")
    assert "<html" in (desk / "page.html").read_text()

    model = AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained("out", trust_remote_code=True)
    prompt = tokenizer("First Citizen:", return_tensors="pt")
    written = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(written[0], skip_special_tokens=True) in text
    ours = pellucid.load("runs/mine", device="cpu")
    with torch.no_grad():
        assert torch.allclose(model(prompt.input_ids).logits, ours.network(prompt.input_ids), atol=1e-5)
