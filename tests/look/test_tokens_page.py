"""The page Tokens: bytes, merges, surprisal, and n-grams of the training text beside the model."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.look.conftest import TEXT, shown_numbers

import pellucid
from pellucid.edits import zero
from pellucid.language_model import LanguageModel, load
from pellucid.look.app import make_look_app
from pellucid.look.merges import MergeTrees
from pellucid.look.session import Session
from pellucid.look.tokens import ngram_facts, ngrams_of, shared_characters, text_pieces, written_by
from pellucid.predictors.ngram import NGram
from pellucid.text.tokenizers.tokenizer import BPETokenizer, ByteTokenizer

TEXTS = ["the cat sat", "  naïve 東京 🙂!", "mat\n\n\tand 123 the", ""]


def leaves(tree):
    return [tree["bytes"]] if not tree["parts"] else [leaf for part in tree["parts"] for leaf in leaves(part)]


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "word-end", "none"])
def test_merges_lead_to_the_tokens(pattern):
    tokenizer = BPETokenizer.train([TEXT, *TEXTS] * 10, 300, pattern)
    trees = MergeTrees(tokenizer)
    for text in TEXTS:
        words = trees.of_text(text)
        made = [tree for word in words for tree in word["trees"]]
        assert [tree["bytes"] for tree in made] == [tokenizer.token_bytes(i).hex() for i in tokenizer.encode(text)]
        for tree in made:
            assert "".join(leaves(tree)) == tree["bytes"]
            assert all(len(leaf) == 2 for leaf in leaves(tree))
    assert MergeTrees(ByteTokenizer()).of_text("a") == []
    assert "does not merge bytes" in MergeTrees(ByteTokenizer()).reason


def test_a_character_that_is_split_is_one_run():
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], "東".encode(), "🙂".encode()[:2], "🙂".encode()[2:], b"b"]
    assert shared_characters(pieces) == [[1, 2], [4, 5]]
    assert shared_characters([b"a", b"\xff", b"b"]) == []


def test_the_bytes_of_the_tokens_are_the_text(model):
    text = "the cat é\n"
    pieces = text_pieces(model.trace(text, bos=True), text)
    assert pieces["bytes"][0] == ""
    assert bytes.fromhex("".join(pieces["bytes"])).decode() == text
    assert "".join(word["bytes"] for word in pieces["words"]) == text.encode().hex()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps on a small text."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("\n".join(f"{TEXT}{k} times" for k in range(300)))
    fields = {
        "model.d_model": 16,
        "model.n_layers": 1,
        "model.attention.n_heads": 2,
        "model.n_ctx": 32,
        "text.tokenizer": "byte",
    }
    pellucid.train(folder / "text.txt", out=folder / "run", steps=2, fields=fields)
    return load(folder / "run")


def test_ngrams_are_those_of_the_training_text(run):
    trace, counted = run.trace("the cat sat"), ngrams_of(run)
    assert list(counted) == ["unigram", "bigram", "trigram"]
    by_order = {ngram.choices.order: ngram for ngram in counted.values()}
    facts = ngram_facts(trace, by_order, 4)
    ids = trace.ids[0].numpy()
    for name, ngram in counted.items():
        assert facts["bits"][name][0] is None
        np.testing.assert_allclose(facts["bits"][name][1:], -ngram.log_probs(ids) / math.log(2))
        best = facts["top"][name][0]
        assert best["p"] == pytest.approx(ngram.next_probs(ids[:5]).max())
    assert np.mean(facts["bits"]["trigram"][1:]) < np.mean(facts["bits"]["unigram"][1:])
    scope = {"model": run, "trace": trace}
    exec(facts["code"], scope)
    np.testing.assert_allclose(scope["bits"]["bigram"], facts["bits"]["bigram"][1:])


@pytest.mark.gpu
def test_ngrams_are_shown_beside_a_model_on_a_gpu(run):
    counted = {ngram.choices.order: ngram for ngram in ngrams_of(run).values()}
    traces = [
        LanguageModel(copy.deepcopy(run.network).to(device), run.tokenizer, {}).trace("the cat sat")
        for device in ("cpu", "cuda")
    ]
    expected, found = (ngram_facts(trace, counted, 4) for trace in traces)
    assert found == expected
    scope = {"model": run, "trace": traces[1]}
    exec(found["code"], scope)
    np.testing.assert_allclose(scope["bits"]["bigram"], found["bits"]["bigram"][1:])


def test_the_server_streams_what_it_counts(run):
    with TestClient(make_look_app(Session(run)), base_url="http://127.0.0.1") as client:
        sent = client.post("/api/trace", json={"text": "the cat"}).json()
        lines = client.get(f"/api/t/{sent['id']}/tokens/ngrams").text.splitlines()
        assert len(lines) == 5
        assert '"doing": "reading the training text"' in lines[0]
        # counted once
        assert len(client.get(f"/api/t/{sent['id']}/tokens/ngrams").text.splitlines()) == 1
        written = client.get(f"/api/t/{sent['id']}/tokens/written", params={"seed": 3}).text.splitlines()
        assert len(written) == 4
        again = client.get(f"/api/t/{sent['id']}/tokens/written", params={"seed": 3}).text.splitlines()
        assert written == again
        for line in map(json.loads, written):
            scope = {"model": run}
            exec(f"{sent['code']}\n{line['code']}", scope)
            assert scope["text"] == line["text"]


def test_a_model_without_a_training_text_says_so(model):
    with TestClient(make_look_app(Session(model)), base_url="http://127.0.0.1") as client:
        sent = client.post("/api/trace", json={"text": TEXT}).json()
        assert "no training text" in client.get(f"/api/t/{sent['id']}/tokens/ngrams").text


def test_the_models_own_text_is_written_under_the_edits(model):
    change = {"edits": [{"op": "zero", "name": "embed"}]}
    with TestClient(make_look_app(Session(model)), base_url="http://127.0.0.1") as client:
        sent = client.post("/api/trace", json={"text": "the cat", **change}).json()
        *_, line = map(json.loads, client.get(f"/api/t/{sent['id']}/tokens/written?seed=3").text.splitlines())
        options = {"max_tokens": 24, "temperature": 1.0, "seed": 3}
        assert line["text"] == model.generate("the cat", edits=[zero("embed")], **options).text
        assert line["text"] != model.generate("the cat", **options).text
        scope = {"model": model}
        exec(f"{sent['code']}\n{line['code']}", scope)
        assert scope["text"] == line["text"]
        # generation reads no separator, where the edits of positions would meet other tokens
        sent = client.post("/api/trace", json={"text": "the cat", "bos": True, **change}).json()
        *_, line = map(json.loads, client.get(f"/api/t/{sent['id']}/tokens/written").text.splitlines())
        assert 'take "separator first" away' in line["reason"]


def test_what_an_ngram_writes_depends_on_the_seed_alone():
    ngram = NGram.train(np.array([0, 1, 2, 0, 1, 3] * 20), 4, 2)
    assert written_by(ngram, [0], 1) == written_by(ngram, [0], 1)
    assert written_by(ngram, [0], 1) != written_by(ngram, [0], 2)


def test_the_numbers_on_the_page_are_the_traces(run, look_into, visit):
    inspector = look_into(Session(run, name="run"))
    page = visit(f"{inspector.url}/#page=tokens&a=the+cat+sat+%C3%A9&pos=5&ngrams=true")
    page.wait_for_selector(".tickmark")
    trace, shown = run.trace("the cat sat é"), shown_numbers(page)
    for k, bits in enumerate(trace.surprisal()[0].tolist(), 1):
        assert shown[f"surprisal.{k}"] == pytest.approx(bits)
        log_probs = trace.logits[0, k - 1].log_softmax(-1)
        assert shown[f"rank.{k}"] == 1 + int((log_probs > log_probs[trace.ids[0, k]]).sum())
        assert shown[f"entropy.{k}"] == pytest.approx(
            float(-(log_probs.exp() * log_probs).sum() / math.log(2)), rel=1e-5
        )
    bigram = ngrams_of(run)["bigram"]
    for k, nats in enumerate(bigram.log_probs(trace.ids[0].numpy()), 1):
        assert shown[f"bigram.{k}"] == pytest.approx(-nats / math.log(2))
    assert shown["mean_surprisal"] == pytest.approx(float(trace.surprisal().mean()))
    for token, p in zip(*reversed(trace.probs[0, 4].topk(3)), strict=True):
        assert shown[f"expected.{int(token)}"] == pytest.approx(float(p), rel=1e-5)
    # the two bytes of é are one character
    assert page.locator(".character").count() == 1
    page.click("#written button")
    page.wait_for_selector(".shannon h3:has-text('this model')")
    # the same n-grams beside the model's next token
    page.click(".tabs a:has-text('Read')")
    page.wait_for_selector("#sampling [data-name^='bigram.']")
    follows, shown = ngrams_of(run)["bigram"].next_probs(trace.ids[0, :6].numpy()), shown_numbers(page, "#sampling")
    best = int(follows.argmax())
    assert shown[f"bigram.{best}"] == pytest.approx(follows[best])


def test_circuits_list_tokens_of_the_training_text_unless_all_are_asked_for(run):
    """Of 256 bytes the text has about thirty; the others keep the weights that they began with."""
    in_text = {
        run.tokenizer.token_str(byte) for byte in set((Path(run.provenance["folder"]).parent / "text.txt").read_bytes())
    }
    in_text |= set(run.tokenizer.special)
    with TestClient(make_look_app(Session(run, name="run")), base_url="http://127.0.0.1") as client:
        known = client.get("/api/w/listed").json()
        assert known["listed"] <= len(in_text) < known["of"]
        paths = {
            "/api/w/head/0/1/token": ("promotes", "looks_for"),
            "/api/w/neuron/0/3": ("key", "value"),
            "/api/w/embed/embed/neighbours": ("neighbours",),
        }
        outside = 0
        for path, names in paths.items():
            query = {"token": "a"} if "neuron" not in path else {}
            answer = client.get(path, params=query).json()
            everything = client.get(path, params=query | {"every_token": True}).json()
            for name in names:
                assert {text for text, _ in answer[name]} <= in_text, (path, name)
                values = [value for _, value in answer[name]]
                assert values == sorted(values, reverse=True)
                outside += len({text for text, _ in everything[name]} - in_text)
                # the list is that of all tokens, less those that do not occur
                kept = [pair for pair in everything[name] if pair[0] in in_text]
                assert answer[name][: len(kept)] == kept
            names_of_code = {"model": run}
            exec(answer["code"], names_of_code)
            assert "among(listed)" in answer["code"]
            assert "listed" not in everything["code"]
        assert outside > 0
        directions = client.get("/api/w/head/0/1").json()["ov_directions"]
        assert {text for row in directions for text, _ in row["into"] + row["out"]} <= in_text


def test_a_model_without_a_training_text_lists_all_tokens(model):
    with TestClient(make_look_app(Session(model)), base_url="http://127.0.0.1") as client:
        assert client.get("/api/w/listed").json() == {"listed": None, "of": model.architecture.n_vocab}
        assert "among" not in client.get("/api/w/head/0/1/token", params={"token": " cat"}).json()["code"]
