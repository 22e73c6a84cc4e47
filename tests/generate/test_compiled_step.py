"""The compiled step of a single text computes what the ordinary step does, and is used where it can be and pays."""

import copy
import dataclasses
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import MLP, Architecture, Attention, Positions
from pellucid.generate import GenerationError, choose_reader, generate, generate_ids, pack_weights, row_products
from pellucid.generate.choose_reader import GenerationRequest, choose_compiled_step, compiled_step
from pellucid.generate.compiled_step import CompiledReader, CompiledStep, NotCompiledError
from pellucid.generate.pack_weights import pack_network
from pellucid.model import Cache, Transformer
from pellucid.model.lora import adapt
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.text_model import Model

SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)
#: grouped keys, rotated planes, a window, a cap of scores, n-grams: what a step reads besides matrices
RICH = dataclasses.replace(
    SMALL,
    attention=Attention(n_heads=4, n_kv_heads=2, windows=(3, 0), score_cap=2.0),
    positions=Positions(kind="rotary"),
    mlp=MLP(form="gated", activation="silu"),
    ngrams=(2,),
    ngram_rows=7,
    logit_cap=3.0,
)


#: how many times as far from the ordinary logits as these are from float64's the compiled ones may be
TIMES = 4


def agree(
    network: Transformer, n_prompt: int, tolerance: float, max_tokens: int = 20, exact: Transformer | None = None
) -> None:
    """The compiled logits of a text are the ordinary ones of the same text, beyond the context too.

    Some drawn networks magnify every rounding: given `exact`, the network in float64, the tolerance is at least TIMES
    what the ordinary step differs from it by.
    """
    prompt = [i % 11 for i in range(n_prompt)]
    decoding = generate_ids(network, [prompt], max_tokens=max_tokens, seeds=3, compile="yes")
    assert isinstance(decoding.reader, CompiledReader)
    compiled = torch.cat([step.logits for step in decoding])
    text = decoding.rows[0].generated
    expected = ordinary_logits(network, prompt, text)
    if exact is not None and difference(compiled, expected) > tolerance:
        tolerance = TIMES * difference(expected.double(), ordinary_logits(exact, prompt, text))
    assert difference(compiled, expected) <= tolerance


def ordinary_logits(network: Transformer, prompt: list[int], text: list[int]) -> torch.Tensor:
    """The logits before each token of `text`, which follows the prompt, by the ordinary step."""
    plain = generate_ids(network, [prompt], max_tokens=len(text))
    logits = []
    for n, step in enumerate(plain):
        logits.append(step.logits)
        plain.rows[0].generated[-1] = text[n]  # what the ordinary step reads next
    return torch.cat(logits)


@settings(max_examples=200)
@given(architectures({"mlp.experts": 0, "attention.mask": st.sampled_from(["causal", "prefix"])}), st.integers(1, 10))
def test_a_compiled_step_computes_the_ordinary_one(a, n_prompt):
    """For every architecture that is compiled."""
    network = make_network(a, dtype=torch.float32)
    agree(network, n_prompt, 2e-5, exact=copy.deepcopy(network).double())


@pytest.mark.parametrize("weights", ["loaded", "float32", "int8", "int4"])
@settings(max_examples=40)
@given(architectures({"mlp.experts": 0, "attention.mask": "causal"}), st.integers(1, 10))
def test_packed_weights_are_read_by_the_compiled_step(weights, a, n_prompt):
    agree(pack_network(make_network(a, dtype=torch.float32), weights).network, n_prompt, 2e-5)


@pytest.mark.parametrize("a", [SMALL, RICH, dataclasses.replace(SMALL, d_model=192, n_ctx=300)])
def test_two_threads_compute_the_same_numbers_as_one(a):
    network, n_threads = make_network(a, dtype=torch.float32), torch.get_num_threads()
    step, logits = CompiledStep(network), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            cache = Cache(a)
            with torch.inference_mode():
                logits.append(torch.cat([step(token % 11, cache) for token in range(a.n_ctx)]))
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2", "silu", "quick_gelu", "tanh"])
def test_activations_of_large_and_small_numbers(activation):
    """Their exponentials neither overflow nor lose their digits."""
    network = make_network(dataclasses.replace(SMALL, mlp=MLP(activation=activation)), dtype=torch.float32)
    for size in (1e-4, 1.0, 300.0):
        with torch.no_grad():
            network.blocks[0].mlp.up[0].bias.copy_(torch.linspace(-size, size, 32))
        agree(network, 3, 2e-5, max_tokens=4)


