"""Models in and out: files that other projects open with the same logits, ids and text, and nothing half-written."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file
from their_folders import begun, write_theirs
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Engine
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, BartConfig, BartForConditionalGeneration

import pellucid
from drawing import architectures, make_network
from pellucid.cli import main
from pellucid.conversion import read_model
from pellucid.hub import FamilyError
from pellucid.hub import transformers_bridge as source
from pellucid.hub.card import _tokens as tokens_trained_on
from pellucid.hub.folder import LoadWarning
from pellucid.hub.round_trip import lost
from pellucid.hub.standalone import loader
from pellucid.hub.tables import FAMILIES
from pellucid.hub.write import write_tensors, write_tokenizer
from pellucid.language_model import LanguageModel
from pellucid.model.weights import state_of
from pellucid.model_names import FolderError
from pellucid.predictors.on_text import tokens_of
from pellucid.presets import preset
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.training.load import read_recipe
from pellucid.verify.parity import ParityError
from some_cases import one_in

SIZES = {"n_layers": 2, "d_model": 32, "n_heads": 4, "n_ctx": 64}
#: of characters that the character tokenizers have seen
TEXT = "First Citizen: we are\n\n accounted  poor"


NEOX = {"positions.kind": "rotary", "positions.fraction": 0.25, "block": "parallel", "dropout": 0.0}
FAMILY = {"gpt2": {}, "gpt_neox": NEOX}


def make_model(text, kind="bpe", **fields):
    tokenizer = learn_tokenizer(kind, [text], 300 if kind == "bpe" else None)
    a = preset("gpt2", tokenizer.n_vocab).with_fields(SIZES | fields)
    return LanguageModel(make_network(a, 0, torch.float32), tokenizer, {})


@pytest.fixture
def own(tmp_path, shakespeare):
    model = make_model(shakespeare[:20_000])
    model.save(tmp_path / "own")
    return model, tmp_path


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("unembed", ["tied", "untied"])
@pytest.mark.parametrize("kind", one_in(2, ["bpe", "char", "byte"]))
def test_what_is_written_opens_in_transformers(name, unembed, kind, tmp_path, shakespeare):
    """Our logits, our ids, our greedy text; and back again bit for bit."""
    model = make_model(shakespeare[:5_000], kind, unembed=unembed, **FAMILY[name])
    model.save(tmp_path / "own")
    done = pellucid.convert(tmp_path / "own", tmp_path / "hf", family=name)
    assert done.parity.holds
    assert done.parity.agreement == 1
    theirs, tokenizer = (c.from_pretrained(tmp_path / "hf") for c in (AutoModelForCausalLM, AutoTokenizer))
    ids = model.tokenizer.encode(TEXT)
    assert tokenizer(TEXT).input_ids == ids
    assert tokenizer.decode(ids) == model.tokenizer.decode(ids) == TEXT
    tied = theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
    assert tied == (unembed == "tied")
    tokens = torch.tensor([ids])
    assert torch.allclose(theirs(tokens).logits, model.network(tokens), atol=1e-3)
    written = theirs.generate(tokens, max_new_tokens=8)[0, len(ids) :].tolist()
    greedy = model.generate(TEXT, max_tokens=8, temperature=0)
    assert tokenizer.decode(written, skip_special_tokens=True) == greedy.text
    assert theirs.generation_config.eos_token_id == model.tokenizer.separator

    pellucid.convert(tmp_path / "hf", tmp_path / "back")
    assert same(load_file(tmp_path / "back/model.safetensors"), state_of(model.network))
    pellucid.convert(tmp_path / "back", tmp_path / "again", family=name)
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "hf" / file).read_bytes()
    assert same(load_file(tmp_path / "again/model.safetensors"), load_file(tmp_path / "hf/model.safetensors"))
    loaded = pellucid.load(tmp_path / "hf", device="cpu")
    assert torch.equal(loaded.network(tokens), model.network(tokens))


def test_what_stands_before_every_text_is_kept(own):
    """Saved, converted, and opened by transformers: the same ids are read of a text."""
    model, folder = own
    tokenizer = begun(model.tokenizer)
    theirs = write_theirs(folder / "theirs", "llama", tokenizer)
    ids = [*tokenizer.before, *tokenizer.encode(TEXT)]
    assert AutoTokenizer.from_pretrained(theirs)(TEXT).input_ids == ids
    pellucid.load(theirs, device="cpu").save(folder / "saved")
    pellucid.convert(folder / "saved", folder / "hf", family="llama")
    pellucid.convert(folder / "hf", folder / "back")
    for name in ("theirs", "saved", "hf", "back"):
        opened = pellucid.load(folder / name, device="cpu")
        assert opened.generate(TEXT, max_tokens=1, seed=1).prompt_ids == ids, name
    written = AutoTokenizer.from_pretrained(folder / "hf")
    assert written(TEXT).input_ids == ids
    assert written.bos_token_id == tokenizer.before[0]
    assert json.loads((folder / "hf" / "config.json").read_text())["bos_token_id"] == tokenizer.before[0]


def test_a_run_that_began_with_random_weights_reads_texts_as_in_training(own, shakespeare):
    """Its documents stand behind separators alone; one that started from a model reads what that model reads."""
    model, folder = own
    tokenizer = begun(model.tokenizer)
    tokenizer.save(folder / "given")
    (folder / "text.txt").write_text(shakespeare[:4_000])
    fields = {"batch": 2, "n_layers": 1, "n_heads": 2, "d_model": 16, "n_ctx": 32}
    fields |= {"tokenizer": str(folder / "given" / "tokenizer.json")}
    pellucid.train(folder / "text.txt", out=folder / "run", steps=1, fields=fields)
    trained = pellucid.load(folder / "run", device="cpu")
    assert (trained.tokenizer.before, trained.tokenizer.ids_hash) == ((), tokenizer.ids_hash)
    assert trained.generate(TEXT, max_tokens=1, seed=1).prompt_ids == tokenizer.encode(TEXT)
    pellucid.convert(folder / "run", folder / "hf", compare=False)
    assert json.loads((folder / "hf" / "tokenizer.json").read_text())["post_processor"] is None
    assert pellucid.load(folder / "hf", device="cpu").tokenizer.before == ()
    theirs = write_theirs(folder / "theirs", "llama", tokenizer)
    pellucid.train(folder / "text.txt", from_model=theirs, out=folder / "continued", steps=1, fields={"batch": 2})
    assert pellucid.load(folder / "continued", device="cpu").tokenizer.before == tokenizer.before
    # what started from the first run reads as that does, finds its own tokenizer again, and mixes with its n-grams
    pellucid.train(folder / "text.txt", from_model=folder / "run", out=folder / "next", steps=1, fields={"batch": 2})
    assert pellucid.load(folder / "next", device="cpu").tokenizer.before == ()
    assert pellucid.train(out=folder / "next", resume=True, steps=2).step == 2
    counted = {"order": 2, "tokenizer": fields["tokenizer"]}
    pellucid.train_predictor(folder / "text.txt", out=folder / "counted", kind="ngram", fields=counted)
    ngram = pellucid.load_predictor(folder / "counted")
    read = tokens_of(folder / "run", read_recipe(folder / "run"), None)
    assert read.manifest["tokenizer"]["hash"] == tokenizer.hash
    assert trained.score(TEXT, baselines=True).baselines
    for name in ("run", "next", "hf"):
        model = pellucid.load(folder / name, device="cpu")
        alone, mixed = model.score(TEXT), model.mixed_with(ngram, 1.0).score(TEXT)
        assert mixed.context == alone.context
        assert mixed.log_probs == pytest.approx(alone.log_probs, rel=1e-6)


def test_a_mixture_reads_what_its_transformer_reads(own, shakespeare):
    model, folder = own
    tokenizer = begun(model.tokenizer)
    theirs = write_theirs(folder / "theirs", "llama", tokenizer)
    (folder / "text.txt").write_text(shakespeare[:4_000])
    counted = {"order": 2, "tokenizer": str(theirs / "tokenizer.json")}
    pellucid.train_predictor(folder / "text.txt", out=folder / "counted", kind="ngram", fields=counted)
    ngram = pellucid.load_predictor(folder / "counted")
    assert ngram.tokenizer.before == ()
    opened = pellucid.load(theirs, device="cpu")
    mixture = opened.mixed_with(ngram, 1.0)
    alone, mixed = opened.score(TEXT), mixture.score(TEXT)
    assert mixed.context == alone.context == tokenizer.before
    assert mixed.log_probs == pytest.approx(alone.log_probs, rel=1e-6)
    assert mixture.generate(TEXT, max_tokens=1, seed=1).prompt_ids == opened.generate(TEXT, max_tokens=1).prompt_ids


def test_an_encoder_decoder_keeps_what_ends_its_sources(own, tmp_path):
    """Training reads it, so that a run from random weights and its exports read it too."""
    model, folder = own
    content = json.loads(model.tokenizer.to_json())
    end = model.tokenizer.token_str(model.tokenizer.separator)
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}]
    tokens = {end: {"id": end, "ids": [model.tokenizer.separator], "tokens": [end]}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": tokens,
    }
    (folder / "given").mkdir()
    (folder / "given" / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "pairs.tsv").write_text("".join(f"to be {i}\tnot to be {i}\n" for i in range(20)))
    fields = {"objective": "source-target", "batch": 2, "d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 32}
    fields |= {"tokenizer": str(folder / "given" / "tokenizer.json"), "sample_every": 0}
    pellucid.train(tmp_path / "pairs.tsv", out=folder / "pairs", preset="original", steps=1, fields=fields)
    trained = pellucid.load(folder / "pairs", device="cpu")
    assert trained.tokenizer.after == (model.tokenizer.separator,)
    pellucid.convert(folder / "pairs", folder / "pairs-hf", compare=False)
    written = AutoTokenizer.from_pretrained(folder / "pairs-hf")
    assert written(TEXT).input_ids == model.tokenizer.source_ids(model.tokenizer.encode(TEXT))
    # what stands before a text of another project is not read before a source
    begun(model.tokenizer).save(folder / "other")
    fields["tokenizer"] = str(folder / "other" / "tokenizer.json")
    pellucid.train(tmp_path / "pairs.tsv", out=folder / "more", preset="original", steps=1, fields=fields)
    pellucid.convert(folder / "more", folder / "more-hf", compare=False)
    written = AutoTokenizer.from_pretrained(folder / "more-hf")
    assert written(TEXT).input_ids == model.tokenizer.source_ids(model.tokenizer.encode(TEXT))


def test_transformer_lens_opens_it_and_agrees(own):
    from transformer_lens.model_bridge import TransformerBridge

    model, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    bridge = TransformerBridge.boot_transformers(str(folder / "hf"), device="cpu")
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    assert torch.allclose(bridge(tokens), model.network(tokens), atol=1e-3)


def test_what_transformers_wrote_in_shards_is_read(own):
    model, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    AutoModelForCausalLM.from_pretrained(folder / "hf").save_pretrained(folder / "theirs", max_shard_size="40KB")
    AutoTokenizer.from_pretrained(folder / "hf").save_pretrained(folder / "theirs")
    assert len(list((folder / "theirs").glob("*.safetensors"))) > 2
    pellucid.convert(folder / "theirs", folder / "back")
    assert same(load_file(folder / "back/model.safetensors"), state_of(model.network))


def test_our_shards_are_theirs(own):
    model, folder = own
    pellucid.convert(folder / "own", folder / "hf", shard=40_000)
    shards = sorted((folder / "hf").glob("model-*.safetensors"))
    assert len(shards) > 2
    assert (folder / "hf/model.safetensors.index.json").exists()
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    theirs = AutoModelForCausalLM.from_pretrained(folder / "hf")
    assert torch.allclose(theirs(tokens).logits, model.network(tokens), atol=1e-3)
    assert torch.equal(pellucid.load(folder / "hf", device="cpu").network(tokens), model.network(tokens))


def test_vocabulary_and_merges_alone(own):
    model, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    content = json.loads((folder / "hf/tokenizer.json").read_text())["model"]
    (folder / "hf/tokenizer.json").unlink()
    (folder / "hf/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    separator = {"<|endoftext|>": model.tokenizer.separator}
    (folder / "hf/vocab.json").write_text(json.dumps(content["vocab"] | separator))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (folder / "hf/merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    assert pellucid.load(folder / "hf", device="cpu").tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)


@pytest.mark.parametrize("zipped", [True, False], ids=["as it is now", "as before torch 1.6"])
def test_pickled_weights_need_trust(zipped, own):
    model, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    weights, pickle = load_file(folder / "hf/model.safetensors"), folder / "hf/pytorch_model.bin"
    torch.save(weights, pickle, _use_new_zipfile_serialization=zipped)
    (folder / "hf/model.safetensors").unlink()
    with pytest.raises(FolderError, match="as a pickle"):
        pellucid.load(folder / "hf", device="cpu")
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    loaded = pellucid.load(folder / "hf", device="cpu", trust=True)
    assert torch.equal(loaded.network(tokens), model.network(tokens))
    for damaged in (b"", b"no pickle", pickle.read_bytes()[:500]):
        pickle.write_bytes(damaged)
        with pytest.raises(FolderError, match=r"cannot be read as tensors alone: \S"):
            pellucid.load(folder / "hf", device="cpu", trust=True)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("to", one_in(2, ["huggingface", "pellucid"]))
def test_a_conversion_that_changes_the_function_is_stopped(own, monkeypatch, installed, to, capsys):
    """The tensors of two modules are exchanged on their way; nothing is left, and the exit code is 1."""
    _, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    monkeypatch.setattr(source, "is_installed", lambda adapter=None: installed)
    before = sorted(folder.iterdir())

    def wrong(place, tensors, shard, *_):
        def exchanged():
            found = dict(tensors())
            pair = [n for n in found if n.endswith(("norm_1.gain", "norm_2.gain", "ln_1.weight", "ln_2.weight"))][:2]
            found[pair[0]], found[pair[1]] = found[pair[1]], found[pair[0]]
            return iter(found.items())

        return write_tensors(place, exchanged, shard)

    monkeypatch.setattr("pellucid.conversion.layouts.write_tensors", wrong)
    given = str(folder / ("own" if to == "huggingface" else "hf"))
    assert main(["convert", given, str(folder / "new"), "--to", to]) == 1
    said = capsys.readouterr().err
    assert "largest logit difference" in said
    first = "blocks.1.resid_pre" if installed else "blocks.0.norm_1"
    assert f"the first tensor that differs is {first}; nothing was written" in said
    assert sorted(folder.iterdir()) == before
    with pytest.raises(ParityError):
        pellucid.convert(given, folder / "new", to=to)


@pytest.mark.parametrize("to", ["huggingface", "gguf", "pellucid"])
def test_a_source_that_is_misread_is_stopped(to, own, monkeypatch):
    """Pellucid's own reading of it, with another base of the angles, is not what the result is compared with."""
    model, folder = own
    write_theirs(folder / "llama", "llama", model.tokenizer)
    read, destination = read_model, folder / ("new.gguf" if to == "gguf" else "new")

    def misread(*given, **options):
        found = read(*given, **options)
        return replace(found, architecture=found.architecture.with_fields({"positions.base": 500.0}))

    monkeypatch.setattr("pellucid.conversion.convert_model.read_model", misread)
    with pytest.raises(ParityError, match="nothing was written"):
        pellucid.convert(folder / "llama", destination, to=to)
    assert not destination.exists()

    monkeypatch.setattr(source, "is_importable", lambda name: False)
    done = pellucid.convert(folder / "llama", destination, to=to)
    said = "The source was not compared with another implementation (not installed: transformers)"
    assert said in done.notes[0]
    assert to == "gguf" or said in (destination / "README.md").read_text()
    monkeypatch.undo()
    sound = pellucid.convert(folder / "llama", folder / "sound", to=to if to == "pellucid" else "huggingface")
    assert ("; of the source: parity with transformers" in str(sound.parity)) == (to != "pellucid")


