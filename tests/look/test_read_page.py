"""The page Read: its steps are the model's own, for every kind of architecture, and its numbers are the trace's."""

import re
import sys

import numpy as np
import pytest
import torch
from tests.look.conftest import TEXT, encoder_decoder, ready, shown_numbers, small_model

from drawing import make_network
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.edits import zero
from pellucid.generate.sampling import Sampling
from pellucid.language_model import LanguageModel
from pellucid.lens.core.inputs import InputError
from pellucid.look.caching import cached_step
from pellucid.look.reading import column, dot_product, numbers_of_part, sampled, shuffled_order
from pellucid.look.session import Session
from pellucid.look.step import mathml
from pellucid.look.steps import model_steps
from pellucid.reference.functions import softmax
from pellucid.reference.tap import NoRecorder
from pellucid.reference.transformer import encode, forward, hidden
from pellucid.reference.weights import random_weights
from pellucid.tensor_names import axes, names
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from planted import BASE, TWO_LISTS
from some_cases import one_in

ENCODER = Architecture(
    n_vocab=300,
    n_ctx=64,
    d_model=16,
    n_layers=1,
    attention=Attention(n_heads=2, mask="bidirectional"),
    positions=Positions(kind="sinusoidal"),
    mlp=MLP(d_ff=8, activation="relu"),
)
#: what a step may do differently, each at least once
KINDS = {
    "gpt-2": {},
    "llama": {
        "positions": Positions(kind="rotary"),
        "norm": Norm(kind="rms"),
        "mlp": MLP(d_ff=8, activation="silu", form="gated", bias="none"),
        "attention": Attention(n_heads=4, n_kv_heads=2, bias="none"),
        "unembed": "untied",
    },
    "gemma": {
        "block": "sandwich",
        "positions": Positions(kind="rotary"),
        "norm": Norm(kind="rms", gain="1+g"),
        "attention": Attention(n_heads=2, windows=(3, 0), score_cap=5.0, qk_norm="rms"),
        "mlp": MLP(d_ff=8, form="gated"),
        "embed_scale": "sqrt(d_model)",
        "logit_cap": 3.0,
    },
    "scaled": {
        "residual_scale": 0.25,
        "embed_scale": "embed_scale_value",
        "embed_scale_value": 3.0,
        "logit_scale": "logit_scale_value",
        "logit_scale_value": 0.5,
    },
    "parallel": {
        "block": "parallel",
        "positions": Positions(kind="rotary", fraction=0.5),
        "attention": Attention(n_heads=2, qk_norm="layer"),
        "readout": "affine",
    },
    "shared": {
        "block": "shared",
        "positions": Positions(kind="rotary", layout="pairs"),
        "attention": Attention(n_heads=2, n_kv_heads=1, qk_norm="layer_own"),
    },
    "olmo": {
        "norm": Norm(gain="1", bias="none"),
        "positions": Positions(kind="rotary"),
        "attention": Attention(n_heads=2, qk_norm="rms_all"),
    },
    "inner": {"block": "inner", "norm": Norm(kind="rms"), "attention": Attention(n_heads=2, qk_norm="rms_all")},
    "post": {
        "block": "post",
        "final_norm": "none",
        "norm": Norm(eps_at="outside"),
        "positions": Positions(kind="sinusoidal"),
    },
    "alibi": {"positions": Positions(kind="alibi"), "mlp": MLP(d_ff=8, n_hidden=2), "embed_norm": "norm"},
    "relative": {
        "positions": Positions(kind="relative", n_buckets=8, max_distance=16),
        "logit_scale": "1/sqrt(d_model)",
    },
    "no norm": {"norm": Norm(kind="none"), "positions": Positions(kind="none"), "mlp": MLP(n_hidden=0)},
    "n-gram tables": {"ngrams": (2, 3), "ngram_rows": 64},
    "bert": {
        "block": "post",
        "final_norm": "none",
        "embed_norm": "norm",
        "n_segments": 2,
        "readout": "bert",
        "attention": Attention(n_heads=2, mask="bidirectional"),
        "mlp": MLP(d_ff=8, activation="gelu"),
    },
    "no readout": {"readout": "none", "attention": Attention(n_heads=2, mask="bidirectional")},
    "encoder-decoder": {"encoder": ENCODER, "source_embed": "shared"},
    "post-norm encoder-decoder": {"encoder": ENCODER, "block": "post", "final_norm": "none"},
    "rows of another width": {"d_embed": 6},
    "modernbert": {
        "attention": Attention(n_heads=2, mask="bidirectional", bias="none", windows=(0, 2)),
        "mlp": MLP(d_ff=8, form="gated", bias="none"),
        "positions": Positions(kind="rotary", local_base=30.0),
        "norm": Norm(bias="none"),
        "embed_norm": "norm",
        "first_norm": "none",
        "readout": "bert",
        "readout_bias": "logits",
    },
    "first block unnormed, shared": {"block": "shared", "first_norm": "none"},
    "a projected sum": {"d_embed": 6, "embed_projection": "sum"},
}


