"""What is saved is what is loaded, bit by bit."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import load_weights, save_weights, state_of
from running import any_architectures, call, draw_tokens


@settings(max_examples=20)
@given(any_architectures(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_save_then_load_is_the_identity(a, dtype):
    network = make_network(a, dtype=dtype)
    again = Transformer(Architecture.from_dict(a.to_dict())).to(dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_weights(network, path)
        load_weights(again, path)
        with safe_open(path, "pt") as file:
            assert set(file.keys()) == set(state_of(network))
    saved, loaded = state_of(network), state_of(again)
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    tokens = draw_tokens(a, 2, 4)
    assert torch.equal(call(again, tokens), call(network, tokens))
