"""An edit is data, and means the same on the engine, in the definition, in generation and as a change of weights."""

import json

import numpy as np
import pytest
import torch
from changing import drawn_edits, one_edit
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.edits import Edit, EditError, from_json, to_json
from pellucid.generate.decode import generate_ids
from pellucid.generate.sampling import Sampling
from pellucid.language_model import LanguageModel, load
from pellucid.lens import InputError, trace
from pellucid.lens.generation_trace import GenerationTrace
from pellucid.lens.weights.weight_edits import with_edits
from pellucid.model import Transformer
from pellucid.model.weights import load_state, state_of
from pellucid.reference import transformer as reference
from pellucid.reference.edits import apply_edit, edit_functions
from pellucid.reference.tap import TensorRecorder
from pellucid.tensor_names import axes, names
from pellucid.tensor_names import writers as names_of_writers
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, source_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 4, "n_kv_heads": 2})
#: outputs that stay finite whatever is done to what they are made of
SMOOTH = {"mlp.activation": st.sampled_from(["gelu", "gelu_tanh", "silu", "tanh"]), "norm.eps": 1e-2}


def define(network, tokens, edits, source=None):
    """Every tensor by definition, with resolved edits; freezing takes what a run without edits has."""
    a, weights = network.architecture, {name: p.numpy() for name, p in state_of(network).items()}

    def run(functions):
        tap, given = TensorRecorder(functions), {}
        if source is not None:
            given["source"] = reference.encode(a, weights, source.numpy(), tap=tap)
        reference.forward(a, weights, tokens.numpy(), tap=tap, **given)
        return tap.values

    clean = run({})
    values = [clean[e.name] if e.op == "freeze" and e.value is None else e.value for e in edits]
    made = [Edit(**{**vars(e), "value": v}) for e, v in zip(edits, values, strict=True)]
    return run(edit_functions(made))


def routes_are_clear(t):
    """Whether no position has two experts with equal scores, such as those of a zero, of which either may be used."""
    routers = [t[name] for name in names(t.architecture) if name.endswith(".mlp.router")]
    return all((scores.sort(-1).values.diff() > 0).all() for scores in routers)


@settings(max_examples=60)
@given(any_architectures(SMOOTH, max_ctx=6), st.data())
def test_the_same_edit_on_the_engine_and_in_the_definition(a, data):
    edits = data.draw(drawn_edits(a))
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    source = None if a.encoder is None else source_tokens(a, 2)
    t = trace(of_ids(network), tokens, edits=edits, **({} if source is None else {"source": source}))
    assume(routes_are_clear(t))
    expected = define(network, tokens, edits, source)
    for name, value in t.tensors("*").items():
        theirs = torch.tensor(expected[name])
        hidden = theirs == -torch.inf
        assert torch.equal(value == -torch.inf, hidden), name
        assert difference(value.masked_fill(hidden, 0), theirs.masked_fill(hidden, 0)) <= 1e-9, name


def test_edits_by_definition_on_one_tensor():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    rows = np.random.default_rng(1).normal(size=(2, 3, 4))
    name = "blocks.0.resid_pre"
    assert np.array_equal(apply_edit(change.clamp(name, low=0.5), x), np.maximum(x, 0.5))
    assert np.array_equal(apply_edit(change.clamp(name, high=0.5), x), np.minimum(x, 0.5))
    # a direction for each position of each row
    projected = apply_edit(change.project_out(name, rows), x)
    for b, i in np.ndindex(2, 3):
        u = rows[b, i] / np.linalg.norm(rows[b, i])
        assert np.allclose(projected[b, i], x[b, i] - (x[b, i] @ u) * u, atol=1e-14)
    # what is not named stays, whichever axis the place is on
    only = apply_edit(change.zero(name, row=1, pos=[0, 2]), x)
    assert np.array_equal(only[0], x[0])
    assert np.array_equal(only[1], x[1] * [[0], [1], [0]])


