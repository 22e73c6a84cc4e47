"""What opens, and how: without a tokenizer, without a head, with a vocab.txt; what is said and what refused."""

import json
import os
import warnings

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from their_folders import write_theirs

import pellucid
from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.conversion import convert
from pellucid.generate.scoring import score_tokens
from pellucid.hub.folder import LoadWarning
from pellucid.hub.open import open_folder
from pellucid.language_model import LanguageModel, ModelError
from pellucid.model.embed import ReadoutError
from pellucid.model.weights import WeightsError
from pellucid.model_names import FolderError
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, TokenizerError, learn_tokenizer, load_tokenizer

TEXT = "To be, or not to be: that is the question."
#: the files in which transformers looks for the ids that end a text
CONFIGS = ("config.json", "generation_config.json")


@pytest.fixture
def folder(tmp_path, tokenizer):
    """A GPT-2 of transformers with its tokenizer."""
    return write_theirs(tmp_path / "model", "gpt2", tokenizer)


def opened(folder, **options):
    """What load gives without a word, and with one what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = pellucid.load(folder, device="cpu", **options)
    return model, [str(w.message) for w in caught if issubclass(w.category, LoadWarning)]


def change_config(folder, file="config.json", **changes):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Without a tokenizer ------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_takes_and_gives_ids(folder, tokenizer):
    with_text, said = opened(folder)
    assert said == []
    (folder / "tokenizer.json").unlink()
    model, said = opened(folder)
    assert len(said) == 1
    assert "holds no tokenizer" in said[0]
    assert "tokenizer=PATH" in said[0]
    ids = tokenizer.encode(TEXT)
    spelled = " ".join(map(str, ids))
    generated = model.generate(spelled, max_tokens=6, temperature=0)
    expected = with_text.generate(TEXT, max_tokens=6, temperature=0)
    assert generated.ids == expected.ids
    assert generated.text == "".join(f" {i}" for i in expected.ids)
    assert model.tokenizer.encode(str(generated)) == [*ids, *expected.ids]
    assert "".join(p.text for p in model.stream(spelled, max_tokens=6, temperature=0)) == generated.text
    ours, theirs = model.score(spelled), with_text.score(TEXT)
    assert ours.ids == theirs.ids
    assert np.array_equal(ours.log_probs, theirs.log_probs)
    assert b"".join(ours.pieces).decode() == spelled
    assert torch.equal(model.trace(spelled).logits, with_text.trace(TEXT).logits)
    assert torch.equal(model.trace(ids).logits, with_text.trace(ids).logits)


@pytest.mark.filterwarnings("ignore::pellucid.hub.folder.LoadWarning")
def test_ids_are_generated_with_rounded_weights_and_no_word_of_their_cost(folder, capsys):
    """The cost is that of a text, which a model without a tokenizer cannot read."""
    (folder / "tokenizer.json").unlink()
    given = ["generate", str(folder), "1 0 2", "--weights", "int8", "--max-tokens", "3", "--device", "cpu"]
    assert main(given) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1 0 2 ")
    assert "weights: int8" in said.err
    assert "costs" not in said.err


def test_texts_that_are_no_ids_are_refused_by_name(folder):
    (folder / "tokenizer.json").unlink()
    model, _ = opened(folder)
    for text, word in (("To be", "'To'"), ("1 300", "'300'"), ("1 -2", "'-2'"), ("1.5", r"'1\.5'"), ("²", "'²'")):
        with pytest.raises(TokenizerError, match=f"{word} is not a token id: this model has no tokenizer"):
            model.generate(text)


def test_a_given_tokenizer_takes_the_place(folder, tokenizer, tmp_path):
    expected = opened(folder)[0].generate(TEXT, max_tokens=4, temperature=0).text
    tokenizer.save(tmp_path / "elsewhere")
    (folder / "tokenizer.json").unlink()
    for given in (tokenizer, tmp_path / "elsewhere", str(tmp_path / "elsewhere" / "tokenizer.json")):
        model, said = opened(folder, tokenizer=given)
        assert said == []
        assert model.generate(TEXT, max_tokens=4, temperature=0).text == expected
    with pytest.raises(TokenizerError, match="there is no such tokenizer"):
        pellucid.load(folder, tokenizer=tmp_path / "nowhere")


def test_a_run_keeps_its_tokenizer(tmp_path, tokenizer):
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(ModelError, match="leave tokenizer out"):
        pellucid.load(tmp_path, tokenizer=tokenizer)


def test_ids_without_an_end(folder, tmp_path):
    """Where do not say which id ends a text, generation goes on, and nothing begins with a separator."""
    (folder / "tokenizer.json").unlink()
    for file in CONFIGS:
        change_config(folder, file, eos_token_id=None, bos_token_id=None)
    model, _ = opened(folder)
    assert len(model.generate("1 2", max_tokens=9, temperature=0).ids) == 9
    log_probs = model.score("1 2 3", start="none").log_probs
    assert np.array_equal(log_probs, score_tokens(model.network, [1, 2, 3]))
    for ask in (lambda: model.score("1 2 3"), lambda: model.generate("")):
        with pytest.raises(TokenizerError, match="do not say which id ends a text"):
            ask()
    # what is saved has no tokenizer either, and opens in the same way
    model.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "tokenizer.json").exists()
    again, said = opened(tmp_path / "saved")
    assert "holds no tokenizer" in said[0]
    assert (
        again.generate("1 2", max_tokens=9, temperature=0).ids == model.generate("1 2", max_tokens=9, temperature=0).ids
    )


def test_the_tokenizer_of_ids():
    ids = IdTokenizer(12, [11, 3])
    assert ids.encode(" 3  11\n0 ") == [3, 11, 0]
    assert ids.decode([3, 11, 0]) == " 3 11 0"
    assert ids.pieces_of(" 3  11\n0 ", [3, 11, 0]) == [b" 3", b"  11", b"\n0 "]
    assert (ids.separator, ids.ends, IdTokenizer(12).ends) == (11, [11, 3], [])
    assert len({ids.hash, *(IdTokenizer(12, *given).hash for given in ([], [[11]], [[11, 3], 4]))}) == 4
    # targets begin with their own id where there is one, and a source that has its end gets no second one
    assert (ids.start, IdTokenizer(12, [11, 3], 4).start) == (11, 4)
    assert [ids.source_ids(given) for given in ([5, 2], [5, 2, 11], [])] == [[5, 2, 11], [5, 2, 11], [11]]
    assert ids.token_str(7) == "7"
    with pytest.raises(TokenizerError, match="no tokenizer to write"):
        ids.save("anywhere")
    with pytest.raises(TokenizerError, match="no tokenizer to add"):
        ids.with_special("<|mask|>")


def test_all_ids_that_end_a_text_are_known_and_kept(folder, tmp_path):
    """In our layout too, which has no other place for them."""
    (folder / "tokenizer.json").unlink()
    change_config(folder, eos_token_id=[299, 7])
    change_config(folder, CONFIGS[1], eos_token_id=None)
    model, _ = opened(folder)
    assert (model.tokenizer.ends, model.tokenizer.separator) == ([299, 7], 299)
    saved = model.save(tmp_path / "saved")
    for ours in (saved, convert(folder, tmp_path / "converted", compare=False).folder):
        assert opened(ours)[0].tokenizer.ends == [299, 7]
    convert(saved, tmp_path / "back", to="huggingface", compare=False)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["eos_token_id"] == [299, 7]
    (saved / "ids.json").write_text("[]")
    with pytest.raises(FolderError, match=r"ids\.json holds list: expected an object"):
        pellucid.load(saved)


def test_generation_ends_where_the_files_of_a_model_say(folder, tokenizer, tmp_path):
    """As in transformers, generation_config.json goes before config.json; the end may be a token of text."""
    ends = [tokenizer.separator, *opened(folder)[0].generate(TEXT, max_tokens=1, temperature=0).ids]
    change_config(folder, CONFIGS[1], eos_token_id=ends[::-1])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    read = torch.tensor([tokenizer.encode(TEXT)])
    written = theirs.generate(read, max_new_tokens=9, do_sample=False)[0, read.shape[1] :].tolist()
    model, said = opened(folder)
    assert said == []
    ours = model.generate(TEXT, max_tokens=9, temperature=0)
    assert written == ends[1:]
    assert (ours.finish_reason, ours.text, ours.ids) == ("end", "", [])
    # and so in every folder made of it
    back = convert(model.save(tmp_path / "saved"), tmp_path / "back", to="huggingface", compare=False).folder
    assert json.loads((back / CONFIGS[1]).read_text())["eos_token_id"] == ends
    assert not (back / "ids.json").exists()
    for made in (tmp_path / "saved", back, convert(folder, tmp_path / "converted", compare=False).folder):
        assert opened(made)[0].tokenizer.ends == ends
    assert load_tokenizer(tmp_path / "saved").ends == ends  # as a run reads its own
    assert model.tokenizer.with_special("<|more|>").ends == ends
    change_config(folder, eos_token_id=[7])
    assert opened(folder)[0].tokenizer.ends == ends
    (tmp_path / "saved" / "ids.json").write_text('{"ends": [-1]}')
    with pytest.raises(TokenizerError, match=r"ids\.json beside it holds ends = \[-1\] and start = None"):
        load_tokenizer(tmp_path / "saved")


def test_ids_beside_a_config_are_not_read_and_others_are_those_of_the_tokenizer(folder, tokenizer, tmp_path):
    (folder / "ids.json").write_text("[1, 2, 3]")
    assert load_tokenizer(folder).ends == opened(folder)[0].tokenizer.ends == [tokenizer.separator]
    (folder / "ids.json").unlink()
    saved = opened(folder)[0].save(tmp_path / "saved")
    (saved / "ids.json").write_text('{"ends": [999999]}')
    with pytest.raises(TokenizerError, match=r"id 999999 ends a text: expected an id of this tokenizer, from 0 to"):
        load_tokenizer(saved)


def test_an_end_without_a_token_is_left_out(folder, tmp_path):
    """It is never generated, and no folder of ours names it."""
    change_config(folder, CONFIGS[1], eos_token_id=[7, 299])
    model, _ = opened(folder, tokenizer=ByteTokenizer())
    assert model.tokenizer.ends == [256, 7]
    assert load_tokenizer(model.save(tmp_path / "saved")).ends == [256, 7]


def test_a_tokenizer_of_ids_that_is_given_learns_the_ends_of_the_model(folder):
    change_config(folder, eos_token_id=[2, 7])
    change_config(folder, CONFIGS[1], eos_token_id=None)
    for given, ends in (([], [2, 7]), ([2], [2, 7]), ([5], [5, 2, 7])):
        model, _ = opened(folder, tokenizer=IdTokenizer(300, given))
        assert (model.tokenizer.ends, model.tokenizer.start) == (ends, ends[0])
    assert IdTokenizer(12, [3]).with_model_ids(4, []).start == 4
    assert IdTokenizer(12, [3, 5], 4).with_model_ids(None, []).hash == IdTokenizer(12, [3, 5], 4).hash


def test_ids_of_a_model_without_a_tokenizer_are_exported(tmp_path):
    """What begins, ends and pads its texts, and how its generate draws them."""
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    kind = transformers.BartForConditionalGeneration
    kind(kind.config_class(**(BODIES["BartModel"] | ids))).save_pretrained(tmp_path / "theirs")
    ids["forced_eos_token_id"] = 2
    change_config(tmp_path / "theirs", **ids)
    (tmp_path / "theirs" / "generation_config.json").write_text('{"num_beams": 4, "decoder_start_token_id": 2}')
    convert(tmp_path / "theirs", tmp_path / "again", to="huggingface", compare=False)
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids
    generation = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert generation == {"num_beams": 4, "decoder_start_token_id": 2}


def test_the_end_of_a_tokenizer_may_be_named_by_config_json_alone(folder, tokenizer, tmp_path):
    """And where nothing names it, texts are ids, with a note."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][0]["content"] = "<|END|>"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    change_config(folder, "tokenizer_config.json", bos_token=None, eos_token=None, pad_token=None)
    model, said = opened(folder)
    assert said == []
    assert model.tokenizer.special == {"<|END|>": tokenizer.separator}
    assert model.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)
    for ours in (model.save(tmp_path / "saved"), convert(folder, tmp_path / "converted", compare=False).folder):
        again, said = opened(ours)
        assert (again.tokenizer.separator, said) == (tokenizer.separator, [])
    for file in CONFIGS:
        change_config(folder, file, eos_token_id=None)
    model, said = opened(folder)
    assert isinstance(model.tokenizer, IdTokenizer)
    assert len(said) == 1
    assert "holds a tokenizer that cannot be used (" in said[0]
    assert "declares no end-of-text token" in said[0]
    done = convert(folder, tmp_path / "ids", compare=False)
    assert done.notes == ("The tokenizer of the model is left out, because Pellucid cannot use it.",)