def test_a_folder_is_not_named_as_a_file_of_llama_cpp(own):
    with pytest.raises(
        FolderError, match=r"is the name of a file for llama.cpp, and the layout huggingface is a folder"
    ):
        pellucid.convert(own[1] / "own", own[1] / "model.gguf", to="huggingface")


@pytest.mark.parametrize(("odd", "expected"), [(torch.float64, "float64"), (torch.bfloat16, "float32")])
def test_the_precision_of_config_json_holds_every_tensor(own, odd, expected):
    """Whichever tensor comes first: transformers reads all of them in it."""
    model, folder = own
    pellucid.convert(folder / "own", folder / "hf")
    tensors = load_file(folder / "hf" / "model.safetensors")
    first = sorted(tensors)[0]
    save_file(tensors | {first: tensors[first].to(odd)}, folder / "hf" / "model.safetensors", {"format": "pt"})
    pellucid.convert(folder / "hf", folder / "again", to="huggingface")
    assert json.loads((folder / "again" / "config.json").read_text())["dtype"] == expected
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    theirs = AutoModelForCausalLM.from_pretrained(folder / "again", dtype="auto")
    assert torch.allclose(theirs(tokens).logits.float(), model.network(tokens), atol=0.1)


def test_an_existing_destination_is_refused_and_untouched(own, capsys):
    _, folder = own
    (folder / "new").mkdir()
    assert main(["convert", str(folder / "own"), str(folder / "new")]) == 2
    assert "exists: choose a new name" in capsys.readouterr().err
    assert list((folder / "new").iterdir()) == []