@settings(max_examples=40)
@given(any_architectures(), st.data())
def test_edits_survive_json(a, data):
    edits = data.draw(drawn_edits(a))
    again = from_json(to_json(edits))
    assert again == edits
    json.loads(to_json(edits), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert [e.to_dict() for e in again] == [e.to_dict() for e in edits]


def test_infinities_and_spans_survive_json():
    edits = [change.set_to("blocks.0.attn.scores", [[[[-torch.inf, 1.0]]]], pos=slice(3, None), key=range(2))]
    again = from_json(to_json(edits))[0]
    assert again.value == [[[[-torch.inf, 1.0]]]]
    assert again.pos == slice(3, None)
    assert again.key == (0, 1)


@settings(max_examples=25)
@given(
    any_architectures(SMOOTH | {"attention.mask": st.sampled_from(["causal", "prefix"])}, max_ctx=6),
    st.data(),
)
def test_edits_in_generation_do_not_depend_on_the_cache(a, data):
    """Prompts of different lengths, texts that outgrow the context: the same logits and tokens at every step."""
    network = make_network(a)
    edits = data.draw(drawn_edits(a, n=9, in_generation=True))
    prompts = [draw_tokens(a, 1, n, seed=n)[0].tolist() for n in (2, 4)]
    sources = None if a.encoder is None else [draw_tokens(a.encoder, 1, n)[0].tolist() for n in (3, 2)]
    found = []
    for cache in (True, False):
        options = {"max_tokens": 6, "sampling": Sampling(temperature=0), "cache": cache, "sources": sources}
        decoding = generate_ids(network, prompts, taps=GenerationTrace(network, edits), **options)
        found.append([(step.tokens, step.logits) for step in decoding])
    for (tokens, logits), (others, expected) in zip(*found, strict=True):
        assert difference(logits, expected) <= 1e-9
        assert tokens == others


@settings(max_examples=25)
@given(architectures(SMOOTH | {"attention.mask": st.sampled_from(["causal", "prefix"])}, max_ctx=9), st.data())
def test_what_is_kept_while_generating_is_what_a_trace_shows(a, data):
    network = make_network(a)
    edits = data.draw(drawn_edits(a, n=8, in_generation=True))
    # an edit that lets a position read later ones does so in a trace alone: what is generated has none yet
    assume(not any(edit.name.endswith(("scores", "pattern")) for edit in edits))
    prompt, n = draw_tokens(a, 1, 2)[0].tolist(), a.n_ctx - 2
    keep = [name for name in names(a) if name != "logits"]
    watch = GenerationTrace(network, edits, keep)
    decoding = generate_ids(network, [prompt], max_tokens=n, sampling=Sampling(temperature=0), taps=watch)
    for _ in decoding:
        pass
    ids = [*prompt, *decoding.rows[0].generated[:-1]]
    prefix = len(prompt) if a.attention.mask == "prefix" else 0
    t = trace(of_ids(network), ids, edits=edits, prefix=prefix)
    for name, value in watch.tensors().items():
        expected = t[name]
        hidden = expected == -torch.inf
        assert difference(value.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)) <= 1e-9, name


@settings(max_examples=15)
@given(any_architectures(SMOOTH | {"attention.mask": "causal", "n_ctx": 9}), st.data(), st.booleans())
def test_a_generation_s_logits_are_those_of_a_trace_with_its_edits(a, data, cache):
    """An encoder's tensors among them, edited and kept; of a prompt only the last token's logits are computed."""
    network = make_network(a)
    edits = data.draw(drawn_edits(a, n=8, in_generation=True))
    source = None if a.encoder is None else [draw_tokens(a.encoder, 1, 3)[0].tolist()]
    watch = GenerationTrace(network, edits, "*")
    options = {"max_tokens": 4, "sampling": Sampling(temperature=0), "taps": watch, "cache": cache, "sources": source}
    decoding = generate_ids(network, [[1, 2, 3]], **options)
    for _ in decoding:
        pass
    ids = [1, 2, 3, *decoding.rows[0].generated[:-1]]
    t = trace(of_ids(network), ids, edits=edits, **({} if source is None else {"source": source}))
    found = watch.tensors()
    assert list(found) == names(a)
    assert found["logits"][:, :2].isnan().all()
    found["logits"][:, :2] = t.logits[:, :2]
    for name, value in found.items():
        hidden = t[name] == -torch.inf
        assert difference(value.masked_fill(hidden, 0), t[name].masked_fill(hidden, 0)) <= 1e-9, name


