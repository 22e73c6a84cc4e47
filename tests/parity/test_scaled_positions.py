"""Scaled rotary positions: their functions for the frequencies, and texts beyond the context of the training."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from random_configs import theirs_of
from random_models import LLAMA, LLAMA3, LONGROPE, PHI3_LONG, ROTARY, TINY, config_of_theirs, in_float64
from theirs import as_ours, both, draw, farthest, logits_of, numpy_weights, our_logits, perturb
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pellucid.architecture import Architecture, Attention, Positions
from pellucid.generate import Sampling, generate_ids
from pellucid.hub import FamilyError, architecture_of
from pellucid.lens.core.inputs import InputError, read_inputs
from pellucid.model import Cache, Transformer
from pellucid.model.positions import RotaryTable
from pellucid.model.weights import initialise, load_state, state_of
from pellucid.reference.generation import generate_with_cache
from pellucid.reference.layers import rotary_factor, rotary_frequencies
from pellucid.reference.transformer import forward
from pellucid.text_model import of_ids
from pellucid.verify.parity import float32_angles

TOLERANCE = 1e-12


def their_frequencies(p, a, length=None):
    """w_k and the factor of rotated coordinates, as transformers' function computes them."""
    names = {"factor": p.factor, "original_max_position_embeddings": p.n_trained, "rope_theta": p.base}
    names |= {"beta_fast": p.high, "beta_slow": p.low, "attention_factor": p.attention_factor or None}
    names |= {"short_factor": list(p.short_factors), "long_factor": list(p.long_factors)}
    config = transformers.LlamaConfig(
        hidden_size=a.d_model,
        num_attention_heads=a.n_heads,
        max_position_embeddings=p.n_trained if p.scaling == "dynamic" else a.n_ctx,
        rope_parameters={"rope_type": p.scaling} | names,
    )
    with in_float64():
        w, c = ROPE_INIT_FUNCTIONS[p.scaling](config, torch.device("cpu"), seq_len=length)
    return w.double().numpy(), c