def test_tokens_listed_beside_a_tokenizer_keep_their_ids_when_converted(folder, tokenizer, tmp_path):
    """As in chat models that were given their tokens after pretraining."""
    start, end = tokenizer.n_vocab, tokenizer.n_vocab + 1
    flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    listed = {start: {"content": "<|im_start|>"} | flags, end: {"content": "<|im_end|>"} | flags}
    options = {"added_tokens_decoder": listed, "eos_token": "<|im_end|>"}
    change_config(folder, "tokenizer_config.json", **options)
    text = "<|im_start|>to be<|im_end|>"
    for made in (folder, *(convert(folder, tmp_path / to, to=to).folder for to in ("pellucid", "huggingface"))):
        found, _ = opened(made)
        assert found.tokenizer.special == tokenizer.special | {"<|im_start|>": start, "<|im_end|>": end}
        expected = [start, *tokenizer.encode("to be"), end]
        assert found.tokenizer.encode(text, allow_special=["<|im_start|>", "<|im_end|>"]) == expected
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "huggingface").encode(text) == expected


def test_code_beside_a_model_of_a_known_family_is_not_run_and_said(folder, tmp_path):
    """Phi-3.5 and MPT name code in their folders, which transformers does not need any more."""
    expected = opened(folder)[0].trace(TEXT).logits
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})
    (folder / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(3)\n")
    model, said = opened(folder)
    assert len(said) == 1
    assert "names code of its own (auto_map), which is not run: the model is computed as GPT2LMHeadModel" in said[0]
    assert torch.equal(model.trace(TEXT).logits, expected)
    for to in ("pellucid", "huggingface"):
        assert convert(folder, tmp_path / to, to=to).parity.holds
    assert not (tmp_path / "ran").exists()
    change_config(folder, model_type="evil")
    with pytest.raises(FolderError, match=r"asks for code of its own \(auto_map\).*model_type = 'evil' is not a known"):
        pellucid.load(folder)


def test_what_a_source_says_of_generation_and_its_tokenizer_is_carried_over_unchanged(folder, tmp_path):
    generation = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "pad_token_id": 3, "eos_token_id": [7, 299]}
    options = {
        "model_max_length": 17,
        "pad_token": "<|pad|>",
        "extra_special_tokens": ["<|x|>"],
        "padding_side": "left",
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    change_config(folder, "tokenizer_config.json", **options)
    change_config(folder, bos_token_id=5, pad_token_id=3, eos_token_id=7)
    again = convert(folder, tmp_path / "again", to="huggingface").folder
    for file in ("generation_config.json", "tokenizer_config.json"):
        assert json.loads((again / file).read_text()) == json.loads((folder / file).read_text())
    config = json.loads((again / "config.json").read_text())
    assert [config[f"{role}_token_id"] for role in ("bos", "pad", "eos")] == [5, 3, 7]
    one, other = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, again))
    assert (one.get_vocab(), one.all_special_tokens) == (other.get_vocab(), other.all_special_tokens)
    notes = convert(folder, tmp_path / "ours", compare=False).notes
    assert "sets do_sample = True, temperature = 0.6, top_p = 0.9, which this layout does not hold" in notes[-1]