def model_of(kind):
    if "encoder" in kind:
        vocabulary = small_model().architecture.n_vocab
        encoder = ENCODER.with_fields({"n_vocab": vocabulary})
        return small_model(**(KINDS[kind] | {"encoder": encoder}))
    return small_model(**KINDS[kind])


class Definition(NoRecorder):
    """One pass of the definition with edits: the values of its tensors, and the function and line that tapped each."""

    def __init__(self, a, edits=None, scope=None):
        self.scope, self.edits = scope or "", edits or {}
        if scope is not None:
            return
        self.values, self.places = {}, {}
        rng = np.random.default_rng(0)
        weights, tokens = random_weights(a, rng), rng.integers(0, a.n_vocab, 6)
        source = encode(a, weights, tokens[:4], tap=self) if a.encoder is not None else None
        if a.readout == "none":
            hidden(a, weights, tokens, tap=self)
        else:
            self.values["probs"] = softmax(forward(a, weights, tokens, source=source, tap=self))[None]
            self.places["probs"] = "trace_by_definition", None

    def __call__(self, name, value):
        full, caller = self.scope + name, sys._getframe(1)
        value = self.edits.get(full, lambda x: x)(value)
        self.values[full], self.places[full] = value, (caller.f_code.co_name, caller.f_lineno)
        return value

    def at(self, scope):
        inner = Definition(None, self.edits, f"{self.scope}{scope}.")
        inner.values, inner.places = self.values, self.places
        return inner


def moved(x):
    """A tensor with other numbers."""
    return x + np.random.default_rng(1).normal(size=x.shape)


@pytest.fixture(scope="module", params=one_in(3, KINDS))
def architecture(request):
    """One of each kind."""
    return model_of(request.param).architecture


def test_every_tensor_of_the_model_has_one_step_and_no_other_has(architecture):
    steps = [step.name for step in model_steps(architecture)]
    expected = names(architecture) + (["probs"] if architecture.readout != "none" else [])
    assert sorted(steps) == sorted(expected)
    assert len(steps) == len(set(steps))


def test_every_equation_names_the_tensors_that_its_step_is_computed_from_and_no_other(architecture):
    plain = Definition(architecture).values
    first = {"embed": moved, "encoder.embed": moved}
    for step in model_steps(architecture):
        drawn = mathml(step.equation)
        assert "\\" not in drawn, "a command that latex2mathml lacks"
        own, *read = re.findall('data-tensor="([^"]*)"', drawn)
        assert own == step.name
        if own not in first:
            kept = {name: lambda _, name=name: plain[name] for name in read}
            np.testing.assert_array_equal(Definition(architecture, first | kept).values[own], plain[own], own)
        for name in set(read):
            assert not np.array_equal(Definition(architecture, {name: moved}).values[own], plain[own]), (own, name)


def test_every_step_points_at_the_line_of_the_definition_that_computes_it(architecture):
    shown, places = column(architecture), Definition(architecture).places
    for step in (step for part in shown["parts"] for step in part["steps"]):
        definition = shown["definitions"][step["definition"]]
        function, number = places[step["name"]]
        assert f"def {function}(" in definition["lines"][0]
        if number is None:
            assert f'tap("{step["name"]}"' in definition["lines"][step["line"]]
        else:
            assert definition["first"] + step["line"] == number, step["name"]


