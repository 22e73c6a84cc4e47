"""Sums that are exact: the stream, the logits and the scores, by what was written; and the lens."""

import math

import pytest
import torch
from changing import drawn_edits
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.lens import InputError, trace
from pellucid.lens.analysis.attribution import points_of_stream
from pellucid.lens.analysis.logit_lens import follow_tokens, lens_logits
from pellucid.lens.analysis.metrics import logit
from pellucid.tensor_names import names
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, source_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 4, "n_kv_heads": 2})
LINEAR = {"readout": st.sampled_from(["linear", "affine"]), "logit_cap": 0.0}
SMOOTH = {"norm.eps": 1e-2, "mlp.activation": st.sampled_from(["gelu", "silu", "tanh"])}
LINEAR |= SMOOTH


def look(a, edits=(), seed=0):
    network, tokens = make_network(a), draw_tokens(a, 2, 4, seed)
    source = {} if a.encoder is None else {"source": source_tokens(a, 2)}
    return trace(of_ids(network), tokens, edits=edits, **source)


@settings(max_examples=20)
@given(any_architectures(LINEAR), st.data())
def test_what_was_written_sums_to_the_stream(a, data):
    edits = data.draw(drawn_edits(a)) if data.draw(st.booleans()) else []
    t, by = look(a, edits), data.draw(st.sampled_from(["component", "head"]))
    points = points_of_stream(t, mid=True)
    if a.encoder is not None:
        points += ["blocks.0.resid_cross", "encoder.blocks.0.resid_post"]
    for point in points:
        parts = t.decompose(point, by)
        # what an edit changed by less than a millionth is not listed
        assert difference(parts.total, t[point]) <= (1e-5 if edits else 1e-12), point
        assert len(parts.labels) == len(set(parts.labels)) == len(parts.values)
    assert difference(t.decompose(by=by).total, t.stream()) <= (1e-5 if edits else 1e-12)


@settings(max_examples=20)
@given(any_architectures(LINEAR), st.data(), st.sampled_from(["component", "head", "neuron", "source"]))
def test_what_was_written_sums_to_the_stream_at_one_position(a, data, by):
    """Neuron by neuron and source by source too; along a logit's direction the parts are the attribution's."""
    edits = data.draw(drawn_edits(a)) if data.draw(st.booleans()) else []
    if by == "source":
        edits = [e for e in edits if not e.name.endswith((".z", ".result"))]
    t, pos = look(a, edits), data.draw(st.integers(0, 3))
    if by == "neuron" and a.mlp.experts:
        by = "expert"
    if points := points_of_stream(t, mid=True):
        point = data.draw(st.sampled_from(points))
        parts = t.decompose(point, by, pos=pos, row=1)
        assert difference(parts.total, t[point][1, pos]) <= (1e-5 if edits else 1e-12)
        assert len(parts.labels) == len(set(parts.labels)) == len(parts.values)
    if a.encoder is not None:
        point = f"encoder.blocks.{a.encoder.n_layers - 1}.resid_post"
        parts = t.decompose(point, by, pos=-1, row=1)
        assert difference(parts.total, t[point][1, 2]) <= (1e-5 if edits else 1e-12)
    if not edits:
        parts, found = t.decompose(by=by, pos=pos), t.attribute(3, pos=pos, by=by)
        w = a.unembed_scale * t.network.unembed.matrix.detach()[3]
        if a.final_norm == "norm" and a.norm.kind != "none":
            w = w * t.network.final_norm.multiplier.detach() / t["final_norm.scale"][0, pos]
            w = w - w.mean() if a.norm.kind == "layer" else w
        assert found.labels[: len(parts.labels)] == parts.labels
        shares = parts.values @ w
        assert difference(shares, found.values[: len(shares)]) <= 1e-9 * max(1, float(t.logits.abs().max()))


def capped(x, cap):
    """c tanh(x / c), or x where there is no cap."""
    return cap * math.tanh(x / cap) if cap else x


@settings(max_examples=30)
@given(any_architectures(SMOOTH), st.sampled_from(["component", "head", "neuron", "source"]), st.integers(0, 3))
def test_attributions_sum_to_the_logit(a, by, pos):
    """Of every readout, bert's among them; with a cap they sum to the logit before it."""
    by = "expert" if by == "neuron" and a.mlp.experts else by  # a mixture has no split by neuron
    t = look(a)
    one = t.attribute(3, pos=pos, row=1, by=by)
    size = max(1, t.logits_before_cap().abs().max())
    assert abs(capped(one.total, a.logit_cap) - t.logits[1, pos, 3]) <= 1e-10 * size
    assert abs(one.total - one.logit) <= 1e-10 * size
    both = t.attribute(3, vs=5, pos=pos, by=by)
    before = t.logits_before_cap()[0, pos]
    assert abs(both.total - (before[3] - before[5])) <= 1e-10 * size
    assert both.logit == before[3] - before[5]
    expected = t.logits[0, pos, 3] - t.logits[0, pos, 5]
    assert expected == (both.after_cap if a.logit_cap else both.logit)
    assert len(both.labels) == len(set(both.labels)) == len(both.values)
    assert ("before the cap" in both.note) == (a.logit_cap > 0)
    assert ("the activation in the readout is frozen" in both.note) == (a.readout == "bert")


