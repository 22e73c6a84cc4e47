"""Influence, scores and pruning beside their definitions, on drawn graphs without circles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.features.graph_scores import (
    GraphError,
    cumulative_influence,
    graph_scores,
    node_influence,
    normalised_rows,
    pruned_parts,
)


@st.composite
def drawn_graphs(draw):
    """Features, errors, tokens, logits, with edges from tokens and errors to features and on to logits."""
    n_features, n_errors, n_tokens, n_logits = (draw(st.integers(low, 5)) for low in (1, 0, 1, 1))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    n = n_features + n_errors + n_tokens + n_logits
    A = random.normal(size=(n, n)) * (random.random((n, n)) < 0.7)
    kinds = np.array(["feature"] * n_features + ["error"] * n_errors + ["token"] * n_tokens + ["logit"] * n_logits)
    A[(kinds == "error") | (kinds == "token")] = 0
    A[:, kinds == "logit"] = 0
    A[:n_features, :n_features] = np.tril(A[:n_features, :n_features], -1)
    p = np.where(kinds == "logit", random.random(n) / n_logits, 0)
    return A, kinds, p


def defined(A, p):
    """Â row by row, and influence as p Â (1 - Â)^-1."""
    shares = np.array([np.abs(row) / max(np.abs(row).sum(), 1e-10) for row in A])
    return shares, p @ shares @ np.linalg.inv(np.eye(len(A)) - shares)


def tensors(A, kinds, p):
    return torch.tensor(A), torch.tensor(p), {kind: torch.tensor(kinds == kind) for kind in set(kinds) | {"error"}}


@given(drawn_graphs())
def test_influence_and_scores_are_their_definitions(graph):
    A, kinds, p = graph
    shares, influence = defined(A, p)
    matrix, logits, of = tensors(*graph)
    assert np.allclose(normalised_rows(matrix).numpy(), shares, atol=1e-12)
    assert np.allclose(node_influence(normalised_rows(matrix), logits).numpy(), influence, atol=1e-12)
    scores = graph_scores(matrix, logits, of["token"], of["error"])
    tokens, errors = influence[kinds == "token"].sum(), influence[kinds == "error"].sum()
    assert scores.replacement == pytest.approx(tokens / max(tokens + errors, 1e-10), abs=1e-12)
    assert scores.error_share == pytest.approx(1 - scores.replacement)
    without = [(1 - shares[n, kinds == "error"].sum()) * (influence + p)[n] for n in range(len(p))]
    assert scores.completeness == pytest.approx(sum(without) / (influence + p).sum(), abs=1e-12)


@settings(max_examples=50)
@given(drawn_graphs(), st.sampled_from([0.3, 0.8, 0.95]), st.sampled_from([0.5, 0.9, 0.98]))
def test_what_is_pruned_is_what_matters_least(graph, node_threshold, edge_threshold):
    """Step by step as it is defined, one node at a time."""
    A, kinds, p = graph
    matrix, logits, of = tensors(*graph)
    ends = of["token"] | of["logit"]
    nodes, edges = pruned_parts(matrix, logits, of["feature"], ends, node_threshold, edge_threshold)
    _, influence = defined(A, p)

    def least(scores, share):
        ordered = np.sort(scores.ravel())[::-1]
        reached = np.cumsum(ordered) / max(ordered.sum(), 1e-10)
        return ordered[min(int(np.sum(reached < share)), len(ordered) - 1)]

    remain = (influence >= least(influence, node_threshold)) | (kinds == "token") | (kinds == "logit")
    shares, pruned = defined(A * remain * remain[:, None], p)
    scores = shares * (pruned + p)[:, None]
    is_edge = (scores >= least(scores, edge_threshold)) & (A != 0)
    lost = True
    while lost:
        lost = False
        for n in np.flatnonzero(remain & (kinds != "token") & (kinds != "logit")):
            if not is_edge[:, n].any() or (kinds[n] == "feature" and not is_edge[n].any()):
                remain[n], is_edge[n], is_edge[:, n], lost = False, False, False, True
    assert nodes.tolist() == remain.tolist()
    assert edges.tolist() == (is_edge & remain & remain[:, None]).tolist()


def test_cumulative_influence_counts_from_the_largest():
    shares = cumulative_influence(torch.tensor([1.0, 5.0, 0.0, 4.0]))
    assert shares.tolist() == pytest.approx([1.0, 0.5, 1.0, 0.9])


def test_graphs_that_are_none_are_refused():
    circle = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(GraphError, match="form a circle"):
        node_influence(circle, torch.tensor([1.0, 0.0]))
    flags = torch.zeros(2, dtype=torch.bool)
    with pytest.raises(GraphError, match=r"node_threshold = 1.2: expected a share from 0 to 1"):
        pruned_parts(torch.zeros(2, 2), torch.ones(2), flags, flags, 1.2, 0.9)