def test_the_command_prints_the_report_and_the_card_keeps_it(own, capsys):
    _, folder = own
    assert main(["convert", str(folder / "own"), str(folder / "new"), "--licence", "cc0-1.0"]) == 0
    said = capsys.readouterr().out
    assert all(part in said for part in ("parity with transformers", "KL", "argmax agreement 100.0%"))
    card = (folder / "new/README.md").read_text()
    assert said.splitlines()[-1] in card
    assert "license: cc0-1.0" in card.split("---")[1]


def test_a_family_that_cannot_represent_it_names_the_option(tmp_path, shakespeare):
    model = make_model(shakespeare[:5_000], **{"mlp.n_hidden": 2})
    model.save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"gpt2 cannot represent mlp.n_hidden = 2.*Without --family"):
        pellucid.convert(tmp_path / "own", tmp_path / "hf", family="gpt2")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("family", one_in(2, ["roberta", "xlm-roberta"]))
@pytest.mark.parametrize(
    ("names", "there"),
    [
        (("<pad>", "<s>", "</s>", "<mask>"), "<s>"),
        (("<s>", "</s>", "<mask>"), "</s>"),  # it ends texts, and pads for want of another
        (("<s>", "<pad>", "</s>", "<mask>"), None),
    ],
)
def test_a_family_that_pads_with_id_1_has_no_text_there(names, there, family, tmp_path):
    engine = Engine(models.BPE({name: i for i, name in enumerate([*names, *sorted(ByteLevel.alphabet())])}, []))
    engine.pre_tokenizer, engine.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer = BPETokenizer(engine.to_str())
    a = preset("bert", tokenizer.n_vocab).with_fields(SIZES)
    LanguageModel(make_network(a, 0, torch.float32), tokenizer, {}).save(tmp_path / "own")
    if there is None:
        assert pellucid.convert(tmp_path / "own", tmp_path / "new", family=family).parity.agreement == 1
        return
    with pytest.raises(FamilyError, match=rf"id 1 is '{there}' in this tokenizer, and padding .*, with --family bert"):
        pellucid.convert(tmp_path / "own", tmp_path / "new", family=family)
    assert not (tmp_path / "new").exists()


