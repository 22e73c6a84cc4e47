"""Several small passes are the large batch: in gradients, and in the weights after some steps."""

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from tiny import make_training
from torch.nn import functional as F

from pellucid.runs.metrics import WALL_CLOCK
from pellucid.training.objectives import MicroBatch, summed_loss
from pellucid.training.recipe import make_recipe
from pellucid.training.resolve_recipe import MAPPED, SMALLEST_PASS, resolve_batch, widest_row

WAYS = [(8, 1), (4, 2), (2, 4), (1, 8)]


def gradients(text, tmp_path, batch, accumulate, **fields):
    out = tmp_path / f"run-{batch}-{accumulate}"
    training = make_training(
        text, out, torch.float64, batch=batch, accumulate=accumulate, clip=0.0, **{"dropout": 0.0, **fields}
    )
    training.take_step()
    row, figures = training.pending[0]
    return {n: p.grad.clone() for n, p in training.network.named_parameters()}, figures.values["loss"], row


@pytest.mark.parametrize("inside", ["no", "yes"])
def test_gradients_are_those_of_the_large_batch(text, tmp_path, inside):
    (whole, loss, row), *others = (gradients(text, tmp_path, b, a, inside_documents=inside) for b, a in WAYS)
    row = {k: v for k, v in row.items() if k not in WALL_CLOCK}
    assert row["tokens"] == 8 * 16
    for found, its_loss, its_row in others:
        assert {k: v for k, v in its_row.items() if k not in WALL_CLOCK} == row
        assert its_loss.item() == pytest.approx(loss.item(), rel=1e-6)  # the figure is added up in float32
        for name in whole:
            error = (found[name] - whole[name]).abs().max() / max(1.0, whole[name].abs().max())
            assert error <= 1e-12, name


def test_gradients_are_those_of_the_mean_over_all_tokens(text, tmp_path):
    found, loss, _ = gradients(text, tmp_path, 2, 4)
    training = make_training(text, tmp_path / "direct", torch.float64, batch=8, accumulate=1, dropout=0.0)
    given = training.trainable.data.at(0, 0, 1)
    logits = training.network(given.inputs)
    mean = F.cross_entropy(logits.reshape(-1, logits.size(-1)), given.targets.reshape(-1))
    mean.backward()
    assert loss.item() == pytest.approx(mean.item(), rel=1e-6)
    for name, p in training.network.named_parameters():
        assert torch.allclose(found[name], p.grad, rtol=0, atol=1e-12), name


def test_passes_of_different_sizes_add_up_by_their_tokens(text, tmp_path):
    training = make_training(text, tmp_path / "run", torch.float64, batch=4, accumulate=1, dropout=0.0)
    given = training.trainable.data.at(0, 0, 1)
    whole = summed_loss(training.network, given)
    parts = [MicroBatch(given.inputs[a:b], given.targets[a:b]) for a, b in ((0, 1), (1, 4))]
    assert sum(summed_loss(training.network, part) for part in parts).item() == pytest.approx(whole.item(), rel=1e-13)
    short = [MicroBatch(given.inputs[:, :5], given.targets[:, :5]), given]
    sizes = [5 * 4, 16 * 4]
    direct = [summed_loss(training.network, p).item() / n for p, n in zip(short, sizes, strict=True)]
    assert all(3 < value < 8 for value in direct)  # nats per token, whatever the size


@pytest.mark.parametrize(("word", "tolerance"), [("adamw", 1e-6), ("muon", 1e-4)])
def test_weights_after_some_steps_are_those_of_the_large_batch(text, tmp_path, word, tolerance):
    """Exactly so in float64; in float32 up to the rounding that separates the large batch itself from float64.

    AdamW divides a gradient by its own size: where an entry is nearly zero, its rounding counts in full.
    """

    def weights(batch, accumulate, dtype):
        out = tmp_path / f"{word}-{batch}-{dtype}"
        options = {"optimizer": word, "batch": batch, "accumulate": accumulate, "dropout": 0.0, "steps": 6}
        training = make_training(text, out, dtype, **options)
        for _ in range(6):
            training.take_step()
        return {name: p.detach().double() for name, p in training.network.named_parameters()}

    exact, exact_parts = (weights(*sizes, torch.float64) for sizes in ((8, 1), (2, 4)))
    whole, parts = (weights(*sizes, torch.float32) for sizes in ((8, 1), (2, 4)))
    for name in whole:
        size = max(1.0, exact[name].abs().max().item())
        assert (exact_parts[name] - exact[name]).abs().max() <= 1e-9 * size, name
        rounding = (whole[name] - exact[name]).abs().max().item()
        assert (parts[name] - whole[name]).abs().max() <= max(tolerance * size, 4 * rounding), (name, rounding)


@drawn(st.integers(1, 300), st.sampled_from([16, 64, 256, 1024]), st.sampled_from([32, 384, 2048]))
def test_a_step_is_divided_into_equal_passes_and_stays_the_same(batch, n_ctx, d_model):
    fields = {"batch": batch, "n_ctx": n_ctx, "d_model": d_model, "n_heads": 4}
    recipe = make_recipe(("text",), "gpt2", fields)
    t = resolve_batch(recipe, torch.device("cpu")).train
    assert t.batch * t.accumulate == batch
    if t.accumulate > 1:
        assert t.batch * n_ctx >= SMALLEST_PASS
        assert 4 * t.batch * widest_row(recipe.model) <= MAPPED
        fewer = [n for n in range(1, t.accumulate) if batch % n == 0]
        assert all(4 * batch // n * widest_row(recipe.model) > MAPPED for n in fewer)
    assert resolve_batch(recipe, torch.device("meta")).train.accumulate == 1


def test_passes_that_were_asked_for_are_taken():
    recipe = make_recipe(("text",), "gpt2", {"batch": 64, "accumulate": 1, "n_ctx": 256, "d_model": 384})
    assert resolve_batch(recipe, torch.device("cpu")).train == recipe.train
    open_ = make_recipe(("text",), "gpt2", {"batch": 64, "n_ctx": 256, "d_model": 384})
    chosen = resolve_batch(open_, torch.device("cpu")).train
    assert (chosen.batch, chosen.accumulate) == (16, 4)
