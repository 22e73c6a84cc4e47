"""The attribution graph of a prediction: features, errors and tokens, and what each adds to the next.

An edge is the part of its source in what its target is the sum of: the source's activation x its decoder vector,
through frozen attention and norms, x the target's encoder vector (Ameisen et al. 2025, "Circuit Tracing", section 3.3).
The edges into a feature sum to its pre-activation, and those into a logit to the logit, exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, Unpack, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.features.dictionary import SavedDictionary
from pellucid.features.graph_intervention import (
    FrozenParts,
    GraphIntervention,
    GraphValidation,
    intervene_in,
    validate_in,
)
from pellucid.features.graph_nodes import CONSTANT_KINDS, EMBEDDED, INPUT_KINDS, GraphNode, NodeKind
from pellucid.features.graph_scores import (
    GraphError,
    GraphScores,
    cumulative_influence,
    graph_scores,
    node_influence,
    normalised_rows,
    pruned_parts,
)
from pellucid.features.replacement import ENCODED, ReplacementModel, slopes
from pellucid.lens.analysis.readout import about_the_readout
from pellucid.lens.core.inputs import InputOptions, Texts, read_inputs
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.text_model import Model

#: how much of the probability the logits of a graph have together, and how many there are at most
LOGIT_PROBABILITY, MOST_LOGITS = 0.95, 10
#: shares that pruning keeps, as circuit-tracer's
NODE_THRESHOLD, EDGE_THRESHOLD = 0.8, 0.98
#: targets of one backward pass
TARGETS_AT_ONCE = 128
#: nodes of a graph, whose edges are a matrix of as many rows and columns
MOST_NODES = 20_000


@dataclass(frozen=True, repr=False)
class AttributionGraph(PrintsAsTable):
    """The graph of one prediction: `edges` [target, source] between `nodes`.

    text         what was read, `tokens` its tokens
    n_layers     of the model
    edges        edges[t, s] is the part of node s in the value of node t, 0 where there is no edge
    note         which nonlinear functions of the readout were frozen, and a cap of logits
    ranks        of a pruned graph, what `cumulative` was before pruning
    replacement  the model that the graph is of, None for a graph from a file
    """

    text: str
    tokens: list[str]
    n_layers: int
    nodes: list[GraphNode]
    edges: Float[Tensor, "target source"]
    subtract_mean: bool = True
    note: str = ""
    ranks: Tensor | None = field(default=None, compare=False)
    replacement: ReplacementModel | None = field(default=None, compare=False)

    @property
    def is_pruned(self) -> bool:
        """Whether nodes and edges that matter little were left out."""
        return self.ranks is not None

    def of_kind(self, *kinds: NodeKind) -> Bool[Tensor, " node"]:
        """True for the nodes of these kinds."""
        return torch.tensor([node.kind in kinds for node in self.nodes], device=self.edges.device)

    @property
    def probabilities(self) -> Float[Tensor, " node"]:
        """Of the logits, 0 for other nodes."""
        return self.edges.new_tensor([node.probability or 0.0 for node in self.nodes])

    @property
    def _counted(self) -> Bool[Tensor, " node"]:
        return ~self.of_kind(*CONSTANT_KINDS)

    @property
    def influence(self) -> Float[Tensor, " node"]:
        """How much each node has to do with the logits along all paths (`pellucid.features.graph_scores`); 0 for
        positions and biases, which are the same for every text.
        """
        return node_influence(normalised_rows(self.edges * self._counted), self.probabilities)

    @property
    def scores(self) -> GraphScores:
        """How much of the prediction the features explain (`pellucid.features.graph_scores.GraphScores`)."""
        A = self.edges * self._counted
        return graph_scores(A, self.probabilities, self.of_kind(*INPUT_KINDS), self.of_kind("error"))

    @property
    def explained(self) -> str:
        """The scores in words."""
        scores = self.scores
        of_errors = f"{100 * scores.error_share:.0f} %"
        return (
            f"{100 * scores.replacement:.0f} % of the influence on the prediction goes through features and tokens, "
            f"the rest, {of_errors}, begins at errors and is not explained; completeness {scores.completeness:.2f}"
        )

    def sums(self) -> Float[Tensor, " node"]:
        """What the edges into each node sum to: a feature's activation, or a logit, unless the graph is pruned."""
        return self.edges.sum(1)

    def find(
        self, kind: NodeKind, layer: int | None = None, index: int | None = None, pos: int | None = None
    ) -> list[int]:
        """The numbers of the nodes with these properties; None is any."""
        wanted = {name: x for name, x in (("layer", layer), ("index", index), ("pos", pos)) if x is not None}
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.kind == kind and all(getattr(node, name) == x for name, x in wanted.items())
        ]

    def inputs_of(self, node: int, k: int = 10) -> list[tuple[GraphNode, float]]:
        """The k largest edges into a node, by magnitude: where its value comes from."""
        return self._largest(self.edges[node], k)

    def outputs_of(self, node: int, k: int = 10) -> list[tuple[GraphNode, float]]:
        """The k largest edges out of a node, by magnitude: what it adds to."""
        return self._largest(self.edges[:, node], k)

    def _largest(self, weights: Tensor, k: int) -> list[tuple[GraphNode, float]]:
        order = weights.abs().topk(min(k, len(self.nodes))).indices.tolist()
        return [(self.nodes[n], float(weights[n])) for n in order if weights[n]]

    def prune(self, node_threshold: float = NODE_THRESHOLD, edge_threshold: float = EDGE_THRESHOLD) -> Self:
        """The graph without what matters little: the nodes that have this share of the influence together, and of
        their edges those that have this share of the edges' scores (`pellucid.features.graph_scores.pruned_parts`).

        Tokens and logits remain, and positions and biases with their edges to what remains.
        """
        ends = self.of_kind("logit", *INPUT_KINDS)
        constants = ~self._counted
        nodes, edges = pruned_parts(
            self.edges * self._counted,
            self.probabilities,
            self.of_kind("feature"),
            ends | constants,
            node_threshold,
            edge_threshold,
        )
        chosen = nodes.nonzero().flatten()
        A = torch.where(edges | constants, self.edges, 0)[chosen][:, chosen]
        nodes_left = [self.nodes[n] for n in chosen.tolist()]
        return replace(self, nodes=nodes_left, edges=A, ranks=self.cumulative[chosen])

    def intervene(
        self, nodes: int | Sequence[int], factor: float, *, frozen: FrozenParts = "nothing"
    ) -> GraphIntervention:
        """Set features to factor x their activations in the model, and compare what changes with what the graph says.

        nodes   the numbers of features (`find`), one or a group: 0 as factor takes them away, -1 turns them round
        frozen  nothing: the model as it is; attention and norms: patterns and scales have the values of the graph's
                pass; everything: MLPs' outputs too, so that each edge is measured by itself

        Predicted changes are along all paths through the features that the graph has, or along single edges where
        everything is frozen. They are exact as long as the model is linear between both values. Raises GraphError for
        nodes that are no features, and for a graph from a file, which has no model.
        """
        numbers = [nodes] if isinstance(nodes, int) else list(nodes)
        linear = self._replacement_for(frozen)
        if not numbers:
            raise GraphError("no node was given: expected the numbers of features, such as those that find gives")
        if outside := [n for n in numbers if not 0 <= n < len(self.nodes)]:
            raise GraphError(f"node {outside[0]}: there are {len(self.nodes)}, numbered from 0")
        for n in numbers:
            self.nodes[n].of_feature  # noqa: B018
        return intervene_in(linear, self.nodes, self.edges, numbers, factor, frozen, self.subtract_mean)

    def validate(self, factor: float = 0.0, *, frozen: FrozenParts = "nothing") -> GraphValidation:
        """Set each feature of the graph by itself, as `intervene` does, and compare the change of the likeliest logit.

        One forward pass a feature: prune a large graph first. Raises GraphError for a graph from a file.
        """
        linear = self._replacement_for(frozen)
        return validate_in(linear, self.nodes, self.edges, factor, frozen, self.subtract_mean)

    def _replacement_for(self, frozen: FrozenParts) -> ReplacementModel:
        """The model that features are set in."""
        if self.replacement is None:
            raise GraphError("this graph is from a file, without its model: make it again with attribution_graph")
        if frozen not in get_args(FrozenParts):
            raise GraphError(f"frozen = {frozen!r}: expected {', '.join(get_args(FrozenParts))}")
        return self.replacement

    def printed(self) -> PrintedTable:
        """The features, errors and tokens, those that matter most first."""
        influence, order = self.influence, self.influence.argsort(descending=True).tolist()
        logits = self.find("logit")
        first = max(logits, key=lambda n: self.nodes[n].probability or 0)
        likeliest = self.nodes[first]
        rows = [
            (str(self.nodes[n]), self.nodes[n].value, float(influence[n]), float(self.edges[first, n]))
            for n in order
            if influence[n] > 0
        ]
        n_edges = int((self.edges != 0).sum())
        heading = (
            f"graph of {likeliest.text!r} (probability {likeliest.probability:.3f}) and {len(logits) - 1} others: "
            f"{len(self.nodes):,} nodes, {n_edges:,} edges{', pruned' * self.is_pruned}\n{self.explained}"
        )
        columns = ("node", "activation", "influence", "on the logit")
        return PrintedTable(heading, columns, rows, ".inputs_of(node) follows one back, .prune() leaves out most")

    @property
    def cumulative(self) -> Float[Tensor, " node"]:
        """The share of all influence that a node and those of more influence have together, before pruning."""
        return cumulative_influence(self.influence) if self.ranks is None else self.ranks

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: nodes, and edges as [target, source, weight]."""
        targets, sources = self.edges.nonzero(as_tuple=True)
        weights = self.edges[targets, sources].tolist()
        return {
            "text": self.text,
            "tokens": self.tokens,
            "n_layers": self.n_layers,
            "nodes": [{name: x for name, x in asdict(node).items() if x not in (None, "")} for node in self.nodes],
            "edges": [list(edge) for edge in zip(targets.tolist(), sources.tolist(), weights, strict=True)],
            "dtype": str(self.edges.dtype).removeprefix("torch."),
            "subtract_mean": self.subtract_mean,
            "note": self.note,
            "ranks": None if self.ranks is None else self.ranks.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The graph that `to_dict` wrote, without its model. Raises GraphError for other values."""
        try:
            nodes = [GraphNode(**node) for node in values["nodes"]]
            dtype = getattr(torch, values["dtype"])
            A = torch.zeros(len(nodes), len(nodes), dtype=dtype)
            for target, source, weight in values["edges"]:
                A[target, source] = weight
            ranks = None if values["ranks"] is None else torch.tensor(values["ranks"], dtype=dtype)
            about = values["subtract_mean"], values["note"]
            graph = cls(values["text"], list(values["tokens"]), values["n_layers"], nodes, A, *about, ranks)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise GraphError(f"this is no graph that to_dict wrote: {type(error).__name__}: {error}") from None
        if strange := {node.kind for node in nodes} - {*get_args(NodeKind)}:
            raise GraphError(f"a node is of the kind {sorted(strange)[0]!r}: expected {', '.join(get_args(NodeKind))}")
        return graph


