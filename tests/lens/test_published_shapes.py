"""Every law of the analyses on the shapes that people open: Llama 3.2, Qwen3, Gemma 3 and a mixture of Qwen3.

The other tests of this room draw any architecture. Here each of them runs again with the architecture pinned: the
options are those of a published config.json, the sizes small. A law that is added to these modules joins by itself.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import test_attribution
import test_circuits
import test_edits
import test_embeddings
import test_heads_and_probes
import test_patching
import test_positional
import test_show
import test_trace
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import difference, make_network
from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.hub import architecture_of
from pellucid.lens import trace
from pellucid.lens.analysis.metrics import logit_diff
from pellucid.lens.analysis.patching import patch
from pellucid.lens.weights.weight_edits import with_edits
from pellucid.text_model import of_ids
from running import draw_tokens
from some_cases import one_in

CONFIGURATIONS = Path(__file__).parents[1] / "data" / "published_configs"
MODULES = (test_attribution, test_circuits, test_edits, test_embeddings, test_heads_and_probes, test_patching)
MODULES += (test_positional, test_show, test_trace)
#: what is about another arrangement than these shapes have
ABOUT_OTHERS = {
    "test_a_centred_view_gives_the_same_logits",  # layer norms, which subtract the mean
    "test_a_part_s_share_of_bert_s_logit_is_what_it_writes_into_the_hidden_layer",  # readout = bert
    "test_ablations_of_encoder_decoders_are_edits",
    "test_biases_are_what_the_scores_gain",  # positions = alibi, relative
    "test_edits_written_into_the_weights",  # any vector, which needs a bias to take it up; see below
    "test_encoders_and_cross_attention_have_circuits_too",
    "test_exact_patching_of_encoder_decoders_is_the_naive_loop",
    "test_positions_that_do_not_enter_there_say_so",  # positions = none
    "test_rows_are_what_is_added_to_the_stream",  # positions = learned, sinusoidal
    "test_virtual_heads",  # no norm between the two heads
}
LAWS: dict[str, Any] = {
    name: law
    for module in MODULES
    for name, law in vars(module).items()
    if name.startswith("test_") and hasattr(law, "hypothesis") and "a" in law.hypothesis._given_kwargs
}
SMALL = {"n_vocab": 11, "n_ctx": 8, "n_layers": 2, "d_model": 8, "attention.d_head": 4, "mlp.d_ff": 12}
#: file of tests/data/published_configs -> the sizes here
SHAPES = {
    "llama-3.2-1b-instruct": {"attention.n_heads": 4, "attention.n_kv_heads": 1},
    "qwen3-0.6b": {"attention.n_heads": 4, "attention.n_kv_heads": 2},
    "gemma-3-270m": {"attention.n_heads": 4, "attention.n_kv_heads": 1, "attention.windows": (3, 0)},
    "qwen3-30b-a3b": {"attention.n_heads": 4, "attention.n_kv_heads": 2, "mlp.experts": 4, "mlp.experts_per_token": 2},
}


def shape(name: str) -> Architecture:
    """The options of a published configuration, small."""
    config = json.loads((CONFIGURATIONS / f"{name}.json").read_text())
    return architecture_of(config).with_fields(SMALL | SHAPES[name])


def test_the_shapes_have_what_distinguishes_them():
    """Rotary frequencies scaled by turns; norms of queries and keys; windows with a base of their own; experts."""
    llama, qwen, gemma, mixture = map(shape, SHAPES)
    assert (llama.positions.scaling, llama.n_kv_heads, llama.unembed) == ("llama3", 1, "tied")
    assert (qwen.attention.qk_norm, qwen.mlp.form, qwen.norm.kind) == ("rms", "gated", "rms")
    assert (gemma.block, gemma.norm.gain, gemma.embed_scale) == ("sandwich", "1+g", "sqrt(d_model)")
    assert gemma.positions.local_base == 10_000 != gemma.positions.base
    assert (mixture.mlp.experts, mixture.mlp.router_softmax, mixture.unembed) == (4, "chosen", "untied")


def test_what_is_left_out_is_there_to_be_left_out():
    assert LAWS.keys() >= ABOUT_OTHERS
    assert len(LAWS) - len(ABOUT_OTHERS) >= 35


#: each law on one shape, the shapes in turn
TURNS = list(zip([law for law in LAWS if law not in ABOUT_OTHERS], itertools.cycle(SHAPES), strict=False))


@pytest.mark.parametrize(("law", "name"), one_in(4, TURNS))
def test_a_law_holds_on_a_published_shape(law, name):
    """With the law's own inputs drawn: texts, edits, positions, parts."""
    drawn = LAWS[law].hypothesis._given_kwargs | {"a": st.just(shape(name))}
    run = settings(max_examples=10, deadline=None)(given(**drawn)(LAWS[law].hypothesis.inner_test))
    run()


