"""Exact patching is the naive loop, attribution patching its first order, and ablations and paths are edits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.lens import InputError, trace
from pellucid.lens.analysis.ablation import ablate
from pellucid.lens.analysis.metrics import (
    PreparedMetric,
    apply_metric,
    kl,
    log_probability,
    logit,
    logit_diff,
    loss,
    probability,
)
from pellucid.lens.analysis.patching import PatchingPair, patch
from pellucid.lens.analysis.path_patching import path_patch
from pellucid.lens.analysis.steering import mean_activation
from pellucid.tensor_names import axes, names
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, source_tokens, with_encoder
from some_cases import one_in

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=3).with_fields({"attention.n_heads": 4, "n_kv_heads": 2})
SITES = ("resid_pre", "resid_post", "attn_out", "mlp_out", "attn.z", "attn.q", "attn.v", "attn.pattern", "norm_1")
METRICS = st.sampled_from(
    [logit_diff(3, 5), logit(2, pos=1), probability(4), log_probability(1, pos=-2), kl(pos=2), loss()]
)


def two_texts(a, common):
    """Two rows of ids that agree in their first `common` tokens."""
    one, other = (draw_tokens(a, 1, 5, seed)[0].tolist() for seed in (0, 1))
    other[:common] = one[:common]
    return one, [*other[:-1], (one[-1] + 1) % a.n_vocab]


def naive(network, clean, corrupt, metric, name, place, head, **options):
    """One run with one edit."""
    good = trace(of_ids(network), clean, keep=name, **options)
    where = {"kv_head" if "g" in axes(name) else "head": head} if set("hg") & set(axes(name)) else {}
    edit = change.resample(name, good, pos=place, **where)
    bad = trace(of_ids(network), corrupt, **options)
    return PreparedMetric(metric, bad)(trace(of_ids(network), corrupt, edits=[edit], **options).logits)[0]


@settings(max_examples=40)
@given(any_architectures(max_ctx=8), st.data(), METRICS)
def test_exact_patching_is_the_naive_loop(a, data, metric):
    if a.n_ctx < 5 or (a.attention.mask == "bidirectional" and metric.pos is None):
        return
    network, (clean, corrupt) = make_network(a), two_texts(a, data.draw(st.integers(0, 4)))
    options = {} if a.encoder is None else {"source": source_tokens(a, 1)[0].tolist()}
    site = data.draw(st.sampled_from([s for s in SITES if f"blocks.0.{s}" in names(a)]))
    found = patch(of_ids(network), clean, corrupt, metric, site=site, **options)
    assert found.exact.shape[:2] == (a.n_layers, 5)
    layer, place = data.draw(st.integers(0, a.n_layers - 1)), data.draw(st.integers(0, 4))
    heads = range(found.exact.size(2)) if found.exact.ndim == 3 else [None]
    for head in heads:
        value = found.exact[layer, place] if head is None else found.exact[layer, place, head]
        expected = naive(network, clean, corrupt, metric, f"blocks.{layer}.{site}", place, head, **options)
        assert difference(value, expected) <= 1e-9


@pytest.mark.slow
@settings(max_examples=20)
@given(
    architectures({"attention.mask": st.sampled_from(["causal", "prefix"]), "n_ctx": 8}).map(with_encoder),
    st.data(),
    st.sampled_from(["resid_pre", "attn.z", "cross.q", "cross.k", "cross.v", "cross.pattern", "cross_out"]),
    st.booleans(),
)
def test_exact_patching_of_encoder_decoders_is_the_naive_loop(a, data, site, two_sources):
    """Also behind a common beginning, of which only keys and values are kept; of two sources, places may be theirs."""
    network, (clean, corrupt) = make_network(a), two_texts(a, data.draw(st.integers(1, 4)))
    source, other = [1, 2, 3], [1, 5, 3] if two_sources else [1, 2, 3]
    found = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), site=site, source=source, corrupt_source=other)
    n = 3 if site in ("cross.k", "cross.v") else 5
    assert found.exact.shape[:2] == (a.n_layers, n)
    assert found.tokens == [str(i) for i in (other if n == 3 else corrupt)]
    layer, head = data.draw(st.integers(0, a.n_layers - 1)), 0
    name = f"blocks.{layer}.{site}"
    good = trace(of_ids(network), clean, keep=name, source=source)
    where = {"kv_head" if "g" in axes(name) else "head": head} if set("hg") & set(axes(name)) else {}
    bad = trace(of_ids(network), corrupt, source=other)
    for place in range(n):
        edit = change.resample(name, good, pos=place, **where)
        expected = PreparedMetric(logit_diff(3, 5), bad)(
            trace(of_ids(network), corrupt, edits=[edit], source=other).logits
        )[0]
        value = found.exact[layer, place, head] if where else found.exact[layer, place]
        assert difference(value, expected) <= 1e-9


def test_what_an_encoder_s_head_says_takes_the_paths_it_is_given():
    """Of two sources the whole difference is heard through all keys and values, and nothing through frozen heads."""
    network, text = make_network(with_encoder(A.with_fields({"n_layers": 2}))), [1, 2, 3]
    both = {"source": [1, 2, 3], "corrupt_source": [1, 5, 3]}
    sender = ("encoder.final_norm", None)
    ends = [(f"blocks.{l}.cross.{x}", None) for l in range(2) for x in "kv"]
    found = path_patch(of_ids(network), text, text, logit_diff(3, 5), sender=sender, receivers=ends, **both)
    assert abs(found.patched - found.corrupt) <= 1e-9
    assert abs(found.effect) > 1e-6
    # a first head of the encoder reaches the end past a frozen second one by the stream alone
    heads = [("encoder.blocks.0.attn.z", h) for h in range(4)]
    direct = path_patch(of_ids(network), text, text, logit_diff(3, 5), sender=heads[0], receivers=ends[:1], **both)
    edits = [change.freeze("encoder.blocks.1.attn.z")]
    other = trace(of_ids(network), text, source=[1, 5, 3])
    edits += [change.resample("encoder.blocks.0.attn.z", other, head=0)]
    heard = trace(of_ids(network), text, source=[1, 2, 3], edits=edits)[ends[0][0]]
    told = trace(of_ids(network), text, source=[1, 2, 3], edits=[change.set_to(ends[0][0], heard)])
    assert abs(direct.patched - float(PreparedMetric(logit_diff(3, 5), told)(told.logits)[0])) <= 1e-9
    with pytest.raises(InputError, match=r"through blocks\.\*\.cross\.z alone"):
        path_patch(of_ids(network), text, text, logit_diff(3, 5), sender=heads[0], receivers=[], **both)
    with pytest.raises(InputError, match="differ in length"):
        path_patch(
            of_ids(network),
            text,
            text,
            logit_diff(3, 5),
            sender=sender,
            receivers=ends,
            source=[1],
            corrupt_source=[1, 2],
        )


def test_patching_everything_in_gives_the_clean_answer():
    network, (clean, corrupt) = make_network(A), two_texts(A, 0)
    found = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), positions="all")
    assert difference(found.recovered, torch.ones(3, 1, dtype=torch.float64)) <= 1e-9
    assert found.best()[1] == -1
    last = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), site="resid_post", layers=[2], positions=[4])
    assert difference(last.recovered, torch.ones(1, 1, dtype=torch.float64)) <= 1e-9


@pytest.mark.parametrize("site", one_in(2, ["resid_pre", "attn.z", "mlp_out", "attn.pattern"]))
def test_attribution_patching_is_exact_to_first_order(site):
    """With clean and corrupt activations ever closer, the error falls with the square of their distance."""
    network, errors = make_network(A.with_fields({"norm.eps": 1e-2})), []
    ids = [1, 2, 3, 4, 5]
    for size in (1e-2, 1e-3):
        nudge = size * torch.randn(A.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            table = network.embed.token.weight.clone()
            network.embed.token.weight[6] = table[3] + nudge
        found = patch(of_ids(network), [1, 2, 6, 4, 5], ids, logit_diff(7, 8), site=site, mode="both")
        errors.append(found.agreement["largest"])
        assert (found.exact - found.corrupt).abs().max() > 0.01 * size
        with torch.no_grad():
            network.embed.token.weight.copy_(table)
    assert errors[1] <= errors[0] / 30


def test_estimates_do_not_need_weights_with_gradients():
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    free = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), site="attn.z", mode="attribution")
    held = patch(of_ids(network.requires_grad_(False)), clean, corrupt, logit_diff(3, 5), site="attn.z", mode="both")
    assert torch.equal(free.estimate, held.estimate)
    assert not held.exact.requires_grad
    assert not held.estimate.requires_grad


@pytest.mark.parametrize("site", ["cross.k", "cross.v"])
def test_estimates_at_what_the_encoder_wrote_do_not_need_weights_with_gradients(site):
    network, options = make_network(with_encoder(A)), {"source": [1, 2, 3], "corrupt_source": [1, 4, 3]}
    clean, _ = two_texts(A, 5)
    free = patch(of_ids(network), clean, clean, logit_diff(3, 5), site=site, mode="attribution", **options)
    network.requires_grad_(False)
    held = patch(of_ids(network), clean, clean, logit_diff(3, 5), site=site, mode="attribution", **options)
    assert torch.equal(free.estimate, held.estimate)
    assert held.estimate.abs().max() > 0


def test_an_estimate_reads_each_run_out_once_at_the_position_of_the_metric():
    """The gradient starts from the value that is reported: no run is read out again for it."""
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    shapes = []
    network.unembed.register_forward_hook(lambda module, given, logits: shapes.append(tuple(logits.shape)))
    patch(of_ids(network), clean, corrupt, logit_diff(3, 5), mode="attribution")
    assert shapes == [(1, 1, A.n_vocab)] * 2


@pytest.mark.parametrize("site", ["resid_pre", "attn.k"])
@pytest.mark.parametrize("positions", ["each", "all", [1, 4]])
def test_the_parts_of_exact_patching_are_its_whole(site, positions):
    """Every place comes once, with the value that `patch` gives; no part is computed before it is asked for."""
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    pair = PatchingPair(of_ids(network), clean, corrupt, logit(3), site=site, positions=positions, gradients=False)
    expected = patch(of_ids(network), clean, corrupt, logit(3), site=site, positions=positions).exact
    seen = torch.full_like(expected, torch.nan)
    for part in pair.exact_parts():
        for (position, head), value in zip(part.cells, part.values, strict=True):
            where = (part.layer, pair.positions.index(position), head)[: seen.ndim]
            assert seen[where].isnan()
            seen[where] = value
    assert torch.equal(seen, expected)
    assert pair.n_heads == (2 if site == "attn.k" else 0)
    with pytest.raises(InputError, match="gradients = False"):
        pair.estimate()


def test_agreement_is_reported():
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    found = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), mode="both")
    assert -1 <= found.agreement["correlation"] <= 1
    # before the first token that differs there is nothing to patch
    assert (found.exact[:, :2] == found.corrupt).all()
    assert (found.estimate[:, :2] == found.corrupt).all()
    with pytest.raises(InputError, match="mode='both'"):
        _ = patch(of_ids(network), clean, corrupt, logit_diff(3, 5)).agreement
    assert patch(of_ids(network), clean, corrupt, logit_diff(3, 5), mode="attribution").exact is None


@settings(max_examples=25)
@given(architectures({"attention.mask": "causal"}, max_ctx=8), st.sampled_from(["zero", "mean", "resample"]), st.data())
def test_ablations_are_edits(a, kind, data):
    network = make_network(a)
    lengths = (4, 4, 4) if kind == "resample" else (4, 3, 4)
    rows = [draw_tokens(a, 1, n, seed=k)[0].tolist() for k, n in enumerate(lengths)]
    site = data.draw(st.sampled_from(["attn.z", "mlp_out", "attn_out"]))
    found = ablate(of_ids(network), rows, log_probability(3), site=site, kind=kind)
    layer = data.draw(st.integers(0, a.n_layers - 1))
    name, clean = f"blocks.{layer}.{site}", trace(of_ids(network), rows)
    x, real = clean[name], clean.inputs.real
    if kind == "mean":
        by_position = x.transpose(1, 2) if x.ndim == 4 else x
        value = by_position[real].mean(0)
        value = value[None, :, None] if x.ndim == 4 else value
        edit = {"op": "mean", "value": value}
    elif kind == "zero":
        edit = {"op": "zero"}
    else:
        edit = {"op": "resample", "value": x.roll(1, 0)}
    for head in range(a.n_heads) if x.ndim == 4 else [None]:
        edits = [change.Edit(name=name, head=head, **edit)]
        t = trace(of_ids(network), rows, edits=edits)
        expected = PreparedMetric(log_probability(3), clean)(t.logits).mean()
        value = found.values[layer] if head is None else found.values[layer, head]
        assert difference(value, expected) <= 1e-9
    assert abs(found.baseline - float(PreparedMetric(log_probability(3), clean)(clean.logits).mean())) <= 1e-9


@settings(max_examples=20)
@given(
    architectures({"attention.mask": "causal", "n_ctx": 8}).map(with_encoder),
    st.sampled_from(["zero", "mean", "resample"]),
    st.sampled_from(["attn.z", "cross.z", "cross.q", "cross.v", "cross_out"]),
)
def test_ablations_of_encoder_decoders_are_edits(a, kind, site):
    """Means are over the tokens that a tensor's positions stand for: the source's for what is read of it."""
    network, rows = make_network(a), [[1, 2, 3], [4, 5, 6]]
    sources = [[1, 2, 3], [4, 5, 6]] if kind == "resample" else [[1, 2, 3], [4]]
    found = ablate(of_ids(network), rows, log_probability(3), site=site, kind=kind, source=sources)
    clean, name = trace(of_ids(network), rows, source=sources), "blocks.0." + site
    x = clean[name]
    value = {"zero": None, "resample": x.roll(1, 0)}.get(kind)
    if kind == "mean":
        value = mean_activation(of_ids(network), rows, name, source=sources)
    for head in range(x.size(1)) if x.ndim == 4 else [None]:
        where = {"kv_head" if "g" in axes(name) else "head": head} if x.ndim == 4 else {}
        edits = [change.Edit(kind, name, value, **where)]
        t = trace(of_ids(network), rows, edits=edits, source=sources)
        expected = PreparedMetric(log_probability(3), clean)(t.logits).mean()
        assert difference(found.values[0] if head is None else found.values[0, head], expected) <= 1e-9


def test_ablated_scores_stay_behind_the_mask():
    network, rows, metric = make_network(A), [[1, 2, 3, 4], [4, 3, 2, 1]], log_probability(3, pos=1)
    found = ablate(of_ids(network), rows, metric, site="attn.scores", kind="zero", layers=[0])
    clean = trace(of_ids(network), rows)
    for head in range(A.n_heads):
        t = trace(of_ids(network), rows, edits=[change.zero("blocks.0.attn.scores", head=head)])
        assert difference(found.values[0, head], PreparedMetric(metric, clean)(t.logits).mean()) <= 1e-9


@pytest.mark.parametrize(
    "metric", [logit_diff(3, 5), probability(4), log_probability(1), kl(), loss()], ids=lambda metric: metric.name
)
def test_metrics_of_a_network_in_bfloat16_have_the_digits_of_float32(metric):
    t = trace(of_ids(make_network(A, dtype=torch.bfloat16)), [[1, 2, 3], [4, 3, 5]])
    measured = PreparedMetric(metric, t)
    assert measured(t.logits).dtype == torch.float32
    assert torch.equal(measured(t.logits), measured(t.logits.float()))
    of_stream = measured.of_stream(t.stream(), torch.arange(2))
    assert of_stream.dtype == torch.float32


def test_a_metric_of_one_s_own_and_gradients_of_metrics():
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    own = apply_metric(lambda logits: logits[:, 3] - logits[:, 5], name="mine")
    found = patch(of_ids(network), clean, corrupt, own)
    assert torch.equal(found.exact, patch(of_ids(network), clean, corrupt, logit_diff(3, 5)).exact)
    assert found.metric == "mine"
    t = trace(of_ids(network), [clean, corrupt[:3]])
    slope = t.gradient(logit_diff(3, 5, pos=1), "embed")["embed"]
    assert torch.equal(slope, t.gradient(lambda logits: logits[:, 1, 3] - logits[:, 1, 5], "embed")["embed"])
    assert t.saliency(loss()).shape == t.ids.shape
    assert torch.equal(t.saliency(loss(), "hook_embed"), t.saliency(loss()))


def test_a_path_through_everything_is_the_sender_s_whole_effect():
    """With one layer behind the sender and its readers all receiving, the direct paths add up to what patching does."""
    network, (clean, corrupt) = make_network(A), two_texts(A, 0)
    metric = logit_diff(3, 5)
    # from a head of the last layer to the output there is the direct path, and the last MLP
    sender = ("blocks.2.attn.z", 1)
    found = path_patch(of_ids(network), clean, corrupt, metric, sender=sender, receivers=[])
    whole = patch(of_ids(network), corrupt, clean, metric, site="attn.z", layers=[2], positions="all")
    assert abs(found.patched - whole.exact[0, 0, 1]) <= 1e-9
    assert abs(found.effect - (found.patched - found.clean)) <= 1e-9


def test_the_divergence_of_a_path_is_from_the_clean_run():
    network, (clean, corrupt) = make_network(A), two_texts(A, 0)
    found = path_patch(of_ids(network), clean, corrupt, kl(), sender=("blocks.2.attn.z", 1), receivers=[])
    good, bad = (trace(of_ids(network), text).logits[0, -1].log_softmax(-1) for text in (clean, corrupt))
    assert found.clean == 0
    assert abs(found.corrupt - float((good.exp() * (good - bad)).sum())) <= 1e-12
    assert found.effect == found.patched > 1e-6


def test_losses_are_those_of_the_text_whose_run_is_changed():
    """Every run is scored on one text: the corrupt one where a corrupt run is patched, the clean one along a path."""
    network, (clean, corrupt) = make_network(A), two_texts(A, 1)
    good, bad = trace(of_ids(network), clean), trace(of_ids(network), corrupt)

    def scored(t, text):
        return float(loss().of(text)(t.logits)[0])

    found = patch(of_ids(network), clean, corrupt, loss())
    assert found.metric == "loss on the corrupt text"
    assert abs(found.corrupt - float(bad.loss.mean())) <= 1e-12
    assert abs(found.clean - scored(good, bad)) <= 1e-12
    along = path_patch(of_ids(network), clean, corrupt, loss(), sender=("blocks.2.attn.z", 1), receivers=[])
    assert along.metric == "loss on the clean text"
    assert abs(along.clean - float(good.loss.mean())) <= 1e-12
    assert abs(along.corrupt - scored(bad, good)) <= 1e-12


def test_divergence_from_another_run_is_estimated():
    network, (clean, corrupt) = make_network(A), two_texts(A, 2)
    found = patch(of_ids(network), clean, corrupt, kl(trace(of_ids(network), clean)), mode="both")
    assert found.clean <= 1e-12 < found.corrupt
    assert found.agreement["correlation"] > 0.5


def test_ablating_no_layer_gives_no_value():
    assert ablate(of_ids(make_network(A)), [1, 2], logit(1), layers=[]).values.shape == (0,)


def test_a_path_inside_a_sublayer_is_open():
    network, (clean, corrupt), ends = make_network(A), two_texts(A, 0), [("blocks.0.attn.scores", 1)]
    for sender in (("blocks.0.attn.q", 1), ("blocks.0.norm_1", None)):
        found = path_patch(of_ids(network), clean, corrupt, logit_diff(3, 5), sender=sender, receivers=ends)
        assert abs(found.effect) > 1e-6


def test_a_path_to_a_head_that_does_not_look_carries_nothing():
    network, (clean, corrupt) = make_network(A), two_texts(A, 0)
    metric = logit_diff(3, 5)
    with torch.no_grad():
        network.blocks[2].attn.out.weight[:, :2] = 0  # head 0 of layer 2 writes nothing
    found = path_patch(
        of_ids(network), clean, corrupt, metric, sender=("blocks.0.attn.z", 1), receivers=[("blocks.2.attn.q", 0)]
    )
    assert abs(found.effect) <= 1e-9
    heard = path_patch(
        of_ids(network), clean, corrupt, metric, sender=("blocks.0.attn.z", 1), receivers=[("blocks.2.attn.q", 1)]
    )
    assert abs(heard.effect) > 1e-6


@settings(max_examples=10)
@given(architectures({"attention.mask": "causal", "mlp.activation": "silu"}, max_ctx=8))
def test_a_path_is_what_its_two_runs_make_by_hand(a):
    """Head 0 of layer 0 to the queries of the last block's head 0, everything else that could carry it held."""
    network, (clean, corrupt) = make_network(a), ([1, 2, 3, 4], [4, 3, 2, 1])
    last = a.n_layers - 1
    if not last:
        return
    metric, receiver = logit_diff(3, 5), f"blocks.{last}.attn.q"
    other = trace(of_ids(network), corrupt)
    edits = [change.freeze("blocks.*.attn.z"), change.freeze("blocks.*.mlp_out")]
    edits += [change.resample("blocks.0.attn.z", other, head=0)]
    heard = trace(of_ids(network), clean, edits=edits)
    patched = trace(of_ids(network), clean, edits=[change.set_to(receiver, heard[receiver], head=0)])
    found = path_patch(
        of_ids(network), clean, corrupt, metric, sender=("blocks.0.attn.z", 0), receivers=[(receiver, 0)], mlps="frozen"
    )
    assert abs(found.patched - float(PreparedMetric(metric, patched)(patched.logits)[0])) <= 1e-9


