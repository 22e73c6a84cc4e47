"""What another project's tokenizer puts beside a text is read wherever the text is, and the ids are transformers'."""

import json
from types import SimpleNamespace

import pytest
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine
from transformers import AutoTokenizer

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.generate import generate, score
from pellucid.generate.fill import fill
from pellucid.generate.text import encode_prompts
from pellucid.lens.trace import trace
from pellucid.serve.served import ServedModel
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.post_processor import ids_around
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, TokenizerError, load_tokenizer
from pellucid.text_model import Model

TEXTS = ["to be", "to be or not to be", "be,  zephyr\n", "be"]


def declared(engine: Engine, names: list[str]) -> Engine:
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return engine


def llama() -> Engine:
    """As Llama 2 has it: blanks as U+2581, bytes to fall back on, and <s> before every text."""
    special, bytes_ = ["<unk>", "<s>", "</s>"], [f"<0x{i:02X}>" for i in range(256)]
    names = [*special, *bytes_, "\u2581", *"toberna", "\u2581b", "\u2581be"]
    merges = [("\u2581", "b"), ("\u2581b", "e")]
    vocabulary = {name: i for i, name in enumerate(names)}
    engine = Engine(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return declared(engine, special)


def bert() -> Engine:
    """As BERT has it: words in lower case between [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {name: i for i, name in enumerate([*special, "to", "be", "or", "not", "##s", ","])}
    engine = Engine(models.WordPiece(vocabulary, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return declared(engine, special)


def roberta() -> Engine:
    """As RoBERTa has it: bytes between <s> and </s>, and a blank before <mask> belongs to it."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*special, *letters, "<mask>"])}
    engine = Engine(models.BPE(vocabulary, []))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    engine.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
    engine.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return declared(engine, special)


def opened(engine: Engine, folder):
    """Our tokenizer of the file, and theirs."""
    (folder / "tokenizer.json").write_text(engine.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def begun(tmp_path):
    return opened(llama(), tmp_path)


@pytest.fixture
def enclosed(tmp_path):
    return opened(bert(), tmp_path)


def served(network, tokenizer) -> ServedModel:
    n = tokenizer.n_vocab
    return ServedModel("model", SimpleNamespace(network=network, tokenizer=tokenizer, n_vocab=n, n_known=n))


def network_for(tokenizer, mask="causal"):
    attention = Attention(n_heads=2, mask=mask)
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=32, d_model=8, n_layers=1, attention=attention)
    return make_network(a, seed=3)


def test_a_decoder_continues_scores_and_traces_the_ids_of_transformers(begun):
    ours, theirs = begun
    network = network_for(ours)
    assert (ours.before, ours.after) == ((1,), ())
    for text in TEXTS:
        ids = theirs(text).input_ids
        assert ids[0] == 1
        (written,) = generate(Model(network, ours), text, max_tokens=2, seed=1)
        assert written.prompt_ids == ids
        scored = score(Model(network, ours), text)
        assert ([*scored.context, *scored.ids], scored.context) == (ids, (1,))
        with torch.no_grad():
            logits = network(torch.tensor([ids]))[0].log_softmax(-1)
        expected = [logits[t - 1, ids[t]].item() for t in range(1, len(ids))]
        assert scored.log_probs.tolist() == pytest.approx(expected, abs=1e-12)
        assert trace(Model(network, ours), text).ids[0].tolist() == ids
        assert trace(Model(network, ours), written).ids[0].tolist() == [*ids, *written.ids]
        assert served(network, ours).encode(text) == ids
    longest = max(TEXTS, key=len)
    assert trace(Model(network, ours), [longest, "be"]).ids[0].tolist() == theirs(longest).input_ids


def test_a_decoder_without_a_prompt_begins_with_the_same_token(begun):
    ours, theirs = begun
    network = network_for(ours)
    assert generate(Model(network, ours), "", max_tokens=1, seed=1)[0].prompt_ids == theirs("").input_ids == [1]
    assert served(network, ours).encode("") == [1]
    assert score(Model(network, ours), " be", prefix="to").context == tuple(theirs("to").input_ids)
    alone = score(Model(network, ours), "to be", start="none")
    assert [*alone.context, *alone.ids] == ours.encode("to be")


def test_bos_leaves_the_token_out_and_adds_no_second_one(begun):
    ours, theirs = begun
    network, ids = network_for(ours), theirs("to be").input_ids
    assert trace(Model(network, ours), "to be", bos=True).ids[0].tolist() == ids
    assert trace(Model(network, ours), "to be", bos=False).ids[0].tolist() == ids[1:]
    own = ByteTokenizer()
    network = network_for(own)
    assert (
        trace(Model(network, own), "be", bos=False).ids[0].tolist() == trace(Model(network, own), "be").ids[0].tolist()
    )
    assert trace(Model(network, own), "be", bos=True).ids[0].tolist() == [own.separator, *b"be"]
    assert generate(Model(network, own), ["be", ""], max_tokens=1, seed=1)[1].prompt_ids == [own.separator]


def test_ids_templates_and_targets_are_read_as_they_are(begun):
    ours, _ = begun
    network = network_for(ours)
    assert trace(Model(network, ours), [5, 6]).ids[0].tolist() == [5, 6]
    assert served(network, ours).encode([5, 6]) == [5, 6]
    assert encode_prompts(ours, ["be"], ["to"]) == [[ours.start, *ours.encode("be")]]
    # a template writes its own
    template = ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", {"bos_token": "<s>"})
    assert template.encode([{"role": "user", "content": "to be"}], ours).count(1) == 1


def test_a_blank_before_a_mask_is_read_as_transformers_reads_it(tmp_path):
    ours, theirs = opened(roberta(), tmp_path)
    network = network_for(ours, "bidirectional")
    for text in ("to [MASK] be", "[MASK] be", "to[MASK]", " [MASK][MASK] "):
        ids = theirs(text.replace("[MASK]", "<mask>")).input_ids
        assert trace(Model(network, ours), text).ids[0].tolist() == ids
        with torch.no_grad():
            expected = network(torch.tensor([ids]))[0, ids.index(ours.mask)][4:260].softmax(-1).max().item()
        assert fill(Model(network, ours), text, top=1)[0].probabilities[0] == pytest.approx(expected, rel=1e-12)


def test_a_masked_model_fills_and_traces_the_ids_of_transformers(enclosed):
    ours, theirs = enclosed
    network = network_for(ours, "bidirectional")
    assert (ours.before, ours.after) == ((2,), (3,))
    for text in ("to [MASK] or not", "[MASK] be, [MASK]"):
        ids = theirs(text).input_ids
        assert (ids[0], ids[-1]) == (2, 3)
        assert trace(Model(network, ours), text).ids[0].tolist() == ids
        assert trace(Model(network, ours), text, bos=True).ids[0].tolist() == ids
        assert trace(Model(network, ours), text, bos=False).ids[0].tolist() == ids[1:-1]
        with torch.no_grad():
            logits = network(torch.tensor([ids]))[0]
        blanks = [at for at, token in enumerate(ids) if token == 4]
        for filling, at in zip(fill(Model(network, ours), text, top=3), blanks, strict=True):
            expected = logits[at].index_fill(0, torch.arange(5), -torch.inf).softmax(-1).topk(3)
            assert filling.probabilities == pytest.approx(expected.values.tolist(), rel=1e-12)
            assert filling.texts == [ours.token_str(i) for i in expected.indices.tolist()]
    for text in TEXTS:
        assert served(network, ours).encode(text) == theirs(text).input_ids
    with pytest.raises(ValueError, match="the text has 33 tokens"):
        fill(Model(network, ours), "[MASK]" + " be" * 30)


# The post_processor ---------------------------------------------------------------------------------

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def special(name: str):
    return {"SpecialToken": {"id": name, "type_id": 0}}


def template(*single):
    names = {"<s>": [1], "</s>": [2], "both": [1, 2]}
    known = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in names.items()}
    return {"type": "TemplateProcessing", "single": list(single), "pair": [TEXT], "special_tokens": known}


