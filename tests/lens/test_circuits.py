"""Heads as matrices are the definition's, and everything read from them is what the dense matrices say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.lens import InputError, trace
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.folding import FoldError, weights_view
from pellucid.model.weights import state_of
from pellucid.reference.attention import compose_heads, ov_circuit, qk_circuit
from pellucid.reference.circuits import heads_of_layer
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2})
LINEAR = {"readout": st.sampled_from(["linear", "affine"])}


def offset_of(a):
    return 1 if a.rotates(0) else None


@settings(deadline=None, max_examples=30)
@given(any_architectures())
def test_the_matrices_are_the_definition_s_and_no_copies(a):
    network = make_network(a)
    weights = {name: p.numpy() for name, p in state_of(network).items()}
    circuits = Circuits(of_ids(network))
    for l in range(a.n_layers):
        for h, expected in enumerate(heads_of_layer(a, weights, l)):
            head = circuits[l, h]
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                found = getattr(head, name)
                assert difference(found, torch.tensor(getattr(expected, name))) == 0
                part = {"W_Q": "query", "W_K": "key", "W_V": "value", "W_O": "out"}[name]
                memory = getattr(network.blocks[l].attn, part).weight
                assert found.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert difference(head.ov.dense(), torch.tensor(ov_circuit(expected.W_O, expected.W_V))) <= 1e-12
            if a.positions.kind != "rotary" and a.attention.qk_norm == "none":
                assert difference(head.W_QK.dense(), torch.tensor(qk_circuit(expected.W_Q, expected.W_K))) <= 1e-12


@settings(deadline=None, max_examples=40)
@given(
    any_architectures(
        {
            "attention.bias": "out",
            "attention.score_cap": 0.0,
            "positions.kind": st.sampled_from(["none", "learned", "rotary"]),
        }
    )
)
def test_scores_are_the_circuit_between_what_is_read(a):
    """score_ij = scale x_i^T W_QK(i - j) x_j, with rotary positions, q and k norms, and grouped queries alike."""
    if a.attention.qk_norm == "layer":
        a = a.with_fields({"norm.bias": "none"})  # as of the linear maps, the circuit leaves the norm's bias out
    network, tokens = make_network(a), draw_tokens(a, 1, 4)
    given_ = {"source": draw_tokens(a.encoder, 1, 3)} if a.encoder is not None else {}
    t = trace(of_ids(network), tokens, **given_)
    for l in range(a.n_layers):
        raw = a.block in ("post", "inner") or "norm_1" not in a.norms_of(l) or a.norm.kind == "none"
        read = f"blocks.{l}.resid_pre" if raw else f"blocks.{l}.norm_1"
        x, scores = t[read][0], t[f"blocks.{l}.attn.scores"][0]
        q, k = t[f"blocks.{l}.attn.q"][0], t[f"blocks.{l}.attn.k"][0]
        for h in range(a.n_heads):
            head = Circuits(of_ids(network))[l, h]
            for i in range(4):
                for j in range(4):
                    if scores[h, i, j] == -torch.inf:
                        continue
                    qk = head.qk(i - j) if a.rotates(l) else head.qk()
                    expected = head.scale * (x[i] @ (qk @ x[j]))
                    if a.attention.qk_norm != "none":
                        every = a.attention.qk_norm == "rms_all"
                        read = (q[:, i], k[:, j]) if every else (q[h, i], k[head.kv_index, j])
                        if a.attention.qk_norm.startswith("layer"):
                            read = [v - v.mean() for v in read]
                        rho = [(v.square().mean() + a.norm.eps).sqrt() for v in read]
                        expected = expected / (rho[0] * rho[1])
                    assert difference(expected, scores[h, i, j]) <= 1e-10


@settings(deadline=None, max_examples=30)
@given(architectures(LINEAR))
def test_copying_scores_are_those_of_the_dense_matrix(a):
    network = make_network(a)
    circuits = Circuits(of_ids(network))
    found = circuits.copying()
    c = a.embed_factor
    for l in range(a.n_layers):
        for h in range(a.n_heads):
            head = circuits[l, h]
            written = a.residual_scale * a.unembed_scale * network.unembed.matrix @ head.ov.dense()
            dense = written @ (c * network.embed.matrix).T
            assert difference(head.full_ov().dense(), dense) <= 1e-10
            eigenvalues = torch.linalg.eigvals(dense)
            expected = eigenvalues.sum().real / eigenvalues.abs().sum()
            assert (found[l, h] - expected).abs() <= 1e-6
            assert abs(head.copying - expected) <= 1e-6


@settings(deadline=None, max_examples=20)
@given(architectures({"n_layers": 3, "positions.kind": st.sampled_from(["none", "rotary"])}), st.sampled_from("QKV"))
def test_composition_scores_are_those_of_the_dense_matrices(a, kind):
    circuits = Circuits(of_ids(make_network(a)))
    offset = offset_of(a) if kind != "V" else None
    found = circuits.compose(kind, offset)
    for l1 in range(a.n_layers):
        for l2 in range(a.n_layers):
            block = found.scores[l1, :, l2]
            if l2 <= l1:
                assert block.isnan().all()
                continue
            for h1 in range(a.n_heads):
                for h2 in range(a.n_heads):
                    writer, reader = circuits[l1, h1].ov.dense(), circuits[l2, h2]
                    read = reader.ov.dense() if kind == "V" else reader.qk(offset if a.rotates(l2) else None).dense()
                    read = read.T if kind == "Q" else read
                    expected = (read @ writer).norm() / (read.norm() * writer.norm())
                    assert abs(float(block[h1, h2]) - float(expected)) <= 1e-6
    writer, reader, score = found.top(1)[0]
    assert (
        score
        == float(found.scores[writer[0], writer[1], reader[0], reader[1]])
        == float(found.excess.nan_to_num(-9).max() + found.baseline)
    )


def test_the_baseline_is_what_random_heads_have():
    """Heads whose matrices are drawn at random lie about the baseline; a head that reads another lies far above."""
    a = Architecture(n_vocab=11, n_ctx=8, d_model=32, n_layers=2).with_fields({"attention.n_heads": 4})
    network = make_network(a)
    circuits = Circuits(of_ids(network))
    found = circuits.compose("K")
    scores = found.scores[0, :, 1]
    assert abs(float(scores.mean()) - found.baseline) <= 3 * found.spread
    with torch.no_grad():
        network.blocks[1].attn.key.weight[8:16] = network.blocks[0].attn.out.weight[:, 16:24].T
    planted = circuits.compose("K")
    assert planted.top(1)[0][:2] == ((0, 2), (1, 1))
    assert planted.top(1)[0][2] > planted.baseline + 4 * planted.spread


@settings(deadline=None, max_examples=20)
@given(architectures({"n_layers": 2, "attention.bias": "none", "block": "pre", "norm.kind": "none"}))
def test_virtual_heads(a):
    """(A_2 x W_2)(A_1 x W_1) X = A_2 A_1 X (W_2 W_1)^T, and W_2 W_1 is the product that is never written down."""
    network, circuits = make_network(a), Circuits(of_ids(make_network(a)))
    t = trace(of_ids(network), draw_tokens(a, 1, 4))
    x = t["blocks.0.resid_pre"][0]
    A_1, A_2 = (t[f"blocks.{l}.attn.pattern"][0, 0] for l in range(2))
    once = A_1 @ x @ circuits[0, 0].ov.dense().T
    twice = A_2 @ once @ circuits[1, 0].ov.dense().T
    virtual = circuits.virtual((0, 0), (1, 0))
    pattern, ov = compose_heads(
        A_2.numpy(), circuits[1, 0].ov.dense().numpy(), A_1.numpy(), circuits[0, 0].ov.dense().numpy()
    )
    assert difference(virtual.dense(), torch.tensor(ov)) <= 1e-10
    assert difference(torch.tensor(pattern @ x.numpy() @ virtual.dense().numpy().T), twice) <= 1e-10


@settings(deadline=None, max_examples=25)
@given(architectures(LINEAR), st.data())
def test_reading_through_the_vocabulary(a, data):
    """Tables of tokens are rows and columns of the full circuits, neurons' keys and values products with the tables."""
    network = make_network(a)
    circuits = Circuits(of_ids(network))
    head, token = circuits[0, a.n_heads - 1], data.draw(st.integers(0, a.n_vocab - 1))
    offset = offset_of(a)
    checks = [
        (head.promotes(token, 3), head.full_ov().dense()[:, token]),
        (head.looks_for(token, 3, offset), head.scale * head.full_qk(offset).dense()[token]),
    ]
    if a.mlp.n_hidden == 1 and not a.mlp.experts:
        neuron, mlp = circuits.neuron(0, 2), network.blocks[0].mlp
        c = a.embed_factor
        checks += [
            (neuron.reads(3), c * network.embed.matrix @ mlp.up[0].weight[2]),
            (neuron.writes(3), a.unembed_scale * a.residual_scale * network.unembed.matrix @ mlp.down.weight[:, 2]),
        ]
        if a.mlp.form == "gated":
            checks.append((neuron.reads(3, "gate"), c * network.embed.matrix @ mlp.gate.weight[2]))
    for found, values in checks:
        assert [name for name, _ in found] == [str(int(i)) for i in values.topk(3).indices]
        assert difference(torch.tensor([x for _, x in found], dtype=torch.float64), values.topk(3).values) <= 1e-10
    for of in ("ov", "qk"):
        strongest = head.directions(of, n=1, k=2, offset=None if of == "ov" else offset)[0]
        circuit = head.ov if of == "ov" else head.qk(offset)
        assert abs(strongest.strength - float(torch.linalg.svdvals(circuit.dense())[0])) <= 1e-10
        _, _, Vh = torch.linalg.svd(circuit.dense())
        into = circuits.read_E @ Vh[0]
        expected = {str(int(into.argmax())), str(int(into.argmin()))}  # a singular pair has no sign of its own
        assert strongest.into[0][0] in expected


