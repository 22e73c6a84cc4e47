"""The laws of every tokenizer: exact round trips, no special id from text, whole characters when streaming."""

import inspect
import json
import random
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from pellucid.reference.tokens import split_words
from pellucid.text.chat_template import read_chat_template
from pellucid.text.tokenizers.base import NoEndError
from pellucid.text.tokenizers.beside import FLAGS, with_tokens_beside
from pellucid.text.tokenizers.bpe import BORDERS, KNOWN_PATTERNS, O200K_PATTERN, PATTERNS, BPETokenizer, cut_at_borders
from pellucid.text.tokenizers.tokenizer import (
    LEAST_VOCABULARY,
    SEPARATOR,
    Tokenizer,
    TokenizerError,
    evenly,
    learn_tokenizer,
    load_tokenizer,
)
from some_cases import one_in

KINDS = ("bpe", "word", "char", "byte")
LEARNED = ("bpe", "word")


def random_strings(n: int, seed: int = 0) -> list[str]:
    """Strings of up to 40 characters of every plane, surrogates left out, ASCII and separators mixed in."""
    rng = random.Random(seed)
    ranges = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF), (0x20, 0x20), (9, 13)]

    def character() -> str:
        return SEPARATOR if rng.random() < 0.01 else chr(rng.randint(*rng.choice(ranges)))

    return ["".join(character() for _ in range(rng.randint(0, 40))) for _ in range(n)]


@pytest.fixture(scope="module")
def strings() -> list[str]:
    return random_strings(10_000)


@pytest.fixture(scope="module")
def trained(strings, shakespeare, udhr) -> dict[str, Tokenizer]:
    return {
        "bpe": learn_tokenizer("bpe", [shakespeare, *udhr.values()], 1200),
        "char": learn_tokenizer("char", [*strings, shakespeare]),
        "word": learn_tokenizer("word", [*strings, shakespeare, *udhr.values(), "ab", "cd", "a"], 1 << 20),
        "byte": learn_tokenizer("byte", []),
    }


@pytest.mark.item("S0-1.1-d", "S4-sym-a")
@pytest.mark.parametrize("kind", one_in(4, KINDS[::-1]))
def test_ten_thousand_random_strings_come_back(kind, trained, strings):
    tokenizer = trained[kind]
    encoded = tokenizer.encode_batch(strings)
    for text, ids in zip(strings, encoded, strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode_bytes(ids) == text.encode()
        assert not set(ids.tolist()) & {tokenizer.separator, tokenizer.unknown}


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_alone_or_in_a_batch_is_the_same(kind, trained, strings):
    tokenizer = trained[kind]
    for text, ids in zip(strings[:1000], tokenizer.encode_batch(strings[:1000]), strict=True):
        assert tokenizer.encode(text) == ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_is_the_full_text_in_whole_characters(kind, trained, strings):
    tokenizer = trained[kind]
    for text in strings[:3000]:
        stream = tokenizer.stream()
        pieces = [stream.push(i) for i in tokenizer.encode(text)] + [stream.finish()]
        assert "".join(pieces) == text
        assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@pytest.mark.parametrize("kind", ["bpe", "byte"])
@given(st.lists(st.integers(0, 255), max_size=12))
def test_streaming_any_ids_equals_decoding_them(kind, trained, ids):
    tokenizer = trained[kind]
    ids = [*ids, tokenizer.separator, *reversed(ids)]
    stream = tokenizer.stream()
    assert "".join(stream.push(i) for i in ids) + stream.finish() == tokenizer.decode(ids)


fragments = st.sampled_from(
    [SEPARATOR, "<|unknown|>", "<|endof", "text|>", "<|", "|>", "<", "|", "endoftext", " ", "a\n"]
)


@pytest.mark.item("S0-1.1-a")
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(fragments, max_size=8).map("".join))
@settings(max_examples=200)
def test_text_never_yields_a_special_id(kind, trained, text):
    tokenizer = trained[kind]
    assert tokenizer.separator not in tokenizer.encode(text)
    assert tokenizer.separator not in tokenizer.encode_batch([text])[0]
    # a word that was never seen is the one thing that is not given back
    assert tokenizer.decode(tokenizer.encode(text)) == text or tokenizer.unknown in tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_named_special_tokens_are_found(kind, trained):
    tokenizer = trained[kind]
    ids = tokenizer.encode(f"ab{SEPARATOR}cd{SEPARATOR}", allow_special={SEPARATOR})
    assert ids == [*tokenizer.encode("ab"), tokenizer.separator, *tokenizer.encode("cd"), tokenizer.separator]
    assert tokenizer.decode(ids) == "abcd"
    assert tokenizer.token_str(tokenizer.separator) == SEPARATOR
    with pytest.raises(TokenizerError, match="not a special token"):
        tokenizer.encode("ab", allow_special={"<|pad|>"})


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_separators_in_the_training_text_are_ordinary_text(kind):
    tokenizer = learn_tokenizer(kind, [f"one{SEPARATOR}two " * 200], 400 if kind in LEARNED else None)
    ids = tokenizer.encode(f"one{SEPARATOR}two")
    assert tokenizer.separator not in ids
    assert tokenizer.decode(ids) == f"one{SEPARATOR}two"
    assert [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)].count(SEPARATOR.encode()) == 0


