"""Small architectures drawn at random over every word, and networks in which every parameter can be seen.

For the laws: `@given(architectures())` draws any decoder-only architecture, `make_network` gives it
weights under which no gain is 1, no bias 0 and no position vector nothing.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st

from pellucid.architecture import MLP, Architecture, Attention, Dropout, Norm, Positions, field_options
from pellucid.model import Transformer

N_VOCAB = 11
WORDS = tuple(field_options())
#: the same without readout = none, under which there are no logits
WORDS_WITH_LOGITS = tuple((name, tuple(w for w in of if (name, w) != ("readout", "none"))) for name, of in WORDS)
PARTS = {"attention": Attention, "mlp": MLP, "positions": Positions, "norm": Norm, "dropout": Dropout}


@st.composite
def architectures(draw: st.DrawFn, fixed: Mapping[str, Any] | None = None, max_ctx: int = 12) -> Architecture:
    """Any decoder-only architecture of tiny sizes; `fixed` pins dotted fields: {"attention.mask": "causal"}.

    A pinned value may be a strategy. Words come from `architecture.words()`, so a new word is drawn
    without a change here, but for readout = none, under which there are no logits: `bodies`
    draws it. n_ctx runs from 4 to `max_ctx`; dropout is 0 unless pinned.
    """
    fields: dict[str, Any] = dict(fixed or {})
    assert all("." not in name or name.split(".")[0] in PARTS for name in fields), f"no such field among {list(fields)}"

    def choose(name: str, strategy: st.SearchStrategy) -> Any:
        given = fields.get(name, strategy)
        fields[name] = draw(given) if isinstance(given, st.SearchStrategy) else given
        return fields[name]

    for name, options in WORDS_WITH_LOGITS:
        choose(name, st.sampled_from(options))
    heads, kv = draw(st.sampled_from([(1, 0), (2, 0), (2, 1), (4, 2), (4, 1), (3, 3)]))
    heads = choose("attention.n_heads", st.just(heads))
    choose("attention.n_kv_heads", st.just(kv if heads % (kv or heads) == 0 else 0))
    # 3 heads of width 3 in 8 coordinates: nothing may assume n_heads * d_head = d_model
    choose("d_model", st.just(8))
    divides = fields["d_model"] % heads == 0
    choose("attention.d_head", st.sampled_from([0, 2, 3, 4] if divides else [2, 3, 4]))
    choose("n_layers", st.integers(1, 3))
    choose("d_embed", st.sampled_from([0, 0, 3, 10]))
    if not fields["d_embed"] or (fields["positions.kind"] == "sinusoidal" and fields["d_embed"] % 2):
        fields["embed_projection"] = "tokens"
    if fields["readout"] != "bert":
        fields["readout_bias"] = "all"
    if fields["block"] in ("post", "inner"):
        fields["first_norm"] = "norm"
    choose("n_vocab", st.just(N_VOCAB))
    choose("n_ctx", st.integers(4, max_ctx))
    choose("n_segments", st.sampled_from([0, 2]))
    choose("ngrams", st.sampled_from([(), (), (2,), (2, 3), (3,)]))
    choose("ngram_rows", st.sampled_from([1, 7, 32]) if fields["ngrams"] else st.just(16_384))
    choose("attention.windows", st.sampled_from([(0,), (3,), (0, 2), (1, 0, 4)]))
    choose("mlp.d_ff", st.sampled_from([0, 5, 12]))
    choose("mlp.n_hidden", st.just(1) if fields["mlp.form"] == "gated" else st.sampled_from([1, 1, 2, 0]))
    choose("mlp.experts", st.sampled_from([0, 0, 3]) if fields["mlp.n_hidden"] == 1 else st.just(0))
    choose("mlp.experts_per_token", st.sampled_from([1, 2, 3]))
    choose("mlp.shared_d_ff", st.sampled_from([0, 4]) if fields["mlp.experts"] else st.just(0))
    choose("norm.eps", st.sampled_from([1e-5, 1e-2]))
    choose("attention.scale_value", st.sampled_from([0.3, 1.5]))
    choose("embed_scale_value", st.sampled_from([0.5, 3.0]))
    choose("logit_scale_value", st.sampled_from([0.25, 2.0]))
    choose("residual_scale", st.sampled_from([1.0, 1.0, 0.4]))
    choose("positions.base", st.sampled_from([10_000.0, 50.0]))
    choose("positions.factor", st.sampled_from([2.0, 8.0]))
    choose("positions.attention_factor", st.sampled_from([0.0, 0.7]))
    choose("positions.low", st.sampled_from([1.0, 0.1]))
    choose("positions.local_base", st.sampled_from([0.0, 30.0]))
    choose("positions.every", st.sampled_from([0, 0, 2]))
    choose("attention.score_cap", st.sampled_from([0.0, 0.0, 2.0]))
    choose("logit_cap", st.sampled_from([0.0, 0.0, 3.0]))
    relative = fields["positions.kind"] == "relative"
    choose("positions.n_buckets", st.sampled_from([4, 6, 9]) if relative else st.just(32))
    choose("positions.max_distance", st.sampled_from([5, 8, 20]) if relative else st.just(128))
    choose("positions.n_trained", st.sampled_from([3, 16, 8192]))
    choose("positions.fraction", st.just(1.0) if fields["positions.kind"] != "rotary" else st.sampled_from([1.0, 0.75]))
    if (
        fields["positions.kind"] == "rotary"
        and int((fields["attention.d_head"] or fields["d_model"] // heads) * 0.75) < 2
    ):
        fields["positions.fraction"] = 1.0
    width = fields["attention.d_head"] or fields["d_model"] // heads
    n_planes = int(width * fields["positions.fraction"]) // 2
    if fields["positions.scaling"] == "dynamic" and n_planes < 2:
        fields["positions.scaling"] = "none"  # one plane has no last one, whose w_k would be divided
    if fields["positions.scaling"] == "longrope" and fields["positions.kind"] == "rotary":
        choose("positions.short_factors", st.sampled_from([(), tuple(1.0 + k / 2 for k in range(n_planes))]))
        choose("positions.long_factors", st.sampled_from([(), tuple(3.0 + k for k in range(n_planes))]))
        if fields["n_ctx"] > fields["positions.n_trained"]:
            # texts on both sides of the border: tests/parity/test_scaled_positions.py, tests/test_verify.py
            fields["positions.short_factors"] = fields["positions.long_factors"]
    # the parts are built directly: Architecture.with_fields reads strings too, which takes several times as long
    made = {name: value for name, value in fields.items() if "." not in name}
    for part, kind in PARTS.items():
        prefix = part + "."
        made[part] = kind(**{n.removeprefix(prefix): v for n, v in fields.items() if n.startswith(prefix)})
    return Architecture(**made)


def bodies(fixed: Mapping[str, Any] | None = None) -> st.SearchStrategy[Architecture]:
    """Any of these architectures with nothing behind the stream: readout = none."""
    nothing = {"readout": "none", "unembed": "tied", "logit_scale": "1", "logit_cap": 0.0}
    return architectures({**(fixed or {}), **nothing})


def make_network(a: Architecture, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
    """A network in eval mode with every parameter drawn at random, each by its own name.

    gains   away from 1 and 0: magnitude 0.5 to 0.8 or 1.2 to 1.5
    biases  away from 0: magnitude 0.1 to 0.5, either sign
    weights N(0, 1 / fan-in); embeddings N(0, 1); both at half that where nothing is normalised: a gated
            squared relu makes cubes, and cubes of cubes leave no digits to compare
    """
    size = 0.5 if a.norm.kind == "none" else 1.0
    network = Transformer(a).to(dtype).eval()
    with torch.no_grad():
        for name, p in network.named_parameters():
            digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
            sign = torch.randint(0, 2, p.shape, generator=generator, dtype=torch.float64) * 2 - 1
            u = torch.rand(p.shape, generator=generator, dtype=torch.float64)
            if name.endswith("gain"):
                p.copy_(1 + sign * (0.2 + 0.3 * u))
            elif name.endswith("bias"):
                p.copy_(sign * (0.1 + 0.4 * u))
            else:
                normal = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                p.copy_(size * (normal if name.startswith("embed.") else normal / p.size(-1) ** 0.5))
    return network


def difference(given: torch.Tensor, expected: torch.Tensor) -> float:
    """max |given - expected| / max(1, max |expected|), the measure of every tolerance in the laws."""
    assert given.shape == expected.shape, f"{tuple(given.shape)} is not {tuple(expected.shape)}"
    if not expected.numel():
        return 0.0
    assert expected.isfinite().all(), "the expected value is not finite"
    scale = max(1.0, expected.abs().max().item())
    worst = ((given - expected).abs().max() / scale).item()
    return worst if worst == worst else float("inf")