def attribution_graph(
    model: Model,
    text: Texts,
    dictionaries: Iterable[SavedDictionary],
    *,
    pos: int = -1,
    logit_probability: float = LOGIT_PROBABILITY,
    max_logits: int = MOST_LOGITS,
    subtract_mean: bool = True,
    **options: Unpack[InputOptions],
) -> AttributionGraph:
    """The attribution graph of what the model predicts at a position of one text.

    dictionaries       transcoders of the model's MLPs, such as those of `pellucid.load_features`; a layer without one
                       is errors alone
    logit_probability, max_logits   the likeliest tokens that have this probability together, and at most so many
    subtract_mean      whether a logit is its difference to the mean of all logits, as in circuit-tracer
    bos, source, segments, prefix   see `pellucid.lens.core.inputs.read_inputs`

    The graph is not pruned; `.prune()` is. With logit_cap the logits are those before the cap. Raises InputError for
    texts that the model cannot read, DictionaryError for dictionaries that do not fit, and GraphError.
    """
    if not 0 < logit_probability <= 1 or max_logits < 1:
        raise GraphError(
            f"logit_probability = {logit_probability}, max_logits = {max_logits}: expected a share up to 1, and a "
            "number from 1"
        )
    linear = ReplacementModel.of_text(model, read_inputs(model, text, **options), list(dictionaries))
    t = linear.recording
    position = t.position(pos)
    likeliest = t.probs[0, position].topk(min(max_logits, t.architecture.n_vocab))
    n_logits = min(int((likeliest.values.cumsum(0) < logit_probability).sum()) + 1, len(likeliest.values))
    logits, probabilities = likeliest.indices[:n_logits].tolist(), likeliest.values[:n_logits].tolist()
    nodes = _source_nodes(linear)
    n_all = len(nodes) + n_logits
    if n_all > MOST_NODES:
        raise GraphError(f"{n_all:,} nodes, most of them active features: a graph has at most {MOST_NODES:,}")
    values = linear.logits(t.read_out, logits, position, subtract_mean).tolist()
    for token, value, p in zip(logits, values, probabilities, strict=True):
        nodes.append(GraphNode("logit", None, position, token, value, t.spell(token), p))
    edges = _edges(linear, n_all, logits, position, subtract_mean)
    prompt = t.tokenizer.decode(t.ids[0].tolist()) if not isinstance(text, str) else text
    about = subtract_mean, about_the_readout(t)
    return AttributionGraph(prompt, t.spelled(), len(linear.sites), nodes, edges, *about, None, linear)