def run_from(folder, tmp_path):
    """A run of one step from a model."""
    (tmp_path / "text.txt").write_text(TEXT * 400)
    options = {"batch": 2, "device": "cpu", "compile": "no", "sample_every": 0}
    return pellucid.train(tmp_path / "text.txt", out=tmp_path / "run", from_model=folder, steps=1, fields=options).path


@pytest.mark.parametrize("to", ["pellucid", "huggingface", "gguf", "a run"])
def test_what_opening_says_of_a_model_is_said_of_what_is_made_of_it(to, folder, tmp_path):
    change_config(folder, auto_map={"AutoConfig": "own.Config"}, a_new_entry=True)
    made, given = tmp_path / ("made.gguf" if to == "gguf" else "made"), folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        if to == "a run":
            given = run_from(folder, tmp_path)
    done = convert(given, made, to=None if to == "a run" else to)
    assert [note for note in done.notes if f"{folder.name}/config.json names code of its own" in note]
    assert [note for note in done.notes if "has unknown entries, which are ignored: a_new_entry" in note]
    assert not any(str(folder.parent) in note for note in done.notes)
    if made.is_dir():
        assert all(f"- {note}" in (made / "README.md").read_text() for note in done.notes)


@pytest.mark.parametrize("saved", [True, False])
def test_a_saved_model_says_what_was_said_of_the_one_that_it_was_made_of(saved, folder, tmp_path):
    change_config(folder, a_new_entry=True)
    made = tmp_path / "made"
    if saved:
        opened(folder)[0].save(made)
    else:
        convert(folder, made)
    note = (
        "model/config.json has unknown entries, which are ignored: a_new_entry; if one of them changes what the model "
        "computes, the result here differs"
    )
    assert opened(made)[1] == [note]
    done = convert(made, tmp_path / "again")
    assert done.notes == (note,)
    assert f"- {note}\n" in (done.folder / "README.md").read_text()


