"""The drawn architectures reach every word, and the drawn networks hide no parameter."""

import torch
from hypothesis import Phase, given, settings

from drawing import WORDS_WITH_LOGITS, architectures, make_network


def test_every_word_is_drawn():
    seen = set()

    @settings(max_examples=240, database=None, phases=[Phase.generate])
    @given(architectures())
    def look(a):
        assert a.encoder is None
        for name, _ in WORDS_WITH_LOGITS:
            part, _, last = name.rpartition(".")
            seen.add((name, getattr(getattr(a, part) if part else a, last)))

    look()
    assert seen == {(name, word) for name, options in WORDS_WITH_LOGITS for word in options}


@settings(max_examples=30)
@given(architectures())
def test_no_parameter_is_one_or_nothing_and_the_logits_are_numbers(a):
    network = make_network(a)
    segments = torch.tensor([[0, 1, 0, 1]]) if a.n_segments else None
    logits = network(torch.tensor([[1, 4, 2, 2]]), segments=segments)
    assert logits.isfinite().all()
    assert logits.abs().max() < 1e3
    assert all((p != 0).all() and (p != 1).all() for p in network.parameters())
