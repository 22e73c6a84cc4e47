"""Without a tap the compiled graph is the graph of the model without taps, and compilation finds one whole graph.

Shape checking by decorators cannot be compiled, so this file runs without the import hook that the other
tests run with (see the Makefile).
"""

import ast
import importlib.util
import sys
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

MODEL = Path(pellucid.model.__file__).parent
UNTAPPED = "pellucid_untapped"
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


class Untap(ast.NodeTransformer):
    """Removes every trace of taps from a module of the model: calls, arguments, parameters."""

    def visit_Call(self, node):
        self.generic_visit(node)
        called = node.func
        if isinstance(called, ast.Name) and called.id == "tap":
            return node.args[1]  # tap(name, x) -> x
        if isinstance(called, ast.Attribute) and called.attr == "choose":
            return ast.Call(node.args[1], [], [])  # inner.choose(names, fused, ...) -> fused()
        keep = [i for i, a in enumerate(node.args) if not is_tap(a)]
        # a norm's name comes behind its tap and goes with it
        after = next((i for i, a in enumerate(node.args) if is_tap(a)), len(node.args))
        node.args = [node.args[i] for i in keep if i < after or not isinstance(node.args[i], ast.Constant)]
        node.keywords = [k for k in node.keywords if k.arg != "tap"]
        return node

    def visit_Compare(self, node):
        """`tap is OFF` holds where there is no tap."""
        return ast.Constant(True) if is_tap(node.left) else self.generic_visit(node)

    def visit_Assign(self, node):
        if is_tap(node.value):  # inner = tap.at(name)
            return None
        return self.generic_visit(node)

    def visit_arguments(self, node):
        """Drops `tap: Tap = OFF`, and `name` behind it."""
        self.generic_visit(node)
        places = [i for i, a in enumerate(node.args) if a.arg == "tap"]
        if places:
            n_without_default = len(node.args) - len(node.defaults)
            gone = [i for i, a in enumerate(node.args) if i == places[0] or (i > places[0] and a.arg == "name")]
            node.defaults = [d for i, d in enumerate(node.defaults) if i + n_without_default not in gone]
            node.args = [a for i, a in enumerate(node.args) if i not in gone]
        kept = [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if a.arg != "tap"]
        node.kwonlyargs, node.kw_defaults = [a for a, _ in kept], [d for _, d in kept]
        return node


def is_tap(node):
    """`tap`, or `tap.at(...)`."""
    at = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at"
    return (isinstance(node, ast.Name) and node.id == "tap") or (at and is_tap(node.func.value))


def without_taps(path):
    """The source of a module of the model as if taps had never been, importing its siblings from the copy."""
    tree = ast.fix_missing_locations(Untap().visit(ast.parse(path.read_text(encoding="utf-8"))))
    return ast.unparse(tree).replace("pellucid.model", UNTAPPED)


@pytest.fixture(scope="module")
def untapped(tmp_path_factory):
    """The package of the model with every tap removed from its text."""
    folder = tmp_path_factory.mktemp("untapped") / UNTAPPED
    folder.mkdir()
    for path in MODEL.glob("*.py"):
        # tap.py stays, for the names that are still imported from it
        text = path.read_text(encoding="utf-8") if path.stem == "tap" else without_taps(path)
        (folder / path.name).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        UNTAPPED, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[UNTAPPED] = module
    spec.loader.exec_module(module)
    yield module
    for name in [name for name in sys.modules if name.split(".")[0] == UNTAPPED]:
        del sys.modules[name]


def call_compiled(network, tokens, reading, **options):
    """The logits, and the operations of each graph that the compiler found, in order."""
    graphs = []

    def note(graph, inputs):
        calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        graphs.append([str(node.target) for node in calls])
        return graph.forward

    compiled = torch.compile(network, fullgraph=True, backend=note, dynamic=False)
    return compiled(tokens, **reading, **options), graphs


@pytest.mark.parametrize(
    "variant", one_in(3, [*VARIANTS, "gpt2 with encoder", "post with encoder", "relative with encoder"])
)
def test_the_graph_without_a_tap_is_the_graph_of_the_model_without_taps(variant, untapped):
    words, _, encoder = variant.partition(" with ")
    a = BASE.with_fields(VARIANTS[words])
    a = with_encoder(a) if encoder else a
    network = make_network(a, dtype=torch.float32)
    bare = untapped.Transformer(a).eval()
    bare.load_state_dict(network.state_dict())
    tokens = draw_tokens(a, 2, 4)
    reading = {} if a.encoder is None else {"source": network.encode(source_tokens(a, 2)).detach()}
    logits, graphs = call_compiled(network, tokens, reading)
    expected, bare_graphs = call_compiled(bare, tokens, reading)
    assert graphs == bare_graphs
    assert len(graphs) == 1
    assert len(graphs[0]) > 10
    assert torch.equal(logits, expected)
    assert torch.equal(logits, network(tokens, **reading))


def test_no_tap_is_left_in_the_text(untapped):
    for path in sorted(MODEL.glob("*.py")):
        if path.stem not in ("tap", "__init__"):
            tree = ast.parse(without_taps(path))
            assert not [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "tap"], path.name
            assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "choose"], path.name
    assert untapped.Transformer is not pellucid.model.Transformer


def test_a_live_tap_has_a_graph_of_its_own(untapped):
    """The comparison above can fail: with a tap that keeps, the operations are others."""
    network, tokens = make_network(BASE), draw_tokens(BASE, 2, 4)
    _, graphs = call_compiled(network, tokens, {})
    _, live = call_compiled(network, tokens, {}, tap=Recorder(["blocks.0.attn.pattern"]))
    assert graphs != live


@settings(max_examples=4)
@given(architectures(max_ctx=6))
def test_every_architecture_compiles_whole(a):
    torch.compiler.reset()
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    logits, graphs = call_compiled(network, tokens, {})
    assert len(graphs) == 1
    assert torch.equal(logits, network(tokens))


@settings(max_examples=3)
@given(architectures(max_ctx=6), st.data())
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