def test_damaged_notes_are_refused(folder, tmp_path):
    made = opened(folder)[0].save(tmp_path / "made")
    assert not (made / "notes.json").exists()
    (made / "notes.json").write_text('{"notes": [3]}')
    with pytest.raises(FolderError, match=r"notes\.json: notes = \[3\]: expected a list of sentences"):
        opened(made)


def test_a_run_is_converted_whatever_has_become_of_the_model_that_it_started_from(folder, tmp_path):
    run, said = run_from(folder, tmp_path), f"The run started from {folder.name}; what opening that model says of it"
    for n, spoil in enumerate(
        (
            lambda: (folder / "model.safetensors").write_bytes(b"damaged"),
            lambda: (folder / "config.json").write_text("{}"),
            lambda: folder.rename(tmp_path / "away"),
            lambda: run.rename(folder),  # which then says of itself that it started from itself
        )
    ):
        spoil()
        source = run if run.exists() else folder
        assert convert(source, tmp_path / str(n), compare=False).notes == (f"{said} is not repeated here.",)


# vocab.txt ----------------------------------------------------------------------------------------

WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be", "##ing", "cafe", "café", "Be", "##e", ",", "中"]
TEXTS = ["To be, being", "CAFÉ café cafe", "[MASK] be [CLS]", "中be  beee", "x be\n", ""]


