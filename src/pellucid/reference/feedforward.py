"""Feed-forward networks: on any directed acyclic graph, layered, and as a memory of key-value pairs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pellucid.reference.functions import softmax
from pellucid.reference.tape import Array, real

Vertex = Hashable
Edge = tuple[Vertex, Vertex]
Activation = Callable[[Array], Array]


@dataclass(frozen=True)
class FeedForwardNetwork:
    """A finite directed acyclic graph and an activation function for each hidden vertex: S0 2.1.

    Edges are (tail, head). Inputs and outputs keep the order in which `network` was given the vertices.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[Vertex, ...]
    outputs: tuple[Vertex, ...]
    hidden: tuple[Vertex, ...]
    activations: Mapping[Vertex, Activation]

    @property
    def n_parameters(self) -> int:
        """dim Theta = |E| + |V \\ I|.   S0 2.1 "parameter space". Erratum E-08 ((w_e) is in R^|E|)."""
        return len(self.edges) + len(self.vertices) - len(self.inputs)


def network(
    vertices: Sequence[Vertex], edges: Sequence[Edge], activations: Mapping[Vertex, Activation] | Activation
) -> FeedForwardNetwork:
    """The network (G, A) of S0 2.1: I has no incoming edges, O no outgoing ones, H is the rest.

    `activations` is one function for all of H, or one for each. Raises ValueError for a repeated edge, a vertex
    without an edge, a cycle, or activations that are not indexed by exactly H (erratum E-03).
    """
    vertices, edges = tuple(vertices), tuple(edges)
    heads, tails = {head for _, head in edges}, {tail for tail, _ in edges}
    if len(set(edges)) != len(edges) or not heads | tails <= set(vertices):
        raise ValueError(
            "an edge was given twice, or has an end that is not among the vertices: give each "
            "edge once, between vertices"
        )
    if lonely := [v for v in vertices if v not in heads | tails]:
        raise ValueError(f"vertex {lonely[0]!r} belongs to no edge: the minimum degree is one")
    inputs = tuple(v for v in vertices if v not in heads)
    outputs = tuple(v for v in vertices if v not in tails)
    hidden = tuple(v for v in vertices if v in heads and v in tails)
    functions = dict.fromkeys(hidden, activations) if callable(activations) else dict(activations)
    if set(functions) != set(hidden):
        raise ValueError(f"activations were given for {sorted(map(str, functions))}: expected one for each of {hidden}")
    net = FeedForwardNetwork(vertices, edges, inputs, outputs, hidden, functions)
    topological_order(net)
    return net


def topological_order(
    net: FeedForwardNetwork, choose: Callable[[list], Vertex] = lambda ready: ready[0]
) -> list[Vertex]:
    """The vertices so that each comes after all that have an edge to it; `choose` picks among those that are ready.

    S0 2.1: m is well defined because any such order gives the same value. Raises ValueError for a cycle.
    """
    waiting = {v: {tail for tail, head in net.edges if head == v} for v in net.vertices}
    order: list[Vertex] = []
    while waiting:
        ready = [v for v, tails in waiting.items() if tails <= set(order)]
        if not ready:
            raise ValueError(f"the graph has a cycle through {next(iter(waiting))!r}: expected an acyclic graph")
        order.append(v := choose(ready))
        del waiting[v]
    return order


def network_preactivations(
    net: FeedForwardNetwork, weights: Mapping[Edge, float], biases: Mapping[Vertex, float], x: Sequence[float],
    order: Sequence[Vertex] | None = None,
) -> dict[Vertex, float]:  # fmt: skip
    """z_{I_j} = x_j,  z_v = b_v + sum_{(v', v) in E} w_e a_{v'},  a_v = sigma_v(z_v)   x [|I|]

    S0 (2.1) to (2.3). The activation of an input is x_j itself: errata E-02, E-03, E-08.
    """
    if len(x) != len(net.inputs):
        raise ValueError(f"{len(x)} numbers for {len(net.inputs)} input vertices: expected one number for each")
    z = dict(zip(net.inputs, map(float, x), strict=True))
    a = dict(z)
    for v in topological_order(net) if order is None else order:
        if v in net.inputs:
            continue
        z[v] = biases[v] + sum(weights[tail, head] * a[tail] for tail, head in net.edges if head == v)
        if v in net.activations:
            a[v] = float(net.activations[v](np.float64(z[v])))
    return z


def network_apply(
    net: FeedForwardNetwork, weights: Mapping[Edge, float], biases: Mapping[Vertex, float], x: Sequence[float]
) -> np.ndarray:
    """m(x) = (z_{O_1}(x), ..., z_{O_d'}(x)): the preactivations of the outputs   [|I|] -> [|O|]

    S0 2.1, last display. Errata E-03, E-08 (d' entries).
    """
    z = network_preactivations(net, weights, biases, x)
    return np.array([z[v] for v in net.outputs])


