"""A trace shows every tensor of a pass by any of its names, changes nothing, and keeps little."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.lens import InputError, trace
from pellucid.lens.analysis.logit_lens import follow_tokens
from pellucid.lens.analysis.metrics import logit, loss
from pellucid.lens.core.inputs import read_inputs
from pellucid.model import Recorder
from pellucid.model.weights import state_of
from pellucid.reference import transformer as reference
from pellucid.reference.tap import TensorRecorder
from pellucid.tensor_names import names
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.text_model import Model, of_ids
from running import any_architectures, call, draw_tokens, source_tokens

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2})


def look(network, tokens, **options):
    """A trace of what `running.call` runs."""
    a = network.architecture
    if a.encoder is not None:
        options["source"] = source_tokens(a, tokens.size(0))
    return trace(of_ids(network), tokens, **options)


@settings(max_examples=30)
@given(any_architectures(), st.sampled_from([(), "*"]))
def test_every_name_is_the_reference_s(a, keep):
    """Kept or recomputed, a trace's tensor is the definition's."""
    network, tokens, tap = make_network(a), draw_tokens(a, 2, 4), TensorRecorder()
    weights = {name: p.numpy() for name, p in state_of(network).items()}
    given = {}
    if a.encoder is not None:
        given["source"] = reference.encode(a, weights, source_tokens(a, 2).numpy(), tap=tap)
    reference.forward(a, weights, tokens.numpy(), tap=tap, **given)
    found = look(network, tokens, keep=keep).tensors("*")
    assert list(found) == names(a)
    for name, value in found.items():
        expected = torch.tensor(tap.values[name])
        hidden = expected == -torch.inf
        assert torch.equal(value == -torch.inf, hidden), name
        assert difference(value.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)) <= 1e-10, name


@settings(max_examples=20)
@given(any_architectures(), st.sampled_from([torch.float32, torch.bfloat16]), st.sampled_from([(), "*"]))
def test_looking_changes_no_logit_by_a_bit(a, dtype, keep):
    network, tokens = make_network(a, dtype=dtype), draw_tokens(a, 2, 4)
    t = look(network, tokens, keep=keep)
    t.tensors("*")
    assert torch.equal(t.logits, call(network, tokens))


@settings(max_examples=20)
@given(any_architectures())
def test_recomputed_tensors_are_the_kept_ones_bit_for_bit(a):
    network, tokens, recorder = make_network(a, dtype=torch.float32), draw_tokens(a, 2, 4), Recorder(names(a))
    call(network, tokens, tap=recorder)
    light = look(network, tokens)
    assert all(torch.equal(value, recorder.values[name]) for name, value in light.tensors("*").items())
    streams = [recorder.values[name] for name in names(a) if name.endswith((".resid_pre", ".resid_post"))]
    ends = max(x.nbytes for x in [recorder.values["embed"], *streams])  # what comes before and after the blocks
    assert light.nbytes <= sum(x.nbytes for x in streams) + light.logits.nbytes + 2 * ends


def test_three_spellings_are_one_tensor():
    t = trace(of_ids(make_network(A)), draw_tokens(A))
    one = t["blocks.1.attn.pattern"]
    assert torch.equal(one, t[1].attn.pattern)
    assert torch.equal(one, t["blocks.1.attn.hook_pattern"])
    assert torch.equal(t[0]["norm_1.scale"], t["blocks.0.ln1.hook_scale"])


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("blocks.0.attn.rot_q", "rotates nothing"),
        ("blocks.7.attn.q", "the architecture has 2 layers"),
        ("nothing", "there is no tensor 'nothing'"),
        ("blocks.*.attn.q", "stands for 2 tensors"),
        (9, "numbered from 0"),
    ],
)
def test_names_that_are_none_say_why(key, reason):
    t = trace(of_ids(make_network(A)), draw_tokens(A))
    with pytest.raises(KeyError) as refused:
        t[key]
    assert reason in str(refused.value)
    with pytest.raises(AttributeError, match="rotates nothing"):
        _ = t[0].attn.rot_q


@settings(max_examples=20)
@given(any_architectures(), st.data())
def test_rows_of_a_padded_batch_are_themselves(a, data):
    """Padding on the right is read by nobody."""
    n = min(a.n_ctx, 6)
    rows = [draw_tokens(a, 1, k, seed=k)[0].tolist() for k in data.draw(st.lists(st.integers(1, n), min_size=2))]
    network, options = make_network(a), {}
    if a.encoder is not None:
        options["source"] = [draw_tokens(a.encoder, 1, 1 + k % 3, seed=k)[0].tolist() for k in range(len(rows))]
    t = trace(of_ids(network), rows, **options)
    assert t.inputs.real.sum(1).tolist() == [len(ids) for ids in rows]
    for r, ids in enumerate(rows):
        alone = trace(of_ids(network), ids, **({"source": options["source"][r]} if options else {}))
        assert difference(t.logits[r, : len(ids)], alone.logits[0]) <= 1e-10


def test_texts_are_fed_as_they_are():
    tokenizer = learn_tokenizer("char", ["abcd "], None)
    network = make_network(A)
    t = trace(Model(network, tokenizer), "abba")
    assert t.tokens == ["a", "b", "b", "a"]
    assert trace(Model(network, tokenizer), "ab", bos=True).tokens == ["<|endoftext|>", "a", "b"]
    batch = trace(Model(network, tokenizer), ["ab", "abcd"])
    assert batch.tokens == [["a", "b"], ["a", "b", "c", "d"]]
    assert batch.loss.isnan().tolist() == [[False, True, True], [False] * 3]
    expected = network(t.ids)[0].log_softmax(-1)[:-1].gather(1, t.ids[0, 1:, None])[:, 0]
    assert difference(t.surprisal("nats")[0], -expected.detach()) <= 1e-12
    assert difference(t.surprisal()[0] * 0.6931471805599453, -expected.detach()) <= 1e-12
    best = t.top(k=2)
    assert best[0][1] == t.probs[0, -1].max()
    assert batch.position(-1) == 1


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ([], {}, "no text was given"),
        ([[]], {}, "text 0 has no token"),
        ([1] * 9, {}, "has 9 tokens, and this model reads at most 8"),
        ([11], {}, "this network knows 0 to 10"),
        ([1], {"source": [2]}, "leave source out"),
        ([1], {"prefix": 1}, "leave prefix out"),
        ([1], {"segments": [0]}, "n_segments = 0: leave segments out"),
    ],
)
def test_inputs_that_are_none_say_why(given, options, reason):
    with pytest.raises(InputError, match=reason):
        read_inputs(of_ids(make_network(A)), given, **options)


def test_without_a_tokenizer_texts_are_ids():
    model = of_ids(make_network(A))
    t = trace(model, "1 10 3")
    assert t.ids.tolist() == [[1, 10, 3]]
    assert t.tokens == ["1", "10", "3"]
    assert t.token_id("10") == 10
    with pytest.raises(TokenizerError, match="no tokenizer"):
        trace(model, "text")


@pytest.mark.parametrize("segments", [[0, 0, 1], [0, 2], [[0, 1], [0]], [0, -1], [0.5, 1.0], "ab"], ids=str)
def test_segments_that_do_not_fit_are_refused(segments):
    network = make_network(A.with_fields({"n_segments": 2}))
    assert read_inputs(of_ids(network), [4, 5], segments=[0, 1]).segments.tolist() == [[0, 1]]
    with pytest.raises(InputError, match="give one number from 0 to 1 for each of 2 tokens of 1 rows"):
        read_inputs(of_ids(network), [4, 5], segments=segments)


def test_tokens_of_a_prefix_are_not_predicted():
    """Every position reads a prefix, so that the loss of its tokens would be that of tokens that were read."""
    network = make_network(A.with_fields({"attention.mask": "prefix"}))
    t = trace(of_ids(network), [[1, 2, 3, 4, 5], [6, 7, 8]], prefix=[3, 0])
    assert t.loss.isnan().tolist() == [[True, True, False, False], [False, False, True, True]]
    expected = -t.logits[0, 2:4].log_softmax(-1).gather(1, torch.tensor([[4], [5]])).mean()
    assert difference(loss().of(t)(t.logits)[0], expected) <= 1e-12
    for prefix in (-1, 6, [1, 9], [1]):
        with pytest.raises(InputError, match="give one number for each row, from 0 to its length"):
            trace(of_ids(network), [[1, 2, 3, 4, 5], [6, 7, 8]], prefix=prefix)


def test_a_masked_model_has_no_next_token_loss():
    t = trace(of_ids(make_network(A.with_fields({"attention.mask": "bidirectional"}))), [1, 2, 3])
    with pytest.raises(InputError, match="has read the next token"):
        _ = t.loss


@settings(max_examples=15)
@given(any_architectures({"mlp.activation": st.sampled_from(["gelu", "silu", "tanh"])}, max_ctx=6), st.data())
def test_gradients_are_slopes(a, data):
    """d metric / d tensor along a direction is what moving the tensor that way changes."""
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    name = data.draw(st.sampled_from(names(a)))
    t = look(network, tokens)
    weights = torch.randn(t.logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def metric(logits):
        return (logits.log_softmax(-1) * weights).sum((1, 2))

    slope = t.gradient(metric, name)[name]
    x = t[name]
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    direction = torch.where(x == -torch.inf, 0, direction * (1e-5 / x[x > -torch.inf].abs().max().clamp(min=1)))

    def moved(sign):
        with torch.no_grad():
            return metric(call(network, tokens, tap=Recorder(edits={name: [lambda x: x + sign * direction]}))).sum()

    expected, found = (moved(1) - moved(-1)) / 2, (slope * direction).sum()
    assert (found - expected).abs() <= 1e-4 * max(expected.abs(), 1e-5)


def test_a_trace_with_gradients_keeps_the_graph():
    network = make_network(A)
    t = trace(of_ids(network), draw_tokens(A), keep=["blocks.0.attn.pattern"], grad=True)
    (slope,) = torch.autograd.grad(t.logits.square().sum(), [t["blocks.0.attn.pattern"]])
    assert slope.abs().max() > 0
    with pytest.raises(KeyError, match=r"keep=\['blocks.0.attn.z'\], or keep='\*' for every tensor; .* detached\(\)"):
        _ = t["blocks.0.attn.z"]
    assert not trace(of_ids(network), draw_tokens(A), keep="*").logits.requires_grad


def test_a_trace_with_gradients_has_the_values_of_one_without():
    """What gives no gradients reads it as it is, everything else through `detached`."""
    network, ids, metric = make_network(A), draw_tokens(A), logit(3)
    plain, graph = trace(of_ids(network), ids), trace(of_ids(network), ids, grad=True)
    assert torch.equal(graph.saliency(metric), plain.saliency(metric))
    assert torch.equal(graph.lens().entropy, plain.lens().entropy)
    assert torch.equal(follow_tokens(graph, [3]).probability, follow_tokens(plain, [3]).probability)
    assert graph.show().panels == plain.show().panels
    assert torch.equal(graph.attribute(3).values, plain.attribute(3).values)
    capped = make_network(A.with_fields({"logit_cap": 2.0}))
    whole = trace(of_ids(capped), ids, keep="*", grad=True).attribute(3)
    assert not whole.values.requires_grad
    assert abs(whole.after_cap - trace(of_ids(capped), ids).attribute(3).after_cap) <= 1e-12
    detached = graph.detached()
    assert torch.equal(detached["blocks.0.attn.z"], plain["blocks.0.attn.z"])
    assert not detached.logits.requires_grad
    assert graph.logits.requires_grad
    assert plain.detached() is plain


@settings(max_examples=10)
@given(architectures(max_ctx=6))
def test_a_network_in_training_is_looked_at_without_dropout_and_goes_back(a):
    network, tokens = make_network(a.with_fields({"dropout": 0.5})), draw_tokens(a)
    expected = network(tokens)
    assert torch.equal(trace(of_ids(network.train()), tokens).logits, expected)
    assert network.training


def test_passes_that_overlap_leave_compilation_as_it_was():
    """Two threads, of which the one that begins first ends first."""
    script = """
import torch, torch._dynamo
from torch import nn
from pellucid.lens.core.forward import frozen_network

calls = []
compiled = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: calls.append(graph) or graph.forward)
first, second = frozen_network(nn.Identity()), frozen_network(nn.Identity())
first.__enter__(), second.__enter__()
compiled(torch.ones(2))
first.__exit__(None, None, None)
compiled(torch.ones(2))
assert not calls
second.__exit__(None, None, None)
compiled(torch.ones(2))
assert len(calls) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