@settings(max_examples=10)
@given(architectures({"attention.mask": "causal"}, max_ctx=8))
def test_metrics(a):
    t = trace(of_ids(make_network(a)), [[1, 2, 3], [4, 3]])
    logits, at = t.logits, torch.stack([t.logits[0, 2], t.logits[1, 1]])
    assert torch.equal(PreparedMetric(logit(3), t)(logits), at[:, 3])
    assert torch.equal(PreparedMetric(logit_diff(3, 5), t)(logits), at[:, 3] - at[:, 5])
    assert difference(PreparedMetric(probability(3), t)(logits), at.softmax(-1)[:, 3]) <= 1e-12
    assert difference(PreparedMetric(log_probability(3), t)(logits), at.softmax(-1)[:, 3].log()) <= 1e-9
    assert difference(PreparedMetric(loss(), t)(logits), t.loss.nanmean(1)) <= 1e-12
    assert PreparedMetric(kl(), t)(logits).abs().max() <= 1e-12
    p, q = at.softmax(-1), torch.full_like(at, 1 / a.n_vocab)
    away = PreparedMetric(kl(t), t)(torch.zeros_like(logits))
    assert difference(away, (p * (p.clamp(min=1e-300) / q).log()).sum(-1)) <= 1e-9


def test_in_a_post_norm_block_a_norm_is_computed_after_its_sublayer():
    """x = norm_1(x + attn(x)), and so with cross-attention and the MLP."""
    paths = [("attn.z", "norm_1"), ("resid_mid", "norm_1.scale"), ("norm_1", "attn.q"), ("mlp_out", "norm_2")]
    crossing = [*paths, ("cross.z", "norm_cross"), ("norm_1", "cross.q"), ("norm_cross", "cross.z")]
    a = A.with_fields({"block": "post"})
    backwards = {("norm_1", "attn.q"), ("norm_cross", "cross.z")}
    for network, pairs, scope in (
        (make_network(a), paths, ""),
        (make_network(with_encoder(a)), crossing, ""),
        (make_network(with_encoder(a)), paths, "encoder."),
    ):
        options = {} if network.architecture.encoder is None else {"source": [1, 2, 3], "corrupt_source": [1, 5, 3]}
        for sender, receiver in pairs:
            ends = {"sender": (f"{scope}blocks.0.{sender}", None), "receivers": [(f"{scope}blocks.0.{receiver}", None)]}
            if (sender, receiver) in backwards:
                with pytest.raises(InputError, match="is computed before the sender"):
                    path_patch(of_ids(network), [1, 2], [3, 4], logit(1), **ends, **options)
            else:
                found = path_patch(of_ids(network), [1, 2], [3, 4], logit(1), **ends, **options)
                assert abs(found.effect) > 1e-9, (sender, receiver)


