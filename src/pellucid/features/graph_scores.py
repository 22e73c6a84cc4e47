"""What of a graph matters: influence on the logits, scores of the whole graph, and pruning.

By the definitions of circuit-tracer (Hanna et al. 2025, `graph.py`), so that numbers can be compared with its own:
each row of |A| is divided by its sum, and influence is the sum of the powers of that matrix, applied to the logits'
probabilities p:

    Â_ts = |A_ts| / max(sum_s' |A_ts'|, 1e-10),   influence = sum_k p Â^k
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: the least sum that a row is divided by
FLOOR = 1e-10


class GraphError(ValueError):
    """A graph, or a part of one, that does not exist or does not fit; or a file that holds none."""


def normalised_rows(A: Float[Tensor, "target source"]) -> Float[Tensor, "target source"]:
    """Â: the share of each source in what a target is the sum of, by magnitude."""
    magnitudes = A.abs()
    return magnitudes / magnitudes.sum(1, keepdim=True).clamp(min=FLOOR)


def node_influence(shares: Float[Tensor, "target source"], p: Float[Tensor, " node"]) -> Float[Tensor, " node"]:
    """sum over k >= 1 of p Â^k: how much of the logits each node has to do with, along all paths.

    Raises GraphError where the edges of a graph form a circle.
    """
    total, along_paths = torch.zeros_like(p), p @ shares
    for _ in range(len(p)):
        if not along_paths.any():
            return total
        total = total + along_paths
        along_paths = along_paths @ shares
    raise GraphError("the edges of this graph form a circle: no node can influence itself")


class GraphScores(NamedTuple):
    """The two scores of a graph.

    replacement   tokens' influence / (tokens' + errors'): the share of what leads to the logits that can be followed
                  through features back to the text
    completeness  sum of (1 - errors' share of a node's inputs) (influence + p) / sum of (influence + p): how much of
                  the inputs of nodes that matter is no error
    """

    replacement: float
    completeness: float

    @property
    def error_share(self) -> float:
        """The share of what leads to the logits that begins at errors, which no feature explains."""
        return 1 - self.replacement


def graph_scores(
    A: Float[Tensor, "target source"], p: Float[Tensor, " node"], tokens: Bool[Tensor, " node"], errors: Tensor
) -> GraphScores:
    """The scores of a graph whose `tokens` and `errors` are True where a node is one [node]."""
    shares = normalised_rows(A)
    influence = node_influence(shares, p)
    of_tokens, of_errors = influence[tokens].sum(), influence[errors].sum()
    matters = influence + p
    without_errors = 1 - shares[:, errors].sum(1)
    replacement = of_tokens / (of_tokens + of_errors).clamp(min=FLOOR)
    completeness = (without_errors * matters).sum() / matters.sum().clamp(min=FLOOR)
    return GraphScores(float(replacement), float(completeness))


def cumulative_influence(influence: Float[Tensor, " node"]) -> Float[Tensor, " node"]:
    """The share of all influence that a node and those before it have together: the smaller, the more it matters."""
    order = influence.sort(descending=True)
    shares = torch.zeros_like(influence)
    shares[order.indices] = order.values.cumsum(0) / order.values.sum().clamp(min=FLOOR)
    return shares


def _reaching(scores: Tensor, threshold: float) -> Tensor:
    """True for the largest scores that make up this share of their sum, and for those that equal the last of them."""
    ordered = scores[scores > 0].sort(descending=True).values
    if not len(ordered):
        return scores > 0
    shares = ordered.cumsum(0) / ordered.sum()
    last = min(int(torch.searchsorted(shares, threshold)), len(ordered) - 1)
    return scores >= ordered[last]


def pruned_parts(
    A: Float[Tensor, "target source"],
    p: Float[Tensor, " node"],
    features: Bool[Tensor, " node"],
    ends: Bool[Tensor, " node"],
    node_threshold: float,
    edge_threshold: float,
) -> tuple[Bool[Tensor, " node"], Bool[Tensor, "target source"]]:
    """Which nodes and edges remain.

    features   need an edge in and one out; errors, which are neither features nor ends, need one out
    ends       tokens and logits, which always remain
    node_threshold, edge_threshold   the shares of the nodes' influence, and of the edges' scores
                                     Â (influence + p), that remain
    """
    for name, threshold in (("node_threshold", node_threshold), ("edge_threshold", edge_threshold)):
        if not 0 <= threshold <= 1:
            raise GraphError(f"{name} = {threshold}: expected a share from 0 to 1")
    nodes = _reaching(node_influence(normalised_rows(A), p), node_threshold) | ends
    shares = normalised_rows(A * nodes * nodes[:, None])
    edge_scores = shares * (node_influence(shares, p) + p)[:, None]
    edges = _reaching(edge_scores, edge_threshold)
    while True:
        connected = nodes & (edges.any(0) | ends) & (edges.any(1) | ~features)
        edges = edges & connected & connected[:, None]
        if torch.equal(connected, nodes):
            return nodes, edges
        nodes = connected