@pytest.mark.parametrize("several", [{"beams": 2}, {"n": 2}])
def test_several_texts_are_not_kept_as_if_they_were_one(several):
    with pytest.raises(InputError, match="then trace the result"):
        model().generate_traced("abc", keep="logits", **several)


def test_nothing_is_kept_of_a_generation_without_a_step():
    assert model().generate_traced("abc", keep="*", max_tokens=0)[1] == {}
    a = with_encoder(A)
    reading = LanguageModel(make_network(a, dtype=torch.float32), model().tokenizer, {})
    tensors = reading.generate_traced("abc", keep="*", source="abc", max_tokens=0)[1]
    assert [*tensors] == [name for name in names(a) if name.startswith("encoder.")]


INSIDE = (
    "attn.z",
    "attn.result",
    "attn_out",
    "mlp_out",
    "mlp.pre",
    "mlp.gate",
    "mlp.post",
    "attn.q",
    "attn.k",
    "attn.v",
    "embed_projected",
)
INSIDE += tuple(name.replace("attn", "cross") for name in INSIDE if "attn" in name)
TABLES = ("embed", "pos_embed", "seg_embed", "ngram_embed")
BIASED = {
    "attention.bias": "all",
    "mlp.bias": "all",
    "readout": st.sampled_from(["affine", "bert"]),
    "readout_bias": "all",
}


def projects_tokens(a):
    """Whether P makes rows of the stream of the rows of W_E, so that edits of embed change P."""
    return a.d_embed > 0 and a.embed_projection == "tokens"


def is_change_of_weights(edit, a):
    """Whether an edit that applies at every position can be written into the weights."""
    part, last = a.encoder if edit.name.startswith("encoder.") else a, edit.name.split(".")[-1]
    numbered = edit.name.endswith(tuple(f"{name}.{l}" for name in ("mlp.pre", "mlp.post") for l in range(3)))
    if edit.op in ("clamp", "resample"):  # a trace's tensor differs between positions
        return False
    if last in TABLES:
        formula = last == "pos_embed" and part.positions.kind == "sinusoidal"
        adds_nowhere = last == "ngram_embed" or (last == "embed" and projects_tokens(part))
        return not formula and (not adds_nowhere or edit.op in ("zero", "scale", "project_out"))
    if last == "logits":
        return not a.logit_cap
    if part.mlp.experts and ".mlp" in edit.name:  # which expert adds something depends on the position
        return False
    normed = part.block in ("inner", "sandwich") and part.norm.kind != "none" and last in ("attn_out", "mlp_out")
    return (numbered or edit.name.endswith(INSIDE)) and not normed


