"""First values that are counted in the training text: the reference's, said, kept, and never where they cannot be."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import Heard, recipe_for, resume, start

from pellucid.reference.embedding import counted_ngram_rows, pair_information
from pellucid.runs.options import RecipeError, with_train
from pellucid.text.tokens.store import Part
from pellucid.training import counted_weights as counted
from pellucid.training.counted_weights import counted_embedding, counted_tables, counted_weights
from pellucid.training.recipe import Recipe

TEXTS = st.lists(st.integers(0, 8), min_size=12, max_size=80)


def opened(text: Path, n_vocab: int = 257, **fields: Any) -> Recipe:
    """A recipe whose text has been read."""
    recipe = recipe_for(text, **fields)
    return replace(recipe, model=replace(recipe.model, n_vocab=n_vocab))


def resolved(recipe: Recipe, is_given: bool = False) -> Recipe:
    """The recipe with its first weights decided."""
    return counted.resolve_first_weights(recipe, is_given)[0]


def no_phase(*_: object) -> None:
    """Nobody watches."""


@given(TEXTS, st.integers(2, 12))
def test_the_embedding_has_the_largest_singular_values_of_the_pairs(tokens, width):
    ids = torch.tensor(tokens)
    got = counted_embedding(ids, 9, width, 1, 0.05, no_phase).double()
    _, sizes, right = np.linalg.svd(pair_information(np.array(tokens), 9))
    rank = min(width, 9)
    assert got.shape == (9, width)
    kept = right[:rank].T * sizes[:rank]
    if sizes[0] > 1e-3:
        assert got.square().mean().sqrt() == pytest.approx(0.05, rel=1e-4)
        scale = float(got.square().sum() / sizes[:rank].sum())
        np.testing.assert_allclose(got @ got.T, scale * kept @ right[:rank], atol=2e-4 * scale * sizes[0])


@given(TEXTS, st.integers(2, 3), st.integers(3, 20))
def test_tables_are_the_references(tokens, length, n_rows):
    embedding = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    tables = counted_tables(torch.tensor(tokens), embedding, [length], n_rows, no_phase)
    expected = counted_ngram_rows(embedding.numpy(), np.array(tokens), length, n_rows, counted.OF_MEAN, counted.PRIOR)
    np.testing.assert_allclose(tables[str(length)], expected, atol=1e-5)


@given(TEXTS)
def test_pieces_change_nothing(tokens):
    """However the text is cut into pieces, every n-gram across a cut is counted."""
    ids, embedding = torch.tensor(tokens), torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    whole = counted_tables(ids, embedding, [2, 3], 11, no_phase)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted, "PIECE", 5)
        cut = counted_tables(ids, embedding, [2, 3], 11, no_phase)
        embedded = counted_embedding(ids, 9, 4, 1, 0.05, no_phase)
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], atol=1e-5, rtol=0)
    torch.testing.assert_close(embedded, counted_embedding(ids, 9, 4, 1, 0.05, no_phase), atol=0, rtol=0)


def test_the_first_loss_of_a_counted_network_is_below_that_of_a_drawn_one(text, tmp_path):
    losses = {}
    for how in ("drawn", "counted"):
        run = start(text, tmp_path / how, steps=1, evaluate_every=1, first_weights=how)
        rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        losses[how] = next(row["loss"] for row in rows if "loss" in row)
    assert losses["counted"] < losses["drawn"]


def test_what_is_chosen_is_said_written_down_and_kept(text, tmp_path):
    heard = Heard()
    run = start(text, tmp_path / "run", heard)
    assert run.recipe.train.first_weights == "counted"
    said = "first weights: the tokens' embedding and tables of n-grams start from counts of the training text"
    assert said in heard.lines
    resume(run.path, steps=13)
    assert json.loads((run.path / "recipe.json").read_bytes())["train"]["first_weights"] == "counted"


def test_without_tables_auto_draws_and_counted_counts(text):
    recipe = opened(text, ngrams=())
    assert resolved(recipe).train.first_weights == "drawn"
    assert resolved(with_train(recipe, first_weights="counted")).train.first_weights == "counted"
    weights = counted_weights(recipe.model, Part.from_ids([1, 2, 3] * 9, recipe.model.n_vocab), 1, 0.02, no_phase)
    assert list(weights) == ["embed.token.weight"]


@pytest.mark.parametrize(
    ("fields", "is_given", "why"),
    [
        ({}, True, "starts from the weights of a model"),
        ({"objective": "masked"}, False, "learns something else"),
        ({"unembed": "untied"}, False, "only an embedding that is the readout too"),
        ({"n_vocab": counted.MOST_IDS + 1}, False, "8,193 ids"),
    ],
)
def test_where_nothing_can_be_counted_auto_draws_and_counted_is_refused(text, fields, is_given, why):
    recipe = opened(text, **fields)
    assert resolved(recipe, is_given).train.first_weights == "drawn"
    with pytest.raises(RecipeError, match=why):
        resolved(with_train(recipe, first_weights="counted"), is_given)


def test_a_network_in_float64_starts_from_the_same_values():
    """As the drawn ones: what is computed in another precision starts alike."""
    ids = torch.arange(60) * 7 % 9
    single = counted_embedding(ids, 9, 4, 1, 0.05, no_phase)
    tables = counted_tables(ids, single, [2, 3], 11, no_phase)
    torch.set_default_dtype(torch.float64)
    try:
        double = counted_embedding(ids, 9, 4, 1, 0.05, no_phase)
        in_double = counted_tables(ids, double, [2, 3], 11, no_phase)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(single, double)
    assert all(torch.equal(table, tables[n]) for n, table in in_double.items())
