"""The page Experiment: its numbers are those of the lens, on a model whose answers are known; and the page itself."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs

import numpy as np
import pytest
import torch
from tests.look.conftest import RunningInspector, encoder_decoder, looking, ready, shown_numbers, small_model

from pellucid import edits
from pellucid.architecture import MLP, Attention, Norm, Positions
from pellucid.edits import EditError, from_json
from pellucid.language_model import known_answer
from pellucid.lens.analysis.metrics import kl, logit_diff, loss, probability
from pellucid.lens.core.inputs import InputError
from pellucid.look.experiment import (
    AblateBody,
    GenerateBody,
    MetricBody,
    PatchBody,
    SteerBody,
    ablation_lines,
    export_edits,
    patch_lines,
    side_by_side,
    steering_lines,
)
from pellucid.look.page_edits import edits_code, resolve_edits
from pellucid.look.session import PromptBody, Session
from pellucid.look.trace_card import trace_code, trace_facts
from pellucid.serve.protocol import EditBody
from some_cases import one_in

A, B = "Rome is the capital of", "Paris is the capital of"
COMPARED = {"kind": "logit_diff", "one": " Italy", "other": " France"}
MODEL = known_answer()


def run_code(code: str) -> dict:
    """The names that copied Python defines, and its last expression as `_`."""
    names = {"model": MODEL}
    lines = code.rstrip().splitlines()
    last = next(k for k in reversed(range(len(lines))) if not lines[k].startswith((" ", ")", "]")))
    try:
        compile("\n".join(lines[last:]), "copied", "eval")
    except SyntaxError:
        exec(code, names)
    else:
        exec("\n".join(lines[:last]), names)
        names["_"] = eval("\n".join(lines[last:]), names)
    return names


@pytest.mark.parametrize("site", ["resid_pre", "mlp_out", "attn.z", "attn.v"])
def test_patching_comes_as_estimates_and_then_exactly(site: str):
    start, *parts, end = patch_lines(MODEL, PatchBody(a=A, b=B, metric=MetricBody(**COMPARED), site=site))
    expected = MODEL.patch(B, A, logit_diff(" Italy", " France"), site=site, mode="both")
    assert (start["other"], start["own"]) == (pytest.approx(expected.clean), pytest.approx(expected.corrupt))
    np.testing.assert_allclose(start["estimate"], expected.estimate, atol=1e-5)
    exact = np.full(expected.exact.shape, np.nan)
    for part in parts:
        for position, head, value in part["cells"]:
            exact[(part["layer"], position, head)[: exact.ndim]] = value
    np.testing.assert_allclose(exact, expected.exact, atol=1e-5)
    assert parts[-1]["done"] == parts[-1]["total"] == exact.size
    assert end["correlation"] == pytest.approx(expected.agreement["correlation"], abs=1e-4, nan_ok=True)
    copied = run_code(start["code"])["patching"]
    torch.testing.assert_close(copied.exact, expected.exact)


def test_kl_has_exact_values_and_no_estimates():
    start, *parts, end = patch_lines(MODEL, PatchBody(a=A, b=B, metric=MetricBody(kind="kl")))
    assert start["estimate"] is None
    assert end == {"kind": "end", "correlation": None, "largest": None}
    expected = MODEL.patch(B, A, kl()).exact
    for part in parts:
        for position, _, value in part["cells"]:
            assert value == pytest.approx(float(expected[part["layer"], position]), abs=1e-5)
    assert parts[-1]["done"] == expected.numel()
    copied = run_code(start["code"])["patching"]
    assert copied.estimate is None
    torch.testing.assert_close(copied.exact, expected)


def test_a_loss_says_whose_tokens_it_scores():
    start = next(patch_lines(MODEL, PatchBody(a=A, b=B, metric=MetricBody(kind="loss"), exact=False)))
    assert start["metric"] == "loss on prompt A"
    assert start["own"] == pytest.approx(float(MODEL.trace(A).loss.mean()), abs=1e-5)


def test_patching_names_tokens_by_their_text():
    metric = MetricBody(one=MODEL.tokenizer.encode(" Italy")[0], other=MODEL.tokenizer.encode(" France")[0])
    start = next(patch_lines(MODEL, PatchBody(a=A, b=B, metric=metric, exact=False)))
    assert start["metric"] == "logit of ' Italy' - logit of ' France'"


def test_patching_stops_where_it_is_closed(monkeypatch: pytest.MonkeyPatch):
    from pellucid.lens.analysis import patching

    runs, run = [], patching._run
    monkeypatch.setattr(patching, "_run", lambda *arguments: runs.append(1) or run(*arguments))
    lines = patch_lines(MODEL, PatchBody(a=A, b=B, metric=MetricBody(**COMPARED)))
    assert next(lines)["kind"] == "start"
    assert not runs
    next(lines)
    next(lines)
    lines.close()
    assert len(runs) == 1
    assert list(lines) == []


def test_texts_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="equal numbers of tokens"):
        next(patch_lines(MODEL, PatchBody(a=A, b="Paris is", metric=MetricBody(**COMPARED))))


def test_a_metric_without_its_tokens_is_refused():
    with pytest.raises(InputError, match="name the tokens"):
        MetricBody(one=" Italy").metric()


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_ablation_is_that_of_the_lens(kind: str):
    lines = list(ablation_lines(MODEL, AblateBody(a=A, b=B, metric=MetricBody(**COMPARED), kind=kind)))
    assert [line["site"] for line in lines] == ["attn.z", "attn_out", "mlp_out"]
    for line in lines:
        expected = MODEL.ablate(
            A, logit_diff(" Italy", " France"), site=line["site"], kind=kind, reference=line_b(kind)
        )
        assert line["baseline"] == pytest.approx(expected.baseline)
        np.testing.assert_allclose(line["effect"], expected.effect, atol=1e-5)
        torch.testing.assert_close(run_code(line["code"])["_"], expected.effect)


def line_b(kind: str) -> str | None:
    return None if kind == "zero" else B


def test_resampling_needs_a_second_prompt():
    with pytest.raises(InputError, match="prompt B"):
        next(ablation_lines(MODEL, AblateBody(a=A, metric=MetricBody(**COMPARED), kind="resample")))


def test_steering_is_an_edit():
    at = "blocks.0.mlp_out"
    body = SteerBody(a=A, at=at, towards=B, away=A, pos="mean", metric=MetricBody(**COMPARED))
    start, *points = steering_lines(MODEL, body)
    assert [point["factor"] for point in points] == list(start["factors"])
    vector = MODEL.direction([B], [A], at=at, pos="mean")
    assert start["length"] == pytest.approx(float(vector.norm()))
    prepared = logit_diff(" Italy", " France")
    for point in (points[0], points[8], points[-1]):
        change = [edits.add(at, vector, point["factor"])]
        trace = MODEL.trace(A, edits=change)
        assert point["value"] == pytest.approx(float(prepared.of(trace)(trace.logits)), abs=1e-4)
        assert point["top"][0]["text"] == trace.top(k=1)[0][0]
        text, p = run_code(point["code"])["_"][0]
        assert (text, p) == (point["top"][0]["text"], pytest.approx(point["top"][0]["p"]))
    assert points[8]["factor"] == 0
    assert points[8]["top"][0]["text"] == " Italy"
    assert points[-1]["top"][0]["text"] == " France"


EDITS = [
    {"op": "zero", "name": "blocks.1.attn.z", "head": [1]},
    {"op": "resample", "name": "blocks.0.mlp_out", "pos": [0], "value": {"run_of": B}},
    {"op": "mean", "name": "blocks.1.attn.z", "head": [0], "value": {"mean_of": A}},
    {"op": "add", "name": "blocks.1.resid_pre", "factor": 2.0, "value": {"towards": B, "away": A, "pos": "mean"}},
    {"op": "scale", "name": "blocks.0.mlp_out", "factor": 0.5, "pos": {"from": 1, "to": 3}},
    {"op": "clamp", "name": "blocks.0.mlp.post", "high": 0.5, "neuron": 0},
    {"op": "set", "name": "blocks.0.mlp.post", "value": 0.0},
    {"op": "freeze", "name": "blocks.1.attn.pattern", "value": {"run_of": B}},
]


def by_hand() -> list[edits.Edit]:
    """The same with the values written out."""
    other = MODEL.trace(B)
    return [
        edits.zero("blocks.1.attn.z", head=1),
        edits.resample("blocks.0.mlp_out", other, pos=0),
        edits.mean("blocks.1.attn.z", MODEL.mean_activation(A, "blocks.1.attn.z"), head=0),
        edits.add("blocks.1.resid_pre", MODEL.direction([B], [A], at="blocks.1.resid_pre", pos="mean"), 2.0),
        edits.scale("blocks.0.mlp_out", 0.5, pos=slice(1, 3)),
        edits.clamp("blocks.0.mlp.post", high=0.5, neuron=0),
        edits.set_to("blocks.0.mlp.post", 0.0),
        edits.freeze("blocks.1.attn.pattern", other),
    ]


@pytest.mark.parametrize("k", range(len(EDITS)))
def test_an_edit_of_the_page_is_the_edit_by_hand_and_its_python(k: int):
    body = [EditBody(**EDITS[k])]
    expected = MODEL.trace(A, edits=[by_hand()[k]]).logits
    torch.testing.assert_close(MODEL.trace(A, edits=resolve_edits(body, MODEL)).logits, expected)
    copied = eval(edits_code(body), {"edits": edits, "model": MODEL})
    torch.testing.assert_close(MODEL.trace(A, edits=copied).logits, expected)


@pytest.mark.parametrize("value", [{"run_of": 3}, {"towards": A}, {"nothing": A}, {"run_of": A, "pos": 1}, {}])
def test_a_value_that_names_nothing_is_refused(value: dict):
    with pytest.raises(EditError, match="no array and names none"):
        resolve_edits([EditBody(op="set", name="blocks.0.mlp_out", value=value)], MODEL)


def test_a_trace_of_the_session_has_the_edits():
    session = Session(MODEL)
    prompt = PromptBody(text=A, edits=[EditBody(**EDITS[1])])
    assert session.trace(prompt).top(k=1)[0][0] == " France"
    assert session.trace(PromptBody(text=A)).top(k=1)[0][0] == " Italy"


def test_both_texts_are_those_of_generate():
    body = GenerateBody(a=A, edits=[EditBody(**EDITS[1])], max_tokens=8, temperature=0.5, seed=4)
    start, *pieces = side_by_side(MODEL, body)
    texts = {side: "".join(p["text"] for p in pieces if p["side"] == side) for side in ("without", "with")}
    options = {"max_tokens": 8, "temperature": 0.5, "seed": 4}
    assert texts["without"] == MODEL.generate(A, **options).text
    assert texts["with"] == MODEL.generate(A, edits=[by_hand()[1]], **options).text
    assert texts["with"].startswith(" France")
    assert {p["side"] for p in pieces if "ended" in p} == {"without", "with"}
    assert run_code(start["code"])["_"] == texts["with"]


def test_the_edits_of_a_prompt_can_be_copied_from_its_card():
    """Values that are named by the text they come from are computed by the copied Python too."""
    body = PromptBody(text=A, edits=[EditBody(**one) for one in EDITS[:4]])
    card = trace_facts(Session(MODEL).trace(body), body)
    change = run_code(card["change"])["change"]
    torch.testing.assert_close(MODEL.trace(A, edits=change).logits, MODEL.trace(A, edits=by_hand()[:4]).logits)
    plain = PromptBody(text=A)
    assert trace_facts(Session(MODEL).trace(plain), plain)["change"] == ""


def test_exported_edits_act_as_those_of_the_page():
    body = PromptBody(text=A, edits=[EditBody(**one) for one in EDITS[:4]])
    exported = export_edits(MODEL, body)
    expected = MODEL.trace(A, edits=by_hand()[:4]).logits
    torch.testing.assert_close(MODEL.trace(A, edits=from_json(exported["json"])).logits, expected)
    torch.testing.assert_close(MODEL.trace(A, edits=run_code(exported["code"])["change"]).logits, expected)


KINDS = {
    "qwen3": {
        "attention": Attention(n_heads=2, n_kv_heads=1, qk_norm="rms", bias="none"),
        "positions": Positions(kind="rotary"),
        "norm": Norm(kind="rms"),
        "mlp": MLP(d_ff=32, form="gated", activation="silu", bias="none"),
    },
    "gemma-2": {
        "attention": Attention(n_heads=2, windows=(4, 0), score_cap=5.0, bias="none"),
        "positions": Positions(kind="rotary"),
        "norm": Norm(kind="rms", gain="1+g"),
        "block": "sandwich",
        "logit_cap": 3.0,
        "embed_scale": "sqrt(d_model)",
    },
    "bloom": {"positions": Positions(kind="alibi"), "embed_norm": "norm"},
    "gpt-neox": {"positions": Positions(kind="rotary", fraction=0.5), "block": "parallel"},
    "post-norm": {"block": "post", "norm": Norm(kind="layer")},
    "bigram tables": {"ngrams": (2,), "ngram_rows": 64},
}


@pytest.mark.parametrize("kind", one_in(4, KINDS))
def test_every_kind_of_architecture_is_experimented_on(kind: str):
    """Patching keys of grouped queries, streams and heads; ablation; steering; a text under an edit."""
    model = small_model(**KINDS[kind])
    texts = {"a": "the cat sat on", "b": "the dog sat on"}
    metric = MetricBody(kind="probability", one=model.tokenizer.encode(" the")[0])
    for site in ("resid_pre", "attn.z", "attn.k"):
        body = PatchBody(**texts, metric=metric, site=site)
        start, *parts, _ = patch_lines(model, body)
        expected = model.patch(texts["b"], texts["a"], probability(metric.one), site=site)
        assert start["heads"] == (0 if site == "resid_pre" else expected.exact.size(2))
        cells = {(part["layer"], p, h): x for part in parts for p, h, x in part["cells"]}
        values = expected.exact if expected.exact.ndim == 3 else expected.exact[..., None]
        assert len(cells) == values.numel()
        assert all(cells[where] == pytest.approx(float(values[where]), abs=1e-5) for where in cells)
    assert len(list(ablation_lines(model, AblateBody(**texts, metric=metric, kind="resample")))) == 3
    at = "blocks.1.resid_pre"
    steer = SteerBody(**texts, metric=metric, at=at, towards=texts["b"], away=texts["a"])
    assert len(list(steering_lines(model, steer))) == 18
    edit = EditBody(op="resample", name="blocks.1.attn_out", pos=[1], value={"run_of": texts["b"]})
    _, *pieces = side_by_side(model, GenerateBody(a=texts["a"], edits=[edit], max_tokens=3))
    assert {piece["side"] for piece in pieces} == {"without", "with"}


def test_an_encoder_decoder_is_patched_with_another_source():
    model = encoder_decoder()
    sources = {"source": "the cat sat", "source_b": "the dog sat"}
    metric = MetricBody(kind="probability", one=model.tokenizer.encode(" the")[0])
    start, *_ = patch_lines(model, PatchBody(a="the", b="the", metric=metric, **sources))
    expected = model.patch(
        "the", "the", probability(metric.one), source=sources["source_b"], corrupt_source=sources["source"]
    )
    assert (start["own"], start["other"]) == (pytest.approx(expected.corrupt), pytest.approx(expected.clean))
    # a click on a place makes an edit with what prompt B has there, in the run with its own source
    own = {"source": sources["source"]}
    for value in ({"run_of": "the", "source": sources["source_b"]}, {"mean_of": "the", "source": sources["source_b"]}):
        edit = EditBody(op="set", name="blocks.0.resid_pre" if "run_of" in value else "final_norm", value=value)
        if "mean_of" in value:
            edit = EditBody(op="mean", name="blocks.0.cross_out", value=value)
        edited = model.trace("the", edits=resolve_edits([edit], model, **own), **own).logits
        copied = eval(edits_code([edit], **own), {"edits": edits, "model": model})
        torch.testing.assert_close(model.trace("the", edits=copied, **own).logits, edited)
        assert not torch.equal(edited, model.trace("the", **own).logits) or "run_of" in value
    with pytest.raises(EditError, match="names none"):
        resolve_edits([EditBody(op="set", name="embed", value={"run_of": "the", "source": 3})], model, **own)
    # a direction of steering is read with the source of the run that it changes
    at = "blocks.1.resid_pre"
    body = SteerBody(a="the", at=at, towards="a dog", away="the", metric=metric, **own)
    start, point, *_ = steering_lines(model, body)
    names = {"model": model}
    exec(point["code"], names)
    assert start["length"] == pytest.approx(float(names["vector"].norm()))
    steered = EditBody(op="add", name=at, factor=2.0, value={"towards": "a dog", "away": "the"})
    sent = PromptBody(text="the", edits=[steered], **own)
    exec(export_edits(model, sent)["code"], names)
    edited = model.trace("the", edits=resolve_edits([steered], model, **own), **own).logits
    torch.testing.assert_close(model.trace("the", edits=names["change"], **own).logits, edited)
    generate = GenerateBody(a="", edits=[steered], max_tokens=2, **own)
    start, *pieces = side_by_side(model, generate)
    assert len(pieces) >= 2
    head, _, last = start["code"].rstrip().rpartition("\n")
    exec(head, names)
    assert eval(last, names) == "".join(piece["text"] for piece in pieces if piece["side"] == "with")


def test_copied_edits_read_texts_with_the_separator_where_the_page_does():
    change = [EditBody(**EDITS[k]) for k in (2, 3)] + [
        EditBody(op="resample", name="blocks.0.mlp_out", pos=[1], value={"run_of": B})
    ]
    prompt = PromptBody(text=A, bos=True, edits=change)
    names = {"model": MODEL}
    exec(trace_code(prompt), names)
    torch.testing.assert_close(names["trace"].logits, Session(MODEL).trace(prompt).logits)
    assert not torch.equal(
        names["trace"].logits, MODEL.trace(A, bos=True, edits=resolve_edits(change[:2], MODEL, bos=True)).logits
    )
    with pytest.raises(InputError, match="without a separator in front"):
        next(side_by_side(MODEL, GenerateBody(a=A, bos=True)))


# In the browser -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known() -> Iterator[RunningInspector]:
    with looking(Session(MODEL, name="known-answer")) as running:
        yield running


def address(**state: str) -> str:
    return "#page=experiment&" + "&".join(f"{name}={value.replace(' ', '+')}" for name, value in state.items())


def test_from_two_prompts_to_an_edited_text(known: RunningInspector, visit):
    """Patch, read a cell, make it an edit with the keyboard, and generate: all numbers are those of the lens."""
    page = visit(known.url + "/" + address(a=A, b=B))
    page.wait_for_selector("#patching [data-done='10'][data-total='10']")
    expected = MODEL.patch(B, A, logit_diff(" Italy", " France"), mode="both")
    numbers = shown_numbers(page, "#patching")
    assert numbers["patch.own"] == pytest.approx(expected.corrupt)
    assert numbers["patch.other"] == pytest.approx(expected.clean)
    page.locator("#patching canvas").focus()
    for layer, position in [(0, 0), (0, 0)]:
        page.keyboard.press("ArrowLeft")
        cell = shown_numbers(page, "#patching")["patch.cell"]
        assert cell == pytest.approx(float(expected.exact[layer, position]), abs=1e-4)
    page.wait_for_selector("#ablation [data-name='ablation.most']")
    assert "its mean over prompt B" in page.locator("#ablation").inner_text()
    effect = MODEL.ablate(A, logit_diff(" Italy", " France"), reference=B).effect
    assert shown_numbers(page, "#ablation")["ablation.most"] == pytest.approx(float(effect[1, 1]), abs=1e-4)
    page.locator("#patching canvas").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_selector("#edits li")
    ready(page)
    # what is measured is still the answer of the run without the edit
    page.wait_for_selector("#patching :text(\"logit of ' Italy' - logit of ' France'\")")
    page.click("#generate button.act")
    page.wait_for_selector("#generate [data-side='with'][data-ended='length']")
    page.wait_for_selector("#generate [data-side='without'][data-ended='length']")
    assert page.locator("[data-side='without']").inner_text().startswith(f"{A} Italy")
    assert page.locator("[data-side='with']").inner_text().startswith(f"{A} France")
    page.get_by_role("button", name="Export").click()
    page.wait_for_selector("#edits button[data-code^='[{']")


def test_kl_is_shown_without_estimates(known: RunningInspector, visit):
    page = visit(known.url + "/" + address(a=A, b=B, metric="kl"))
    page.wait_for_selector("#patching [data-done='10'][data-total='10']")
    said = page.locator("#patching").inner_text()
    assert "KL has slope 0 at run A, so it cannot be estimated" in said
    assert "correlate" not in said
    page.locator("#patching canvas").focus()
    page.keyboard.press("ArrowLeft")
    cell = shown_numbers(page, "#patching")["patch.cell"]
    assert cell == pytest.approx(float(MODEL.patch(B, A, kl()).exact[0, 0]), abs=1e-4)


def test_a_text_to_steer_with_stays_while_it_is_typed_and_its_code_has_the_factor(known: RunningInspector, visit):
    page = visit(known.url + "/" + address(a=A, b=B))
    page.wait_for_selector("#steering [data-code*='factor=2.0']")
    page.locator("#steering input[type=range]").fill("3")
    code = page.wait_for_selector("#steering [data-code*='factor=3.0']").get_attribute("data-code")
    names, held, field = {"model": MODEL}, [], page.locator("#steering textarea").first
    exec(code, names)
    assert names["change"][0].factor == 3
    page.route("**/api/experiment/steer", lambda route: held.append(route))
    page.select_option("#steering select", "blocks.0.resid_pre")
    field.fill("London is")
    page.wait_for_timeout(450)  # while it waits, the panel is drawn again five times a second
    assert field.input_value() == "London is"
    field.press("Enter")
    page.wait_for_function("location.hash.includes('towards=London+is')")
    page.wait_for_timeout(100)
    held[-1].continue_()
    page.wait_for_selector("#steering [data-code*='London is']")
    page.unroute("**/api/experiment/steer")
    field.fill("London\nis")
    field.press("Enter")
    page.wait_for_selector(r"#steering [data-code*='London\\nis']")  # a text may have several lines
    assert field.input_value() == "London\nis"


def test_steering_offers_the_places_where_there_is_a_direction(known: RunningInspector, visit):
    page = visit(known.url + "/" + address(a=A, b=B))
    page.wait_for_selector("#steering [data-code*='factor=2.0']")
    points = page.locator("#steering select option").evaluate_all("(all) => all.map((e) => e.value)")
    assert points == ["blocks.0.resid_pre", "blocks.1.resid_pre", "blocks.1.resid_post"]
    assert "last token" not in page.locator("#steering .row").inner_text()  # both texts end alike there
    page.select_option("#steering select", points[-1])
    page.click("#steering .row :text('last token')")
    page.wait_for_selector("#steering [data-code*='pos=-1'][data-code*='factor=2.0']")
    assert page.locator("#steering .row :text('mean of all tokens')").count()
    assert shown_numbers(page, "#steering")["steering.length"] > 1


def test_a_text_is_gone_when_another_prompt_is_read(known: RunningInspector, visit):
    page = visit(known.url + "/" + address(a=A, tokens="5"))
    page.click("#generate button.act")
    page.wait_for_selector("#generate [data-side='with'][data-ended='length']")
    page.fill("#prompt", B)
    page.press("#prompt", "Enter")
    page.locator("#generate [data-side]").first.wait_for(state="detached")
    assert page.locator("#generate [data-code]").count() == 0


@pytest.mark.slow
def test_prompt_b_has_a_source_of_its_own(look_into, visit):
    """Written above, it is patched from; a click on a place makes an edit whose numbers are those of its Python."""
    model = encoder_decoder()
    running = look_into(Session(model, name="pairs"))
    page = visit(running.url + "/" + address(a="the", source="the cat sat", metric="loss"))
    page.get_by_role("button", name="Compare with a second prompt").click()
    page.fill("#source-b", "the dog sat")
    page.press("#source-b", "Enter")
    page.wait_for_selector("#patching [data-total]:has-text('exact'):not(:has-text('of'))")
    names = {"model": model}
    code = page.locator("#patching [data-code]").get_attribute("data-code")
    exec(code.rpartition("patching.estimate")[0], names)
    shown, patching = shown_numbers(page, "#patching"), names["patching"]
    assert shown["patch.own"] == pytest.approx(patching.corrupt)
    assert shown["patch.other"] == pytest.approx(patching.clean)
    own = model.trace("the", source="the dog sat")
    assert patching.clean == pytest.approx(float(loss().of(own)(own.logits)))
    page.locator("#patching canvas").click(position={"x": 80, "y": 100})
    page.wait_for_selector("#edits li")
    ready(page)
    page.get_by_role("button", name="Export").click()
    exported = page.locator("#edits .row [data-code*='from pellucid import edits']")
    exported.wait_for()
    exec(exported.get_attribute("data-code"), names)
    edited = model.trace("the", source="the cat sat", edits=names["change"])
    (edit,) = json.loads(parse_qs(page.url.partition("#")[2])["edits"][0])
    assert edit["value"]["source"] == "the dog sat"
    prompt = PromptBody(text="the", source="the cat sat", edits=[EditBody(**edit)])
    torch.testing.assert_close(running.session.trace(prompt).logits, edited.logits)


@pytest.mark.slow
def test_without_a_second_prompt_the_page_says_what_to_do(known: RunningInspector, visit):
    page = visit(known.url + "/" + address(a=A))
    page.get_by_role("button", name="Use").click()
    page.wait_for_selector("#patching [data-done='10'][data-total='10']")