@pytest.mark.parametrize("name", SHAPES)
def test_edits_that_need_no_bias_are_written_into_the_weights(name):
    """A head's output halved or projected, a key head's values scaled, and an embedding: one model without edits."""
    a = shape(name)
    network, tokens = make_network(a), draw_tokens(a, 2, 6)
    edits = [
        change.scale("embed", 0.5),
        change.scale("blocks.0.attn.z", 0.5, head=1),
        change.zero("blocks.1.attn.z", head=2),
        change.scale("blocks.1.attn.v", -2.0, kv_head=0),
        change.project_out("blocks.0.attn.z", torch.linspace(-1, 2, a.d_head, dtype=torch.float64), head=3),
    ]
    expected = trace(of_ids(network), tokens, edits=edits).logits
    changed = with_edits(network, edits)
    assert difference(changed(tokens), expected) <= 1e-12
    assert difference(network(tokens), expected) > 1e-2


@pytest.mark.parametrize("name", SHAPES)
def test_patching_there_and_back_gives_each_run_s_own_answer(name):
    """The whole stream of the other run gives its metric, in both directions; and nothing gives one's own."""
    network, clean, corrupt = make_network(shape(name)), [1, 2, 3, 4, 5], [1, 2, 7, 4, 6]
    metric = logit_diff(3, 5)
    there = patch(of_ids(network), clean, corrupt, metric, positions="all")
    back = patch(of_ids(network), corrupt, clean, metric, positions="all")
    assert abs(there.clean - back.corrupt) <= 1e-12
    assert abs(there.corrupt - back.clean) <= 1e-12
    assert abs(there.clean - there.corrupt) > 1e-3
    for found in (there, back):
        assert difference(found.exact, torch.full_like(found.exact, found.clean)) <= 1e-9


@pytest.mark.parametrize("name", SHAPES)
def test_their_names_are_offered(name):
    """TransformerLens's names of every tensor that these families have there, and none of what they have not."""
    a = shape(name)
    t = trace(of_ids(make_network(a)), draw_tokens(a, 1, 5))
    theirs = t.as_transformer_lens()
    classic = ["hook_embed", "ln_final.hook_normalized", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_mid"]
    of_attention = ("q", "k", "v", "z", "pattern", "attn_scores", "rot_q", "rot_k")
    classic += [f"blocks.1.attn.hook_{name}" for name in of_attention]
    classic += ["blocks.1.hook_attn_out", "blocks.1.hook_mlp_out", "blocks.1.ln1.hook_scale", "unembed.hook_out"]
    if not a.mlp.experts:
        classic += [f"blocks.1.mlp.hook_{name}" for name in ("pre", "pre_linear", "post")]
    assert [name for name in classic if name not in theirs] == []
    assert theirs["blocks.1.attn.hook_z"].shape == (1, 5, a.n_heads, a.d_head)
    assert theirs["blocks.1.attn.hook_k"].shape == (1, 5, a.n_kv_heads, a.d_head)
    assert "hook_pos_embed" not in theirs
