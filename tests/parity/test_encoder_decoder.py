"""T5, BART, mBART and Marian of transformers and ours are one function.

Compared are buckets, caches, padding, the text they write, and their files.
"""

import json

import pytest
import torch
import transformers
from random_models import CASES, PAIRS, TINY, in_float64, model_of_theirs
from safetensors.torch import load_file, save_file
from theirs import as_ours, both, draw, farthest, logits_of, our_logits, source_of
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.t5.modeling_t5 import T5Attention

import pellucid
from drawing import make_network
from pellucid.architecture import Architecture, Attention, Positions
from pellucid.hub import FAMILIES, FamilyError, architecture_of, config_of, to_ours, to_theirs
from pellucid.hub.folder import LoadWarning
from pellucid.hub.open import open_folder, read_network
from pellucid.language_model import LanguageModel
from pellucid.model import Cache
from pellucid.model.positions import Relative
from pellucid.model.weights import state_of
from pellucid.model_names import FolderError
from pellucid.reference.embedding import relative_buckets
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from some_cases import one_in

TOLERANCE = 1e-12
OF_PAIRS = [case for case in CASES if case[0] in PAIRS]
MASKS = ["bidirectional", "causal"]


# Buckets ------------------------------------------------------------------------------------------


def our_buckets(n, n_buckets, max_distance, mask):
    """The bucket of every pair of n positions, read off a table whose row r holds r."""
    positions = Positions(kind="relative", n_buckets=n_buckets, max_distance=max_distance)
    a = Architecture(
        n_vocab=2, n_ctx=n, d_model=2, n_layers=1, attention=Attention(n_heads=1, mask=mask), positions=positions
    )
    table = Relative(a)
    with torch.no_grad():
        table.weight.copy_(torch.arange(float(n_buckets))[:, None])
        place = torch.arange(n)
        return table.score_bias(place[:, None], place)[0].long()


@pytest.mark.parametrize("mask", MASKS)
def test_buckets_are_theirs(mask):
    """At the published sizes every distance to 1500; at others every one at which no bucket begins exactly.

    Where (d/e)^(N-e) = (D/e)^t a bucket begins exactly at distance d. Their float32 logarithms may fall short of it.
    """
    for n, n_buckets, distance in [
        (1500, 32, 128),
        (300, 32, 100),
        (200, 64, 90),
        (60, 8, 20),
        (60, 9, 50),
        (60, 4, 3),
    ]:
        place = torch.arange(n)
        theirs = T5Attention._relative_position_bucket(
            place - place[:, None], mask == "bidirectional", n_buckets, distance
        )
        assert torch.equal(our_buckets(n, n_buckets, distance, mask), theirs), (n_buckets, distance)


@pytest.mark.parametrize("mask", MASKS)
def test_buckets_are_the_reference_s(mask):
    """Logarithms there, integers here."""
    for n_buckets in (4, 5, 6, 7, 8, 16, 31, 32):
        for distance in (n_buckets // 2 + 1, 17, 27, 32, 64, 81, 128):
            if distance > Positions(n_buckets=n_buckets).n_exact(mask):
                ours = our_buckets(150, n_buckets, distance, mask)
                exact = relative_buckets(150, 150, n_buckets, distance, mask == "bidirectional")
                assert torch.equal(ours, torch.from_numpy(exact)), (n_buckets, distance)


# The network --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "variant"), [case for case in OF_PAIRS if case[1] != "no layer in the decoder"])
def test_cached_decoding(name, variant):
    with in_float64():
        model, config = model_of_theirs(name, variant)
        network, _ = as_ours(model, config)
        a = network.architecture
        tokens, cache, past = draw(a), Cache(a, 3, dtype=torch.float64), None
        with torch.no_grad():
            source, encoded = network.encode(source_of(tokens)), model.get_encoder()(source_of(tokens))
            for at in (slice(0, 4), slice(4, 5), slice(5, 6), slice(6, 9)):
                ours = network(tokens[:, at], cache=cache, source=source)
                given = {"encoder_outputs": encoded, "past_key_values": past, "use_cache": True}
                read = model(decoder_input_ids=tokens[:, at], **given)
                past = read.past_key_values
                assert farthest(ours, read.logits) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "side"), [("t5", "right"), ("t5", "left"), ("bart", "right"), ("mbart", "right"), ("marian", "right")]
)
def test_padding_of_sources_and_targets(name, side):
    """Their attention_mask hides a source's padding from the encoder and from the decoder; targets have one too."""
    with in_float64():
        model, config = model_of_theirs(name, "tied")
        network, _ = as_ours(model, config)
        tokens = draw(network.architecture)
        n, width = tokens.size(1), source_of(tokens).size(1)
        real = torch.arange(width) < torch.tensor([width, 4, 1])[:, None]
        real = real.flip(1) if side == "left" else real
        whole = torch.arange(n) < torch.tensor([n, 6, 2])[:, None]
        expected = logits_of(model, tokens, attention_mask=real.long(), decoder_attention_mask=whole.long())
        reading = {
            "encoder_mask": real[:, None].expand(-1, width, -1),
            "source_mask": real[:, None].expand(-1, n, -1),
            "mask": whole[:, None] & torch.ones(n, n, dtype=torch.bool).tril(),
        }
        for logits in both(network, tokens, **reading).values():
            assert farthest(logits[whole], expected[whole]) <= TOLERANCE