@settings(max_examples=60)
@given(st.data())
def test_their_function_of_the_frequencies_is_ours(data):
    n_planes = data.draw(st.integers(2, 9))
    factors = st.tuples(*[st.floats(0.5, 60)] * n_planes)
    n_trained, low = data.draw(st.integers(2, 8192)), data.draw(st.floats(0.1, 8))
    p = Positions(
        kind="rotary",
        scaling=data.draw(st.sampled_from(["yarn", "longrope", "dynamic"])),
        base=data.draw(st.floats(2, 1e6)),
        factor=data.draw(st.floats(0.5, 64)),
        n_trained=n_trained,
        low=low,
        high=low * data.draw(st.floats(1.5, 40)),
        attention_factor=data.draw(st.sampled_from([0.0, 0.7, 1.3])),
        short_factors=data.draw(factors),
        long_factors=data.draw(factors),
    )
    n_ctx = data.draw(st.integers(n_trained // 2 + 1, 4 * n_trained))
    attention = Attention(n_heads=2, d_head=2 * n_planes)
    a = Architecture(n_vocab=3, n_ctx=n_ctx, d_model=4 * n_planes, n_layers=1, attention=attention, positions=p)
    w, c = their_frequencies(p, a, n_ctx)
    np.testing.assert_allclose(rotary_frequencies(a, 0, np.arange(n_ctx)).ravel(), w, rtol=TOLERANCE)
    assert abs(rotary_factor(a, 0) - c) <= TOLERANCE * c
    if n_ctx <= 64:  # the table holds every position
        i = n_ctx - 1
        cos, sin = RotaryTable(a).exact[:, 0, i].numpy()
        np.testing.assert_allclose(cos, c * np.cos(i * w), atol=1e-10)
        np.testing.assert_allclose(sin, c * np.sin(i * w), atol=1e-10)


@pytest.mark.parametrize("scaling", ["none", "yarn", "longrope"])
def test_angles_of_less_precision_keep_the_factor_of_rotated_coordinates(scaling):
    """What a conversion allows for their rounded angles is that rounding alone."""
    positions = Positions(
        kind="rotary", scaling=scaling, n_trained=16, attention_factor=1.0 if scaling == "none" else 1.7
    )
    a = Architecture(n_vocab=11, n_ctx=64, d_model=16, n_layers=1, attention=Attention(n_heads=2), positions=positions)
    network = initialise(Transformer(a), 0, std=0.5).double().eval()
    tokens = torch.arange(64)[None] % 11
    exact = our_logits(network, tokens)
    with float32_angles(network):
        rounded = our_logits(network, tokens)
    assert 0 < farthest(rounded, exact) <= 1e-4
    assert torch.equal(our_logits(network, tokens), exact)


LONG = {
    "longrope": ("phi3", {"original_max_position_embeddings": 5, "rope_parameters": PHI3_LONG}),
    "dynamic": ("llama", {"rope_parameters": ROTARY | {"rope_type": "dynamic", "factor": 3.0}}),
}


def model_and_network(kind, max_position_embeddings=12):
    """Their model whose frequencies depend on the text, and ours of the context in which they do not."""
    name, options = LONG[kind]
    model_class, common, _ = TINY[name]
    common = common | options | {"max_position_embeddings": max_position_embeddings, "vocab_size": 13}
    config = getattr(transformers, model_class).config_class(attn_implementation="eager", **common)
    model = perturb(getattr(transformers, model_class)(config))
    return model, as_ours(model, config.to_dict())[0]


def test_texts_on_both_sides_of_the_border_of_longrope_are_theirs():
    """Each row of a batch has the frequencies of its own length; in theirs, the longest row chooses for all."""
    with in_float64(), torch.no_grad():
        model, network = model_and_network("longrope")
        a = network.architecture
        assert (a.n_ctx, a.frequency_border) == (12, 5)
        tokens = draw(a)
        for n in (1, 4, 5, 6, 7, 12):
            expected = logits_of(model, tokens[:, :n])
            for logits in both(network, tokens[:, :n]).values():
                assert farthest(logits, expected) <= TOLERANCE
        short = network(tokens[:1, :5])
        assert farthest(short, network(tokens[:1, :6])[:, :5]) > 1e-3
        padded = torch.cat([tokens[:1, :1], tokens[:1, :5]], 1), tokens[1:2, :6]
        places = torch.tensor([[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])
        mask = torch.ones(2, 6, 6, dtype=torch.bool).tril()
        mask[0, 1:, 0] = False
        logits = network(torch.cat(padded), positions=places, mask=mask)
        assert farthest(logits[:1, 1:], short) <= TOLERANCE
        assert farthest(logits[1:], logits_of(model, tokens[1:2, :6])) <= TOLERANCE


def test_generation_across_the_border_of_longrope_is_theirs():
    """Phi-3's class drops its cache at the border and reads the text again, as ours does; ours in batches too."""
    with in_float64(), torch.no_grad():
        model, network = model_and_network("longrope", 20)
        prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 1, 2], [9, 3, 1, 2, 5]]
        expected = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            written = model.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=None)
            expected.append(written[0, len(prompt) :].tolist())
        for cache in (True, False):
            decoding = generate_ids(network, prompts, max_tokens=10, sampling=Sampling(temperature=0), cache=cache)
            for step in decoding:
                for row, logits in zip(step.rows, step.logits, strict=True):
                    text = torch.tensor([[*row.given, *row.generated[:-1]]])
                    assert farthest(logits, logits_of(model, text)[0, -1]) <= TOLERANCE
            assert [row.generated for row in decoding.rows] == expected


def test_a_cache_of_a_shorter_text_is_not_continued_beyond_the_border_of_longrope():
    a = model_and_network("longrope")[1].architecture
    network = initialise(Transformer(a), 0, std=0.5).double().eval()
    tokens = draw(a)
    with torch.no_grad():
        cache = Cache(a, len(tokens), dtype=torch.float64)
        network(tokens[:, :5], cache=cache)
        with pytest.raises(ValueError, match=r"the cache holds keys of a text of up to positions\.n_trained = 5"):
            network(tokens[:, 5:], cache=cache)
        cache.crop(0)
        network(tokens[:, :6], cache=cache)
        assert farthest(network(tokens[:, 6:], cache=cache), network(tokens)[:, 6:]) <= TOLERANCE
        with pytest.raises(ValueError, match="longrope has other frequencies"):
            cache.crop(5)


def test_a_longer_text_of_dynamic_is_one_of_a_longer_context():
    """Whole texts, which theirs reads with other frequencies than shorter ones."""
    with in_float64():
        model, network = model_and_network("dynamic")
        a = network.architecture
        assert a.n_ctx == 12
        longer = Transformer(a.with_fields({"n_ctx": 20})).double().eval()
        load_state(longer, state_of(network))
        tokens = draw(longer.architecture)
        # the shorter first: after a longer text, their dynamic scaling keeps its frequencies for this one
        for one, text in ((network, tokens[:, : a.n_ctx]), (longer, tokens)):
            expected = logits_of(model, text)
            for logits in both(one, text).values():
                assert farthest(logits, expected) <= TOLERANCE