def layered_network(widths: Sequence[int], activation: Activation) -> FeedForwardNetwork:
    """The fully connected layered graph, E = union of V^(l) x V^(l+1); vertex (l, i) is the i-th of layer l

    S0 (2.4).
    """
    layers = [[(l, i) for i in range(n)] for l, n in enumerate(widths)]
    edges = [(t, h) for tails, heads in pairwise(layers) for t in tails for h in heads]
    return network([v for layer in layers for v in layer], edges, activation)


def layered_parameters(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> tuple[dict, dict]:
    """Edge weights and vertex biases of `layered_network` from matrices: w_(v_j^(l-1), v_i^(l)) = W^(l)_ij

    S0 2.2. The edge is (tail, head): erratum E-07.
    """
    layers = list(enumerate(zip(weights, biases, strict=True), start=1))
    w = {((l - 1, j), (l, i)): float(W[i, j]) for l, (W, _) in layers for i, j in np.ndindex(W.shape)}
    b = {(l, i): float(value) for l, (_, bias) in layers for i, value in enumerate(bias)}
    return w, b


def mlp(X: Array, weights: Sequence[Array], biases: Sequence[Array | None], activation: Activation) -> Array:
    """z^(1) = W^(1) x + b^(1),  z^(l+1) = W^(l+1) sigma(z^(l)) + b^(l+1),  m(x) = z^(L)   [..., n_0] -> [..., n_L]

    S0 (2.5) to (2.7), with no activation on the input: erratum E-02. S3 slide 10 is L = 2, with its hidden bias inside
    phi: erratum E-52. S4 "Feedforward/MLP layers" W_proj sigma(W_1 e). A bias None is zero.
    """
    a = real(X)
    for l, (W, b) in enumerate(zip(weights, biases, strict=True)):
        a = (activation(a) if l else a) @ real(W).T
        a = a if b is None else a + b
    return a


def feedforward_layer(X: Array, m: Callable[[Array], Array]) -> Array:
    """FF_m(X) = X + m(X), m acting on each row   [n, m] -> [n, m].   S0 2.3; S2 x2 = MLP(x1) + x1; S4 e <- e + e~."""
    return real(X) + m(X)


def absorb_biases(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> list[np.ndarray]:
    """[W b] for each layer, to be applied to (a, 1)   [(n_l, n_{l-1} + 1)].   S0 Remark 2.1, first reading. E-18."""
    return [np.column_stack([W, b]) for W, b in zip(weights, biases, strict=True)]


def mlp_with_ones(X: Array, weights: Sequence[Array], activation: Activation) -> Array:
    """The MLP without biases, a constant 1 appended to the input of every layer   [..., n_0] -> [..., n_L]

    S0 Remark 2.1: "an additional input dimension at each layer which only ever receives the input 1". E-18.
    """
    a = real(X)
    for l, W in enumerate(weights):
        a = activation(a) if l else a
        a = np.concatenate([a, np.ones((*a.shape[:-1], 1))], axis=-1) @ real(W).T
    return a


def propagate_one(
    weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], activation: Activation, w: float = 1.0
) -> list[np.ndarray]:
    """The same MLP as a layered network without biases whose input is (x, 1): one neuron carries a constant

    Its value is kappa_0 = 1, kappa_l = sigma(w kappa_{l-1}), its edges to the next layer are b / kappa_l. S0 Remark
    2.1, second reading; needs sigma(w kappa) != 0. Erratum E-18. Returns [(n_l + 1, n_{l-1} + 1)], the last without
    the extra row.
    """
    kappa, out = 1.0, []
    for W, b in zip(weights, biases, strict=True):
        if kappa == 0:
            raise ValueError(f"activation({w}) is 0, so the constant neuron would stay at 0: choose another w")
        carry = np.zeros((1, W.shape[1] + 1))
        carry[0, -1] = w
        out.append(np.vstack([np.column_stack([W, np.asarray(b) / kappa]), carry]))
        kappa = float(activation(np.float64(w * kappa)))
    return [*out[:-1], out[-1][:-1]]


def neural_memory(e: Array, keys: Array, values: Array) -> Array:
    """NM(e) = sum_i P(k_i | e) v_i = V softmax(K^T e)   e [..., m], keys and values [m, n] in columns -> [..., m]

    S4 "Interpreting MLP Layers"; Sukhbaatar et al. 2015.
    """
    return softmax(real(e) @ real(keys)) @ real(values).T


def key_value_memory(e: Array, keys: Array, values: Array, activation: Activation) -> tuple[Array, Array]:
    """FF(e) = sum_i sigma(k_i . e) v_i and its coefficients sigma(K^T e)   -> [..., m], [..., n]

    S4 "MLP layers ctd.": K^T = W_1, V = W_proj; Geva et al. 2020.
    """
    coefficients = activation(real(e) @ real(keys))
    return coefficients @ real(values).T, coefficients


def low_rank(W: Array, A: Array, B: Array, alpha: float) -> Array:
    """W + (alpha / r) B A: the matrix of an affine map changed by one of rank r at most   [out, in]

    W [out, in], A [r, in], B [out, r].   Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", 4.1.
    """
    return W + alpha / A.shape[0] * (B @ A)
