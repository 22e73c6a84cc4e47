"""GGUF files, tensor by tensor and key by key beside what llama.cpp's conversion of the same model would hold.

Their conversion is no package: its rules are written out here, on transformers' own tensors, with gguf's table of
names. The file itself is read by gguf.
"""

import json

import gguf
import numpy as np
import pytest
import torch
from their_folders import begun, write_theirs
from transformers import AutoModelForCausalLM

import pellucid
from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.hub.families import FamilyError, interleave_halves, separate_halves
from pellucid.hub.gguf import gguf_family, read_gguf, tokenizer_keys
from pellucid.language_model import LanguageModel
from pellucid.presets import preset
from pellucid.reference.embedding import scaled_frequencies
from pellucid.text.tokenizers.bpe import QWEN_PATTERN, BPETokenizer
from pellucid.text.tokenizers.tokenizer import learn_tokenizer, load_tokenizer
from some_cases import one_in

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied, narrow": ("gpt2", {"tie_word_embeddings": False, "n_inner": 40}),
    "llama": ("llama", {}),
    "llama, tied, biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, one key head, wide": ("llama", {"num_key_value_heads": 1, "head_dim": 10}),
    "llama, scaled by turns": ("llama", {"rope_parameters": LLAMA3}),
    "llama, scaled": ("llama", {"rope_parameters": LINEAR}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied, one key head, wide": (
        "qwen3",
        {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 10, "rope_parameters": LINEAR},
    ),
}


