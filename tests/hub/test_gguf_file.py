"""GGUF files opened: the model that was written, with its tokenizer and its chat template; others refused by name."""

import json
import os
import struct

import gguf
import numpy as np
import pytest
import torch
from test_gguf import CASES, LLAMA3
from their_folders import begun, write_theirs

import pellucid
from pellucid.cli import main
from pellucid.hub import gguf_file
from pellucid.hub.canonical_fields import canonical_fields, without_dropout
from pellucid.hub.families import FamilyError
from pellucid.hub.folder import LoadWarning
from pellucid.hub.tables.entries import Entries
from pellucid.hub.tables.llama_cpp import rotary_positions
from pellucid.model_names import FolderError
from pellucid.text.chat_template import CHATML, ChatTemplate
from pellucid.text.ids import IdTokenizer
from some_cases import one_in

TEXT = "To be, or not to be: that is the question."


def write(tmp_path, tokenizer, family="gpt2", weights="float32", **options):
    """A random model of transformers', and its GGUF file."""
    folder = write_theirs(tmp_path / "theirs", family, tokenizer, **options)
    pellucid.convert(folder, tmp_path / "out.gguf", weights=weights)
    return folder, tmp_path / "out.gguf"


@pytest.mark.parametrize("case", one_in(3, CASES))
def test_what_was_written_is_opened_with_the_same_numbers(case, tokenizer, tmp_path, monkeypatch):
    """Logits, texts and ids of the folder that the file was made of."""
    family, options = CASES[case]
    if "by turns" in case:  # of the factors alone the file tells: the models that have them are known
        monkeypatch.setattr(gguf_file, "LLAMA3", (*gguf_file.LLAMA3, (8.0, 1.0, 4.0, 16)))
    folder, path = write(tmp_path, tokenizer, family, **options)
    theirs, ours = pellucid.load(folder, device="cpu"), pellucid.load(path, device="cpu")
    assert canonical_fields(ours.architecture) == canonical_fields(without_dropout(theirs.architecture))
    for (name, p), (_, q) in zip(ours.network.named_parameters(), theirs.network.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    assert ours.tokenizer.encode(TEXT) == theirs.tokenizer.encode(TEXT)
    assert ours.generate("To be", max_tokens=8, seed=3).text == theirs.generate("To be", max_tokens=8, seed=3).text


@pytest.mark.parametrize(("weights", "step"), [("float16", 1e-3), ("q8_0", 1 / 127), ("q4_0", 1 / 8)])
def test_fewer_bits_are_read_as_float32_and_said(weights, step, tokenizer, tmp_path):
    folder, path = write(tmp_path, tokenizer, "llama", "float32" if weights == "q4_0" else weights)
    if weights == "q4_0":
        path = rewritten(path, tmp_path, gguf.GGMLQuantizationType.Q4_0)
    with pytest.warns(LoadWarning, match=r"tensors as (F16|Q8_0|Q4_0).*: they are converted to float32"):
        ours = pellucid.load(path, device="cpu")
    theirs = pellucid.load(folder, device="cpu")
    exact, rounded = (m.network.blocks[0].attn.out.weight for m in (theirs, ours))
    assert 0 < (exact - rounded).abs().max() <= step * exact.abs().max()


def rewritten(path, tmp_path, kind=None, tensors=None, **changes):
    """The same file with matrices of another kind, other tensors or entries, left out where None; `__` is a dot."""
    tensors = tensors or {}
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "changed.gguf", reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in changes:
            continue
        value, own = entry.contents(), entry.types[0]
        writer.add_array(name, value) if own == gguf.GGUFValueType.ARRAY else writer.add_key_value(name, value, own)
    for name, value in changes.items():
        kinds = {
            str: gguf.GGUFValueType.STRING,
            bool: gguf.GGUFValueType.BOOL,
            int: gguf.GGUFValueType.UINT32,
            float: gguf.GGUFValueType.FLOAT32,
        }
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_key_value(name, value, kinds[type(value)])
    for name, extra in tensors.items():
        if extra is not None:
            writer.add_tensor(name, extra)
    for tensor in [tensor for tensor in reader.tensors if tensor.name not in tensors]:
        in_blocks = kind is not None and tensor.data.ndim == 2 and tensor.data.shape[1] % 32 == 0
        data = gguf.quants.quantize(tensor.data, kind) if in_blocks else np.array(tensor.data)
        writer.add_tensor(tensor.name, data, raw_dtype=kind if in_blocks else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "changed.gguf"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"llama__expert_count": 8},
            FamilyError,
            "llama with 8 experts: expected one of gpt2, llama, qwen3, without experts",
        ),
        (
            {"llama__rope__scaling__type": "yarn"},
            FamilyError,
            "type = 'yarn' in the GGUF file: only 'linear', 'none'",
        ),
        ({"llama__rope__scaling__attn_factor": 0.5}, FamilyError, "attn_factor = 0.5: expected 1"),
        ({"llama__rope__dimension_count": 4}, FamilyError, "dimension_count = 4: expected 8"),
        ({"llama__attention__causal": False}, FamilyError, "attention.causal = False: expected True"),
        ({"llama__attention__sliding_window": 8}, FamilyError, "sliding_window = 8: expected 0"),
        ({"llama__attention__scale": 0.5}, FamilyError, "attention.scale = 0.5: expected 0 or 0.35355"),
        ({"llama__final_logit_softcapping": 30.0}, FamilyError, "final_logit_softcapping = 30.0: expected 0"),
        ({"llama__embedding_scale": 12.0}, FamilyError, "embedding_scale = 12.0: expected 0 or 1"),
        ({"llama__logit_scale": "half"}, FamilyError, "logit_scale = half: expected 0 or 1"),
        ({"llama__logit_scale": [1.0, 2.0]}, FamilyError, r"logit_scale = \[1.0, 2.0\]: expected 0 or 1"),
        ({"llama__block_count": None}, FamilyError, "block_count is missing in the GGUF file: expected a whole number"),
        ({"llama__block_count": 2.5}, FamilyError, "block_count = 2.5 in the GGUF file: expected a whole number"),
        ({"llama__rope": 3}, FolderError, "is damaged: 'int' object"),
        ({"llama__block_count": 3}, FolderError, "needs .* numbers, but the files hold"),
    ],
)
def test_what_is_not_read_is_named(changes, error, says, tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer, "llama")
    with pytest.raises(error, match=says):
        pellucid.load(rewritten(path, tmp_path, **changes), device="cpu")


