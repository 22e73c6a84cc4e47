"""Writing from a source: cached = uncached, a batch = its rows, beams that find the best, scores that add up."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.generate import GenerationError, Sampling, generate, generate_ids, score, score_tokens, stream_generate
from pellucid.generate.beams import search_beams
from pellucid.language_model import LanguageModel
from pellucid.model.transformer import Backbone
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, learn_tokenizer
from pellucid.text_model import Model

TOLERANCE = 1e-12
SAMPLINGS = st.sampled_from([Sampling(temperature=0), Sampling(), Sampling(temperature=0.7, top_k=4)])
#: a cap that logits reach makes them equal, and which of equal ones is chosen is left to rounding
READERS = {"attention.mask": st.just("causal"), "block": st.sampled_from(["pre", "post"]), "logit_cap": st.just(0.0)}


@st.composite
def encoder_decoders(draw):
    """A decoder of any words, and an encoder of any words as wide."""
    decoder = draw(architectures(READERS, max_ctx=8))
    encoder = draw(architectures({"attention.mask": st.just("bidirectional")}, max_ctx=8))
    wide = encoder.to_dict() | {"d_model": decoder.d_model, "n_vocab": decoder.n_vocab, "d_embed": decoder.d_embed}
    wide["embed_projection"] = encoder.embed_projection if encoder.d_embed == decoder.d_embed else "tokens"
    wide["attention"] |= {"n_heads": 2, "n_kv_heads": 1, "d_head": 4}
    wide["positions"] |= {"short_factors": (), "long_factors": ()}  # as many as planes, and those of another d_head
    return Architecture.from_dict(decoder.to_dict() | {"encoder": wide})


def some(n_vocab, lengths, seed=0):
    generator = torch.Generator().manual_seed(sum(lengths) + seed)
    return [torch.randint(0, n_vocab, (n,), generator=generator).tolist() for n in lengths]


def run(network, prompts, sources, **options):
    """Tokens of every row, and the logits each was chosen from."""
    decoding = generate_ids(network, prompts, sources=sources, **options)
    logits = {id(row): [] for row in decoding.rows}
    for step in decoding:
        for row, x in zip(step.rows, step.logits, strict=True):
            logits[id(row)].append(x)
    return [row.generated for row in decoding.rows], [torch.stack(logits[id(row)]) for row in decoding.rows]


def same(found, expected):
    assert found[0] == expected[0]
    for x, y in zip(found[1], expected[1], strict=True):
        assert difference(x, y) <= TOLERANCE


def test_what_is_read_of_a_source_is_computed_once():
    """However many tokens are written: one call of each block's key map for the prompts, none for the rest."""
    decoder = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)
    network = make_network(replace(decoder, encoder=decoder.with_fields({"attention.mask": "bidirectional"})))
    calls = [0, 0]
    for i, block in enumerate(network.blocks):
        block.cross.key.register_forward_hook(lambda *_, i=i: calls.__setitem__(i, calls[i] + 1))
    rows, _ = run(network, [[1], [2, 3]], [[4, 5, 6], [7]], max_tokens=5, sampling=Sampling(temperature=0))
    assert [len(row) for row in rows] == [5, 5]
    assert calls == [1, 1]


@pytest.mark.item("S4-encdec-a", "S4-io-b")
@settings(max_examples=20)
@given(encoder_decoders(), st.lists(st.integers(1, 8), min_size=1, max_size=4), SAMPLINGS, st.integers(1, 2))
def test_cached_is_uncached_and_a_batch_is_its_rows(a, lengths, sampling, n):
    """Sources and prompts of any lengths, far beyond the decoder's context, in float64."""
    network = make_network(a)
    sources = some(a.n_vocab, [min(k, a.encoder.n_ctx) for k in lengths])
    prompts = some(a.n_vocab, [1 + k % 3 for k in lengths], 1)
    options = {"max_tokens": 2 * a.n_ctx + 3, "sampling": sampling, "seeds": 3, "samples": range(n)}
    together = run(network, prompts, sources, **options)
    same(run(network, prompts, sources, cache=False, **options), together)
    alone = [run(network, [p], [s], **options) for p, s in zip(prompts, sources, strict=True)]
    same(([t for x in alone for t in x[0]], [t for x in alone for t in x[1]]), together)