@pytest.mark.parametrize(("name", "variant"), OF_PAIRS)
def test_shared_matrices_are_one(name, variant):
    model, config = model_of_theirs(name, variant)
    network, weights = as_ours(model, config)
    shared = network.architecture.source_embed == "shared"
    assert shared == (network.encoder.embed.token.weight is network.embed.token.weight)
    assert shared == ("encoder.embed.token.weight" not in weights)
    assert sum(p.numel() for p in network.parameters()) == sum(w.size for w in weights.values())


# Files, tokenizers, texts -------------------------------------------------------------------------

WORDS = {
    "t5": {"positions.kind": "relative", "norm.kind": "rms", "norm.eps": 1e-6, "attention.scale": "1"}
    | {"attention.bias": "none", "mlp.bias": "none", "attention.d_head": 6, "dropout": 0.0},
    "bart": {"block": "post", "embed_norm": "norm", "final_norm": "none", "dropout": 0.0},
    "mbart": {"block": "pre", "embed_norm": "norm", "dropout": 0.0},
    "marian": {"block": "post", "positions.kind": "sinusoidal", "final_norm": "none", "dropout": 0.0},
}
DECODER = {
    "t5": {"tied": {"logit_scale": "1/sqrt(d_model)"}, "untied": {"mlp.form": "gated"}},
    "bart": {"tied": {"readout": "affine"}, "untied": {"readout": "affine", "source_embed": "own"}},
}
DECODER |= {"mbart": DECODER["bart"], "marian": DECODER["bart"]}
#: their texts do not repeat one token
SEEDS = {"t5": 0, "bart": 1, "mbart": 0, "marian": 9}


def make_pair(name, unembed, tokenizer, n_ctx=64):
    """A model of ours in the family's words, the encoder deeper than the decoder: their `generate` takes no other."""
    stack = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=n_ctx, d_model=16, n_layers=2).with_fields(WORDS[name])
    own = DECODER[name][unembed] | {"unembed": unembed}
    decoder = stack.with_fields({"source_embed": "shared"} | own)
    form = {"attention.mask": "bidirectional", "mlp.form": decoder.mlp.form, "n_layers": 3}
    whole = decoder.to_dict() | {"encoder": stack.with_fields(form).to_dict()}
    return LanguageModel(make_network(Architecture.from_dict(whole), SEEDS[name], torch.float32), tokenizer, {})


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("name", one_in(4, PAIRS))
@pytest.mark.parametrize("unembed", one_in(2, ["tied", "untied"]))
def test_what_is_written_opens_in_transformers(name, unembed, tmp_path, shakespeare):
    """Our logits, our greedy target of a source, and back again bit for bit."""
    model = make_pair(name, unembed, learn_tokenizer("bpe", [shakespeare[:5_000]], 300))
    model.save(tmp_path / "own")
    done = pellucid.convert(tmp_path / "own", tmp_path / "hf")
    assert done.parity.holds
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == name
    theirs, tokenizer = (c.from_pretrained(tmp_path / "hf") for c in (AutoModelForSeq2SeqLM, AutoTokenizer))
    text = "First Citizen: we are\n\n accounted  poor"
    ids = model.tokenizer.encode(text)
    assert tokenizer(text, add_special_tokens=False).input_ids == ids
    source = tokenizer(text, return_tensors="pt").input_ids
    assert source.tolist() == [model.tokenizer.source_ids(ids)]
    written = theirs.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=12)[0].tolist()
    ours = model.generate(source=text, max_tokens=12, temperature=0)
    assert written[0] == ours.prompt_ids[0] == model.tokenizer.separator
    assert written[1:] == [*ours.ids, *[model.tokenizer.separator] * (ours.finish_reason == "end")]
    assert len(set(ours.ids)) > 1
    pellucid.convert(tmp_path / "hf", tmp_path / "back")
    back = pellucid.load(tmp_path / "back", device="cpu")
    assert same(state_of(back.network), state_of(model.network))
    assert back.generate(source=text, max_tokens=12).ids == ours.ids
    pellucid.convert(tmp_path / "back", tmp_path / "again")
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "hf" / file).read_bytes()