def test_the_numbers_of_a_part_are_the_traces(model):
    trace = model.trace(TEXT)
    values = numbers_of_part(trace, "blocks.1", -2)
    for name, x in values.items():
        letters = axes(name)[1:]
        axis = letters.index("i" if "i" in letters else "j")
        np.testing.assert_array_equal(x, trace[name][0].select(axis, -2).numpy(), err_msg=name)
    np.testing.assert_array_equal(values["blocks.1.attn.pattern"], trace["blocks.1.attn.pattern"][0, :, -2].numpy())
    with pytest.raises(KeyError, match="has no part"):
        numbers_of_part(trace, "blocks.7", 0)
    with pytest.raises(IndexError, match="numbered from 0"):
        numbers_of_part(trace, "blocks.1", 999)


@pytest.mark.parametrize("kind", ["gpt-2", "llama", "alibi", "gemma"])
def test_a_dot_product_adds_up_to_the_number_in_the_trace(kind):
    model = model_of(kind)
    trace = model.trace(TEXT)
    for name, entry in (("blocks.1.attn.scores", 0), ("blocks.1.attn.z", 3), ("logits", 7)):
        got = dot_product(trace, name, 5, 1, 2, entry)
        assert sum(got["products"]) == pytest.approx(got["sum"], abs=1e-9)
        assert got["factor"] * got["sum"] + got["added"] == pytest.approx(got["value"], abs=1e-9)
        if kind in ("gpt-2", "llama") or name.endswith(".z"):
            assert abs(got["added"]) < 1e-6 * sum(abs(x) for x in got["products"]) + 1e-6
    later = dot_product(trace, "blocks.0.attn.scores", 3, 0, 4, 0)
    assert later["masked"]
    assert later["value"] is None


def test_a_product_whose_factors_have_no_name_is_refused():
    trace = model_of("inner").trace(TEXT)
    with pytest.raises(InputError, match="have no name"):
        dot_product(trace, "blocks.0.attn.scores", 3, 0, 1, 0)
    with pytest.raises(InputError, match="not taken apart"):
        dot_product(trace, "blocks.0.mlp_out", 3, 0, 1, 0)


def test_sampling_shows_what_is_drawn_from(model):
    trace = model.trace(TEXT)
    plain = sampled(trace, -1, Sampling(), 0)
    assert [row["p"] for row in plain["rows"]] == pytest.approx([row["drawn_from"] for row in plain["rows"]])
    few = sampled(trace, -1, Sampling(temperature=0.7, top_k=3), 0)
    assert few["kept"] == 3
    assert sum(row["drawn_from"] for row in few["rows"]) == pytest.approx(1)
    scope = {"trace": trace}
    exec(few["code"], scope)
    by_id = scope["result"][0]
    assert [row["drawn_from"] for row in few["rows"]] == pytest.approx([float(by_id[row["id"]]) for row in few["rows"]])
    greedy = sampled(trace, -1, Sampling(temperature=0), 3)
    assert greedy["kept"] == 1
    assert greedy["drawn"]["id"] == int(trace.logits[0, -1].argmax())


@pytest.mark.gpu
def test_what_a_model_on_a_gpu_is_sampled_from_is_shown():
    on_cpu, on_gpu = small_model(), small_model()
    on_gpu.network.to("cuda")
    sampling = Sampling(temperature=0.7, top_k=3)
    expected, found = (sampled(model.trace(TEXT), -1, sampling, 0) for model in (on_cpu, on_gpu))
    assert found["drawn"]["id"] == expected["drawn"]["id"]
    assert [row["p"] for row in found["rows"]] == pytest.approx([row["p"] for row in expected["rows"]], rel=1e-3)


@pytest.mark.parametrize("kind", ["gpt-2", "llama", "alibi", "n-gram tables"])
def test_without_positions_and_mask_a_shuffled_text_moves_nothing(kind):
    trace = model_of(kind).trace(TEXT)
    free = shuffled_order(trace, 0, positions=False, mask=False)
    assert free["largest"] < 1e-4
    assert shuffled_order(trace, 0, positions=True, mask=False)["largest"] > 1e-2
    assert shuffled_order(trace, 0, positions=False, mask=True)["largest"] > 1e-2
    scope = {"trace": trace}
    exec(free["code"], scope)
    assert scope["result"].tolist() == pytest.approx(free["difference"])


def test_a_shuffled_text_is_read_without_edits(model):
    edited = model.trace(TEXT, edits=[zero("embed", pos=0)])
    shown, plain = (shuffled_order(t, 0, positions=True, mask=True) for t in (edited, model.trace(TEXT)))
    assert shown["difference"] == plain["difference"]


