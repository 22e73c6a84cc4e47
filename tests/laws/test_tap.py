"""A tap that keeps changes nothing; one that edits changes what it says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.model import Recorder, Tap
from pellucid.tensor_names import axes, axis_sizes, computation_order, names
from running import any_architectures, call, draw_tokens

INNER = ("scores", "pattern")


class Listener(Tap):
    """Notes the name and the shape of every tensor it is handed, and has everything written out that can be."""

    def __init__(self, prefix="", heard=None):
        self.prefix, self.heard = prefix, {} if heard is None else heard

    def __call__(self, name, value):
        assert self.prefix + name not in self.heard
        self.heard[self.prefix + name] = value.shape
        return value

    def at(self, scope):
        return Listener(f"{self.prefix}{scope}.", self.heard)

    def choose(self, names, fused, written, seen=None):
        return written(self)


def copies(recorder):
    return {name: value.clone() for name, value in recorder.values.items()}


@settings(max_examples=20)
@given(any_architectures(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_keeping_everything_changes_no_logit(a, dtype):
    network, tokens, recorder = make_network(a, dtype=dtype), draw_tokens(a, 2, 4), Recorder(names(a))
    assert torch.equal(call(network, tokens), call(network, tokens, tap=recorder))
    assert recorder.values.keys() == set(names(a))


@settings(max_examples=20)
@given(architectures(max_ctx=6), st.sampled_from([0.0, 0.3]))
def test_keeping_everything_changes_no_logit_in_training(a, rate):
    network, tokens = make_network(a.with_fields({"dropout": rate})).train(), draw_tokens(a, 2, 4)
    torch.manual_seed(0)
    expected = network(tokens)
    torch.manual_seed(0)
    assert torch.equal(network(tokens, tap=Recorder(names(a))), expected)


@settings(max_examples=20)
@given(any_architectures())
def test_a_tap_is_handed_exactly_the_tensors_of_the_table(a):
    listener = Listener()
    call(make_network(a), draw_tokens(a, 2, 4), tap=listener)
    assert list(listener.heard) == computation_order(a)
    assert sorted(listener.heard) == sorted(names(a))
    for name, shape in listener.heard.items():
        n_source = 3  # as `call` has an encoder read
        n_queries = n_source if name.startswith("encoder.") else 4
        of_text = {"b": 2, "i": n_queries, "j": n_source if ".cross." in name else n_queries}
        sizes = axis_sizes(name, a) | of_text
        assert shape == tuple(sizes[letter] for letter in axes(name)), name


@settings(max_examples=20)
@given(any_architectures())
def test_what_was_kept_is_not_written_over(a):
    """Keeping must not hand out memory that the computation goes on to change."""
    network, tokens, recorder = make_network(a), draw_tokens(a, 2, 4), Recorder(names(a))
    call(network, tokens, tap=recorder)
    before = copies(recorder)
    call(network, (tokens + 1) % a.n_vocab)
    assert all(torch.equal(before[name], value) for name, value in recorder.values.items())


@pytest.mark.item("S4-draw-c")
@settings(max_examples=20)
@given(any_architectures(), st.data())
def test_an_identity_edit_is_the_fused_computation(a, data):
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    chosen = data.draw(st.sampled_from(names(a)))
    inner = [name for name in names(a) if name.endswith(INNER)]
    edits = {name: [lambda x: x.clone()] for name in (*inner, chosen)}
    expected = call(network, tokens).detach()
    assert difference(call(network, tokens, tap=Recorder(edits=edits)), expected) <= 1e-12


@pytest.mark.item("S4-draw-c")
@settings(max_examples=20)
@given(architectures(max_ctx=6), st.data())
def test_an_edit_is_what_the_computation_goes_on_with(a, data):
    """Every tensor set to what another input gave it: the logits are the other input's from there on."""
    network, here, there = make_network(a), draw_tokens(a, 2, 4), draw_tokens(a, 2, 4, seed=1)
    other = Recorder(names(a))
    expected = network(there, tap=other).detach()
    # the last stream decides the logits, and each block's input decides all that follows
    stream = data.draw(
        st.sampled_from([f"blocks.{i}.resid_{end}" for i in range(a.n_layers) for end in ("pre", "post")])
    )
    recorder = Recorder([stream, "logits"], {stream: [lambda _: other.values[stream]]})
    assert torch.equal(network(here, tap=recorder), expected)
    assert torch.equal(recorder.values[stream], other.values[stream])


@settings(max_examples=5)
@given(architectures({"mlp.activation": st.sampled_from(["gelu", "silu"]), "norm.eps": 1e-2}, max_ctx=6))
def test_every_edit_reaches_the_logits(a):
    network, tokens, plain = make_network(a), draw_tokens(a, 2, 4), Recorder(names(a))
    expected = network(tokens, tap=plain).detach()
    for name in names(a):
        # halving positive entries is undone by no norm, and by a softmax only where it has one key to read
        if (plain.values[name] > 0).any() and 1 not in a.attention.windows:
            edited = network(tokens, tap=Recorder(edits={name: [lambda x: torch.where(x > 0, 0.5 * x, x)]}))
            assert not torch.equal(edited, expected), name


