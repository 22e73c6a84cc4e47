"""Training goes on from a model of another project, and what comes of it goes back there."""

import itertools
import json

import pytest
import torch
from tests.some_cases import one_in
from their_folders import write_theirs
from transformers import AutoModelForCausalLM, AutoTokenizer

import pellucid
from pellucid.cli import main
from pellucid.hub.folder import LoadWarning
from pellucid.language_model import ModelError
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.text.tokenizers.tokenizer import TokenizerError

#: the rates of a start from nothing: these models are random
FIELDS = {
    "learning_rate": 5e-3,
    "muon_learning_rate": 2e-2,
    "batch": 4,
    "device": "cpu",
    "precision": "float32",
    "compile": "no",
    "attention": "fused",
}
STEPS = 30


@pytest.fixture
def desk(tmp_path, monkeypatch, shakespeare, tokenizer):
    """A folder with a text, and the tokenizer of another text."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(shakespeare[20_000:40_000])
    return tmp_path, tokenizer


def losses(run):
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize(("own", "family"), one_in(4, itertools.product((False, True), ("gpt2", "llama"))), ids=str)
def test_training_goes_on_from_a_folder(family, own, desk):
    """The tokenizer stays, the loss falls, the run is loaded, and goes back to the family with the same logits."""
    folder, tokenizer = desk
    given = write_theirs(folder / "given", family, tokenizer)
    if own:
        pellucid.convert(given, folder / "ours")
        pellucid.convert(folder / "ours", folder / "exported", family=family)
        given = folder / "exported"
    before = pellucid.load(given, device="cpu")
    run = pellucid.train(folder / "text.txt", out=folder / "run", from_model=given, steps=STEPS, fields=FIELDS)
    model = pellucid.load(run.path, device="cpu")
    assert model.tokenizer.to_json() == (given / "tokenizer.json").read_text() == before.tokenizer.to_json()
    assert model.architecture == before.architecture
    assert losses(run.path)[-1] < losses(run.path)[0] - 0.2
    held = (folder / "text.txt").read_text()[-1500:]
    assert model.score(held).loss < before.score(held).loss - 0.2

    done = pellucid.convert(run.path, folder / "back", family=family)
    assert done.parity.holds
    theirs, their_tokenizer = (c.from_pretrained(folder / "back") for c in (AutoModelForCausalLM, AutoTokenizer))
    ids = model.tokenizer.encode("First Citizen: we are")
    assert their_tokenizer("First Citizen: we are").input_ids == ids
    with torch.no_grad():
        assert torch.allclose(theirs(torch.tensor([ids])).logits, model.network(torch.tensor([ids])), atol=1e-4)
    assert json.loads((folder / "back/config.json").read_text())["model_type"] == family


def test_the_first_step_starts_from_the_given_weights(desk):
    folder, tokenizer = desk
    given = write_theirs(folder / "given", "gpt2", tokenizer)
    run = pellucid.train(folder / "text.txt", out=folder / "run", from_model=given, steps=1, fields=FIELDS)
    first, before = pellucid.load(run.path, checkpoint="0", device="cpu"), pellucid.load(given, device="cpu")
    tokens = torch.arange(12)[None]
    assert torch.equal(first.network(tokens), before.network(tokens))


@pytest.mark.parametrize("rank", [0, 2])
def test_the_loss_before_the_first_step_is_that_of_the_given_model(rank, desk, capsys):
    folder, tokenizer = desk
    given = write_theirs(folder / "given", "gpt2", tokenizer)
    (folder / "held.txt").write_text(text := "First Citizen: we are held out")
    fields = {"device": "cpu", "precision": "float32", **({"adapt.rank": rank} if rank else {})}
    run = pellucid.train(
        folder / "text.txt",
        out=folder / "run",
        from_model=given,
        steps=2,
        held_out=[folder / "held.txt"],
        fields=fields,
    )
    first = next(row for row in read_metrics(run.path / "metrics.jsonl") if "held_out_loss" in row)
    assert first["step"] == 0
    end = tokenizer.separator
    ids, before = torch.tensor([*tokenizer.encode(text), end]), pellucid.load(given, device="cpu")
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(before.network(ids[None, :-1])[0], ids[1:]).item()
    assert first["held_out_loss"] == pytest.approx(loss, rel=1e-5)
    assert f"before the first step  held-out loss {first['held_out_loss']:.4f} nats/token" in capsys.readouterr().out


def test_computed_positions_may_be_fewer_and_learned_ones_not(desk, capsys):
    """A context of 131,072 tokens cannot be trained on everywhere; rotary positions have no weights to lose."""
    folder, tokenizer = desk
    llama = write_theirs(folder / "llama", "llama", tokenizer)
    fields = FIELDS | {"n_ctx": 16}
    run = pellucid.train(folder / "text.txt", out=folder / "run", from_model=llama, steps=2, fields=fields)
    assert pellucid.load(run.path, device="cpu").architecture.n_ctx == 16
    gpt2 = write_theirs(folder / "gpt2", "gpt2", tokenizer)
    with pytest.raises(RecipeError, match=r"keeps its architecture and tokenizer: leave out model\.n_ctx"):
        pellucid.train(folder / "text.txt", out=folder / "other", from_model=gpt2, steps=2, fields=fields)
    arguments = ["train", str(folder / "text.txt"), "--from", str(gpt2), "--tokenizer", "char", "--steps", "1"]
    assert main([*arguments, "--out", str(folder / "other")]) == 2
    assert "leave out text.tokenizer" in capsys.readouterr().err
    assert not (folder / "other").exists()


def test_a_model_whose_tokenizer_needs_trust_is_used_with_it(desk, capsys):
    """By every command, and so is the run that started from it: nothing in a run says that it may be trusted."""
    folder, tokenizer = desk
    content = json.loads(tokenizer.to_json())
    split = {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False}
    plain = content["pre_tokenizer"] | {"use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, plain]}
    given, text, run = write_theirs(folder / "given", "gpt2", tokenizer), folder / "text.txt", folder / "run"
    (given / "tokenizer.json").write_text(json.dumps(content))
    for words in (["generate", str(given), "to be", "--max-tokens", "1"], ["tokenizer", "encode", str(given), "to be"]):
        assert main(words) == 2
        assert 'not known to be safe: pass --trust tokenizer (trust="tokenizer")' in capsys.readouterr().err
        assert main([*words, "--trust", "tokenizer"]) == 0
    with pytest.raises(TokenizerError, match="pass --trust"):
        pellucid.train(text, out=run, from_model=given, steps=1, fields=FIELDS)
    pellucid.train(text, out=run, from_model=given, steps=1, fields=FIELDS, trust=True)
    for opens in (pellucid.load, lambda path: pellucid.train(out=path, resume=True, steps=2)):
        with pytest.raises(TokenizerError, match="pass --trust"):
            opens(run)
    with pytest.raises(RecipeError, match=r"text\.tokenizer: the tokenizer is that of the base model"):
        pellucid.train(out=run, resume=True, steps=2, trust=True, fields={"tokenizer": "bpe"})
    assert pellucid.train(out=run, resume=True, steps=2, trust=True).step == 2
    model = pellucid.load(run, device="cpu", trust=True)
    assert model.tokenizer.to_json() == (given / "tokenizer.json").read_text()
    assert model.score("to be", baselines=True).baselines
    assert main(["verify", str(run), "--prompt", "to be", "--trust", "tokenizer"]) == 0
    pellucid.convert(run, folder / "back", trust=True, compare=False)
    assert (folder / "back" / "tokenizer.json").read_text() == model.tokenizer.to_json()
    # a tokenizer that a new run is given by its path is trusted in the same way
    fields = FIELDS | {
        "tokenizer": str(given / "tokenizer.json"),
        "n_layers": 1,
        "n_heads": 2,
        "d_model": 16,
        "n_ctx": 16,
    }
    with pytest.raises(TokenizerError, match="pass --trust"):
        pellucid.train(text, out=folder / "new", steps=1, fields=fields)
    pellucid.train(text, out=folder / "new", steps=1, fields=fields, trust=True)
    assert pellucid.load(folder / "new", trust=True).heads()
    # and one of an n-gram, which can then be mixed with the model
    counting = {"tokenizer": str(given / "tokenizer.json"), "order": 2}
    with pytest.raises(TokenizerError, match="pass --trust"):
        pellucid.train_predictor(text, out=folder / "counted", kind="ngram", fields=counting)
    pellucid.train_predictor(text, out=folder / "counted", kind="ngram", fields=counting, trust=True)
    words = ["score", str(folder / "new"), str(text), "--mix", str(folder / "counted"), "--mix-weight", "0.5"]
    assert main(words) == 2
    assert main([*words, "--trust", "tokenizer"]) == 0


def test_a_model_without_a_tokenizer_is_refused_before_the_text_is_read(desk):
    """Ids in digits stand in for one where a text is generated or scored, and a run cannot keep them."""
    folder, tokenizer = desk
    given = write_theirs(folder / "given", "gpt2", tokenizer)
    (given / "tokenizer.json").unlink()
    with pytest.warns(LoadWarning), pytest.raises(ModelError, match="has no tokenizer that can be used"):
        pellucid.train(folder / "missing.txt", out=folder / "run", from_model=given, steps=1, fields=FIELDS)
    assert not (folder / "run").exists()