def test_no_step_with_a_cache_is_shown_where_the_whole_text_has_other_frequencies():
    trace = LanguageModel(make_network(BASE.with_fields(TWO_LISTS)), ByteTokenizer(), {}).trace("0123456789")
    assert "more than 9 tokens (positions.n_trained)" in cached_step(trace, 9)["reason"]
    short = LanguageModel(trace.network, ByteTokenizer(), {}).trace("012345678")
    assert cached_step(short, 8)["difference"] <= 1e-10


@pytest.mark.parametrize("kind", ["gpt-2", "llama", "gemma", "n-gram tables", "no norm"])
def test_the_step_with_a_cache_is_the_whole_pass(kind):
    model = model_of(kind)
    trace = model.trace(TEXT)
    n = trace.ids.size(1)
    for pos in (0, 4, n - 1):
        step = cached_step(trace, pos)
        assert step["difference"] <= 1e-5 * float(trace.logits.abs().max())
        for r, first in enumerate(step["blocks"]):
            pattern = trace[f"blocks.{r}.attn.pattern"][0, :, pos]
            assert bool((pattern[:, first : pos + 1] > 0).all())
            assert bool((pattern[:, :first] == 0).all())
        per_position = sum(trace[f"blocks.{r}.attn.{x}"][0, :, 0].numel() for r in range(2) for x in ("k", "v"))
        assert step["per_token"] == per_position
        assert step["bytes"] == 4 * per_position * (pos + 1)
        head, _, last = step["code"].rstrip().rpartition("\n")
        names = {"model": model, "trace": trace}
        exec(head, names)
        torch.testing.assert_close(eval(last, names)[0, -1], trace.logits[0, pos], rtol=1e-4, atol=1e-4)


def test_where_nothing_is_kept_the_page_says_why():
    for kind, why in (("bert", "may read later ones"), ("no readout", "may read later ones")):
        assert why in cached_step(model_of(kind).trace(TEXT), 0)["reason"]
    assert "without an encoder" in cached_step(model_of("encoder-decoder").trace(TEXT, source="a"), 0)["reason"]
    assert "without edits" in cached_step(model_of("gpt-2").trace(TEXT, edits=[zero("embed", pos=0)]), 0)["reason"]


def test_the_numbers_on_the_page_are_the_traces(inspector, visit):
    edits = '[{"op":"zero","name":"blocks.0.attn.z","head":[1]}]'
    page = visit(f'{inspector.url}/#edits={edits}&pos=4&open=["embed","blocks.0","blocks.1","output"]')
    trace = inspector.model.trace(inspector.session.results["examples"].text, edits=[zero("blocks.0.attn.z", head=1)])
    page.wait_for_selector("section[data-part=output][data-at$='/4']")
    page.wait_for_selector("section[data-part='blocks.1'][data-at$='/4']")
    page.wait_for_selector("section[data-part='blocks.0'][data-at$='/4']")
    shown = {name: value for name, value in shown_numbers(page, ".read").items() if "[" in name}
    assert len(shown) > 80
    for name, value in shown.items():
        full, _, indices = name.partition("[")
        x = trace[full][0]
        axis = x.dim() - 2
        at = [int(index) for index in indices.removesuffix("]").split("][")]
        want = float(x.select(axis, 4)[tuple(at)])
        assert value == pytest.approx(want, rel=1e-6, abs=1e-9), name
    assert shown_numbers(page, "#text")["text.id"] == int(trace.ids[0, 4])
    token = inspector.model.tokenizer.token_bytes(int(trace.ids[0, 4]))
    assert page.locator("[data-name='text.bytes']").inner_text() == token.hex(" ")
    top = {f"top.{int(i)}": float(p) for p, i in zip(*trace.probs[0, 4].topk(8), strict=True)}
    assert {name: value for name, value in shown_numbers(page).items() if name in top} == pytest.approx(top, rel=1e-4)


