"""Folders with code of their own: written, opened by transformers' auto classes and pipelines, saved and read again."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoTokenizer, pipeline

import pellucid
from drawing import make_network
from pellucid.cli import main
from pellucid.hub.own_code import auto_classes, model_class
from pellucid.hub.standalone import code_files, loader
from pellucid.language_model import LanguageModel
from pellucid.presets import PRESETS, preset
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.verify.cases import segments
from pellucid.verify.comparison import run_engine as logits_of
from some_cases import one_in

TINY = {
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 2,
    "n_kv_heads": 2,
    "n_ctx": 16,
    "d_head": 8,
    "d_ff": 24,
    "ngram_rows": 64,
}
TEXT = "First Citizen: we are\n\n accounted  poor"
KINDS = ("bpe", "word", "char", "byte")


def tiny(name, n_vocab, **fields):
    """A preset of tiny sizes, its encoder too."""
    a = preset(name, n_vocab)
    encoder = a.encoder and a.encoder.with_fields(TINY | {"dropout": 0.0})
    return replace(replace(a, encoder=None).with_fields(TINY | {"dropout": 0.0} | fields), encoder=encoder)


def write(folder, text, name="small", kind="bpe", special=(), **fields):
    """A random model of the preset, converted by code of its own; the model, and its folder."""
    tokenizer = learn_tokenizer(kind, [text[:20_000]], 300 if kind in ("bpe", "word") else None).with_special(*special)
    a = tiny(name, tokenizer.n_vocab, **fields)
    model = LanguageModel(make_network(a, 0, torch.float32), tokenizer, {})
    model.save(folder / "own")
    done = pellucid.convert(folder / "own", folder / "hf", family="pellucid")
    assert done.code
    assert done.parity.largest <= 1e-12 * done.parity.scale
    return model, folder / "hf"


def open_auto(folder, auto, **options):
    """The model of a folder by an auto class; every weight is there and no other."""
    kind = getattr(transformers, auto)
    model, info = kind.from_pretrained(folder, trust_remote_code=True, output_loading_info=True, **options)
    assert not any(info.values())
    return model.eval()


@pytest.fixture(scope="module")
def small(tmp_path_factory, shakespeare):
    """A network with tables of n-grams."""
    return write(tmp_path_factory.mktemp("small"), shakespeare, ngrams=(2, 3))


@pytest.mark.parametrize("name", one_in(8, [name for name in PRESETS if "-" not in name or name.startswith("becker")]))
def test_every_preset_opens_by_its_auto_class(name, tmp_path, shakespeare):
    """In float64, float32 and bfloat16; what is saved again opens again, here too."""
    model, folder = write(tmp_path, shakespeare, name)
    a, auto = model.architecture, list(auto_classes(model.architecture))[-1]
    tokens = torch.tensor([model.tokenizer.encode("we are")])
    given = {"input_ids": tokens} if a.encoder is None else {"input_ids": tokens, "decoder_input_ids": tokens}
    if a.n_segments:
        given["token_type_ids"] = segments(a, tokens.size(1))
    with torch.no_grad():
        expected = logits_of(model.network, tokens)
        for dtype, allowed in ((torch.float64, 1e-5), (torch.float32, 1e-5), (torch.bfloat16, 0.2)):
            hf = open_auto(folder, auto, dtype=dtype)
            assert hf.dtype == dtype
            found = hf(**given).logits
            assert (found.float() - expected).abs().max() <= allowed * max(1, expected.abs().max())
        hf.to(torch.float32).save_pretrained(tmp_path / "again")
        again = open_auto(tmp_path / "again", auto)
        assert torch.equal(again(**given).logits, hf(**given).logits)
        hidden = open_auto(folder, "AutoModel")(**given).last_hidden_state
        assert hidden.shape == (*tokens.shape, a.d_model)
    assert {"config.json", "model.safetensors", *(f"{n}.py" for n in code_files())} <= set(
        os.listdir(tmp_path / "again")
    )
    same_files = (
        load_file(tmp_path / "again/model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    )
    assert same_files


@pytest.mark.parametrize(
    ("name", "fields"),
    one_in(
        3,
        [
            ("small", {"positions.kind": "relative", "unembed": "untied"}),
            ("small", {"positions.kind": "relative"}),
            ("small", {"positions.kind": "alibi", "unembed": "untied"}),
            ("small", {"positions.kind": "sinusoidal", "readout": "bert"}),
            ("t5-mini", {}),
            ("t5-mini", {"unembed": "tied", "logit_scale": "1/sqrt(d_model)"}),
            ("original", {"source_embed": "shared"}),
        ],
    ),
)
def test_tied_weights_and_tables_come_back(name, fields, tmp_path, shakespeare):
    """A matrix that several modules read is written once, and is one again; a move of precision changes no table."""
    model, folder = write(tmp_path, shakespeare, name, **fields)
    hf = open_auto(folder, list(auto_classes(model.architecture))[-1])
    hf.save_pretrained(tmp_path / "again")
    model.tokenizer.save(tmp_path / "again")
    assert load_file(tmp_path / "again/model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    for where in (folder, tmp_path / "again"):
        again = open_auto(where, list(auto_classes(model.architecture))[-1], dtype=torch.bfloat16).to(torch.float64)
        own, expected = again.network, make_network(model.architecture)
        tied = own.unembed.weight is own.embed.token.weight
        assert tied == (model.architecture.unembed == "tied")
        assert len(list(own.parameters())) == len(list(expected.parameters()))
        for (_, found), (_, table) in zip(own.named_buffers(), expected.named_buffers(), strict=True):
            assert torch.equal(found, table)
        loaded = pellucid.load(where, device="cpu").network
        assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), model.network.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_goes_with_it(kind, tmp_path, shakespeare):
    """The same ids there as here, and the text back; what was never seen is the unknown id."""
    model, folder = write(tmp_path, shakespeare, kind=kind)
    tokenizer, ids = AutoTokenizer.from_pretrained(folder, trust_remote_code=True), model.tokenizer.encode
    known = "".join(model.tokenizer.words[:20]) if kind == "word" else TEXT
    assert tokenizer(known).input_ids == ids(known)
    assert tokenizer.decode(ids(known)) == known
    strange = "Ω naïve 日本"
    assert tokenizer(strange).input_ids == ids(strange)
    if model.tokenizer.unknown is not None:
        assert tokenizer.unk_token_id == model.tokenizer.unknown
        assert tokenizer.unk_token_id in tokenizer(strange).input_ids
    else:
        assert tokenizer.decode(ids(strange)) == strange
    assert tokenizer.eos_token_id == model.tokenizer.separator
    assert tokenizer.padding_side == "left"
    tokenizer.save_pretrained(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again")(known).input_ids == ids(known)


def test_pipelines_write_past_the_context(small):
    """Alone and in batches as `generate` writes here; 256 new tokens unless told otherwise."""
    model, folder = small
    write = pipeline("text-generation", model=str(folder), trust_remote_code=True, device="cpu")
    prompts = ["First Citizen:", "we"]
    out = write(prompts, max_new_tokens=40, batch_size=2, do_sample=False)
    for prompt, found in zip(prompts, out, strict=True):
        assert found[0]["generated_text"] == prompt + model.generate(prompt, max_tokens=40, temperature=0).text
    assert len(write("we")[0]["generated_text"]) > 40


def test_a_masked_model_fills(tmp_path, shakespeare):
    model, folder = write(tmp_path, shakespeare, "bert-mini", special=("<|mask|>",))
    fill = pipeline("fill-mask", model=str(folder), trust_remote_code=True, device="cpu")
    found = fill("we <|mask|> poor", top_k=3)
    tokens = torch.tensor([[*model.tokenizer.encode("we "), model.tokenizer.mask, *model.tokenizer.encode(" poor")]])
    with torch.no_grad():
        expected = model.network(tokens)[0, tokens[0] == model.tokenizer.mask].softmax(-1).topk(3)
    assert [one["token"] for one in found] == expected.indices[0].tolist()
    assert [one["score"] for one in found] == pytest.approx(expected.values[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("family", ["pellucid", None])
def test_an_encoder_decoder_writes_the_target_of_a_source(family, tmp_path, shakespeare):
    """Its tokenizer closes a source as training did; labels are read as targets."""
    model, folder = write(tmp_path, shakespeare, "t5-mini")
    if family is None:
        folder = pellucid.convert(tmp_path / "own", tmp_path / "t5").folder
    hf = open_auto(folder, "AutoModelForSeq2SeqLM")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    sources = ["we are accounted", "poor"]
    batch = tokenizer(sources, padding=True, return_tensors="pt")
    written = hf.generate(**batch, max_new_tokens=12, do_sample=False)
    for source, ids in zip(sources, written, strict=True):
        assert tokenizer.decode(ids, skip_special_tokens=True) == model.generate(source=source, max_tokens=12).text
    labels = tokenizer(text_target=["good"], return_tensors="pt").input_ids
    inputs = torch.cat([labels.new_full((1, 1), model.tokenizer.start), labels[:, :-1]], 1)
    loss = hf(**tokenizer("poor", return_tensors="pt"), labels=labels).loss
    with torch.no_grad():
        source = model.network.encode(torch.tensor([model.tokenizer.source_ids(model.tokenizer.encode("poor"))]))
        expected = F.cross_entropy(model.network(inputs, source=source).flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


RUN = TINY | {"tokenizer": "byte", "batch": 4, "device": "cpu", "precision": "float32", "compile": "no"}
RUN |= {"attention": "fused", "sample_every": 0, "n_ctx": 64, "learning_rate": 0.05}


@pytest.mark.parametrize("objective", one_in(4, ["next-token", "prefix", "source-target", "masked"]))
def test_a_run_of_every_objective_opens(objective, tmp_path, shakespeare, monkeypatch):
    """As `pellucid train` leaves it: the text, the filling or the target that Pellucid gives."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    lines = [line for line in shakespeare[:6_000].splitlines() if 5 < len(line) < 50]
    pairs = objective == "source-target"
    text = tmp_path / ("text.tsv" if pairs else "text.txt")
    text.write_text("".join(f"{line}\t{line[::-1]}\n" if pairs else f"{line}\n" for line in lines))
    run = pellucid.train(text, out=tmp_path / "run", steps=4, fields=RUN | {"objective": objective}).path
    model, folder = pellucid.load(run, device="cpu"), pellucid.convert(run, tmp_path / "out").folder
    assert json.loads((folder / "config.json").read_text())["model_type"] == "pellucid"
    hf = open_auto(folder, list(auto_classes(model.architecture))[-1])
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    given = tokenizer("we<|mask|> are" if objective == "masked" else "First Citizen:", return_tensors="pt")
    if objective == "masked":
        with torch.no_grad():
            logits = hf(**given).logits[0, 2, : model.tokenizer.separator]
        assert tokenizer.decode(logits.argmax()) == model.fill("we[MASK] are")[0].texts[0]
        return
    written = tokenizer.decode(hf.generate(**given, max_new_tokens=80, do_sample=False)[0], skip_special_tokens=True)
    if pairs:
        assert written == model.generate(source="First Citizen:", max_tokens=80, temperature=0).text
    else:
        assert written == str(model.generate("First Citizen:", max_tokens=80, temperature=0))


