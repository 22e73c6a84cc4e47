"""Tokenizers of other projects: the ids and the text that transformers gives, and the file byte for byte."""

import base64
import json

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Engine
from transformers import PreTrainedTokenizerFast

from pellucid.text.tokenizers.base import NoEndError
from pellucid.text.tokenizers.external import ExternalTokenizer
from pellucid.text.tokenizers.post_processor import template_around
from pellucid.text.tokenizers.tokenizer import Tokenizer, TokenizerError, load_tokenizer

TEXTS = [
    "First Citizen: we are accounted poor citizens,\n\nthe patricians good.",
    "  two  spaces \t and \u00e9t\u00e9, na\u00efve \u4e2d\u6587 \U0001f600 ",
    "</s> <s> [SEP] <eos> are typed by a user",
    "",
    " ",
    "don't 1234 x",
]


def added(engine, *names):
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])


def llama(texts):
    """As Llama 2 and Gemma have it: spaces as U+2581, bytes to fall back on."""
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    special = ["<unk>", "<s>", "</s>"]
    first = Engine(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    first.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    first.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=700, special_tokens=special + bytes_, show_progress=False)
    )
    content = json.loads(first.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] in special]
    engine = Engine.from_str(json.dumps(content))
    engine.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return engine


def bert(texts):
    engine = Engine(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    engine.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    )
    engine.decoder = decoders.WordPiece(cleanup=False)
    engine.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return engine


def t5(texts):
    engine = Engine(models.Unigram())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=names, unk_token="<unk>", show_progress=False)
    engine.train_from_iterator(texts, trainer)
    engine.decoder = decoders.Metaspace()
    return engine


KINDS = {"sentencepiece": llama, "wordpiece": bert, "unigram": t5}


@pytest.fixture(scope="module", params=KINDS)
def made(request, shakespeare, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    engine = KINDS[request.param](shakespeare[:20_000].splitlines())
    # as somebody else may have laid it out
    (folder / "tokenizer.json").write_bytes(
        json.dumps(json.loads(engine.to_str()), indent=3).replace("\n", "\r\n").encode()
    )
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), clean_up_tokenization_spaces=False)
    return request.param, folder, load_tokenizer(folder), theirs


def test_ids_and_text_are_theirs(made):
    kind, _, ours, theirs = made
    assert isinstance(ours, ExternalTokenizer)
    assert ours.kind == kind
    for text in TEXTS:
        if kind == "unigram" and "</s>" in text:
            # there theirs gives the id of the special token to a text that spells it
            assert not set(ours.encode(text)) & {ours.special["</s>"], ours.special["<pad>"]}
            continue
        ids = theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert ours.encode(text) == ids, text
        assert ours.encode_batch([text])[0].tolist() == ids
        pieces = [text[:7], text[7:]]
        assert [i for part in ours.encode_pieces(pieces) for i in part] == ids
        assert [i for part in ours.encode_batch(ours.chunks(pieces)) for i in part] == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert not set(ids) & set(ours.special.values()) - {ours.unknown}
    assert ours.n_vocab == len(theirs)


def test_the_file_is_written_back_byte_for_byte(made, tmp_path):
    _, folder, ours, _ = made
    ours.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert load_tokenizer(tmp_path).hash == ours.hash


def test_special_tokens_are_had_by_name_alone(made):
    kind, _, ours, _ = made
    end = {"sentencepiece": "</s>", "wordpiece": "[SEP]", "unigram": "</s>"}[kind]
    assert ours.separator == ours.special[end]
    assert ours.encode(f"a{end}", allow_special=[end])[-1] == ours.separator
    assert ours.separator not in ours.encode(f"a{end}")
    assert ours.decode([ours.separator]) == ""
    more = ours.with_special("<|mask|>")
    assert more.special["<|mask|>"] == ours.n_vocab
    assert more.mask == ours.n_vocab
    assert ours.mask == (ours.special["[MASK]"] if kind == "wordpiece" else None)
    with pytest.raises(TokenizerError, match="outside this vocabulary"):
        ours.decode([ours.n_vocab])


def test_tokens_are_streamed_with_the_space_before_them(made):
    """Concatenated, the bytes of the tokens are the text with a space before it, where text is not changed."""
    kind, _, ours, _ = made
    text = "we are accounted poor citizens"
    ids = ours.encode(text)
    stream = ours.stream()
    assert "".join(stream.push(i) for i in ids) + stream.finish() == f" {text}"
    if kind == "sentencepiece":
        assert ours.unknown is None
        assert ours.decode(ours.encode("\u4e2d\U0001f600")) == "\u4e2d\U0001f600"
        assert b"".join(ours.token_bytes(i) for i in ours.encode("\u4e2d"))[1:] == "\u4e2d".encode()
    else:
        assert ours.unknown in ours.encode("\u4e2d")


SPECIAL_WORDS = ["<unk>", "</s>"]