@settings(max_examples=30)
@given(architectures(SMOOTH), st.data(), st.sampled_from(["component", "head", "neuron"]))
def test_attributions_of_an_edited_run_sum_to_its_logit(a, data, by):
    by = "expert" if by == "neuron" and a.mlp.experts else by
    edits = data.draw(drawn_edits(a))
    t = look(a, edits)
    found, before = t.attribute(3, by=by), t.logits_before_cap()
    assert abs(found.total - before[0, -1, 3]) <= 1e-4 * max(1, before.abs().max())
    if not any(edit.name == "logits" for edit in edits):
        assert abs(capped(found.total, a.logit_cap) - t.logits[0, -1, 3]) <= 1e-4 * max(1, t.logits.abs().max())


@settings(max_examples=40)
@given(architectures(SMOOTH), st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]), st.data())
def test_only_edits_have_edited_parts_in_any_precision(a, dtype, data):
    edits = data.draw(drawn_edits(a))
    network = make_network(a, dtype=dtype)
    t = trace(of_ids(network), draw_tokens(a, 2, 4), edits=edits)
    parts, stream = t.decompose(by=data.draw(st.sampled_from(["component", "head"]))), t.stream()
    marked = {label.removesuffix(" (edited)") for label in parts.labels if label.endswith("(edited)")}
    assert marked <= {edit.name.removesuffix(".normalized") for edit in t.edits} | {
        edit.name.partition(norm)[0] + written
        for edit in t.edits
        for norm, written in ((".norm_1_out", ".attn_out"), (".norm_2_out", ".mlp_out"))
        if norm in edit.name
    }
    if stream.isfinite().all():
        largest = max(float(stream.abs().max()), float(parts.values.abs().max()), 1.0)
        assert difference(parts.total, stream) <= 2 * len(parts.labels) * torch.finfo(dtype).eps * largest


@settings(max_examples=30)
@given(any_architectures(SMOOTH), st.data())
def test_the_parts_of_edited_scores_sum_to_them(a, data):
    t = look(a, data.draw(drawn_edits(a)))
    why = t.why(a.n_layers - 1, 0, -1, row=1)
    finite = why.scores.isfinite()
    assert difference(why.values.sum(0)[finite], why.scores[finite]) <= 1e-6 * max(1, why.values.abs().max())


@pytest.mark.parametrize("fields", [{"residual_scale": 0.5}, {"block": "sandwich"}, {"block": "inner"}], ids=str)
def test_neurons_of_an_edited_mlp_sum_to_the_logit_behind_a_norm_and_a_scale(fields):
    a = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"norm.kind": "rms", **fields})
    t = look(a, [change.add("blocks.0.mlp_out", torch.arange(8.0, dtype=torch.float64))])
    found = t.attribute(3, by="neuron")
    assert abs(found.total - t.logits[0, -1, 3]) <= 1e-9 * max(1, t.logits.abs().max())
    assert any(label.endswith("mlp_out (edited)") for label in found.labels)


@settings(max_examples=20)
@given(architectures(SMOOTH | {"readout": "bert"}), st.sampled_from(["component", "head"]))
def test_a_part_s_share_of_bert_s_logit_is_what_it_writes_into_the_hidden_layer(a, by):
    """By the readout's own modules: W x is exact part by part; f and the norm multiply it by what they did there."""
    t, unembed = look(a), look(a).network.unembed
    parts, found = t.decompose(by=by), t.attribute(2, vs=6, by=by, pos=1)
    with torch.no_grad():
        h = unembed.dense(t.read_out)[0, 1]
        y = unembed.f(h)
        w = (a.unembed_scale * unembed.weight)[2] - (a.unembed_scale * unembed.weight)[6]
        for label, value in zip(parts.labels, parts.values, strict=True):
            x = value[0, 1]
            if a.final_norm == "norm" and a.norm.kind != "none":
                x = x - x.mean() if a.norm.kind == "layer" else x
                x = t.network.final_norm.multiplier * x / t["final_norm.scale"][0, 1]
            z = (unembed.dense.weight @ x) * y / h
            if a.norm.kind != "none":
                centred = y - y.mean() if a.norm.kind == "layer" else y
                scale = unembed.norm.sigma(centred) if a.norm.kind == "layer" else unembed.norm.rho(y)
                z = unembed.norm.multiplier * (z - z.mean() if a.norm.kind == "layer" else z) / scale
            assert abs(found[label] - z @ w) <= 1e-9 * max(1, t.logits.abs().max()), label