def test_labels_give_a_loss_and_every_weight_a_gradient(small):
    model, folder = small
    hf = open_auto(folder, "AutoModelForCausalLM")
    tokens = torch.tensor([model.tokenizer.encode(TEXT)[:12]])
    labels = tokens.clone()
    labels[0, :3] = -100
    loss = hf(tokens, labels=labels).loss
    with torch.no_grad():
        expected = F.cross_entropy(model.network(tokens)[0, 2:-1], tokens[0, 3:])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    loss.backward()
    assert all(p.grad is not None for p in hf.parameters())


def test_caches_of_every_origin_give_the_same_text(small):
    """One of the user's own, with and without the configuration; one that is continued; a prompt read in chunks."""
    model, folder = small
    hf, tokens = open_auto(folder, "AutoModelForCausalLM"), torch.tensor([model.tokenizer.encode("we are")])
    options = {"do_sample": False, "eos_token_id": None}
    expected = hf.generate(tokens, max_new_tokens=9, **options)
    for cache in (transformers.DynamicCache(), transformers.DynamicCache(config=hf.config)):
        assert torch.equal(hf.generate(tokens, past_key_values=cache, max_new_tokens=9, **options), expected)
    chunks = {"prefill_chunk_size": 2, "past_key_values": transformers.DynamicCache()}
    assert torch.equal(hf.generate(tokens, **chunks, max_new_tokens=9, **options), expected)
    begun = hf.generate(tokens, max_new_tokens=4, return_dict_in_generate=True, **options)
    ended = hf.generate(begun.sequences, past_key_values=begun.past_key_values, max_new_tokens=5, **options)
    assert torch.equal(ended, expected)


