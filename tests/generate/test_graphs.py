"""The step that can be recorded computes what the ordinary one does, on whichever device."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.generate import Sampling, decode, generate_ids
from pellucid.generate.cuda_graphs import GraphedReader, has_fixed_shapes
from pellucid.model import Transformer

SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2)


def written(network: Transformer, prompts: list[list[int]], devices: frozenset[str]):
    """Rows, and the logits of every step, with steps recordable on these devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "RECORDED", devices)
        options = {"max_tokens": 12, "sampling": Sampling(temperature=0), "stop_ids": [3]}
        decoding = generate_ids(network, prompts, **options)
        steps = list(decoding)
    return decoding, [step.logits for step in steps]


def agree(network: Transformer, prompts: list[list[int]], device: str, tolerance: float) -> None:
    found, logits = written(network, prompts, frozenset({device}))
    plain, expected = written(network, prompts, frozenset())
    assert isinstance(found.reader, GraphedReader)
    assert [row.generated for row in found.rows] == [row.generated for row in plain.rows]
    assert all(difference(x, y) <= tolerance for x, y in zip(logits, expected, strict=True))


@settings(max_examples=15, deadline=None)
@given(
    architectures({"attention.mask": st.just("causal")}, max_ctx=8), st.lists(st.integers(1, 6), min_size=1, max_size=3)
)
def test_a_recordable_step_is_the_ordinary_one(a, lengths):
    """In batches of different lengths, rows ending before others, beyond the context."""
    network = make_network(a)
    prompts = [[(3 * n + i) % 11 for i in range(n)] for n in lengths]
    if has_fixed_shapes(network):
        agree(network, prompts, "cpu", 1e-10)
    else:
        assert not isinstance(written(network, prompts, frozenset({"cpu"}))[0].reader, GraphedReader)


def test_plain_networks_are_recordable():
    agree(make_network(SMALL), [[1, 2, 4], [5]], "cpu", 1e-10)
    assert not has_fixed_shapes(make_network(Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2, ngrams=(2,))))


@pytest.mark.gpu
def test_a_recorded_step_is_the_ordinary_one():
    agree(make_network(SMALL).to("cuda"), [[1, 2, 4], [5]], "cuda", 1e-9)