def test_the_file_of_an_encoder_decoders_tokenizer_is_kept_byte_for_byte(tmp_path):
    """BART's says itself what stands beside a source; ours, which says nothing, gets what ends one."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    engine = Engine(models.BPE({name: i for i, name in enumerate([*names, *sorted(ByteLevel.alphabet())])}, []))
    engine.pre_tokenizer, engine.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    content = json.loads(engine.to_str())
    bart = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
    bart |= {"trim_offsets": True, "add_prefix_space": False}
    for processor in (bart, None):
        text = json.dumps(content | {"post_processor": processor}, indent=3)
        tokenizer = BPETokenizer(text)
        write_tokenizer(tmp_path, tokenizer, 32, preset("original", tokenizer.n_vocab))
        written = (tmp_path / "tokenizer.json").read_text()
        assert (written == text) == (processor is not None)
        assert json.loads(written)["post_processor"] is not None


@pytest.mark.parametrize("entry", ["config.json", "generation_config.json"])
def test_a_first_token_that_transformers_forces_is_said(tmp_path, entry):
    sizes = {"d_model": 16, "max_position_embeddings": 32, "vocab_size": 40}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 16}
    config = BartConfig(**sizes, pad_token_id=1, decoder_start_token_id=2)
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    path = tmp_path / entry
    path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_bos_token_id": 7}))
    with pytest.warns(LoadWarning) as said:
        pellucid.load(tmp_path, device="cpu")
    assert any("begins every target with token 7 (forced_bos_token_id)" in str(w.message) for w in said)


def test_a_run_of_another_kind_is_refused_by_its_kind(tmp_path, shakespeare, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(shakespeare[:5_000])
    fields = {"order": 2, "tokenizer": "byte"}
    run = pellucid.train_predictor(tmp_path / "text.txt", out=tmp_path / "run", kind="ngram", fields=fields)
    with pytest.raises(FolderError, match="is a run of kind ngram: only transformers are converted"):
        pellucid.convert(run.path, tmp_path / "new")


@pytest.mark.parametrize("fields", [{"mlp.n_hidden": 2}, {"norm.kind": "rms", "positions.kind": "alibi"}])
def test_the_loader_beside_our_layout_gives_our_logits(fields, tmp_path, shakespeare, monkeypatch):
    model = make_model(shakespeare[:5_000], **fields)
    model.save(tmp_path / "own")
    done = pellucid.convert(tmp_path / "own", tmp_path / "new", to="pellucid")
    assert done.parity.other == "the NumPy reference"
    text = (tmp_path / "new/loader.py").read_text()
    assert "import pellucid" not in text
    assert "from pellucid." not in text
    monkeypatch.syspath_prepend(tmp_path / "new")
    monkeypatch.delitem(sys.modules, "loader", raising=False)
    import loader as alone

    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    assert torch.equal(alone.load(tmp_path / "new")(tokens), model.network(tokens))


@pytest.fixture(scope="module")
def joined():
    """The loader's names, as a module would have them."""
    import types

    module = types.ModuleType("joined_loader")
    sys.modules["joined_loader"] = module
    exec(compile(loader(), "joined_loader", "exec"), module.__dict__)
    return module


