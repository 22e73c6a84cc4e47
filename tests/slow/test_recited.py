"""Passages that are planted once, ten times and a hundred times: what the model recites is found, and said so."""

import random

import pytest

import pellucid

TIMES = (1, 10, 100)
PASSAGE_WORDS = 30
FIELDS = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_ctx": 64, "batch": 16, "vocabulary": 500, "ngrams": ()}
FIELDS |= {"device": "cpu", "compile": "no", "precision": "float32", "sample_every": 0, "seed": 1}


@pytest.mark.slow
def test_the_model_recites_what_was_planted_a_hundred_times_and_not_what_stood_there_once(
    tmp_path, shakespeare, monkeypatch
):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    text, draw = shakespeare[:90_000], random.Random(0)
    words = sorted({word for word in text.split() if word.isalpha() and len(word) > 3})
    passages = [" ".join(draw.sample(words, PASSAGE_WORDS)) + "." for _ in TIMES]
    paragraphs = text.split("\n\n") + [p for p, times in zip(passages, TIMES, strict=True) for _ in range(times)]
    draw.shuffle(paragraphs)
    (tmp_path / "train.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "new.txt").write_text(shakespeare[90_000:])
    pellucid.train(
        tmp_path / "train.txt", out=tmp_path / "run", held_out=tmp_path / "new.txt", steps=300, fields=FIELDS
    )
    model = pellucid.load(tmp_path / "run", checkpoint="last")
    recited, sources = {}, pellucid.load_sources(tmp_path / "run")
    for passage, times in zip(passages, TIMES, strict=True):
        (span,) = sources.find(passage).spans
        assert (span.text, span.count) == (passage, times)
        prompt = " ".join(passage.split()[:8])
        length = len(model.tokenizer.encode(passage)) - len(model.tokenizer.encode(prompt))
        generated = model.generate(f"\n\n{prompt}", max_tokens=length, temperature=0)
        copies = [span.text.strip() for span in generated.sources().spans]
        # where the model does not know how a passage goes on, it may recite another one
        recited[times] = max((len(copy) for copy in copies if copy in passage), default=0) / len(passage)
    assert recited[100] > 0.9
    assert recited[1] < 0.5
    assert recited[1] <= recited[10] <= recited[100]
