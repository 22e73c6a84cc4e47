"""The lines of a step's memory are equal to the walk, to the byte: every preset, drawn architectures, every option."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.architecture import Architecture
from pellucid.plan.planning import default_recipe
from pellucid.presets import PRESETS, preset, with_vocabulary
from pellucid.runs.options import with_train
from pellucid.training import memory, memory_lines
from pellucid.training.config import ParallelOptions
from pellucid.training.memory import first_in_chunks, training_memory, walk
from pellucid.training.memory_lines import NoClosedFormError, step_lines, upper_envelope
from pellucid.training.recipe import Recipe
from pellucid.training.shape_tensors import PIECES, LinearBytes, ShapesOnly
from running import any_architectures
from some_cases import one_in

RMSPROP = {"ngram_optimizer": "rmsprop"}
#: (depth, options of training), of which a preset has the two at its number
OPTIONS = [
    (4, {"precision": "float32", "batch": 3, "optimizer": "muon", "attention": "fused", "accumulate": 1}),
    (4, {"precision": "bfloat16", "batch": 1, "optimizer": "adamw", "attention": "fused", "accumulate": 2}),
    (6, {"precision": "bfloat16", "batch": 5, "optimizer": "muon", "attention": "explicit", "accumulate": 1} | RMSPROP),
    (2, {"precision": "float32", "batch": 1, "optimizer": "muon", "attention": "explicit", "accumulate": 1}),
    (
        4,
        {"precision": "bfloat16", "batch": 2, "optimizer": "adamw", "attention": "fused", "recompute": "yes"} | RMSPROP,
    ),
]


def shrunk(a: Architecture, depth: int) -> Architecture:
    """Short rows and a few layers; the encoder has other sizes."""
    encoder = a.encoder and replace(a.encoder, n_layers=max(1, depth - 1), n_ctx=min(17, a.encoder.n_ctx))
    return replace(a, n_layers=depth, n_ctx=min(24, a.n_ctx), encoder=encoder)


def with_options(a: Architecture, **options) -> Recipe:
    return with_train(default_recipe(a), **({"accumulate": 1} | options))


def assert_equal_to_the_walk(recipe: Recipe) -> None:
    assert vars(training_memory(recipe)) == vars(walk(recipe))


@pytest.mark.parametrize("name", one_in(12, PRESETS))
def test_presets(name):
    depth, options = OPTIONS[list(PRESETS).index(name) % len(OPTIONS)]
    assert_equal_to_the_walk(with_options(shrunk(preset(name), depth), **options))


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "options"), OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("name", PRESETS)
def test_presets_with_every_option(name, depth, options):
    assert_equal_to_the_walk(with_options(shrunk(preset(name), depth), **options))


@settings(deadline=None, max_examples=6)
@given(any_architectures({"n_layers": 4, "mlp.experts": 0}), st.sampled_from(OPTIONS))
def test_drawn_architectures(a, options):
    """But for mixtures of experts, whose memory is no linear function of the batch."""
    if a.readout == "none":
        return
    assert_equal_to_the_walk(with_options(a, **options[1]))


@pytest.mark.slow
def test_layers_that_differ_in_turn():
    a = shrunk(preset("small"), 15)
    a = replace(a, attention=replace(a.attention, windows=(0, 8)), positions=replace(a.positions, every=3))
    assert_equal_to_the_walk(with_options(a, batch=2, precision="bfloat16"))


@pytest.mark.parametrize(
    ("preset_name", "optimizer", "precision"),
    one_in(2, [("small", "adamw", "bfloat16"), ("original", "muon", "float32")]),
)
def test_logits_in_chunks(preset_name, optimizer, precision):
    """A batch in chunks, and the largest without."""
    a = with_vocabulary(shrunk(preset(preset_name), 4), 2**20)
    recipe = with_options(a, precision=precision, optimizer=optimizer)
    chunked = first_in_chunks(recipe)
    for batch in (chunked - 1, 2 * chunked + 1):
        assert_equal_to_the_walk(with_train(recipe, batch=batch))


@pytest.mark.parametrize("options", one_in(2, [{}, {"accumulate": 2, "recompute": "yes"}]))
@pytest.mark.parametrize(("shard", "tensor"), [(2, 1), (1, 4), (2, 2)])
def test_repeated_layers_of_networks_that_processes_divide(shard, tensor, options, monkeypatch):
    """Each layer's gradients are sent while the next layer below is computed; there is no walk of these networks."""
    a = shrunk(preset("small"), 8)
    a = replace(a, attention=replace(a.attention, windows=(0, 8)))
    recipe = with_options(a, batch=0, attention="fused", **options)
    recipe = replace(recipe, parallel=ParallelOptions(shard=shard, tensor=tensor))
    with_repeated_layers = step_lines.__wrapped__(recipe, False)
    monkeypatch.setattr(memory_lines, "without_copies", lambda recipe: (recipe, []))
    with_all_layers = step_lines.__wrapped__(recipe, False)
    for batch in (1, 2, 64):
        assert with_repeated_layers.at(batch) == with_all_layers.at(batch)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_dropout_that_is_drawn_by_sample(attention):
    """Of the pattern too: the fused kernel writes it down then, for each layer, as numbers and as what is kept."""
    a = shrunk(preset("small"), 5)
    some = a.with_fields({f"dropout.{where}": 0.1 for where in ("embed", "pattern")})
    options: dict[str, Any] = {"batch": 2, "precision": "float32", "attention": attention}
    assert_equal_to_the_walk(with_options(some, **options))
    without, with_dropout = (training_memory(with_options(x, **options)).activations for x in (a, some))
    patterns = a.n_layers * 2 * a.n_heads * a.n_ctx**2
    assert with_dropout - without > patterns  # a byte for each entry that may be dropped


