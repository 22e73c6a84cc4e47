"""Choosing a token: hand-worked examples, the definitions as loops, and the draw as a distribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.generate import sampling as module
from pellucid.generate.errors import GenerationError
from pellucid.generate.sampling import (
    UNPICKED,
    Sampling,
    choose_tokens,
    draw_tokens,
    keep_top_k,
    keep_top_p,
    penalise,
    pick_tokens,
    probabilities,
    uniform,
)

GREEDY = Sampling(temperature=0)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def logits_rows(draw):
    """One to three rows of up to eight logits, with many ties among them."""
    n = draw(st.integers(1, 8))
    row = st.lists(st.sampled_from([-3.0, -0.5, 0.0, 0.0, 1.0, 1.0, 2.5]), min_size=n, max_size=n)
    return rows(*draw(st.lists(row, min_size=1, max_size=3)))


@pytest.mark.item("S0-4.3-d")
def test_greedy_takes_the_lowest_id_among_equals():
    assert choose_tokens(rows([0, 3, 3, 1], [5, 5, 5, 5], [-9, -9, -2, -2]), GREEDY).tolist() == [1, 0, 2]


def test_temperature_near_zero_is_greedy_and_does_not_overflow():
    logits = rows([1.0, 1.1, 1e10])
    assert choose_tokens(logits, Sampling(temperature=1e-300), [0.999]).tolist() == [2]


def test_temperature_divides_the_logits():
    logits = rows([0.0, math.log(2), math.log(5)])
    assert torch.allclose(probabilities(logits, Sampling()), rows([1 / 8, 2 / 8, 5 / 8]), atol=1e-15)
    assert torch.allclose(probabilities(logits, Sampling(temperature=0.5)), rows([1 / 30, 4 / 30, 25 / 30]), atol=1e-15)


@given(logits_rows(), st.integers(1, 9))
def test_top_k_keeps_exactly_k_and_the_lower_ids_among_equals(logits, k):
    kept = keep_top_k(logits, k)
    for row, result in zip(logits.tolist(), kept.tolist(), strict=True):
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert [i for i, x in enumerate(result) if x > -math.inf] == sorted(best)
        assert all(result[i] == row[i] for i in best)


@given(logits_rows(), st.floats(0, 1), st.sampled_from([1, 2, 512]))
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(logits, mass, short):
    p = logits.softmax(-1)
    with pytest.MonkeyPatch.context() as patch:
        # the likeliest that are looked at first change nothing but the time
        patch.setattr(module, "TRIED_FIRST", short)
        kept_p = keep_top_p(p, mass)
    for row, result in zip(p.tolist(), kept_p.tolist(), strict=True):
        falling = sorted(range(len(row)), key=lambda i: (-row[i], i))
        kept = [i for i in falling if result[i] > 0]
        assert kept == falling[: len(kept)]
        # a mass that is reached exactly may fall on either side of the rounding
        assert sum(row[i] for i in kept) >= mass - 1e-12
        assert len(kept) == 1 or sum(row[i] for i in kept[:-1]) < mass + 1e-12
        assert len(kept) >= 1


def test_top_p_by_hand():
    p = rows([0.1, 0.5, 0.25, 0.15])
    assert keep_top_p(p, 0.7).tolist() == [[0, 0.5, 0.25, 0]]
    assert keep_top_p(p, 0.5).tolist() == [[0, 0.5, 0, 0]]
    assert keep_top_p(p, 0.51).tolist() == [[0, 0.5, 0.25, 0]]
    assert keep_top_p(p, 0.0).tolist() == [[0, 0.5, 0, 0]]
    assert keep_top_p(p, 0.95).tolist() == p.tolist()


def test_min_p_is_relative_to_the_likeliest():
    logits = rows([math.log(8), math.log(4), math.log(2), math.log(1)])
    p = probabilities(logits, Sampling(min_p=0.4))
    assert torch.allclose(p, rows([2 / 3, 1 / 3, 0, 0]))
    assert torch.equal(probabilities(logits, Sampling(min_p=1.0)), rows([1, 0, 0, 0]))


def test_the_three_truncations_act_in_order():
    logits = rows([math.log(x) for x in (4, 3, 2, 1)])
    # top-k leaves 4/7, 3/7: then 0.5 of the mass is the first alone, which of all ten it is not
    assert (probabilities(logits, Sampling(top_k=2, top_p=0.5)) > 0).tolist() == [[True, False, False, False]]
    assert (probabilities(logits, Sampling(top_p=0.5)) > 0).tolist() == [[True, True, False, False]]


def test_repetition_penalty_by_hand_counts_prompt_and_generated_once():
    logits = rows([2.0, -2.0, 3.0, 0.5])
    result = penalise(logits, Sampling(repetition_penalty=2), [[0, 1, 1]], [[1, 3]])
    assert result.tolist() == [[1.0, -4.0, 3.0, 0.25]]
    assert penalise(rows([-0.5, 0.5]), Sampling(repetition_penalty=2), [[0, 1]], [[]]).tolist() == [[-1.0, 0.25]]


def test_presence_penalty_and_biases_by_hand():
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    result = penalise(logits, Sampling(presence_penalty=0.5), [[2, 2], [0]], [[1, 1, 0], []])
    assert result.tolist() == [[2.5, 1.5, 1.0], [3.0, 2.0, 1.0]]
    biased = penalise(logits, Sampling(logit_bias=((2, 5.0), (99, 1.0))), [[], []], [[], []])
    assert biased.tolist() == [[3.0, 2.0, 6.0]] * 2
    assert logits.tolist() == [[3.0, 2.0, 1.0]] * 2
    with pytest.raises(GenerationError, match="logit_bias of id 1"):
        Sampling(logit_bias=((1, math.inf),))


def test_frequency_penalty_by_hand_counts_generated_tokens_only():
    logits = rows([2.0, -2.0, 3.0, 0.5], [0.0, 0.0, 0.0, 0.0])
    result = penalise(logits, Sampling(frequency_penalty=0.5), [[2, 2], [0]], [[1, 1, 0], []])
    assert result.tolist() == [[1.5, -3.0, 3.0, 0.5], [0, 0, 0, 0]]


def test_penalties_change_what_greedy_takes():
    logits = rows([2.0, 1.9])
    assert choose_tokens(logits, Sampling(temperature=0, frequency_penalty=0.2), generated=[[0]]).tolist() == [1]
    assert choose_tokens(logits, Sampling(temperature=0, repetition_penalty=1.1), prompts=[[0]]).tolist() == [1]


@settings(max_examples=60)
@given(logits_rows(), st.floats(0, 1), st.integers(0, 3), st.floats(0, 1), st.integers(1, 8), st.integers(0, 10**6))
def test_logits_of_the_caller_stay_and_forbidden_ids_never_come(logits, top_p, top_k, min_p, n_allowed, seed):
    before = logits.clone()
    sampling = Sampling(top_p=top_p, top_k=top_k, min_p=min_p, repetition_penalty=1.3, frequency_penalty=-5)
    tokens = [[0, logits.size(1) - 1]] * len(logits)
    for step in range(3):
        numbers = [uniform(seed, row, step) for row in range(len(logits))]
        chosen = choose_tokens(logits, sampling, numbers, tokens, tokens, n_allowed=n_allowed)
        assert (chosen < n_allowed).all()
        assert (chosen < logits.size(1)).all()
    choose_tokens(logits, GREEDY, n_allowed=n_allowed)
    assert torch.equal(logits, before)


def test_a_whole_number_of_tokens_may_be_a_float():
    logits = rows([0.0, 1.0, 2.0, 3.0])
    assert torch.equal(probabilities(logits, Sampling(top_k=2.0)), probabilities(logits, Sampling(top_k=2)))


@given(logits_rows(), st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_a_row_does_not_depend_on_the_other_rows(logits, numbers):
    numbers = numbers[: len(logits)]
    sampling = Sampling(top_k=3, top_p=0.9)
    together = choose_tokens(logits, sampling, numbers).tolist()
    assert together == [choose_tokens(logits[i : i + 1], sampling, [u]).item() for i, u in enumerate(numbers)]


def test_the_ends_of_the_unit_interval_reach_only_possible_ids():
    p = rows([0.0, 0.3, 0.0, 0.7, 0.0])
    just_below_one = math.nextafter(1.0, 0.0)
    assert draw_tokens(p.repeat(2, 1), torch.tensor([0.0, just_below_one], dtype=torch.float64)).tolist() == [1, 3]
    many = torch.full((1, 1000), 0.001, dtype=torch.float64)
    assert draw_tokens(many, torch.tensor([just_below_one], dtype=torch.float64)).item() == 999


@pytest.mark.item("S0-4.3-e")
def test_draws_follow_the_distribution():
    """chi-square of 100,000 draws against the softmax; 7 degrees of freedom, 24.3 is p = 0.001."""
    logits = torch.linspace(-1, 2, 8, dtype=torch.float64)
    n = 100_000
    numbers = torch.tensor([uniform(11, 0, step) for step in range(n)], dtype=torch.float64)
    p = probabilities(logits[None], Sampling())
    counts = draw_tokens(p.expand(n, 8), numbers).bincount(minlength=8)
    expected = n * p[0]
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


def test_numbers_are_pinned_and_differ_by_seed_sample_and_step():
    assert uniform(1, 0, 0) == uniform(1, 0, 0)
    assert (
        len({uniform(seed, sample, step) for seed in range(10) for sample in range(10) for step in range(10)}) == 1000
    )
    assert all(0 <= uniform(seed, 0, 0) < 1 for seed in (-5, 0, 2**200))
    assert uniform(1, 2, 3) == 0.40675705933660067


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("frequency_penalty", math.inf),
        ("temperature", True),
    ],
)
def test_values_out_of_range_are_named(option, value):
    with pytest.raises(GenerationError, match=f"{option} = .*expected"):
        Sampling(**{option: value})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad):
    with pytest.raises(GenerationError, match="NaN or infinity"):
        choose_tokens(rows([0.0, bad]), GREEDY)
    for sampling in (GREEDY, Sampling(top_p=0.9, top_k=2)):
        assert pick_tokens(rows([0.0, bad], [0.0, 9e9]), sampling, [0.5, 0.5]).tolist() == [UNPICKED, 1]


def test_chance_without_a_number_is_refused():
    with pytest.raises(GenerationError, match="one random number per row"):
        choose_tokens(rows([0.0, 1.0]), Sampling())