@settings(max_examples=100)
@given(any_architectures(SMOOTH | BIASED, max_ctx=6), st.data())
def test_edits_written_into_the_weights(a, data):
    """One to three edits in any order, also of one tensor, or of the two sides of one linear map."""
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    able = [n for n in names(a) if n.endswith((*INSIDE, *TABLES, "logits", *(".0", ".1"))) and "norm" not in n]
    drawn = [
        data.draw(one_edit(a, name, 4, in_generation=True))
        for name in data.draw(st.lists(st.sampled_from(able), min_size=1, max_size=3))
    ]
    edits = [Edit(**{**vars(edit), "pos": None}) for edit in drawn]
    if not all(is_change_of_weights(edit, a) for edit in edits):
        with pytest.raises(
            EditError, match=r"not a change of weights|differs between positions|is a formula|adds a vector"
        ):
            with_edits(network, edits)
        return
    changed = with_edits(network, edits)
    given_ = {} if a.encoder is None else {"source": source_tokens(a, 2)}
    expected = trace(of_ids(network), tokens, edits=edits, **given_).logits
    assert difference(trace(of_ids(changed), tokens, **given_).logits, expected) <= 1e-9
    apart = any(edit.name in (("logits",) if projects_tokens(a) else ("embed", "logits")) for edit in edits)
    assert (changed.unembed.weight is changed.embed.token.weight) == (a.unembed == "tied" and not apart)
    assert changed.architecture == a.with_fields(dict(unembed_and_source(a, edits)))
    again = Transformer(changed.architecture).double()
    load_state(again, state_of(changed))
    assert torch.equal(again(tokens, **encoded(again, given_)), changed(tokens, **encoded(changed, given_)))


def unembed_and_source(a, edits):
    """The options of an architecture that share a table, as they are when an edit changes one of the sharers."""
    changed = {edit.name for edit in edits if edit.name == "logits" or not projects_tokens(a)}  # else P changes
    if changed & {"embed", "logits"}:
        yield "unembed", "untied"
    if a.encoder is not None and a.source_embed == "shared" and changed & {"embed", "encoder.embed"}:
        yield "source_embed", "own"


def encoded(network, given_):
    return {"source": network.encode(given_["source"])} if given_ else {}


@pytest.mark.parametrize("name", ["blocks.1.attn_out", "blocks.0.mlp_out", "embed", "encoder.blocks.0.mlp_out"])
def test_projecting_out_is_the_projection_of_the_weights(name):
    """W <- (I - v v^T / v.v) W, and the bias; and then nothing is left of v in what is written."""
    a = with_encoder(A)
    network, v = make_network(a), torch.linspace(-1, 2, 8, dtype=torch.float64)
    changed = with_edits(network, [change.project_out(name, v)])
    P = torch.eye(8, dtype=torch.float64) - torch.outer(v, v) / (v @ v)
    maps = {"blocks.1.attn_out": "blocks.1.attn.out", "blocks.0.mlp_out": "blocks.0.mlp.down", "embed": "embed.token"}
    module = maps.get(name, "encoder.blocks.0.mlp.down")
    before, after = network.get_submodule(module), changed.get_submodule(module)
    expected = before.weight @ P if name == "embed" else P @ before.weight
    assert difference(after.weight, expected) <= 1e-12
    if name != "embed":
        assert difference(after.bias, P @ before.bias) <= 1e-12
    t = trace(of_ids(changed), draw_tokens(a), source=source_tokens(a, 2))
    assert (t[name] @ v).abs().max() <= 1e-12
    assert (trace(of_ids(network), draw_tokens(a), source=source_tokens(a, 2))[name] @ v).abs().max() > 0.1
    rest = {n: p for n, p in state_of(changed).items() if not n.startswith((module, "unembed.weight"))}
    assert all(torch.equal(p, state_of(network)[n]) for n, p in rest.items())


