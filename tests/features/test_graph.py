"""Graphs of attribution: sums that are exact on every architecture, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import difference, make_network
from tests.running import any_architectures, draw_tokens, source_tokens

from pellucid.architecture import Architecture
from pellucid.features.attribution_graph import AttributionGraph, attribution_graph
from pellucid.features.dictionary import Dictionary, DictionaryError, SavedDictionary, transcoder_sites
from pellucid.features.graph_scores import GraphError
from pellucid.lens.core.inputs import InputError
from pellucid.text_model import of_ids


def drawn_transcoders(a, seed=0, n_features=9, layers=None):
    """Transcoders of all layers, or of some, whose every number is drawn, thresholds of both signs too."""
    generator = torch.Generator().manual_seed(seed)
    saved = []
    for site in transcoder_sites(a):
        dictionary = Dictionary(a.d_model, a.d_model, n_features, has_skip=bool(seed % 2)).double()
        for value in dictionary.state_dict().values():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64))
        if layers is None or site.layer in layers:
            saved.append(SavedDictionary(dictionary, site, {}))
    return saved


def graph_of(a, seed=0, **options):
    source = {} if a.encoder is None else {"source": source_tokens(a, 1)}
    model = of_ids(make_network(a))
    return attribution_graph(model, draw_tokens(a, 1, 4, seed), drawn_transcoders(a, seed), **source, **options)


@settings(max_examples=60)
@given(any_architectures(), st.integers(0, 9), st.integers(0, 3), st.booleans())
def test_edges_sum_to_pre_activations_and_logits(a, seed, pos, subtract_mean):
    """On every architecture, with every block, norm, mask, readout and encoder; against the model's own pass."""
    graph = graph_of(a, seed, pos=pos, subtract_mean=subtract_mean, max_logits=3)
    t = graph.replacement.recording
    size = graph.edges.abs().sum(1).clamp(min=1)
    expected = torch.zeros(len(graph.nodes), dtype=torch.float64)
    logits = t.logits_before_cap()[0, pos]
    for n, node in enumerate(graph.nodes):
        if node.kind == "feature":
            dictionary = graph.replacement.dictionaries[node.layer]
            read = t[transcoder_sites(a)[node.layer].reads][0, node.pos]
            expected[n] = (read @ dictionary.W_enc[:, node.index] + dictionary.b_enc[node.index]).detach()
            assert node.value == pytest.approx(float(expected[n]), rel=1e-12)
            assert node.value > dictionary.threshold[node.index]
        elif node.kind == "logit":
            expected[n] = logits[node.index] - (logits.mean() if subtract_mean else 0)
            assert node.value == pytest.approx(float(expected[n]), rel=1e-9, abs=1e-9)
    assert ((graph.sums() - expected).abs() / size).max() <= 1e-10
    assert graph.of_kind("feature").any()


A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)


def test_a_graph_comes_back_from_plain_values():
    graph = graph_of(A, subtract_mean=False)
    back = AttributionGraph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert (back.nodes, back.tokens, back.text) == (graph.nodes, graph.tokens, graph.text)
    assert torch.equal(back.edges, graph.edges)
    assert (back.subtract_mean, back.is_pruned, back.scores) == (False, False, graph.scores)
    pruned = AttributionGraph.from_dict(json.loads(json.dumps(graph.prune().to_dict())))
    assert pruned.is_pruned
    assert torch.equal(pruned.cumulative, graph.prune().cumulative)
    with pytest.raises(GraphError, match="no graph that to_dict wrote: KeyError"):
        AttributionGraph.from_dict({"nodes": []})
    strange = graph.to_dict()
    strange["nodes"][0]["kind"] = "neuron"
    with pytest.raises(GraphError, match="'neuron': expected feature"):
        AttributionGraph.from_dict(strange)


def test_a_layer_without_a_transcoder_is_errors_alone():
    model, tokens = of_ids(make_network(A)), draw_tokens(A, 1, 4)
    graph = attribution_graph(model, tokens, drawn_transcoders(A, layers=[1]))
    t = graph.replacement.recording
    assert {node.layer for node in graph.nodes if node.kind == "feature"} == {1}
    assert torch.equal(graph.replacement.errors[0], t["blocks.0.mlp_out"][0])
    features = graph.of_kind("feature")
    expected = torch.tensor([node.value for node in graph.nodes if node.kind == "feature"], dtype=torch.float64)
    assert difference(graph.sums()[features], expected) <= 1e-12


