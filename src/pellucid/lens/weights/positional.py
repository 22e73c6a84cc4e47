"""What positions are to a network, from its weights alone: rows, angles, and numbers added to the scores."""

import torch
from torch import Tensor

from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.factored_matrix import exact
from pellucid.lens.weights.head_weights import Head


def position_rows(circuits: CircuitWeights) -> Tensor:
    """The rows that learned or sinusoidal positions add to the stream [n_ctx, m]; with embed_projection = sum, W_P P^T.

    Raises CircuitError for the other kinds of positions, which add none.
    """
    kind, module = circuits.architecture.positions.kind, circuits.engine.embed.position
    if module is None:
        raise CircuitError(f"positions.kind = {kind} adds no rows to the stream: learned and sinusoidal positions do")
    n = torch.arange(circuits.architecture.n_ctx, device=circuits.engine.embed.token.weight.device)
    rows = module.added(n).detach()
    of_sum = circuits.architecture.embed_projection == "sum"
    return exact(rows @ circuits.engine.embed.projection.weight.detach().to(rows.dtype).T if of_sum else rows)


def position_similarity(circuits: CircuitWeights, n: int | None = None) -> Tensor:
    """The cosine between the rows of the first n positions, all of them unless given [n, n]."""
    rows = position_rows(circuits)[:n]
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return unit @ unit.T


def rotary_angles(circuits: CircuitWeights, layer: int, distance: int) -> Tensor:
    """The angle by which each plane of a layer's queries is turned against keys `distance` positions back [planes].

    In radians, in (-pi, pi]. Raises CircuitError for layers that rotate nothing, and distances beyond the context.
    """
    a = circuits.architecture
    if not 0 <= layer < a.n_layers:
        raise CircuitError(f"layer {layer}: there are {a.n_layers}, numbered from 0")
    if circuits.part == "cross" or not a.rotates(layer):
        raise CircuitError(f"layer {layer} rotates nothing: positions.kind = {a.positions.kind}")
    if not 0 <= distance < a.n_ctx:
        raise CircuitError(f"distance = {distance}: expected 0 to {a.n_ctx - 1}")
    engine = circuits.engine
    cos, sin = engine.rotary_table(torch.tensor([distance], device=engine.embed.token.weight.device))
    kind = engine.blocks[layer].attn.rotary.kind
    return torch.atan2(sin[kind, 0], cos[kind, 0])


def distance_bias(circuits: CircuitWeights, layer: int, n: int) -> Tensor:
    """The number that ALiBi or relative positions add to the score of a key 0 ... n - 1 positions back [head, n].

    Raises CircuitError for the other kinds of positions.
    """
    a = circuits.architecture
    if not 0 <= layer < a.n_layers:
        raise CircuitError(f"layer {layer}: there are {a.n_layers}, numbered from 0")
    bias = None if circuits.part == "cross" else circuits.engine.blocks[layer].attn.mask.position_bias
    if bias is None:
        raise CircuitError(f"positions.kind = {a.positions.kind} adds nothing to the scores: alibi and relative do")
    i = torch.full((1, 1), n - 1, device=circuits.engine.embed.token.weight.device)
    keys = torch.arange(n - 1, -1, -1, device=i.device)
    return exact(bias.score_bias(i, keys)[:, 0].detach())


def score_by_distance(circuits: CircuitWeights, layer: int, head: int, query: int, key: int, n: int) -> Tensor:
    """The score of a query at token `query` with a key at token `key`, 0 ... n - 1 positions back [n], norms aside.

    The entry (query, key) of `Head.full_qk` at every distance, times the scale, and with the bias by distance of
    ALiBi and relative positions. Biases of the linear maps are not included. One number for all distances where
    positions do not enter the scores. Raises CircuitError.
    """
    single = Head(circuits, layer, head)
    s, t = exact(circuits.read_E[query]), exact(circuits.read_E[key])
    distances = range(n) if single.is_rotated else [None]
    scores = torch.stack([single.scale * (s @ (single.qk(distance) @ t)) for distance in distances])
    scores = scores if single.is_rotated else scores.expand(n)
    biased = circuits.part != "cross" and circuits.architecture.biases_scores
    return scores + distance_bias(circuits, layer, n)[head] if biased else scores
