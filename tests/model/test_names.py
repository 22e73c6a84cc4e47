"""The names table: what exists, what is selected, and why something is not there."""

import dataclasses

import pytest
from hypothesis import given, settings

from drawing import architectures
from pellucid.architecture import Architecture
from pellucid.tensor_names import (
    ALIASES,
    ROWS,
    TABLE,
    absent,
    axes,
    axis_sizes,
    canonical,
    is_stream,
    names,
    row,
    select,
    writers,
)  # fmt: skip
from running import any_architectures, with_encoder

A = Architecture(n_vocab=11, n_ctx=6, d_model=8, n_layers=2)
GATED = A.with_fields({"mlp.form": "gated"})


def test_the_names_of_a_gpt2_block_in_order_of_computation():
    inside = [name.removeprefix("blocks.1.") for name in names(A) if name.startswith("blocks.1.")]
    assert " ".join(inside) == (
        "resid_pre norm_1.scale norm_1.normalized norm_1 attn.q attn.k attn.v attn.scores attn.pattern attn.z "
        "attn.result attn_out resid_mid norm_2.scale norm_2.normalized norm_2 mlp.pre mlp.post mlp_out resid_post"
    )
    outside = [name for name in names(A) if not name.startswith("blocks.")]
    assert outside == ["embed", "pos_embed", "final_norm.scale", "final_norm.normalized", "final_norm", "logits"]


@settings(max_examples=25)
@given(any_architectures())
def test_every_name_has_a_row_axes_and_selects_itself(a):
    found = names(a)
    assert len(found) == len(set(found))
    for name in found:
        assert row(name) in TABLE
        assert set(axes(name)) <= set("bijhgmdfesv1")
        assert select(name, a) == [name]
    assert select("*", a) == found


@settings(max_examples=30)
@given(architectures(max_ctx=6))
def test_what_is_absent_is_refused_with_a_reason(a):
    present = {row(name).name for name in names(a)}
    for template in ROWS.keys() - present - {"probs", "loss"}:
        if template.endswith(".l"):
            continue
        assert absent(template, a), template
        with pytest.raises(KeyError, match="this architecture has no") as refused:
            select(template.replace("blocks.i.", "blocks.0."), a)
        assert absent(template, a) in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "changes", "reason"),
    [
        ("blocks.0.resid_mid", {"block": "parallel"}, "a parallel block adds attention and MLP to the stream at once"),
        ("pos_embed", {"positions.kind": "rotary"}, "positions.kind = rotary adds nothing to the stream"),
        ("blocks.0.attn.rot_q", {}, "positions.kind = learned rotates nothing"),
        ("blocks.0.norm_1", {"norm.kind": "none"}, "norm.kind = none"),
        ("blocks.0.norm_1.scale", {"norm.kind": "none"}, "norm.kind = none"),
        ("final_norm", {"final_norm": "none"}, "the last stream is not normalised"),
        ("embed_norm", {}, "the embedded stream is not normalised"),
        ("seg_embed", {}, "n_segments = 0"),
        ("blocks.0.mlp.gate", {}, "mlp.form = plain has no gate"),
        ("blocks.0.mlp.pre", {"n_hidden": 2}, "mlp.n_hidden = 2: say mlp.pre.0, mlp.pre.1, ..."),
        ("blocks.0.mlp.post", {"n_hidden": 0}, "mlp.n_hidden = 0: an affine map hides nothing"),
        ("blocks.0.mlp.post.0", {"n_hidden": 0}, "mlp.n_hidden = 0: an affine map hides nothing"),
        ("blocks.0.cross.q", {}, "no encoder is read"),
        ("blocks.0.cross_out", {}, "no encoder is read"),
        ("blocks.0.resid_cross", {}, "no encoder is read"),
        ("blocks.*.norm_cross", {}, "no encoder is read"),
        ("blocks.0.mlp.pre.1", {}, "mlp.n_hidden = 1: say mlp.pre"),
        ("blocks.0.mlp.post.5", {"n_hidden": 2}, "mlp.n_hidden = 2: its hidden layers are numbered from 0"),
        ("encoder.embed", {}, "no encoder is read"),
        ("probs", {}, "it follows from the logits, outside the network"),
        ("blocks.9.attn.q", {}, "the architecture has 2 layers, numbered from 0"),
        ("blocks.0.attn.hook_rot_k", {}, "positions.kind = learned rotates nothing"),
    ],
)
def test_reasons(asked, changes, reason):
    with pytest.raises(KeyError) as refused:
        select(asked, A.with_fields(changes))
    assert refused.value.args[0].startswith(f"this architecture has no {asked!r}: ")
    assert reason in refused.value.args[0]


@pytest.mark.parametrize("asked", ["attn.pattern", "blocks.0.attn.patern", "blocks.x.attn.q", "", "hook_q"])
def test_what_nobody_has_is_refused(asked):
    with pytest.raises(KeyError, match=r"there is no tensor .*names\.names\(architecture\) lists them"):
        select(asked, A)