def test_a_path_leads_from_one_hidden_layer_to_the_next():
    network = make_network(A.with_fields({"n_hidden": 2}))
    ends = {"sender": ("blocks.0.mlp.post.0", None), "receivers": [("blocks.0.mlp.pre.1", None)]}
    assert abs(path_patch(of_ids(network), [1, 2], [3, 4], logit(1), **ends).effect) > 1e-9


def a_path(network, sender, *receivers, mlps="free"):
    """Patch a path to whole tensors, or to the logits."""
    ends = [(receiver, None) for receiver in receivers]
    return path_patch(of_ids(network), [1, 2], [3, 4], logit(1), sender=sender, receivers=ends, mlps=mlps)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda n: patch(of_ids(n), [1, 2], [1, 2, 3], logit(1)), "give texts with equal numbers of tokens"),
        (lambda n: patch(of_ids(n), [[1, 2]] * 2, [[3, 4]] * 2, logit(1)), "one clean text and one corrupt one"),
        (lambda n: patch(of_ids(n), [1, 2], [3, 4], logit(1), mode="fast"), "expected exact, attribution or both"),
        (lambda n: patch(of_ids(n), [1, 2], [3, 4], logit(1), positions=[7]), "positions from 0 to 1"),
        (
            lambda n: patch(of_ids(n), [1, 2], [3, 4], lambda logits: logits),
            r"got function: apply_metric\(f\) makes one",
        ),
        (lambda n: patch(of_ids(n), [1, 2], [3, 4], logit(1, pos=5)), "row 0 has 2 tokens"),
        (lambda n: patch(of_ids(n), [1, 2], [3, 4], kl(), mode="both"), r"give kl\(to=\.\.\.\) a trace"),
        (lambda n: patch(of_ids(n), [1], [2], loss()), "text 0 has no token that is predicted"),
        (lambda n: ablate(of_ids(n), [[1, 2], [3]], loss()), "text 1 has no token that is predicted"),
        (lambda n: ablate(of_ids(n), [1, 2], logit(1), kind="one"), "expected zero, mean or resample"),
        (lambda n: ablate(of_ids(n), [1, 2], logit(1), kind="resample"), "at least two texts"),
        (lambda n: path_patch(of_ids(n), [1], [2], logit(1), sender=("blocks.0.attn.z", 9), receivers=[]), "head = 9"),
        (lambda n: a_path(n, ("blocks.1.attn.z", 0), "blocks.0.attn.k"), "is computed before the sender"),
        (lambda n: a_path(n, ("blocks.1.attn.z", 0), "blocks.1.attn.k"), "is computed before the sender"),
        (
            lambda n: path_patch(of_ids(n), [1, 2], [3, 4], logit(1), sender=("embed", None), receivers=["logits"]),
            "'logits' is no end of a path",
        ),
        (lambda n: a_path(n, ("blocks.0.attn.v", 0)), r"acts through blocks\.0\.attn\.z alone"),
        (lambda n: a_path(n, ("blocks.0.norm_1", None)), r"acts through blocks\.0\.attn\.z alone"),
        (
            lambda n: a_path(n, ("blocks.0.mlp.post", None), mlps="frozen"),
            r"mlp_out is computed from, or say mlps='free'",
        ),
        (lambda n: a_path(n, ("blocks.0.attn.z", 0), "blocks.2.attn.z"), r"name blocks\.2\.attn\.q, "),
        (lambda n: a_path(n, ("blocks.0.attn.z", 0), "blocks.2.attn_out"), r"follows from blocks\.2\.attn\.z, which"),
        (lambda n: a_path(n, ("blocks.0.attn.z", 0), "blocks.1.mlp_out", mlps="frozen"), "reaches it: say mlps='free'"),
        (lambda n: ablate(of_ids(n), [1, 2], logit(1), site="attn.pattern"), "have no mean"),
        (lambda n: ablate(of_ids(n), [1, 2], logit(1), site="attn.scores"), "have no mean"),
    ],
)
def test_experiments_that_cannot_be_made_say_why(run, reason):
    with pytest.raises(ValueError, match=reason):
        run(make_network(A))
