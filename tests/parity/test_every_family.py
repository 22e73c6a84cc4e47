"""Every family of the tables is one function with transformers' model of it, over the options of its configuration.

transformers keeps some of its arithmetic in float32 whatever the precision of the weights: rotary tables, the
mean square of Llama's norms, the softmax of eager attention. So two comparisons: with every float32 in their
code read as float64 the logits agree to 1e-12, and as it is published to `PUBLISHED`.
"""

import json

import pytest
import torch
from random_models import CASES, MASKED, PADDING_UNPLACED, PAIRS, TINY, in_float64, marked, model_of_theirs
from theirs import as_ours, both, draw, farthest, logits_of, our_logits

from pellucid.hub import FAMILIES, architecture_of, config_of, to_ours, to_theirs
from pellucid.hub.families import present_names
from pellucid.model import Cache, Transformer
from pellucid.model.weights import load_state, state_of

#: BLOOM's own gelu writes sqrt(2/pi) with eight digits
TOLERANCE = dict.fromkeys(TINY, 1e-12) | {"bloom": 1e-8}
#: float32 keeps 2^-24 = 6e-8 of a number of size 1; the logits are of size 10, some layers on
PUBLISHED = 5e-5


def tokens_of(a, name, n=None):
    """Random tokens; RoBERTa counts its padding token as no position."""
    tokens = draw(a, n=n)
    return tokens.masked_fill(tokens == 1, 2) if name in PADDING_UNPLACED else tokens


def test_every_family_is_compared():
    assert set(TINY) == set(FAMILIES)


@pytest.mark.item("S0-ref", "S0-4.1-c", "S1-1.1-l", "S1-1.1.1.1-a", "X-GPT2", "X-NEOX")
@pytest.mark.parametrize(("name", "variant"), marked(CASES))
def test_logits(name, variant):
    with in_float64():
        model, config = model_of_theirs(name, variant)
        network, _ = as_ours(model, config)
        for n in (1, 5, 9):
            tokens = tokens_of(network.architecture, name, n)
            expected = logits_of(model, tokens)
            for logits in both(network, tokens).values():
                assert farthest(logits, expected) <= TOLERANCE[name]


@pytest.mark.parametrize("name", TINY)
def test_logits_as_published(name):
    model, config = model_of_theirs(name, next(iter(TINY[name][2])))
    network, _ = as_ours(model, config)
    tokens = tokens_of(network.architecture, name)
    assert farthest(our_logits(network, tokens), logits_of(model, tokens)) <= PUBLISHED


@pytest.mark.parametrize(("name", "variant"), marked([case for case in CASES if case[0] not in (*MASKED, *PAIRS)]))
def test_cached_decoding(name, variant):
    """Token by token with our cache what theirs gives with theirs; GPT-1 of transformers has none, and without layers
    theirs does not know how long it is.
    """
    with in_float64():
        model, config = model_of_theirs(name, variant)
        network, _ = as_ours(model, config)
        a = network.architecture
        tokens, cache, past = tokens_of(a, name), Cache(a, 3, dtype=torch.float64), None
        for at in (slice(0, 4), slice(4, 5), slice(5, 6), slice(6, 9)):
            with torch.no_grad():
                ours = network(tokens[:, at], cache=cache)
                if name == "openai-gpt" or a.n_layers == 0:
                    expected = model(tokens[:, : at.stop]).logits[:, at]
                else:
                    read = model(tokens[:, at], past_key_values=past, use_cache=True)
                    expected, past = read.logits, read.past_key_values
            assert farthest(ours, expected) <= TOLERANCE[name]


@pytest.mark.parametrize("name", [name for name in TINY if name not in (*MASKED, *PAIRS, "openai-gpt")])
def test_padding_on_the_left(name):
    """Their attention_mask, and positions where they take them, are our mask and positions."""
    with in_float64():
        model, config = model_of_theirs(name, "tied")
        network, _ = as_ours(model, config)
        a = network.architecture
        tokens = tokens_of(a, name)
        kept = torch.arange(a.n_ctx) >= torch.tensor([0, 2, 5])[:, None]
        positions = (kept.cumsum(-1) - 1).clamp(min=0)
        given = {} if name in ("bloom", "mpt", "opt") else {"position_ids": positions}
        expected = logits_of(model, tokens, attention_mask=kept.long(), **given)
        mask = kept[:, None, :] & torch.ones(a.n_ctx, a.n_ctx, dtype=torch.bool).tril()
        for logits in both(network, tokens, mask=mask, positions=positions).values():
            assert farthest(logits[kept], expected[kept]) <= TOLERANCE[name]


@pytest.mark.parametrize("name", MASKED)
def test_padding_on_the_right(name):
    with in_float64():
        model, config = model_of_theirs(name, "tied")
        network, _ = as_ours(model, config)
        a = network.architecture
        tokens = tokens_of(a, name)
        kept = torch.arange(a.n_ctx) < torch.tensor([9, 6, 1])[:, None]
        expected = logits_of(model, tokens, attention_mask=kept.long())
        mask = kept[:, None, :].expand(-1, a.n_ctx, -1)
        for logits in both(network, tokens, mask=mask).values():
            assert farthest(logits[kept], expected[kept]) <= TOLERANCE[name]


@pytest.mark.parametrize(("name", "variant"), marked(CASES))
def test_there_and_back_bit_for_bit(name, variant):
    """Theirs to ours to theirs, and again to ours; positions that nothing reads come back as zeros."""
    model, config = model_of_theirs(name, variant)
    family = FAMILIES[name]
    state = model.state_dict()
    if family.stacked or family.renames or family.ignored:
        present = present_names(state, family, set())  # under the names of files
        heads = {name: enumerate(tensor) if "{h}" in name else [("", tensor)] for name, tensor in present.items()}
        state = {name.replace("{h}", str(h)): part for name, parts in heads.items() for h, part in parts}
    a = architecture_of(config)
    ours = to_ours(state, config)
    back = to_theirs(ours, a, family)
    tied = {row.theirs + ".weight" for row in family.rows if row.ours == "unembed"} if a.unembed == "tied" else set()
    tied |= family.optional_tied.keys() if a.source_embed == "shared" else set()
    assert set(state) - set(back) <= tied
    assert set(back) <= set(state)
    # untied, a repeated bias is a tensor that nothing reads
    repeated = family.tied if a.unembed == "untied" else {}
    unread = {row.theirs + ".weight": row.position_offset for row in family.rows}
    for key, tensor in back.items():
        if key in repeated:
            continue
        before = unread.get(key, 0)
        assert torch.equal(tensor[before:], state[key][before:]), key
        assert not tensor[:before].any()
    written = json.loads(json.dumps(config_of(a, family)))
    assert architecture_of(written) == architecture_of(config_of(architecture_of(written), family))
    again = to_ours(back, written)
    assert all(torch.equal(ours[key], again[key]) for key in ours)
    one, other = Transformer(a).double().eval(), Transformer(architecture_of(written)).double().eval()
    load_state(one, ours)
    load_state(other, again)
    tokens = draw(a)
    assert torch.equal(our_logits(one, tokens), our_logits(other, tokens))
    assert state_of(one).keys() == ours.keys()