def test_the_decoder_of_an_encoder_decoder_may_be_said():
    both = with_encoder(A)
    assert select("decoder.blocks.1.cross.q", both) == select("blocks.1.cross.q", both)
    assert select("decoder.blocks.*.attn.hook_z", both) == ["blocks.0.attn.z", "blocks.1.attn.z"]
    with pytest.raises(KeyError, match=r"such as 'blocks\.1\.attn\.q'"):
        select("decoder.blocks.1.attn.q", A)


def test_what_was_nearly_right_is_named():
    with pytest.raises(KeyError, match=r"such as 'blocks\.0\.attn\.pattern'"):
        select("blocks.0.attn.patern", A)
    with pytest.raises(KeyError, match=r"such as 'blocks\.\d\.resid_pre'"):
        select("resid_pre", A)


def test_a_list_of_names_belongs_to_who_asked_for_it():
    names(A).clear()
    assert names(A)[-1] == "logits"


def test_select_takes_patterns_and_keeps_the_order_of_computation():
    assert select("blocks.*.attn.pattern", A) == ["blocks.0.attn.pattern", "blocks.1.attn.pattern"]
    assert select(["logits", "embed"], A) == ["embed", "logits"]
    assert select(("blocks.1.*", "blocks.1.attn.q"), A) == [n for n in names(A) if n.startswith("blocks.1.")]


@pytest.mark.parametrize(
    ("alias", "ours"),
    [
        ("hook_embed", "embed"),
        ("blocks.1.hook_resid_pre", "blocks.1.resid_pre"),
        ("blocks.1.attn.hook_pattern", "blocks.1.attn.pattern"),
        ("blocks.1.ln1.hook_scale", "blocks.1.norm_1.scale"),
        ("blocks.1.ln1.hook_normalized", "blocks.1.norm_1.normalized"),
        ("blocks.0.mlp.hook_pre", "blocks.0.mlp.pre"),
        ("blocks.0.mlp.pre.0", "blocks.0.mlp.pre"),
        ("blocks.0.mlp.post.0", "blocks.0.mlp.post"),
        ("ln_final.hook_normalized", "final_norm.normalized"),
        ("blocks.*.attn.hook_z", "blocks.*.attn.z"),
    ],
)
def test_other_spellings_stand_for_ours(alias, ours):
    assert canonical(alias, A) == ours
    assert select(alias, A) == select(ours, A)


def test_in_a_gated_mlp_the_other_tool_s_pre_is_the_gate():
    assert canonical("blocks.0.mlp.hook_pre", GATED) == "blocks.0.mlp.gate"
    assert canonical("blocks.0.mlp.hook_pre_linear", GATED) == "blocks.0.mlp.pre"


def test_aliases_are_unique_and_point_to_rows():
    given = [r.transformer_lens for r in TABLE if r.transformer_lens]
    assert len(given) == len(set(given)) == len(ALIASES)
    assert set(ALIASES.values()) <= ROWS.keys()
    assert len(ROWS) == len(TABLE)
    assert all(r.equation and r.axes for r in TABLE)


def test_with_several_hidden_layers_each_has_its_number():
    deep = A.with_fields({"n_hidden": 2})
    assert [n for n in names(deep) if "blocks.0.mlp." in n] == [
        f"blocks.0.mlp.{n}" for n in ("pre.0", "pre.1", "post.0", "post.1")
    ]


def test_an_encoder_s_tensors_carry_its_prefix():
    both = Architecture.from_dict(A.to_dict() | {"encoder": A.with_fields({"mask": "bidirectional"}).to_dict()})
    found = names(both)
    assert "encoder.blocks.1.attn.pattern" in found
    assert "blocks.1.cross.pattern" in found
    assert "encoder.blocks.1.cross.pattern" not in found
    assert "encoder.logits" not in found
    with pytest.raises(KeyError, match="an encoder ends in final_norm, or in the last resid_post"):
        select("encoder.logits", both)
    with pytest.raises(KeyError, match="no encoder is read"):
        select("encoder.blocks.0.cross.q", both)
    assert found.index("encoder.final_norm") < found.index("embed")
    assert select("encoder.blocks.1.attn.hook_pattern", both) == ["encoder.blocks.1.attn.pattern"]


