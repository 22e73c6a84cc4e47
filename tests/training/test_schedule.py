"""The learning rate's factor at steps that can be worked out by hand."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.runs.schedule import DECAY_SHARE, decay_of, rate_factor


def factors(n, shape, warmup=0, floor=0.1):
    """Of all steps of a run of `n`."""
    decay = decay_of(shape, n, warmup)
    return [rate_factor(step, decay, shape=shape, warmup=warmup, floor=floor) for step in range(n)]


def test_warm_up_is_a_line_that_ends_at_the_peak():
    assert factors(100, "cosine", warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors(100, "wsd", warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_is_half_way_down_in_the_middle_and_at_the_floor_at_the_end():
    # 10 steps of warm-up, then t = 0 at step 10 and t = 1 at step 110
    values = factors(111, "cosine", warmup=10)
    assert values[60] == pytest.approx(0.55, abs=1e-15)
    assert factors(111, "cosine", warmup=10, floor=0.0)[35] == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-15)
    assert values[110] == pytest.approx(0.1, abs=1e-15)


def test_linear_is_a_line_from_the_peak_to_the_floor():
    values = factors(111, "linear", warmup=10)
    assert [values[10], values[60], values[110]] == pytest.approx([1.0, 0.55, 0.1], abs=1e-15)


def test_wsd_is_level_and_then_falls_with_the_square_root_of_the_time():
    n_decay = round(100 * DECAY_SHARE)
    values, first = factors(100, "wsd", floor=0.05), 100 - n_decay
    assert values[: first + 1] == [1.0] * (first + 1)
    assert values[99] == pytest.approx(0.05, abs=1e-15)
    assert values[first + 7] == pytest.approx(1 - 0.95 * math.sqrt(7 / (n_decay - 1)), abs=1e-15)


def test_constant_stays_after_its_warm_up():
    assert factors(5, "constant", warmup=2) == [0.5, 1, 1, 1, 1]


def test_as_long_as_nobody_knows_when_the_decay_begins_the_rate_stays():
    for shape in ("wsd", "cosine", "linear", "constant"):
        assert [rate_factor(s, None, shape=shape, warmup=2, floor=0.1) for s in (0, 1, 2, 999)] == [0.5, 1, 1, 1]


@given(
    n=st.integers(1, 300),
    warmup=st.integers(0, 40),
    floor=st.floats(0, 1),
    shape=st.sampled_from(["cosine", "linear", "wsd", "constant"]),
)
def test_every_factor_is_between_nothing_and_the_peak_and_never_rises_after_warm_up(n, warmup, floor, shape):
    first, end = decay_of(shape, n, warmup)
    assert 0 <= first <= end == n
    values = factors(n, shape, warmup, floor)
    assert all(0 <= v <= 1 + 1e-12 for v in values)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values[warmup:]))
    if first < n and shape != "constant" and n > warmup:
        assert values[-1] == pytest.approx(floor)