def test_their_cache_is_not_the_whole_text_beyond_the_training_and_ours_is():
    """Keys that theirs has kept were rotated by the frequencies of the shorter text; this is why ours has one set."""
    with in_float64(), torch.no_grad():
        model, network = model_and_network("dynamic")
        n = network.architecture.n_ctx
        longer = Transformer(network.architecture.with_fields({"n_ctx": n + 3})).double().eval()
        load_state(longer, state_of(network))
        tokens = draw(longer.architecture)
        past = model(tokens[:, :n], use_cache=True).past_key_values
        rest = model(tokens[:, n:], past_key_values=past, use_cache=True).logits
        assert farthest(rest, logits_of(model, tokens)[:, n:]) > 1e-3
        cache = Cache(longer.architecture, len(tokens), dtype=torch.float64)
        longer(tokens[:, :n], cache=cache)
        assert farthest(longer(tokens[:, n:], cache=cache), longer(tokens)[:, n:]) <= TOLERANCE


def test_a_trace_of_texts_on_both_sides_of_the_border_is_refused():
    network = model_and_network("longrope")[1]
    with pytest.raises(InputError, match=r"texts of 5 to 6 tokens: longrope has other frequencies"):
        read_inputs(of_ids(network), [[1] * 5, [1] * 6])
    assert read_inputs(of_ids(network), [[1] * 6, [1] * 7]).tokens.shape == (2, 7)


def test_the_definition_s_cache_is_read_again_at_the_border():
    network = model_and_network("longrope")[1]
    a, weights = network.architecture, numpy_weights(network)
    text = generate_with_cache(a, weights, [1, 2, 3], 8)
    for n in range(3, 11):
        assert int(forward(a, weights, np.array(text[:n]))[-1].argmax()) == text[n]


@pytest.mark.parametrize("name", ["gemma3_text", "olmo3", "modernbert"])
def test_the_context_of_the_training_is_read_in_the_object_of_each_kind_of_layer_alone(name):
    config = config_of_theirs(name, "tied").to_dict() | {"original_max_position_embeddings": 3}
    scaled = {entry: value for entry, value in LLAMA3.items() if entry != "original_max_position_embeddings"}
    config["rope_parameters"] = {"full_attention": scaled, "sliding_attention": ROTARY}
    with in_float64():
        model = theirs_of(name, config)
        network = as_ours(model, config)[0]
        tokens = draw(network.architecture)
        assert network.architecture.positions.n_trained == config["max_position_embeddings"]
        assert farthest(our_logits(network, tokens), logits_of(model, tokens)) <= TOLERANCE


def test_two_lists_of_longrope_are_read_whole():
    """In older files the kind is called su."""
    config = {"model_type": "phi3", "max_position_embeddings": 131_072, "original_max_position_embeddings": 4096}
    config |= {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1}
    lists = {"short_factor": [1.0, 1.5, 4.0], "long_factor": [1.0, 2.5, 40]}
    p = architecture_of(config | {"rope_scaling": {"type": "su"} | lists}).positions
    assert (p.short_factors, p.long_factors, p.n_trained, p.factor) == ((1.0, 1.5, 4.0), (1.0, 2.5, 40.0), 4096, 32.0)
    a = architecture_of(config | {"rope_scaling": {"type": "su"} | lists})
    assert (a.n_ctx, a.frequency_border) == (131_072, 4096)
    same = lists | {"short_factor": lists["long_factor"]}
    a = architecture_of(config | {"rope_scaling": {"type": "su"} | same})
    assert (a.n_ctx, a.frequency_border) == (131_072, 0)
    with pytest.raises(FamilyError, match=r"positions.short_factors = .* a number above 0 for each of 3 planes"):
        architecture_of(config | {"rope_scaling": {"type": "su"} | lists | {"short_factor": [1.0]}})


def test_longrope_of_one_list_is_equal_in_float32_as_published():
    """Nothing is read as float64 here: their published class, and ours in float32."""
    config = transformers.LlamaConfig(**LLAMA | {"vocab_size": 13, "rope_parameters": LONGROPE})
    model = perturb(transformers.LlamaForCausalLM(config))
    network, weights = as_ours(model, config.to_dict())
    model, network = model.float(), network.float()
    assert weights.keys() == numpy_weights(network).keys()
    tokens = draw(network.architecture)
    with torch.no_grad():
        assert farthest(network(tokens), logits_of(model, tokens)) <= 1e-5
