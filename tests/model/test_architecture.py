"""Architecture: what it refuses and what it says then; values in and out."""

import dataclasses
import json
import re
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures
from pellucid.architecture import (
    MLP,
    OPTION_GROUPS,
    Architecture,
    Attention,
    Dropout,
    Norm,
    Positions,
    architecture_fields,
    field_options,
    field_type,
)
from pellucid.field_docs import field_docs
from pellucid.model import Transformer
from pellucid.option_values import ArchitectureError
from pellucid.parameter_counts import count_parameters
from running import any_architectures

A = Architecture(n_vocab=11, n_ctx=6, d_model=8, n_layers=2)
ENCODER = A.with_fields({"mask": "bidirectional"})


def refusal(changes):
    with pytest.raises(ArchitectureError) as refused:
        A.with_fields(changes)
    return str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_vocab": 0}, "n_vocab = 0: expected at least 1"),
        ({"n_ctx": 0}, "n_ctx = 0: expected at least 1"),
        ({"d_model": 0}, "d_model = 0: expected at least 1"),
        ({"n_layers": -1}, "n_layers = -1: expected at least 0"),
        ({"n_segments": -2}, "n_segments = -2: expected at least 0"),
        ({"n_heads": 0}, "attention.n_heads = 0: expected at least 1"),
        ({"n_heads": 3}, "attention.n_heads = 3: expected a divisor of d_model = 8, or attention.d_head set"),
        ({"n_kv_heads": -1}, "attention.n_kv_heads = -1: expected 0 (as many as n_heads) or a divisor of n_heads"),
        ({"n_kv_heads": 3}, "attention.n_kv_heads = 3: expected a divisor of n_heads = 4"),
        ({"attention.d_head": -1}, "attention.d_head = -1: expected 0 (d_model / n_heads) or more"),
        ({"windows": "-1"}, "attention.windows = (-1,): expected one or more integers >= 0"),
        ({"windows": ()}, "attention.windows = (): expected one or more integers >= 0"),
        ({"d_ff": -1}, "mlp.d_ff = -1: expected 0 (4 d_model) or more"),
        ({"n_hidden": -1}, "mlp.n_hidden = -1: expected 0 or more hidden layers"),
        ({"n_hidden": 2, "form": "gated"}, "mlp.n_hidden = 2: expected 1 where mlp.form = gated"),
        ({"eps": 1}, "norm.eps = 1.0: expected a number from 0 up to, not including, 1"),
        ({"eps": "-1e-5"}, "norm.eps = -1e-05: expected a number from 0 up to, not including, 1"),
        ({"base": 0}, "positions.base = 0.0: expected a number above 0"),
        ({"fraction": 0}, "positions.fraction = 0.0: expected above 0, at most 1"),
        ({"fraction": 1.5}, "positions.fraction = 1.5: expected above 0, at most 1"),
        (
            {"positions.kind": "rotary", "fraction": 0.5},
            "positions.fraction = 0.5: expected fraction * d_head of 2 or more: a plane has two coordinates",
        ),
        (
            {"positions.kind": "sinusoidal", "d_model": 5, "n_heads": 1},
            "d_model = 5: expected an even number where positions.kind = sinusoidal",
        ),
        ({"dropout": 1}, "dropout.embed = 1.0: expected a rate from 0 up to, not including, 1"),
        (
            {"block": "per"},
            "block = 'per' is not one of its options: choose one of pre, post, parallel, shared, inner, sandwich; "
            "did you mean 'pre'?",
        ),
        ({"norm.kind": "quiet"}, "norm.kind = 'quiet' is not one of its options: choose one of none, layer, rms"),
        ({"n_layers": "two"}, "n_layers = 'two': expected an integer"),
        ({"n_layers": 2.5}, "n_layers = 2.5: expected an integer"),
        ({"n_layers": True}, "n_layers = True: expected an integer"),
        ({"eps": "small"}, "norm.eps = 'small': expected a number"),
        ({"windows": "a,b"}, "attention.windows = 'a': expected an integer"),
        ({"n_head": 2}, "there is no field 'n_head'; did you mean 'attention.n_heads'?"),
        ({"attention.n_head": 2}, "there is no field 'attention.n_head'; did you mean 'attention.n_heads'?"),
        ({"activaton": "relu"}, "there is no field 'activaton'; did you mean 'mlp.activation'?"),
    ],
)
def test_refusals_name_the_field_the_value_and_what_would_be_valid(changes, message):
    assert refusal(changes) == message


