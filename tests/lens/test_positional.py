"""What positions are to a network, read from its weights, is what its forward pass does with them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture, Attention, Positions
from pellucid.lens import trace
from pellucid.lens.analysis.order import without_order
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.positional import (
    distance_bias,
    position_rows,
    position_similarity,
    rotary_angles,
    score_by_distance,
)
from pellucid.reference.layers import rotary_factor
from pellucid.text_model import of_ids
from running import draw_tokens


@settings(max_examples=15)
@given(architectures({"positions.kind": st.sampled_from(["learned", "sinusoidal"])}))
def test_rows_are_what_is_added_to_the_stream(a):
    network = make_network(a)
    t, circuits = trace(of_ids(network), draw_tokens(a, 1, 4)), Circuits(of_ids(network))
    rows = position_rows(circuits)
    added = t["pos_embed"][0]
    if a.embed_projection == "sum":
        added = added @ network.embed.projection.weight.detach().T
    assert difference(rows[:4], added) <= 1e-14
    cosines = position_similarity(circuits, 3)
    assert difference(cosines.diagonal(), torch.ones(3, dtype=torch.float64)) <= 1e-12
    expected = rows[0] @ rows[2] / (rows[0].norm() * rows[2].norm())
    assert abs(cosines[0, 2] - expected) <= 1e-12


@settings(max_examples=15)
@given(architectures({"positions.kind": "rotary"}), st.integers(0, 3))
def test_angles_are_those_between_a_query_and_its_key(a, distance):
    """Turned by these angles, a query and its key have the product that the rotations of both positions give."""
    circuits = Circuits(of_ids(make_network(a)))
    for layer in range(a.n_layers):
        if not a.rotates(layer):
            with pytest.raises(CircuitError, match="rotates nothing"):
                rotary_angles(circuits, layer, distance)
            continue
        angles = rotary_angles(circuits, layer, distance)
        assert angles.shape == (a.d_rotary // 2,)
        assert (angles.abs() <= math.pi + 1e-12).all()
        rotary = circuits.network.blocks[layer].attn.rotary
        x = torch.ones(1, 1, 1, a.d_head, dtype=torch.float64)
        turned = rotary.rotate(x, circuits.network.rotary_table(torch.tensor([distance])))
        # each plane of ones has length sqrt(2), times the factor; the coordinates that are not turned add 1 each
        expected = 2 * rotary_factor(a, layer) * angles.cos().sum() + a.d_head - a.d_rotary
        assert abs((x * turned).sum() - expected) <= 1e-9


@settings(max_examples=15)
@given(
    architectures(
        {
            "positions.kind": st.sampled_from(["alibi", "relative"]),
            "attention.mask": "causal",
            "attention.windows": (0,),
        }
    )
)
def test_biases_are_what_the_scores_gain(a):
    network = make_network(a)
    with torch.no_grad():
        for block in network.blocks:
            block.attn.query.weight.zero_()
            if block.attn.query.bias is not None:
                block.attn.query.bias.zero_()
            if getattr(block.attn.query_norm, "bias", None) is not None:
                block.attn.query_norm.bias.zero_()
    bias = distance_bias(Circuits(of_ids(network)), 0, 4)
    scores = trace(of_ids(network), draw_tokens(a, 1, 4))["blocks.0.attn.scores"][0]
    for back in range(4):
        assert difference(bias[:, back], scores[:, 3, 3 - back]) <= 1e-12


@settings(max_examples=25)
@given(architectures({"attention.score_cap": 0.0}), st.data())
def test_scores_by_distance_are_entries_of_the_full_circuit(a, data):
    circuits = Circuits(of_ids(make_network(a)))
    layer, head = data.draw(st.integers(0, a.n_layers - 1)), data.draw(st.integers(0, a.n_heads - 1))
    scores = score_by_distance(circuits, layer, head, 3, 7, 4)
    assert scores.shape == (4,)
    single = circuits[layer, head]
    for back in range(4):
        expected = single.scale * single.full_qk(back if single.is_rotated else None)[3, 7]
        if a.biases_scores:
            expected = expected + distance_bias(circuits, layer, 4)[head, back]
        assert abs(scores[back] - expected) <= 1e-9


@settings(max_examples=10)
@given(architectures({"positions.kind": "none"}))
def test_positions_that_do_not_enter_there_say_so(a):
    circuits = Circuits(of_ids(make_network(a)))
    for question in (position_rows, lambda c: rotary_angles(c, 0, 1), lambda c: distance_bias(c, 0, 3)):
        with pytest.raises(CircuitError, match=r"positions\.kind = none"):
            question(circuits)
    with pytest.raises(CircuitError, match="layer 9"):
        distance_bias(circuits, 9, 3)


@pytest.mark.parametrize(
    "positions",
    [Positions(kind="rotary", local_base=30.0), Positions(kind="relative", n_buckets=8, max_distance=16)],
    ids=lambda positions: positions.kind,
)
def test_positions_enter_a_network_without_its_mask_as_they_did(positions):
    """The last position of one layer reads every key with the mask too, so that without it nothing changes there."""
    attention = Attention(n_heads=2, windows=(8,))
    a = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=1, positions=positions, attention=attention)
    network, ids = make_network(a), draw_tokens(a, 1, 6)
    masked, free = (trace(of_ids(one), ids).logits[0] for one in (network, without_order(network, mask=False)))
    assert difference(free[-1], masked[-1]) <= 1e-12
    assert difference(free[0], masked[0]) > 1e-3
