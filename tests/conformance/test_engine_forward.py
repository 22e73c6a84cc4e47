"""The engine in float64 computes the reference's function: every named tensor, over every word."""

import itertools

import numpy as np
import pytest
import torch
from companions import BASE, COMPANIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from drawing import WORDS_WITH_LOGITS, architectures, bodies, make_network
from pellucid.architecture import field_options
from pellucid.model import Recorder
from pellucid.model.embed import ReadoutError
from pellucid.model.weights import state_of
from pellucid.reference import transformer as reference
from pellucid.reference.functions import softmax
from pellucid.reference.learning import next_token_loss
from pellucid.reference.tap import TensorRecorder
from pellucid.tensor_names import ROWS, axes, names, row
from running import any_architectures, call, draw_tokens, source_tokens, with_encoder

TOLERANCE = 1e-10


def arrays(reading):
    return {name: value.numpy() for name, value in reading.items()}


def numpy_weights(network):
    return {name: p.numpy() for name, p in state_of(network).items()}


def check_same(name, given, expected):
    """-inf at the same entries, everything else within the tolerance of max(1, largest entry)."""
    given = given.numpy()
    assert given.shape == expected.shape, name
    assert np.array_equal(np.isneginf(given), np.isneginf(expected)), name
    given, expected = (np.where(np.isneginf(x), 0, x) for x in (given, expected))
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(given - expected).max(initial=0) <= TOLERANCE * scale, name


def check_forward(a, tokens, seed=0, **reading):
    """Every tensor of names(a), from one run of each."""
    network, recorder, tap = make_network(a, seed), Recorder(names(a)), TensorRecorder()
    weights = numpy_weights(network)
    logits = call(network, tokens, tap=recorder, **reading).detach()
    given = arrays(reading)
    if a.encoder is not None and "source" not in reading:
        given["source"] = reference.encode(a, weights, source_tokens(a, tokens.size(0)).numpy(), tap=tap)
    forward = reference.hidden if a.readout == "none" else reference.forward
    expected = forward(a, weights, tokens.numpy(), tap=tap, **given)
    check_same("returned logits", logits, expected)
    for name in names(a):
        if "source" in reading and name.startswith("encoder."):
            continue  # what it would have computed was given
        assert recorder.values[name].ndim == len(axes(name)), name
        check_same(name, recorder.values[name], tap.values[name])
    return recorder.values, tap.values


@pytest.mark.item("S0-3.3-a", "S1-1.1-a", "S1-1.1-l", "S2-1-a", "S2-2-a", "S4-encdec-a")
@settings(max_examples=40)
@given(any_architectures(), st.integers(1, 3), st.integers(0, 3))
def test_every_named_tensor_is_the_reference_s(a, batch, seed):
    n = 1 + seed % a.n_ctx
    check_forward(a, draw_tokens(a, batch, max(n, 3), seed), seed)


@pytest.mark.item("S0-0-d", "S3-12-b")
@settings(max_examples=40)
@given(any_architectures(), st.data())
def test_masks_positions_segments_and_embeddings_given(a, data):
    batch, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, a.n_ctx))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    reading = {}
    if data.draw(st.booleans()):
        # rows that may read nothing are among them
        reading["mask"] = torch.rand((*data.draw(st.sampled_from([(), (batch,)])), n, n), generator=random) < 0.6
    if data.draw(st.booleans()):
        shape = data.draw(st.sampled_from([(n,), (batch, n)]))
        reading["positions"] = torch.randint(0, a.n_ctx, shape, generator=random)
    if a.n_segments and data.draw(st.booleans()):
        reading["segments"] = torch.randint(0, a.n_segments, (batch, n), generator=random)
    if data.draw(st.booleans()):
        reading["embeddings"] = torch.randn(batch, n, a.embed_width, generator=random, dtype=torch.float64)
    if a.encoder is not None and data.draw(st.booleans()):
        reading["source"] = torch.randn(batch, 2, a.d_model, generator=random, dtype=torch.float64)
        reading["source_mask"] = torch.rand(batch, n, 2, generator=random) < 0.6
    check_forward(a, draw_tokens(a, batch, n), **reading)