@pytest.mark.parametrize(
    "options", [None, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}], ids=str
)
def test_a_vocabulary_of_word_pieces_gives_the_ids_of_transformers(tmp_path, options):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n", encoding="utf-8")
    if options is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path, **(options or {}))
    assert ours.kind == "wordpiece"
    assert ours.n_vocab == len(WORDPIECES)
    assert ours.special == {name: i for i, name in enumerate(WORDPIECES[:5])}
    for text in TEXTS:
        plain = text.replace("[MASK]", "").replace("[CLS]", "")  # text never yields a special id here
        assert ours.encode(plain) == theirs.encode(plain, add_special_tokens=False), plain
        assert ours.masked_ids(ours.encode(plain)) == theirs.encode(plain), plain
    assert (ours.before, ours.after) == ((2,), (3,))
    assert ours.encode("be [MASK]", allow_special=["[MASK]"]) == theirs.encode("be [MASK]", add_special_tokens=False)
    assert load_tokenizer(tmp_path / "vocab.txt").encode(TEXTS[0]) == ours.encode(TEXTS[0])
    ours.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").encode(TEXTS[0]) == ours.encode(TEXTS[0])


def test_a_vocabulary_that_is_none_is_refused(tmp_path):
    for content, message in ((b"a\nb\na\n", "stands on two lines"), (b"a\nb\n", "is missing"), (b"\xff\n", "UTF-8")):
        (tmp_path / "vocab.txt").write_bytes(content)
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(tmp_path)


def test_a_vocabulary_without_the_tokens_beside_a_text_has_none_there(tmp_path):
    pieces = [piece for piece in WORDPIECES if piece != "[CLS]"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.before, tokenizer.after) == ((), ())


# Ids and rows -------------------------------------------------------------------------------------


def test_rows_that_no_id_is_for_are_said(tmp_path, tokenizer):
    folder = write_theirs(tmp_path / "model", "gpt2", tokenizer, vocab_size=tokenizer.n_vocab + 12)
    model, said = opened(folder)
    assert len(said) == 1
    assert "the tokenizer has 300 ids, the embedding 312 rows: the rows from 300 on stand for no text" in said[0]
    assert max(model.generate("", max_tokens=25, temperature=5.0, seed=1).ids) < 300


def test_special_ids_without_a_row_are_said_and_others_refused(folder, tokenizer, shakespeare):
    tokenizer.with_special("<|mask|>", "<|pad|>").save(folder)
    model, said = opened(folder)
    assert len(said) == 1
    assert (
        "special tokens of the tokenizer have ids beyond them, which the model cannot read: <|mask|>, <|pad|>"
        in said[0]
    )
    assert len(model.generate("to be", max_tokens=3).ids) <= 3
    learn_tokenizer("bpe", [shakespeare[:5_000]], 310).save(folder)
    with pytest.raises(ValueError, match="the tokenizer has 310 ids, the embedding 300 rows: they belong to"):
        pellucid.load(folder)