@settings(max_examples=30)
@given(encoder_decoders(), st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(1, 4))
def test_beams_are_the_same_cached_and_alone_and_one_is_greedy(a, lengths, beams):
    network = make_network(a)
    sources = some(a.n_vocab, [min(k, a.encoder.n_ctx) for k in lengths])
    prompts = some(a.n_vocab, [1 + k % 3 for k in lengths], 1)
    options = {"max_tokens": a.n_ctx + 2, "stop_ids": [0]}
    together = told(network, prompts, sources, beams=beams, n=beams, **options)
    assert told(network, prompts, sources, beams=beams, n=beams, cache=False, **options) == together
    alone = [told(network, [p], [s], beams=beams, n=beams, **options) for p, s in zip(prompts, sources, strict=True)]
    assert [row for rows in alone for row in rows] == together
    greedy = generate_ids(network, prompts, sources=sources, sampling=Sampling(temperature=0), **options)
    list(greedy)
    assert told(network, prompts, sources, beams=1, **options) == [(r.generated, r.finish_reason) for r in greedy.rows]


def told(network, prompts, sources, **options):
    """What beams find, checked against what they tell."""
    found = search_beams(network, prompts, sources=sources, **options)
    pieces = {id(row): [] for row in found.rows}
    for step in found:
        for row, token in zip(step.rows, step.tokens, strict=True):
            pieces[id(row)].append(token)
    assert [pieces[id(row)] for row in found.rows] == [row.generated for row in found.rows]
    return [(row.generated, row.finish_reason) for row in found.rows]


@settings(max_examples=25)
@given(encoder_decoders(), st.integers(1, 3))
def test_enough_beams_find_the_best_of_all_texts(a, length):
    """As many beams as there are texts: the first one is the best of them by log P per token, and says it."""
    network, n = make_network(a), 3
    source, prompt = some(a.n_vocab, [3], 2)[0][: a.encoder.n_ctx], [1]
    found = search_beams(network, [prompt], sources=[source], beams=n**length, max_tokens=length, n_allowed=n)
    list(found)
    texts = torch.cartesian_prod(*[torch.arange(n)] * length).reshape(-1, length).tolist()
    scores = {tuple(t): mean_log_prob(network, prompt, t, source, n) for t in texts}
    best = max(scores.values())
    assert scores[tuple(found.rows[0].generated)] == pytest.approx(best, abs=1e-10)
    assert found.scores[0] == pytest.approx(best, abs=1e-10)


def mean_log_prob(network, prompt, text, source, n):
    """log P per token among the first n ids, read window by window as generation reads them."""
    total = 0.0
    for k, token in enumerate(text):
        step = next(iter(generate_ids(network, [prompt + text[:k]], sources=[source], max_tokens=1)))
        total += step.logits[0, :n].log_softmax(-1)[token].item()
    return total / len(text)


def test_texts_of_different_lengths_are_ordered_by_log_p_per_token():
    """Two thirds of all ids end a text: as many texts as beams, longer and shorter ones, each told its own score."""
    network, options = text_model(), {"beams": 5, "n": 5, "max_tokens": 6, "stop_ids": range(0, 257, 3)}
    found = search_beams(network, [[256]], sources=[[104, 105, 256]], **options)
    list(found)
    texts = [row.generated for row in found.rows]
    assert len(texts) == 5
    assert len({len(text) for text in texts}) > 1
    own = [mean_log_prob(network, [256], text, [104, 105, 256], 257) for text in texts]
    assert found.scores == pytest.approx(own, abs=1e-10)
    assert own == sorted(own, reverse=True)
    plain = plain_beams(network, [256], [104, 105, 256], 5, 6, options["stop_ids"])
    assert texts == [text for text, _ in plain]
    sums = [score * len(text) for score, text in zip(own, texts, strict=True)]
    assert sums != sorted(sums, reverse=True)  # by their sums they would stand otherwise


def plain_beams(network, prompt, source, beams, max_tokens, stop_ids):
    """The same as one reads it: lists, and every text read afresh."""
    alive, complete = [([], 0.0)], []
    while alive:
        extended = []
        for text, total in alive:
            step = next(iter(generate_ids(network, [prompt + text], sources=[source], max_tokens=1)))
            extended += [([*text, i], total + p) for i, p in enumerate(step.logits[0].log_softmax(-1).tolist())]
        extended.sort(key=lambda found: -found[1])
        kept = extended[: beams - len(complete)]
        ended = [found[0][-1] in stop_ids or len(found[0]) == max_tokens for found in kept]
        complete += [found for found, end in zip(kept, ended, strict=True) if end]
        alive = [found for found, end in zip(kept, ended, strict=True) if not end]
    return sorted(complete, key=lambda found: -found[1] / len(found[0]))