@pytest.mark.item("S0-1.1-h")
@pytest.mark.parametrize("kind", KINDS)
def test_saved_is_loaded_and_is_the_same_in_hugging_face(kind, trained, strings, tmp_path):
    tokenizer = trained[kind]
    path = tokenizer.save(tmp_path)
    again, theirs = load_tokenizer(tmp_path), tokenizers.Tokenizer.from_file(str(path))
    assert (again.kind, again.n_vocab, again.hash) == (tokenizer.kind, tokenizer.n_vocab, tokenizer.hash)
    assert (again.special, again.separator, again.unknown) == (
        tokenizer.special,
        tokenizer.separator,
        tokenizer.unknown,
    )
    assert again.to_json() == tokenizer.to_json()
    for text in strings[:2000]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        if SEPARATOR not in text:
            assert theirs.encode(text).ids == ids
            assert theirs.decode(ids, skip_special_tokens=False) == text
    assert theirs.get_vocab_size() == tokenizer.n_vocab
    assert theirs.encode(f"a{SEPARATOR}").ids == tokenizer.encode(f"a{SEPARATOR}", allow_special=[SEPARATOR])


def test_characters_never_seen_become_the_unknown_and_do_not_crash(tmp_path):
    tokenizer = learn_tokenizer("char", ["banana"])
    assert tokenizer.characters == "abn"
    assert tokenizer.n_vocab == 5
    assert tokenizer.encode("band") == [1, 0, 2, tokenizer.unknown]
    assert tokenizer.decode(tokenizer.encode("b€d")) == "b\ufffd\ufffd"
    theirs = tokenizers.Tokenizer.from_file(str(tokenizer.save(tmp_path)))
    assert theirs.encode("band\n€").ids == tokenizer.encode("band\n€")


@pytest.mark.item("S4-sym-b")
def test_words_never_seen_become_the_unknown(tmp_path):
    tokenizer = learn_tokenizer("word", ["the cat, the dog; the cat", " the"], 6)
    assert tokenizer.words == [" the", " cat", " dog", ","]
    assert tokenizer.notes == ("2 rarer words, 22.2% of all, became unknown",)
    assert tokenizer.encode(" the bird, the dog") == [0, tokenizer.unknown, 3, 0, 2]
    assert tokenizer.decode(tokenizer.encode(" the bird, the dog")) == " the\ufffd, the dog"
    assert tokenizer.token_str(tokenizer.unknown) == "<|unknown|>"
    assert load_tokenizer(tokenizer.save(tmp_path)).encode("the cat, the dog") == tokenizer.encode("the cat, the dog")
    with pytest.raises(TokenizerError, match="has this word already"):
        tokenizer.with_special(" cat")