@pytest.mark.parametrize(("block", "of"), [("pre", "tokens"), ("post", "tokens"), ("shared", "tokens"), ("pre", "sum")])
def test_what_writes_to_the_stream_is_all_that_does(block, of):
    """A direction projected out of every writer of a point is in the stream at that point no more, norms aside."""
    a = A.with_fields({"block": block, "ngrams": [2], "norm.kind": "none", "d_embed": 6, "embed_projection": of})
    a = a if of == "sum" else a.with_fields({"d_embed": 0})
    point, v = "blocks.1.resid_pre", torch.linspace(-1, 2, 8, dtype=torch.float64)
    embeddings = "embed, pos_embed, ngram_embed" if of == "tokens" else "embed_projected"
    writers = embeddings + r", blocks\.0\.attn_out, blocks\.0\.mlp_out: edit these"
    with pytest.raises(EditError, match=f"comes from {writers}"):
        with_edits(make_network(a), [change.project_out(point, v)])
    edits = [change.project_out(name, v) for name in names_of_writers(point, a)]
    changed = with_edits(make_network(a), edits)
    assert (trace(of_ids(changed), draw_tokens(a))[point] @ v).abs().max() <= 1e-12
    with pytest.raises(EditError, match=r"blocks\.0\.cross_out, blocks\.0\.mlp_out"):
        with_edits(make_network(with_encoder(a)), [change.zero("blocks.1.resid_pre")])


def model():
    tokenizer = learn_tokenizer("char", ["abcdefghi"], None)
    return LanguageModel(make_network(A, dtype=torch.float32), tokenizer, {})


def test_an_ablated_head_is_saved(tmp_path):
    edits = [change.zero("blocks.1.attn.z", head=2), change.add("blocks.0.mlp_out", [0.5] * 8)]
    folder = model().save(tmp_path / "ablated", edits=edits)
    again = load(folder, device="cpu")
    expected = model().trace("abc", edits=edits).logits
    assert difference(again.trace("abc").logits, expected) <= 1e-5
    assert difference(model().trace("abc").logits, expected) > 1e-2
    direction = torch.linspace(-1, 1, 8)
    edits = [change.project_out(name, direction) for name in ("embed", "blocks.1.attn_out")]
    again = load(model().save(tmp_path / "projected", edits=edits), device="cpu")
    assert again.architecture == A.with_fields({"unembed": "untied"})
    assert difference(again.trace("abc").logits, model().trace("abc", edits=edits).logits) <= 1e-5
    with pytest.raises(EditError, match="at some positions"):
        model().save(tmp_path / "none", edits=[change.zero("blocks.1.attn.z", pos=0)])
    assert not (tmp_path / "none").exists()


@pytest.mark.gpu
def test_the_weights_of_a_model_on_a_gpu_are_edited_as_on_the_cpu():
    edits = [change.zero("blocks.1.attn.z", head=2), change.project_out("embed", torch.linspace(-1, 1, 8).cuda())]
    on_cpu = with_edits(model().network, [edits[0], change.project_out("embed", torch.linspace(-1, 1, 8))])
    changed = with_edits(model().network.cuda(), edits)
    assert {p.device.type for p in changed.parameters()} == {"cuda"}
    assert all(torch.equal(p.cpu(), state_of(on_cpu)[name]) for name, p in state_of(changed).items())


def test_generation_with_edits_from_the_model():
    unending = change.add("logits", torch.where(torch.arange(11) == model().tokenizer.separator, -1e3, 0.0))
    direction = torch.linspace(-1, 1, 8)
    edits = [change.add("blocks.0.resid_post", direction, factor=9.0, pos=slice(1, None)), unending]
    options = {"max_tokens": 5, "temperature": 0, "seed": 0, "edits": edits}
    made, tensors = model().generate_traced("abc", keep="blocks.1.attn.pattern", **options)
    assert made == model().generate("abc", **options) == model().generate("abc", cache=False, **options)
    n = tensors["blocks.1.attn.pattern"].size(2)
    assert n == 2 + len(made.ids) == 7
    assert made.ids != model().generate("abc", **options | {"edits": [unending]}).ids
    expected = model().trace(made, edits=edits)["blocks.1.attn.pattern"][:, :, :n, :n]
    assert difference(tensors["blocks.1.attn.pattern"], expected) <= 1e-5