@settings(deadline=None, max_examples=20)
@given(architectures(LINEAR))
def test_folded_circuits_are_those_of_the_folded_weights(a):
    network = make_network(a)
    try:
        folded = Circuits(of_ids(network), fold_norms=True)
    except FoldError:
        return
    head, norm = folded[0, 0], network.blocks[0].norm_1
    gain = norm.multiplier if "norm_1" in a.norms_of(0) else torch.ones(a.d_model, dtype=torch.float64)
    assert difference(head.W_V, Circuits(of_ids(network))[0, 0].W_V * gain) <= 1e-12
    final = network.final_norm.multiplier if a.final_norm == "norm" else torch.ones(a.d_model, dtype=torch.float64)
    factor = a.residual_scale * a.unembed_scale
    dense = factor * (network.unembed.matrix * final) @ head.ov.dense() @ folded.read_E.T
    assert difference(head.full_ov().dense(), dense) <= 1e-10


@settings(deadline=None, max_examples=15)
@given(architectures({"block": st.sampled_from(["pre", "post"])}).map(with_encoder))
def test_encoders_and_cross_attention_have_circuits_too(a):
    network = make_network(a)
    encoder, cross = Circuits(of_ids(network), part="encoder"), Circuits(of_ids(network), part="cross")
    W = network.encoder.blocks[0].attn.value.weight[: a.encoder.d_head]
    assert difference(encoder[0, 0].W_V, W) == 0
    assert difference(cross[0, 0].W_Q, network.blocks[0].cross.query.weight[: a.d_head]) == 0
    assert cross[0, 0].qk().shape == (a.d_model, a.d_model)
    with pytest.raises(CircuitError, match="encoder's output"):
        cross[0, 0].looks_for(0)
    with pytest.raises(CircuitError, match="not by an unembedding"):
        encoder.copying()
    with pytest.raises(CircuitError, match="read and write one stream"):
        cross.compose("V")