@pytest.mark.item("S4-sym-b")
def test_words_are_those_of_the_definition_and_the_blanks_between_them(shakespeare, udhr):
    tokenizer = learn_tokenizer("word", [shakespeare, *udhr.values()], 1 << 20)
    for text in (shakespeare, udhr["eng"], udhr["fra"]):
        pieces = [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text)]
        assert "".join(pieces) == text
        assert [word for piece in pieces if (word := piece.strip())] == split_words(text)
    assert len(tokenizer.encode(shakespeare)) < len(learn_tokenizer("bpe", [shakespeare], 1000).encode(shakespeare))


def test_a_vocabulary_of_words_says_what_it_left_out_and_where_it_stopped():
    assert learn_tokenizer("word", ["a b"], 100).notes == (
        "the vocabulary stopped at 4 of the 100 requested ids: there are no more words",
    )
    with pytest.raises(TokenizerError, match="at least 3"):
        learn_tokenizer("word", ["a b"], 2)


@pytest.mark.parametrize(("kind", "least"), LEAST_VOCABULARY.items())
def test_a_vocabulary_that_is_too_small_is_refused_before_a_text_is_read(kind, least):
    def unread():
        raise AssertionError("a text was read")
        yield ""

    with pytest.raises(TokenizerError, match=f"needs at least {least[0]}, {least[1]}"):
        learn_tokenizer(kind, unread(), least[0] - 1)
    assert learn_tokenizer(kind, ["a b"], least[0]).n_vocab == least[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bad", "message"), [("ab\ud800", "character 2 .* U\\+D800"), (b"ab", "got bytes")])
def test_what_is_not_text_is_refused(kind, bad, message, trained):
    for call in (trained[kind].encode, lambda text: trained[kind].encode_batch([text])):
        with pytest.raises(TokenizerError, match=message):
            call(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_outside_the_vocabulary_are_refused(kind, trained):
    for wrong in (-1, trained[kind].n_vocab):
        with pytest.raises(TokenizerError, match="outside this vocabulary"):
            trained[kind].decode([wrong])


@pytest.mark.item("S0-1.1-g")
def test_training_stops_where_pairs_are_exhausted_and_says_so():
    tokenizer = learn_tokenizer("bpe", ["hello hello world"], 1000)
    assert tokenizer.n_vocab < 300
    assert f"stopped at {tokenizer.n_vocab} of the 1000" in tokenizer.notes[0]
    assert tokenizer.separator == tokenizer.n_vocab - 1
    assert learn_tokenizer("bpe", ["hello hello world"], 260).notes == ()


def test_training_options_that_mean_nothing_are_refused():
    with pytest.raises(TokenizerError, match="at least 257"):
        learn_tokenizer("bpe", ["text"], 256)
    with pytest.raises(TokenizerError, match="needs n_vocab"):
        learn_tokenizer("bpe", ["text"])
    with pytest.raises(TokenizerError, match="leave it out"):
        learn_tokenizer("char", ["text"], 100)
    with pytest.raises(TokenizerError, match="choose one of bpe, word, char, byte"):
        learn_tokenizer("morpheme", ["text"])
    with pytest.raises(TokenizerError, match="U\\+DFFF"):
        learn_tokenizer("bpe", ["text", "\udfff"], 300)


def test_training_is_the_same_in_another_process(shakespeare, trained):
    script = (
        "import sys; from pellucid.text.tokenizers.tokenizer import learn_tokenizer;"
        "print(learn_tokenizer('bpe', [sys.stdin.read()], 900).hash)"
    )
    command = [sys.executable, "-c", script]
    hashes = {
        subprocess.run(command, input=shakespeare, capture_output=True, text=True, check=True).stdout for _ in range(2)
    }
    assert hashes == {learn_tokenizer("bpe", [shakespeare], 900).hash + "\n"}


@pytest.mark.item("S0-1.1-h")
def test_every_token_is_the_concatenation_of_the_two_it_was_merged_from(trained):
    tokenizer = trained["bpe"]
    names = json.loads(tokenizer.to_json())["model"]["vocab"]
    assert len(tokenizer.merges) == tokenizer.n_vocab - 257
    for a, b in tokenizer.merges:
        joined = tokenizer.token_bytes(names[a]) + tokenizer.token_bytes(names[b])
        assert tokenizer.token_bytes(names[a + b]) == joined


def test_tokens_of_part_of_a_character_are_shown_as_escapes(trained):
    tokenizer = trained["bpe"]
    euro = learn_tokenizer("bpe", ["a"], 257).encode("€")
    assert [tokenizer.token_str(i) for i in euro] == ["\\xe2", "\\x82", "\\xac"]


pieces = st.lists(
    st.sampled_from(["word", " ", "\n", "  ", "\t", "it's", "'s", "!", "12", "é", "\x1c", "\u3000", "字"])
)


@given(pieces, st.integers(1, 5), st.integers(1, 9))
@settings(max_examples=300)
def test_a_text_in_pieces_has_the_ids_of_the_whole(trained, words, width, size):
    text = "".join(words)
    given_in = [text[i : i + width] for i in range(0, len(text), width)]
    chunks = list(cut_at_borders(given_in, size=size))
    assert "".join(chunks) == text
    ids = [i for chunk in chunks for i in trained["bpe"].encode(chunk)]
    assert ids == trained["bpe"].encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_encode_pieces_joins_to_the_whole(kind, trained, udhr):
    tokenizer = trained[kind]
    text = "".join(udhr.values()) * 3
    ids = np.concatenate(list(tokenizer.encode_pieces(text[i : i + 10_007] for i in range(0, len(text), 10_007))))
    assert ids.tolist() == tokenizer.encode(text)


def test_a_run_without_borders_is_cut_at_the_limit_and_loses_nothing():
    chunks = list(cut_at_borders(["x" * 100] * 10, size=50, longest=300))
    assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]


HOSTILE = {
    "letter": "a",
    "space": " ",
    "newline": "\n",
    "digit": "7",
    "emoji": "\U0001f600",
    "mark": "e\u0301",
    "no blanks": "".join(chr(ord("a") + i * i % 23) for i in range(997)),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", one_in(4, HOSTILE))
def test_a_megabyte_of_one_character_is_learned_and_encoded(name, trained):
    text = HOSTILE[name] * (1_000_000 // len(HOSTILE[name].encode()))
    learned = learn_tokenizer("bpe", [text], 300)
    for tokenizer in (learned, trained["byte"], learn_tokenizer("char", [text])):
        assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


def rewritten(tokenizer, change) -> str:
    content = json.loads(tokenizer.to_json())
    change(content)
    return json.dumps(content)


def preceded_by(pattern: str, step: dict) -> dict:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, step]}


HARMFUL = {
    "a regular expression that hangs": (
        lambda c: c.update(pre_tokenizer=preceded_by("(a+)+$", c["pre_tokenizer"])),
        "not known to be safe",
    ),
    "a normaliser that multiplies text": (
        lambda c: c.update(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}),
        "not known to be safe",
    ),
    "an id far outside": (lambda c: c["added_tokens"][0].update(id=2**31), "none with id"),
    "an id given twice": (lambda c: c["model"]["vocab"].update(zzz=5), "gives id 5 to both"),
    "no separator": (lambda c: c["added_tokens"][0].update(content="<|pad|>"), "declares no end-of-text token"),
    "another model": (lambda c: c["model"].update(type="Oracle"), "Oracle"),
    "a byte left out": (lambda c: c["model"]["vocab"].pop("A"), "lacks 1 of the 256 bytes"),
    "merges dropped at random": (lambda c: c["model"].update(dropout=0.1), "at random"),
    "a merge of nothing": (lambda c: c["model"]["merges"].__setitem__(0, ["", ""]), "engine failed"),
    "a vocabulary of another shape": (lambda c: c["model"].update(vocab=[1, 2]), "damaged|lacks"),
    "a step of another shape": (lambda c: c.update(pre_tokenizer="x"), "damaged"),
    "not byte-level": (lambda c: c.update(pre_tokenizer=None), "not byte-level"),
}  # fmt: skip


