"""N-grams against exact fractions, published numbers, and the laws that every distribution keeps."""

import json
import os
import tracemalloc
from dataclasses import asdict
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from names import N_VOCAB, NAMES, parts, row

from pellucid.option_values import ArchitectureError, build
from pellucid.predictors import counting as counts
from pellucid.predictors import ngram
from pellucid.predictors.ngram import FALLBACK, NGram, NGramError, NGramOptions, UnseenContextError
from pellucid.reference.predictors import ngram_counts, ngram_probability
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

SMOOTHINGS = ("maximum-likelihood", "add-alpha", "kneser-ney", "modified-kneser-ney")


# The definition, in fractions ---------------------------------------------------------------


def occurrences(ids, order, separator):
    """All occurrences of k-grams for k = 1 ... order, as tuples."""
    found = {k: [] for k in range(1, order + 1)}
    for i, token in enumerate(ids):
        history = list(ids[max(0, i - order + 1) : i])
        if separator is not None:
            history = [separator] * (order - 1 - len(history)) + history
            last = max((k for k, t in enumerate(history) if t == separator), default=-1)
            history = [separator] * (last + 1) + history[last + 1 :]
        for k in range(1, min(order, len(history) + 1) + 1):
            found[k].append((*history[len(history) - k + 1 :], token))
    return found


def kneser_ney(ids, n_vocab, order, smoothing, separator):
    """P(w | context) as a function, by the letter of Chen and Goodman 1999 in exact fractions."""
    found = occurrences(ids, order, separator)
    levels = []
    for k in range(1, order + 1):
        if k == order:
            c = {g: found[k].count(g) for g in set(found[k])}
        else:
            longer = set(found[k + 1])
            c = {g: len({x for x in longer if x[1:] == g}) for g in set(found[k])}
        n = [sum(v == j for v in c.values()) for j in (1, 2, 3, 4)]
        d = exact_discounts(n, smoothing)
        levels.append((c, lambda v, d=d: d[min(v, 3) - 1] if v else Fraction(0)))

    def probability(w, context):
        p = Fraction(1, n_vocab)
        for k, (c, discount) in enumerate(levels, 1):
            if len(context) < k - 1:
                break
            h = tuple(context[len(context) - k + 1 :])
            after = {g[-1]: v for g, v in c.items() if g[:-1] == h}
            total = sum(after.values())
            if total:
                own = after.get(w, 0) - discount(after.get(w, 0))
                p = (own + sum(discount(v) for v in after.values()) * p) / total
        return p

    return probability


def exact_discounts(n, smoothing):
    if smoothing == "kneser-ney":
        return (Fraction(n[0], n[0] + 2 * n[1]),) * 3 if n[0] else (Fraction(1, 2),) * 3
    fallback = tuple(Fraction(x) for x in FALLBACK[smoothing])
    if not all(n):
        return fallback
    d = Fraction(n[0], n[0] + 2 * n[1])
    found = tuple(k - (k + 1) * d * Fraction(n[k], n[k - 1]) for k in (1, 2, 3))
    return found if all(0 < x <= k for k, x in zip((1, 2, 3), found, strict=True)) else fallback


@settings(max_examples=60)
@given(
    ids=st.lists(st.integers(0, 3), min_size=5, max_size=40),
    order=st.integers(1, 4),
    smoothing=st.sampled_from(("kneser-ney", "modified-kneser-ney")),
    separator=st.sampled_from((None, 0, 3)),
)
def test_kneser_ney_is_its_definition_for_every_context_and_token(ids, order, smoothing, separator):
    model = NGram.train(np.array(ids), 4, order, smoothing, separator=separator)
    exact = kneser_ney(ids, 4, order, smoothing, separator)
    for context in product(range(4), repeat=order - 1):
        row_ = model.next_probs(context)
        if separator in context:  # what is before the last separator reads as the separator
            last = order - 2 - context[::-1].index(separator)
            context = (separator,) * (last + 1) + context[last + 1 :]
        np.testing.assert_allclose(row_, [float(exact(w, context)) for w in range(4)], atol=1e-14)


def test_formulas_of_the_discounts_are_met_not_only_the_fallback():
    ids = parts()[0][:20_000]
    for smoothing in ("kneser-ney", "modified-kneser-ney"):
        model = NGram.train(ids, N_VOCAB, 3, smoothing)
        n = [int((model.levels[2].counts == k).sum()) for k in (1, 2, 3, 4)]
        np.testing.assert_allclose(model.discounts[2], [float(d) for d in exact_discounts(n, smoothing)], rtol=1e-15)
        assert model.discounts[2] != FALLBACK[smoothing]