def test_a_field_like_no_other_is_answered_with_all_of_them():
    message = refusal({"qqqq": 1})
    assert all(field in message for field in architecture_fields())


def test_an_ambiguous_bare_name_is_refused_with_its_candidates():
    message = refusal({"kind": "rotary"})
    assert message == "'kind' is ambiguous: choose one of positions.kind, norm.kind"


def test_parts_and_encoders_are_checked_when_constructed():
    with pytest.raises(ArchitectureError, match=r"encoder\.d_model = 16: expected d_model = 8"):
        dataclasses.replace(A, encoder=dataclasses.replace(ENCODER, d_model=16))
    with pytest.raises(ArchitectureError, match="block = parallel: expected pre or post where an encoder is read"):
        dataclasses.replace(A, encoder=ENCODER, block="parallel")
    with pytest.raises(ArchitectureError, match="expected an encoder without one of its own"):
        dataclasses.replace(A, encoder=dataclasses.replace(A, encoder=ENCODER))
    with pytest.raises(ArchitectureError, match=r"positions\.kind = 'rotari'"):
        dataclasses.replace(A, positions=Positions(kind="rotari"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_vocab": 3}, "architecture lacks n_ctx, d_model, n_layers: give each a value"),
        (A.to_dict() | {"n_layer": 3}, "there is no field 'n_layer'; did you mean 'n_layers'?"),
        (A.to_dict() | {"mlp": {"widht": 3}}, "there is no field 'mlp.widht'; known fields: d_ff"),
        (A.to_dict() | {"mlp": 3}, "mlp = 3: expected an object with named fields"),
        (A.to_dict() | {"encoder": {"n_vocab": 3}}, "encoder lacks n_ctx, d_model, n_layers"),
        (A.to_dict() | {"d_model": "wide"}, "d_model = 'wide': expected an integer"),
        (A.to_dict() | {"d_model": None}, "d_model = None: expected an integer"),
        ([], r"architecture = \[\]: expected an object with named fields"),
    ],
)
def test_from_dict_refuses_what_to_dict_did_not_write(values, message):
    with pytest.raises(ArchitectureError, match=message):
        Architecture.from_dict(values)


@settings(max_examples=25)
@given(any_architectures())
def test_to_dict_and_back_through_json(a):
    assert Architecture.from_dict(json.loads(json.dumps(a.to_dict()))) == a
    assert hash(Architecture.from_dict(a.to_dict())) == hash(a)


@settings(max_examples=25)
@given(architectures(), st.data())
def test_command_line_text_sets_every_field(a, data):
    """Every field, given as text to an architecture that differs in it, becomes the value."""
    name = data.draw(st.sampled_from([f for f in architecture_fields() if f != "dropout"]))
    part, _, last = name.rpartition(".")
    value = getattr(getattr(a, part) if part else a, last)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert a.with_fields({name: text}) == a


def test_with_fields_from_a_command_line():
    changed = A.with_fields({"n_heads": "2", "positions.kind": "rotary", "windows": "(0, 3)", "eps": "1e-6"})
    assert changed.attention == Attention(n_heads=2, windows=(0, 3))
    assert changed.positions.kind == "rotary"
    assert changed.norm == Norm(eps=1e-6)
    assert A.with_fields({"windows": 3}).attention.windows == (3,)
    assert A.with_fields({"windows": [0, 3]}).attention.windows == (0, 3)
    assert A.with_fields({"dropout": "0.1"}).dropout == Dropout(embed=0.1, pattern=0.1, attn_out=0.1, mlp_out=0.1)
    assert A.with_fields({"dropout.embed": 0.1}).dropout == Dropout(embed=0.1)
    assert A.with_fields({}) == A
    assert A.attention.n_heads == 4