def test_the_pattern_of_o200k_is_known(trained):
    """As tiktoken has it, and gpt-oss's tokenizer.json."""
    assert "|".join(re.findall(r'r"""(.*?)"""', inspect.getsource(openai_public.o200k_base))) == O200K_PATTERN

    def change(content: dict) -> None:
        content["pre_tokenizer"] = preceded_by(O200K_PATTERN, content["pre_tokenizer"] | {"use_regex": False})

    tokenizer = BPETokenizer(rewritten(trained["bpe"], change))
    text = "HelloWorld isn't it's\n\n  1234 é/ " * 3
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.words("HelloWorld isn't 1234")[:3] == ["Hello", "World", "\u0120isn't"]


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_and_foreign_files_are_refused(name, trained, tmp_path):
    change, message = HARMFUL[name]
    (tmp_path / "tokenizer.json").write_text(rewritten(trained["bpe"], change))
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"model": 3}', '{"model": {"type": "BPE"}}', "[" * 100_000]
)
def test_broken_files_are_refused(text, tmp_path):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="no such tokenizer"):
        load_tokenizer(tmp_path / "elsewhere")


def test_patterns_of_known_tokenizers_are_accepted_and_lossless(trained, tmp_path, udhr):
    for pattern in KNOWN_PATTERNS:
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        steps = preceded_by(pattern, byte_level)
        (tmp_path / "tokenizer.json").write_text(
            rewritten(trained["bpe"], lambda c, s=steps: c.update(pre_tokenizer=s))
        )
        tokenizer = load_tokenizer(tmp_path)
        for text in udhr.values():
            assert tokenizer.decode(np.concatenate(list(tokenizer.encode_pieces([text[:99], text[99:]])))) == text