def test_a_trace_as_the_value_of_an_edit():
    """Patching everything in from another input gives that input's logits; and traces are written resolved."""
    network = make_network(A)
    here, there = (trace(of_ids(network), draw_tokens(A, 1, 4, seed=s)) for s in (0, 1))
    edit = change.resample("blocks.1.resid_pre", there)
    patched = trace(of_ids(network), here.ids, edits=[edit])
    assert torch.equal(patched.logits, there.logits)
    with pytest.raises(EditError, match=r"write `trace\.edits`"):
        to_json([edit])
    again = trace(of_ids(network), here.ids, edits=from_json(to_json(patched.edits)))
    assert torch.equal(again.logits, there.logits)


def test_freezing_everything_behind_an_edit_undoes_it():
    network, tokens = make_network(A), draw_tokens(A)
    edits = [change.zero("blocks.0.attn.z", head=1), change.freeze("blocks.0.attn_out")]
    assert torch.equal(trace(of_ids(network), tokens, edits=edits).logits, trace(of_ids(network), tokens).logits)
    moved = trace(of_ids(network), tokens, edits=edits[:1]).logits
    assert difference(moved, trace(of_ids(network), tokens).logits) > 1e-3


def test_a_query_told_to_look_at_what_comes_later_does_not():
    network, tokens = make_network(A), draw_tokens(A)
    t = trace(of_ids(network), tokens, edits=[change.set_to("blocks.0.attn.scores", 3.0)])
    pattern = t[0].attn.pattern
    expected = torch.tril(torch.ones(4, 4, dtype=torch.float64)) / torch.arange(1, 5)[:, None]
    assert difference(pattern, expected.expand_as(pattern)) <= 1e-12


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: change.zero("embed", pos=-1), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=1.5), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=True), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=torch.tensor([False, True])), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=np.array([False, True])), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=torch.tensor(True)), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos="12"), "expected whole numbers from 0 on"),
        (lambda: change.zero("embed", pos=slice(0, 4, 2)), "has no step"),
        (lambda: change.zero("embed", pos=slice(5, 2)), "stands for no index"),
        (lambda: change.zero("embed", pos=slice(2, 2)), "stands for no index"),
        (lambda: change.zero("embed", row=[]), "stands for no index"),
        (lambda: change.clamp("embed"), "neither low nor high"),
        (lambda: Edit("halve", "embed"), "is not an edit"),
        (lambda: change.mean("embed", "time"), "give batch or pos"),
        (lambda: from_json('[{"op": "zero"}]'), "without name"),
        (lambda: from_json('[{"op": "zero", "name": "embed", "at": 3}]'), "no field 'at'"),
        (lambda: from_json('{"op": "zero"}'), "expected a JSON list"),
    ],
)
def test_edits_that_are_none_say_why(make, reason):
    with pytest.raises(EditError, match=reason):
        make()


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (change.zero("blocks.0.attn.k", head=1), "whose axes are b g j d: give kv_head"),
        (change.zero("blocks.0.attn.k", kv_head=2), "there are 2, counted from 0"),
        (change.zero("blocks.0.attn.z", kv_head=0), "give head"),
        (change.zero("blocks.0.attn.z", neuron=0), "leave it out"),
        (change.zero("blocks.0.attn.k", key=0), "give pos"),
        (change.add("blocks.0.attn.z", [1.0, 2.0, 3.0]), "a value of shape"),
        (change.add("blocks.0.attn.z", None), "was given no value"),
        (change.add("blocks.0.attn.z", "much"), "is not an array of numbers"),
        (change.project_out("embed", [1.0]), "a value of shape"),
        (change.project_out("embed", [0.0] * 8), "a vector of length 0"),
        (change.project_out("blocks.0.attn.z", [float("nan")] * 2), "a vector of length 0 or nan"),
        ("zero", "expected edits of pellucid.edits"),
    ],
)
def test_edits_that_do_not_fit_say_why(edit, reason):
    with pytest.raises(EditError, match=reason):
        trace(of_ids(make_network(A)), [1, 2], edits=[edit])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            change.zero("blocks.0.attn.z", pos=3),
            "pos = 3 of blocks.0.attn.z: this input has 3 positions, counted from 0",
        ),
        (change.zero("blocks.0.attn.z", pos=slice(3, None)), "pos = 3 of blocks.0.attn.z: this input has 3 positions"),
        (change.zero("blocks.0.attn.k", pos=[0, 9]), "pos = 9 of blocks.0.attn.k: this input has 3 positions"),
        (change.zero("blocks.0.attn.pattern", key=4), "key = 4 of blocks.0.attn.pattern: this input has 3 positions"),
        (change.zero("embed", row=2), "row = 2 of embed: this input has 2 rows, counted from 0"),
        (change.zero("blocks.0.cross.k", pos=2), "pos = 2 of blocks.0.cross.k: this input has 2 positions"),
        (change.zero("encoder.embed", pos=2), "pos = 2 of encoder.embed: this input has 2 positions"),
    ],
)
def test_a_trace_refuses_edits_where_no_text_has_tokens(edit, reason):
    network, source = make_network(with_encoder(A)), [[1, 2], [3]]
    with pytest.raises(EditError, match=reason):
        trace(of_ids(network), [[1, 2, 3], [4, 5]], edits=[edit], source=source)


