"""Our trace in TransformerLens's names is TransformerLens's own, tensor by tensor, on the same weights.

Its version 4.3.0 knows one class, TransformerBridge, which wraps a model of transformers. Its hooks have two
names each, of which ours are the classic ones.
"""

import logging
import re
import warnings

import pytest
import torch
import transformers
from random_models import COMMON, TINY, in_float64
from theirs import TOLERANCE, as_ours, draw, perturb

from pellucid.lens import InputError, trace
from pellucid.lens.compatibility import their_names
from pellucid.tensor_names import canonical, classic_names, names, row, select
from pellucid.text_model import of_ids
from running import with_encoder
from some_cases import one_in

#: a family for each arrangement of norms: pre, parallel, shared, post, inner, sandwich; a norm behind the embedding;
#: norms of queries and keys, windows with a rotary base of their own, and experts
FAMILIES = {
    "gpt2": {},
    "llama": {},
    "gpt_neox": {"num_key_value_heads": 4},
    "phi": {},
    "openai-gpt": {},
    "olmo2": {},
    "gemma2": {},
    "bloom": {},
    "bert": {},
    "qwen3": {},
    "gemma3_text": {},
    "qwen3_moe": {"experts_implementation": "eager"},
}
#: hooks of one family that hold another tensor than the same hooks of the others
ODD = {
    # attention is theirs with the norm behind it; the scores are read behind the softmax
    "bert": r".*(hook_attn_out|hook_attn_scores|hook_resid_mid)|ln_final\.hook_.*",
    # resid_mid is read behind norm_1
    "openai-gpt": r".*hook_resid_mid",
    # the scores are read before the distance is added
    "bloom": r".*hook_attn_scores",
}


def bridged(family):
    """Our trace and what their bridge around the same model kept, in float64."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    kind, common, variants = TINY[family]
    options = COMMON | common | next(iter(variants.values())) | FAMILIES[family]
    with in_float64():
        model_class = getattr(transformers, kind)
        config = model_class.config_class(attn_implementation="eager", **options)
        model = perturb(model_class(config))
        network, _ = as_ours(model, config.to_dict())  # first: a bridge puts modules of its own into the model
        bridge = build_bridge_from_module(model, kind, hf_config=config, dtype=torch.float64)
        if family != "bert":
            bridge.set_use_attn_result(True)
        tokens = draw(network.architecture, batch=2, n=7)
        with torch.no_grad():
            _, cache = bridge.run_with_cache(tokens)
    return trace(of_ids(network), tokens), dict(cache.items())


@pytest.fixture(scope="module")
def sides():
    """Of each family, once."""
    made = {}

    def of(family):
        if family not in made:
            logging.disable(logging.WARNING)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # theirs to answer for
                made[family] = bridged(family)
            logging.disable(logging.NOTSET)
        return made[family]

    return of


def same(given, expected):
    """Whether two tensors are one, up to where a key may not be read."""
    if given.shape != expected.shape:
        return False
    # nine digits: the constants of BLOOM's gelu are rounded to as many
    seen = expected > -1e30  # they write the least number, or -inf
    if not torch.equal(seen, given > -torch.inf):
        return False
    given, expected = given[seen], expected[seen]
    return bool((given - expected).abs().max() <= 1e-9 * max(1, float(expected.abs().max())))


@pytest.mark.parametrize("family", one_in(4, FAMILIES))
def test_every_classic_name_is_their_tensor(sides, family):
    t, theirs = sides(family)
    ours, a = t.as_transformer_lens(), t.architecture
    odd = ODD.get(family, "$^")
    both = {name: expected for name, expected in theirs.items() if name in ours}
    assert {"hook_embed", "unembed.hook_out", "blocks.1.hook_resid_pre", "blocks.1.attn.hook_pattern"} <= both.keys()
    for name, expected in both.items():
        if re.fullmatch(odd, name):
            assert not same(ours[name], expected), f"{name} is not odd any more"
        else:
            assert same(ours[name], expected), f"{name} is not {canonical(name, a)}"
            if not (a.logit_cap and "unembed" in name):  # see below
                assert select(name, a) == [canonical(name, a)]


@pytest.mark.parametrize("family", one_in(4, FAMILIES))
def test_the_dictionary_holds_every_tensor_under_all_its_names(sides, family):
    t, _ = sides(family)
    a, theirs = t.architecture, t.as_transformer_lens()
    spelled = their_names(a)
    for name, full in spelled.items():
        x = t[name]
        assert torch.equal(x, t[full]), name
        assert torch.equal(theirs[name], x) or torch.equal(theirs[name], x.transpose(1, 2)), name
    without = {name for name in names(a) if not row(name).transformer_lens}
    without |= {"logits"} if a.logit_cap else set()
    without |= {"embed", "embed_projected"} if a.embed_norm == "norm" or a.embed_projection == "sum" else set()
    assert {*names(a)} - without <= {*spelled.values()}


def test_no_classic_name_is_our_own_invention(sides):
    """Each of them is a hook of a bridge of one family at least."""
    hooks = {re.sub(r"^blocks\.\d+", "blocks.i", name) for family in FAMILIES for name in sides(family)[1]}
    classic = {name for family in FAMILIES for name in classic_names(sides(family)[0].architecture)}
    assert classic - hooks == set()


def test_a_cap_stands_behind_their_logits(sides):
    t, theirs = sides("gemma2")
    cap, before = t.architecture.logit_cap, t.as_transformer_lens()["unembed.hook_out"]
    assert same(before, theirs["unembed.hook_out"])
    assert (cap * (before / cap).tanh() - t.logits).abs().max() <= TOLERANCE
    assert (before - t.logits).abs().max() > 1e-2
    with pytest.raises(KeyError, match="stands before the cap"):
        t["unembed.hook_out"]


@pytest.mark.parametrize(
    ("family", "name", "reason"),
    [
        ("llama", "hook_pos_embed", "rotary adds nothing to the stream"),
        ("llama", "blocks.7.hook_resid_pre", "3 layers, numbered from 0"),
        ("gpt2", "blocks.0.mlp.hook_pre_linear", "there is no tensor"),
        ("gpt2", "blocks.0.attn.q.hook_out", "there is no tensor"),
    ],
)
def test_their_names_of_what_is_not_there_say_why(sides, family, name, reason):
    t, _ = sides(family)
    with pytest.raises(KeyError, match=reason):
        t.tensors(name)


def test_encoder_decoders_have_other_names(sides):
    a = with_encoder(sides("gpt2")[0].architecture)
    network = type(sides("gpt2")[0].network)(a)
    with pytest.raises(InputError, match="names the tensors of encoder-decoders differently"):
        trace(of_ids(network), [1, 2], source=[1]).as_transformer_lens()