@pytest.mark.parametrize("kind", ["bpe", "word", "char", "byte"])
def test_more_special_tokens(kind: str, shakespeare: str, tmp_path):
    """A special id added later changes no other, is never read from text, and is saved with the rest."""
    plain = learn_tokenizer(kind, [shakespeare[:20_000]], 300 if kind in LEARNED else None)
    masked = plain.with_special("<|mask|>")
    assert masked.n_vocab == plain.n_vocab + 1
    assert masked.special == {**plain.special, "<|mask|>": plain.n_vocab}
    text = "To be, <|mask|> or not"
    assert masked.encode(text) == plain.encode(text)
    assert masked.encode(text, allow_special=["<|mask|>"]).count(plain.n_vocab) == 1
    assert masked.token_bytes(plain.n_vocab) == b""
    masked.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.special == masked.special
    assert again.hash == masked.hash != plain.hash
    with pytest.raises(TokenizerError, match="not taken yet"):
        masked.with_special("<|mask|>")


@pytest.mark.parametrize("special", [True, False])
def test_an_end_of_another_name_is_taken_from_the_files_beside_it(special, trained, tmp_path):
    """As DeepSeek's distilled models have it, and Command R, whose file declares it as an ordinary token."""
    end, last = {"content": "<|END|>", "special": special}, trained["bpe"].separator
    (tmp_path / "tokenizer.json").write_text(rewritten(trained["bpe"], lambda c: c["added_tokens"][0].update(end)))
    with pytest.raises(
        NoEndError, match=r"declares no end-of-text token: expected .* or an added token that eos_token"
    ):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path, ends=[last + 5, last]).separator == last
    for named in ("<|END|>", {"content": "<|END|>", "lstrip": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.separator, tokenizer.special) == (last, {"<|END|>": last})
        assert last not in tokenizer.encode("to be <|END|> or not")
        assert tokenizer.decode(tokenizer.encode("to be <|END|>")) == "to be <|END|>"
    saved = tokenizer.save(tmp_path / "again")
    assert saved.read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert load_tokenizer(saved).separator == last
    again = load_tokenizer(tokenizer.with_special("<|mask|>").save(tmp_path / "more"))
    assert (again.separator, again.mask) == (last, last + 1)


def added(name, **flags):
    return {"content": name, "special": True, "normalized": False, "lstrip": False, "rstrip": False} | flags


#: tokenizer_config.json, and other files beside a tokenizer.json whose next id is 300
BESIDE = {
    "listed": ({"added_tokens_decoder": {"301": added("<b>"), "300": added("</think>", special=False)}}, {}),
    "listed with other flags": ({"added_tokens_decoder": {"299": added("<|endoftext|>", lstrip=True)}}, {}),
    "in a file of their own": ({}, {"added_tokens.json": {"<b>": 301, "</think>": 300}}),
    "named": ({"pad_token": "<b>", "image_token": {"content": "</think>", "__type": "AddedToken"}}, {}),
    "named by the model": ({"extra_special_tokens": {"image_token": "<b>", "video_token": "</think>"}}, {}),
    "without a use": ({"additional_special_tokens": ["<b>", "</think>"], "pad_token": "to"}, {}),
    "named in a file of their own": (
        {},
        {"special_tokens_map.json": {"pad_token": "</think>"}, "added_tokens.json": {"<b>": 300, "</think>": 301}},
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_tokens_beside_a_tokenizer_are_those_of_transformers(name, shakespeare, tmp_path):
    from transformers import AutoTokenizer

    options, files = BESIDE[name]
    learn_tokenizer("bpe", [shakespeare[:20_000]], 300).save(tmp_path)
    base = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    for file, content in {"tokenizer_config.json": base | options, **files}.items():
        (tmp_path / file).write_text(json.dumps(content))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "to be <b> or</think> not<|endoftext|>to"
    assert ours.n_vocab == len(theirs)
    assert ours.encode(text, allow_special=list(ours.special)) == theirs.encode(text)
    flags = {token["id"]: token for token in json.loads(ours.to_json())["added_tokens"]}
    for i, token in theirs.added_tokens_decoder.items():
        assert flags[i] == {"id": i, "content": token.content} | {name: getattr(token, name) for name in FLAGS}
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    assert read_chat_template(tmp_path).variables == theirs.special_tokens_map
    assert load_tokenizer(ours.save(tmp_path / "saved")).hash == ours.hash


def test_many_tokens_beside_a_tokenizer_take_no_time_that_grows_with_their_square(tmp_path):
    content, n = {"model": {"vocab": {}}}, 20_000
    for beside in ({"added_tokens_decoder": {str(i): {"content": f"<{i}>"} for i in range(n)}}, {}):
        named = {"extra_special_tokens": [f"<{i}>" for i in range(n)]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | beside))
        began = time.process_time()
        text = with_tokens_beside("{}", content, tmp_path)
        assert time.process_time() - began < 8  # 11 and more where each is looked for among all others
        assert [token["id"] for token in json.loads(text)["added_tokens"]] == list(range(n))


def test_a_blank_before_a_text_is_that_of_the_files_beside_it(trained, tmp_path):
    from transformers import AutoTokenizer

    trained["bpe"].save(tmp_path)
    options = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    ids = load_tokenizer(tmp_path).encode("to be")
    assert ids == AutoTokenizer.from_pretrained(tmp_path).encode("to be") != trained["bpe"].encode("to be")


def test_tokens_beside_a_tokenizer_whose_ids_contradict_it_are_refused(trained, tmp_path):
    trained["bpe"].save(tmp_path)
    for listed, other in (({"7": added("<b>")}, 7), ({"9999": added("<b>")}, 9999)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
        with pytest.raises(TokenizerError, match=rf"give the token '<b>' id {other}, where this file leaves id"):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"-1": 5}}')
    with pytest.raises(TokenizerError, match="lists 5 with id -1: expected a token"):
        load_tokenizer(tmp_path)


def test_options_that_are_damaged_are_named(trained, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    (tmp_path / "tokenizer.json").write_text(trained["bpe"].to_json())
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json beside it is damaged, it is not JSON"):
        load_tokenizer(tmp_path)


def write_merges(folder, tokenizer, special, **options):
    """Files of GPT-2's kind whose first ids are these special tokens, with a tokenizer_config.json; the vocabulary."""
    model = json.loads(tokenizer.to_json())["model"]
    vocabulary = {name: i for i, name in enumerate(special)}
    vocabulary |= {name: i + len(special) for name, i in model["vocab"].items()}
    vocabulary |= {name: len(vocabulary) + i for i, name in enumerate((SEPARATOR, "<mask>"))}
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return vocabulary


OPT = {"tokenizer_class": "GPT2Tokenizer", "bos_token": {"content": "</s>"}, "eos_token": {"content": "</s>"}}
OPT |= {"pad_token": "<pad>", "unk_token": "</s>", "add_bos_token": True}


def test_vocabulary_and_merges_have_the_special_tokens_that_are_named_beside_them(trained, tmp_path):
    """OPT's <pad> and </s> have the ids 1 and 2, and </s> stands before every text; <|endoftext|> ends none there."""
    special, text = ("<s>", "<pad>", "</s>", "<unk>"), "To be, or not to be <|endoftext|>"
    vocabulary = write_merges(tmp_path, trained["bpe"], special, **OPT)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.n_vocab == len(vocabulary)
    assert tokenizer.special == {"<pad>": 1, "</s>": 2}
    assert (tokenizer.separator, tokenizer.before, tokenizer.after) == (2, (2,), ())
    assert tokenizer.encode(text) == [i + len(special) for i in trained["bpe"].encode(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert load_tokenizer(tokenizer.save(tmp_path / "saved")).before == (2,)
    write_merges(tmp_path, trained["bpe"], special, add_prefix_space=True)
    plain = load_tokenizer(tmp_path)
    assert plain.special == {SEPARATOR: vocabulary[SEPARATOR]}
    assert plain.decode(plain.encode("be")) == " be"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tokenizer_class": "Qwen2Tokenizer"},
            r"class 'Qwen2Tokenizer'.* divide text in another way.*tokenizer\.json",
        ),
        ({"eos_token": "<|im_end|>"}, r"names '<\|im_end\|>', which the vocabulary does not hold"),
        (
            {"eos_token": "</s>", "bos_token": "<b>", "add_bos_token": True},
            "names '<b>', which the vocabulary does not",
        ),
    ],
)
def test_vocabulary_and_merges_of_another_tokenizer_are_refused(options, says, trained, tmp_path):
    write_merges(tmp_path, trained["bpe"], ("</s>",), **options)
    with pytest.raises(TokenizerError, match=says):
        load_tokenizer(tmp_path)


# Patterns, samples, hostile texts of words --------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_divide_text_and_lose_nothing(pattern, shakespeare, udhr, strings, tmp_path):
    tokenizer = learn_tokenizer("bpe", [shakespeare, udhr["fra"]], 700, pattern=pattern)
    again = load_tokenizer(tokenizer.save(tmp_path))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*strings[:300], udhr["fra"], "x = 12345;\r\n\r\n  y", "  two  blanks  "):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert again.encode(text) == ids
        assert SEPARATOR in text or theirs.encode(text).ids == ids
    tokens = [tokenizer.token_bytes(i) for i in range(256, tokenizer.n_vocab)]
    begins, ends = (sum(side(t) for t in tokens) for side in (_blank_first, _blank_last))
    assert {"gpt2": begins > 20 > ends, "gpt4": begins > 20 > ends, "word-end": ends > 20 > begins}.get(pattern, True)
    assert (pattern == "none") == any(b" " in t.strip() for t in tokens)