def test_sizes_that_follow_from_the_others():
    assert (A.d_head, A.n_kv_heads, A.d_ff, A.d_rotary) == (2, 4, 32, 0)
    wide = A.with_fields({"attention.d_head": 10, "n_kv_heads": 2, "d_ff": 3, "positions.kind": "rotary"})
    assert (wide.d_head, wide.n_kv_heads, wide.d_ff, wide.d_rotary) == (10, 2, 3, 10)
    assert wide.with_fields({"fraction": 0.5}).d_rotary == 4  # the even part of 5
    scales = {word: wide.with_fields({"scale": word}).score_scale for word in ("1/sqrt(d_head)", "1/d_head", "1")}
    assert scales == {"1/sqrt(d_head)": 10**-0.5, "1/d_head": 0.1, "1": 1.0}
    assert wide.with_fields({"scale": "scale_value", "scale_value": 0.3}).score_scale == 0.3
    banded = A.with_fields({"windows": "0,256"})
    assert [banded.window(layer) for layer in range(4)] == [0, 256, 0, 256]


def test_rows_of_another_width_are_projected_and_counted():
    a = A.with_fields({"d_embed": 3, "unembed": "untied"})
    network = Transformer(a)
    assert network.embed.token.weight.shape == network.unembed.weight.shape == (a.n_vocab, 3)
    assert count_parameters(a)["embed"] == 3 * (a.n_vocab + a.d_model)
    assert count_parameters(a)["total"] == sum(p.numel() for p in network.parameters())
    for width in (a.d_model, -1):
        with pytest.raises(ArchitectureError, match=f"d_embed = {width}: expected 0 .* or another width than d_model"):
            a.with_fields({"d_embed": width})
    other = a.with_fields({"d_embed": 4, "attention.mask": "bidirectional"}).to_dict()
    with pytest.raises(ArchitectureError, match=r"encoder\.d_embed = 4: expected d_embed = 3 where W_E is shared"):
        Architecture.from_dict(a.to_dict() | {"encoder": other, "source_embed": "shared"})


def test_what_is_summed_in_the_embedding_is_as_wide_as_its_projection_reads():
    fields = {"d_embed": 3, "embed_projection": "sum", "n_segments": 2, "ngrams": (2,), "ngram_rows": 5}
    a = A.with_fields({**fields, "embed_norm": "norm"})
    network = Transformer(a)
    own = {name: tuple(p.shape) for name, p in network.named_parameters() if name.startswith("embed.")}
    assert {shape[-1] for name, shape in own.items() if "projection" not in name} == {3}
    assert own["embed.projection.weight"] == (a.d_model, 3)
    assert own["embed.projection.bias"] == (a.d_model,)
    assert count_parameters(a)["total"] == sum(p.numel() for p in network.parameters())
    with pytest.raises(ArchitectureError, match=r"embed_projection = sum: expected tokens where d_embed = 0"):
        a.with_fields({"d_embed": 0})
    with pytest.raises(ArchitectureError, match=r"d_embed = 3: expected an even number where positions\.kind = sin"):
        a.with_fields({"positions.kind": "sinusoidal"})


