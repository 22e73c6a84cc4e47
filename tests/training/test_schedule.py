"""The learning rate's factor at steps that can be worked out by hand."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_training

from pellucid.runs.schedule import rate_factor


def test_warm_up_is_a_line_that_ends_at_the_peak():
    values = [rate_factor(step, 100, shape="cosine", warmup=4, floor=0.1) for step in range(5)]
    assert values == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_is_half_way_down_in_the_middle_and_at_the_floor_at_the_end():
    # 10 steps of warm-up, then t = 0 at step 10 and t = 1 at step 110
    assert rate_factor(60, 111, shape="cosine", warmup=10, floor=0.1) == pytest.approx(0.55, abs=1e-15)
    assert rate_factor(35, 111, shape="cosine", warmup=10, floor=0.0) == pytest.approx(
        (1 + math.sqrt(0.5)) / 2, abs=1e-15
    )
    assert rate_factor(110, 111, shape="cosine", warmup=10, floor=0.1) == pytest.approx(0.1, abs=1e-15)


def test_linear_is_a_line_from_the_peak_to_the_floor():
    values = [rate_factor(step, 111, shape="linear", warmup=10, floor=0.1) for step in (10, 60, 110)]
    assert values == pytest.approx([1.0, 0.55, 0.1], abs=1e-15)


def test_wsd_is_level_then_a_line_to_the_floor_over_the_last_fifth():
    values = [rate_factor(step, 100, shape="wsd", warmup=0, floor=0.05) for step in range(100)]
    assert values[:81] == [1.0] * 81
    # step 80 is the first of the decay, at its beginning; 99 the last, at its end
    assert values[99] == pytest.approx(0.05, abs=1e-15)
    assert values[90] == pytest.approx(0.05 + 0.95 * 9 / 19, abs=1e-15)


def test_constant_stays_after_its_warm_up():
    assert [rate_factor(s, 5, shape="constant", warmup=2, floor=0.1) for s in range(5)] == [0.5, 1, 1, 1, 1]


@given(
    n=st.integers(1, 300),
    warmup=st.integers(0, 40),
    floor=st.floats(0, 1),
    shape=st.sampled_from(["cosine", "linear", "wsd", "constant"]),
)
def test_every_factor_is_between_nothing_and_the_peak_and_never_rises_after_warm_up(n, warmup, floor, shape):
    values = [rate_factor(step, n, shape=shape, warmup=warmup, floor=floor) for step in range(n)]
    after = values[warmup:]
    assert all(0 <= v <= 1 + 1e-12 for v in values)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(after))


def test_a_step_is_in_the_last_segment_that_has_begun(text, tmp_path):
    from dataclasses import replace

    training = make_training(text, tmp_path / "run", steps=100, warmup=0, floor=0.0)
    training.trainable.recipe = replace(training.recipe, segments=((0, 100), (40, 61)))
    # made shorter at step 40: the steps before it keep the rates of the run to 100
    assert training.factor(39) == rate_factor(39, 100, shape="cosine", warmup=0, floor=0.0)
    assert training.factor(40) == 1.0
    assert training.factor(50) == pytest.approx(0.5, abs=1e-15)
    assert training.factor(60) == pytest.approx(0.0, abs=1e-15)