def test_discounts_that_nothing_determines_are_settled_and_said():
    model = NGram.train(np.array([0, 1] * 50), 2, 2)
    assert model.discounts == [FALLBACK["modified-kneser-ney"]] * 2
    assert "order 1" in model.notes[0]
    assert "0.5, 1, 1.5" in model.notes[0]
    assert model.next_probs([0])[0] > 0


@pytest.mark.item("S4-emp-a")
def test_maximum_likelihood_is_the_reference_on_abab_abba():
    tokens = {"|": 0, "a": 1, "b": 2}
    stream = np.array([tokens[c] for c in "|abab|abba|"])
    model = NGram.train(stream, 3, 3, "maximum-likelihood", separator=0)
    exact = ngram_counts(["abab", "abba"], 3)
    for prefix, v in (("ab", "a"), ("ba", "b"), ("bb", "a")):
        p = model.next_probs([tokens[c] for c in prefix])
        assert p[tokens[v]] / (1 - p[0]) == pytest.approx(float(ngram_probability(exact, prefix, v)), abs=1e-15)
    pairs = NGram.train(stream, 3, 2, "maximum-likelihood")
    for prefix, v, expected in (("a", "b", Fraction(1)), ("b", "a", Fraction(2, 3)), ("b", "b", Fraction(1, 3))):
        p = pairs.next_probs([tokens[prefix]])  # the end of a document is an event here: given that it goes on
        assert p[tokens[v]] / (1 - p[0]) == pytest.approx(float(expected), abs=1e-15)


def test_add_alpha_by_hand():
    model = NGram.train(np.array([0, 1, 0, 1, 0, 0]), 3, 2, "add-alpha", alpha=0.5)
    np.testing.assert_allclose(model.next_probs([0]), [1.5 / 4.5, 2.5 / 4.5, 0.5 / 4.5], rtol=1e-15)
    np.testing.assert_allclose(model.next_probs([2]), [1 / 3] * 3, rtol=1e-15)


# Laws ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    ids=st.lists(st.integers(0, 5), min_size=5, max_size=200),
    other=st.lists(st.integers(0, 5), min_size=2, max_size=30),
    order=st.integers(1, 5),
    smoothing=st.sampled_from(SMOOTHINGS),
    separator=st.sampled_from((None, 2)),
)
def test_scores_are_the_rows_and_rows_sum_to_one(ids, other, order, smoothing, separator):
    model = NGram.train(np.array(ids), 6, order, smoothing, separator=separator)
    scored = model.log_probs(np.array(other))
    assert scored.shape == (len(other) - 1,)
    assert scored.dtype == np.float64
    for i in range(1, len(other)):
        if np.isnan(scored[i - 1]):
            with pytest.raises(UnseenContextError):
                model.next_probs(other[:i])
            assert smoothing == "maximum-likelihood"
            continue
        p = model.next_probs(other[:i])
        assert abs(p.sum() - 1) < 1e-12
        assert np.exp(scored[i - 1]) == pytest.approx(p[other[i]], rel=1e-12, abs=0)
        assert smoothing == "maximum-likelihood" or p.min() > 0


def test_a_text_is_scored_in_pieces_as_in_one(monkeypatch):
    ids = parts()[0][:3000]
    models = [NGram.train(ids[:2000], N_VOCAB, 4, separator=s) for s in (None, 0)]
    whole = [model.log_probs(ids) for model in models]
    monkeypatch.setattr(ngram, "SCORED_AT_ONCE", 7)
    for model, expected in zip(models, whole, strict=True):
        np.testing.assert_array_equal(model.log_probs(ids), expected)


def test_nothing_before_a_separator_is_read_where_contexts_end_there():
    inside = NGram.train(parts()[0][:5000], N_VOCAB, 5, separator=0)
    across = NGram.train(parts()[0][:5000], N_VOCAB, 5)
    np.testing.assert_array_equal(inside.next_probs([5, 1, 0, 3]), inside.next_probs([9, 9, 0, 3]))
    np.testing.assert_array_equal(inside.next_probs([0, 3]), inside.next_probs([3]))
    assert not np.array_equal(across.next_probs([5, 1, 0, 3]), across.next_probs([1, 14, 0, 3]))


