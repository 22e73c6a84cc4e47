"""Graphs as circuit-tracer's files, schema_version 1: what its Python side writes and validates, read and written.

Biases and positions have no node there, so they are left out. Its ids of errors, `0_layer_pos`, are also those of
features of layer 0; ours are `error_layer_pos`, which its classes accept. What stands for a feature is the Cantor pair
of its layer and number, (l + f)(l + f + 1) / 2 + f, and `influence` is cumulative: the smaller, the more it matters.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from pellucid.features.attribution_graph import NODE_THRESHOLD, AttributionGraph
from pellucid.features.graph_nodes import GraphNode, NodeKind
from pellucid.features.graph_scores import GraphError
from pellucid.json_files import MOST_BYTES_OF_LIST, JSONFileError, read_json_file

SCHEMA_VERSION = 1
#: the list of the graphs that lie in a folder
METADATA_FILE = "graph-metadata.json"
FEATURE_TYPES: dict[NodeKind, str] = {
    "feature": "cross layer transcoder",
    "error": "mlp reconstruction error",
    "token": "embedding",
    "logit": "logit",
}
CLERP = re.compile(r'^Output "(.*)" \(p=[0-9.]+\)$', re.DOTALL)


def cantor_pair(layer: int, index: int) -> int:
    """The number of a pair of numbers from 0."""
    return (layer + index) * (layer + index + 1) // 2 + index


def cantor_parts(pair: int) -> tuple[int, int]:
    """The layer and index that a Cantor pair stands for."""
    diagonal = (math.isqrt(8 * pair + 1) - 1) // 2
    index = pair - diagonal * (diagonal + 1) // 2
    return diagonal - index, index


@dataclass(frozen=True)
class GraphFile:
    """A graph and what its file says beside it.

    slug        its name, and that of its file
    scan        which dictionaries the features are of; "./" and a folder for those beside the page
    pinned      the numbers of the nodes that are shown
    supernodes  names of groups of nodes, and the nodes' numbers
    node_threshold   the share of the influence that pruning kept, None where nothing was pruned
    """

    graph: AttributionGraph
    slug: str
    scan: str
    pinned: tuple[int, ...] = ()
    supernodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    node_threshold: float | None = NODE_THRESHOLD

    def to_dict(self) -> dict[str, Any]:
        """The content of the file. Raises GraphError for the graph of an encoder-decoder."""
        graph = self.graph
        if graph.of_kind("source").any():
            raise GraphError(
                "circuit-tracer's files have no node for an encoder's output: write to_dict() of the graph"
            )
        cumulative, ids = graph.cumulative.tolist(), {}
        nodes: list[dict[str, Any]] = []
        likeliest = max((node.probability or 0 for node in graph.nodes if node.kind == "logit"), default=0)
        for n, node in enumerate(graph.nodes):
            if node.kind in FEATURE_TYPES:
                nodes.append(_node_values(node, graph.n_layers, cumulative[n], node.probability == likeliest))
                ids[n] = nodes[-1]["node_id"]
        targets, sources = graph.edges.nonzero(as_tuple=True)
        edges = zip(targets.tolist(), sources.tolist(), graph.edges[targets, sources].tolist(), strict=True)
        return {
            "metadata": self._metadata(),
            "qParams": {
                "pinnedIds": [ids[n] for n in self.pinned],
                "supernodes": [[name, *(ids[n] for n in numbers)] for name, numbers in self.supernodes.items()],
                "linkType": "both",
                "clickedId": "",
                "sg_pos": "",
            },
            "nodes": nodes,
            "links": [
                {"source": ids[source], "target": ids[target], "weight": weight}
                for target, source, weight in edges
                if source in ids and target in ids
            ],
        }

    def _metadata(self) -> dict[str, Any]:
        return {
            "slug": self.slug,
            "scan": self.scan,
            "transcoder_list": [],
            "prompt_tokens": self.graph.tokens,
            "prompt": self.graph.text,
            "node_threshold": self.node_threshold,
            "schema_version": SCHEMA_VERSION,
        }

    def write(self, folder: str | Path) -> Path:
        """Write the graph into a folder, and its name into the folder's list of graphs; returns the graph's file."""
        folder = Path(folder)
        content = self.to_dict()
        folder.mkdir(parents=True, exist_ok=True)
        listed: list[Any] = []
        if (path := folder / METADATA_FILE).exists():
            listed = read_json_file(path).get("graphs", [])
        listed = [metadata for metadata in listed if metadata.get("slug") != self.slug]
        path.write_text(
            json.dumps({"graphs": [*listed, content["metadata"]]}, indent=2) + "\n", encoding="utf-8", newline="\n"
        )
        (file := folder / f"{self.slug}.json").write_text(
            json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n"
        )
        return file

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a graph that circuit-tracer or `write` wrote. Raises GraphError for other files, and where an error and
        a feature have one id, so that it is not known which of them an edge is from.
        """
        path = Path(path)
        try:
            return cls._from_values(read_json_file(path, MOST_BYTES_OF_LIST))
        except (OSError, JSONFileError) as error:
            raise GraphError(f"{path} holds no graph: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, GraphError):
                raise GraphError(f"{path}: {error}") from None
            raise GraphError(f"{path} holds no graph of circuit-tracer: {type(error).__name__}: {error}") from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Self:
        metadata, q = values["metadata"], values["qParams"]
        if (version := metadata.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
            raise GraphError(f"schema_version is {version}: expected {SCHEMA_VERSION}")
        tokens = metadata["prompt_tokens"]
        nodes = [_read_node(node, tokens) for node in values["nodes"]]
        numbers: dict[str, list[int]] = {}
        for n, node in enumerate(values["nodes"]):
            numbers.setdefault(node["node_id"], []).append(n)

        def number(node_id: str, is_target: bool = False) -> int:
            several = numbers[node_id]
            if is_target:  # nothing leads to an error
                several = [n for n in several if nodes[n].kind != "error"]
            if len(several) != 1:
                raise GraphError(f"{len(several)} nodes have the id {node_id}: one of them is an error of another name")
            return several[0]

        edges = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
        for link in values["links"]:
            edges[number(link["target"], is_target=True), number(link["source"])] = link["weight"]
        logit_layers = [int(node["layer"]) for node in values["nodes"] if node["feature_type"] == "logit"]
        if not logit_layers:
            raise GraphError("it has no logit")
        ranks = edges.new_tensor([1.0 if (x := node.get("influence")) is None else x for node in values["nodes"]])
        return cls(
            AttributionGraph(metadata["prompt"], list(tokens), logit_layers[0] - 1, nodes, edges, ranks=ranks),
            metadata["slug"],
            metadata["scan"],
            tuple(number(node_id) for node_id in q["pinnedIds"]),
            {name: tuple(number(node_id) for node_id in ids) for name, *ids in q["supernodes"]},
            metadata.get("node_threshold"),
        )


def _node_values(node: GraphNode, n_layers: int, influence: float, is_likeliest: bool) -> dict[str, Any]:
    """A node as circuit-tracer's `Node`."""
    values: dict[str, Any] = {
        "ctx_idx": node.pos,
        "feature_type": FEATURE_TYPES[node.kind],
        "token_prob": node.probability or 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "clerp": "",
        "influence": influence,
        "activation": None,
    }
    if node.kind == "feature":
        layer, pos, index, activation = node.of_feature
        values |= {"node_id": f"{layer}_{index}_{pos}", "feature": cantor_pair(layer, index), "layer": str(layer)}
        values |= {"jsNodeId": f"{layer}_{index}-0", "activation": activation}
    elif node.kind == "error":
        values |= {"node_id": f"error_{node.layer}_{node.pos}", "feature": -1, "layer": str(node.layer)}
        values |= {"jsNodeId": f"error_{node.layer}_{node.pos}-0"}
    elif node.kind == "token":
        values |= {"node_id": f"E_{node.index}_{node.pos}", "feature": node.pos, "layer": "E"}
        values |= {"jsNodeId": f"E_{node.index}-{node.pos}"}
    else:
        layer = n_layers + 1
        values |= {"node_id": f"{layer}_{node.index}_{node.pos}", "feature": node.index, "layer": str(layer)}
        values |= {"jsNodeId": f"L_{node.index}-{node.pos}", "is_target_logit": is_likeliest, "influence": None}
        # the page of circuit-tracer stops where a logit's label lacks its probability
        values |= {"clerp": f'Output "{node.text}" (p={node.probability:.3f})'}
    return values


def _read_node(values: Mapping[str, Any], tokens: list[str]) -> GraphNode:
    """A node of circuit-tracer's. Raises GraphError for other kinds."""
    kinds: dict[str, NodeKind] = {name: kind for kind, name in FEATURE_TYPES.items()}
    kind, pos, feature = kinds.get(values["feature_type"]), values["ctx_idx"], values["feature"]
    if kind == "feature":
        layer, index = cantor_parts(feature)
        if str(layer) != values["layer"]:
            raise GraphError(f"node {values['node_id']} is of layer {values['layer']}, and its number of layer {layer}")
        return GraphNode(kind, layer, pos, index, values["activation"], tokens[pos])
    if kind == "error":
        return GraphNode(kind, int(values["layer"]), pos, text=tokens[pos])
    if kind == "token":
        return GraphNode(kind, pos=pos, index=int(values["node_id"].split("_")[1]), text=tokens[pos])
    if kind == "logit":
        label = CLERP.match(values["clerp"])
        text = label[1] if label else values["clerp"]
        return GraphNode(kind, None, pos, feature, None, text, values["token_prob"])
    raise GraphError(f"node {values['node_id']} is of the type {values['feature_type']!r}, which this does not know")