def _blank_first(token: bytes) -> bool:
    return token.startswith(b" ") and token.strip() != b""


def _blank_last(token: bytes) -> bool:
    return token.endswith(b" ") and token.strip() != b""


TEXT = "ab ab. 12 12\\n\\nab 12 don't don't  ab.\\r\\n" * 30
PATTERNED = {pattern: learn_tokenizer("bpe", [TEXT], 280, pattern=pattern) for pattern in PATTERNS}


@pytest.mark.parametrize("pattern", PATTERNS)
@given(
    words=st.lists(
        st.sampled_from(["ab", " ", "  ", "\\n", "\\r\\n", ".", "12", "don't", "é", "\\U0001f600"]), max_size=40
    )
)
@settings(max_examples=60, deadline=None)
def test_borders_of_a_pattern_are_borders(pattern, words):
    """Text cut wherever the pattern's border is has the ids of the whole."""
    tokenizer = PATTERNED[pattern]
    text = "".join(words)
    border = BORDERS.get(tokenizer._pattern)
    pieces = [text] if border is None else list(cut_at_borders([text], size=1, border=border))
    assert "".join(pieces) == text
    assert [i for piece in pieces for i in tokenizer.encode(piece)] == tokenizer.encode(text)
    assert [i for ids in tokenizer.encode_pieces(words) for i in ids] == tokenizer.encode(text)


