"""A transformer mixed with an n-gram: one distribution, scored and written by the same numbers."""

import numpy as np
import pytest
import torch

import pellucid
from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.predictors.mixture import Counted
from pellucid.predictors.ngram import NGram
from pellucid.predictors.options import PredictorError
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.transformer_mixture import mixed_with
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text_model import Model

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "ngrams": (), "batch": 4, "sample_every": 0}
TINY |= {"compile": "no", "device": "cpu", "tokenizer": "char"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, shakespeare):
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "text.txt").write_text(shakespeare[:8000], encoding="utf-8")
    counted = {"order": 3, "tokenizer": "char"}
    pellucid.train_predictor(folder / "text.txt", out=folder / "counted", kind="ngram", fields=counted)
    pellucid.train(folder / "text.txt", out=folder / "learned", steps=30, fields=TINY)
    pellucid.train(folder / "text.txt", out=folder / "bytes", steps=1, fields={**TINY, "tokenizer": "byte"})
    return folder


@pytest.fixture(scope="module")
def parts(runs):
    return pellucid.load(runs / "learned"), pellucid.load_predictor(runs / "counted")


TEXT = "Speak, speak. First, you know Caius Marcius is chief enemy to the people."


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_what_it_scores_is_the_sum_of_both(parts, weight):
    model, counted = parts
    both = model.mixed_with(counted, weight).score(TEXT).log_probs
    own, other = model.score(TEXT).log_probs, counted.score(TEXT).log_probs
    expected = np.log(weight * np.exp(own) + (1 - weight) * np.exp(other))
    np.testing.assert_allclose(both, expected, rtol=1e-12, atol=1e-12)


def test_what_it_writes_is_what_it_scores(parts):
    """Greedy text takes the likeliest token of the mixture, and the probabilities of all tokens sum to 1."""
    mixture = parts[0].mixed_with(parts[1])
    written = mixture.generate("Speak", max_tokens=6, temperature=0)
    ids = [mixture.tokenizer.separator, *mixture.tokenizer.encode("Speak"), *written.ids]
    for end in range(len(ids) - len(written.ids), len(ids)):
        # as text is written no separator is read before the prompt
        scores = [mixture.log_probs(np.array([*ids[1:end], v]))[-1] for v in range(mixture.tokenizer.n_vocab)]
        assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)
        assert int(np.argmax(scores)) == ids[end]


def test_a_mixture_is_from_the_models_run(runs, parts):
    """Baselines are counted on the text of the run that its folder names."""
    model, counted = parts
    about = {"mixed_with": str(runs / "counted"), "weight": 0.25}
    assert model.provenance["folder"] == str(runs / "learned")
    assert model.mixed_with(counted, 0.25).provenance == model.provenance | about


def test_what_it_writes_ends_at_every_id_that_ends_texts(parts):
    model, counted = parts
    plain = model.mixed_with(counted).generate("Speak", max_tokens=6, temperature=0)
    tokenizer = model.tokenizer.with_model_ids(None, [model.tokenizer.separator, plain.ids[2]])
    mixture = mixed_with(Model(model.network, tokenizer), counted, 0.5)
    assert tokenizer.ends == [model.tokenizer.separator, plain.ids[2]]
    written = Predictor(mixture.network, tokenizer, "mixture", {}).generate("Speak", max_tokens=6, temperature=0)
    first = plain.ids.index(plain.ids[2])
    assert (written.ids, written.finish_reason) == (plain.ids[:first], "end")


@pytest.mark.parametrize("n_vocab", [256, 300])
def test_it_writes_tokens_alone_whatever_rows_the_network_has(n_vocab):
    tokenizer = ByteTokenizer()
    counted = Predictor(Counted(NGram.train(np.array(tokenizer.encode(TEXT)), 257, 3)), tokenizer, "ngram", {})
    network = make_network(Architecture(n_vocab=n_vocab, n_ctx=8, d_model=8, n_layers=1))
    with torch.no_grad():
        network.embed.token.weight[257:] *= 9
    mixture = mixed_with(Model(network, tokenizer), counted, 0.9)
    written = mixture.generate("Speak", max_tokens=12, seed=1, temperature=1.5)
    assert len(written.ids) == 12 or written.finish_reason == "end"
    assert all(token < min(n_vocab, 257) for token in written.ids)


def test_a_context_far_back_in_the_prompt_is_not_asked_for():
    """Maximum likelihood knows no continuation of `z`, but that of the last token."""
    tokenizer = ByteTokenizer()
    ngram = NGram.train(np.array(tokenizer.encode("abababa")), 257, 2, "maximum-likelihood")
    network = make_network(Architecture(n_vocab=257, n_ctx=8, d_model=8, n_layers=1))
    mixture = mixed_with(Model(network, tokenizer), Predictor(Counted(ngram), tokenizer, "ngram", {}), 0.0)
    assert mixture.generate("za", max_tokens=4, temperature=0).text == "baba"


def test_what_cannot_be_mixed_is_refused(runs, parts):
    model, counted = parts
    with pytest.raises(PredictorError, match="expected a number from 0 to 1"):
        model.mixed_with(counted, 1.5)
    with pytest.raises(PredictorError, match="kind transformer was given: expected an n-gram"):
        model.mixed_with(model)
    with pytest.raises(PredictorError, match=r"is not the n-gram's .*: count the n-gram with --tokenizer"):
        pellucid.load(runs / "bytes").mixed_with(counted)


def test_the_commands_mix(runs, parts, capsys):
    (runs / "chapter.txt").write_text(TEXT)
    learned, counted = str(runs / "learned"), str(runs / "counted")
    assert main(["score", learned, str(runs / "chapter.txt"), "--mix", counted, "--mix-weight", "0.25"]) == 0
    expected = parts[0].mixed_with(parts[1], 0.25).score(TEXT)
    assert f"bits per byte    {expected.bits_per_byte:.4f}" in capsys.readouterr().out
    assert main(["generate", learned, "Speak", "--mix", counted, "--max-tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("Speak")
    assert main(["score", learned, str(runs / "chapter.txt"), "--mix-weight", "0.25"]) == 2
    assert "needs --mix" in capsys.readouterr().err
    assert main(["generate", learned, "Speak", "--mix", counted, "--weights", "int8"]) == 2
    assert "--weights works on a transformer alone, and --mix adds an n-gram" in capsys.readouterr().err
    assert main(["score", counted, str(runs / "chapter.txt"), "--stride", "4"]) == 2
    assert "--stride needs a transformer, and " in capsys.readouterr().err
    assert main(["plan", counted]) == 2
    assert "is a run of kind ngram, and a plan is of a transformer's training" in capsys.readouterr().err