def test_an_edit_may_be_at_a_position_that_some_text_has_or_that_generation_reaches():
    network, edit = make_network(A), change.zero("blocks.0.attn.z", pos=[2])
    texts, plain = [[1, 2, 3], [4, 5]], trace(of_ids(network), [[1, 2, 3], [4, 5]])
    assert not torch.equal(trace(of_ids(network), texts, edits=[edit]).logits[0, 2], plain.logits[0, 2])
    trace(of_ids(network), texts, edits=[change.zero("blocks.0.attn.z", pos=slice(1, 100))])
    GenerationTrace(network, [change.zero("blocks.0.attn.z", pos=100, row=5)])


def test_neurons_of_a_shared_expert_are_edited():
    mixture = {"mlp.experts": 3, "mlp.experts_per_token": 1, "mlp.d_ff": 4, "mlp.shared_d_ff": 6}
    network, name = make_network(A.with_fields(mixture)), "blocks.0.mlp.shared.post"
    edit = change.zero(name, neuron=5)
    edited, plain = (trace(of_ids(network), [1, 2, 3], edits=edits) for edits in ([edit], []))
    assert not edited[name][..., 5].any()
    assert torch.equal(edited[name][..., :5], plain[name][..., :5])
    with pytest.raises(EditError, match="a mixture of experts chooses by position"):
        with_edits(network, [edit])
    with pytest.raises(EditError, match=r"neuron = 6 of blocks\.0\.mlp\.shared\.post: there are 6"):
        trace(of_ids(network), [1], edits=[change.zero(name, neuron=6)])
    with pytest.raises(EditError, match=r"neuron = 4 of blocks\.0\.mlp\.expert_0\.post: there are 4"):
        trace(of_ids(network), [1], edits=[change.zero("blocks.0.mlp.expert_0.post", neuron=4)])


def test_one_edit_is_no_list():
    with pytest.raises(EditError, match=r"give \[zero\(\.\.\.\)\]"):
        trace(of_ids(make_network(A)), [1, 2], edits=change.zero("embed"))


