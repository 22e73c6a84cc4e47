"""Batches as a function of (seed, step), and windows for measuring."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.tokens.batches import Batches, BatchesError, feistel, permute, windows
from pellucid.text.tokens.store import TokenSequence, TokensError


def ring(n: int, starts=(0,)) -> TokenSequence:
    """Tokens that are their own positions."""
    return TokenSequence.from_ids(np.arange(n), starts=starts)


@pytest.mark.parametrize("order", [permute, feistel])
@given(st.integers(1, 5000), st.integers(-5, 2**70), st.integers(0, 10**9))
def test_the_order_is_a_permutation(order, n, seed, epoch):
    there = order(np.arange(n, dtype=np.uint64), n, seed, epoch)
    assert sorted(there.tolist()) == list(range(n))


def test_the_order_of_a_trillion_is_computed_where_it_is_asked_for():
    n = 10**12
    there = permute(np.arange(n - 1000, n, dtype=np.uint64), n, 0, 0)
    assert len(set(there.tolist())) == 1000
    assert there.max() < n
    assert abs(there.mean() / n - 0.5) < 0.05


def test_orders_of_five_are_all_drawn_about_equally_often():
    drawn = Counter(tuple(permute(np.arange(5, dtype=np.uint64), 5, 0, epoch).tolist()) for epoch in range(12_000))
    assert len(drawn) == 120
    # 100 expected of each; chi-square with 119 degrees of freedom exceeds 200 with probability below 1e-5
    assert sum((count - 100) ** 2 / 100 for count in drawn.values()) < 200


def test_neighbours_are_sent_anywhere_by_the_order_of_many():
    n = 3_000_000
    there = permute(np.arange(20_000, dtype=np.uint64), n, 0, 0).astype(np.int64)
    # ten equal ranges: 9 degrees of freedom, above 40 with probability below 1e-5
    for values in (there, np.diff(there) % n):
        counts = np.bincount(values * 10 // n, minlength=10)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 40


shapes = st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(0, 150), st.integers(0, 5))


@pytest.mark.item("S1-1.1-d")
@given(shapes)
@settings(max_examples=60)
def test_every_token_is_a_target_once_an_epoch_but_for_the_remainder(shape):
    n_ctx, batch, more, seed = shape
    n = n_ctx + 1 + more
    batches = Batches(ring(n), n_ctx, batch, seed)
    epochs = 3
    steps = -(-epochs * batches.n_windows // batch)
    rows = [(x, y) for step in range(steps) for x, y in zip(*batches.at(step), strict=True)]
    for epoch in range(epochs):
        seen = rows[epoch * batches.n_windows : (epoch + 1) * batches.n_windows]
        targets = Counter(int(t) for _, y in seen for t in y)
        assert set(targets.values()) == {1}
        assert len(targets) == n - n % n_ctx
        inputs = Counter(int(t) for x, _ in seen for t in x)
        assert set(inputs.values()) == {1}
    for x, y in rows:
        assert ((x + 1) % n == y).all()
        assert ((x[:-1] + 1) % n == x[1:]).all()


def test_a_step_is_the_same_whoever_asks_and_whatever_was_asked_before():
    one, other = (Batches(ring(1000), 16, 8, seed=3) for _ in range(2))
    forwards = [one.at(step).inputs for step in range(40)]
    for step in reversed(range(40)):
        assert np.array_equal(other.at(step).inputs, forwards[step])


def test_the_order_is_fixed_for_good():
    # a run that is resumed years later must find the same order: these numbers may never change
    assert permute(np.arange(8, dtype=np.uint64), 8, 1, 2).tolist() == [0, 4, 3, 5, 1, 6, 2, 7]
    assert permute(np.arange(4, dtype=np.uint64), 10**9, 1, 2).tolist() == [576196059, 762907311, 726313116, 867183737]
    assert Batches(ring(1000), 10, 4, seed=7).starts(123).tolist() == [294, 964, 564, 284]


def test_seeds_and_epochs_differ():
    batches = [Batches(ring(1000), 10, 100, seed) for seed in (0, 1, -1, 2**40)]
    firsts = [tuple(b.starts(epoch).tolist()) for b in batches for epoch in range(3)]
    assert len(set(firsts)) == len(firsts)
    assert len({first[0] % 10 for first in firsts}) > 3


@given(st.sampled_from([(12, of) for of in (1, 2, 3, 4, 6, 12)]), st.integers(0, 50), st.booleans())
def test_parts_of_a_batch_together_are_the_batch(sizes, step, inside):
    batch, of = sizes
    batches = Batches(ring(500, starts=(0, 100, 103, 290)), 8, batch, seed=1, inside_documents=inside)
    whole, parts = batches.at(step), [batches.at(step, micro, of) for micro in range(of)]
    for name in ("inputs", "targets", "documents", "positions"):
        if inside or name in ("inputs", "targets"):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
        else:
            assert getattr(whole, name) is None


def test_batches_are_int64_and_unpack_to_two():
    inputs, targets = Batches(TokenSequence([np.arange(100, dtype=np.uint16)], np.array([0]), 100), 8, 4).at(0)
    assert inputs.shape == targets.shape == (4, 8)
    assert inputs.dtype == targets.dtype == np.int64


def test_sizes_without_batches_are_refused():
    with pytest.raises(BatchesError, match="has 10 tokens, too few for one window of n_ctx \\+ 1 = 11"):
        Batches(ring(10), 10, 1)
    with pytest.raises(BatchesError, match="at least 1"):
        Batches(ring(10), 3, 0)
    batches = Batches(ring(100), 10, 6)
    with pytest.raises(BatchesError, match="cannot be cut into 4"):
        batches.at(0, 0, 4)
    for wrong in ((-1, 0, 1), (0, 2, 2), (0, -1, 2)):
        with pytest.raises(BatchesError, match="expected step >= 0"):
            batches.at(*wrong)


def test_ids_outside_the_vocabulary_are_caught_before_a_model_sees_them():
    part = TokenSequence([np.full(50, 9)], np.array([0]), n_vocab=9)
    with pytest.raises(TokensError, match="id 9 is outside"):
        Batches(part, 4, 2).at(0)
    with pytest.raises(TokensError, match="id 9 is outside"):
        next(windows(part, 4))


def test_epochs_are_counted():
    batches = Batches(ring(1000), 10, 8)
    assert batches.n_windows == 100
    assert [batches.epoch(step) for step in (0, 25, 50)] == [0, 2, 4]


borders = st.lists(st.integers(1, 59), max_size=8, unique=True).map(lambda inner: (0, *sorted(inner)))


@given(borders, st.integers(1, 20), st.integers(0, 30))
def test_documents_and_positions_follow_the_index(starts, n_ctx, step):
    batch = Batches(ring(60, starts), n_ctx, 4, inside_documents=True).at(step)
    for x, documents, positions in zip(batch.inputs, batch.documents, batch.positions, strict=True):
        document, position = 0, -1
        for i, token in enumerate(x.tolist()):
            begins = token in starts and i > 0
            document, position = (document + 1, 0) if begins else (document, position + 1)
            assert (documents[i], positions[i]) == (document, position)


@given(st.integers(2, 120), st.integers(1, 20), st.data(), st.integers(1, 5))
def test_measuring_scores_every_token_after_the_first_once_with_its_context(n, n_ctx, data, batch):
    stride = data.draw(st.integers(1, n_ctx))
    scored = []
    for inputs, targets, counts in windows(ring(n), n_ctx, stride, batch):
        assert inputs.shape == targets.shape == counts.shape
        assert inputs.shape[1] == min(n_ctx, n - 1)
        assert (inputs + 1 == targets).all()
        scored += targets[counts].tolist()
        context = np.broadcast_to(np.arange(1, inputs.shape[1] + 1), counts.shape)
        enough = np.minimum(targets, n_ctx - stride + 1)
        assert (context >= enough)[counts].all()
    assert scored == list(range(1, n))


def test_measuring_by_default_is_without_overlap():
    batches = list(windows(ring(33), 8))
    assert [b.inputs[0, 0] for b in batches] == [0, 8, 16, 24]
    assert all(b.counts.all() for b in batches)


def test_measuring_marks_documents_too():
    batch = next(windows(ring(20, starts=(0, 5, 7)), 10, batch=2, inside_documents=True))
    assert batch.documents.tolist() == [[0] * 5 + [1] * 2 + [2] * 3, [0] * 10]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2]


def test_measuring_sizes_are_refused_at_once():
    with pytest.raises(BatchesError, match="at least 2"):
        windows(ring(1), 8)
    with pytest.raises(BatchesError, match="1 <= stride <= n_ctx"):
        windows(ring(9), 8, stride=9)