def test_entries_that_are_not_known_are_said(folder):
    change_config(folder, use_frobnication=True, my_note="hello", use_cache=False, task_specific_params={"a": 1})
    _, said = opened(folder)
    assert len(said) == 1
    assert "config.json has unknown entries, which are ignored: use_frobnication, my_note;" in said[0]


# Without a head -----------------------------------------------------------------------------------

TINY = {"vocab_size": 13, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
BERT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
BODIES = {
    "BertModel": TINY | BERT | {"max_position_embeddings": 16},
    "RobertaModel": TINY | BERT | {"max_position_embeddings": 18, "pad_token_id": 1},
    "DistilBertModel": TINY | {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "max_position_embeddings": 16},
    "LlamaModel": TINY | BERT | {"max_position_embeddings": 16, "tie_word_embeddings": False},
    "T5EncoderModel": TINY | {"d_model": 12, "num_layers": 2, "num_heads": 3, "d_kv": 5, "d_ff": 20, "n_positions": 16},
}
BODIES["BartModel"] = TINY | {"d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 16}
BODIES["BartModel"] |= {f"{part}_attention_heads": 3 for part in ("encoder", "decoder")}
BODIES["BartModel"] |= {f"{part}_ffn_dim": 20 for part in ("encoder", "decoder")}


def body_of_theirs(kind, folder):
    """A model of transformers without a head, every tensor drawn, and the folder that it is saved in."""
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**BODIES[kind], attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    model.save_pretrained(folder)
    return model


#: that there is no decoder is said by the class alone
CASES = [(kind, named) for kind in BODIES for named in (True, False) if kind != "BartModel"]
CASES.remove(("T5EncoderModel", False))


@pytest.mark.parametrize(("kind", "names_its_class"), CASES)
def test_a_body_opens_and_gives_the_hidden_states_of_transformers(kind, names_its_class, tmp_path):
    theirs = body_of_theirs(kind, tmp_path)
    if not names_its_class:
        change_config(tmp_path, architectures=None)
    model, _ = opened(tmp_path)
    assert isinstance(model, LanguageModel)
    assert model.architecture.readout == "none"
    ids = [5, 3, 12, 2, 7]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), output_hidden_states=True)
    trace = model.trace(ids)
    found = [trace[f"blocks.{i}.resid_pre"] for i in range(2)]
    for ours, its in zip([*found, model.network.hidden(torch.tensor([ids]))], expected.hidden_states, strict=True):
        assert (ours - its).abs().max() < 1e-5
    assert (trace["blocks.1.attn.pattern"].sum(-1) - 1).abs().max() < 1e-6


def test_a_body_of_encoder_and_decoder(tmp_path):
    theirs = body_of_theirs("BartModel", tmp_path)
    model, _ = opened(tmp_path)
    tokens, source = torch.tensor([[5, 3, 12]]), torch.tensor([[2, 7, 8, 9]])
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=tokens).last_hidden_state
        ours = model.network.hidden(tokens, source=model.network.encode(source))
    assert (ours - expected).abs().max() < 1e-5
    assert torch.equal(model.trace([5, 3, 12], source=[2, 7, 8, 9])["blocks.1.resid_post"], ours)


@pytest.mark.parametrize("kind", ["BertModel", "LlamaModel"])
def test_a_body_says_why_it_gives_no_probabilities(kind, tmp_path):
    body_of_theirs(kind, tmp_path)
    model, _ = opened(tmp_path)
    trace = model.trace([5, 3, 12])
    with pytest.raises(KeyError, match="readout = none: the stream is the result"):
        _ = trace.logits
    with pytest.raises(ReadoutError, match="readout = none: this model ends in hidden states and has no readout"):
        model.network(torch.tensor([[5, 3]]))
    for ask in (
        lambda: model.score("5 3 12"),
        lambda: model.generate("5 3"),
        lambda: model.fill("5 3"),
        lambda: model.verify(["5 3"]),
        lambda: trace.attribute(1),
        lambda: trace.lens(),
        lambda: model.circuits().copying(),
        lambda: model.embeddings("unembed"),
    ):
        with pytest.raises(ValueError, match=r"readout = none"):
            ask()