def test_a_sample_is_spread_evenly_and_said(shakespeare):
    chunks = list(evenly([shakespeare], 0.25))
    assert 0.2 < sum(map(len, chunks)) / len(shakespeare) < 0.3
    assert all(chunk in shakespeare for chunk in chunks)
    assert shakespeare.index(chunks[-1]) > 0.8 * len(shakespeare)
    assert list(evenly(["abc"], 1.0)) == ["abc"]
    assert list(evenly(["abc"], 0.1)) == ["abc"]
    assert "".join(evenly([shakespeare], 1.0)) == shakespeare
    assert len(list(evenly([shakespeare[:41_000]], 0.1))) == 2
    whole, part = (learn_tokenizer("bpe", [shakespeare], 600, sample=sample) for sample in (1.0, 0.25))
    assert part.hash != whole.hash
    assert part.notes[-1] == "the tokenizer was trained on 0.25 of the training text, evenly spread"
    assert part.decode(part.encode(shakespeare)) == shakespeare


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("bpe", {"n_vocab": 300, "pattern": "llama"}, "choose one of gpt2, gpt4, word-end, none"),
        ("char", {"pattern": "none"}, "has none; leave it out"),
        ("bpe", {"n_vocab": 300, "sample": 0.0}, "above 0"),
        ("byte", {"sample": 0.5}, "is trained on all of the text"),
        ("word", {}, "needs n_vocab"),
    ],
)
def test_choices_that_mean_nothing_say_why(kind, options, reason):
    with pytest.raises(TokenizerError, match=reason):
        learn_tokenizer(kind, ["text"], **options)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", one_in(3, [*HOSTILE, "no blanks at all"]))
def test_hostile_texts_end_with_every_pattern(name, pattern):
    unit = HOSTILE.get(name) or "".join(chr(ord("a") + i * i % 23) for i in range(997))
    text = unit * (100_000 // len(unit.encode()))
    for tokenizer in (learn_tokenizer("bpe", [text], 400, pattern=pattern), learn_tokenizer("word", [text], 400)):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def fail(*given):
        raise OSError(28, "No space left on device")

    tokenizer = learn_tokenizer("char", ["text"], None)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            tokenizer.save(tmp_path / "tokenizer")
    assert list((tmp_path / "tokenizer").iterdir()) == []
    tokenizer.save(tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer").hash == tokenizer.hash
