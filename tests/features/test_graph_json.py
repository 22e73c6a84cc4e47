"""Graphs as circuit-tracer's files: every field of its schema, both directions, and what the files cannot hold."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.features.test_graph import A, graph_of
from tests.running import with_encoder

from pellucid.features.graph_json import METADATA_FILE, GraphFile, cantor_pair, cantor_parts
from pellucid.features.graph_scores import GraphError

LEARNED = A.with_fields({"positions.kind": "learned"})


@pytest.fixture(scope="module")
def pruned():
    return graph_of(LEARNED).prune()


def graph_file(graph, slug="first"):
    feature, logit = graph.find("feature")[0], graph.find("logit")[0]
    return GraphFile(graph, slug, "./features", (logit, feature), {"a group": (feature, graph.find("token")[1])})


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_cantor_pairs_are_undone(layer, index):
    assert cantor_parts(cantor_pair(layer, index)) == (layer, index)
    assert [cantor_pair(*pair) for pair in ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))] == [0, 1, 2, 3, 4, 5]


def test_what_is_written_has_the_fields_of_schema_version_1(pruned):
    """Names and types as in circuit_tracer/frontend/graph_models.py of 0.5.0."""
    values = json.loads(json.dumps(graph_file(pruned).to_dict()))
    assert values.keys() == {"metadata", "qParams", "nodes", "links"}
    types = {"slug": str, "scan": str, "transcoder_list": list, "prompt_tokens": list, "prompt": str}
    types |= {"node_threshold": float, "schema_version": int}
    assert {name: type(x) for name, x in values["metadata"].items()} == types
    assert values["qParams"].keys() == {"pinnedIds", "supernodes", "linkType", "clickedId", "sg_pos"}
    assert values["qParams"]["linkType"] == "both"
    types = {"node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str, "token_prob": float}
    types |= {"is_target_logit": bool, "run_idx": int, "reverse_ctx_idx": int, "jsNodeId": str, "clerp": str}
    for node in values["nodes"]:
        assert node.keys() == types.keys() | {"influence", "activation"}
        assert {name: type(node[name]) for name in types} == types
    ids = [node["node_id"] for node in values["nodes"]]
    assert len(ids) == len(set(ids)) == len(pruned.nodes) - len(pruned.find("bias") + pruned.find("position"))
    assert all({link["source"], link["target"]} <= {*ids} for link in values["links"])
    assert {*values["qParams"]["pinnedIds"]} <= {*ids}
    by_type = {kind: [n for n in values["nodes"] if n["feature_type"] == kind] for kind in ("embedding", "logit")}
    assert [node["layer"] for node in by_type["embedding"]] == ["E"] * 4
    assert {node["layer"] for node in by_type["logit"]} == {"3"}
    assert all(re.fullmatch(r'Output ".*" \(p=\d\.\d{3}\)', node["clerp"]) for node in by_type["logit"])
    assert [node["is_target_logit"] for node in by_type["logit"]] == [True] + [False] * (len(by_type["logit"]) - 1)
    # cumulative influence, of the graph before it was pruned
    assert min(node["influence"] for node in values["nodes"] if node["influence"] is not None) < 0.5


def test_a_graph_comes_back_from_its_file(pruned, tmp_path):
    written = graph_file(pruned)
    path = written.write(tmp_path)
    back = GraphFile.read(path)
    numbers = [n for n, node in enumerate(pruned.nodes) if node.kind not in ("bias", "position")]
    for n, node in zip(numbers, back.graph.nodes, strict=True):
        expected = pruned.nodes[n]
        assert (node.kind, node.layer, node.pos, node.index) == (
            expected.kind,
            expected.layer,
            expected.pos,
            expected.index,
        )
        assert (node.text, node.probability) == (expected.text, expected.probability)
        assert node.value == (expected.value if node.kind == "feature" else None)
    assert (back.graph.edges == pruned.edges[numbers][:, numbers]).all()
    assert back.graph.scores == pytest.approx(pruned.scores)
    assert (back.slug, back.scan, back.node_threshold) == ("first", "./features", 0.8)
    assert [back.graph.nodes[n].kind for n in back.pinned] == ["logit", "feature"]
    assert back.supernodes.keys() == {"a group"}
    again = json.loads(GraphFile.read(back.write(tmp_path / "again")).write(tmp_path / "third").read_text())
    assert again == json.loads(path.read_text())


def test_a_folder_lists_its_graphs(pruned, tmp_path):
    for slug in ("first", "second", "first"):
        graph_file(pruned, slug).write(tmp_path)
    listed = json.loads((tmp_path / METADATA_FILE).read_text())["graphs"]
    assert [metadata["slug"] for metadata in listed] == ["second", "first"]


def test_an_error_with_the_id_of_a_feature(tmp_path):
    """circuit-tracer names the error of layer 1 at position 2 as it does feature 1 of layer 0 there."""
    written = graph_file(graph_of(LEARNED))
    values = written.to_dict()
    errors = [node for node in values["nodes"] if node["feature_type"] == "mlp reconstruction error"]
    theirs = {node["node_id"]: f"0_{node['layer']}_{node['ctx_idx']}" for node in errors}
    features = {node["node_id"] for node in values["nodes"]} - theirs.keys()
    text = json.dumps(values)
    for ours, their_id in theirs.items():
        text = text if their_id in features else text.replace(f'"{ours}"', f'"{their_id}"')
    path = tmp_path / "theirs.json"
    path.write_text(text)
    assert text != json.dumps(values)
    assert (GraphFile.read(path).graph.edges == GraphFile.read(written.write(tmp_path)).graph.edges).all()
    of_error = errors[0]
    feature = next(node for node in values["nodes"] if node["feature_type"] == "cross layer transcoder")
    text = json.dumps(values).replace(f'"{of_error["node_id"]}"', f'"{feature["node_id"]}"')
    path.write_text(text)
    with pytest.raises(GraphError, match=f"2 nodes have the id {feature['node_id']}"):
        GraphFile.read(path)


def test_what_a_file_cannot_hold_is_refused_by_name(pruned, tmp_path):
    crossed = graph_of(with_encoder(A))
    with pytest.raises(GraphError, match="no node for an encoder's output"):
        graph_file(crossed).to_dict()
    path = tmp_path / "graph.json"
    with pytest.raises(GraphError, match="holds no graph"):
        GraphFile.read(path)
    values = graph_file(pruned).to_dict()
    for wrong, reason in (
        ({}, "KeyError"),
        (values | {"metadata": values["metadata"] | {"schema_version": 2}}, "schema_version is 2: expected 1"),
        (values | {"nodes": [values["nodes"][0] | {"feature_type": "neuron"}]}, "'neuron', which this does not know"),
        (values | {"nodes": [values["nodes"][0] | {"layer": "7"}]}, "is of layer 7, and its number of layer 0"),
        (values | {"nodes": [], "links": []}, "it has no logit"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(GraphError, match=reason):
            GraphFile.read(path)