@pytest.mark.parametrize(("changes", "name", "reason"), [
    ({"norm.kind": "none"}, "blocks.i.norm_1", "norm.kind = none"),
    ({"norm.kind": "rms", "block": "shared"}, "blocks.i.norm_2", "block = shared has no such norm"),
    ({"block": "post"}, "blocks.i.norm_1_out", "block = post has no such norm"),
    ({"mlp.n_hidden": 1}, "blocks.i.mlp.pre.l", "mlp.n_hidden = 1: say mlp.pre"),
    ({"mlp.n_hidden": 2}, "blocks.i.mlp.pre", "mlp.n_hidden = 2: say mlp.pre.0, mlp.pre.1, ..."),
    ({"mlp.n_hidden": 0}, "blocks.i.mlp.post", "mlp.n_hidden = 0: an affine map hides nothing"),
    ({}, "blocks.i.cross.q", "no encoder is read"),
    ({}, "blocks.i.attn.rot_k", "positions.kind = learned rotates nothing"),
    ({"block": "parallel"}, "blocks.i.resid_mid", "a parallel block adds attention and MLP to the stream at once"),
])  # fmt: skip
def test_the_reason_why_a_tensor_is_absent(changes, name, reason):
    assert absent(name, A.with_fields(changes)) == reason


@pytest.mark.parametrize("block", ["pre", "post"])
@pytest.mark.parametrize("encoder_block", ["pre", "post"])
def test_the_points_of_the_stream_and_what_was_added_before(block, encoder_block):
    pair = with_encoder(A.with_fields({"block": block, "embed_norm": "norm"}))
    assert pair.encoder is not None
    pair = dataclasses.replace(pair, encoder=pair.encoder.with_fields({"block": encoder_block}))
    inner = {"resid_pre", "resid_mid", "resid_post"} | ({"norm_1", "norm_2"} if encoder_block == "post" else set())
    outer = {"resid_pre", "resid_mid", "resid_cross", "resid_post"}
    outer |= {"norm_1", "norm_cross", "norm_2"} if block == "post" else set()
    points = {name for name in names(pair) if is_stream(name, pair)}
    assert points == (
        {"embed_norm", "encoder.embed_norm"}
        | {f"blocks.{l}.{name}" for l in range(2) for name in outer}
        | {f"encoder.blocks.{l}.{name}" for l in range(2) for name in inner}
    ) & {*names(pair)}
    added = ["embed", "pos_embed", "blocks.0.attn_out", "blocks.0.cross_out", "blocks.0.mlp_out", "blocks.1.attn_out"]
    assert writers("blocks.1.resid_mid", pair) == added
    assert writers("blocks.0.resid_pre", pair) == added[:2]
    of_encoder = [f"encoder.{name}" for name in ("embed", "pos_embed", "blocks.0.attn_out", "blocks.0.mlp_out")]
    assert writers("encoder.blocks.1.resid_pre", pair) == of_encoder
    # a norm of a post-norm block is behind what it reads, whose row in the table is below its own
    if block == "post":
        assert writers("blocks.0.norm_1", pair) == added[:3]
        assert writers("blocks.0.norm_2", pair) == added[:5]


def test_the_first_block_may_lack_its_first_norm():
    a = A.with_fields({"first_norm": "none"})
    assert not [name for name in names(a) if name.startswith("blocks.0.norm_1")]
    assert select("blocks.*.norm_1", a) == ["blocks.1.norm_1"]
    for name in ("blocks.0.norm_1", "blocks.0.ln1.hook_out"):
        with pytest.raises(KeyError, match=r"first_norm = none: block 0 has no such norm"):
            select(name, a)


def test_the_projected_sum_of_the_embeddings_is_what_they_add_to_the_stream():
    a = A.with_fields({"d_embed": 4, "embed_projection": "sum", "embed_norm": "norm"})
    first = names(a)[: names(a).index("blocks.0.resid_pre")]
    assert first == [
        "embed",
        "pos_embed",
        *(f"embed_norm{end}" for end in (".scale", ".normalized", "")),
        "embed_projected",
    ]
    assert {name: axis_sizes(name, a)["m"] for name in first} == dict.fromkeys(first, 4) | {"embed_projected": 8}
    assert writers("blocks.0.resid_mid", a) == ["embed_projected", "blocks.0.attn_out"]
    assert not is_stream("embed_norm", a)
    assert canonical("hook_embed", a) == "embed_projected"
    assert absent("embed_projected", A) == "embed_projection = tokens"


def test_numbered_layers_of_an_mlp_stay_numbered_where_there_are_two():
    one, two = (
        Architecture(n_vocab=5, n_ctx=4, d_model=4, n_layers=1).with_fields({"mlp.n_hidden": n}) for n in (1, 2)
    )
    assert canonical("blocks.0.mlp.pre.0", two) == "blocks.0.mlp.pre.0"
    assert canonical("blocks.0.mlp.pre.0", one) == "blocks.0.mlp.pre"


def test_without_a_norm_behind_the_embeddings_their_name_is_that_of_the_tokens():
    a = A.with_fields({"embed_norm": "norm"})
    assert canonical("hook_embed", a) == "embed_norm"
    assert canonical("hook_embed", a.with_fields({"norm.kind": "none", "embed_norm": "none"})) == "embed"