def test_entries_that_change_nothing_are_read_and_unknown_ones_named(tokenizer, tmp_path):
    """As the unknown entries of a config.json are."""
    _, path = write(tmp_path, tokenizer, "llama")
    same = {"causal": True, "sliding_window": 10**6, "scale": 8**-0.5, "max_alibi_bias": 0.0}
    changed = rewritten(path, tmp_path, **{f"llama__attention__{name}": value for name, value in same.items()})
    assert pellucid.load(changed, device="cpu").architecture == pellucid.load(path, device="cpu").architecture
    changed = rewritten(path, tmp_path, llama__attention__new_kind=3, llama__other=1.5)
    said = r"has unknown entries, which are ignored: llama.attention.new_kind, llama.other; if one of them"
    with pytest.warns(LoadWarning, match=said):
        pellucid.load(changed, device="cpu")


@pytest.mark.parametrize(
    ("entries", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 0.0, "rope.scaling.attn_factor": 1.0}, None),
        ({"rope.scale_linear": 1.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    ],
)
def test_a_factor_scales_linearly_where_no_type_is_given(entries, factor):
    read = rotary_positions(Entries(gguf_file.nested_entries(entries)))
    assert read.pop("positions.base") == 10_000
    scaled = {"positions.scaling": "linear", "positions.factor": factor}
    assert read == ({"positions.scaling": "none"} if factor is None else scaled)


def test_the_older_name_of_a_factor_is_read(tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer, "llama")
    model = pellucid.load(rewritten(path, tmp_path, llama__rope__scale_linear=4.0), device="cpu")
    assert (model.architecture.positions.scaling, model.architecture.positions.factor) == ("linear", 4.0)


def test_factors_of_frequencies_beside_another_factor_are_refused(tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer, "llama", rope_parameters=LLAMA3)
    with pytest.raises(FamilyError, match=r"rope_freqs\.weight and a rope factor of 4 both scale rotary positions"):
        pellucid.load(rewritten(path, tmp_path, llama__rope__scale_linear=4.0), device="cpu")


def test_factors_of_unknown_models_are_refused(tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer, "llama", rope_parameters=LLAMA3)
    with pytest.raises(
        FamilyError, match=r"rope_freqs\.weight holds other factors than the Llama 3 models have, .* to 8"
    ):
        pellucid.load(path, device="cpu")


def test_other_kinds_of_model_and_damaged_files_are_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FamilyError, match=r"general\.architecture = mamba: expected one of gpt2, llama, qwen3"):
        pellucid.load(tmp_path / "mamba.gguf")
    content = (tmp_path / "mamba.gguf").read_bytes()
    for name, damaged in (("cut", content[:40]), ("empty", b""), ("text", b"no model at all, and long enough" * 9)):
        (tmp_path / f"{name}.gguf").write_bytes(damaged)
        with pytest.raises(FolderError, match="is no GGUF file, or is damaged"):
            pellucid.load(tmp_path / f"{name}.gguf")
    with pytest.raises(FolderError, match="is no GGUF file, or is damaged"):
        pellucid.load(tmp_path / "gone.gguf")