def word_cases():
    return [pytest.param(field, word, id=f"{field}={word}") for field, options in field_options() for word in options]


@pytest.mark.item("S0-1.2-h", "S1-1.1-l", "S3-9-b")
@pytest.mark.parametrize(("field", "word"), word_cases())
def test_every_word_has_a_reference(field, word):
    a = BASE.with_fields(COMPANIONS.get(field, {}) | {field: word})
    check_forward(a, draw_tokens(a, 2, 6), segments=draw_tokens(a, 2, 6, seed=1) % 2)
    if a.block in ("pre", "post"):
        check_forward(with_encoder(a), draw_tokens(a, 2, 6))


@pytest.mark.parametrize(("field", "options"), [pytest.param(*w, id=w[0]) for w in WORDS_WITH_LOGITS])
def test_no_two_words_of_a_field_are_the_same_function(field, options):
    found = {}
    for word in options:
        a = BASE.with_fields(COMPANIONS.get(field, {}) | {field: word})
        a = with_encoder(a) if field == "source_embed" else a
        found[word] = call(make_network(a), draw_tokens(a, 2, 6)).detach()
    for one, other in itertools.combinations(options, 2):
        # a prefix of no length is causal: the two words differ in what they may be given, and what a cache may keep
        if {one, other} != {"causal", "prefix"}:
            assert not torch.allclose(found[one], found[other], atol=1e-6), f"{one} and {other}"


def test_every_row_of_the_table_is_computed_by_both():
    variants = [
        BASE.with_fields({"embed_norm": "norm", "mlp.form": "gated"}),
        BASE.with_fields({"positions.kind": "rotary"}),
        BASE.with_fields({"block": "sandwich", "d_embed": 6, "embed_projection": "sum"}),
        BASE.with_fields({"mlp.n_hidden": 2, "ngrams": (2, 3), "ngram_rows": 7}),
        with_encoder(BASE),
        BASE.with_fields({"mlp.form": "gated", "mlp.experts": 3, "mlp.shared_d_ff": 4}),
    ]
    seen = set()
    for a in variants:
        ours, theirs = check_forward(a, draw_tokens(a, 2, 6))
        seen |= {row(name).name for name in ours.keys() & theirs.keys()}
    # what follows from the logits belongs to no network: see test_probabilities_and_loss
    assert seen == ROWS.keys() - {"probs", "loss"}


@pytest.mark.item("S0-4.3-c", "S1-1.1-i", "S4-ml-b")
@settings(max_examples=20)
@given(architectures(max_ctx=6))
def test_probabilities_and_loss(a):
    network, tokens = make_network(a), draw_tokens(a, 2, 4)
    theirs = reference.forward(a, numpy_weights(network), tokens.numpy())
    logits = network(tokens).detach()
    check_same("probs", logits.softmax(-1), softmax(theirs))
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    check_same("loss", loss, np.asarray(next_token_loss(theirs, tokens.numpy())))


@settings(max_examples=20)
@given(bodies())
def test_a_body_without_readout(a):
    """The stream is the result of both, every tensor on the way is the reference's, and neither has logits."""
    check_forward(a, draw_tokens(a, 2, 4))
    network = make_network(a)
    with pytest.raises(ReadoutError, match="readout = none"):
        network(draw_tokens(a))
    with pytest.raises(ValueError, match="readout = none"):
        reference.forward(a, numpy_weights(network), draw_tokens(a).numpy())


@settings(max_examples=20)
@given(architectures(fixed={"readout": "bert"}, max_ctx=6))
def test_the_bert_readout(a):
    check_forward(a, draw_tokens(a, 2, 4))