@pytest.mark.filterwarnings("ignore::pellucid.hub.folder.LoadWarning")
def test_a_page_about_a_body_has_its_attention_alone(tmp_path, capsys):
    body_of_theirs("LlamaModel", tmp_path / "body")
    model, _ = opened(tmp_path / "body")
    figure = model.trace([5, 3, 12]).show()
    assert {panel["kind"] for panel in figure.panels} == {"attention"}
    assert all(name != "mean surprisal" for name, _ in figure.facts)
    assert main(["inspect", str(tmp_path / "body"), "5 3 12", "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_a_body_is_converted_without_a_comparison(tmp_path):
    theirs = body_of_theirs("BertModel", tmp_path / "theirs")
    for options in ({}, {"to": "huggingface"}, {"to": "gguf", "compare": False}):
        with pytest.raises(ValueError, match="readout = none: a model without a head has no logits to compare"):
            convert(tmp_path / "theirs", tmp_path / "ours", **options)
    convert(tmp_path / "theirs", tmp_path / "ours", compare=False)
    model, _ = opened(tmp_path / "ours")
    tokens = torch.tensor([[5, 3, 12]])
    with torch.no_grad():
        assert (model.network.hidden(tokens) - theirs(tokens).last_hidden_state).abs().max() < 1e-5


def test_a_missing_readout_is_named(tmp_path, tokenizer):
    """Before the numbers are counted that the file lacks."""
    write_theirs(tmp_path, "llama", tokenizer, tie_word_embeddings=True)
    change_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(FolderError, match=r"lm_head\.weight is missing.*if it is, set tie_word_embeddings to true in"):
        pellucid.load(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True, num_hidden_layers=3)
    with pytest.raises(FolderError, match=r"and the tensor model\.layers\.2\.input_layernorm\.weight is missing"):
        pellucid.load(tmp_path)


def test_a_head_that_is_missing_is_no_body(tmp_path):
    """A masked model whose head was lost is damaged: its class says that there should be one."""
    body_of_theirs("BertModel", tmp_path)
    change_config(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(ValueError, match=r"cls\.predictions\..* is missing|needs .* numbers"):
        pellucid.load(tmp_path)


def test_a_tied_body_is_read_out_by_its_embedding(folder):
    """GPT2Model has no head of its own, and needs none."""
    with_head, _ = opened(folder)
    change_config(folder, architectures=["GPT2Model"])
    body, _ = opened(folder)
    assert body.architecture.readout == "linear"
    assert torch.equal(body.trace(TEXT).logits, with_head.trace(TEXT).logits)


def test_a_body_is_saved_and_opens_again(tmp_path):
    body_of_theirs("BertModel", tmp_path / "theirs")
    model, _ = opened(tmp_path / "theirs")
    again, _ = opened(model.save(tmp_path / "ours"))
    assert again.architecture == model.architecture
    tokens = torch.tensor([[5, 3, 12]])
    assert torch.equal(again.network.hidden(tokens), model.network.hidden(tokens))


# Weights that are no numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers_are_refused_unless_asked_for(folder, value):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 5:7] = value
    save_file(tensors, path, {"format": "pt"})
    said = r"2 numbers of blocks\.1\.mlp\.up\.0\.weight are NaN or infinite in float32.*allow_nan=True"
    with pytest.raises(WeightsError, match=said):
        pellucid.load(folder)
    model, _ = opened(folder, allow_nan=True)
    assert not model.network.blocks[1].mlp.up[0].weight.isfinite().all()


def test_numbers_beyond_the_precision_that_was_asked_for_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.wte.weight"][0, 0] = 1e6
    save_file(tensors, path, {"format": "pt"})
    pellucid.load(folder)
    with pytest.raises(WeightsError, match=r"1 numbers of embed\.token\.weight are NaN or infinite in float16"):
        pellucid.load(folder, dtype=torch.float16)


def test_our_own_folders_are_held_to_the_same(tmp_path, tokenizer):
    a = Architecture(n_vocab=300, n_ctx=8, d_model=8, n_layers=1)
    network = make_network(a, dtype=torch.float32)
    with torch.no_grad():
        network.blocks[0].attn.out.bias[1] = torch.nan
    LanguageModel(network, tokenizer, {}).save(tmp_path / "model")
    with pytest.raises(WeightsError, match=r"1 numbers of blocks\.0\.attn\.out\.bias"):
        pellucid.load(tmp_path / "model")


# Files that never end -----------------------------------------------------------------------------

OPENED = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", OPENED)
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=r"regular file|has no file|has no weights") as refused:
        pellucid.load(folder)
    assert type(refused.value).__module__.startswith("pellucid.")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "names",
    [
        ("vocab.txt",),
        ("vocab.json", "merges.txt"),
        ("encoder.json", "vocab.bpe"),
        ("adapter_config.json",),
        ("architecture.json",),
        ("recipe.json",),
        ("model.safetensors.index.json",),
        ("pytorch_model.bin",),
    ],
    ids=lambda names: names[0],
)
def test_pipes_of_every_name_that_load_looks_for(tmp_path, folder, names):
    """Alone in a folder, or in one that lacks what would be looked for first."""
    for name in names:
        os.mkfifo(tmp_path / name)
    if names[0].startswith(("vocab", "encoder", "model", "pytorch")):
        (folder / "tokenizer.json").unlink()
        kept = ["config.json"] + ["model.safetensors"] * (not names[0].startswith(("model", "pytorch")))
        for name in kept:
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"regular file|has no file|has no weights|cannot be read|names .* expected"):
        pellucid.load(tmp_path, trust=True)