@settings(max_examples=20)
@given(architectures(LINEAR), st.sampled_from(["component", "head"]))
def test_a_part_is_worth_what_its_removal_costs_at_a_frozen_scale(a, by):
    """Against the definition: a part's share is what the final norm, frozen, and the unembedding make of it."""
    t = look(a)
    parts, found = t.decompose(by=by), t.attribute(2, vs=6, by=by, pos=1)
    w = a.unembed_scale * t.network.unembed.matrix.detach()
    for label, value in zip(parts.labels, parts.values, strict=True):
        x = value[0, 1]
        if a.final_norm == "norm" and a.norm.kind != "none":
            centred = x - x.mean() if a.norm.kind == "layer" else x
            x = t.network.final_norm.multiplier.detach() * centred / t["final_norm.scale"][0, 1]
        assert abs(found[label] - (x @ (w[2] - w[6]))) <= 1e-9 * max(1, t.logits.abs().max()), label


@settings(max_examples=20)
@given(any_architectures())
def test_head_results_and_the_bias_are_what_attention_adds(a):
    t = look(a)
    for name in [name for name in names(a) if name.endswith((".attn.result", ".cross.result"))]:
        scope = name.removesuffix(".result")
        bias = t.network.get_submodule(scope).out.bias
        total = t[name].sum(1) + (0 if bias is None else bias.detach())
        if a.block in ("inner", "sandwich") and not scope.endswith("cross"):
            total = t.network.get_submodule(scope.replace("attn", "norm_1_out"))(total).detach()
        part = a.encoder if scope.startswith("encoder.") else a
        assert difference(part.residual_scale * total, t[f"{scope}_out"]) <= 1e-12


@settings(max_examples=30)
@given(any_architectures({"norm.eps": 1e-2}), st.data())
def test_scores_are_sums_over_what_was_written_before(a, data):
    t, layer = look(a), data.draw(st.integers(0, a.n_layers - 1))
    head, query = data.draw(st.integers(0, a.n_heads - 1)), data.draw(st.integers(0, 2))
    side, by = data.draw(st.sampled_from(["key", "query", "pair"])), data.draw(st.sampled_from(["component", "head"]))
    crossed = a.encoder is not None and a.encoder.n_layers > 0
    part = data.draw(st.sampled_from(["attn", "cross", "encoder"])) if crossed else "attn"
    scope = f"encoder.blocks.{layer}.attn" if part == "encoder" else f"blocks.{layer}.{part}"
    why = t.why(layer, head, query, row=1, side=side, by=by, part=part)
    scores = t[f"{scope}.scores"][1, head, query]
    assert why.keys == (scores > -torch.inf).nonzero().flatten().tolist()
    scores, total, cap = scores[why.keys], why.values.sum(0), a.attention.score_cap
    assert difference(total, why.scores) <= 1e-10
    if cap:
        bias = t.network.get_submodule(scope).mask.position_bias
        assert torch.equal(why.after_cap, scores)
        assert "distance" not in why.labels
        total = cap * (total / cap).tanh()
        if bias is not None:  # added behind the cap
            total = total + bias.score_bias(torch.tensor([[query]]), torch.tensor(why.keys))[head, 0].detach()
    assert difference(total, scores) <= 1e-10
    assert why.top(why.keys[0], 3)[0][0] in why.labels


