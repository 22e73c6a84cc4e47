"""Experts that a gpt-oss folder holds as MXFP4 are read as the numbers that they stand for."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import pellucid
from pellucid.hub.files import FolderError
from pellucid.hub.folder import LoadWarning
from pellucid.hub.mxfp4 import PAIRS, dequantise, e2m1
from pellucid.hub.open import open_folder

ENTRY = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6}
SIZES |= {"num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 3}
SIZES |= {"vocab_size": 13, "max_position_embeddings": 9, "initializer_range": 0.5}
MAPS = ("gate_up_proj", "down_proj")


def random_bytes(*shape, least=0, most=255, seed=0):
    return torch.randint(least, most + 1, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def their_model(**options):
    config = transformers.GptOssConfig(**(SIZES | {"attn_implementation": "eager"} | options))
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    return transformers.GptOssForCausalLM(config).eval()


pytestmark = pytest.mark.filterwarnings("ignore::pellucid.hub.folder.LoadWarning")


@pytest.fixture
def packed(tmp_path):
    """A folder whose experts are random blocks, and transformers' model with the numbers of its own dequantiser."""
    model = their_model()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        for layer in range(2):
            experts = model.model.layers[layer].mlp.experts
            for seed, (name, n_out, n_in) in enumerate(((MAPS[0], 128, 32), (MAPS[1], 32, 64))):
                full = f"model.layers.{layer}.mlp.experts.{name}"
                blocks = random_bytes(3, n_out, n_in // 32, 16, seed=10 * layer + seed)
                scales = random_bytes(3, n_out, n_in // 32, least=122, most=126, seed=100 + 10 * layer + seed)
                del tensors[full]
                tensors |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
                getattr(experts, name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | ENTRY))
    return tmp_path, model


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_the_sixteen_numbers_of_four_bits():
    """Table 5 of the specification."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [e2m1(bits) for bits in range(16)] == positive + [-x for x in positive]
    assert PAIRS[0x2F].tolist() == [-6.0, 1.0]


def test_every_byte_under_every_scale_is_the_number_of_transformers():
    """But for the scale 255, which is not a number by the specification, and 2^128 there."""
    blocks = random_bytes(5, 7, 40, 16)
    for scales in (random_bytes(5, 7, 40, most=254), torch.arange(255).to(torch.uint8)[:245].view(1, 7, 35)):
        some = blocks[: len(scales), :, : scales.size(-1)]
        ours = dequantise(some, scales)
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours.mT, convert_moe_packed_tensors(some, scales))
    assert dequantise(blocks[:1, :1, :2], torch.tensor([[[255, 127]]], dtype=torch.uint8)).isnan().sum() == 32


def test_the_formula_number_by_number():
    blocks, scales = random_bytes(2, 3, 16, seed=1), random_bytes(2, 3, least=100, most=140, seed=2)
    ours = dequantise(blocks, scales)
    for i in range(2):
        for n in range(3 * 32):
            byte = int(blocks[i, n // 32, n % 32 // 2])
            bits = byte >> 4 if n % 2 else byte & 15
            assert float(ours[i, n]) == e2m1(bits) * 2.0 ** (int(scales[i, n // 32]) - 127)


def test_a_folder_of_mxfp4_is_the_model_that_transformers_makes_of_it(packed):
    folder, model = packed
    with pytest.warns(LoadWarning) as said:
        ours = pellucid.load(folder, dtype=torch.float32, device="cpu")
    assert any("holds 4 tensors of experts as MXFP4, 4 bits a number" in str(w.message) for w in said)
    tokens = torch.randint(0, 13, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given, expected = ours.network(tokens), model(tokens).logits
    assert expected.abs().max() > 0.5
    assert (given - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_converted_folder_holds_the_numbers_themselves(packed, tmp_path):
    folder, model = packed
    for to in ("pellucid", "huggingface"):
        done = pellucid.convert(folder, tmp_path / to, to=to)
        assert "transformers" in done.parity.other
        assert done.parity.largest <= 1e-5
    config = json.loads((tmp_path / "huggingface" / "config.json").read_bytes())
    assert "quantization_config" not in config
    tensors = load_file(tmp_path / "huggingface" / "model.safetensors")
    own = model.model.layers[1].mlp.experts.gate_up_proj
    assert torch.equal(tensors["model.layers.1.mlp.experts.gate_up_proj"].float(), own)


def test_a_folder_counts_the_numbers_and_not_their_bytes(packed):
    folder, model = packed
    assert open_folder(folder).shards.n_numbers == sum(p.numel() for p in model.parameters())


SCALES = "model.layers.0.mlp.experts.down_proj_scales"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(SCALES), f"the tensor {SCALES} is missing: without it"),
        (lambda t: t.update({SCALES: t[SCALES][:, :-1].contiguous()}), "expected bytes .expert, out, n, 16. and"),
        (lambda t: t.update({SCALES: t[SCALES].float()}), "torch.float32 .* expected bytes"),
    ],
    ids=["no scales", "a row less", "floats"],
)
def test_blocks_that_do_not_fit_are_refused(packed, change, message):
    rewrite(packed[0], change)
    with pytest.raises(FolderError, match=message):
        open_folder(packed[0])


def test_scales_that_are_not_numbers_are_refused_with_the_weight(packed):
    rewrite(packed[0], lambda t: t[SCALES][0, 0].fill_(255))
    with pytest.raises(ValueError, match=r"experts\.0\.down\.weight are NaN"):
        pellucid.load(packed[0])


def test_blocks_of_which_config_says_nothing_are_refused(packed):
    """transformers would look for the experts in vain."""
    config = json.loads((packed[0] / "config.json").read_bytes())
    del config["quantization_config"]
    (packed[0] / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match="quantised by MXFP4"):
        open_folder(packed[0])


def test_other_quantised_weights_of_the_family_are_refused(packed):
    config = json.loads((packed[0] / "config.json").read_bytes())
    (packed[0] / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ValueError, match="quantised by FP8"):
        open_folder(packed[0])
