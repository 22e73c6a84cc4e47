"""The model written by hand: every analysis finds what is known to be there, and nothing elsewhere."""

import itertools

import pytest
import torch

from pellucid import edits
from pellucid.language_model import LanguageModel, known_answer
from pellucid.lens.analysis.metrics import logit_diff, probability
from pellucid.look.experiment import MetricBody, SteerBody, steering_lines
from pellucid.look.known_answer import CAPITALS, PLANTED, PROMPTS, WORDS, known_tokenizer

ROME, PARIS = "Rome is the capital of", "Paris is the capital of"
REPEATED = "Anna Smith met Ivan Lee. Anna"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return known_answer()


@pytest.mark.parametrize(("prompt", "answer", "why"), PROMPTS)
def test_a_prompt_has_its_answer(model: LanguageModel, prompt: str, answer: str, why: str):
    ((word, share),) = model.trace(prompt).top(k=1)
    assert word == answer, why
    assert share > 0.5


def test_it_writes_sentences_of_its_facts(model: LanguageModel):
    written = model.generate(temperature=0, max_tokens=12).text
    assert written.startswith("Rome is in Italy. Rome is in Italy.")


def test_words_that_begin_a_text_are_the_words_with_a_blank():
    tokenizer = known_tokenizer()
    assert [tokenizer.decode(tokenizer.encode(word)) for word in ("Rome", " Rome")] == ["Rome", " Rome"]
    assert tokenizer.encode("Oslo") == [tokenizer.unknown]


def test_the_patterns_are_those_of_their_labels(model: LanguageModel):
    heads = model.heads(rows=8, period=12)
    assert heads.best("previous") == PLANTED.previous
    assert heads.best("first") == PLANTED.first
    assert heads.best("induction") == heads.best("attended_rank") == PLANTED.induction
    assert heads.scores["previous"][PLANTED.previous] > 0.99
    assert heads.scores["first"][PLANTED.first] > 0.99
    # words with and without a blank share a code, so some repetitions have two sources
    assert heads.scores["induction"][PLANTED.induction] > 0.85
    others = heads.scores["induction"].clone()
    others[PLANTED.induction] = 0
    assert float(others.max()) < 0.2


def test_copying_is_in_the_weights_of_one_head_alone(model: LanguageModel):
    copying = model.circuits().copying()
    expected = torch.zeros(2, 2)
    expected[PLANTED.induction] = 1
    torch.testing.assert_close(copying, expected, atol=1e-5, rtol=0)
    assert model.head(*PLANTED.induction).promotes(" Lee")[0][0] == " Lee"


def test_only_the_keys_of_the_induction_head_read_an_earlier_head(model: LanguageModel):
    composition = model.circuits().compose("K")
    (writer, reader, score), *others = composition.top(4)
    assert (writer, reader) == (PLANTED.previous, PLANTED.induction)
    assert score > composition.baseline + 3 * composition.spread
    assert all(other == 0 for _, _, other in others)


def test_each_memory_fires_on_its_city_and_is_read_as_its_country(model: LanguageModel):
    for city, country, (layer, neuron) in PLANTED.memories:
        keys = [token for token, _ in model.circuits().neuron(layer, neuron).reads(2)]
        assert set(keys) == {city, city.strip()}
        post = model.trace(f"{city.strip()} is in")[layer].mlp.post[0]
        assert float(post[0, neuron]) == pytest.approx(1, abs=1e-4)
        assert float(post.sum()) == pytest.approx(1, abs=1e-4)
        assert model.trace(f"{city.strip()} is in").top(k=1)[0][0] == country


def test_a_neuron_without_its_value_forgets_one_fact(model: LanguageModel):
    change = [edits.zero("blocks.0.mlp.post", neuron=0)]
    assert model.trace(ROME, edits=change).top(k=1)[0][0] != " Italy"
    assert model.trace(PARIS, edits=change).top(k=1)[0][0] == " France"


def test_attribution_names_the_head_that_answers(model: LanguageModel):
    fact = model.trace(ROME).attribute(" Italy", vs=" France", by="head")
    assert fact.top(1)[0][0] == "blocks.1.attn.head.1"
    copied = model.trace(REPEATED).attribute(" Smith", vs=" Lee", by="head")
    assert copied.top(1)[0][0] == "blocks.1.attn.head.0"
    assert abs(fact.total - float(fact.logit)) < 1e-3


def test_the_fact_waits_at_the_city_until_block_1_moves_it(model: LanguageModel):
    patching = model.patch(ROME, PARIS, logit_diff(" Italy", " France"), mode="both")
    recovered = patching.recovered
    torch.testing.assert_close(recovered[:, 0], torch.ones(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(recovered[:, 1:], torch.zeros(2, 4), atol=1e-3, rtol=0)
    by_head = model.patch(ROME, PARIS, logit_diff(" Italy", " France"), site="attn.z")
    assert by_head.best() == (1, 4, PLANTED.recall[1])
    assert float(by_head.recovered.max()) == pytest.approx(1, abs=1e-3)


def test_ablation_leaves_all_but_one_head_without_effect(model: LanguageModel):
    effect = model.ablate(ROME, probability(" Italy"), kind="zero").effect
    assert divmod(int(effect.argmin()), 2) == PLANTED.recall
    assert float(effect.min()) < -0.9
    assert float(effect.abs().flatten().sort().values[:3].max()) < 0.02
    # the induction head needs the head that it reads
    repeated = model.ablate(REPEATED, probability(" Smith"), kind="zero").effect
    assert {divmod(int(k), 2) for k in repeated.flatten().argsort()[:2]} == {PLANTED.previous, PLANTED.induction}
    assert float(repeated[PLANTED.first]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("at", ["blocks.0.resid_pre", "blocks.1.resid_pre", "blocks.1.resid_post"])
def test_steering_towards_a_city_raises_its_country(model: LanguageModel, at: str):
    """At every point and place that the page offers; the last token is none where both texts have the same there."""
    for city, other in itertools.pairwise([*CAPITALS, " Rome"]):
        towards, away = (f"{name.strip()} is the capital of" for name in (city, other))
        for pos in ("mean", -1):
            body = SteerBody(a=away, at=at, towards=towards, away=away, pos=pos)
            body.metric = MetricBody(kind="logit_diff", one=CAPITALS[city], other=CAPITALS[other])
            start, *points = steering_lines(model, body)
            if start["length"] < 1e-5:
                assert (pos, at) in [(-1, "blocks.0.resid_pre"), (-1, "blocks.1.resid_pre")]
                continue
            value = {point["factor"]: point["value"] for point in points}
            assert all(value[factor] > value[0] for factor in value if factor > 0)
            assert points[-1]["top"][0]["text"] == CAPITALS[city]


def test_a_head_can_look_without_effect(model: LanguageModel):
    t = model.trace(ROME)
    layer, head = PLANTED.first
    assert float(t[layer].attn.pattern[0, head, :, 0].min()) > 0.99
    assert float(t.value_weighted(layer)[0, head].abs().max()) == 0


def test_why_the_induction_head_looks_there(model: LanguageModel):
    why = model.trace(REPEATED).why(*PLANTED.induction, query=-1, by="head")
    assert max(why.top(key=1), key=lambda pair: pair[1])[0] == "blocks.0.attn.head.0"


def test_every_word_but_the_openings_is_in_the_sentences():
    assert len(set(WORDS)) == len(WORDS)
    assert set(CAPITALS) | set(CAPITALS.values()) <= set(WORDS)
