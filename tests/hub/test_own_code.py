"""Models that no family can represent leave with code of their own: every architecture, by every way in."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from drawing import N_VOCAB, architectures, difference, make_network
from pellucid.generate.decode import generate_ids
from pellucid.generate.sampling import Sampling
from pellucid.hub.own_code import PREFIX, code_config, model_class
from pellucid.model import Transformer
from planted import BASE, TWO_LISTS
from running import any_architectures, call, draw_tokens, source_tokens, with_encoder

CAUSAL = {"attention.mask": "causal"}
#: a next token is predicted
READABLE = {"attention.mask": st.sampled_from(["causal", "prefix"])}


def opened(network: Transformer, **options):
    """The network as transformers has it, made by the written code, in the same precision."""
    kind = model_class(network.architecture)
    model = kind(kind.config_class(**code_config(network.architecture), **options)).eval()
    state = {PREFIX + name: tensor for name, tensor in network.state_dict().items()}
    model.to(next(network.parameters()).dtype).load_state_dict(state)
    return model


def theirs(model, tokens, **given):
    """Logits of their class for the inputs of `running.call`."""
    if model.config.is_encoder_decoder:
        given.setdefault("input_ids", source_tokens(model.config.options, len(tokens)))
        return model(decoder_input_ids=tokens, **given).logits
    return model(tokens, **given).logits


def of_decoder(a, name):
    """What the argument of the tokens that are continued is called."""
    return name if a.encoder is None else f"decoder_{name}"


@settings(max_examples=50)
@given(a=any_architectures())
def test_the_logits_are_those_of_the_network(a):
    tokens = draw_tokens(a)
    given = {"segments": tokens % a.n_segments} if a.n_segments else {}
    named = {of_decoder(a, "token_type_ids"): value for value in given.values()}
    for dtype, allowed in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        network = make_network(a, dtype=dtype)
        with torch.no_grad():
            assert difference(theirs(opened(network), tokens, **named), call(network, tokens, **given)) <= allowed


@settings(max_examples=30)
@given(a=any_architectures(max_ctx=10), data=st.data())
def test_padding_on_the_left_is_not_read(a, data):
    model = opened(make_network(a))
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    rows = [draw_tokens(a, 1, n, seed=n) for n in lengths]
    width = max(lengths) + data.draw(st.integers(0, 2))
    tokens = torch.cat([F.pad(row, (width - row.size(1), 0), value=1) for row in rows])
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    source = {} if a.encoder is None else {"input_ids": source_tokens(a, 1)}
    given = {name: value.expand(len(rows), -1) for name, value in source.items()}
    with torch.no_grad():
        found = theirs(model, tokens, **given, **{of_decoder(a, "attention_mask"): mask})
        for row, logits, n in zip(rows, found, lengths, strict=True):
            assert difference(logits[None, -n:], theirs(model, row, **source)) <= 1e-12


@settings(max_examples=20)
@given(a=architectures(max_ctx=8).map(with_encoder), pad=st.integers(0, 3), side=st.sampled_from(["left", "right"]))
def test_padding_of_a_source_is_not_read(a, pad, side):
    model, tokens = opened(make_network(a)), draw_tokens(a, 1)
    source, real = source_tokens(a, 1), torch.ones(1, 3, dtype=torch.long)
    given = {"left": (pad, 0), "right": (0, pad)}[side]
    padded, mask = (F.pad(x, given) for x in (source, real))
    with torch.no_grad():
        found = theirs(model, tokens, input_ids=padded, attention_mask=mask)
        assert difference(found, theirs(model, tokens, input_ids=source)) <= 1e-12


@settings(max_examples=30)
@given(a=any_architectures(READABLE | {"n_layers": st.integers(0, 2)}, max_ctx=10), cut=st.integers(1, 3))
def test_a_cache_changes_nothing(a, cut):
    """The tokens read in two calls, a row of them padded, give the logits of one call."""
    model, tokens = opened(make_network(a)), draw_tokens(a, 2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    ids, padding = of_decoder(a, "input_ids"), of_decoder(a, "attention_mask")
    source = {} if a.encoder is None else {"input_ids": source_tokens(a, 2)}
    with torch.no_grad():
        whole = model(**{ids: tokens, padding: mask}, **source).logits
        first = model(**{ids: tokens[:, :cut], padding: mask[:, :cut]}, **source, use_cache=True)
        then = model(**{ids: tokens[:, cut:], padding: mask}, **source, past_key_values=first.past_key_values)
    parts = torch.cat([first.logits, then.logits], 1)
    assert difference(parts[0], whole[0]) <= 1e-12
    assert difference(parts[1, 1:], whole[1, 1:]) <= 1e-12


def generated(model, tokens, n, **given):
    """The ids that their greedy `generate` writes behind these, and the logits of each [row, step, n_vocab]."""
    kept = {"max_new_tokens": n, "do_sample": False, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None}
    if model.config.is_encoder_decoder:
        kept |= {"decoder_start_token_id": int(tokens[0, 0])}
        given.setdefault("input_ids", source_tokens(model.config.options, len(tokens)))
    given |= {of_decoder(model.config.options, "input_ids"): tokens}
    # unless told, generate takes every id that is also the padding's for padding
    given.setdefault(of_decoder(model.config.options, "attention_mask"), torch.ones_like(tokens))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the context is exceeded
        out = model.generate(**kept, **given, output_logits=True, return_dict_in_generate=True)
    return out.sequences[:, -n:].tolist(), torch.stack(out.logits, 1)


def our_generated(network, prompts, n):
    """The same by Pellucid."""
    a = network.architecture
    sources = None if a.encoder is None else source_tokens(a, len(prompts)).tolist()
    decoding = generate_ids(network, prompts, sampling=Sampling(temperature=0), max_tokens=n, sources=sources)
    logits = torch.stack([step.logits for step in decoding], 1)
    return [row.generated for row in decoding.rows], logits


def same(written, expected):
    """Equal ids, and logits as close as the float32 in which `generate` keeps them.

    Each row is compared up to its first tie: capped logits may be so near to each other that float32 makes them equal,
    and which of them is the likeliest is then nobody's fault.
    """
    for ids, logits, expected_ids, expected_logits in zip(*written, *expected, strict=True):
        top = expected_logits.double().topk(2, dim=-1).values
        ties = (top[:, 0] - top[:, 1] < 1e-6).nonzero().flatten().tolist()
        n = ties[0] if ties else len(expected_ids)
        assert ids[:n] == expected_ids[:n]
        # the logits of the step with the tie still have the same tokens behind them
        assert difference(logits[: n + 1].double(), expected_logits[: n + 1].double()) <= 1e-6


@settings(max_examples=25)
@given(a=any_architectures(READABLE, max_ctx=8), n_prompt=st.integers(1, 11), batch=st.integers(1, 2))
def test_generate_writes_what_pellucid_writes_far_beyond_the_context(a, n_prompt, batch):
    network, n = make_network(a), 2 * a.n_ctx + 3
    model, tokens = opened(network), draw_tokens(a, batch, n_prompt)
    tokens[:, 0] = 1  # a target begins with its start
    expected = our_generated(network, tokens.tolist(), n)
    same(generated(model, tokens, n), expected)
    same(generated(model, tokens, n, use_cache=False), expected)


@pytest.mark.parametrize("cache", [True, False])
def test_rows_that_cross_the_border_of_longrope_are_read_again(cache):
    a = BASE.with_fields(TWO_LISTS)
    network, lengths = make_network(a), (3, 8, 12)
    rows = [draw_tokens(a, 1, length, seed=length) for length in lengths]
    tokens = torch.cat([F.pad(row, (12 - row.size(1), 0)) for row in rows])
    mask = torch.tensor([[0] * (12 - length) + [1] * length for length in lengths])
    ids, logits = generated(opened(network), tokens, 20, attention_mask=mask, use_cache=cache)
    for i, row in enumerate(rows):
        same(([ids[i]], logits[i : i + 1]), our_generated(network, row.tolist(), 20))


@settings(max_examples=20)
@given(
    a=architectures(READABLE, max_ctx=8),
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    cache=st.booleans(),
)
def test_a_padded_batch_is_its_rows_one_by_one(a, lengths, cache):
    network, n = make_network(a), a.n_ctx + 3
    rows = [draw_tokens(a, 1, length, seed=length) for length in lengths]
    tokens = torch.cat([F.pad(row, (max(lengths) - row.size(1), 0)) for row in rows])
    mask = torch.tensor([[0] * (max(lengths) - length) + [1] * length for length in lengths])
    ids, logits = generated(opened(network), tokens, n, attention_mask=mask, use_cache=cache)
    for i, row in enumerate(rows):
        same(([ids[i]], logits[i : i + 1]), our_generated(network, row.tolist(), n))


@settings(max_examples=15)
@given(a=any_architectures(READABLE, max_ctx=12), n_prompt=st.integers(1, 3))
def test_beams_take_their_cache_with_them(a, n_prompt):
    model, tokens = opened(make_network(a)), draw_tokens(a, 2, n_prompt)
    tokens[:, 0] = 1
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": 3}
    given = {of_decoder(a, "input_ids"): tokens}
    if a.encoder is not None:
        given |= {"input_ids": source_tokens(a, 2)}
        options |= {"decoder_start_token_id": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cached, recomputed = (model.generate(**given, **options, use_cache=use).tolist() for use in (True, False))
    assert cached == recomputed


@settings(max_examples=10)
@given(a=architectures(CAUSAL | {"n_ctx": 14}), n_prompt=st.integers(2, 6))
def test_guessed_tokens_that_are_wrong_leave_the_cache(a, n_prompt):
    """Speculation by what stood in the prompt crops keys and tokens together; beyond the context it is refused."""
    model, tokens = opened(make_network(a)), draw_tokens(a, 1, n_prompt).repeat(1, 2)[:, : n_prompt + 1]
    ends = {"pad_token_id": 0, "eos_token_id": N_VOCAB}  # an id that never comes
    given = {"attention_mask": torch.ones_like(tokens), "do_sample": False, **ends}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, guessed = (
            model.generate(tokens, **given, max_new_tokens=11 - tokens.size(1), **more)
            for more in ({}, {"prompt_lookup_num_tokens": 3})
        )
        assert guessed.tolist() == plain.tolist()
        with pytest.raises(ValueError, match="guessed ahead beyond the context of 14"):
            model.generate(tokens.repeat(1, 8), max_new_tokens=4, prompt_lookup_num_tokens=3, **ends)
