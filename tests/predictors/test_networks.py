"""Bengio's network and recurrent ones against their definitions, and mixtures against theirs."""

import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from names import N_VOCAB, parts

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.option_values import ArchitectureError, build
from pellucid.predictors import neural
from pellucid.predictors.mixture import Counted, NGramMixture, fit_weight
from pellucid.predictors.neural import NeuralProbabilistic, NeuralProbabilisticOptions, initialise_predictor
from pellucid.predictors.ngram import NGram, UnseenContextError
from pellucid.predictors.options import PredictorError
from pellucid.predictors.recurrent import Recurrent, RecurrentOptions
from pellucid.predictors.transformer_mixture import Windowed
from pellucid.reference.predictors import neural_probabilistic_lm, recurrent_lm

DESCRIBED = [
    *(
        NeuralProbabilisticOptions(
            n_vocab=11, separator=3, order=order, d_embed=5, d_hidden=7, direct=direct, documents=documents
        )
        for order, direct, documents in itertools.product((2, 4), ("none", "all"), ("across", "inside"))
    ),
    *(
        RecurrentOptions(n_vocab=11, separator=3, cell=cell, d_embed=5, d_hidden=7, n_ctx=6)
        for cell in ("gru", "elman")
    ),
]


def make(choices):
    """A network in which no parameter is invisible, float64."""
    network = (NeuralProbabilistic if isinstance(choices, NeuralProbabilisticOptions) else Recurrent)(choices).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return network