@settings(max_examples=20)
@given(any_architectures())
def test_value_weighted_patterns(a):
    t = look(a)
    scopes = {"attn": "blocks.0.attn"} | ({"encoder": "encoder.blocks.0.attn"} if a.encoder is not None else {})
    for scope, name in scopes.items():
        weighted, attention = t.value_weighted(0, scope), t.network.get_submodule(name)
        W_O = attention.out.weight.detach().unflatten(1, (a.n_heads, a.d_head))
        for h in range(a.n_heads):
            brought = t[f"{name}.v"][1, h * a.n_kv_heads // a.n_heads, 2] @ W_O[:, h].T
            expected = t[f"{name}.pattern"][1, h, :, 2] * brought.norm()
            assert difference(weighted[1, h, :, 2], expected) <= 1e-12


@settings(max_examples=25)
@given(any_architectures(), st.booleans())
def test_the_lens_at_the_last_point_is_the_output(a, mid):
    t = look(a)
    lens = t.lens(mid=mid, k=3)
    assert torch.equal(lens_logits(t, lens.points[-1]), t.logits)
    assert difference(lens.kl[-1], torch.zeros_like(lens.kl[-1])) <= 1e-12
    assert (lens.kl >= -1e-12).all()
    p = lens_logits(t, lens.points[0]).softmax(-1)
    assert difference(lens.entropy[0], -(p * p.clamp(min=1e-300).log()).sum(-1)) <= 1e-10
    # of tokens that are equally likely any may be named
    assert difference(lens.probabilities[0], p.topk(3).values) <= 1e-12
    assert difference(p.gather(-1, lens.tokens[0]), p.topk(3).values) <= 1e-12
    if a.attention.mask != "bidirectional":
        assert torch.equal(lens.target[:, :-1], t.ids[:, 1:])
        assert (lens.target[:, -1] == -1).all()
        following = p[:, :-1].gather(-1, t.ids[:, 1:, None])[..., 0]
        assert difference(lens.probability[0, :, :-1], following) <= 1e-12
        assert torch.equal(lens.rank[0, :, :-1], (p[:, :-1] > following[..., None]).sum(-1))


def test_the_sources_of_cross_attention_are_tokens_of_the_source():
    t = look(with_encoder(A))
    parts = t.attribute(1, row=1, by="source")
    assert (parts.tokens, parts.source_tokens) == (t.tokens[1], t.source_tokens[1])
    crossing = [label for label in parts.labels if label.startswith("blocks.0.cross.head.0 <- ")]
    assert len(crossing) == len(parts.source_tokens) == 3
    assert look(A).attribute(1).source_tokens == []


def test_the_lens_follows_a_token():
    t = look(A)
    lens = t.lens(target=4)
    assert lens.points[:3] == ["blocks.0.resid_pre", "blocks.0.resid_mid", "blocks.0.resid_post"]
    assert difference(lens.probability[-1], t.probs[..., 4]) <= 1e-12


@settings(max_examples=15)
@given(any_architectures(), st.booleans(), st.integers(-3, 3))
def test_tokens_are_followed_as_in_the_lens(a, mid, pos):
    t = look(a)
    followed = follow_tokens(t, [1, 5], pos=pos, row=1, mid=mid)
    for column, token in enumerate([1, 5]):
        lens = t.lens(mid=mid, target=token)
        assert followed.points == lens.points
        assert difference(followed.probability[:, column], lens.probability[:, 1, pos]) <= 1e-12
        assert (followed.rank[:, column] - lens.rank[:, 1, pos]).abs().max() <= 1  # ties, rounded otherwise
    with pytest.raises(InputError, match="token 99: there are 11, numbered from 0"):
        follow_tokens(t, [99])


def test_gradient_times_input_is_the_change_to_first_order():
    t = look(A)
    found = t.saliency(lambda logits: logits[:, -1, 3])
    slope = t.gradient(lambda logits: logits[:, -1, 3], "embed")["embed"]
    assert difference(found, (t["embed"] * slope).sum(-1)) <= 1e-12
    shrunk = trace(of_ids(t.network), t.ids, edits=[change.scale("embed", 1 - 1e-6, pos=1)]).logits[:, -1, 3]
    assert difference((t.logits[:, -1, 3] - shrunk) / 1e-6, found[:, 1]) <= 1e-4


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda t: t.attribute(1, by="layer"), "expected component, head, neuron, expert or source"),
        (lambda t: t.attribute(1, pos=9), "row 0 has 4 tokens"),
        (lambda t: t.attribute(11), "token 11: there are 11, numbered from 0"),
        (lambda t: t.attribute(1, vs=-1), "token -1: there are 11, numbered from 0"),
        (lambda t: t.gradient(logit(-5), "embed"), "token -5: there are 11, numbered from 0"),
        (lambda t: t.lens(target=-3), "token -3: there are 11, numbered from 0"),
        (lambda t: t.decompose(by="neuron"), "give one, such as pos=-1"),
        (lambda t: t.decompose(by="layer"), "expected component, head, neuron, expert or source"),
        (lambda t: t.decompose(by="source", pos=4), "row 0 has 4 tokens"),
        (lambda t: t.decompose("blocks.0.attn.q"), "is not a point of the residual stream"),
        (lambda t: t.why(0, 9), "layer 0, head 9"),
        (lambda t: t.why(0, 0, side="both"), "expected key, query or pair"),
    ],
)
def test_questions_without_an_answer_say_why(ask, reason):
    with pytest.raises(InputError, match=reason):
        ask(look(A))