@pytest.mark.timeout(30)
def test_a_pipe_as_the_given_tokenizer(folder, tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="regular file"):
        pellucid.load(folder, tokenizer=tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["transformer", "ngram"])
def test_pipes_among_the_files_of_a_run(kind, tmp_path, shakespeare):
    """Each file of a run in turn: refused at once, or not needed to open it."""
    text = tmp_path / "text.txt"
    text.write_text(shakespeare[:3_000])
    fields = {"n_layers": 1, "d_model": 8, "n_heads": 1, "n_ctx": 8, "batch": 2, "precision": "float32"}
    if kind == "transformer":
        run = pellucid.train(text, out=tmp_path / "run", steps=2, fields=fields).path
    else:
        run = pellucid.train_predictor(text, out=tmp_path / "run", kind="ngram").path
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    assert len(names) > 5
    refused = set()
    for name in names:
        (run / name).rename(tmp_path / "aside")
        os.mkfifo(run / name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the checkpoint before a damaged one is taken
                pellucid.load(run, device="cpu")
        except ValueError as error:
            assert type(error).__module__.startswith("pellucid.")  # noqa: PT017
            refused.add(name.name)
        (run / name).unlink()
        (tmp_path / "aside").rename(run / name)
    assert {"recipe.json", "tokenizer.json"} <= refused


# Quantised weights --------------------------------------------------------------------------------

METHODS = {
    "AWQ": {"quant_method": "awq", "bits": 4},
    "GPTQ": {"quant_method": "gptq", "bits": 4},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "FP8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "MXFP4": {"quant_method": "mxfp4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "config_groups": {}},
    "an unknown method": {"bits": 4},
    "their_own": {"quant_method": "their_own"},
}


@pytest.mark.parametrize("method", METHODS)
def test_quantised_weights_are_refused_by_the_name_of_their_method(method, folder):
    change_config(folder, quantization_config=METHODS[method])
    with pytest.raises(ValueError, match=f"quantised by {method}.*quantization_config.*GGUF"):
        pellucid.load(folder, device="cpu")


@pytest.mark.parametrize(("ending", "method"), [("qweight", "GPTQ or AWQ"), ("weight_scale_inv", "FP8")])
def test_tensors_of_quantised_weights_are_known_by_their_names(ending, method, folder):
    tensors = load_file(folder / "model.safetensors")
    name = f"transformer.h.0.mlp.c_fc.{ending}"
    save_file(tensors | {name: torch.zeros(4, 4, dtype=torch.int32)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"quantised by {method} .the tensor {name}"):
        pellucid.load(folder, device="cpu")


# How weights are read -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_in_bfloat16_are_read_in_the_precision_that_is_asked_for(dtype, folder):
    path = folder / "model.safetensors"
    tensors = {name: t.bfloat16() for name, t in load_file(path).items()}
    save_file(tensors, path)
    network = pellucid.load(folder, device="cpu", dtype=dtype).network
    assert {p.dtype for p in network.parameters()} == {dtype}
    torch.testing.assert_close(
        network.embed.token.weight.detach(), tensors["transformer.wte.weight"].to(dtype), rtol=0, atol=0
    )


def test_tensors_that_lie_at_odd_bytes_are_read(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    padded = content[8 : 8 + length] + b" "  # one byte more of header: every tensor lies one byte further
    before = pellucid.load(folder, device="cpu").network.state_dict()
    path.write_bytes(len(padded).to_bytes(8, "little") + padded + content[8 + length :])
    after = pellucid.load(folder, device="cpu").network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_is_released_is_read_again(folder, monkeypatch):
    monkeypatch.setattr("pellucid.hub.shards.RELEASED_AFTER", 1)
    opened_folder = open_folder(folder)
    kept = dict(opened_folder.ours())  # views of the file, read after their pages were let go
    network = pellucid.load(folder, device="cpu").network
    assert all(torch.equal(p, kept[name]) for name, p in network.named_parameters())