def entry(name, kind, content):
    """An entry of a GGUF file: its name, the number of its type, and the bytes of its value."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + content


ARRAY, UINT8, STRING = 9, 0, 8
#: an array of no entries, within as many arrays of one entry each as Python has frames
NESTED = struct.pack("<IQ", ARRAY, 1) * 5000 + struct.pack("<IQ", UINT8, 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (entry("a", ARRAY, struct.pack("<IQ", UINT8, 1 << 60)), "an array of 1,152,921,504,606,846,976 entries"),
        (entry("a", ARRAY, struct.pack("<IQ", UINT8, 1 << 21)), "an entry ends at byte"),
        (entry("a", ARRAY, struct.pack("<IQ", STRING, 3)), "an entry ends at byte"),
        (entry("a", ARRAY, NESTED), "an array of arrays: expected arrays of numbers"),
        (entry("a", STRING, struct.pack("<Q", 1 << 60)), "an entry ends at byte"),
    ],
    ids=["endless", "cut short", "strings cut short", "nested", "a long string"],
)
@pytest.mark.parametrize("counts", [(0, 1), (1 << 60, 1), (0, 1 << 60)])
def test_entries_that_never_end_are_refused_at_once(content, says, counts, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + content)
    with pytest.raises(FolderError, match=f"a.gguf is no GGUF file, or is damaged: .*{says}"):
        pellucid.load(tmp_path / "a.gguf")


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(FolderError, match="not a regular file"):
        pellucid.load(tmp_path / "a.gguf")


@pytest.mark.parametrize("part", [0, 1])
def test_one_part_of_several_is_named(part, tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer)
    split = rewritten(path, tmp_path, split__no=part, split__count=3)
    with pytest.raises(FamilyError, match=rf"part {part + 1} of 3 of a model: join them into one file"):
        pellucid.load(split)


def test_a_tokenizer_of_another_kind_leaves_ids_or_another_one(tokenizer, tmp_path):
    folder, path = write(tmp_path, tokenizer, "llama")
    changed = rewritten(path, tmp_path, tokenizer__ggml__model="llama")
    with pytest.warns(LoadWarning, match="it is of kind llama, gpt-2: expected byte-level BPE"):
        read = pellucid.load(changed, device="cpu").tokenizer
    assert isinstance(read, IdTokenizer)
    assert read.ends == [tokenizer.separator]  # as the file's keys have it
    given = pellucid.load(changed, device="cpu", tokenizer=folder)
    assert given.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)


def test_the_token_before_every_text_is_there_where_llama_cpp_puts_it(tokenizer, tmp_path):
    _, path = write(tmp_path, begun(tokenizer), "llama")
    first = pellucid.load(path, device="cpu").tokenizer.before
    assert first == (tokenizer.n_vocab,)
    silent = rewritten(path, tmp_path, tokenizer__ggml__add_bos_token=None)
    assert pellucid.load(silent, device="cpu").tokenizer.before == ()
    both = rewritten(path, tmp_path, tokenizer__ggml__add_eos_token=True)
    opened = pellucid.load(both, device="cpu").tokenizer
    end = gguf.GGUFReader(both).fields["tokenizer.ggml.eos_token_id"].contents()
    assert (opened.before, opened.after) == (first, (end,))
    # where a file does not say, the way in which it cuts text does
    assert gguf_file.first_token({"pre": "llama-bpe", "bos_token_id": 5}) == 5
    assert gguf_file.first_token({"pre": "llama-bpe", "bos_token_id": 5, "add_bos_token": False}) is None
    assert gguf_file.first_token({"pre": "gpt-2", "bos_token_id": 5}) is None
    assert gguf_file.first_token({"pre": "gpt-2", "add_bos_token": True}) is None


def test_the_chat_template_is_the_file_s(tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer)
    ours = pellucid.load(rewritten(path, tmp_path, tokenizer__chat_template=CHATML), device="cpu")
    separator = json.loads(tokenizer.to_json())["added_tokens"][0]["content"]
    assert ours.chat_template == ChatTemplate(CHATML, {"bos_token": separator, "eos_token": separator})


@pytest.mark.parametrize("family", one_in(2, ["gpt2", "llama"]))
def test_a_file_is_converted_to_a_folder_and_to_a_file(family, tokenizer, tmp_path):
    _, path = write(tmp_path, tokenizer, family)
    assert pellucid.convert(path, tmp_path / "folder", family=family).layout == "huggingface"
    assert pellucid.convert(path, tmp_path / "again.gguf").parity.largest == 0
    ours, back = (pellucid.load(p, device="cpu").network for p in (path, tmp_path / "folder"))
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), back.parameters(), strict=True))


def test_tensors_that_are_left_over_or_missing_are_named(tokenizer, tmp_path):
    """One that is not read would change what the model computes."""
    _, path = write(tmp_path, tokenizer, "qwen3")
    more = rewritten(path, tmp_path, tensors={"blk.0.ffn_up.bias": np.zeros(48, np.float32)})
    with pytest.raises(FamilyError, match=r"unexpected tensor blk\.0\.ffn_up\.bias"):
        pellucid.load(more, device="cpu")
    fewer = rewritten(path, tmp_path, tensors={"blk.1.attn_q_norm.weight": None, "spare": np.zeros(99, np.float32)})
    with pytest.raises(FolderError, match=r"the tensor blk\.1\.attn_q_norm\.weight is missing"):
        pellucid.load(fewer, device="cpu")


def test_the_command_writes_with_a_file(tokenizer, tmp_path, capsys):
    _, path = write(tmp_path, tokenizer)
    assert main(["generate", str(path), "To be", "--max-tokens", "3", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("To be")