def test_large_vocabularies_count_the_same():
    ids = np.random.default_rng(0).integers(0, 50, 3000)
    small = NGram.train(ids, 50, 4)
    spread = NGram.train(ids * (2**31 // 50), 2**31, 4)
    for a, b in zip(small.levels, spread.levels, strict=True):
        np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_array_equal(small.discounts, spread.discounts)


@pytest.mark.parametrize("bound", [40, 10**6, 2**62])
def test_ranks_are_those_of_numpy_however_they_are_found(bound):
    keys = np.random.default_rng(1).integers(0, 40, 500) * (bound // 40)
    unique, inverse = np.unique(keys, return_inverse=True)
    for a, b in zip(counts.rank(keys, bound), (unique, inverse), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(counts.tally(keys.copy(), bound), np.unique(keys, return_counts=True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("n_vocab", [4, 100_000])
def test_memory_stays_below_what_is_said(order, n_vocab):
    ids = np.random.default_rng(0).integers(0, n_vocab, 50_000)
    tracemalloc.start()
    model = NGram.train(ids, n_vocab, order)
    assert model.weights
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= counts.peak_bytes(len(ids), order)


def test_locating_finds_what_is_there_alone():
    table = np.array([2, 5, 9])
    np.testing.assert_array_equal(counts.locate(table, np.array([9, -1, 2, 0, 6, 99, 5])), [2, -1, 0, -1, -1, -1, 1])


# What maximum likelihood does not know ------------------------------------------------------


@pytest.mark.item("S4-emp-c")
def test_an_unseen_context_is_undefined_and_says_so():
    model = NGram.train(np.array([0, 1, 2, 0, 1, 1]), 4, 3, "maximum-likelihood")
    with pytest.raises(UnseenContextError, match=r"\[2, 2\].*lower order"):
        model.next_probs([2, 2])
    scored = model.log_probs(np.array([0, 1, 2, 0, 0, 3]))
    assert scored[:2].tolist() == [0.0, np.log(1 / 2)]
    assert np.isneginf(scored[3])
    assert np.isnan(scored[4])


@pytest.mark.item("S4-emp-d")
def test_one_word_replaced_is_enough(shakespeare):
    words = shakespeare.split()
    ids = np.unique(words, return_inverse=True)[1]
    v = int(ids.max()) + 1
    context = ids[100:104].copy()
    exact, smooth = NGram.train(ids, v, 5, "maximum-likelihood"), NGram.train(ids, v, 5)
    assert exact.next_probs(context).sum() == pytest.approx(1)
    context[1] = ids[7]
    with pytest.raises(UnseenContextError):
        exact.next_probs(context)
    assert smooth.next_probs(context).min() > 0


# Known numbers ------------------------------------------------------------------------------


@pytest.mark.item("S4-emp-a")
def test_names_as_published():
    """The bigram numbers of makemore's lecture, to the last digit."""
    ids = row(NAMES)
    assert len(ids) - 1 == 228_146
    assert -NGram.train(ids, 27, 2, "maximum-likelihood").log_probs(ids).mean() == pytest.approx(
        2.454014489154874, abs=1e-14
    )
    assert -NGram.train(ids, 27, 2, "add-alpha", alpha=1).log_probs(ids).mean() == pytest.approx(2.454577, abs=1e-6)


@pytest.mark.item("S4-emb-e")
def test_names_dev_losses():
    train, dev = parts()

    def loss(order, smoothing="add-alpha"):
        return -NGram.train(train, N_VOCAB, order, smoothing, alpha=0.1, separator=0).log_probs(dev).mean()

    assert np.log(N_VOCAB) == pytest.approx(3.296, abs=5e-4)
    for order, expected in ((1, 2.821), (2, 2.453), (3, 2.222), (4, 2.102), (5, 2.152)):
        assert loss(order) == pytest.approx(expected, abs=6e-4)
    # modified Kneser-Ney is a stronger baseline than any of these
    assert loss(5, "modified-kneser-ney") == pytest.approx(1.9832, abs=1e-4)
    assert loss(6, "modified-kneser-ney") == pytest.approx(1.9740, abs=1e-4)


def backed_off(ids, held_out, n_vocab, order, penalty=0.4):
    """Mean nats of maximum likelihood that backs off, at a penalty, to what followed shorter contexts; normalised."""
    models = [NGram.train(ids, n_vocab, k, "maximum-likelihood") for k in range(1, order + 1)]
    losses = []
    for i in range(order - 1, len(held_out)):
        p = np.full(n_vocab, 1 / n_vocab)
        for k, model in enumerate(models):
            try:
                own = model.next_probs(held_out[i - k : i])
            except UnseenContextError:
                break
            p = np.where(own > 0, own, penalty * p)
        losses.append(-np.log(p[held_out[i]] / p.sum()))
    return np.mean(losses)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_kneser_ney_beats_simpler_smoothing_on_shakespeare(shakespeare, order):
    tokenizer = learn_tokenizer("char", [shakespeare])
    ids, v = np.array(tokenizer.encode(shakespeare)), tokenizer.n_vocab
    train, held_out = ids[:90_000], ids[90_000:]
    loss = {s: -NGram.train(train, v, order, s).log_probs(held_out).mean() for s in SMOOTHINGS[2:]}
    added = [
        -NGram.train(train, v, order, "add-alpha", alpha=alpha).log_probs(held_out).mean()
        for alpha in (1, 0.3, 0.1, 0.03, 0.01)
    ]
    assert max(loss.values()) < min(added)  # the modified form is not always ahead of the other on few symbols
    some = held_out[:400]
    own = -NGram.train(train, v, order).log_probs(some)[order - 2 :].mean()
    assert own < backed_off(train, some, v, order)


# On disk, and refused -----------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(tmp_path):
    ids = parts()[0][:5000]
    for smoothing, separator in product(SMOOTHINGS, (None, 0)):
        model = NGram.train(ids, N_VOCAB, 3, smoothing, alpha=0.2, separator=separator)
        loaded = NGram.load(model.save(tmp_path / f"{smoothing}{separator}"))
        assert loaded.choices == model.choices
        assert (loaded.n_tokens, loaded.discounts, loaded.notes) == (model.n_tokens, model.discounts, model.notes)
        np.testing.assert_array_equal(loaded.log_probs(ids), model.log_probs(ids))


def test_saving_is_complete_or_not_at_all(tmp_path, monkeypatch):
    model = NGram.train(np.arange(9) % 3, 3, 2)

    def fail(*_):
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="no"):
            model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    model.save(tmp_path / "m")
    with pytest.raises(NGramError, match="exists: choose a new folder"):
        model.save(tmp_path / "m")


@pytest.mark.parametrize("name", ["ngram.json", "ngram.safetensors"])
def test_damaged_files_are_refused_in_one_sentence(tmp_path, name):
    folder = NGram.train(np.arange(9) % 3, 3, 2).save(tmp_path / "m")
    whole = (folder / name).read_bytes()
    for damaged in (b"", whole[:-5], whole[:30] + b"?" + whole[31:]):
        (folder / name).write_bytes(damaged)
        with pytest.raises(NGramError):
            NGram.load(folder)
    (folder / name).unlink()
    with pytest.raises(NGramError, match="holds no n-gram predictor"):
        NGram.load(folder)


def test_another_format_is_refused(tmp_path):
    folder = NGram.train(np.arange(9) % 3, 3, 2).save(tmp_path / "m")
    about = json.loads((folder / "ngram.json").read_text())
    (folder / "ngram.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(NGramError, match="format 99, expected 1"):
        NGram.load(folder)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([0, 1, 5], {}, "id 5 is outside the vocabulary: expected 0 to 2"),
        ([0, -1], {}, "id -1"),
        ([0, 1], {"order": 3}, "too few for order 3"),
        ([0.5, 1.0], {}, "expected one row of whole numbers"),
        ([0, 1], {"order": 0}, "order = 0"),
        ([0, 1], {"smoothing": "kn"}, "choose one of"),
        ([0, 1], {"alpha": 0.0}, "alpha = 0.0"),
        ([0, 1], {"separator": 3}, "separator = 3"),
    ],
)
def test_wrong_choices_and_ids_are_refused(ids, options, message):
    with pytest.raises(ValueError, match=message):
        NGram.train(np.array(ids), 3, **{"order": 2, **options})


def test_choices_go_to_json_and_back():
    choices = NGramOptions(n_vocab=7, order=4, smoothing="add-alpha", alpha=0.3, separator=2)
    assert build(NGramOptions, json.loads(json.dumps(asdict(choices)))) == choices
    with pytest.raises(ArchitectureError, match="colour"):
        build(NGramOptions, {**asdict(choices), "colour": "red"})