def _source_nodes(linear: ReplacementModel) -> list[GraphNode]:
    """All nodes but the logits, in the order of the columns: features, errors, embeddings, the bias."""
    t = linear.recording
    tokens, ids = t.spelled(), t.ids[0].tolist()
    nodes: list[GraphNode] = []
    for layer, active in linear.active.items():
        at, numbers = active.nonzero(as_tuple=True)
        values = linear.features[layer][at, numbers].tolist()
        for pos, index, value in zip(at.tolist(), numbers.tolist(), values, strict=True):
            nodes.append(GraphNode("feature", layer, pos, index, value, tokens[pos]))
    nodes += [
        GraphNode("error", layer, i, text=text) for layer in range(len(linear.sites)) for i, text in enumerate(tokens)
    ]
    for name, kind in EMBEDDED.items():
        if name == ENCODED and t.inputs.source is not None:
            of_source = zip(t.inputs.source.tokens[0].tolist(), t.source_tokens[0], strict=True)
            nodes += [GraphNode(kind, pos=i, index=token, text=spelled) for i, (token, spelled) in enumerate(of_source)]
        elif name in linear.sources:
            numbered = kind == "token"
            nodes += [
                GraphNode(kind, pos=i, index=ids[i] if numbered else None, text=text) for i, text in enumerate(tokens)
            ]
    return [*nodes, GraphNode("bias")]