def some_tokens(batch=3, n=9):
    return torch.randint(0, 11, (batch, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("choices", DESCRIBED, ids=str)
def test_described_in_json_and_back(choices):
    assert build(type(choices), json.loads(json.dumps(asdict(choices)))) == choices
    with pytest.raises(ArchitectureError, match="colour"):
        build(type(choices), {**asdict(choices), "colour": 1})


# Bengio's network ---------------------------------------------------------------------------


@pytest.mark.item("S4-emb-e")
@pytest.mark.parametrize("choices", DESCRIBED[:8], ids=str)
def test_network_is_the_reference(choices):
    network, tokens = make(choices), some_tokens()
    letters = {"C": network.embed.weight, "H": network.hidden.weight, "d": network.hidden.bias}
    letters |= {"U": network.out.weight, "b": network.out.bias}
    if choices.direct == "all":
        letters["W"] = network.direct.weight
    given = {letter: p.detach().numpy() for letter, p in letters.items()}
    found = network(tokens).log_softmax(-1).detach().numpy()
    for row, i in itertools.product(range(3), range(9)):
        before = [3] * 4 + tokens[row, : i + 1].tolist()
        context = before[: -choices.order : -1]
        if choices.documents == "inside" and 3 in context:
            at = context.index(3)
            context[at:] = [3] * (len(context) - at)
        expected = neural_probabilistic_lm(np.array(context), **given)
        np.testing.assert_allclose(found[row, i], expected, atol=1e-10)


@pytest.mark.item("S4-emb-e")
@pytest.mark.parametrize(
    ("order", "m", "h", "direct", "n"), [(4, 10, 200, "none", 11_897), (6, 16, 200, "none", 22_059)]
)
def test_parameters_are_counted_as_in_the_paper(order, m, h, direct, n):
    def count(direct):
        c = NeuralProbabilisticOptions(n_vocab=27, separator=0, order=order, d_embed=m, d_hidden=h, direct=direct)
        return sum(p.numel() for p in NeuralProbabilistic(c).parameters())

    assert count(direct) == n
    assert count("all") == 27 * (1 + order * m + h) + h * (1 + (order - 1) * m)


@pytest.mark.item("S4-emb-b")
def test_embeddings_learn_from_the_tokens_present_alone():
    network = make(DESCRIBED[4])
    network(torch.tensor([[1, 2, 7, 2]]))[:, -1].square().sum().backward()
    moved = network.embed.weight.grad.abs().sum(1) > 0
    assert moved.nonzero().flatten().tolist() == [2, 7]


# Recurrence ---------------------------------------------------------------------------------


@pytest.mark.item("S4-par-a")
def test_elman_is_the_reference():
    network, tokens = make(DESCRIBED[9]), some_tokens()
    cell = {name: p.detach().numpy() for name, p in network.cell.named_parameters()}
    for row in range(3):
        expected = recurrent_lm(
            tokens[row].tolist(),
            C=network.embed.weight.detach().numpy(),
            W=cell["weight_hh_l0"],
            U=cell["weight_ih_l0"],
            b=cell["bias_ih_l0"] + cell["bias_hh_l0"],
            V=network.out.weight.detach().numpy(),
            c=network.out.bias.detach().numpy(),
        )
        np.testing.assert_allclose(network(tokens)[row].log_softmax(-1).detach().numpy(), expected, atol=1e-10)


def test_gru_is_its_equations():
    network, tokens = make(DESCRIBED[8]), some_tokens(1)
    u, w, b, a = (p.detach().numpy() for p in network.cell.parameters())
    h, sigmoid = np.zeros(7), lambda x: 1 / (1 + np.exp(-x))
    for i, token in enumerate(tokens[0].tolist()):
        x = network.embed.weight[token].detach().numpy()
        (r, z, n), (r_h, z_h, n_h) = np.split(u @ x + b, 3), np.split(w @ h + a, 3)
        z = sigmoid(z + z_h)
        h = (1 - z) * np.tanh(n + sigmoid(r + r_h) * n_h) + z * h
        y = network.out.weight.detach().numpy() @ h + network.out.bias.detach().numpy()
        np.testing.assert_allclose(network(tokens)[0, i].detach().numpy(), y, atol=1e-10)


# Both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", DESCRIBED, ids=str)
def test_a_later_token_changes_no_earlier_row(choices):
    network, tokens = make(choices), some_tokens()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = network(tokens), network(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])


@pytest.mark.parametrize("choices", DESCRIBED[:8], ids=str)
def test_a_text_is_scored_in_windows_as_in_one(choices, monkeypatch):
    network, ids = make(choices), some_tokens(1, 60)[0].numpy()
    rows = network(torch.from_numpy(ids)[None, :-1])[0].log_softmax(-1)
    expected = rows[torch.arange(59), torch.from_numpy(ids[1:])].detach().numpy()
    monkeypatch.setattr(neural, "SCORED_WINDOW", 4)
    np.testing.assert_allclose(network.log_probs(ids), expected, atol=1e-12)
    assert network.training


@pytest.mark.parametrize("choices", DESCRIBED[8:], ids=str)
def test_a_recurrent_predictor_is_scored_in_windows_of_its_context(choices):
    network, ids = make(choices), some_tokens(1, 14)[0].numpy()
    found = network.log_probs(ids)
    assert len(found) == 13
    for begin, scored in ((0, range(6)), (3, range(6, 9)), (6, range(9, 12)), (9, range(12, 13))):
        rows = network(torch.from_numpy(ids[begin : begin + 6])[None])[0].log_softmax(-1).detach().numpy()
        for t in scored:
            assert found[t] == pytest.approx(rows[t - begin, ids[t + 1]], abs=1e-12)


@pytest.mark.parametrize("choices", DESCRIBED, ids=str)
def test_training_starts_near_the_uniform_distribution_and_from_the_seed(choices):
    networks = [initialise_predictor(make(choices), seed) for seed in (1, 1, 2)]
    first = [network(some_tokens()) for network in networks]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert (first[0].log_softmax(-1) + np.log(11)).abs().max() < 0.5


@pytest.mark.parametrize("choices", DESCRIBED[7:9], ids=str)
def test_what_would_be_ignored_is_refused(choices):
    with pytest.raises(PredictorError, match="neither attention nor positions"):
        make(choices)(some_tokens(), mask=torch.ones(9, 9, dtype=torch.bool))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (NeuralProbabilisticOptions, {"order": 1}, "order = 1: expected at least 2"),
        (NeuralProbabilisticOptions, {"direct": "yes"}, "choose one of none, all"),
        (NeuralProbabilisticOptions, {"d_embed": 2.0}, "d_embed = 2.0: expected an integer"),
        (RecurrentOptions, {"cell": "lstm"}, "choose one of gru, elman"),
        (RecurrentOptions, {"n_ctx": 0}, "n_ctx = 0"),
        (RecurrentOptions, {"separator": 11}, "separator = 11: expected an id from 0 to 10"),
    ],
)
def test_wrong_descriptions_are_refused(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"n_vocab": 11, "separator": 3, **change})


