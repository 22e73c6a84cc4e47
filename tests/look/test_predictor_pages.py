"""Predictors without attention in the inspector: their own numbers and levels, and a reason on the other pages."""

import math

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from tests.look.conftest import TEXT, ready, shown_numbers

from pellucid.generate.sampling import Sampling
from pellucid.lens.core.inputs import InputError
from pellucid.look.app import PAGES, PREDICTOR_PAGES, make_look_app
from pellucid.look.predictor_reading import prediction_levels
from pellucid.look.predictor_trace import predictor_trace
from pellucid.look.reading import sampled
from pellucid.look.session import PromptBody, Session
from pellucid.look.trace_card import trace_facts
from pellucid.predictors.mixture import Counted, NGramMixture
from pellucid.predictors.neural import NeuralProbabilistic, NeuralProbabilisticOptions
from pellucid.predictors.ngram import NGram
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recurrent import Recurrent, RecurrentOptions
from pellucid.text.tokenizers.tokenizer import BPETokenizer

TOKENIZER = BPETokenizer.train([TEXT] * 20, 280, "gpt2")
V, SEPARATOR = TOKENIZER.n_vocab, TOKENIZER.separator
PROMPT = "the cat sat on the dog"


def counted(smoothing="modified-kneser-ney", order=3, separator=None):
    words = TEXT.split()
    texts = [" ".join(np.random.default_rng(seed).permutation(words)) for seed in range(8)]
    ids = np.array([i for text in texts for i in [SEPARATOR, *TOKENIZER.encode(text)]])
    return Counted(NGram.train(ids, V, order, smoothing, separator=separator))


def network(kind, **options):
    if kind == "neural-probabilistic":
        made = NeuralProbabilistic(
            NeuralProbabilisticOptions(n_vocab=V, separator=SEPARATOR, d_embed=4, d_hidden=6, **{"order": 4} | options)
        )
    else:
        made = Recurrent(RecurrentOptions(n_vocab=V, separator=SEPARATOR, d_embed=4, d_hidden=6, n_ctx=32, **options))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    return made.eval()


#: every kind of predictor that a run may hold
PREDICTORS = {
    "modified-kneser-ney": lambda: (counted(), "ngram"),
    "kneser-ney": lambda: (counted("kneser-ney", separator=SEPARATOR), "ngram"),
    "add-alpha": lambda: (counted("add-alpha"), "ngram"),
    "maximum-likelihood": lambda: (counted("maximum-likelihood"), "ngram"),
    "unigram": lambda: (counted(order=1), "ngram"),
    "bengio": lambda: (network("neural-probabilistic"), "neural-probabilistic"),
    "bengio, direct": lambda: (
        network("neural-probabilistic", direct="all", documents="inside", order=2),
        "neural-probabilistic",
    ),
    "elman": lambda: (network("recurrent", cell="elman"), "recurrent"),
    "gru": lambda: (network("recurrent"), "recurrent"),
    "mixture": lambda: (NGramMixture(network("neural-probabilistic"), counted(), 0.3), "neural-probabilistic"),
}


@pytest.fixture(scope="module", params=PREDICTORS)
def predictor(request):
    return Predictor(*(lambda made: (made[0], TOKENIZER, made[1], {}))(PREDICTORS[request.param]()))


@pytest.fixture(scope="module")
def trace(predictor):
    return predictor_trace(predictor, PROMPT, bos=True)


def test_the_numbers_of_a_text_are_the_predictors_own(predictor, trace):
    facts = trace_facts(trace, PromptBody(text=PROMPT, bos=True))
    ids = np.array([SEPARATOR, *TOKENIZER.encode(PROMPT)])
    assert trace.ids[0].tolist() == ids.tolist()
    own = -predictor.log_probs(ids) / math.log(2)
    shown = [math.nan if bits is None else bits for bits in facts["surprisal"][1:]]
    np.testing.assert_array_equal(shown, np.where(np.isfinite(own), own, np.nan))
    with torch.inference_mode():
        for pos in range(len(ids)):
            top = facts["top"][pos]
            assert [one["p"] for one in top] == pytest.approx([p for _, p in trace.top(pos)], abs=1e-6)
            assert len(top) in (0, 10)
            if top and pos + 1 < len(ids):
                p = trace.logits(pos, pos + 1)[0].softmax(-1)
                assert p[ids[pos + 1]] == pytest.approx(2 ** -own[pos], rel=1e-5)
                assert facts["rank"][pos + 1] == int((p > p[ids[pos + 1]]).sum())
    scope = {"model": predictor}
    exec(facts["code"], scope)
    assert torch.equal(scope["trace"].surprisal(), trace.surprisal()) or np.isnan(own).any()