def test_what_is_not_there_is_refused_with_the_reason():
    rotary = Circuits(of_ids(make_network(A.with_fields({"positions.kind": "rotary"}))))
    with pytest.raises(CircuitError, match="depends on the distance to the key"):
        rotary[0, 0].qk()
    with pytest.raises(CircuitError, match="depends on the distance to the key"):
        rotary.compose("K")
    with pytest.raises(CircuitError, match="offset = 8"):
        rotary[0, 0].qk(8)
    with pytest.raises(CircuitError, match="offset = -1"):
        rotary[0, 0].qk(-1)
    plain = Circuits(of_ids(make_network(A)))
    with pytest.raises(CircuitError, match="leave the offset out"):
        plain[0, 0].qk(1)
    with pytest.raises(CircuitError, match="2 blocks of 2 heads"):
        _ = plain[2, 0]
    for ask in (plain[0, 0].promotes, plain[0, 0].looks_for):
        with pytest.raises(InputError, match="token 11: there are 11, numbered from 0"):
            ask(11)
    with pytest.raises(CircuitError, match="neuron 32"):
        plain.neuron(0, 32)
    with pytest.raises(CircuitError, match="no gate"):
        _ = plain.neuron(0, 0).gate
    with pytest.raises(CircuitError, match="has no encoder"):
        Circuits(of_ids(make_network(A)), part="cross")
    with pytest.raises(CircuitError, match="readout = bert"):
        Circuits(of_ids(make_network(A.with_fields({"readout": "bert"})))).copying()
    deep = Circuits(of_ids(make_network(A.with_fields({"mlp.n_hidden": 2}))))
    with pytest.raises(CircuitError, match="only hidden layer 0 has keys"):
        _ = deep.neuron(0, 0, hidden=1).key
    with pytest.raises(CircuitError, match="only hidden layer 1 has values"):
        _ = deep.neuron(0, 0).value


