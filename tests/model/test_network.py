"""Attention, masks, positions, tables and dropout of the network."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture, Positions
from pellucid.model import Cache, Recorder, Transformer, kernels
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.mask import Mask, documents_mask, padding_mask, prefix_mask
from pellucid.model.positions import SCALING, Rotary
from pellucid.model.tables import Table
from pellucid.option_values import ArchitectureError
from pellucid.reference.transformer import forward
from pellucid.tensor_names import names
from running import any_architectures, call, draw_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"n_heads": 2})
ONE = A.with_fields({"n_layers": 1})


def with_explicit_attention(network):
    """The same network with every pattern written down."""
    twin = copy.deepcopy(network)
    choose_attention_kernel(twin, "explicit")
    return twin


# Attention ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(any_architectures(), st.data())
def test_explicit_attention_is_fused_attention(a, data):
    network, n = make_network(a), data.draw(st.integers(1, a.n_ctx))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    shape = data.draw(st.sampled_from([None, (n, n), (2, n, n)]))
    reading = {} if shape is None else {"mask": torch.rand(shape, generator=random) < 0.5}
    tokens = draw_tokens(a, 2, n)
    assert (
        difference(call(with_explicit_attention(network), tokens, **reading), call(network, tokens, **reading).detach())
        <= 1e-12
    )


@torch.no_grad()
@settings(max_examples=20)
@given(architectures({"attention.mask": st.sampled_from(["causal", "prefix"])}), st.data())
def test_explicit_attention_is_fused_attention_with_a_cache(a, data):
    network, tokens, first = make_network(a), draw_tokens(a, 2, a.n_ctx), data.draw(st.integers(1, a.n_ctx - 1))
    found = []
    for twin in (network, with_explicit_attention(network)):
        cache = Cache(a, 2, dtype=torch.float64)
        twin(tokens[:, :first], cache=cache)
        found.append(twin(tokens[:, first:], cache=cache))
    assert difference(*found) <= 1e-12


#: query heads that share keys and values, of a width that a GPU's fused kernels read
GROUPED = A.with_fields({"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "attention.d_head": 16})


def test_on_cuda_shared_keys_are_repeated_where_no_fused_kernel_reads_them(monkeypatch):
    """PyTorch would write A down for a mask, for float32, and on GPUs before Ampere."""
    kinds = [(dtype, is_masked) for dtype in (torch.bfloat16, torch.float32) for is_masked in (False, True)]
    cuda = torch.device("cuda")
    for major, fuses in ((9, True), (8, True), (7, False)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, major=major: SimpleNamespace(major=major))
        assert [kernels.fuses_groups(cuda, *kind) for kind in kinds] == [fuses, False, False, False]
    assert all(kernels.fuses_groups(torch.device("cpu"), *kind) for kind in kinds)
    network, tokens = make_network(GROUPED), draw_tokens(GROUPED, 2, 8)
    visible = torch.rand((8, 8), generator=torch.Generator().manual_seed(0)) < 0.5
    asked, real = [], kernels.F.scaled_dot_product_attention

    def heard(*given, **options):
        asked.append(options["enable_gqa"])
        return real(*given, **options)

    monkeypatch.setattr(kernels.F, "scaled_dot_product_attention", heard)
    found = []
    for fuses in (True, False):
        monkeypatch.setattr(kernels, "fuses_groups", lambda *given, fuses=fuses: fuses)
        found += [network(tokens, mask=visible), network(tokens)]
    assert asked == [True] * 4 + [False] * 4
    assert difference(found[0], found[2]) <= 1e-12
    assert difference(found[1], found[3]) <= 1e-12


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_shared_keys_are_read_alike_by_every_kernel_of_a_gpu(dtype, tolerance, is_masked):
    network, tokens = make_network(GROUPED, dtype=dtype).to("cuda"), draw_tokens(GROUPED, 2, 8).to("cuda")
    visible = (torch.rand((2, 8, 8), generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(8, dtype=torch.bool)
    reading = {"mask": visible.to("cuda")} if is_masked else {}
    found = [call(twin, tokens, **reading).detach() for twin in (network, with_explicit_attention(network))]
    assert difference(*found) <= tolerance


def test_a_copy_of_a_network_has_kernels_of_its_own():
    network = make_network(A)
    twin = with_explicit_attention(network)
    for block, other in zip(network.blocks, twin.blocks, strict=True):
        assert block.attn.kernel is block.attn.fused
        assert other.attn.kernel is other.attn.explicit
        assert other.attn.explicit is not block.attn.explicit


@pytest.mark.item("S3-12-b")
@pytest.mark.parametrize("words", [{}, {"positions.kind": "alibi"}, {"n_kv_heads": 1}, {"windows": "2"}], ids=str)
@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_that_may_read_nothing_reads_zeros_and_its_gradients_are_finite(words, kernel, dtype):
    network = make_network(ONE.with_fields(words), dtype=dtype)
    network = with_explicit_attention(network) if kernel == "explicit" else network
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False
    recorder = Recorder(["blocks.0.attn.z", "blocks.0.attn.pattern"], grad=kernel == "explicit")
    logits = network(draw_tokens(ONE, 2, 5), mask=mask, tap=recorder)
    logits.float().square().sum().backward()
    assert (recorder.values["blocks.0.attn.z"][:, :, 2] == 0).all()
    assert (recorder.values["blocks.0.attn.pattern"][:, :, 2] == 0).all()
    assert (recorder.values["blocks.0.attn.z"][:, :, 3] != 0).any()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.item("S1-1.1.2-d")
def test_query_heads_share_keys_in_order():
    """Query head h reads head floor(h n_kv / n): with heads 0 ... 3 and two key-value heads, 0 0 1 1."""
    a = ONE.with_fields({"n_heads": 4, "n_kv_heads": 2, "positions.kind": "none"})
    network, recorder = make_network(a), Recorder(["blocks.0.attn.v", "blocks.0.attn.z"])
    network(draw_tokens(a, 2, 5), tap=recorder)
    v, z = recorder.values["blocks.0.attn.v"], recorder.values["blocks.0.attn.z"]
    # the first row reads itself alone, so z of it is v of its group
    assert difference(z[:, :, 0], v[:, [0, 0, 1, 1], 0]) <= 1e-12


# Masks and positions ------------------------------------------------------------------------------


def test_masks_are_made_only_where_kernels_need_them():
    """A causal triangle is the kernel's own flag, one query reads everything, and a bidirectional mask is none."""
    like = torch.zeros(())
    triangle, everything = torch.ones(3, 5, dtype=torch.bool).tril(2), torch.ones(3, 3, dtype=torch.bool)
    causal = Mask(A, 0)
    assert causal.is_causal(3, 3, None)
    assert not causal.is_causal(3, 5, None)
    assert not causal.is_causal(3, 3, everything)
    assert causal(1, 5, None, like) is None
    assert torch.equal(causal(3, 5, None, like), triangle)
    assert torch.equal(causal(3, 3, everything, like), everything)
    for cross, a in ((False, A.with_fields({"attention.mask": "bidirectional"})), (True, A)):
        mask = Mask(a, 0, cross)
        assert not mask.is_causal(3, 3, None)
        assert mask(3, 5, None, like) is None
    windowed = Mask(A.with_fields({"windows": 2}), 0)
    assert not windowed.is_causal(3, 3, None)
    assert torch.equal(windowed(1, 5, None, like), torch.tensor([[False, False, False, True, True]]))
    assert torch.equal(windowed(3, 5, None, like), triangle.triu(1))
    far = Mask(A.with_fields({"positions.kind": "alibi"}), 0)
    assert not far.is_causal(3, 3, None)
    infinity = torch.inf
    assert far(2, 3, None, like)[1].tolist() == [[-1 / 256, 0, -infinity], [-2 / 256, -1 / 256, 0]]


