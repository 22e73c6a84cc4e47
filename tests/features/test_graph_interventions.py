"""Graphs tested on their models: where the model is linear, what a graph predicts is what is measured."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import architectures, difference, make_network
from tests.features.test_graph import A, graph_of
from tests.running import any_architectures, draw_tokens

from pellucid import edits
from pellucid.features.attribution_graph import AttributionGraph, attribution_graph
from pellucid.features.dictionary import Dictionary, SavedDictionary, transcoder_sites
from pellucid.features.graph_scores import GraphError
from pellucid.lens import trace
from pellucid.text_model import of_ids


def exact_transcoders(network):
    """Transcoders of affine MLPs, x W^T + b: a feature for each coordinate, all active whatever is read."""
    a, saved = network.architecture, []
    for site in transcoder_sites(a):
        down, dictionary = network.blocks[site.layer].mlp.down, Dictionary(a.d_model, a.d_model, a.d_model).double()
        state = {
            "W_enc": down.weight.T,
            "b_enc": dictionary.b_enc,
            "W_dec": a.residual_scale * torch.eye(a.d_model, dtype=torch.float64),
            "b_dec": dictionary.b_dec if down.bias is None else down.bias * a.residual_scale,
            "threshold": torch.full((a.d_model,), -1e9, dtype=torch.float64),
        }
        dictionary.load_state_dict(state)
        saved.append(SavedDictionary(dictionary, site, {}))
    return saved


@settings(max_examples=30)
@given(any_architectures(), st.integers(0, 9), st.sampled_from([0.0, -1.0, 2.0]), st.data())
def test_with_everything_frozen_a_graph_predicts_what_is_measured(a, seed, factor, data):
    """Along single edges, on every architecture: gradients beside differences."""
    graph = graph_of(a, seed, max_logits=3)
    features = graph.find("feature")
    chosen = data.draw(st.lists(st.sampled_from(features), min_size=1, max_size=3))
    result = graph.intervene(chosen, factor, frozen="everything")
    size = float(graph.edges.abs().sum(1).max().clamp(min=1))
    assert (result.predicted - result.measured).abs().max() <= 1e-10 * size
    first = min(graph.nodes[n].layer for n in chosen)
    assert all(node.kind == "logit" or node.layer > first for node in result.targets)


@settings(max_examples=20)
@given(
    architectures({"mlp.n_hidden": 0, "mlp.form": "plain", "block": st.sampled_from(["pre", "post", "parallel"])}),
    st.sampled_from([0.0, -1.0, 2.0]),
    st.integers(0, 2),
)
def test_in_a_linear_model_a_graph_predicts_through_all_features(a, factor, pos):
    """MLPs are affine and live, patterns and scales frozen: along all paths, through every later feature."""
    network = make_network(a)
    graph = attribution_graph(of_ids(network), draw_tokens(a, 1, 4), exact_transcoders(network), max_logits=3)
    errors = [error.abs().max() for error in graph.replacement.errors]
    assert max(errors) <= 1e-10 * max(1, float(graph.edges.abs().max()))
    chosen = graph.find("feature", layer=0, pos=pos)[:2]
    result = graph.intervene(chosen, factor, frozen="attention and norms")
    size = max(1.0, float(result.measured.abs().max()), float(graph.edges.abs().sum(1).max()))
    assert (result.predicted - result.measured).abs().max() <= 1e-10 * size


def test_the_live_model_is_the_model_with_its_outputs_moved():
    """Beside an edit of mlp_out that adds what the factor says, with all else live."""
    graph = graph_of(A, max_logits=3)
    (chosen, *_) = graph.find("feature", layer=0)
    _, pos, index, activation = graph.nodes[chosen].of_feature
    added = torch.zeros(1, 4, 8, dtype=torch.float64)
    added[0, pos] = -2 * activation * graph.replacement.dictionaries[0].W_dec[index].detach()
    before = graph.replacement.recording
    changed = trace(before.model, before.ids, edits=[edits.add("blocks.0.mlp_out", added)])
    result = graph.intervene(chosen, -1.0)
    logits = changed.logits[0, -1] - before.logits[0, -1]
    for node, measured in zip(result.targets, result.measured.tolist(), strict=True):
        if node.kind == "logit":
            assert measured == pytest.approx(float(logits[node.index] - logits.mean()), abs=1e-10)
        else:
            W_enc = graph.replacement.dictionaries[node.layer].W_enc.detach()[:, node.index]
            read = transcoder_sites(A)[node.layer].reads
            expected = float((changed[read] - before[read])[0, node.pos] @ W_enc)
            assert measured == pytest.approx(expected, abs=1e-10)
    assert -1 <= result.correlation <= 1
    assert str(result).startswith(f"{graph.nodes[chosen]} at -1 x the activation, nothing frozen: correlation")
    assert [text for text, *_ in result.of_logits()] == [graph.nodes[n].text for n in graph.find("logit")]


def test_each_feature_by_itself():
    graph = graph_of(A, max_logits=2)
    validation = graph.validate(2.0, frozen="everything")
    features, logit = graph.find("feature"), graph.find("logit")[0]
    assert validation.nodes == [graph.nodes[n] for n in features]
    # twice the feature adds its edge once more
    assert difference(validation.predicted, graph.edges[logit, features]) <= 1e-12
    assert difference(validation.measured, graph.edges[logit, features]) <= 1e-10
    assert validation.correlation == pytest.approx(1)
    live, one = graph.validate(), graph.intervene(features[0], 0.0)
    assert (float(live.predicted[0]), float(live.measured[0])) == pytest.approx(one.of_logits()[0][1:])
    assert str(live).startswith(f"each of {len(features)} features at 0 x its activation, nothing frozen: correlation")


def test_a_feature_that_is_set_has_its_value_whatever_the_others_do():
    """Two features of different layers: the later one is set, not moved by the earlier one."""
    graph = graph_of(A, max_logits=1)
    early, late = graph.find("feature", layer=0)[0], graph.find("feature", layer=1)[0]
    both = graph.intervene([early, late], 1.0, frozen="attention and norms")
    assert both.predicted.abs().max() == 0
    assert both.measured.abs().max() <= 1e-12
    assert graph.nodes[late] not in both.targets


def test_what_cannot_be_set_is_refused_by_name():
    graph = graph_of(A)
    with pytest.raises(GraphError, match=r"error 0 at 0 '.*' is no feature with an activation"):
        graph.intervene(graph.find("error")[0], 0.0)
    with pytest.raises(GraphError, match="no node was given"):
        graph.intervene([], 0.0)
    with pytest.raises(GraphError, match="node 9999: there are"):
        graph.intervene(9999, 0.0)
    with pytest.raises(GraphError, match="frozen = 'norms': expected nothing, attention and norms, everything"):
        graph.intervene(0, 0.0, frozen="norms")
    back = AttributionGraph.from_dict(graph.to_dict())
    with pytest.raises(GraphError, match="this graph is from a file, without its model"):
        back.intervene(0, 0.0)
    with pytest.raises(GraphError, match="this graph is from a file, without its model"):
        back.validate()