def permuted(weights, n_heads):
    """LlamaModel.permute of llama.cpp's conversion."""
    shape = weights.shape
    return weights.reshape(n_heads, 2, shape[0] // n_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def their_tensors(folder, family, config):
    """What their conversion makes of the folder."""
    arch = gguf.MODEL_ARCH[family.upper()]
    names = gguf.get_tensor_name_map(arch, 2)
    found = {}
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, tensor in model.state_dict().items():
        w = tensor.numpy()
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            w = w.T
        if "q_proj" in name and family == "llama":
            w = permuted(w, config["num_attention_heads"])
        if "k_proj" in name and family == "llama":
            w = permuted(w, config["num_key_value_heads"])
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = w
    return found


def their_keys(family, config):
    if family == "gpt2":
        return {
            "gpt2.block_count": 2,
            "gpt2.context_length": 32,
            "gpt2.embedding_length": 32,
            "gpt2.feed_forward_length": config.get("n_inner") or 128,
            "gpt2.attention.head_count": 4,
            "gpt2.attention.layer_norm_epsilon": 1e-5,
        }
    d_head = config.get("head_dim") or 8
    rope = config["rope_parameters"]
    keys = {
        "block_count": 2,
        "context_length": 32,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": rope["rope_theta"],
        "attention.key_length": d_head,
        "attention.value_length": d_head,
    }
    if family == "llama":  # LlamaModel adds these two, Qwen2Model, which is Qwen3's too, does not
        keys |= {"rope.dimension_count": d_head, "vocab_size": 300}
    if rope["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    return {f"{family}.{name}": value for name, value in keys.items()}


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_what_is_written_is_what_llama_cpp_would_write(case, tokenizer, tmp_path):
    family, options = CASES[case]
    folder = write_theirs(tmp_path / "theirs", family, tokenizer, **options)
    done = pellucid.convert(folder, tmp_path / "out.gguf", licence="cc0-1.0")
    assert done.layout == "gguf"
    assert done.parity.largest == 0
    config = json.loads((folder / "config.json").read_text())
    keys, tensors = read_gguf(tmp_path / "out.gguf")

    expected = their_tensors(folder, family, config)
    factors = tensors.pop("rope_freqs.weight", None)
    assert tensors.keys() == expected.keys()
    assert done.n_bytes == sum(w.nbytes for w in expected.values()) + (0 if factors is None else 4 * len(factors))
    for name, w in expected.items():
        assert np.array_equal(tensors[name].numpy(), w), name
    assert (factors is not None) == ("by turns" in case)
    if factors is not None:
        a = pellucid.load(folder, device="cpu").architecture
        plain = a.positions.base ** (-np.arange(0, a.d_head, 2) / a.d_head)
        assert np.allclose(plain / factors.numpy(), scaled_frequencies(plain, "llama3", 8.0, 1.0, 4.0, 16), rtol=1e-6)

    theirs = family
    described = {name: value for name, value in keys.items() if name.startswith(f"{theirs}.")}
    wanted = their_keys(family, config)
    assert described.keys() == wanted.keys()
    assert all(described[name] == pytest.approx(value) for name, value in wanted.items())
    assert keys["general.architecture"] == theirs
    assert (keys["general.type"], keys["general.name"], keys["general.license"]) == ("model", "theirs", "cc0-1.0")
    assert keys["general.file_type"] == gguf.LlamaFileType.ALL_F32


def test_the_tokenizer_is_told(tokenizer, tmp_path):
    """Tokens, kinds, merges and ids; rows of the embedding that no token has are padding that is never written."""
    more = tokenizer.with_special("<|mask|>")
    a = preset("gpt2", more.n_vocab + 3).with_fields({"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 8})
    LanguageModel(make_network(a, 0, torch.float32), more, {}).save(tmp_path / "own")
    pellucid.convert(tmp_path / "own", tmp_path / "out.gguf")
    keys, _ = read_gguf(tmp_path / "out.gguf")
    said = {name.removeprefix("tokenizer.ggml."): v for name, v in keys.items() if name.startswith("tokenizer.")}
    vocabulary = json.loads(more.to_json())["model"]["vocab"]
    assert said["tokens"][: len(vocabulary)] == sorted(vocabulary, key=vocabulary.get)
    assert said["tokens"][-5:] == ["<|endoftext|>", "<|mask|>", "[PAD301]", "[PAD302]", "[PAD303]"]
    kinds = gguf.TokenType
    assert said["token_type"] == [kinds.NORMAL] * len(vocabulary) + [kinds.CONTROL] * 2 + [kinds.UNUSED] * 3
    assert said["merges"] == [f"{a} {b}" for a, b in more.merges]
    assert (said["model"], said["pre"]) == ("gpt2", "gpt-2")
    assert {said[f"{name}_token_id"] for name in ("bos", "eos", "padding")} == {more.separator}
    assert said["add_bos_token"] is False
    assert not any("chat" in name for name in keys)


def test_the_token_before_every_text_is_told(tokenizer, tmp_path):
    """llama.cpp puts it there by itself, and so it is read back."""
    first = begun(tokenizer)
    folder = write_theirs(tmp_path / "theirs", "llama", first)
    pellucid.convert(folder, tmp_path / "out.gguf")
    keys, _ = read_gguf(tmp_path / "out.gguf")
    said = {name.removeprefix("tokenizer.ggml."): v for name, v in keys.items() if name.startswith("tokenizer.")}
    assert (said["bos_token_id"], said["add_bos_token"]) == (first.special["<|begin_of_text|>"], True)
    assert said["eos_token_id"] == said["padding_token_id"] == first.separator
    theirs, ours = pellucid.load(folder, device="cpu"), pellucid.load(tmp_path / "out.gguf", device="cpu")
    assert ours.tokenizer.before == theirs.tokenizer.before == first.before == (said["bos_token_id"],)
    written = ours.generate("To be", max_tokens=6, temperature=0)
    assert written == theirs.generate("To be", max_tokens=6, temperature=0, seed=written.seed)


@pytest.mark.parametrize("kept", ["float16", "q8_0", "q5_0", "q4_0"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_fewer_bits(family, kept, tokenizer, tmp_path, capsys):
    """Every matrix is gguf's own rounding of ours; vectors and tables of positions stay as they are."""
    folder = write_theirs(tmp_path / "theirs", family, tokenizer, **({"head_dim": 10} if family == "llama" else {}))
    assert main(["convert", str(folder), str(tmp_path / "out.gguf"), "--weights", kept]) == 0
    printed = capsys.readouterr().out
    assert "parity with the model itself" in printed
    config = json.loads((folder / "config.json").read_text())
    expected = their_tensors(folder, family, config)
    reader, number_format = gguf.GGUFReader(tmp_path / "out.gguf"), "F16" if kept == "float16" else kept.upper()
    assert reader.fields["general.file_type"].contents() == {"float16": 1, "q8_0": 7, "q5_0": 8, "q4_0": 2}[kept]
    kinds = {}
    for tensor in reader.tensors:
        kinds[tensor.name] = tensor.tensor_type.name
        again = gguf.quants.quantize(np.ascontiguousarray(expected[tensor.name]), tensor.tensor_type)
        assert np.array_equal(np.asarray(tensor.data).reshape(again.shape), again), tensor.name
    assert all(kinds[name] == "F32" for name in kinds if expected[name].ndim == 1 or name.startswith("position"))
    short = "blk.0.attn_output.weight"  # of 40 columns in the Llama here, which blocks of 32 do not fill
    assert kinds["blk.0.ffn_down.weight" if family == "gpt2" else "token_embd.weight"] == number_format
    assert kinds[short] == ("F16" if family == "llama" or kept == "float16" else number_format)
    matrices = [kind for kind in kinds.values() if kind != "F32"]
    note = (
        f"{matrices.count('F16')} of {len(matrices)} matrices are written as float16, not {kept}, because the length "
    )
    note += "of their rows is not a multiple of 32."
    assert (note in printed) == ("not a multiple" in printed) == (kept != "float16" and family == "llama")


def test_neighbours_are_turned_as_they_are(tokenizer, tmp_path):
    """A model that turns neighbouring coordinates already needs no reordering."""
    a = preset("modern", tokenizer.n_vocab).with_fields(
        {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 8, "positions.layout": "pairs", "qk_norm": "none"}
        | {"mlp.form": "gated", "mlp.activation": "silu"}
    )
    network = make_network(a, 0, torch.float32)
    LanguageModel(network, tokenizer, {}).save(tmp_path / "own")
    assert pellucid.convert(tmp_path / "own", tmp_path / "out.gguf").parity.largest == 0
    _, tensors = read_gguf(tmp_path / "out.gguf")
    assert torch.equal(tensors["blk.0.attn_q.weight"], network.blocks[0].attn.query.weight)


@pytest.mark.parametrize("name", ["yarn", "longrope", "dynamic"])
def test_scalings_of_positions_that_the_file_does_not_hold_are_refused_by_name(name):
    fields = {"qk_norm": "none", "mlp.form": "gated", "mlp.activation": "silu"}
    a = preset("modern", 300).with_fields(fields)
    assert gguf_family(a).name == "llama"
    a = a.with_fields({"positions.scaling": name, "positions.n_trained": a.n_ctx // 2})
    with pytest.raises(FamilyError, match=f"llama cannot represent positions.scaling = {name}"):
        gguf_family(a)


def test_rows_there_and_back():
    rows = torch.arange(24.0).view(24, 1)
    assert interleave_halves(rows, 6)[:6, 0].tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(separate_halves(interleave_halves(rows, 6), 6), rows)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"mlp.activation": "gelu"},
            r"gpt2 cannot represent mlp\.activation = gelu; llama cannot represent .*; qwen3 cannot",
        ),
        ({"positions.kind": "alibi"}, r"gpt2 cannot represent positions\.kind = alibi"),
        ({"mlp.experts": 4}, r"gpt2 cannot represent mlp\.experts = 4"),
        ({"d_embed": 6}, r"gpt2 cannot represent d_embed = 6; llama cannot represent .*; qwen3 cannot represent"),
        ({"mlp.n_hidden": 2}, r"gpt2 cannot represent mlp\.n_hidden = 2"),
    ],
)
def test_what_llama_cpp_cannot_say_is_named(fields, says, tokenizer, tmp_path, capsys):
    a = preset("gpt2", tokenizer.n_vocab).with_fields(
        {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 8, "mlp.activation": "gelu_tanh"} | fields
    )
    with pytest.raises(FamilyError, match=says):
        gguf_family(Architecture.from_dict(a.to_dict()))
    LanguageModel(make_network(a, 0, torch.float32), tokenizer, {}).save(tmp_path / "own")
    assert main(["convert", str(tmp_path / "own"), str(tmp_path / "out.gguf")]) == 2
    assert "cannot be written as GGUF" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own"]


def test_the_nearest_family_is_named_first_with_all_that_is_in_its_way():
    with pytest.raises(FamilyError) as refused:
        gguf_family(preset("small").with_fields({"ngrams": (2, 3)}))
    said = str(refused.value).removeprefix("this architecture cannot be written as GGUF: ").split("; ")
    assert said[0] == "qwen3 cannot represent ngrams = [2, 3]"
    assert sorted(part.split()[0] for part in said) == ["gpt2", "llama", "qwen3"]
    with pytest.raises(FamilyError, match=r"GGUF: qwen3 cannot represent attention\.score_cap = 3\.0; "):
        gguf_family(preset("small").with_fields({"attention.score_cap": 3.0}))
    windows = preset("small").with_fields({"attention.windows": (4, 0), "attention.score_cap": 3.0})
    with pytest.raises(FamilyError) as refused:
        gguf_family(windows)
    said = str(refused.value).removeprefix("this architecture cannot be written as GGUF: ").split("; ")
    assert said[0] == "qwen3 cannot represent attention.windows = [4, 0] and attention.score_cap = 3.0"


def test_windows_are_named_once():
    """GPT-2's own table and llama.cpp both lack them, and write them differently."""
    with pytest.raises(FamilyError) as refused:
        gguf_family(preset("gpt2").with_fields({"attention.windows": (4, 0)}))
    said = str(refused.value).removeprefix("this architecture cannot be written as GGUF: ").split("; ")[0]
    assert said.startswith("gpt2 cannot represent attention.windows = ")
    assert said.count("attention.windows") == 1


def test_tokenizers_that_llama_cpp_cannot_follow(tokenizer, tmp_path, shakespeare):
    for kind in ("char", "byte"):
        with pytest.raises(FamilyError, match=f"cannot run a tokenizer of kind {kind}"):
            tokenizer_keys(learn_tokenizer(kind, [shakespeare[:1000]]), 1000)
    content = json.loads(tokenizer.to_json())
    content["pre_tokenizer"]["add_prefix_space"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FamilyError, match=r"llama\.cpp has no name for"):
        tokenizer_keys(load_tokenizer(tmp_path), 300)


def test_composing_characters_is_left_out_with_a_note_for_qwens_tokenizer_alone(tokenizer, tmp_path):
    """As llama.cpp's own conversion leaves it out; of other changes of text the file says nothing."""
    content = json.loads(tokenizer.to_json()) | {"normalizer": {"type": "NFC"}}
    with pytest.raises(FamilyError, match=r"changes text before it splits it \(NFC\), and llama\.cpp does not"):
        tokenizer_keys(BPETokenizer(json.dumps(content)), 300)
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    plain = content["pre_tokenizer"] | {"use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, plain]}
    folder = write_theirs(tmp_path / "theirs", "qwen3", BPETokenizer(json.dumps(content)))
    done = pellucid.convert(folder, tmp_path / "out.gguf")
    assert done.parity.largest == 0
    assert len(done.notes) == 1
    assert "does not compose characters (NFC)" in done.notes[0]
    assert read_gguf(tmp_path / "out.gguf")[0]["tokenizer.ggml.pre"] == "qwen2"


def test_an_end_of_another_name_is_told_and_read_back(tokenizer, tmp_path):
    """The file names the id; in a folder it stands in a file beside the tokenizer."""
    content = json.loads(tokenizer.to_json())
    content["added_tokens"][0]["content"] = "<|END|>"
    other = BPETokenizer(json.dumps(content), ends=["<|END|>"])
    folder = write_theirs(tmp_path / "theirs", "gpt2", other)
    assert pellucid.convert(folder, tmp_path / "out.gguf").notes == ()
    for path in (folder, tmp_path / "out.gguf"):
        opened = pellucid.load(path, device="cpu").tokenizer
        assert (opened.separator, opened.special) == (tokenizer.separator, {"<|END|>": tokenizer.separator})


def test_an_option_of_another_layout_is_refused(tokenizer, tmp_path, capsys):
    folder = write_theirs(tmp_path / "theirs", "gpt2", tokenizer)
    for more, says in (
        (["out", "--weights", "q8_0"], "the number format q8_0 is for GGUF alone"),
        (
            ["out.gguf", "--family", "gpt2"],
            "the family gpt2 (--family) needs to = huggingface (--to huggingface), and gguf is written",
        ),
        (["out", "--to", "adapter"], "the model is not a run of adapters"),
    ):
        assert main(["convert", str(folder), str(tmp_path / more[0]), *more[1:]]) == 2
        assert says in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["theirs"]
