"""Guessing ahead changes no token and no logit, whatever is guessed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.generate import GenerationError, Sampling, generate_ids
from pellucid.generate.speculation import SpeculatingReader, look_up
from pellucid.model import Transformer

CHOICES = st.sampled_from(
    [Sampling(temperature=0), Sampling(temperature=0.3), Sampling(temperature=0.5, repetition_penalty=1.3)]
)


def run(network: Transformer, prompts, **options):
    """Every row's tokens, its logits, and the reader."""
    decoding = generate_ids(network, prompts, **options)
    logits = {id(row): [] for row in decoding.rows}
    for step in decoding:
        for row, x in zip(step.rows, step.logits, strict=True):
            logits[id(row)].append(x)
    return [row.generated for row in decoding.rows], [logits[id(row)] for row in decoding.rows], decoding.reader


@settings(max_examples=60)
@given(
    architectures({"attention.mask": st.sampled_from(["causal", "prefix"])}, max_ctx=12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=2),
    CHOICES, st.integers(0, 99), st.integers(1, 6),
)  # fmt: skip
def test_speculation_changes_no_token_and_no_logit(a, prompts, sampling, seed, n_guesses):
    """Float64; prompts of three symbols repeat themselves, rows end at different times, texts outgrow the context."""
    network = make_network(a)
    options = {"max_tokens": a.n_ctx + 5, "sampling": sampling, "seeds": seed, "stop_ids": [3]}
    plain, expected, _ = run(network, prompts, **options)
    found, logits, reader = run(network, prompts, **options, speculate=n_guesses)
    assert found == plain
    assert isinstance(reader, SpeculatingReader)
    for ours, theirs in zip(logits, expected, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert difference(x, y) <= 1e-12


@settings(max_examples=15)
@given(architectures({"attention.mask": "causal"}, max_ctx=12), st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_in_float32_greedy_texts_part_only_at_near_ties(a, prompt):
    network = make_network(a, dtype=torch.float32)
    options = {"max_tokens": a.n_ctx + 5, "sampling": Sampling(temperature=0)}
    (plain,), (logits,), _ = run(network, [prompt], **options)
    (found,), _, _ = run(network, [prompt], **options, speculate=4)
    if found != plain:
        at = next(i for i, (x, y) in enumerate(zip(found, plain, strict=True)) if x != y)
        assert logits[at][plain[at]] - logits[at][found[at]] <= 1e-4 * max(1, logits[at].abs().max())


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_what_is_looked_up_followed_the_same_tokens_before(tokens, n):
    found = look_up(tokens, n)
    assert len(found) <= n
    if found:
        follows = [i for i in range(2, len(tokens)) if tokens[i : i + len(found)] == found]
        assert any(tokens[i - 2 : i] == tokens[-2:] for i in follows)
    else:
        pairs = {tuple(tokens[i : i + 2]) for i in range(len(tokens) - 2)}
        assert len(tokens) < 3 or tuple(tokens[-2:]) not in pairs


def test_a_text_that_repeats_itself_takes_fewer_passes():
    """A greedy text of a small network falls into a cycle; guesses then come true."""
    from pellucid.architecture import Architecture

    network = make_network(Architecture(n_vocab=11, n_ctx=128, d_model=8, n_layers=1), dtype=torch.float64)
    options = {"max_tokens": 100, "sampling": Sampling(temperature=0)}
    (plain,), _, _ = run(network, [[1, 2]], **options)
    (found,), _, reader = run(network, [[1, 2]], **options, speculate=8)
    assert found == plain
    assert reader.passes < 60


@pytest.mark.parametrize("speculate", [True, -1, 1.5])
def test_what_is_no_number_of_guesses_is_refused(speculate):
    network = make_network(Architecture(n_vocab=5, n_ctx=4, d_model=4, n_layers=1))
    with pytest.raises(GenerationError, match="speculate = "):
        generate_ids(network, [[1]], max_tokens=1, speculate=speculate)