def t5_tokenizer(sentinels=("<extra_id_1>", "<extra_id_0>")):
    """A vocabulary of letters as T5 has it: pad, end and unknown first, sentinels last."""
    letters = [(letter, -2.0 - i / 50) for i, letter in enumerate("\u2581etaoinshrdlu")]
    engine = Engine(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters], 2, False))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    engine.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    engine.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=engine, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def bart_tokenizer():
    """Bytes as BART has them: start, pad, end and unknown first."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {name: i for i, name in enumerate([*names, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    engine = Engine(models.BPE(vocabulary, []))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    engine.add_special_tokens(names)
    engine.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return PreTrainedTokenizerFast(tokenizer_object=engine, bos_token="<s>", pad_token="<pad>", eos_token="</s>")


@pytest.mark.parametrize("name", ["t5", "t5 without sentinels", "bart"])
def test_their_folders_write_our_targets(name, tmp_path):
    """Their own conventions: T5's targets begin with <pad>, BART's with </s>, whose sources begin with <s>."""
    tokenizer = bart_tokenizer() if name == "bart" else t5_tokenizer() if name == "t5" else t5_tokenizer(())
    name = name.split()[0]
    ends = {"t5": {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}, "bart": {}}[name]
    model, config = model_of_theirs(name, "tied")
    options = {key: value for key, value in config.items() if key not in ("bos_token_id", "eos_token_id")}
    # a decoder deeper than the encoder stops their cache
    lengths = {"t5": {"n_positions": 40, "num_layers": 3}, "bart": {"max_position_embeddings": 40}}[name]
    lengths |= {"encoder_layers": 3} if name == "bart" else {}
    kind = type(model)
    torch.manual_seed(0)
    changes = ends | lengths | {"vocab_size": len(tokenizer), "bos_token_id": 0}
    model = kind(kind.config_class(**options | changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    model.save_pretrained(tmp_path / "hf")
    tokenizer.save_pretrained(tmp_path / "hf")
    loaded = pellucid.load(tmp_path / "hf", device="cpu")
    for text in ("the sea", "an iron house in the sand"):
        source = tokenizer(text, return_tensors="pt")
        assert loaded.tokenizer.source_ids(loaded.tokenizer.encode(text)) == source.input_ids[0].tolist()
        given = {"attention_mask": source.attention_mask, "max_new_tokens": 9, "do_sample": False}
        # forced_eos_token_id is a rule of their generation
        written = model.generate(source.input_ids, forced_eos_token_id=None, **given)[0].tolist()
        ours = loaded.generate(source=text, max_tokens=9)
        assert [*ours.prompt_ids, *ours.ids] == written
    assert pellucid.load(loaded.save(tmp_path / "saved"), device="cpu").tokenizer.start == loaded.tokenizer.start
    generation = json.loads((tmp_path / "hf/generation_config.json").read_text())
    for start in (3, len(tokenizer)):
        generation["decoder_start_token_id"] = start
        (tmp_path / "hf/generation_config.json").write_text(json.dumps(generation))
        if start == 3:
            assert open_folder(tmp_path / "hf").text_rules().tokenizer.start == 3
    with pytest.raises(FolderError, match=rf"targets begin with id {start} \(decoder_start_token_id\), for which the"):
        open_folder(tmp_path / "hf").text_rules()


@pytest.mark.parametrize("name", ["mbart", "marian"])
def test_folders_whose_texts_pellucid_cannot_spell_write_our_targets_from_ids(name, tmp_path):
    """mBART's tokenizer has codes of languages, Marian's are two files of SentencePiece: texts are ids in digits."""
    _, common, _ = TINY[name]
    kind = getattr(transformers, TINY[name][0])
    torch.manual_seed(0)
    options = common | {"vocab_size": 13, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    options |= {"decoder_start_token_id": 5, "forced_eos_token_id": None, "encoder_layers": 3}
    model = kind(kind.config_class(**options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0 if p.requires_grad else 1.0)
    model.save_pretrained(tmp_path)
    if name == "mbart":
        letters = t5_tokenizer()
        letters.add_special_tokens({"additional_special_tokens": ["en_XX", "de_DE"]})
        letters.save_pretrained(tmp_path)
    why = "codes of languages, such as en_XX" if name == "mbart" else "holds no tokenizer"
    with pytest.warns(LoadWarning, match=why):
        loaded = pellucid.load(tmp_path, device="cpu")
    source = torch.tensor([[7, 3, 9, 4, 2]])
    start = torch.tensor([[5]])
    with torch.no_grad():
        encoded = loaded.network.encode(source)
        tokens = start
        for _ in range(6):
            ours = loaded.network(tokens, source=encoded)
            read = model(input_ids=source, decoder_input_ids=tokens).logits
            assert farthest(ours, read) <= 1e-5
            tokens = torch.cat([tokens, ours[:, -1:].argmax(-1)], 1)
    # targets begin with the id that the files name, in every folder made of this one
    written = model.generate(source, max_new_tokens=6, do_sample=False, num_beams=1)[0].tolist()
    pellucid.convert(tmp_path, tmp_path / "ours", compare=False)
    pellucid.convert(tmp_path / "ours", tmp_path / "again", to="huggingface", compare=False)
    for folder in (tmp_path, tmp_path / "ours", tmp_path / "again"):
        with pytest.warns(LoadWarning, match="texts are ids in digits"):
            opened = pellucid.load(folder, device="cpu")
        ours = opened.generate(source="7 3 9 4 2", max_tokens=6)
        assert [*ours.prompt_ids, *ours.ids] == written[: len(ours.ids) + 1], folder
        assert (ours.prompt_ids, ours.text) == ([5], opened.tokenizer.decode(ours.ids))
    if name == "mbart":
        with pytest.raises(FolderError, match=r"the tokenizer has codes of languages.*give ids in digits"):
            pellucid.load(tmp_path, device="cpu", tokenizer=tmp_path)


def test_files_of_older_versions():
    """The embedding under three names, biases that nothing reads; v1.1 as its own files have it."""
    model, config = model_of_theirs("t5", "tied")
    state = model.state_dict()
    assert {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"} <= state.keys()
    state["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(6, 3)
    few = {name: tensor for name, tensor in state.items() if "embed_tokens" not in name and name != "lm_head.weight"}
    assert same(to_ours(state, config), to_ours(few, config))
    without = {name: tensor for name, tensor in state.items() if name != "shared.weight"}
    assert same(to_ours(without, config), to_ours(few, config))
    damaged = state | {"encoder.embed_tokens.weight": state["shared.weight"] + 1}
    with pytest.raises(FamilyError, match="should be one tensor and differ"):
        to_ours(damaged, config)
    model, config = model_of_theirs("t5", "untied")
    # as transformers 5 writes it, and as the files on the hub have it
    assert (config["tie_word_embeddings"], config["scale_decoder_outputs"]) == (True, False)
    hub = {name: value for name, value in config.items() if name != "scale_decoder_outputs"}
    assert architecture_of(config) == architecture_of(hub | {"tie_word_embeddings": False})
    with pytest.raises(FamilyError, match=r"lm_head.weight differs from the embedding"):
        to_ours(model.state_dict(), hub)


def test_a_readout_that_is_tied_and_not_scaled_is_named(tmp_path):
    """As transformers 5 makes a new T5 of tie_word_embeddings = False: the readout is tied all the same."""
    kind, common, variants = TINY["t5"]
    made = getattr(transformers, kind)
    made(made.config_class(**(common | variants["untied"] | {"vocab_size": 13}))).save_pretrained(tmp_path)
    with pytest.raises(FolderError, match=r"lm_head\.weight is missing.*a readout of t5 that is tied and not scaled"):
        open_folder(tmp_path)
    # what the message advises
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"lm_head.weight": tensors["shared.weight"].clone()}, path, {"format": "pt"})
    theirs = made.from_pretrained(tmp_path)
    folder = open_folder(tmp_path)
    network = read_network(folder.architecture, folder.ours())
    source, tokens = torch.tensor([[7, 3, 9]]), torch.tensor([[0, 5]])
    with torch.no_grad():
        read = theirs(input_ids=source, decoder_input_ids=tokens).logits
        assert farthest(network(tokens, source=network.encode(source)), read) <= 1e-5


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'gated-mish'"),
        ("t5", {"feed_forward_proj": "plain-relu"}, "feed_forward_proj = 'plain-relu'"),
        ("t5", {"feed_forward_proj": 3}, "feed_forward_proj = 3 in config.json: only"),
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder = false in config.json: only true"),
        ("t5", {"relative_attention_num_buckets": 3}, "positions.n_buckets = 3: expected 2 or more, 4 where"),
        ("t5", {"relative_attention_max_distance": 3}, "positions.max_distance = 3: expected more than 3"),
        ("bart", {"scale_embedding": 2}, "scale_embedding = 2 in config.json"),
        ("bart", {"encoder_attention_heads": 5}, "n_heads = 5: expected a divisor of d_model = 12"),
        ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder = false"),
    ],
)
def test_options_that_we_cannot_say(name, change, message):
    _, config = model_of_theirs(name, "tied")
    with pytest.raises(ValueError, match=message):
        architecture_of(config | change)


def test_what_their_words_leave_out():
    """Both stacks have the same words where their configuration has one entry for two."""
    for name, field, word in [
        ("t5", "mlp.activation", "silu"),
        ("t5", "attention.n_heads", 2),
        ("bart", "n_ctx", 5),
        ("bart", "embed_scale", "sqrt(d_model)"),
    ]:
        _, config = model_of_theirs(name, "tied")
        a = architecture_of(config)
        assert a.encoder is not None
        other = Architecture.from_dict(a.to_dict() | {"encoder": a.encoder.with_fields({field: word}).to_dict()})
        with pytest.raises(FamilyError, match=rf"cannot represent encoder\.{field} = "):
            config_of(other, FAMILIES[name])
        with pytest.raises(FamilyError, match=f"{name} cannot represent encoder = None"):
            to_theirs({}, Architecture(n_vocab=3, n_ctx=3, d_model=4, n_layers=1), FAMILIES[name])


def test_sizes_that_would_fill_the_memory(tmp_path):
    """Each is refused before anything is allocated."""
    model, config = model_of_theirs("t5", "tied")
    model.save_pretrained(tmp_path)
    for change, message in [
        ({"relative_attention_num_buckets": 10**9}, "relative_attention_num_buckets = 1000000000"),
        ({"relative_attention_max_distance": 10**9}, "relative_attention_max_distance = 1000000000"),
        ({"num_layers": 10**6}, "num_layers = 1000000"),
        ({"num_decoder_layers": 10**6}, "num_decoder_layers = 1000000 in config.json: expected"),
        ({"num_layers": 900}, "needs .* numbers, but the files hold"),
        (
            {"relative_attention_num_buckets": 60_000, "relative_attention_max_distance": 99_000},
            "needs .* numbers, but the files hold",
        ),
        ({"d_model": "12"}, "d_model = '12'"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=message):
            open_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    network = open_folder(tmp_path)
    assert network.architecture == architecture_of(config)


def test_one_table_serves_every_layer():
    """A change of the one table moves the scores of all layers, and a copied network has one of its own."""
    model, config = model_of_theirs("t5", "tied")
    network, _ = as_ours(model, config)
    names = [name for name, _ in network.named_parameters() if "relative" in name or "mask" in name]
    assert names == ["relative.weight", "encoder.relative.weight"]
    assert len({id(block.attn.mask.position_bias) for block in network.blocks}) == 1
    assert all(block.cross.mask.position_bias is None for block in network.blocks)
    tokens = draw(network.architecture)
    before = our_logits(network, tokens)
    with torch.no_grad():
        network.relative.weight += torch.arange(6.0)[:, None]
    assert farthest(our_logits(network, tokens), before) > 1e-3