def test_scores_that_are_far_apart():
    """The softmax subtracts the largest score first."""
    network = make_network(SMALL, dtype=torch.float32)
    with torch.no_grad():
        network.blocks[0].attn.query.weight.mul_(3e3)
    agree(network, 8, 2e-5, max_tokens=2)


def test_a_step_is_listed_once_and_again_where_weights_change():
    network = make_network(SMALL, dtype=torch.float32)
    step, said = choose_compiled_step(GenerationRequest(network, 1), "yes")
    assert said.startswith("compiled: yes (ready in ")
    assert choose_compiled_step(GenerationRequest(network, 10_000_000), "auto")[0] is step
    with torch.no_grad():
        network.blocks[0].norm_1.gain.mul_(-1)
    again, _ = choose_compiled_step(GenerationRequest(network, 1), "yes")
    assert again is not step
    agree(network, 2, 2e-5)


def test_threads_of_a_program_may_generate_at_once_with_one_network():
    """Both have the same step, whose vectors are one memory."""
    network = make_network(dataclasses.replace(SMALL, n_ctx=400), dtype=torch.float32)
    step = CompiledStep(network)

    def logits(first: int) -> torch.Tensor:
        cache = Cache(network.architecture)
        with torch.inference_mode():
            return torch.cat([step((first + n) % 11, cache) for n in range(400)])

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(logits, range(4)))
    assert all(torch.equal(found, logits(first)) for first, found in enumerate(together))


def test_a_text_may_begin_anywhere_in_a_row_of_a_batch():
    """As serving keeps a single sequence beside the room for others."""
    network = make_network(RICH, dtype=torch.float32)
    batch, alone, step = Cache(RICH, 3, 20), Cache(RICH), CompiledStep(network)
    batch.store.fill_(9.0)
    batch.advance(7)
    row = batch.some_rows(1, 2)
    with torch.inference_mode():
        for n in range(5):
            assert torch.equal(step(n, row, n), step(n, alone))
    assert batch.store[:, :, [0, 2]].eq(9).all()
    assert batch.store[:, :, 1, :, :7].eq(9).all()


def test_a_network_is_freed_although_its_step_is_kept():
    network = make_network(SMALL, dtype=torch.float32)
    choose_compiled_step(GenerationRequest(network, 1), "yes")
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_what_does_not_fit_is_refused():
    """The compiled code writes where it is told to: the caller checks."""
    step = CompiledStep(make_network(SMALL, dtype=torch.float32))
    full, two, wide = Cache(SMALL, capacity=2), Cache(SMALL, 2), Cache(SMALL, dtype=torch.float64)
    full.advance(2)
    with pytest.raises(ValueError, match="3 positions do not fit"):
        step(1, full)
    full = Cache(SMALL, capacity=20)
    full.advance(8)
    with pytest.raises(ValueError, match="9 positions do not fit"):
        step(1, full)
    for cache in (two, wide):
        with pytest.raises(ValueError, match="expected one text in float32"):
            step(1, cache)


@pytest.fixture
def not_on_disk(monkeypatch):
    """Nothing was compiled on this machine; fails where something is."""

    def refuse(*_):
        raise AssertionError("nothing is to be compiled here")

    monkeypatch.setattr(row_products, "is_compiled", lambda: False)
    monkeypatch.setattr(choose_reader, "compiled_step", refuse)


def test_short_texts_are_not_worth_compiling(not_on_disk):
    network = make_network(SMALL, dtype=torch.float32)
    assert choose_compiled_step(GenerationRequest(network, 1000), "auto") == (
        None,
        "compiled: no (1000 tokens are too few)",
    )
    assert choose_compiled_step(GenerationRequest(network, 10**9), "no") == (None, "compiled: no")


