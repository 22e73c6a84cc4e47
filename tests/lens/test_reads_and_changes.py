"""What is read from a trace is a copy, and what is done later changes no earlier trace: it is right, or it raises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import make_network
from pellucid import edits
from pellucid.architecture import Architecture
from pellucid.generate.text import generate
from pellucid.language_model import known_answer
from pellucid.lens import Circuits, TraceError, trace
from pellucid.lens.analysis.metrics import logit
from pellucid.lens.analysis.order import reorder
from pellucid.lens.analysis.patching import PatchingPair
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.model.fingerprint import WIDTH, Fingerprint, weighted_sum
from pellucid.tensor_names import names
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, source_tokens

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2})


def look(network, **options):
    a = network.architecture
    if a.encoder is not None:
        options["source"] = source_tokens(a, 2)
    return trace(of_ids(network), draw_tokens(a, 2, 4), **options)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n].nan_to_num(7), other[n].nan_to_num(7)) for n in one)


def everything(t):
    """Every tensor and every piece of the input that can be read."""
    found = {**t.tensors("*"), "probs": t.probs, "ids": t.ids, "stream": t.stream(), "read out": t.read_out}
    if t.architecture.attention.mask != "bidirectional":
        found["loss"] = t.loss
    return found | {f"edit {k}": edit.value for k, edit in enumerate(t.edits) if isinstance(edit.value, torch.Tensor)}


@settings(max_examples=30)
@given(any_architectures(), st.sampled_from([(), "*"]), st.booleans())
def test_no_read_changes_a_later_one(a, keep, through_numpy):
    network = make_network(a)
    name = next(n for n in names(a) if n.endswith("resid_pre")) if a.n_layers else "embed"
    change = edits.add(name, torch.ones(a.d_model, dtype=torch.float64))
    t, before = (look(network, keep=keep, edits=[change]) for _ in range(2))
    before = {n: x.clone() for n, x in everything(before).items()}
    read = [*everything(t).items(), *t.values.items(), *t.as_transformer_lens().items()] if a.encoder is None else []
    for n, x in read or everything(t).items():
        if through_numpy:
            x.numpy()[...] = 0
        elif not n.startswith("edit"):
            x.zero_()
    after = everything(t)
    assert same({n: x for n, x in after.items() if "edit" not in n}, {n: before[n] for n in after if "edit" not in n})


@pytest.mark.parametrize("of", [torch.tensor, np.array, list])
def test_an_array_that_is_changed_later_changes_no_edit_and_no_trace(of):
    network, value = make_network(A), of([float(k) for k in range(8)])
    change = edits.set_to("blocks.0.resid_mid", value)
    t = look(network, edits=[change])
    before = t["blocks.0.mlp.pre"]
    value[0] = 100.0
    assert torch.equal(t["blocks.0.mlp.pre"], before)
    assert torch.equal(look(network, edits=[change])["blocks.0.mlp.pre"], before)


def test_segments_that_are_changed_later_change_no_trace():
    network = make_network(A.with_fields({"n_segments": 2}))
    kinds = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    t = look(network, segments=kinds)
    before = t["seg_embed"]
    kinds.zero_()
    assert torch.equal(t["seg_embed"], before)


def test_an_input_that_is_changed_in_place_raises():
    t = look(make_network(A))
    t.inputs.tokens[0, 0] += 1
    with pytest.raises(TraceError, match="input of this trace"):
        _ = t.ids


def through_data(p):
    p.data.mul_(0.5)
    p.data.view(-1)[0] += 1


def in_place(p):
    with torch.no_grad():
        p.view(-1)[-1] += 1


def through_numpy(p):
    p.detach().numpy()[...] += 1


def replaced(p):
    p.data = p.data.clone() + 1


WAYS = [through_data, in_place, through_numpy, replaced]


@settings(max_examples=60)
@given(any_architectures(), st.sampled_from([(), "*"]), st.sampled_from(WAYS), st.data())
def test_weights_that_change_later_change_no_tensor_of_a_trace(a, keep, change, data):
    """Each tensor is what it was, or reading it raises; and what was kept can still be read."""
    network = make_network(a)
    t, kept = look(network, keep=keep), {}
    expected = look(network, keep=keep).tensors("*")
    change(dict(network.named_parameters())[data.draw(st.sampled_from([n for n, _ in network.named_parameters()]))])
    for name in names(a):
        try:
            kept[name] = t[name]
        except TraceError:
            continue
    assert same(kept, {name: expected[name] for name in kept})
    assert {n for n in names(a) if keep == "*" or n.endswith("resid_pre")} <= kept.keys()


ANALYSES = {
    "decompose": lambda t: t.decompose(by="head").values,
    "neurons": lambda t: t.decompose(by="neuron", pos=-1).values,
    "attribute": lambda t: t.attribute(3, by="source").values,
    "lens": lambda t: t.lens().entropy,
    "why": lambda t: t.why(1, 0).values,
    "value_weighted": lambda t: t.value_weighted(1),
    "gradient": lambda t: t.gradient(logit(3), "embed")["embed"],
    "saliency": lambda t: t.saliency(logit(3)),
    "logits": lambda t: t.logits,
    "before the cap": lambda t: t.logits_before_cap(),
    "reorder": lambda t: reorder(t, [3, 1, 0, 2]).shuffled,
    "metric": lambda t: logit(3).of(t).of_stream(t.stream(), torch.arange(1)),
}
B = A.with_fields({"logit_cap": 5.0, "norm.kind": "layer", "norm.bias": "all"})


@pytest.mark.parametrize("keep", [(), "*"])
@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_of_changed_weights_raises_or_is_right(name, keep):
    network = make_network(B)
    expected = ANALYSES[name](trace(of_ids(network), [1, 2, 3, 4], keep=keep))
    raised = 0
    for parameter in network.parameters():
        before = parameter.data.clone()
        t = trace(of_ids(network), [1, 2, 3, 4], keep=keep)
        parameter.data.view(-1)[1] += 1
        try:
            assert torch.equal(ANALYSES[name](t), expected)
        except TraceError:
            raised += 1
        parameter.data.copy_(before)
        assert torch.equal(ANALYSES[name](t), expected)  # the weights are those of the trace again
    assert raised or (name == "logits" and keep == "*")


def test_patching_stops_where_the_weights_change_meanwhile():
    network = make_network(A)
    pair = PatchingPair(of_ids(network), [1, 2, 3], [1, 5, 3], logit(3), gradients=False)
    parts = pair.exact_parts()
    next(parts)
    network.blocks[1].mlp.down.weight.data[0] = 0
    with pytest.raises(TraceError, match=r"blocks\.1\.mlp\.down\.weight"):
        list(parts)


@pytest.mark.parametrize("keep", [(), "*"])
def test_a_trace_made_under_autocast_is_the_same_outside_and_the_other_way_round(keep):
    network = make_network(A, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        within = trace(of_ids(network), [1, 2, 3, 4], keep=keep)
        expected_within = trace(of_ids(network), [1, 2, 3, 4], keep="*")
    without, expected_without = (trace(of_ids(network), [1, 2, 3, 4], keep=k) for k in (keep, "*"))
    assert same(within.tensors("*"), expected_within.values | {"logits": expected_within.logits})
    assert within["blocks.0.attn.q"].dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        outside_then_in = without.tensors("*")
        probs, logits = within.probs, within.logits
        with pytest.raises(TraceError, match="without autocast"):
            without.decompose()
        assert within.decompose().values.isfinite().all()
    assert same(outside_then_in, expected_without.values | {"logits": expected_without.logits})
    assert torch.equal(within.probs, probs)
    assert torch.equal(within.logits, logits)
    with pytest.raises(TraceError, match="under autocast to bfloat16"):
        within.attribute(3)


def test_tensors_of_a_graph_that_were_changed_in_place_raise():
    t = look(make_network(A), keep="blocks.1.mlp_out", grad=True)
    assert t["blocks.1.mlp_out"].requires_grad
    t["blocks.1.mlp_out"].detach().zero_()
    for reader in (t, t.detached()):
        with pytest.raises(TraceError, match=r"blocks\.1\.mlp_out of this trace was changed in place"):
            _ = reader["blocks.1.mlp_out"]


@settings(max_examples=60)
@given(any_architectures(), st.sampled_from(WAYS), st.data())
def test_a_fingerprint_sees_every_change_and_no_other(a, change, data):
    network = make_network(a)
    known = Fingerprint(network)
    assert not known.changed()
    name = data.draw(st.sampled_from([n for n, _ in network.named_parameters()]))
    change(dict(network.named_parameters())[name])
    assert known.changed()
    assert known.changed(name.rpartition(".")[0])


@pytest.mark.parametrize("n", [1, 3, 4, 4 * WIDTH - 3, 12 * WIDTH + 13])
def test_the_sum_that_a_gpu_computes_sees_every_byte_and_its_place(n):
    raw = torch.randint(0, 256, (n + 1,), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))[1:]
    known = weighted_sum(raw)
    assert weighted_sum(raw.clone()) == known
    for place in {0, n // 2, n - 1}:
        changed = raw.clone()
        changed[place] += 1
        assert weighted_sum(changed) != known
    if n > 1:
        assert weighted_sum(raw.roll(8 * (n // 16) or 1)) != known


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("flipped", [(slice(None), slice(3, None, 4)), (5,), ()])
def test_the_sum_that_a_gpu_computes_sees_flipped_signs(flipped, dtype):
    """Of every fourth column, whose sign is the top bit of 64, of one row, and of everything."""
    x = torch.randn(600, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    known = weighted_sum(x.view(-1).view(torch.uint8))
    x[flipped] *= -1
    assert weighted_sum(x.view(-1).view(torch.uint8)) != known


def test_exchanged_rows_and_columns_change_a_fingerprint():
    """As a sum of the bits alone would not see."""
    layer = torch.nn.Linear(40, 30)
    for exchange in (lambda W: W.roll(1, 0), lambda W: W.roll(1, 1)):
        known = Fingerprint(layer)
        layer.weight.data.copy_(exchange(layer.weight.data))
        assert known.changed() == "weight"


def test_known_answer_is_a_network_of_its_own_each_time():
    first = known_answer()
    first.network.embed.token.weight.data.zero_()
    assert known_answer().trace("Rome is the capital of").top(k=1)[0][0] == " Italy"


def test_what_a_generation_kept_is_read_and_changed_without_an_effect():
    model = known_answer()
    watch = GenerationTrace(model.network, keep="*")
    generate(model, "Anna Smith met", taps=watch, max_tokens=5, temperature=0)
    before = watch.tensors()
    expected = {name: x.clone() for name, x in before.items()}
    for x in [*before.values(), *(p.data for p in model.network.parameters())]:
        x.zero_()
    assert same(watch.tensors(), expected)


OF_WEIGHTS = {
    "copying": lambda c: c.copying(),
    "promotes": lambda c: c[1, 0].promotes(3),
    "looks for": lambda c: c[1, 0].looks_for(3, offset=1),
    "neuron": lambda c: c.neuron(0, 2).writes(),
    "compose": lambda c: c.compose("V").scores.nan_to_num(7),
    "weights": lambda c: torch.cat([x.flatten() for x in [*c.weights.values(), c.weights.b_U]]),
}


@pytest.mark.parametrize("change", WAYS)
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_circuits_are_those_of_the_weights_as_they_are(name, fold, change):
    """Whatever was computed before the weights changed."""
    fields = {"positions.kind": "rotary", "norm.kind": "layer", "norm.bias": "all", "attention.bias": "qkv"}
    network = make_network(A.with_fields(fields))
    circuits, compute = Circuits(of_ids(network), fold_norms=fold), OF_WEIGHTS[name]
    before = compute(circuits)
    for parameter in network.parameters():
        change(parameter)
    after, expected = compute(circuits), compute(Circuits(of_ids(network), fold_norms=fold))
    if isinstance(after, torch.Tensor):
        assert torch.equal(after, expected)
        assert not torch.equal(after, before)
    else:
        assert after == expected != before