def test_logits_reach_the_probability_or_the_number_that_is_asked_for():
    graph = graph_of(A, logit_probability=0.5)
    p = [node.probability for node in graph.nodes if node.kind == "logit"]
    assert sum(p) >= 0.5 > sum(p[:-1])
    assert p == sorted(p, reverse=True)
    assert len(graph_of(A, max_logits=2, logit_probability=1.0).find("logit")) == 2
    for wrong in ({"logit_probability": 0.0}, {"logit_probability": 1.5}, {"max_logits": 0}):
        with pytest.raises(GraphError, match="expected a share up to 1"):
            graph_of(A, **wrong)


def test_a_graph_prints_what_matters_most_first():
    graph = graph_of(A)
    heading, columns, *rows = str(graph).splitlines()[:1] + str(graph).splitlines()[2:]
    assert f"{len(graph.nodes)} nodes" in heading
    assert columns.split() == ["node", "activation", "influence", "on", "the", "logit"]
    best = int(graph.influence.argmax())
    assert rows[0].startswith(str(graph.nodes[best]))
    assert f"{100 * graph.scores.replacement:.0f} % of the influence" in graph.explained
    # followed back: the largest edges into a node are what it is mostly the sum of
    logit = graph.find("logit")[0]
    node, weight = graph.inputs_of(logit, 1)[0]
    assert abs(weight) == float(graph.edges[logit].abs().max())
    assert (graph.nodes[logit], weight) in graph.outputs_of(graph.nodes.index(node), len(graph.nodes))


@settings(max_examples=10)
@given(any_architectures({"d_embed": 0}), st.integers(0, 9))
def test_a_pruned_graph_is_a_part_of_the_graph(a, seed):
    graph = graph_of(a, seed)
    pruned = graph.prune()
    numbers = [graph.nodes.index(node) for node in pruned.nodes]
    remains = pruned.edges != 0
    assert torch.equal(pruned.edges[remains], graph.edges[numbers][:, numbers][remains])
    features = pruned.of_kind("feature")
    counted = remains & ~pruned.of_kind("position", "bias")
    assert counted[features].any(1).all()
    assert counted[:, features | pruned.of_kind("error")].any(0).all()
    for kind in ("token", "position", "source", "bias", "logit"):
        assert [graph.nodes[n] for n in graph.find(kind)] == [pruned.nodes[n] for n in pruned.find(kind)]
    # where nothing is left out, nothing changes but nodes without influence
    everything = graph.prune(1.0, 1.0)
    assert everything.scores.replacement == pytest.approx(graph.scores.replacement, abs=1e-9)


def test_dictionaries_that_do_not_fit_are_refused_by_name():
    model, tokens, good = of_ids(make_network(A)), draw_tokens(A, 1, 4), drawn_transcoders(A)
    first, site = good[0].dictionary, good[0].site
    for wrong, reason in (
        ([], "no dictionary was given"),
        ([SavedDictionary(first, replace(site, reads=site.writes), {})], "is an autoencoder"),
        ([SavedDictionary(first, replace(site, layer=2), {})], "of layer 2: this model has 2"),
        ([SavedDictionary(first, replace(site, reads="blocks.0.resid_pre"), {})], "this model's MLP reads"),
        ([SavedDictionary(Dictionary(4, 8, 3), site, {})], r"widths \(4, 8\): expected 8"),
        ([good[0], good[0]], "two dictionaries are of layer 0"),
    ):
        with pytest.raises(DictionaryError, match=reason):
            attribution_graph(model, tokens, wrong)
    with pytest.raises(InputError, match="a graph is of one text, and 2 were given"):
        attribution_graph(model, draw_tokens(A, 2, 4), good)


def test_a_dictionary_of_another_precision_is_used_in_that_of_the_model():
    model, tokens = of_ids(make_network(A)), draw_tokens(A, 1, 4)
    single = [SavedDictionary(saved.dictionary.float(), saved.site, {}) for saved in drawn_transcoders(A)]
    graph = attribution_graph(model, tokens, single)
    assert graph.edges.dtype == torch.float64
    assert single[0].dictionary.W_enc.dtype == torch.float32
    values = torch.tensor([node.value or 0.0 for node in graph.nodes], dtype=torch.float64)
    features = graph.of_kind("feature")
    assert difference(graph.sums()[features], values[features]) <= 1e-12