@pytest.mark.slow
def test_adapters():
    recipe = with_options(shrunk(preset("small"), 4), batch=2, optimizer="adamw")
    assert_equal_to_the_walk(replace(recipe, adapt=replace(recipe.adapt, rank=4)))


def test_one_run_serves_every_batch():
    """The lines are found once, and each part of the step has at most a few."""
    recipe = with_options(shrunk(preset("small"), 5), precision="float32", attention="fused")
    step_lines.cache_clear()
    for batch in (1, 2, 7, 40):
        training_memory(with_train(recipe, batch=batch))
    assert step_lines.cache_info().misses == 1
    lines = step_lines(with_train(recipe, batch=0), False)
    assert 0 < len(lines.forward) < 16
    assert 0 < len(lines.backward) < 16


def test_what_the_lines_cannot_follow_is_walked_with_a_warning(monkeypatch):
    recipe = with_options(shrunk(preset("small"), 2), batch=2)

    def refuse(recipe, chunked):
        raise NoClosedFormError("layers that nothing repeats")

    monkeypatch.setattr(memory, "step_lines", refuse)
    with pytest.warns(UserWarning, match="layers that nothing repeats"):
        assert training_memory(recipe) == walk(recipe)


class Failing(torch.autograd.Function):
    """An operation that asks for a number, in the pass that is named."""

    @staticmethod
    def forward(ctx, x, where):
        ctx.where = where
        return x * (x.sum().item() if where == "forward" else 1.0)

    @staticmethod
    def backward(ctx, *by):
        return by[0] * (by[0].sum().item() if ctx.where == "backward" else 1.0), None


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_operation_that_needs_numbers_is_named(monkeypatch, where):
    recipe = with_options(shrunk(preset("small"), 3), batch=2)
    autocast = memory_lines.autocast
    monkeypatch.setattr(memory_lines, "autocast", lambda *args: lambda b: Failing.apply(autocast(*args)(b), where))
    with pytest.raises(NoClosedFormError, match="_local_scalar_dense"):
        step_lines.__wrapped__(with_train(recipe, batch=0), False)


def test_code_that_fails_without_numbers_is_no_closed_form(monkeypatch):
    """Outside of an operation too; what fails on fake tensors as well is raised by the walk itself."""

    def refuse(network, recipe):
        raise ValueError("no numbers to look at")

    recipe = with_options(shrunk(preset("small"), 3), batch=2)
    monkeypatch.setattr(memory_lines, "choose_paths", refuse)
    with pytest.raises(NoClosedFormError, match="ValueError: no numbers to look at"):
        step_lines.__wrapped__(with_train(recipe, batch=0), False)


def test_the_largest_of_some_lines():
    lines = [LinearBytes(10, 1), LinearBytes(0, 3), LinearBytes(5, 1), LinearBytes(20, 0), LinearBytes(4, 2)]
    for batch in range(1, 30):
        assert max(line.at(batch) for line in upper_envelope(lines)) == max(line.at(batch) for line in lines)


def test_a_prime_divides_no_size():
    recipe = with_options(replace(shrunk(preset("small"), 2), n_vocab=memory_lines.PRIMES[0] * 2 - 1))
    assert memory_lines.unlike_any_size(recipe) == memory_lines.PRIMES[1]


def test_shapes_are_those_of_numbers():
    """Broadcasting, promotion and the order of strides, as torch has them."""
    with ShapesOnly(7) as mode:
        a, b = torch.empty(7, 3).t(), torch.empty(1, 7, dtype=torch.float64)
        c = a * b
        pieces = c.split(1, dim=1)
        assert mode.live == LinearBytes(0, 12 + 8 + 24)
        assert [line.each for line in mode.record] == [12, 20, 44]
    want = torch.empty(7, 3).t() * torch.empty(1, 7, dtype=torch.float64)
    assert (c.shape, c.stride(), c.dtype) == (want.shape, want.stride(), want.dtype)
    assert len(pieces) == PIECES
    with pytest.raises(RuntimeError, match="outside of its ShapesOnly"):
        a + 1