@settings(max_examples=20)
@given(architectures({"mlp.activation": st.sampled_from(["gelu", "gelu_tanh", "silu"])}, max_ctx=6))
def test_gradients_flow_to_kept_tensors(a):
    network, tokens, recorder = make_network(a), draw_tokens(a, 2, 4), Recorder(names(a), grad=True)
    logits = network(tokens, tap=recorder)
    constant = {name for name, value in recorder.values.items() if not value.requires_grad}
    assert constant == ({"pos_embed"} if a.positions.kind == "sinusoidal" else set())
    kept = [value for name, value in recorder.values.items() if name not in constant]
    grads = torch.autograd.grad(logits.square().sum(), kept)
    assert all(g.isfinite().all() for g in grads)
    assert all(g.shape == x.shape for g, x in zip(grads, kept, strict=True))
    assert recorder.values["logits"] is logits
    assert difference(logits.detach(), network(tokens).detach()) <= 1e-12


def test_without_grad_nothing_kept_holds_the_graph():
    a = Architecture(n_vocab=7, n_ctx=4, d_model=8, n_layers=1)
    recorder = Recorder(names(a))
    make_network(a)(draw_tokens(a), tap=recorder)
    assert not any(value.requires_grad for value in recorder.values.values())


def test_only_what_is_named_is_kept_and_edits_apply_in_order():
    a = Architecture(n_vocab=7, n_ctx=4, d_model=8, n_layers=2)
    network, tokens = make_network(a), draw_tokens(a)
    plain = Recorder(["blocks.1.mlp_out"])
    network(tokens, tap=plain)
    recorder = Recorder(["blocks.1.mlp_out"], {"blocks.1.mlp_out": [lambda x: x + 1, lambda x: 2 * x]})
    network(tokens, tap=recorder)
    assert set(recorder.values) == {"blocks.1.mlp_out"}
    assert torch.equal(recorder.values["blocks.1.mlp_out"], 2 * (plain.values["blocks.1.mlp_out"] + 1))


@pytest.mark.item("S0-3.3-a", "S1-1.1.2-e")
@settings(max_examples=10)
@given(any_architectures())
def test_pattern_rows_are_distributions_over_what_may_be_read(a):
    recorder, network = Recorder(names(a)), make_network(a)
    call(network, draw_tokens(a, 2, 4), tap=recorder)
    for name, scores in recorder.values.items():
        if name.endswith("scores"):
            pattern = recorder.values[name.removesuffix("scores") + "pattern"]
            assert difference(pattern.sum(-1), torch.ones_like(pattern[..., 0])) <= 1e-12
            assert (pattern[scores == -torch.inf] == 0).all()


@pytest.mark.item("S4-draw-c")
@pytest.mark.parametrize("name", ["blocks.0.attn.scores", "blocks.0.attn.pattern"])
def test_an_edit_of_one_head_zeroes_that_head(name):
    a = Architecture(n_vocab=7, n_ctx=4, d_model=8, n_layers=1).with_fields({"n_heads": 2})
    network, tokens = make_network(a), draw_tokens(a)

    def uniform_first_head(x):
        x = x.clone()
        x[:, 0] = torch.where(x[:, 0] == -torch.inf, x[:, 0], 0.0) if name.endswith("scores") else 0.0
        return x

    recorder = Recorder(["blocks.0.attn.z", "blocks.0.attn.v"], {name: [uniform_first_head]})
    network(tokens, tap=recorder)
    v, z = recorder.values["blocks.0.attn.v"], recorder.values["blocks.0.attn.z"]
    mean = v[:, 0].cumsum(1) / torch.arange(1, 5)[:, None]
    expected = mean if name.endswith("scores") else torch.zeros_like(mean)
    assert difference(z[:, 0], expected) <= 1e-12


def test_a_query_whose_scores_are_all_edited_away_reads_nothing():
    """Its pattern and z are 0 though no mask blocks its row, and no gradient becomes nan."""
    a = Architecture(n_vocab=7, n_ctx=4, d_model=8, n_layers=1)
    kept, third = [f"blocks.0.attn.{name}" for name in ("q", "pattern", "z")], torch.arange(4)[:, None] == 2
    recorder = Recorder(kept, {"blocks.0.attn.scores": [lambda x: x.masked_fill(third, -torch.inf)]}, grad=True)
    logits = make_network(a)(draw_tokens(a), tap=recorder)
    q, pattern, z = (recorder.values[name] for name in kept)
    assert (pattern[:, :, 2] == 0).all()
    assert (z[:, :, 2] == 0).all()
    assert difference(pattern.sum(-1), (torch.arange(4) != 2).double().expand(2, 4, 4)) <= 1e-12
    assert torch.autograd.grad(logits.square().sum(), q)[0].isfinite().all()