# Counts and mixtures ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("separator", [None, 3])
def test_counts_as_a_network_give_the_rows_of_the_counts(order, separator):
    ids = some_tokens(1, 400)[0].numpy()
    counted, tokens = Counted(NGram.train(ids, 11, order, separator=separator)), some_tokens()
    p = counted(tokens).exp()
    for row, i in itertools.product(range(3), range(9)):
        expected = counted.ngram.next_probs(tokens[row, : i + 1].numpy())
        np.testing.assert_allclose(p[row, i].numpy(), expected, rtol=1e-12)
    scored = p[0, torch.arange(8), tokens[0, 1:]].log().numpy()
    np.testing.assert_allclose(counted.log_probs(tokens[0].numpy()), scored, rtol=1e-12)


def test_maximum_likelihood_as_a_network_refuses_what_it_does_not_know():
    counted = Counted(NGram.train(np.array([0, 1, 0, 1]), 11, 2, "maximum-likelihood"))
    with pytest.raises(UnseenContextError):
        counted(torch.tensor([[0, 7]]))
    # a context that is not that of the next token is not asked for
    after_known = torch.tensor([[7, 0]])
    with pytest.raises(UnseenContextError):
        counted(after_known)
    assert counted.last(after_known).exp().argmax() == 1
    assert NGramMixture(make(DESCRIBED[0]), counted, 0.5).last(after_known).shape == (1, 11)


def transformer(n_vocab):
    """A transformer that reads five tokens."""
    return make_network(Architecture(n_vocab=n_vocab, n_ctx=5, d_model=8, n_layers=1))


@pytest.mark.parametrize("n", [1, 3, 9])
def test_the_last_position_alone_is_that_of_all(n):
    """Of texts that are shorter and longer than what is read."""
    tokens, ids = some_tokens(3, n), some_tokens(1, 300)[0].numpy()
    counts = [Counted(NGram.train(ids, 11, order, separator=s)) for order in (1, 2, 4) for s in (None, 3)]
    networks = [*map(make, DESCRIBED), Windowed(transformer(11))]
    for network in (*counts, *networks, *(NGramMixture(network, counts[-1], 0.3) for network in networks)):
        with torch.inference_mode():
            torch.testing.assert_close(network.last(tokens), network(tokens)[:, -1], rtol=1e-10, atol=1e-10)