BEGUN = template(special("<s>"), TEXT)
CASES = {
    "none": (None, (), ()),
    "bytes": (BYTE_LEVEL, (), ()),
    "before": (BEGUN, (1,), ()),
    "after": (template(TEXT, special("</s>")), (), (2,)),
    "several ids of one token": (template(special("both"), TEXT, special("</s>")), (1, 2), (2,)),
    "the text alone": (template(TEXT), (), ()),
    "BERT": ({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, (1,), (2,)),
    "RoBERTa": (
        {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True},
        (1,),
        (2,),
    ),
    "Llama 3": ({"type": "Sequence", "processors": [BYTE_LEVEL, BEGUN]}, (1,), ()),
    "two that add": ({"type": "Sequence", "processors": [BEGUN, BEGUN]}, (), ()),
    "the text twice": (template(special("<s>"), TEXT, TEXT), (), ()),
    "no text": (template(special("<s>")), (), ()),
    "an unknown one": ({"type": "Oracle"}, (), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_stands_beside_a_text_is_read_from_the_file(name):
    processor, before, after = CASES[name]
    assert ids_around({"post_processor": processor}, 3) == (before, after)


@pytest.mark.parametrize("token", [3, -1, True, "1"])
def test_ids_that_the_vocabulary_lacks_are_refused(token):
    with pytest.raises(TokenizerError, match="beside a text: expected an id from 0 to 2"):
        ids_around({"post_processor": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", token]}}, 3)


@pytest.mark.parametrize("make", [llama, bert])
def test_more_special_tokens_leave_what_stands_beside_a_text(make, tmp_path):
    ours, theirs = opened(make(), tmp_path)
    more = ours.with_special("<|more|>")
    assert (more.before, more.after) == (ours.before, ours.after)
    more.save(tmp_path / "more")
    again = load_tokenizer(tmp_path / "more")
    assert again.masked_ids(again.encode("to be")) == theirs("to be").input_ids


def test_a_bare_tokenizer_has_the_same_ids_and_nothing_beside_them(begun, tmp_path):
    ours, _ = begun
    bare = ours.bare()
    assert (bare.before, bare.after, bare.ids_hash) == ((), (), ours.ids_hash)
    assert bare.hash != ours.hash
    assert ours.before == (1,)
    bare.save(tmp_path / "bare")
    assert load_tokenizer(tmp_path / "bare").hash == bare.hash
    for tokenizer in (bare, load_tokenizer(tmp_path / "bare"), bare.with_special("<|more|>")):
        assert tokenizer.before == ()
        assert tokenizer.encode("to be") == ours.encode("to be")
    assert bare.bare() is bare
    own = ByteTokenizer()
    assert own.bare() is own
