"""The compiled step of a single text computes what the ordinary step does, and is used where it can be and pays."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import MLP, Architecture, Attention, Positions
from pellucid.generate import GenerationError, Sampling, choose_step, generate, generate_ids
from pellucid.generate.choose_step import step_for, why_eager
from pellucid.generate.compiled_step import CompiledReader, CompiledStep, NextTokenStep, file_of_step
from pellucid.generate.pack_weights import pack_network
from pellucid.model import Transformer
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

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


def not_compiled(network: Transformer) -> CompiledStep:
    """The step's operations one by one, in place of the machine code."""
    step, n_layers = NextTokenStep(network), network.architecture.n_layers
    return CompiledStep(lambda inputs: [step(inputs[0], inputs[1 : n_layers + 1], inputs[n_layers + 1 :])])


def agree(network: Transformer, step: CompiledStep, prompt: list[int], temperature: float, tolerance: float) -> None:
    options = {"max_tokens": 20, "sampling": Sampling(temperature=temperature), "seeds": 3}
    plain, compiled = (generate_ids(network, [prompt], **options, step=s) for s in (None, step))
    assert isinstance(compiled.reader, CompiledReader)
    expected, steps = list(plain), list(compiled)
    assert compiled.rows[0].generated == plain.rows[0].generated
    assert all(difference(x.logits, y.logits) <= tolerance for x, y in zip(steps, expected, strict=True))


@settings(max_examples=20)
@given(architectures(max_ctx=8), st.integers(1, 10), st.sampled_from([0.0, 0.7]))
def test_the_operations_of_a_step_are_the_ordinary_ones(a, n_prompt, temperature):
    """For every architecture that is compiled, beyond the context, greedily and by seed."""
    network = make_network(a)
    if a.attention.mask != "bidirectional" and not a.mlp.experts:
        agree(network, not_compiled(network), [i % 11 for i in range(n_prompt)], temperature, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("a", [SMALL, RICH], ids=["small", "rich"])
def test_the_machine_code_computes_the_same(a, tmp_path, monkeypatch):
    """One file for all lengths of text and cache, found again, which reads the network's present weights."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    network = make_network(a, dtype=torch.float32)
    step, said = step_for(network, "yes", 1)
    assert said.startswith("compiled: yes (in ")
    for n_prompt, temperature in ((1, 0.0), (3, 0.7), (10, 0.0)):
        agree(network, step, [i % 11 for i in range(n_prompt)], temperature, 2e-5)
    assert step_for(network, "auto", 1) == (step, "compiled: yes (loaded before)")

    again = make_network(a, seed=1, dtype=torch.float32)
    monkeypatch.setattr(choose_step, "compile_step", None)  # another network of this architecture has it on disk
    step, said = step_for(again, "auto", 1_000_000)
    assert said.startswith("compiled: yes (found on disk")
    agree(again, step, [1, 2], 0.0, 2e-5)
    with torch.no_grad():
        again.blocks[0].mlp.down.weight.mul_(-1)
    agree(again, step, [1, 2], 0.0, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_packed_weights_are_read_by_machine_code(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    a = dataclasses.replace(SMALL, d_model=64, n_ctx=32)
    packed = pack_network(make_network(a, dtype=torch.float32), weights).network
    agree(packed, step_for(packed, "yes", 1)[0], [1, 2, 3], 0.0, 2e-5)


@pytest.fixture
def unused(monkeypatch):
    """Fails where something is compiled or loaded."""

    def refuse(*_):
        raise AssertionError("nothing is to be compiled here")

    monkeypatch.setattr(choose_step, "compile_step", refuse)
    monkeypatch.setattr(choose_step, "load_step", refuse)
    monkeypatch.setattr(choose_step, "can_compile", lambda device: True)


def test_short_texts_are_not_worth_compiling(unused):
    network = make_network(SMALL, dtype=torch.float32)
    assert step_for(network, "auto", 10) == (None, "compiled: no (10 tokens are too few)")
    assert step_for(network, "no", 10**9) == (None, "compiled: no")


def test_what_is_not_on_disk_is_compiled_where_it_pays(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    network, compiled = make_network(SMALL, dtype=torch.float32), []
    monkeypatch.setattr(choose_step, "can_compile", lambda device: True)
    monkeypatch.setattr(choose_step, "compile_step", lambda network, path: compiled.append(path))
    monkeypatch.setattr(choose_step, "load_step", lambda network, path: not_compiled(network))
    step, said = step_for(network, "auto", 10_000)
    assert step is None
    assert said.startswith("compiled: no (saves about ")
    step, said = step_for(network, "auto", 10_000_000)
    assert step is not None
    assert said.startswith("compiled: yes")
    assert compiled == [file_of_step(network)]
    assert file_of_step(make_network(RICH, dtype=torch.float32)) not in compiled


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n": 2}, "2 are generated together"),
        ({"beams": 2}, "beams = 2"),
        ({"speculate": 4}, "speculate = 4"),
        ({"cache": False}, "there is no cache"),
    ],
)
def test_options_that_need_ordinary_steps_are_named(options, named, unused):
    network, tokenizer = make_network(dataclasses.replace(SMALL, n_vocab=20)), learn_tokenizer("char", ["abc"])
    said = []
    assert generate(network, tokenizer, "a", max_tokens=2, report=said.append, **options)
    assert named in said[1]
    with pytest.raises(GenerationError, match=rf"compile = yes: .* {named}"):
        generate(network, tokenizer, "a", compile="yes", **options)


def test_a_wrong_word_is_refused(unused):
    with pytest.raises(GenerationError, match="compile = 'maybe': choose one of auto, no, yes"):
        step_for(make_network(SMALL), "maybe", 10)


def test_networks_that_cannot_be_compiled_are_named():
    experts, reads_another = (dataclasses.replace(SMALL, mlp=MLP(experts=3)), dataclasses.replace(SMALL, encoder=SMALL))
    assert "mixture of experts" in why_eager(make_network(experts, dtype=torch.float32))
    assert "an encoder's output" in why_eager(make_network(reads_another, dtype=torch.float32))
    assert "is in bfloat16" in why_eager(make_network(SMALL, dtype=torch.bfloat16))
    assert "is in float64" in why_eager(make_network(SMALL))
    assert "another format" in why_eager(pack_network(make_network(SMALL, dtype=torch.float32), "bfloat16").network)
    with pytest.raises(GenerationError, match=r"compile = yes: .* mixture of experts"):
        step_for(make_network(experts, dtype=torch.float32), "yes", 10)
