"""Our byte pair encoding, fast and by definition, is that of tokenizers, of tiktoken and of GPT-2's files."""

import random

import pytest
import tiktoken
import tokenizers
from transformers import GPT2Tokenizer

from pellucid.reference.bpe import BPE, BYTES, Pair, bpe_decode, bpe_encode, read_gpt2_merges, token_bytes
from pellucid.text.tokenizers.bpe import GPT2_PATTERN
from pellucid.text.tokenizers.tokenizer import SEPARATOR, Tokenizer, learn_tokenizer, load_tokenizer

SAMPLES = [
    "",
    " ",
    "Hello, world! It's 2024; they'll say WE'RE they'Re.",
    "tabs\tand\n\nnewlines \r\n  and   runs    of spaces   ",
    "no-break\u00a0space, \u3000ideographic\u3000space, zero\u200bwidth, e\u0301 combining",
    "naïve café Ωμέγα Ⅷ ½ ² ٣ ๓ 한국어 日本語 हिन्दी עברית",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f9ff \U0010fffd \ufeff",
    "def f(x):\n    return x**2  # 1e-5 + 0x1F\n",
    "a  b\n\n c\t 3½ ²'ll'LL  ",
    "x\u3000 y\x1c z",
    "<|endoftext|> is only text here <|endoftext|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "'s't're've'm'll'd 'S 'T",
    "\x00\x01\x7f\x80",
]


def random_texts(n, seed=0):
    """Characters of every plane."""
    draw = random.Random(seed)
    planes = [(32, 126), (9, 13), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return ["".join(chr(draw.randint(*draw.choice(planes))) for _ in range(draw.randint(1, 30))) for _ in range(n)]


def texts_of(udhr, shakespeare, length):
    return [*SAMPLES, *random_texts(150), shakespeare[:length], *(text[:length] for text in udhr.values())]


def as_tiktoken(ranks: dict[bytes, int], separator: int) -> tiktoken.Encoding:
    return tiktoken.Encoding("ours", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={SEPARATOR: separator})


def as_reference(tokenizer: Tokenizer) -> tuple[BPE, list[int]]:
    """The same merges over the bytes, and the id of ours for each of the reference's tokens."""
    n = tokenizer.n_vocab - 1
    ours = {tokenizer.token_bytes(i): i for i in range(n)}
    merged = [ours[left + right] for left, right in _merged(tokenizer)]
    order = [*(ours[byte] for byte in BYTES), *merged]
    place = {i: k for k, i in enumerate(order)}
    merges: list[Pair] = [(place[ours[left]], place[ours[right]]) for left, right in _merged(tokenizer)]
    return BPE(BYTES, tuple(merges)), order


def _merged(tokenizer):
    bytes_of = {tokenizer._names[i]: tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)}
    return [(bytes_of[left], bytes_of[right]) for left, right in tokenizer.merges]


@pytest.fixture(scope="module")
def trained(shakespeare, udhr):
    return learn_tokenizer("bpe", [shakespeare[:30_000], *(text[:2000] for text in udhr.values())], 900)


@pytest.mark.item("S0-1.1-j")
def test_a_trained_vocabulary_four_ways(trained, shakespeare, udhr):
    hugging_face = tokenizers.Tokenizer.from_str(trained.to_json())
    hugging_face.encode_special_tokens = True
    ranks = {trained.token_bytes(i): i for i in range(trained.n_vocab - 1)}
    tik = as_tiktoken(ranks, trained.separator)
    slow, order = as_reference(trained)
    for text in texts_of(udhr, shakespeare, 1500):
        ids = trained.encode(text)
        assert ids == hugging_face.encode(text, add_special_tokens=False).ids
        assert ids == tik.encode(text, disallowed_special=())
        assert ids == [order[k] for k in bpe_encode(text, slow)]
        assert text == trained.decode(ids) == tik.decode(ids) == bpe_decode([order.index(i) for i in ids], slow)


@pytest.mark.item("S0-1.1-a")
def test_named_separators_are_special_in_all(trained):
    tik = as_tiktoken({trained.token_bytes(i): i for i in range(trained.n_vocab - 1)}, trained.separator)
    slow, order = as_reference(trained)
    text = f"one{SEPARATOR}two {SEPARATOR}"
    ids = trained.encode(text, allow_special=[SEPARATOR])
    assert ids.count(trained.separator) == 2
    assert ids == tik.encode(text, allowed_special={SEPARATOR})
    assert ids == [[*order, trained.separator][k] for k in bpe_encode(text, slow, allowed_special=[SEPARATOR])]


@pytest.fixture(scope="module")
def gpt2(needs_data):
    """GPT-2's vocabulary: ours, the reference's, tiktoken's and transformers'."""
    folder = needs_data / "gpt2"
    slow = read_gpt2_merges((folder / "vocab.bpe").read_text(encoding="utf-8"))
    tik = as_tiktoken({token_bytes(i, slow): i for i in range(50_256)}, 50_256)
    theirs = GPT2Tokenizer(vocab=str(folder / "encoder.json"), merges=str(folder / "vocab.bpe"))
    return load_tokenizer(folder), slow, tik, theirs


@pytest.mark.item("S0-1.1-j")
def test_gpt2_four_ways(gpt2, shakespeare, udhr):
    ours, slow, tik, theirs = gpt2
    for text in texts_of(udhr, shakespeare, 4000):
        ids = ours.encode(text)
        assert ids == tik.encode(text, disallowed_special=())
        assert bpe_encode(text[:800], slow) == ours.encode(text[:800])
        assert ids == theirs(text, split_special_tokens=True).input_ids
        assert text == ours.decode(ids)
        assert text == bpe_decode(ids, slow)


@pytest.mark.slow
@pytest.mark.item("S0-1.1-j", "S0-1.1-l")
def test_every_token_of_gpt2_is_a_fixed_point(gpt2):
    """50,256 tokens; 344 are not UTF-8 alone and so are no text's encoding by themselves."""
    ours, slow, tik, _ = gpt2
    invalid = 0
    for i in range(50_256):
        spelt = token_bytes(i, slow)
        assert ours.token_bytes(i) == spelt
        assert tik.encode_single_token(spelt) == i
        try:
            text = spelt.decode()
        except UnicodeDecodeError:
            invalid += 1
            continue
        assert ours.encode(text) == [i]
        assert bpe_encode(text, slow) == [i]
    assert invalid == 344


@pytest.mark.item("S4-sym-d", "S4-iss-a", "S4-iss-b")
def test_the_examples_of_the_slides(gpt2):
    """S4, issues with tokenization: three r's in two tokens; one space changes what is seen."""
    ours, slow, tik, _ = gpt2
    for text, pieces in [
        ("subwords", ["sub", "words"]),
        ("strawberry", ["st", "raw", "berry"]),
        (" strawberry", [" strawberry"]),
        ("http://", ["http", "://"]),
        ("http: //", ["http", ":", " //"]),
    ]:
        assert [ours.token_str(i) for i in ours.encode(text)] == pieces
        assert [token_bytes(i, slow).decode() for i in bpe_encode(text, slow)] == pieces
        assert [tik.decode([i]) for i in tik.encode(text)] == pieces
    assert [("r" in piece, piece.count("r")) for piece in ("st", "raw", "berry")] == [(False, 0), (True, 1), (True, 2)]