def test_streams_and_patterns_are_given_where_asked_for(small):
    model, folder = small
    ids = model.tokenizer.encode(TEXT)[:9]
    tokens, trace = torch.tensor([ids]), model.trace(ids, keep="*")
    for options in ({}, {"attn_implementation": "eager"}):
        hf = open_auto(folder, "AutoModelForCausalLM", **options)
        with torch.no_grad():
            out = hf(tokens, output_hidden_states=True, output_attentions=True, logits_to_keep=2)
            assert torch.allclose(out.logits, hf(tokens).logits[:, -2:], atol=1e-5)
        names = ["blocks.0.resid_pre", "blocks.1.resid_pre", "final_norm"]
        for found, name in zip(out.hidden_states, names, strict=True):
            assert torch.allclose(found, trace[name], atol=1e-5)
        for layer, found in enumerate(out.attentions):
            assert torch.allclose(found, trace[f"blocks.{layer}.attn.pattern"], atol=1e-5)


REFUSED = {
    "padding between tokens": (lambda m, t: m(t, attention_mask=torch.tensor([[1, 0, 1, 1]])), "between two tokens"),
    "a mask of another length": (lambda m, t: m(t, attention_mask=torch.ones(1, 3)), r"expected \[batch, 4\]"),
    "a prefix where none is read": (lambda m, t: m(t, prefix_length=2), "attention.mask = causal"),
    "positions beyond the context": (lambda m, t: m(t.repeat(1, 5)), "n_ctx = 16"),
    "given positions beyond it": (lambda m, t: m(t.repeat(1, 5), position_ids=torch.arange(20)[None]), "position 19"),
    "vectors without their tokens": (lambda m, t: m(inputs_embeds=torch.zeros(1, 4, 16)), "n-grams"),
    "nothing": (lambda m, t: m(), "neither input_ids"),
    "a cache of another kind": (
        lambda m, t: m.generate(t, max_new_tokens=2, cache_implementation="static"),
        "StaticCache: this model fills a DynamicCache",
    ),
    "another vocabulary": (lambda m, t: m.resize_token_embeddings(400), "vocabulary of this model has a fixed size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_in_a_sentence(name, small):
    ask, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        ask(open_auto(small[1], "AutoModelForCausalLM"), torch.tensor([[1, 2, 3, 4]]))


def test_from_config_starts_afresh(small):
    """Random weights of a usable size, nothing left over from the memory that they got."""
    config = transformers.AutoConfig.from_pretrained(small[1], trust_remote_code=True)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (300, 16, 2)
    assert config.max_position_embeddings == 16
    config.architecture["unembed"], config.tie_word_embeddings = "untied", False
    torch.manual_seed(0)
    fresh = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    for name, p in fresh.named_parameters():
        assert p.isfinite().all(), name
        assert p.abs().max() <= 1, name
    assert 0.015 < fresh.network.unembed.weight.std() < 0.025
    # device_map="auto" leaves the network whole: its blocks read tables that lie on one device
    assert type(fresh.network).__name__ in fresh._no_split_modules


@pytest.mark.slow
def test_neither_pellucid_nor_jaxtyping_is_needed(small, tmp_path):
    """Model, tokenizer and the loader of our layout, in a process that can import neither."""
    model, folder = small
    pellucid.convert(folder, tmp_path / "ours")
    script = f"""if True:
        import sys
        for name in ("pellucid", "jaxtyping", "beartype"):
            sys.modules[name] = None
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        sys.path.append({str(tmp_path / "ours")!r})
        import loader
        tokenizer = AutoTokenizer.from_pretrained({str(folder)!r}, trust_remote_code=True)
        model = AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)
        tokens = tokenizer("we are", return_tensors="pt")
        assert torch.equal(model(**tokens).logits, loader.load({str(tmp_path / "ours")!r})(tokens.input_ids))
        print(repr(tokenizer.decode(model.generate(**tokens, max_new_tokens=9)[0])))
    """
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, env=here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr("we are" + model.generate("we are", max_tokens=9, temperature=0).text)


def test_the_written_code_is_whole(tmp_path):
    """It imports nothing but torch, transformers and what comes with Python, and nothing in it is left over."""
    for name, text in {**code_files(), "loader": loader()}.items():
        imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
        packages = {line.split()[1].split(".")[0] for line in imports}
        assert packages - sys.stdlib_module_names <= {"torch", "transformers", ""}
        assert "jaxtyping" not in text
        (tmp_path / f"{name}.py").write_text(text)
    checks = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F",
        "--ignore",
        "F722,F821",
        str(tmp_path),
    ]
    done = subprocess.run(checks, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_conversion_whose_code_gives_other_logits_is_stopped(tmp_path, shakespeare, monkeypatch, capsys):
    """By less than any family is allowed; nothing is left, and the exit code is 1."""
    write(tmp_path, shakespeare, "slides")
    kind = model_class(preset("slides", 300))

    class Wrong(kind):
        def logits(self, x, logits_to_keep=0):
            return super().logits(x, logits_to_keep) * (1 + 1e-9)

    monkeypatch.setattr("pellucid.conversion.comparison.model_class", lambda a: Wrong)
    before = sorted(tmp_path.iterdir())
    assert main(["convert", str(tmp_path / "own"), str(tmp_path / "new"), "--family", "pellucid"]) == 1
    assert (
        "times the allowed rounding error; the first tensor that differs is logits; nothing was written"
        in capsys.readouterr().err
    )
    assert sorted(tmp_path.iterdir()) == before


def test_without_transformers_the_files_are_read_back(tmp_path, shakespeare, monkeypatch):
    write(tmp_path, shakespeare)
    monkeypatch.setattr("pellucid.hub.transformers_bridge.is_installed", lambda adapter=None: False)
    done = pellucid.convert(tmp_path / "own", tmp_path / "new")
    assert done.code
    assert done.parity.other == "the NumPy reference"


def test_the_command_and_the_card_say_how_to_open_it(small, tmp_path, capsys):
    _, folder = small
    assert main(["convert", str(folder.parent / "own"), str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "by the code in the folder" in said
    assert "trust_remote_code=True" in said
    card = (tmp_path / "new/README.md").read_text()
    python = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "new"))
    opened = {}
    exec(python, opened)
    assert type(opened["model"]).__name__ == "PellucidForCausalLM"
    assert opened["tokenizer"]("we").input_ids


def test_a_folder_goes_back_to_our_layout_and_out_again(small, tmp_path):
    model, folder = small
    done = pellucid.convert(folder, tmp_path / "ours")
    assert done.layout == "pellucid"
    found = load_file(tmp_path / "ours/model.safetensors")
    assert all(torch.equal(found[name], p) for name, p in model.network.named_parameters())
    pellucid.convert(tmp_path / "ours", tmp_path / "again", to="huggingface", shard=4_000)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 2
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(open_auto(tmp_path / "again", "AutoModelForCausalLM")(tokens).logits, model.network(tokens))
    for name in ("config.json", "tokenizer.json", "modeling_pellucid.py", "configuration_pellucid.py"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_what_a_file_for_llama_cpp_cannot_hold_is_still_named(small, tmp_path):
    with pytest.raises(ValueError, match="ngrams"):
        pellucid.convert(small[1], tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def changed(folder, to, **entries):
    """A copy of a folder with other entries in config.json."""
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    config = json.loads((to / "config.json").read_text()) | entries
    (to / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return to


def test_the_code_in_a_folder_is_never_run_here(small, tmp_path):
    """Not by loading, converting or training from it, and not by the comparison; its own tensors count."""
    model, folder = small
    folder = changed(folder, tmp_path / "evil", auto_map={"AutoModelForCausalLM": "modeling_pellucid.Evil"})
    for name in code_files():
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(3)\n")
    loaded = pellucid.load(folder, device="cpu")
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded.network(tokens), model.network(tokens))
    for to in ("pellucid", "huggingface"):
        pellucid.convert(folder, tmp_path / to, to=to)
    assert not (tmp_path / "ran").exists()


def prefixless(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("network."): t for name, t in tensors.items()}, folder / "model.safetensors")


HOSTILE = {
    "code of another type": {"model_type": "gpt2"},
    "no architecture": {"architecture": None},
    "an architecture of another kind": {"architecture": [1, 2]},
    "an unknown option": {"architecture": {"n_vocab": 3, "n_ctx": 3, "d_model": 4, "n_layers": 1, "evil": 1}},
    "too many layers": {"architecture": {"n_vocab": 300, "n_ctx": 16, "d_model": 16, "n_layers": 1 << 30}},
    "more than the files hold": {"architecture": {"n_vocab": 300, "n_ctx": 16, "d_model": 4096, "n_layers": 9}},
    "quantised": {"quantization_config": {"bits": 4}},
    "tensors of other names": prefixless,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_folder_is_refused_in_one_line(name, small, tmp_path):
    wrong = HOSTILE[name]
    folder = changed(small[1], tmp_path / "wrong", **({} if callable(wrong) else wrong))
    if callable(wrong):
        wrong(folder)
    with pytest.raises(ValueError) as caught:
        pellucid.load(folder, device="cpu")
    assert type(caught.value).__module__.startswith("pellucid.")
    assert "\n" not in str(caught.value)
    assert 10 < len(str(caught.value)) < 600


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_on_such_a_folder_are_read_by_peft(small, tmp_path, shakespeare, monkeypatch):
    from peft import PeftModel

    _, folder = small
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(shakespeare[20_000:30_000])
    fields = {"adapt.rank": 2, "learning_rate": 1e-2, "batch": 4, "device": "cpu", "precision": "float32"}
    fields |= {"compile": "no", "sample_every": 0}
    run = pellucid.train(tmp_path / "text.txt", out=tmp_path / "run", from_model=folder, steps=4, fields=fields)
    tokens = torch.tensor([[1, 2, 3, 4]])
    expected = pellucid.load(run.path, device="cpu").network(tokens)
    adapted = PeftModel.from_pretrained(open_auto(folder, "AutoModelForCausalLM"), run.path / "adapter").eval()
    assert torch.allclose(adapted(tokens).logits, expected, atol=1e-4)
    assert (expected - pellucid.load(folder, device="cpu").network(tokens)).abs().max() > 1e-3
    assert torch.allclose(pellucid.load(run.path / "adapter", device="cpu").network(tokens), expected, atol=1e-4)
    assert pellucid.convert(run.path, tmp_path / "adapter", to="adapter").parity.holds
    merged = pellucid.convert(run.path, tmp_path / "merged").folder
    assert torch.allclose(open_auto(merged, "AutoModelForCausalLM")(tokens).logits, expected, atol=1e-4)