def test_a_prefix_mask_is_causal_but_for_the_prefix():
    expected = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    mask = prefix_mask(torch.tensor([3, 0]), 4)
    assert mask[0].int().tolist() == expected
    assert torch.equal(mask[1], torch.ones(4, 4, dtype=torch.bool).tril())


def test_a_padding_mask_hides_padding_from_all_but_itself():
    seen = padding_mask(torch.tensor([[False, True, True], [True, True, True]]))
    assert seen[0].tolist() == [[True, True, True], [False, True, True], [False, True, True]]
    assert seen[1].all()


def test_a_documents_mask_reads_its_own_document_up_to_itself():
    mask = documents_mask(torch.tensor([[0, 0, 1, 1]]))
    assert mask[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@pytest.mark.item("S3-12-b")
@settings(max_examples=20)
@given(architectures({"attention.mask": "causal"}, max_ctx=8))
def test_packed_documents_are_the_documents_alone(a):
    """With a documents mask and positions from 0 in each, packing changes nothing."""
    network, tokens = make_network(a), draw_tokens(a, 1, 4)
    packed = network(
        tokens, positions=torch.tensor([0, 1, 0, 1]), mask=documents_mask(torch.tensor([[0, 0, 1, 1]]))
    ).detach()
    alone = torch.cat([network(tokens[:, :2]), network(tokens[:, 2:])], 1).detach()
    assert difference(packed, alone) <= 1e-12


@pytest.mark.item("S0-1.2-a")
@pytest.mark.parametrize("kind", ["none", "learned", "sinusoidal", "rotary", "alibi", "relative"])
def test_more_positions_than_the_context_are_refused(kind):
    a = A.with_fields({"positions.kind": kind})
    network, tokens = make_network(a), torch.zeros(1, 9, dtype=torch.long)
    with pytest.raises(ValueError, match=r"9 positions were given .* n_ctx = 8: pass at most the last 8 tokens"):
        network(tokens)
    assert network(tokens[:, :8]).shape == (1, 8, 11)
    with torch.no_grad():
        cache = Cache(a, capacity=20, dtype=torch.float64)
        network(tokens[:, :6], cache=cache)
        with pytest.raises(ValueError, match=r"9 positions were given"):
            network(tokens[:, :3], cache=cache)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
def test_so_is_a_given_position_that_no_table_holds(kind):
    network = make_network(A.with_fields({"positions.kind": kind}))
    with pytest.raises(IndexError):
        network(torch.zeros(1, 2, dtype=torch.long), positions=torch.tensor([0, 8]))


@pytest.mark.item("S1-1.1-b")
def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(IndexError):
        make_network(A)(torch.tensor([[11]]))


def test_what_would_be_ignored_is_refused():
    network, tokens = make_network(A), draw_tokens(A)
    source = torch.zeros(2, 3, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="segments were given to an architecture with n_segments = 0"):
        network(tokens, segments=torch.zeros_like(tokens))
    with pytest.raises(ValueError, match="a source was given to an architecture without an encoder"):
        network(tokens, source=source)
    with pytest.raises(ValueError, match="a source was given to an architecture without an encoder"):
        network(tokens, source_mask=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="reads an encoder's output and none was given"):
        make_network(with_encoder(A))(tokens)


def test_without_segments_every_token_is_of_kind_0():
    a = A.with_fields({"n_segments": 2})
    network, tokens = make_network(a), draw_tokens(a)
    zero = torch.zeros_like(tokens)
    assert torch.equal(network(tokens), network(tokens, segments=zero))
    assert not torch.equal(network(tokens), network(tokens, segments=zero + 1))


@pytest.mark.item("S0-0-d")
def test_embeddings_take_the_place_of_the_lookup():
    a = A.with_fields({"embed_scale": "sqrt(d_model)"})
    network, tokens = make_network(a), draw_tokens(a)
    assert torch.equal(network(tokens, embeddings=network.embed.token(tokens)), network(tokens))


# Tables -------------------------------------------------------------------------------------------


def tables(network):
    return {name: m for name, m in network.named_modules() if isinstance(m, Table)}


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_tables_have_the_digits_of_their_precision_at_every_move(kind, layout):
    a = A.with_fields({"positions.kind": kind, "positions.layout": layout})
    network = Transformer(a)
    for move, dtype in (
        (Transformer.bfloat16, torch.float32),  # never below float32
        (Transformer.half, torch.float32),
        (Transformer.double, torch.float64),  # no digit was lost on the way
        (Transformer.float, torch.float32),
        (lambda m: m.to(torch.float64), torch.float64),
        (copy.deepcopy, torch.float64),
    ):
        network = move(network)
        assert tables(network)
        for table in tables(network).values():
            assert table.values.dtype == dtype
            assert torch.equal(table.values, table.exact.to(dtype))
    assert not any("values" in name for name in network.state_dict())


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi", "relative"])
def test_a_network_made_without_memory_has_its_tables_when_it_is_given_some(kind):
    a = A.with_fields({"positions.kind": kind})
    with torch.device("meta"):
        network = Transformer(a)
    assert all(t.is_meta for t in (*network.parameters(), *network.buffers()))
    network.to_empty(device="cpu")
    assert tables(network)
    for name, table in tables(Transformer(a)).items():
        assert torch.equal(tables(network)[name].values, table.values)
    assert network.unembed.weight is network.embed.token.weight


@pytest.mark.parametrize(("low", "high", "n_trained", "factor"), [(1.0, 4.0, 8192, 4.0), (2.0, 6.0, 16, 3.0)])
def test_frequencies_are_scaled_by_how_often_a_plane_turns(low, high, n_trained, factor):
    """Kept where it turns often, divided by the factor where seldom, between the two in proportion to the turns."""
    p = Positions(kind="rotary", low=low, high=high, n_trained=n_trained, factor=factor)
    a = dataclasses.replace(A, positions=p)
    turns = torch.tensor([2 * high, high, (3 * high + low) / 4, (high + low) / 2, low, low / 2], dtype=torch.float64)
    w = turns * 2 * math.pi / n_trained
    kept = torch.tensor([1, 1, 3 / 4, 1 / 2, 0, 0], dtype=torch.float64)
    assert torch.allclose(SCALING["llama3"](a, w), w * (kept + (1 - kept) / factor), rtol=1e-12, atol=0)
    assert torch.equal(SCALING["linear"](a, w), w / factor)
    assert torch.equal(SCALING["none"](a, w), w)


@pytest.mark.parametrize("gain", ["g", "1+g"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_new_norm_multiplies_by_one(kind, gain):
    a = A.with_fields({"norm.kind": kind, "norm.gain": gain, "qk_norm": "rms"})
    norms = [m for m in Transformer(a).modules() if hasattr(m, "multiplier")]
    assert len(norms) == 2 * 4 + 1
    assert all(torch.equal(norm.multiplier, torch.ones_like(norm.gain)) for norm in norms)


@settings(max_examples=15)
@given(architectures(max_ctx=6), st.sampled_from([torch.bfloat16, torch.float32]))
def test_every_word_runs_in_low_precision(a, dtype):
    logits = make_network(a, dtype=dtype)(draw_tokens(a, 2, 4))
    assert logits.dtype == dtype
    assert logits.isfinite().all()


# Dropout ------------------------------------------------------------------------------------------


@pytest.mark.item("S1-1.1.2-k", "S1-fig1", "S4-drop-a")
@pytest.mark.parametrize("rate", ["embed", "pattern", "attn_out", "mlp_out"])
@pytest.mark.parametrize("block", ["pre", "post", "parallel"])
def test_each_rate_acts_where_it_says_and_nowhere_before(rate, block):
    """In training the first tensor behind a rate differs from evaluation's, and no tensor before it does."""
    a = ONE.with_fields({"block": block, f"dropout.{rate}": 0.5})
    network, tokens = make_network(a), draw_tokens(a, 4, 8)
    order = [f"blocks.0.{name}" for name in ("resid_pre", "attn.v", "attn.z", "attn_out", "mlp.post", "mlp_out")]
    first = {"embed": "resid_pre", "pattern": "attn.z", "attn_out": "attn_out", "mlp_out": "mlp_out"}[rate]
    still, noisy = Recorder(["embed", "pos_embed", *order]), Recorder(["embed", "pos_embed", *order])
    network(tokens, tap=still)
    torch.manual_seed(0)
    network.train()(tokens, tap=noisy)
    changed = [name for name in order if not torch.equal(still.values[name], noisy.values[name])]
    # a parallel block's MLP does not read what attention adds
    apart = ["blocks.0.mlp.post", "blocks.0.mlp_out"] if block == "parallel" and rate in ("pattern", "attn_out") else []
    expected = order[order.index(f"blocks.0.{first}") :]
    assert changed == [name for name in expected if name not in apart]
    assert all(torch.equal(still.values[name], noisy.values[name]) for name in ("embed", "pos_embed"))


@pytest.mark.item("S1-1.1.2-k", "S4-drop-a")
@pytest.mark.parametrize(("rate", "name"), [("embed", "resid_pre"), ("attn_out", "attn_out"), ("mlp_out", "mlp_out")])
def test_entries_are_zero_with_probability_p_and_scaled_otherwise(rate, name):
    p = 0.25
    a = ONE.with_fields({f"dropout.{rate}": p})
    network, tokens, full = make_network(a), draw_tokens(a, 64, 8), f"blocks.0.{name}"
    still, noisy = Recorder([full]), Recorder([full])
    network(tokens, tap=still)
    torch.manual_seed(0)
    network.train()(tokens, tap=noisy)
    zero = noisy.values[full] == 0
    # 4096 entries: six standard deviations of the share are 0.041
    assert abs(zero.double().mean().item() - p) < 0.041
    kept = torch.where(zero, 0.0, still.values[full] / (1 - p))
    assert difference(noisy.values[full], kept) <= 1e-12


@pytest.mark.item("S1-1.1.2-k", "S1-fig1", "S4-drop-a")
@pytest.mark.parametrize("kernel", ["fused", "explicit"])
def test_the_pattern_s_entries_are_dropped_with_probability_p(kernel):
    """With every value 1, z_i = sum_j of kept A_ij / (1 - p): the first row reads itself, 0 or 1 / (1 - p)."""
    p = 0.25
    a = ONE.with_fields({"dropout.pattern": p})
    network = make_network(a)
    network = (with_explicit_attention(network) if kernel == "explicit" else network).train()
    recorder = Recorder(["blocks.0.attn.z"], {"blocks.0.attn.v": [torch.ones_like]})
    torch.manual_seed(0)
    network(draw_tokens(a, 1024, 2), tap=recorder)
    first = recorder.values["blocks.0.attn.z"][:, :, 0, 0]
    # 2048 entries: six standard deviations of the share are 0.058
    assert abs((first == 0).double().mean().item() - p) < 0.058
    kept = first[first != 0]
    assert difference(kept, torch.full_like(kept, 1 / (1 - p))) <= 1e-12


@pytest.mark.item("S1-1.1.2-k")
@settings(max_examples=15)
@given(any_architectures({"dropout": 0.0}))
def test_evaluation_is_deterministic_and_so_is_training_without_rates(a):
    network, tokens = make_network(a.with_fields({"dropout": 0.5})), draw_tokens(a, 2, 4)
    before = torch.get_rng_state()
    assert torch.equal(call(network, tokens), call(network, tokens))
    assert torch.equal(torch.get_rng_state(), before)
    still = make_network(a)
    assert torch.equal(call(still, tokens), call(still.train(), tokens))


# Cache --------------------------------------------------------------------------------------------


def test_a_cache_takes_its_memory_once():
    a = A.with_fields({"n_heads": 4, "n_kv_heads": 2, "attention.d_head": 3})
    cache = Cache(a, batch=5, dtype=torch.float32)
    ids = 5 * 8 * 8
    assert cache.nbytes == 2 * 2 * 5 * 2 * 8 * 3 * 4 + ids
    assert Cache(a, 5, capacity=4, dtype=torch.bfloat16).nbytes == (cache.nbytes - ids) // 4 + ids // 2
    pointer = cache.store.data_ptr()
    with torch.no_grad():
        make_network(a, dtype=torch.float32)(draw_tokens(a, 5, 6), cache=cache)
    assert (cache.length, cache.store.data_ptr()) == (6, pointer)
    # keys and values of a source [5, kv_head, 3, d_head] in each layer, in float64, are counted too
    pair = with_encoder(a)
    cache = Cache(pair, 5, dtype=torch.float64)
    before = cache.nbytes
    with torch.no_grad():
        call(make_network(pair), draw_tokens(pair, 5, 3), cache=cache)
    sources = [x for pair_of_layer in cache.sources.values() for x in pair_of_layer]
    assert len(sources) == 2 * 2
    assert cache.nbytes == before + sum(x.numel() * x.element_size() for x in sources) > before
    cache.crop(0)
    assert cache.nbytes == before


@torch.no_grad()
def test_a_cache_refuses_what_it_cannot_do():
    with pytest.raises(ArchitectureError, match=r"attention\.mask = bidirectional: a cache needs masks"):
        Cache(A.with_fields({"mask": "bidirectional"}))
    network, cache = make_network(A), Cache(A, 2, capacity=5, dtype=torch.float64)
    network(draw_tokens(A, 2, 3), cache=cache)
    with pytest.raises(ValueError, match="6 positions do not fit into a cache of 5"):
        network(draw_tokens(A, 2, 3), cache=cache)
    assert cache.length == 3
    for length in (-1, 4):
        with pytest.raises(ValueError, match=f"cannot crop a cache of 3 positions to {length}: give 0 to 3"):
            cache.crop(length)
    with torch.enable_grad(), pytest.raises(ValueError, match=r"a cache keeps numbers, not gradients"):
        network(draw_tokens(A, 2, 1), cache=cache)
    assert cache.length == 3


@torch.no_grad()
def test_a_fork_shares_no_memory():
    network, cache = make_network(A), Cache(A, 2, dtype=torch.float64)
    network(draw_tokens(A, 2, 3), cache=cache)
    fork, chosen = cache.fork(), cache.fork(torch.tensor([1, 1, 0]))
    kept = cache.store.clone()
    network(draw_tokens(A, 2, 3, seed=1), cache=fork)
    network(draw_tokens(A, 3, 3, seed=1), cache=chosen)
    assert torch.equal(cache.store, kept)
    assert (cache.length, fork.length, chosen.length) == (3, 6, 6)
    assert torch.equal(chosen.store[:, :, :, :, :3], kept[:, :, [1, 1, 0], :, :3])


@torch.no_grad()
def test_a_cache_keeps_its_last_positions_and_takes_rows_of_another():
    assert Cache(A).store.size(2) == len(Cache(A).tokens) == 1
    network, cache, fresh = make_network(A), *(Cache(A, n, dtype=torch.float64) for n in (3, 2))
    network(draw_tokens(A, 3, 6), cache=cache)
    network(draw_tokens(A, 2, 2, seed=1), cache=fresh)
    store, tokens = cache.store.clone(), cache.tokens.clone()
    cache.keep_last(6)
    assert cache.length == 6
    assert torch.equal(cache.store, store)
    cache.keep_last(4)
    assert cache.length == 4
    assert torch.equal(cache.store[..., :4, :], store[..., 2:6, :])
    assert torch.equal(cache.tokens[:, :4], tokens[:, 2:6])
    # rows 2 and 0 become those of the other, whose two positions end where these end
    cache.replace([2, 0], fresh)
    assert torch.equal(cache.store[:, :, [2, 0], :, 2:4], fresh.store[..., :2, :])
    assert torch.equal(cache.tokens[[2, 0], 2:4], fresh.tokens[:, :2])
    assert torch.equal(cache.store[:, :, :, :, :2], store[:, :, :, :, 2:4])
    assert torch.equal(cache.store[:, :, 1, :, :4], store[:, :, 1, :, 2:6])
    assert torch.equal(cache.tokens[:, :2], tokens[:, 2:4])


@torch.no_grad()
def test_a_fork_of_some_rows_keeps_their_sources():
    """The source is read at the first call; what forked rows read of it afterwards is what their originals read."""
    pair = with_encoder(A)
    network, cache = make_network(pair), Cache(pair, 2, dtype=torch.float64)
    source = network.encode(draw_tokens(A, 2, 3, seed=5))
    tokens, after = draw_tokens(A, 2, 3), draw_tokens(A, 2, 1, seed=2)
    network(tokens, source=source, cache=cache)
    rows = torch.tensor([1, 1, 0])
    fork, whole = cache.fork(rows), cache.fork()
    expected = network(after, source=source, cache=cache)
    assert difference(network(after, source=source, cache=whole), expected) == 0
    assert difference(network(after[rows], source=source[rows], cache=fork), expected[rows]) <= 1e-12
    # one that forgets everything reads another source anew
    whole.crop(0)
    other = network.encode(draw_tokens(A, 2, 4, seed=6))
    assert difference(network(tokens, source=other, cache=whole), network(tokens, source=other)) <= 1e-12


def test_n_grams_are_those_of_the_tokens_before():
    """Each position gains the rows of its last 2 and 3 tokens, none where it has too few before it."""
    a = A.with_fields({"ngrams": (2, 3), "ngram_rows": 97, "n_layers": 0})
    network, tokens = make_network(a), draw_tokens(a, 1, 5)
    tables = {n: network.embed.ngrams.tables[str(n)].weight for n in (2, 3)}
    recorder = Recorder(["ngram_embed"])
    network(tokens, tap=recorder)
    for i in range(5):
        expected = torch.zeros(a.d_model, dtype=torch.float64)
        for n, table in tables.items():
            if i >= n - 1:
                value = sum((int(tokens[0, i - k]) + 1) * 1_000_003**k for k in range(n))
                expected = expected + table[value % (2**31 - 1) % 97]
        assert torch.equal(recorder.values["ngram_embed"][0, i], expected)
    with pytest.raises(ArchitectureError, match="ngrams = \\(3, 2\\): expected lengths from 2 on, in ascending order"):
        A.with_fields({"ngrams": "3,2"})


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norm_of_nothing_has_a_gradient(kind):
    """A gated relu may add exactly 0, which a norm behind the sublayer reads."""
    words = {
        "norm.kind": kind,
        "norm.eps_at": "outside",
        "block": "inner",
        "mlp.activation": "relu",
        "mlp.bias": "none",
    }
    network = make_network(A.with_fields(words))
    torch.nn.init.zeros_(network.blocks[0].mlp.up[0].weight)
    network(draw_tokens(network.architecture, 2, 4)).square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_every_nth_layer_is_without_rotary_positions():
    """Layers 1 and 3 of four read q and k as they are, and have no tensors of that name; the others are rotated."""
    a = A.with_fields({"n_layers": 4, "positions.kind": "rotary", "positions.every": 2})
    assert [a.rotates(layer) for layer in range(4)] == [True, False, True, False]
    assert [isinstance(block.attn.rotary, Rotary) for block in make_network(a).blocks] == [True, False, True, False]
    assert [name for name in names(a) if name.endswith("rot_q")] == ["blocks.0.attn.rot_q", "blocks.2.attn.rot_q"]
    network, tokens = make_network(a), draw_tokens(a, 2, 5)
    recorder = Recorder(names(a))
    expected = forward(a, {name: p.detach().numpy() for name, p in network.named_parameters()}, tokens.numpy())
    assert difference(network(tokens, tap=recorder).detach(), torch.from_numpy(expected)) <= 1e-10