LETTERS = "abc"


def letter_model(seed: int) -> LanguageModel:
    """A network over three letters and a separator."""
    tokenizer = learn_tokenizer("char", [LETTERS])
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=16, d_model=8, n_layers=1)
    network = make_network(a, seed)
    with torch.no_grad():
        network.embed.token.weight.mul_(3)
    return LanguageModel(network, tokenizer, {})


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(1, 5), st.sampled_from(LETTERS), st.integers(2, 8))
def test_a_stop_string_is_worth_what_a_stop_id_is(seed, beams, letter, max_tokens):
    """The search ends texts at the string, by the same ranks, where it ends them at the id."""
    model = letter_model(seed)
    [stop_id] = model.tokenizer.encode(letter)
    prompt = model.tokenizer.encode("a")
    options = {"beams": beams, "n": beams, "max_tokens": max_tokens}
    ends = [*model.tokenizer.ends, stop_id]
    of_id = search_beams(model.network, [prompt], stop_ids=ends, n_allowed=model.tokenizer.n_vocab, **options)
    list(of_id)
    of_string = model.generate_many("a", stop=letter, **options)
    without_ends = [[i for i in row.generated if i not in ends] for row in of_id.rows]
    texts = [model.tokenizer.decode(ids) for ids in without_ends]
    assume(len(set(texts)) == len(texts))  # else the string's search looks for others in the place of equal ones
    assert [result.text for result in of_string] == texts
    assert all(letter not in result.text for result in of_string)


@settings(max_examples=20)
@given(st.integers(0, 999), st.lists(st.sampled_from(LETTERS), max_size=2))
def test_the_best_texts_are_different_ones(seed, stop):
    results = letter_model(seed).generate_many("b", beams=6, n=6, max_tokens=5, stop=stop)
    assert len({result.text for result in results}) == len(results)
    assert [result.sample for result in results] == list(range(len(results)))
    assert stop or len(results) == 6


def test_generate_returns_one_text_and_says_so():
    model = letter_model(0)
    for wrong in ({"n": 3}, {"source": ["a", "b"]}):
        with pytest.raises(GenerationError, match="returns one text of one prompt; use generate_many"):
            model.generate("a", **wrong)
    with pytest.raises(GenerationError, match="list as the prompt"):
        model.generate(["a", "b"])


def test_equal_beams_come_in_the_order_of_their_ids():
    """Of texts that are equally likely the lowest ids come first."""
    network = text_model()
    with torch.no_grad():
        network.embed.token.weight.zero_()
    found = search_beams(network, [[1]], sources=[[2]], beams=3, n=3, max_tokens=2)
    list(found)
    assert [row.generated for row in found.rows] == [[0, 0], [0, 1], [0, 2]]
    assert found.scores == [pytest.approx(-math.log(257))] * 3


def test_the_encoder_reads_once(monkeypatch):
    passes = []
    original = Backbone.hidden

    def counting(self, tokens, **given):
        if self.architecture.encoder is None:
            passes.append(tuple(tokens.shape))
        return original(self, tokens, **given)

    monkeypatch.setattr(Backbone, "hidden", counting)
    generate(Model(text_model(), ByteTokenizer()), source=["one", "three"], max_tokens=30, n=2, seed=1, temperature=1.0)
    generate(Model(text_model(), ByteTokenizer()), source=["one", "three"], max_tokens=30, beams=3)
    assert passes == [(2, 6), (2, 6)]


def text_model():
    """Bytes, sources and targets of up to 16."""
    a = {"n_vocab": 257, "n_ctx": 16, "d_model": 8, "n_layers": 1, "attention": {"n_heads": 2}}
    encoder = {**a, "attention": {"n_heads": 2, "mask": "bidirectional"}}
    return make_network(Architecture.from_dict({**a, "encoder": encoder}))