def test_a_transformer_reads_the_last_tokens_of_its_context():
    network, tokens = transformer(11), some_tokens(2, 9)
    logits = Windowed(network)(tokens)
    assert logits.shape == (2, 9, 11)
    with torch.inference_mode():
        for at in range(9):
            expected = network(tokens[:, max(0, at - 4) : at + 1])[:, -1]
            torch.testing.assert_close(logits[:, at], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_vocab", [9, 14])
def test_a_mixture_of_vocabularies_of_different_sizes_is_one_distribution(n_vocab):
    """A network may have rows that are no token, as Pythia's, or none for the last tokens."""
    network, tokens = Windowed(transformer(n_vocab)), some_tokens(3, 5) % 9
    counted = Counted(NGram.train(some_tokens(1, 300)[0].numpy(), 11, 3))
    p = NGramMixture(network, counted, 0.3)(tokens).exp()
    assert p.size(-1) == max(n_vocab, 11)
    torch.testing.assert_close(p.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    n = min(n_vocab, 11)
    expected = 0.3 * network(tokens).softmax(-1)[..., :n] + 0.7 * counted(tokens).exp()[..., :n]
    torch.testing.assert_close(p[..., :n], expected, rtol=1e-12, atol=1e-14)
    scored = NGramMixture(network, counted, 0.3).log_probs(tokens[0].numpy())
    np.testing.assert_allclose(scored, p[0, torch.arange(4), tokens[0, 1:]].log().numpy(), atol=1e-12)


@pytest.mark.parametrize("choices", [DESCRIBED[4], DESCRIBED[8]], ids=str)
def test_a_mixture_is_the_mean_of_the_probabilities(choices):
    network, tokens = make(choices), some_tokens()
    counted = Counted(NGram.train(some_tokens(1, 300)[0].numpy(), 11, 3))
    for weight in (0.0, 0.3, 1.0):
        mixed = NGramMixture(network, counted, weight)
        expected = weight * network(tokens).softmax(-1) + (1 - weight) * counted(tokens).exp()
        torch.testing.assert_close(mixed(tokens).exp(), expected, rtol=1e-12, atol=1e-14)
        ids = tokens[0, :6].numpy()  # within one window of the recurrent predictor
        scored = mixed(tokens[:1, :5])[0, torch.arange(5), tokens[0, 1:6]]
        np.testing.assert_allclose(mixed.log_probs(ids), scored.detach().numpy(), atol=1e-12)
    with pytest.raises(PredictorError, match=r"weight = 1\.5"):
        NGramMixture(network, counted, 1.5)


def test_the_weight_fitted_by_em_is_the_best_one():
    rng = np.random.default_rng(0)
    a, b = np.log(rng.uniform(0.01, 1, 400)), np.log(rng.uniform(0.01, 1, 400))
    weights = np.linspace(0.001, 0.999, 999)
    gains = [np.logaddexp(np.log(w) + a, np.log(1 - w) + b).sum() for w in weights]
    assert fit_weight(a, b) == pytest.approx(weights[int(np.argmax(gains))], abs=1e-3)
    assert fit_weight(a, a - 5) > 0.999
    assert fit_weight(a - 5, a) < 0.001
    with pytest.raises(PredictorError, match="3 and 2 log-probabilities"):
        fit_weight(np.zeros(3), np.zeros(2))


# Names, trained -----------------------------------------------------------------------------


@pytest.mark.item("S4-emb-c", "S4-emb-e")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("order", "m", "n", "expected"), [(4, 10, 11_897, 2.1125), (6, 16, 22_059, 2.0184)])
def test_names_reach_the_published_losses(order, m, n, expected):
    """Bengio's network on makemore's split: dev nats a character, within 0.02; vowels end near vowels."""
    train, dev = parts()
    choices = NeuralProbabilisticOptions(
        n_vocab=N_VOCAB, separator=0, order=order, d_embed=m, d_hidden=200, documents="inside"
    )
    network = initialise_predictor(NeuralProbabilistic(choices), 0)
    assert sum(p.numel() for p in network.parameters()) == n
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, betas=(0.9, 0.99))
    starts, steps = np.random.default_rng(0), 6000
    for step in range(steps):
        at = starts.integers(0, len(train) - 33, 16)[:, None] + np.arange(33)
        rows = torch.from_numpy(train[at])
        optimizer.param_groups[0]["lr"] = 0.01 * (0.02 + 0.98 * (1 + np.cos(np.pi * step / steps)) / 2)
        loss = torch.nn.functional.cross_entropy(
            network(rows[:, :-1])[:, order - 2 :].flatten(0, 1), rows[:, order - 1 :].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert -network.log_probs(dev).mean() == pytest.approx(expected, abs=0.02)
    c = torch.nn.functional.normalize(network.embed.weight.detach(), dim=1)
    vowels = [1, 5, 9, 15, 21]
    consonants = [i for i in range(1, 27) if i not in vowels]
    among = torch.stack([c[a] @ c[b] for a, b in itertools.combinations(vowels, 2)]).mean()
    assert among - (c[vowels] @ c[consonants].T).mean() > 0.1