def _edges(
    linear: ReplacementModel, n_nodes: int, logits: Sequence[int], position: int, subtract_mean: bool
) -> Float[Tensor, "target source"]:
    """The matrix of all edges: for every target the gradient at each source, times the source."""
    reads, read_out, leaves = linear.with_gradients()
    reads_of_biases, read_out_of_biases = linear.at_zero()
    A = read_out.new_zeros(n_nodes, n_nodes)
    row = 0
    for layer, active in linear.active.items():
        dictionary = linear.dictionaries[layer]
        at, numbers = active.nonzero(as_tuple=True)
        directions = dictionary.W_enc.detach().T[numbers]
        biases = (reads_of_biases[layer][0][at] * directions).sum(1) + dictionary.b_enc.detach()[numbers]
        _fill_rows(linear, A[row : row + len(at)], reads[layer], leaves, at, directions, biases)
        row += len(at)
    directions, biases = linear.logit_directions(logits, position, subtract_mean)
    biases = biases + directions @ read_out_of_biases[0, position]
    at = torch.full((len(logits),), position, device=A.device)
    _fill_rows(linear, A[n_nodes - len(logits) :], read_out, leaves, at, directions, biases)
    return A


def _fill_rows(
    linear: ReplacementModel,
    rows: Tensor,
    output: Tensor,
    leaves: Mapping[str, Tensor],
    at: Tensor,
    directions: Tensor,
    biases: Tensor,
) -> None:
    """The edges into some targets, which read `output` at the positions `at` along directions, into rows of the matrix.

    rows    [target, source], filled in place, in the order of `_source_nodes`
    biases  the edge from the bias into each target
    """
    for first in range(0, len(at), TARGETS_AT_ONCE):
        some = slice(first, first + TARGETS_AT_ONCE)
        gradients = slopes(output, leaves, at[some], directions[some])
        columns: list[Tensor] = []
        for layer, active in linear.active.items():
            along, features = gradients[linear.sites[layer].writes], linear.features[layer]
            W_dec = linear.dictionaries[layer].W_dec.detach()
            for pos, is_active in enumerate(active):
                vectors = features[pos, is_active, None] * W_dec[is_active]
                columns.append(along[:, pos] @ vectors.T)
        for site, error in zip(linear.sites, linear.errors, strict=True):
            columns.append((gradients[site.writes] * error).sum(-1))
        columns += [(gradients[name] * linear.sources[name][0]).sum(-1) for name in EMBEDDED if name in linear.sources]
        columns.append(biases[some, None])
        filled = torch.cat(columns, 1)
        rows[some, : filled.size(1)] = filled