@pytest.mark.item("S1-1.1.1.1-d")
@settings(deadline=None, max_examples=40)
@given(any_architectures())
def test_a_folded_view_is_the_definition_s_and_the_network_keeps_its_weights(a):
    """The same names, values and b_U as `reference.circuits.fold_norms`, refused where it refuses; same logits."""
    from pellucid.model import Transformer
    from pellucid.model.weights import load_state
    from pellucid.reference.circuits import fold_norms

    network = make_network(a)
    before = {name: p.clone() for name, p in state_of(network).items()}
    weights = {name: p.numpy() for name, p in before.items()}
    try:
        untied, expected, b_U = fold_norms(a, weights)
    except ValueError:
        with pytest.raises(FoldError):
            weights_view(of_ids(network), fold_norms=True)
        return
    view = weights_view(of_ids(network), fold_norms=True)
    assert view.architecture == untied
    assert set(view) == set(expected)
    assert len(view) == len(expected)
    for name, value in expected.items():
        assert difference(view[name], torch.tensor(np.asarray(value))) <= 1e-12, name
    assert difference(view.b_U, torch.tensor(b_U)) <= 1e-12
    made = Transformer(untied).double().eval()
    load_state(made, view)
    tokens = draw_tokens(a, 1, 4)
    assert difference(made(tokens) + view.b_U, network(tokens)) <= 1e-10
    assert all(torch.equal(p, before[name]) for name, p in state_of(network).items())


@pytest.mark.parametrize("named", [("fold_norms",), ("centre",), ("fold_norms", "centre")])
def test_a_folded_body_gives_the_same_stream(named):
    """Without a readout nothing reads the final norm, which stays; what the blocks' norms precede is folded."""
    from pellucid.model import Transformer
    from pellucid.model.weights import load_state
    from pellucid.reference.circuits import fold_norms

    a = A.with_fields({"readout": "none", "norm.kind": "layer"})
    network, tokens = make_network(a), draw_tokens(a, 1, 4)
    view = weights_view(of_ids(network), **dict.fromkeys(named, True))
    assert view.architecture == a
    made = Transformer(a).double().eval()
    load_state(made, view)
    assert difference(made.hidden(tokens), network.hidden(tokens)) <= 1e-10
    if named == ("fold_norms",):
        same, expected, b_U = fold_norms(a, {name: p.numpy() for name, p in state_of(network).items()})
        assert same == a
        assert not b_U.any()
        assert set(view) == set(expected)
        for name, value in expected.items():
            assert difference(view[name], torch.tensor(np.asarray(value))) <= 1e-12, name


@settings(deadline=None, max_examples=30)
@given(architectures({"norm.kind": "layer", "final_norm": "norm"}), st.booleans())
def test_a_centred_view_gives_the_same_logits(a, fold):
    from pellucid.model import Transformer
    from pellucid.model.weights import load_state

    network, tokens = make_network(a), draw_tokens(a, 1, 4)
    try:
        view = weights_view(of_ids(network), fold_norms=fold, centre=True)
    except FoldError:
        return
    made = Transformer(view.architecture).double().eval()
    load_state(made, view)
    assert difference(made(tokens) + view.b_U, network(tokens)) <= 1e-10
    written = view["embed.projection.weight"].T if a.d_embed else view["embed.token.weight"]
    assert written.mean(1).abs().max() <= 1e-12
    with pytest.raises(KeyError, match="no weight"):
        _ = view["nothing"]


def test_centring_is_refused_where_the_mean_is_read():
    with pytest.raises(FoldError, match="mean is read"):
        weights_view(of_ids(make_network(A.with_fields({"norm.kind": "rms"}))), centre=True)