def test_the_first_block_and_the_readout_have_the_norms_and_biases_that_are_named():
    a = A.with_fields({"first_norm": "none", "readout": "bert", "readout_bias": "logits"})
    assert (a.norms_of(0), a.norms_of(1)) == (("norm_2",), ("norm_1", "norm_2"))
    network = Transformer(a)
    own = {name for name, _ in network.named_parameters()}
    assert not [name for name in own if name.startswith("blocks.0.norm_1")]
    assert {"blocks.1.norm_1.gain", "unembed.bias"} <= own
    assert "unembed.dense.bias" not in own
    for word, biases in (("all", 11 + 8), ("dense", 8), ("logits", 11), ("none", 0)):
        counts = count_parameters(a.with_fields({"readout_bias": word}))
        assert counts["unembed"] == 8 * 8 + 2 * 8 + biases
        assert counts["total"] == sum(
            p.numel() for p in Transformer(a.with_fields({"readout_bias": word})).parameters()
        )
    with pytest.raises(ArchitectureError, match=r"readout_bias = logits: expected all where readout = linear"):
        a.with_fields({"readout": "linear"})
    with pytest.raises(ArchitectureError, match=r"first_norm = none: expected norm where block = post"):
        a.with_fields({"block": "post"})


def test_without_a_readout_there_is_nothing_of_one():
    body = A.with_fields({"readout": "none"})
    own = count_parameters(body)
    assert own["unembed"] == 0
    assert own["total"] == sum(p.numel() for p in Transformer(body).parameters())
    for name, value in (("unembed", "untied"), ("logit_cap", 3.0), ("logit_scale", "1/sqrt(d_model)")):
        with pytest.raises(ArchitectureError, match=f"{name} = .* where readout = none"):
            body.with_fields({name: value})


def test_a_description_from_before_an_option_was_made_is_read_as_it_was():
    old = A.to_dict()
    for part, name in (("positions", "slopes"), ("attention", "scale_value")):
        del old[part][name]
    assert Architecture.from_dict(old) == A


#: sizes, which every model has, and the parts
SIZES = {"n_vocab", "n_ctx", "d_model", "n_layers", "attention", "mlp", "positions", "norm", "dropout"}
#: who uses an option: a publication, or a model by the name that its family has
MODELS = "GPT BERT Llama Qwen OLMo Phi Gemma T5 Mistral Mixtral Cohere Granite BLOOM SmolLM Marian ModernBERT CLIP"
USER = re.compile(rf"et al\. \d{{4}}|Becker-Kahn|AP & MF|\b({MODELS.replace(' ', '|')})")


@pytest.mark.parametrize("kind", [Architecture, Attention, MLP, Positions, Norm, Dropout])
def test_every_option_names_who_uses_it(kind):
    """An option that no published model and no source uses is not worth its branches."""
    said = {name: text + (kind.__doc__ or "") * (name == "kind") for name, text in field_docs(kind).items()}
    unused = [name for name, text in said.items() if name not in SIZES and not USER.search(text)]
    assert not unused


@pytest.mark.parametrize("kind", [Architecture, Attention, MLP, Positions, Norm, Dropout])
def test_every_part_is_frozen_named_and_without_flags(kind):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        assert bool not in (hints[field.name], *typing.get_args(hints[field.name])), field.name
        assert not any(w in ("true", "false", "yes", "no") for w in map(str, typing.get_args(hints[field.name])))
    value = A if kind is Architecture else kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(kind)[0].name, 1)


def test_every_choice_is_a_word_and_every_size_a_number():
    choices = dict(field_options())
    for name in architecture_fields():
        if name != "dropout":
            sizes = (int, float, tuple[int, ...], tuple[float, ...])
            assert (name in choices) != (field_type(name) in sizes), name
    assert all(len(set(options)) >= 2 for options in choices.values())
    assert {name.partition(".")[0] for name in choices if "." in name} == set(OPTION_GROUPS) - {"dropout"}


def test_neither_torch_nor_numpy_is_needed_to_describe():
    import ast
    import inspect

    import pellucid.architecture
    import pellucid.option_values

    imported = set()
    for module in (pellucid.architecture, pellucid.option_values):
        tree = ast.parse(inspect.getsource(module))
        imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        imported |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    foreign = {name for name in imported if name.startswith(("torch", "numpy", "pellucid"))}
    assert foreign == {"pellucid.option_values"}