def test_names_that_cannot_be_edited_say_why():
    with pytest.raises(KeyError, match="it follows from the logits"):
        trace(of_ids(make_network(A)), [1, 2], edits=[change.zero("probs")])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (change.mean("blocks.0.attn.z", "pos"), "is not all there yet"),
        (change.mean("blocks.0.attn.z", "batch"), "is not all there yet"),
        (change.freeze("blocks.0.attn.z"), "is not all there yet"),
    ],
)
def test_edits_that_generation_cannot_make_say_why(edit, reason):
    with pytest.raises(EditError, match=reason):
        model().generate("a", edits=[edit])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (change.clamp("blocks.0.attn.z", 0.0), "is not a change of weights"),
        (change.zero("blocks.0.resid_mid"), r"comes from embed, pos_embed, blocks\.0\.attn_out: edit these"),
        (change.project_out("blocks.0.resid_pre", torch.ones(8)), "comes from embed, pos_embed: edit these"),
        (change.zero("blocks.0.norm_1"), "not a change of the weights of a linear map"),
        (change.project_out("blocks.0.attn_out", torch.ones(8), pos=1), "at some positions"),
        (change.project_out("blocks.0.attn_out", torch.ones(1, 3, 8)), "differs between positions"),
        (change.set_to("blocks.0.mlp_out", torch.ones(1, 3, 8)), "differs between positions"),
    ],
)
def test_edits_that_no_weight_does_say_why(edit, reason):
    with pytest.raises(EditError, match=reason):
        with_edits(make_network(A), [edit])


def test_a_value_without_a_bias_to_take_it_up_names_the_word():
    network = make_network(A.with_fields({"attention.bias": "none"}))
    with pytest.raises(EditError, match=r"attention\.bias"):
        with_edits(network, [change.add("blocks.0.attn_out", 1.0)])
    for name in ("logits", "blocks.0.attn.z"):
        with pytest.raises(EditError, match="readout" if name == "logits" else r"attention\.bias"):
            with_edits(network, [change.add(name, 1.0)])
    cancelled = [change.add("blocks.0.attn_out", 1.0), change.zero("blocks.0.attn_out")]
    assert not with_edits(network, cancelled).blocks[0].attn.out.weight.any()
    assert axes("blocks.0.attn_out") == ["b", "i", "m"]


INDICES = [np.argmax(np.array([0, 0, 1])), torch.tensor(2), torch.tensor([2]), np.array([2])]


@pytest.mark.parametrize("one", INDICES, ids=repr)
def test_places_may_be_numbers_of_numpy_and_pytorch(one):
    assert change.zero("embed", pos=one).to_dict() == change.zero("embed", pos=2).to_dict()
    (written,) = json.loads(to_json([change.zero("embed", pos=slice(None, np.int64(2)))]))
    assert written["pos"] == {"from": 0, "to": 2}
    assert change.zero("embed", pos=slice(1, None)).to_dict()["pos"] == {"from": 1, "to": None}


@pytest.mark.parametrize("half", [torch.tensor(0.5), np.float32(0.5), np.array(0.5)], ids=["torch", "numpy", "array"])
def test_numbers_of_numpy_and_pytorch_are_written_as_numbers(half):
    edits = [change.scale("embed", half), change.clamp("embed", low=half, high=half), change.add("embed", [half] * 8)]
    plain = [change.scale("embed", 0.5), change.clamp("embed", low=0.5, high=0.5), change.add("embed", [0.5] * 8)]
    assert edits == plain
    assert to_json(edits) == to_json(plain)
    assert from_json(to_json(edits)) == plain


def test_other_text_in_the_place_of_a_number_is_refused():
    for field in ('"factor": "half"', '"value": [1.0, "2"]'):
        with pytest.raises(
            EditError, match=r"of the edit of embed is no array of numbers: .*: expected a number, or inf"
        ):
            from_json('[{"op": "scale", "name": "embed", ' + field + "}]")


def test_numbers_that_json_lacks_are_written_as_text():
    edits = [change.add("embed", [torch.nan, 1.0], factor=-torch.inf), change.clamp("embed", low=-torch.inf, high=0.0)]
    text = to_json(edits)
    assert json.loads(text)[0]["value"] == ["nan", 1.0]
    again = from_json(text)
    assert again == edits
    assert again[0].factor == again[1].low == -torch.inf
    assert np.isnan(again[0].value[0])
