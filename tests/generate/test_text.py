"""Text in, text out: streaming, stop strings, endings, seeds, and prompts of every length."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import speaking

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.generate import GenerationError, PromptCut, generate, stream_generate
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, learn_tokenizer
from pellucid.text_model import Model

BYTES = ByteTokenizer()
SAMPLE = "the cat sat on the mat, naïve café — ещё 日本語 🙂 the cat sat. " * 3
BPE = learn_tokenizer("bpe", [SAMPLE], 300)


def network_for(tokenizer, n_ctx=16, seed=0):
    return make_network(Architecture(n_vocab=tokenizer.n_vocab, n_ctx=n_ctx, d_model=8, n_layers=1), seed)


NETWORKS = {"byte": (network_for(BYTES), BYTES), "bpe": (network_for(BPE), BPE)}


def say(continuation: str | bytes, prompt="Hi", end=True, **options):
    """The result, and its pieces, of a network that says `continuation` after `prompt` and then ends."""
    data = continuation.encode() if isinstance(continuation, str) else continuation
    network = speaking(prompt, data, end)
    options = {"max_tokens": len(data) + end, "seed": 1} | options
    pieces = list(stream_generate(Model(network, BYTES), prompt, **options))
    (result,) = generate(Model(network, BYTES), prompt, **options)
    assert pieces[-1].result == result
    assert [piece.result for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert "".join(piece.text for piece in pieces) == result.text
    return result, [piece.text for piece in pieces]


@pytest.mark.item("S3-1-d")
def test_the_separator_ends_a_text_and_is_not_shown():
    result, pieces = say(" there")
    assert result.text == " there"
    assert result.finish_reason == "end"
    assert bytes(result.ids) == b" there"
    assert pieces == [*" there", ""]
    assert str(result) == "Hi there"
    assert result.prompt_ids == list(b"Hi")


@pytest.mark.item("S3-1-d")
def test_max_tokens_ends_a_text():
    result, _ = say(" there", max_tokens=4)
    assert (result.text, result.finish_reason) == (" the", "length")
    result, pieces = say(" there", max_tokens=0)
    assert (result.text, result.finish_reason, result.ids, pieces) == ("", "length", [], [""])


def test_characters_of_several_bytes_arrive_whole():
    result, pieces = say("é🙂日")
    assert [piece for piece in pieces if piece] == ["é", "🙂", "日"]
    assert result.text == "é🙂日"
    result, pieces = say("a🙂", max_tokens=3)
    assert result.text == "a\ufffd" == BYTES.decode(result.ids)
    assert pieces == ["a", "\ufffd"]


def test_a_stop_string_over_several_tokens_is_cut_and_never_shown_in_part():
    result, pieces = say("one\n\nUser: two", stop="\nUser:")
    assert (result.text, result.finish_reason) == ("one\n", "stop")
    assert pieces == ["o", "n", "e", "\n", ""]
    assert BYTES.decode(result.ids) == "one\n\nUser:"


def test_stop_strings_of_several_bytes_a_letter_and_overlapping_ones():
    assert say("naïve café", stop=["é", "zzz"])[0].text == "naïve caf"
    assert say("xxaabxx", stop="aab")[0].text == "xx"
    result, pieces = say("abcabd", stop="abd")
    assert (result.text, "".join(pieces)) == ("abc", "abc")


def test_what_was_held_back_is_shown_when_no_stop_string_comes_of_it():
    result, pieces = say("one\nUse", stop="\nUser:")
    assert (result.text, result.finish_reason) == ("one\nUse", "end")
    assert pieces[-1] == "\nUse"
    result, _ = say("one\nUser: x", stop="\nUser:", max_tokens=8)
    assert (result.text, result.finish_reason) == ("one\nUser", "length")


def test_a_stop_string_wins_over_the_last_token():
    result, _ = say("one.", stop=".", max_tokens=4)
    assert (result.text, result.finish_reason) == ("one", "stop")


def test_the_same_stop_in_the_prompt_means_nothing():
    result, _ = say("c.", prompt="a.b.", stop=".")
    assert (result.text, result.finish_reason) == ("c", "stop")


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.lists(st.text("abé 日", max_size=20), min_size=1, max_size=3),
    st.lists(st.text("aeth é\ufffd", min_size=1, max_size=2), max_size=2),
    st.integers(0, 1000),
    st.integers(1, 2),
)
def test_streamed_is_full_and_stops_are_cut_whatever_else_is_in_the_batch(kind, prompts, stop, seed, n):
    network, tokenizer = NETWORKS[kind]
    options = {"max_tokens": 24, "temperature": 1.0, "stop": stop, "seed": seed, "n": n}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromptCut)
        results = generate(Model(network, tokenizer), prompts, **options)
        pieces = list(stream_generate(Model(network, tokenizer), prompts, **options))
        alone = [result for prompt in prompts for result in generate(Model(network, tokenizer), prompt, **options)]
    assert [(r.prompt, r.sample) for r in results] == [(prompt, i) for prompt in prompts for i in range(n)]
    assert results == alone
    for place, result in enumerate(results):
        own = [piece for piece in pieces if (piece.prompt, piece.sample) == (place // n, place % n)]
        assert "".join(piece.text for piece in own) == result.text
        assert own[-1].result == result
        assert tokenizer.separator not in result.ids
        whole = tokenizer.decode(result.ids)
        assert not any(s in result.text for s in stop)
        if result.finish_reason == "stop":
            assert any(whole.startswith(result.text + s) for s in stop)
        else:
            assert whole == result.text


def test_seeds_repeat_texts_and_are_drawn_and_named_where_none_is_given():
    network, tokenizer = NETWORKS["byte"]
    first, second = (generate(Model(network, tokenizer), "abc", max_tokens=12)[0] for _ in range(2))
    assert first.seed != second.seed
    assert generate(Model(network, tokenizer), "abc", max_tokens=12, seed=first.seed) == [first]
    samples = generate(Model(network, tokenizer), ["abc", "abc"], max_tokens=12, n=3, seed=5)
    assert [s.text for s in samples[:3]] == [s.text for s in samples[3:]]
    assert len({s.text for s in samples}) == 3


def test_an_empty_prompt_starts_from_the_separator():
    network, tokenizer = NETWORKS["byte"]
    (result,) = generate(Model(network, tokenizer), "", max_tokens=3, seed=0)
    assert (result.prompt_ids, result.prompt) == ([tokenizer.separator], "")


def test_the_name_of_the_separator_in_a_prompt_is_text():
    network, tokenizer = NETWORKS["byte"]
    with pytest.warns(PromptCut):
        (result,) = generate(Model(network, tokenizer), "<|endoftext|>    ", max_tokens=1, seed=0)
    assert bytes(result.prompt_ids) == b"<|endoftext|>    "


@pytest.mark.item("S0-1.2-a")
def test_a_prompt_longer_than_the_context_keeps_its_end_and_says_so_once():
    network, tokenizer = NETWORKS["byte"]
    with pytest.warns(PromptCut, match="not read: its first 5 tokens") as caught:
        results = generate(Model(network, tokenizer), ["x" * 18, "01234" + "y" * 16, "z"], max_tokens=2, seed=0)
    assert len(caught) == 1
    assert [result.truncated for result in results] == [2, 5, 0]
    (tail,) = generate(Model(network, tokenizer), "y" * 16, max_tokens=2, seed=0)
    assert (tail.ids, tail.truncated) == (results[1].ids, 0)


def test_texts_go_on_far_beyond_the_context():
    network, tokenizer = NETWORKS["byte"]
    options = {"max_tokens": 60, "seed": 3, "temperature": 1.3}
    assert generate(Model(network, tokenizer), "ab", **options) == generate(
        Model(network, tokenizer), "ab", **options, cache=False
    )


def test_a_vocabulary_smaller_than_the_networks_is_never_left():
    tokenizer = CharTokenizer("abc")
    network = make_network(Architecture(n_vocab=64, n_ctx=8, d_model=8, n_layers=1))
    results = generate(Model(network, tokenizer), ["a", "b"], max_tokens=30, n=5, temperature=3, seed=0)
    assert all(i < tokenizer.n_vocab for result in results for i in result.ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n = 0"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"temperature": -1}, "temperature = -1"),
        ({"stop": ""}, "at least one character"),
        ({"max_tokens": -2}, "max_tokens = -2"),
    ],
)
def test_bad_options_are_refused_before_the_first_piece(options, message):
    network, tokenizer = NETWORKS["byte"]
    with pytest.raises(GenerationError, match=message):
        stream_generate(Model(network, tokenizer), "a", **options)


def test_a_tokenizer_that_is_too_large_is_refused():
    network, _ = NETWORKS["byte"]
    with pytest.raises(GenerationError, match="is this the tokenizer"):
        generate(Model(network, BPE), "a")


def test_a_stream_that_is_closed_does_no_more_work(monkeypatch):
    network, tokenizer = NETWORKS["byte"]
    calls = []
    network.final_norm.register_forward_hook(lambda *_: calls.append(1))
    stream = stream_generate(Model(network, tokenizer), "abc", max_tokens=1000, seed=0)
    next(stream)
    done = len(calls)
    stream.close()
    assert len(calls) == done < 20
