"""Without a tap the compiled graph has no operation of a tap, and compilation finds one whole graph.

Shape checking by decorators cannot be compiled, so this file runs without the import hook that the other
tests run with (see the Makefile).
"""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid.model
from drawing import architectures, make_network
from pellucid.architecture import Architecture
from pellucid.model import Recorder
from pellucid.tensor_names import names
from running import draw_tokens, source_tokens, with_encoder
from some_cases import one_in

MODEL, TORCH = Path(pellucid.model.__file__).parent, Path(torch.__file__).parent
BASE = Architecture(n_vocab=7, n_ctx=6, d_model=8, n_layers=2).with_fields({"n_heads": 2})
VARIANTS = {
    "gpt2": {},
    "post": {"block": "post", "embed_norm": "norm", "final_norm": "none", "readout": "bert", "n_segments": 2},
    "parallel": {"block": "parallel", "positions.kind": "rotary", "unembed": "untied"},
    "modern": {"positions.kind": "rotary", "norm.kind": "rms", "qk_norm": "rms", "n_kv_heads": 1, "mlp.form": "gated"},
    "alibi": {"positions.kind": "alibi", "windows": "0,3", "norm.eps_at": "outside"},
    "bare": {"positions.kind": "none", "norm.kind": "none", "mlp.n_hidden": 2, "mask": "bidirectional"},
    "sinusoidal": {"positions.kind": "sinusoidal", "mlp.n_hidden": 0, "embed_scale": "sqrt(d_model)"},
    "ngrams": {"ngrams": "2,3", "ngram_rows": 7},
    "relative": {"positions.kind": "relative", "logit_scale": "1/sqrt(d_model)", "source_embed": "shared"},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No graph of another test is reused, and nothing is compiled for shapes that may change."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def call_compiled(network, tokens, reading, **options):
    """The logits, and the nodes of each graph that the compiler found, in order."""
    graphs = []

    def note(graph, inputs):
        graphs.append([node for node in graph.graph.nodes if node.op.startswith("call_")])
        return graph.forward

    compiled = torch.compile(network, fullgraph=True, backend=note, dynamic=False)
    return compiled(tokens, **reading, **options), graphs


def files_of(nodes):
    """The files whose lines compute these nodes, by themselves or through PyTorch's own functions."""
    stacks = [re.findall(r'File "(.+?)", line', node.meta["stack_trace"]) for node in nodes]
    return {next(path for file in reversed(stack) if TORCH not in (path := Path(file)).parents) for stack in stacks}


def operations(nodes):
    return [str(node.target) for node in nodes]


@pytest.mark.parametrize(
    "variant", one_in(12, [*VARIANTS, "gpt2 with encoder", "post with encoder", "relative with encoder"])
)
def test_without_a_tap_no_operation_of_the_graph_is_a_tap_s(variant):
    """One whole graph, every operation of which a line of the network asks for, and the fused kernel in each layer."""
    words, _, encoder = variant.partition(" with ")
    a = BASE.with_fields(VARIANTS[words])
    a = with_encoder(a) if encoder else a
    network = make_network(a, dtype=torch.float32)
    tokens = draw_tokens(a, 2, 4)
    reading = {} if a.encoder is None else {"source": network.encode(source_tokens(a, 2)).detach()}
    logits, graphs = call_compiled(network, tokens, reading)
    assert len(graphs) == 1
    files = files_of(graphs[0])
    assert files
    assert all(file.parent == MODEL and file.name != "tap.py" for file in files), files
    attentions = a.n_layers * (2 if a.encoder is not None else 1)
    assert operations(graphs[0]).count("<built-in function scaled_dot_product_attention>") == attentions
    assert torch.equal(logits, network(tokens, **reading))


def test_a_live_tap_has_operations_of_its_own():
    """The check above can fail: a tap that keeps detaches, and one that edits computes what the edit does."""
    network, tokens = make_network(BASE), draw_tokens(BASE, 2, 4)
    _, (bare,) = call_compiled(network, tokens, {})
    _, (keeping,) = call_compiled(network, tokens, {}, tap=Recorder(["blocks.0.attn.pattern"]))
    assert MODEL / "tap.py" in files_of(keeping)
    assert operations(bare) != operations(keeping)
    edits = {"blocks.0.resid_mid": [lambda x: 0.5 * x]}
    _, (editing,) = call_compiled(network, tokens, {}, tap=Recorder(edits=edits))
    assert Path(__file__) in files_of(editing)


#: how many positions use an expert is known when it is computed, and a compiled graph is cut there
ONE_MLP = {"mlp.experts": 0, "mlp.shared_d_ff": 0}


@settings(max_examples=4)
@given(architectures(ONE_MLP, max_ctx=6))
def test_every_architecture_compiles_whole(a):
    torch.compiler.reset()
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    logits, graphs = call_compiled(network, tokens, {})
    assert len(graphs) == 1
    assert torch.equal(logits, network(tokens))


@pytest.mark.slow
@settings(max_examples=3)
@given(architectures(ONE_MLP, max_ctx=6), st.data())
def test_so_does_a_tap_that_keeps_and_edits(a, data):
    torch.compiler.reset()
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    edited = data.draw(st.sampled_from(names(a)))
    recorders = [Recorder(names(a), {edited: [lambda x: 0.5 * x]}) for _ in range(2)]
    logits, graphs = call_compiled(network, tokens, {}, tap=recorders[0])
    assert len(graphs) == 1
    assert torch.equal(logits, network(tokens, tap=recorders[1]))
    assert recorders[0].values.keys() == set(names(a))
    for name, value in recorders[0].values.items():
        assert torch.equal(value, recorders[1].values[name]), name


@pytest.mark.slow
def test_a_mixture_of_experts_compiles_in_several_graphs():
    a = BASE.with_fields({"mlp.experts": 3, "mlp.experts_per_token": 2})
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    compiled = torch.compile(network, backend="eager", dynamic=False)
    with torch.no_grad():
        assert torch.equal(compiled(tokens), network(tokens))


def test_turning_a_tap_on_and_off_compiles_twice_and_no_more():
    network, tokens, count = make_network(BASE), draw_tokens(BASE, 2, 4), []

    def note(graph, inputs):
        count.append(graph)
        return graph.forward

    compiled = torch.compile(network, fullgraph=True, backend=note, dynamic=False)
    for _ in range(3):
        compiled(tokens)
        compiled(tokens, tap=Recorder(["blocks.1.resid_mid"]))
    assert len(count) == 2