def test_texts_from_sources():
    """One prompt or one source serves all of the other; the target begins with the prompt."""
    network, tokenizer = text_model(), ByteTokenizer()
    options = {"max_tokens": 8, "temperature": 1.0, "seed": 2}
    several = generate(Model(network, tokenizer), source=["one", "two"], **options)
    assert [found.prompt_ids for found in several] == [[tokenizer.separator]] * 2
    assert several[1] == generate(Model(network, tokenizer), ["", ""], source=["one", "two"], **options)[1]
    begun = generate(Model(network, tokenizer), ["a", "b"], source="one", **options)
    assert [found.prompt_ids for found in begun] == [[tokenizer.separator, ord(c)] for c in "ab"]
    pieces = list(stream_generate(Model(network, tokenizer), source="one", beams=4, max_tokens=8, n=2))
    for rank in (0, 1):
        last = [piece for piece in pieces if piece.sample == rank][-1].result
        assert "".join(piece.text for piece in pieces if piece.sample == rank) == last.text
    # greedy unless said otherwise
    assert generate(Model(network, tokenizer), source="one", max_tokens=8, seed=1) == generate(
        Model(network, tokenizer), source="one", max_tokens=8, seed=1, temperature=0
    )


def test_a_score_is_the_sum_of_what_generation_sees():
    network, tokenizer = text_model(), ByteTokenizer()
    found = score(Model(network, tokenizer), "target", source="the source")
    ids, total = [tokenizer.separator], 0.0
    source = [*tokenizer.encode("the source"), tokenizer.separator]
    for token in tokenizer.encode("target"):
        step = next(iter(generate_ids(network, [ids], sources=[source], max_tokens=1)))
        total += step.logits[0].log_softmax(-1)[token].item()
        ids.append(token)
    assert found.log_prob == pytest.approx(total, abs=1e-12)
    assert score(Model(network, tokenizer), "target", source="another").log_prob != pytest.approx(total, abs=1e-6)
    after = score(Model(network, tokenizer), "get", prefix="tar", source="the source")
    assert after.log_probs.tolist() == pytest.approx(found.log_probs[3:].tolist(), abs=1e-12)
    windows = score_tokens(network, ids * 4, source=source, batch=3)
    assert windows == pytest.approx(score_tokens(network, ids * 4, source=source, batch=1), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a source"),
        ({"source": ""}, "the source is empty"),
        ({"source": "seventeen letters"}, "expected 1 to 16"),
        ({"source": ["one", "two"], "prompts": ["a", "b", "c"]}, "2 sources for 3 prompts"),
        ({"source": "one", "beams": -1}, "beams = -1"),
        ({"source": "one", "beams": 2, "n": 3}, "n = 3 with beams = 2"),
        ({"source": "one", "beams": 2, "temperature": 0.5}, "beams = 2 is deterministic"),
        ({"source": "one", "beams": 2, "seed": 1}, "beams = 2 is deterministic"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message):
    with pytest.raises(GenerationError, match=message):
        generate(Model(text_model(), ByteTokenizer()), **options)


def test_networks_without_an_encoder_take_no_source():
    decoder = make_network(Architecture.from_dict(text_model().architecture.to_dict() | {"encoder": None}))
    for call in (
        lambda: generate(Model(decoder, ByteTokenizer()), source="one"),
        lambda: score_tokens(decoder, [1, 2], source=[1]),
    ):
        with pytest.raises(GenerationError, match="has no encoder"):
            call()
    with pytest.raises(GenerationError, match="holds id 300"):
        generate_ids(text_model(), [[1]], sources=[[300]], max_tokens=1)
    with pytest.raises(GenerationError, match="beams = 0, n = 1"):
        search_beams(decoder, [[1]], beams=0, max_tokens=1)


def test_beams_serve_networks_without_a_source_too():
    decoder = make_network(Architecture.from_dict(text_model().architecture.to_dict() | {"encoder": None}))
    best = generate(Model(decoder, ByteTokenizer()), "a", beams=3, n=3, max_tokens=5)
    assert 1 <= len(best) <= 3
    assert [found.sample for found in best] == list(range(len({found.text for found in best})))
    assert (
        generate(Model(decoder, ByteTokenizer()), "a", beams=1, max_tokens=5)[0].ids
        == generate(Model(decoder, ByteTokenizer()), "a", temperature=0, max_tokens=5)[0].ids
    )
    assert generate(Model(decoder, ByteTokenizer()), "a", beams=2, max_tokens=0)[0].text == ""