def word_ends(texts):
    """As GPT-1 has it: names end in </w> where a word ends."""
    engine = Engine(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL_WORDS, end_of_word_suffix="</w>", show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    return engine


def words(texts, special=tuple(SPECIAL_WORDS)):
    """Whole words without a decoder, between which the engine puts spaces."""
    engine = Engine(models.WordLevel(unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=9000, special_tokens=list(special), show_progress=False)
    engine.train_from_iterator(texts, trainer)
    return engine


def words_in_byte_characters(texts):
    engine = Engine(models.WordLevel(unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.WordLevelTrainer(vocab_size=9000, special_tokens=SPECIAL_WORDS, show_progress=False)
    engine.train_from_iterator(texts, trainer)
    engine.decoder = decoders.ByteLevel()
    return engine


@pytest.mark.parametrize("make", [word_ends, words, words_in_byte_characters])
def test_streamed_text_has_the_spaces_of_the_decoder(make, shakespeare):
    """But for one at either end: text that is generated begins behind a prompt, and may go on."""
    text = "We are accounted poor citizens"
    ours = ExternalTokenizer(make(shakespeare[:20_000].splitlines()).to_str())
    ids = ours.encode(text)
    assert ours.unknown not in ids
    stream = ours.stream()
    streamed = "".join(stream.push(i) for i in ids) + stream.finish()
    assert streamed.strip() == ours.decode(ids) == text
    assert len(streamed) <= len(text) + 1


def test_an_end_that_only_another_file_names(shakespeare, tmp_path):
    engine = words(shakespeare[:5000].splitlines(), ("<unk>", "[EOS]"))
    (tmp_path / "tokenizer.json").write_text(engine.to_str())
    with pytest.raises(NoEndError, match="declares no end-of-text token"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[EOS]"}))
    ours = load_tokenizer(tmp_path)
    assert ours.separator == ours.special["[EOS]"] == 1
    assert ours.separator not in ours.encode("We are [EOS]")
    more = load_tokenizer(ours.with_special("<|mask|>").save(tmp_path / "more"))
    assert (more.separator, more.mask) == (1, ours.n_vocab)


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2000}),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 2000}),
        ("normalizer", {"type": "Unheard"}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}),
        ("decoder", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}),
        (
            "decoder",
            {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaa"}]},
        ),
    ],
)
def test_steps_that_are_not_known_need_trust(part, step, shakespeare, tmp_path):
    content = json.loads(t5(shakespeare[:5000].splitlines()).to_str()) | {part: step}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"not known to be safe: pass --trust tokenizer \(trust=\"tokenizer\"\)"):
        load_tokenizer(tmp_path)
    if step["type"] != "Unheard":
        assert isinstance(load_tokenizer(tmp_path, trust=True), Tokenizer)


def charsmap(longest: int) -> str:
    """A table of SentencePiece's form without a tree, whose longest text has so many characters."""
    return base64.b64encode(bytes(4) + b"a\0" + b"b" * longest + b"\0").decode()


MULTIPLYING = {
    "16 replacements": ("normalizer", [{"type": "Replace", "pattern": {"String": "o"}, "content": "oo"}] * 16),
    "replacements of nothing": ("normalizer", [{"type": "Replace", "pattern": {"String": ""}, "content": "oo"}] * 4),
    "16 beginnings": ("normalizer", [{"type": "Prepend", "prepend": "aaaa"}] * 16),
    "a table": ("normalizer", [{"type": "Precompiled", "precompiled_charsmap": charsmap(1000)}]),
    "a decoder": ("decoder", [{"type": "Replace", "pattern": {"String": "o"}, "content": "oooo"}] * 5),
    "suffixes of nothing": ("decoder", [{"type": "BPEDecoder", "suffix": ""}] * 9),
    "too many steps": ("normalizer", [{"type": "NFC"}] * 65),
}


@pytest.mark.parametrize("name", MULTIPLYING)
def test_steps_whose_product_multiplies_a_text_are_refused_before_they_run(name, shakespeare, tmp_path):
    part, steps = MULTIPLYING[name]
    content = json.loads(t5(shakespeare[:5000].splitlines()).to_str())
    content[part] = {"type": "Sequence", f"{part}s": steps}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        TokenizerError, match=rf"the {part} of tokenizer.json has .* pass --trust tokenizer \(trust=\"tokenizer\"\)"
    ):
        load_tokenizer(tmp_path)
    # as SentencePiece writes blanks
    blanks = [{"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]
    content |= {"normalizer": {"type": "Sequence", "normalizers": blanks}, "decoder": {"type": "Fuse"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    load_tokenizer(tmp_path)


def test_a_post_processor_of_very_many_pieces_is_refused(shakespeare, tmp_path):
    content = json.loads(t5(shakespeare[:5000].splitlines()).to_str())
    end = content["added_tokens"][0]
    processor = template_around({}, {end["id"]: end["content"]})
    processor["single"] += processor["single"][1:] * 200_000
    content["post_processor"] = processor
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"puts 200,001 ids beside a text: expected 64 at most"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(added_tokens=[]), "declares no end-of-text token"),
        (lambda c: c["added_tokens"][0].update(id=2**31), "expected 0 to"),
        (lambda c: c["added_tokens"][0].update(id=-1), "engine failed"),
        (lambda c: c["model"].update(vocab=7), "damaged|engine failed"),
        (lambda c: c["model"].update(unk_token=None), "engine failed|no unknown"),
        (lambda c: c["model"].update(type="Oracle"), "expected byte-level BPE"),
    ],
)
def test_damaged_files_are_one_line(change, says, shakespeare, tmp_path):
    content = json.loads(bert(shakespeare[:5000].splitlines()).to_str())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=says) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
