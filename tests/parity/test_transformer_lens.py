"""Our trace in TransformerLens's names is TransformerLens's own, tensor by tensor, on the same weights.

Its version 4.3.0 knows one class, TransformerBridge, which wraps a model of transformers. Its hooks have two kinds of
names: classic ones, and those of what each module reads and writes.
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
from pellucid.tensor_names import canonical, module_hooks, names, select
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
#: hooks that hold no tensor of ours: ids, rotary tables, the norms of queries and keys, sums that no name is given to,
#: and what their router returns, with all rows as one
WITHOUT_A_NAME = (
    r"(embed|pos_embed|token_type_embed|embed_ln|rotary_emb)\.hook_in|.*hook_(cos|sin|hidden_states)|mlm_head\..*"
    r"|.*\.attn\.([qk]_norm\..*|hook_[qk]_normed)|.*\.hook_mlp_in|.*\.hook_expert_(weights|indices)"
)
#: hooks of one family that hold another tensor than the same hooks of the others
ODD = {
    # attn is their module of attention and the norm behind it; the scores are read behind the softmax
    "bert": r".*(attn\.hook_out|hook_attn_out|hook_attn_scores|hook_resid_mid)|ln_final\.hook_.*",
    # resid_mid is read behind norm_1
    "openai-gpt": r".*hook_resid_mid",
    # their modules add to the stream themselves; the scores are read before the distance is added
    "bloom": r".*(attn\.hook_out|mlp\.hook_out|hook_attn_scores)",
    # the router reads the positions of all rows as one row
    "qwen3_moe": r".*\.mlp\.gate\.hook_in",
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
    return trace(network, None, tokens), dict(cache.items())


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
def test_every_hook_of_theirs_is_the_tensor_that_its_name_stands_for(sides, family):
    """Every hook that fires has a name of ours or is known to have none, and holds the same numbers under it."""
    t, theirs = sides(family)
    ours, a = t.as_transformer_lens(), t.architecture
    odd = ODD.get(family, "$^")
    for name, expected in theirs.items():
        if re.fullmatch(WITHOUT_A_NAME, name):
            assert name not in ours, name
        elif re.fullmatch(odd, name):
            assert name not in ours or not same(ours[name], expected), f"{name} is not odd any more"
        elif name not in ours:
            with pytest.raises(KeyError, match=r"is not kept|say mlp\.expert_0\.\w+, \.\.\., one for each"):
                select(name, a)
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
    without = {name for name in names(a) if ".mlp." in name} if a.mlp.experts else set()  # inside a mixture
    assert {*spelled.values()} == {*names(a)} - without - ({"logits"} if a.logit_cap else set())


def test_no_name_of_version_3_is_our_own_invention(sides):
    """Each of them is a hook of a bridge of one family at least."""
    hooks = {re.sub(r"^blocks\.\d+", "blocks.i", name) for family in FAMILIES for name in sides(family)[1]}
    stood_for = {name for family in FAMILIES for name in module_hooks(sides(family)[0].architecture)}
    assert stood_for - hooks == set()


def test_a_cap_stands_behind_their_logits(sides):
    t, theirs = sides("gemma2")
    cap, before = t.architecture.logit_cap, t.as_transformer_lens()["unembed.hook_out"]
    assert same(before, theirs["unembed.hook_out"])
    assert (cap * (before / cap).tanh() - t.logits).abs().max() <= TOLERANCE
    assert (before - t.logits).abs().max() > 1e-2
    for name in ("unembed.hook_out", "hook_unembed"):
        with pytest.raises(KeyError, match="theirs stands before the cap"):
            t[name]


@pytest.mark.parametrize(
    ("family", "name", "reason"),
    [
        ("gemma2", "blocks.1.attn.hook_out", "blocks.1.attn_out comes out of that norm"),
        ("olmo2", "blocks.*.mlp.out.hook_out", r"blocks.\*.mlp_out comes out of that norm"),
        ("llama", "pos_embed.hook_out", "rotary adds nothing to the stream"),
        ("llama", "blocks.7.hook_in", "3 layers, numbered from 0"),
        ("gpt2", "blocks.0.mlp.gate.hook_out", "there is no tensor"),
        ("bert", "unembed.hook_in", "what its last linear map reads is not kept"),
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
        trace(network, None, [1, 2], source=[1]).as_transformer_lens()