def test_every_level_is_the_sum_that_its_equation_says(predictor, trace):
    if trace.ngram is None:
        assert prediction_levels(trace, -1)["levels"] == []
        return
    for pos in (0, 3, trace.ids.size(1) - 1):
        ids = trace.ids[0, : pos + 1].numpy()
        known = trace.ngram.context_levels(ids)
        shown = prediction_levels(trace, pos)["levels"]
        if np.isnan(known[-1].probs).any():
            assert shown[-1]["rows"] == []
            assert "maximum likelihood says nothing" in shown[-1]["reason"]
            continue
        np.testing.assert_array_equal(known[-1].probs, trace.ngram.next_probs(ids))
        for k, level in enumerate(shown):
            probabilities = [row["values"][-1] for row in level["rows"]]
            if level["name"] == "mixture":
                expected = trace.logits(pos, pos + 1)[0].exp()
                weight = level["facts"][0]["value"]
                sums = [weight * row["values"][0] + (1 - weight) * row["values"][1] for row in level["rows"]]
            else:
                number = int(level["name"].removeprefix("levels."))
                expected = known[number].probs
                sums = [sum(row["values"][1:-1]) for row in level["rows"]]
                assert level["facts"][0]["value"] == known[number].counts.sum()
                below = {fact["name"]: fact["value"] for fact in level["facts"]}.get(f"levels.{number}.below")
                discounts = [fact for fact in level["facts"] if ".N" in fact["name"] or ".D" in fact["name"]]
                if len(discounts) == 6 and known[number].counts.any():
                    n, d = (np.array([fact["value"] for fact in discounts[k::2]]) for k in (0, 1))
                    assert below == pytest.approx(float(n @ d) / known[number].counts.sum())
            assert probabilities == pytest.approx([float(expected[row["token"]["id"]]) for row in level["rows"]])
            assert sums == pytest.approx(probabilities)
            scope = {"model": predictor, "trace": trace}
            exec(level["code"], scope)
            assert k == 0 or len(level["context"]) == k or level["name"] == "mixture" or len(shown) == 1


def test_every_page_opens_or_is_refused_with_the_reason(predictor):
    session = Session(predictor)
    app = make_look_app(session)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        card = client.get("/api/model").json()
        assert {"attention", "stream", "circuits", "experiment"} <= set(card["closed"])
        assert ("training" in card["closed"]) == (predictor.kind == "ngram")
        sent = client.post("/api/trace", json={"text": PROMPT}).json()
        path = f"/api/t/{sent['id']}"
        assert client.get(f"{path}/tokens/pieces").status_code == 200
        assert client.get(f"{path}/read/levels").status_code == 200
        assert client.get(f"{path}/x/embed").status_code == 400
        assert client.get(f"{path}/attention/why").status_code == 404
        for edited in ({"edits": [{"op": "zero", "name": "embed"}]}, {"source": "a"}):
            refused = client.post("/api/trace", json={"text": PROMPT, **edited})
            assert "no tensors to edit and reads no source" in refused.json()["error"]["message"]
        assert client.get("/api/read/steps").status_code == 404
    assert set(PREDICTOR_PAGES) - set(PAGES) != set()


def test_what_cannot_be_shown_is_refused():
    gru = Predictor(network("recurrent"), TOKENIZER, "recurrent", {})
    with pytest.raises(InputError, match="at most 32 are shown"):
        predictor_trace(gru, [1] * 33)
    with pytest.raises(InputError, match="no token to read"):
        predictor_trace(gru, "")
    with pytest.raises(InputError, match="outside the vocabulary"):
        predictor_trace(gru, [V])
    unseen = predictor_trace(Predictor(counted("maximum-likelihood"), TOKENIZER, "ngram", {}), [5, 7])
    with pytest.raises(InputError, match="no token can be drawn"):
        sampled(unseen, -1, Sampling(), 0)


@pytest.mark.parametrize("kind", [pytest.param("modified-kneser-ney", marks=pytest.mark.slow), "mixture"])
def test_the_pages_show_the_predictors_numbers(look_into, visit, kind):
    made = PREDICTORS[kind]()
    predictor = Predictor(made[0], TOKENIZER, made[1], {})
    running = look_into(Session(predictor, name=kind))
    page = visit(f"{running.url}/#a={PROMPT}&pos=3", "narrow", "dark")
    page.wait_for_selector("[data-part='levels.2'][data-at]")
    trace = predictor_trace(predictor, PROMPT)
    shown = shown_numbers(page)
    level = trace.ngram.context_levels(trace.ids[0, :4].numpy())[2]
    assert shown["levels.2.total"] == level.counts.sum()
    best = int(level.probs.argmax())
    assert shown[f"levels.2.{best}.3"] == level.probs[best]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.wait_for_selector("#sampling [data-code]")
    codes = page.locator("[data-code]").evaluate_all("(all) => all.map((e) => e.dataset.code)")
    assert any("context_levels" in code for code in codes)
    for code in codes:
        exec(code, {"model": predictor})
    page.click(".tabs a:has-text('Tokens')")
    ready(page)
    page.wait_for_selector("[data-name='surprisal.1']")
    assert shown_numbers(page)["surprisal.1"] == float(trace.surprisal()[0, 0])
    for closed in ("Attention", "Stream", "Circuits", "Experiment"):
        page.click(f".tabs a:has-text('{closed}')")
        assert "has no" in page.locator("#closed p").inner_text()
