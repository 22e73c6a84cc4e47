"""The step that can be recorded computes what the ordinary one does, on whichever device."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.generate import Sampling, decode, generate_ids
from pellucid.generate.cuda_graphs import GraphedReader, has_fixed_shapes
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import CachedReader, TapFactory
from pellucid.model import Transformer

SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)


@pytest.fixture
def recordable_on_cpu(monkeypatch):
    """Steps are taken as they are recorded, without recording them."""
    monkeypatch.setattr(decode, "RECORDED", frozenset({"cpu"}))


def generated(network: Transformer, prompts: list[list[int]], **options):
    """Rows, and the logits of every step."""
    decoding = generate_ids(network, prompts, max_tokens=12, sampling=Sampling(temperature=0), stop_ids=[3], **options)
    return decoding, [step.logits for step in decoding]


def agree(network: Transformer, prompts: list[list[int]], tolerance: float) -> None:
    found, logits = generated(network, prompts, cuda_graphs=True)
    plain, expected = generated(network, prompts)
    assert isinstance(found.reader, GraphedReader)
    assert type(plain.reader) is CachedReader
    assert [row.generated for row in found.rows] == [row.generated for row in plain.rows]
    assert all(difference(x, y) <= tolerance for x, y in zip(logits, expected, strict=True))


@pytest.mark.usefixtures("recordable_on_cpu")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    architectures({"attention.mask": st.just("causal")}, max_ctx=8), st.lists(st.integers(1, 6), min_size=1, max_size=3)
)
def test_a_recordable_step_is_the_ordinary_one(a, lengths):
    """In batches of different lengths, rows ending before others, beyond the context."""
    network = make_network(a)
    prompts = [[(3 * n + i) % 11 for i in range(n)] for n in lengths]
    if has_fixed_shapes(network):
        agree(network, prompts, 1e-10)
    else:
        with pytest.raises(GenerationError, match="encoder, experts, n-grams, or masks"):
            generated(network, prompts, cuda_graphs=True)


@pytest.mark.usefixtures("recordable_on_cpu")
def test_plain_networks_are_recordable():
    agree(make_network(SMALL), [[1, 2, 4], [5]], 1e-10)
    assert not has_fixed_shapes(make_network(Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2, ngrams=(2,))))
    mixture = SMALL.with_fields({"mlp.experts": 2, "mlp.experts_per_token": 1})  # reads how many tokens each expert has
    assert not has_fixed_shapes(make_network(mixture))


@pytest.mark.gpu
def test_a_recorded_step_is_the_ordinary_one():
    agree(make_network(SMALL).to("cuda"), [[1, 2, 4], [5]], 1e-9)


@pytest.mark.gpu
def test_a_step_is_recorded_on_the_device_of_the_network():
    """Which is not the current one, where there are two."""
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    agree(make_network(SMALL).to(last), [[1, 2, 4], [5]], 1e-9)


def test_a_network_on_the_cpu_is_refused():
    with pytest.raises(GenerationError, match="the network is on cpu: it must be on a GPU"):
        generated(make_network(SMALL), [[1]], cuda_graphs=True)


@pytest.mark.usefixtures("recordable_on_cpu")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cache": False}, "needs the cache"),
        ({"speculate": 3}, "speculate = 3 reads several tokens"),
        ({"taps": TapFactory()}, "taps and edits need each operation"),
    ],
)
def test_what_reads_otherwise_than_one_token_at_a_time_is_refused(options, why):
    with pytest.raises(GenerationError, match=why):
        generated(make_network(SMALL), [[1]], cuda_graphs=True, **options)