@settings(max_examples=20)
@given(a=architectures())
def test_the_loader_is_the_network_for_every_architecture(joined, a):
    network = make_network(a)
    again = joined.Transformer(joined.Architecture.from_dict(a.to_dict())).double().eval()
    again.load_state_dict(network.state_dict())
    tokens = torch.arange(4)[None] % a.n_vocab
    assert torch.equal(again(tokens), network(tokens))


def test_families_are_asked(shakespeare):
    assert lost(make_model(shakespeare[:5_000]).architecture, FAMILIES["gpt2"]) == []


def test_tensors_of_several_widths_lie_aligned(tmp_path):
    found = {"a": torch.randn(3).half(), "b": torch.randn(5), "c": torch.randn(3, 0), "d": torch.randn(2).double()}
    write_tensors(tmp_path, lambda: iter(found.items()))
    assert same(load_file(tmp_path / "model.safetensors"), found)
    save_file(found, tmp_path / "theirs.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("model", "theirs")]
    assert abs(sizes[0] - sizes[1]) < 100


def test_epochs_of_conversations_are_counted_by_the_answers():
    data = {"parts": {"train": {"tokens": 300, "answer_tokens": 100}}}
    assert tokens_trained_on({"tokens": 200}, data) == "200, 2.00 times the 100 of the training text"