def test_what_is_on_disk_is_used_for_short_texts_too(monkeypatch):
    monkeypatch.setattr(row_products, "is_compiled", lambda: True)
    network = make_network(SMALL, dtype=torch.float32)
    assert choose_compiled_step(GenerationRequest(network, 1), "auto")[0] is None
    assert choose_compiled_step(GenerationRequest(network, 20), "auto")[0] is not None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": 2}, "2 are generated together"),
        ({"beams": 2}, "beams = 2"),
        ({"cache": False}, "there is no cache"),
    ],
)
def test_options_that_need_ordinary_steps_are_named(options, named, not_on_disk):
    network, tokenizer = make_network(dataclasses.replace(SMALL, n_vocab=20)), learn_tokenizer("char", ["abc"])
    said = []
    assert generate(Model(network, tokenizer), "a", max_tokens=2, report=said.append, **options)
    assert named in said[1]
    with pytest.raises(GenerationError, match=rf"compile = yes: .* {named}"):
        generate(Model(network, tokenizer), "a", compile="yes", **options)


def test_a_wrong_word_is_refused(not_on_disk):
    with pytest.raises(GenerationError, match="compile = 'maybe': choose one of auto, no, yes"):
        choose_compiled_step(GenerationRequest(make_network(SMALL), 10), "maybe")


def why_not(network: Transformer) -> str:
    with pytest.raises(NotCompiledError) as error:
        CompiledStep(network)
    return str(error.value)


def test_networks_that_cannot_be_compiled_are_named():
    experts, reads_another = (dataclasses.replace(SMALL, mlp=MLP(experts=3)), dataclasses.replace(SMALL, encoder=SMALL))
    assert "mixture of experts" in why_not(make_network(experts, dtype=torch.float32))
    assert "an encoder's output" in why_not(make_network(reads_another, dtype=torch.float32))
    assert "is in bfloat16" in why_not(make_network(SMALL, dtype=torch.bfloat16))
    assert "is in float64" in why_not(make_network(SMALL))
    adapted = make_network(SMALL, dtype=torch.float32)
    adapt(adapted, rank=2, alpha=2.0)
    assert "another format (LoRALinear)" in why_not(adapted)
    hooked = make_network(SMALL, dtype=torch.float32)
    hooked.blocks[0].register_forward_hook(lambda *_: None)
    assert "hooks" in why_not(hooked)
    with pytest.raises(GenerationError, match=r"compile = yes: .* mixture of experts"):
        choose_compiled_step(GenerationRequest(make_network(experts, dtype=torch.float32), 10), "yes")
    assert (
        "mixture of experts"
        in choose_compiled_step(GenerationRequest(make_network(experts, dtype=torch.float32), 1000), "auto")[1]
    )


def test_a_network_of_another_type_is_refused_before_its_weights_are_read(monkeypatch):
    monkeypatch.setattr(pack_weights, "weights_state", lambda network: pytest.fail("all weights were read"))
    assert "is in bfloat16" in compiled_step(make_network(SMALL, dtype=torch.bfloat16))


def test_a_step_is_not_used_once_its_network_has_hooks():
    network = make_network(SMALL, dtype=torch.float32)
    assert isinstance(compiled_step(network), CompiledStep)
    network.blocks[0].register_forward_hook(lambda *_: None)
    assert "hooks" in compiled_step(network)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_what_pytorch_makes_by_default_decides_nothing(default):
    """The file writes float32, whatever type a program has made PyTorch's default."""
    network = make_network(RICH).float()
    torch.set_default_dtype(default)
    try:
        decoding = generate_ids(network, [[1, 2]], max_tokens=5, seeds=3, compile="yes")
        compiled = torch.cat([step.logits for step in decoding])
    finally:
        torch.set_default_dtype(torch.float32)
    assert compiled.dtype == torch.float32
    assert difference(compiled, ordinary_logits(network, [1, 2], decoding.rows[0].generated)) <= 1e-4