def test_a_score_of_an_encoder_is_between_tokens_of_the_source(look_into, visit):
    model, prompt, source = encoder_decoder(), "the cat sat on the mat", "the dog"
    state = f'a={prompt}&source={source}&read_key=1&open=["encoder.blocks.0"]'
    page = visit(f"{look_into(Session(model, name='pairs')).url}/#{state}")
    summary = page.locator("section[data-part='encoder.blocks.0'] .product summary")
    summary.wait_for()
    trace = model.trace(prompt, source=source)
    read = trace.source_tokens[0]
    assert len(read) < trace.ids.size(1)
    chips = [text.replace("\u00b7", " ") for text in summary.locator(".chip").all_inner_texts()]
    assert chips == [read[-1], read[1]]
    shown = shown_numbers(page, "section[data-part='encoder.blocks.0'] .product")
    expected = float(trace["encoder.blocks.0.attn.scores"][0, 0, -1, 1])
    assert shown["encoder.blocks.0.attn.scores[0][1]"] == pytest.approx(expected, rel=1e-5)


def test_a_token_is_written_only_behind_the_prompt_that_it_was_drawn_for(inspector, visit):
    prompt = "the cat"
    page = visit(f"{inspector.url}/#a={prompt}&read_temperature=0")
    button, held = page.locator("button:has-text('Write it behind the prompt')"), []
    drawn = sampled(inspector.model.trace(prompt), -1, Sampling(temperature=0), 0)["drawn"]["plain"]
    assert drawn
    page.route("**/api/trace", lambda route: held.append(route))
    button.click()
    page.wait_for_function("(text) => document.getElementById('prompt').value === text", arg=prompt + drawn)
    assert button.is_disabled()
    button.evaluate("(button) => button.click()")
    page.wait_for_timeout(100)
    assert page.input_value("#prompt") == prompt + drawn
    held[0].continue_()
    page.wait_for_selector("button:has-text('Write it behind the prompt'):not([disabled])")
    assert len(held) == 1


@pytest.mark.slow
def test_a_reader_follows_the_page_with_the_keyboard(inspector, visit):
    page = visit(inspector.url)
    page.wait_for_selector(".step")
    page.keyboard.press("ArrowLeft")
    ready(page)
    assert page.evaluate("location.hash").startswith("#pos=")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.fill("#prompt", "the dog sat")
    page.keyboard.press("Enter")
    page.wait_for_selector(".prompt .chip:nth-child(3)")
    assert "a=the+dog+sat" in page.evaluate("location.hash")
    page.go_back()
    ready(page)
    assert "a=the+dog" not in page.evaluate("location.hash")


@pytest.mark.slow
def test_the_tour_has_fourteen_cards_that_point_at_steps(inspector, visit):
    page = visit(inspector.url)
    page.click("text=Take the tour")
    titles = []
    while page.locator(".tour button:has-text('Next')").count():
        titles.append(page.locator(".tour h2").inner_text())
        page.click(".tour button:has-text('Next')")
        page.wait_for_selector(f".tour .quiet:has-text('{len(titles) + 1} of')")
    assert len({*titles}) == 13
    page.wait_for_selector(".step.lit[data-step=probs]")
    page.click(".tour button:has-text('Done')")
    assert page.locator(".tour").count() == 0


@pytest.mark.slow
def test_one_score_is_added_up_term_by_term(inspector, visit):
    page = visit(f"{inspector.url}/#pos=5&read_key=2&head=1")
    page.wait_for_selector("[data-product='1/2']")
    page.click("[data-product='1/2'] summary >> nth=0")
    trace = inspector.model.trace(inspector.session.results["examples"].text)
    want = trace["blocks.0.attn.scores"][0, 1, 5, 2]
    shown = shown_numbers(page, "[data-product]")
    assert shown["blocks.0.attn.scores[1][2]"] == pytest.approx(float(want), rel=1e-5)
    # what is kept while this text is written, at this position and at one that is clicked
    step = cached_step(trace, 5)
    cache = page.locator("#cache canvas")
    cache.wait_for()
    shown = shown_numbers(page, "#cache")
    assert [shown[f"cache.{name}"] for name in ("per_token", "bytes", "difference")] == [
        step[name] for name in ("per_token", "bytes", "difference")
    ]
    box = cache.bounding_box()
    cache.click(position={"x": box["width"] - 40, "y": box["height"] - 5})
    page.wait_for_function("!location.hash.includes('pos=5')")
    ready(page)
    pos = int(re.search(r"pos=(\d+)", page.evaluate("location.hash"))[1])
    page.wait_for_selector(f"[data-name='cache.bytes'][data-value='{4 * step['per_token'] * (pos + 1)}']")
