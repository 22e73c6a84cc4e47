"""The options and sizes of a transformer: one frozen value with everything that its equations depend on.

A size is an integer, a choice is an option, and each option has its formula beside it. Row vectors
throughout: position i of the stream is the row x_i, and a stored matrix W (out x in) acts as
x W^T. How a model is run (device, dtype, kernels, parallelism) is not part of this file, and
neither torch nor numpy is imported here.

Letters: i query position, j key position, h head, d = d_head, m = d_model, f = d_ff.
"""

import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from pellucid.option_values import build, field_hints, parse_value, require, resolve_field


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The positional scheme.

    none        nothing is added: only the mask depends on positions (Becker-Kahn 2023)
    learned     x_i += W_P[i] (GPT-2)
    sinusoidal  x_i += (sin(i w_k), cos(i w_k)) for k = 0 ... m/2 - 1,  w_k = base^(-2k/m) (Vaswani et al. 2017)
    rotary      q_i, k_i are rotated: plane k of the first fraction*d coordinates by the angle
                i w_k,  w_k = base^(-2k/n), n = floor(fraction d) or, where that is odd, one less (Llama)
    alibi       score_ij -= s_h (i - j), with the s_h of `slopes`
                (|i - j| where the mask lets i read later positions; BLOOM)
    relative    score_ij += b_h[r(i - j)], learned for each bucket r and shared by all layers (T5):
                r(n) = n below e = n_buckets / 2, then e + floor((n_buckets - e) log(n/e) / log(max_distance/e)),
                at most the last bucket, and r(0) for later positions; a bidirectional mask has the first half of
                the buckets for j <= i, by |i - j|, and the second half for j > i
    """

    kind: Literal["none", "learned", "sinusoidal", "rotary", "alibi", "relative"] = "learned"
    """the positional scheme, as in the table above"""
    base: float = 10_000.0
    """base of the frequencies w_k, of sinusoidal and rotary positions (Vaswani et al. 2017; larger: Llama 3)"""
    fraction: float = 1.0
    """share of a head's coordinates that rotary positions rotate (GPT-NeoX)"""
    layout: Literal["halves", "pairs"] = "halves"
    """the coordinates of plane k: halves (k, k + d/2), pairs (2k, 2k + 1) (halves: Llama; pairs: GPT-J)"""
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope", "dynamic"] = "none"
    """scaling of the rotary w_k = base^(-2k/n) for texts longer than n_trained: none; linear w_k / factor;
    llama3 c w_k + (1 - c) w_k / factor, c = (n_trained w_k / 2 pi - low) / (high - low) cut to 0 ... 1;
    yarn (1 - r) w_k + r w_k / factor, r = (k - b) / (e - b) cut to 0 ... 1, where k_t = n log(n_trained / 2 pi t) /
    (2 log base) is the plane of t turns, b = max(floor(k_high), 0), e = min(ceil(k_low), n - 1);
    longrope w_k / short_factors[k] in a text of up to n_trained positions, w_k / long_factors[k] everywhere in a
    longer one;
    dynamic w_k with base s^(n/(n-2)) for base, s = factor n_ctx / n_trained - factor + 1 where n_ctx > n_trained
    (linear: Gemma 3; llama3: Llama 3; yarn: Peng et al. 2023; longrope: Phi-3; dynamic: Peng et al. 2023)
    """
    factor: float = 8.0
    """factor of the scaling (Llama 3)"""
    low: float = 1.0
    """low of llama3 and yarn: w_k with fewer turns than this in n_trained positions are divided (Llama 3)"""
    high: float = 4.0
    """high of llama3 and yarn: w_k with more turns than this in n_trained positions are unchanged (Llama 3)"""
    attention_factor: float = 0.0
    """c > 0: yarn and longrope multiply rotated coordinates by c; 0: yarn by 0.1 log(factor) + 1, longrope by
    sqrt(1 + log(factor) / log(n_trained)), both by 1 for a factor below 1 (Peng et al. 2023; Phi-3)
    """
    n_trained: int = 8192
    """context length of the training before the scaling (Llama 3)"""
    short_factors: tuple[float, ...] = ()
    """a divisor of w_k for each plane k of longrope; (): 1 for each (Phi-3)"""
    long_factors: tuple[float, ...] = ()
    """the same in texts of more than n_trained positions (Phi-3)"""
    every: int = 0
    """n > 0: every n-th layer, where n divides l + 1, has no rotary positions (NoPE); 0: all layers have them (SmolLM3)
    """
    local_base: float = 0.0
    """base of the rotary w_k in layers with a window, where they are not scaled; 0: as in the other layers (Gemma 3)"""
    slopes: Literal["geometric", "interleaved"] = "geometric"
    """s_h of alibi for h = 1 ... n_heads: geometric 2^(-8h/n_heads); interleaved, with p the largest power of two up
    to n_heads: 2^(-8h/p) for h <= p, then 2^(-4(2(h - p) - 1)/p) (interleaved: BLOOM)
    """
    n_buckets: int = 32
    """number of buckets of relative positions (T5)"""
    max_distance: int = 128
    """the distance from which on all relative positions are in the last bucket (T5)"""

    def n_exact(self, mask: str) -> int:
        """The number of distances with a bucket of their own, on each side under a bidirectional mask."""
        return self.n_buckets // (4 if mask == "bidirectional" else 2)

    def check(self, a: "Architecture") -> None:
        """Refuse values that contradict each other or the rest of the architecture."""
        require(self.base > 0, "positions.base", self.base, "a number above 0")
        require(0 < self.fraction <= 1, "positions.fraction", self.fraction, "above 0, at most 1")
        require(self.factor > 0, "positions.factor", self.factor, "a number above 0")
        require(self.every >= 0, "positions.every", self.every, "0 (no layer is left out) or a number above it")
        require(self.local_base >= 0, "positions.local_base", self.local_base, "0 (none) or a number above it")
        below_high = f"from 0 up to, not including, positions.high = {self.high}"
        require(0 <= self.low < self.high, "positions.low", self.low, below_high)
        own = self.attention_factor
        require(own >= 0, "positions.attention_factor", own, "0 (as positions.scaling says) or a number above it")
        require(self.n_trained >= 1, "positions.n_trained", self.n_trained, "at least 1")
        if self.kind == "rotary":
            planes = "fraction * d_head of 2 or more: a plane has two coordinates"
            require(a.d_rotary >= 2, "positions.fraction", self.fraction, planes)
            self.check_scaling(a)
        if self.kind == "relative":
            exact = self.n_exact(a.attention.mask)
            require(exact >= 1, "positions.n_buckets", self.n_buckets, "2 or more, 4 where bidirectional")
            farther = f"more than {exact}, the distances that have a bucket each"
            require(self.max_distance > exact, "positions.max_distance", self.max_distance, farther)
        if self.kind == "sinusoidal":
            name = "d_embed" if a.embed_projection == "sum" else "d_model"
            even = "an even number where positions.kind = sinusoidal"
            require(a.embed_sum_width % 2 == 0, name, a.embed_sum_width, even)

    def check_scaling(self, a: "Architecture") -> None:
        """Refuse values that the formula of the scaling cannot take."""
        above_1 = f"a number above 1 where positions.scaling = {self.scaling}"
        require(self.scaling != "yarn" or self.base > 1, "positions.base", self.base, above_1)
        if self.scaling == "longrope":
            require(self.n_trained > 1, "positions.n_trained", self.n_trained, above_1)
        if self.scaling == "dynamic":
            several = "3 or more rotated coordinates where positions.scaling = dynamic"
            require(a.d_rotary > 2, "positions.fraction", self.fraction, several)
        for name in ("short_factors", "long_factors"):
            factors = getattr(self, name)
            fits = len(factors) in (0, a.d_rotary // 2) and min(factors, default=1.0) > 0
            expected = f"() or a number above 0 for each of {a.d_rotary // 2} planes"
            require(fits or self.scaling != "longrope", f"positions.{name}", factors, expected)


@dataclass(frozen=True)
class PositionalScheme:
    """What the rest of the program asks of a positional scheme."""

    enters: Literal["stream", "rotation", "scores"]
    """where order enters: rows added to the stream, q and k rotated, or numbers added to the scores"""
    fields: tuple[str, ...] = ()
    """the other fields of Positions that it reads"""
    weights: Callable[["Architecture"], tuple[int, ...]] = lambda a: ()
    """the shape of its table of weights, one for all layers; (): it is a formula"""


#: the scheme of each positions.kind but none
POSITIONAL_SCHEMES = {
    "learned": PositionalScheme("stream", weights=lambda a: (a.n_ctx, a.embed_sum_width)),
    "sinusoidal": PositionalScheme("stream", ("base", "layout")),
    "rotary": PositionalScheme("rotation", ("base", "fraction", "layout", "scaling", "local_base")),
    "alibi": PositionalScheme("scores", ("slopes",)),
    "relative": PositionalScheme(
        "scores", ("n_buckets", "max_distance"), weights=lambda a: (a.positions.n_buckets, a.n_heads)
    ),
}
#: the fields of Positions that each positions.scaling of rotary positions reads
SCALING_FIELDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low", "high", "n_trained"),
    "yarn": ("factor", "low", "high", "n_trained", "attention_factor"),
    "longrope": ("factor", "n_trained", "attention_factor", "short_factors", "long_factors"),
    "dynamic": ("factor", "n_trained"),
}


@dataclass(frozen=True, kw_only=True)
class Norm:
    """How a vector x of d_model coordinates is normalised, with mu = mean(x), v = mean((x - mu)^2).

    none   x
    layer  gain * (x - mu) / sigma + bias      sigma = sqrt(v + eps)           (eps_at = inside)
                                               sigma = sqrt(v) + eps           (eps_at = outside)
    rms    gain * x / rho                      rho = sqrt(mean(x^2) + eps)  or sqrt(mean(x^2)) + eps
    """

    kind: Literal["none", "layer", "rms"] = "layer"
    """how a vector is normalised, as in the table above (layer: GPT-2; rms: Llama; none: Becker-Kahn 2023)"""
    eps: float = 1e-5
    """keeps the divisor above 0 (GPT-2)"""
    eps_at: Literal["inside", "outside"] = "inside"
    """whether eps is added inside or outside the root (inside: GPT-2; outside: the slides of AP & MF)"""
    bias: Literal["none", "all"] = "all"
    """whether layer norm adds its bias vector: none, all (rms norm has none to add) (all: GPT-2; none: Cohere)"""
    gain: Literal["g", "1+g", "1"] = "g"
    """the factor: the stored vector g, or 1 + g, or the number 1, for which nothing is stored (1+g: Gemma; 1: OLMo)"""

    def check(self, a: "Architecture") -> None:
        """Raise ArchitectureError for an eps that is not valid."""
        require(0 <= self.eps < 1, "norm.eps", self.eps, "a number from 0 up to, not including, 1")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """A = softmax_j(scale q_i . k_j + mask),  z_i = sum_j A_ij v_j,  out = concat_h(z) W_O^T.

    Query head h reads the keys and values of head floor(h n_kv_heads / n_heads): n_kv_heads =
    n_heads is multi-head, 1 is multi-query, anything between is grouped-query attention.
    n_kv_heads = 0 stands for n_heads, d_head = 0 for d_model / n_heads.
    """

    n_heads: int = 4
    """heads of queries (Vaswani et al. 2017)"""
    n_kv_heads: int = 0
    """heads of keys and values; 0 stands for n_heads (one: Falcon; several: Llama 3)"""
    d_head: int = 0
    """width of one head's queries, keys and values; 0 stands for d_model / n_heads (Qwen3)"""
    mask: Literal["causal", "bidirectional", "prefix"] = "causal"
    """causal j <= i; bidirectional every j; prefix j <= i, or j inside a prefix given with the input
    (causal: GPT-2; bidirectional: BERT; prefix: Raffel et al. 2020)
    """
    windows: tuple[int, ...] = (0,)
    """layer l also requires |i - j| < windows[l mod len]; 0: no window (Mistral; alternating: Gemma 2)"""
    scale: Literal["1/sqrt(d_head)", "1/d_head", "1", "1/sqrt(d_model/n_heads)", "scale_value"] = "1/sqrt(d_head)"
    """the factor before q_i . k_j
    (1/sqrt(d_head): GPT-2; 1/d_head: Yang et al. 2022, muP; 1: T5; 1/sqrt(d_model/n_heads): Gemma 2 of 27B;
    scale_value: Granite)
    """
    scale_value: float = 1.0
    """the factor itself, where scale = scale_value (Granite)"""
    score_cap: float = 0.0
    """c > 0: c tanh(s / c) replaces s = scale q_i . k_j; 0: no cap (Gemma 2)"""
    bias: Literal["none", "qkv", "out", "all"] = "all"
    """which of the four projections have a bias: none, qkv, out, all
    (all: GPT-2; none: Llama; qkv: Qwen2; out: GPT-Neo)
    """
    qk_norm: Literal["none", "rms", "rms_all", "layer", "layer_own"] = "none"
    """the norm of q and k before rotation, with eps inside its root and the gain of norm.gain: none; rms: root mean
    square of every head; rms_all: of all heads together, and of all heads of keys; layer: layer norm of every head,
    one gain and (norm.bias) one bias for all of them; layer_own: the same with a gain for each head, and no bias
    (rms: Qwen3; rms_all: OLMo 2; layer: Persimmon; layer_own: Cohere)
    """

    def check(self, a: "Architecture") -> None:
        """Refuse values that contradict each other or d_model."""
        heads, kv = self.n_heads, self.n_kv_heads
        require(heads >= 1, "attention.n_heads", heads, "at least 1")
        require(kv >= 0, "attention.n_kv_heads", kv, "0 (as many as n_heads) or a divisor of n_heads")
        require(heads % (kv or heads) == 0, "attention.n_kv_heads", kv, f"a divisor of n_heads = {heads}")
        require(self.d_head >= 0, "attention.d_head", self.d_head, "0 (d_model / n_heads) or more")
        if not self.d_head:
            fits = f"a divisor of d_model = {a.d_model}, or attention.d_head set"
            require(a.d_model % heads == 0, "attention.n_heads", heads, fits)
        fits = bool(self.windows) and min(self.windows) >= 0
        require(fits, "attention.windows", self.windows, "one or more integers >= 0")
        require(self.scale_value > 0, "attention.scale_value", self.scale_value, "a number above 0")
        require(self.score_cap >= 0, "attention.score_cap", self.score_cap, "0 (none) or a number above it")


@dataclass(frozen=True, kw_only=True)
class MLP:
    """The multi-layer perceptron with n_hidden hidden layers, applied to each position separately.

    plain  a_0 = x;  a_l = f(a_{l-1} W_l^T + b_l) for l = 1 ... n_hidden;  m(x) = a_last W_out^T + b_out
    gated  m(x) = (f(x W_gate^T + b_gate) * u) W_out^T + b_out,  u = x W_up^T + b_up        (n_hidden = 1)

    n_hidden = 0 is the affine map x W_out^T + b_out. d_ff = 0 stands for 4 d_model.

    experts > 0: a mixture of experts (Shazeer et al. 2017; Jiang et al. 2024), MLPs m_1 ... m_experts of this form.
    With the router's logits r = x W_R^T, and U the experts_per_token experts with the largest r_e at a position:

    m(x) = sum_{e in U} g_e m_e(x) + s(x) m_shared(x)      g_e as router_softmax says, s as shared_gate says
    """

    d_ff: int = 0
    """width of the hidden layers; 0 stands for 4 d_model (Vaswani et al. 2017)"""
    n_hidden: int = 1
    """number of hidden layers; 0: an affine map (Becker-Kahn 2023)"""
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "quick_gelu", "tanh"] = "gelu_tanh"
    """gelu x Phi(x); gelu_tanh its tanh approximation; relu max(x, 0); relu2 max(x, 0)^2;
    silu x / (1 + e^-x); quick_gelu x / (1 + e^(-1.702 x)); tanh
    (gelu: BERT; gelu_tanh: GPT-2; relu: OPT; relu2: Nemotron; silu: Llama; quick_gelu: CLIP; tanh: Becker-Kahn
    2023)
    """
    form: Literal["plain", "gated"] = "plain"
    """plain or gated, as above (plain: GPT-2; gated: Llama)"""
    bias: Literal["none", "all"] = "all"
    """whether the linear maps have a bias: none, all (all: GPT-2; none: Llama)"""
    experts: int = 0
    """number of experts, of which each position uses some; 0: one MLP that every position uses (Mixtral)"""
    experts_per_token: int = 2
    """k: number of experts that each position uses (without effect where experts = 0, as router_softmax) (Mixtral)"""
    router_softmax: Literal["chosen", "all"] = "chosen"
    """g_e for e in U: chosen exp(r_e) / sum_{u in U} exp(r_u), which is also a softmax over all experts, renormalised;
    all exp(r_e) / (sum over all experts u of exp(r_u)), as it is (chosen: Mixtral; all: OLMoE)
    """
    shared_d_ff: int = 0
    """width of m_shared, which every position uses beside its experts (n shared experts of width d are one of n d);
    0: there is none (Qwen2-MoE)
    """
    shared_gate: Literal["none", "sigmoid"] = "none"
    """s(x): none 1; sigmoid 1 / (1 + exp(-x w_s^T)) (without effect where shared_d_ff = 0)
    (none: DeepSeekMoE; sigmoid: Qwen2-MoE)
    """

    def check(self, a: "Architecture") -> None:
        """Raise ArchitectureError for sizes that are not valid, and for forms that exclude each other."""
        require(self.d_ff >= 0, "mlp.d_ff", self.d_ff, "0 (4 d_model) or more")
        require(self.n_hidden >= 0, "mlp.n_hidden", self.n_hidden, "0 or more hidden layers")
        fits = self.form == "plain" or self.n_hidden == 1
        require(fits, "mlp.n_hidden", self.n_hidden, "1 where mlp.form = gated")
        require(self.experts >= 0, "mlp.experts", self.experts, "0 (one MLP) or more")
        if self.experts:
            require(self.n_hidden == 1, "mlp.n_hidden", self.n_hidden, "1 where mlp.experts > 0")
            fits, some = 1 <= self.experts_per_token <= self.experts, f"1 to mlp.experts = {self.experts}"
            require(fits, "mlp.experts_per_token", self.experts_per_token, some)
        require(self.shared_d_ff >= 0, "mlp.shared_d_ff", self.shared_d_ff, "0 (no shared expert) or more")
        fits = self.experts > 0 or not self.shared_d_ff
        require(fits, "mlp.shared_d_ff", self.shared_d_ff, "0 where mlp.experts = 0: it stands beside other experts")


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Rates p of inverted dropout in training: each entry is 0 with probability p, else divided by 1 - p."""

    embed: float = 0.0
    """on x_0 (GPT-2)"""
    pattern: float = 0.0
    """on A (GPT-2)"""
    attn_out: float = 0.0
    """on the output of attention (GPT-2)"""
    mlp_out: float = 0.0
    """on the output of the MLP (GPT-2)"""

    def check(self, a: "Architecture") -> None:
        """Raise ArchitectureError for values that are not rates."""
        for name, rate in dataclasses.asdict(self).items():
            require(0 <= rate < 1, f"dropout.{name}", rate, "a rate from 0 up to, not including, 1")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """All options and sizes of a transformer: with the weights, they determine its function of the tokens.

    Raises ArchitectureError when constructed with values that contradict each other, naming the
    field, the value and what would be valid.
    """

    n_vocab: int
    """tokens in the vocabulary; a run sets it to the number of its tokenizer"""
    n_ctx: int
    """the context: the largest number of tokens that the model reads"""
    d_model: int
    """m, the width of the residual stream"""
    n_layers: int
    """number of blocks"""
    d_embed: int = 0
    """e > 0: rows of W_E and W_U have e coordinates; P (m x e) makes W_E[t] P^T of W_E[t], and Q (e x m) x Q^T W_U^T of
    x W_U^T, but for readout = bert, whose W is e x m; 0: they have m, without P and Q   (Lan et al. 2019, 3.1)
    """
    embed_projection: Literal["tokens", "sum"] = "tokens"
    """tokens: P acts on W_E[t], as above;  sum: positions, segments and n-grams have e coordinates too, and
    x_0 = y P^T + b_P, where y is c W_E[t] and these, summed and normalised as embed_norm says  (Clark et al. 2020)
    """
    attention: Attention = field(default_factory=Attention)
    mlp: MLP = field(default_factory=MLP)
    positions: Positions = field(default_factory=Positions)
    norm: Norm = field(default_factory=Norm)
    dropout: Dropout = field(default_factory=Dropout)
    block: Literal["pre", "post", "parallel", "shared", "inner", "sandwich"] = "pre"
    """pre       x += attn(norm_1(x));         x += mlp(norm_2(x))
    post      x = norm_1(x + attn(x));      x = norm_2(x + mlp(x))
    parallel  x += attn(norm_1(x)) + mlp(norm_2(x))
    shared    x += attn(norm_1(x)) + mlp(norm_1(x))
    inner     x += norm_1_out(attn(x));          x += norm_2_out(mlp(x))
    sandwich  x += norm_1_out(attn(norm_1(x)));  x += norm_2_out(mlp(norm_2(x)))
    (pre: GPT-2; post: BERT; parallel: GPT-NeoX; shared: GPT-J; inner: OLMo 2; sandwich: Gemma 2)
    """
    first_norm: Literal["norm", "none"] = "norm"
    """none: block 0 has no norm_1, so that norm_1(x) = x there and its attention reads the embedded stream, which
    embed_norm may have normalised (Warner et al. 2024, ModernBERT); norm: it has one, as the other blocks
    """
    residual_scale: float = 1.0
    """c > 0: every sublayer's output is multiplied by c before it is added to the stream: x + c attn(norm_1(x)), ...
    (Granite)
    """
    embed_scale: Literal["1", "sqrt(d_model)", "embed_scale_value"] = "1"
    """1: x_0 = W_E[t];  sqrt(d_model): x_0 = sqrt(d_model) W_E[t];  embed_scale_value: x_0 = c W_E[t] with
    c = embed_scale_value  (before positions are added)
    (sqrt(d_model): Gemma; embed_scale_value: Granite)
    """
    embed_scale_value: float = 1.0
    """the factor itself, where embed_scale = embed_scale_value (Granite)"""
    embed_norm: Literal["none", "norm"] = "none"
    """norm: the embedded stream, with positions and segments, is normalised (BERT; BLOOM)"""
    final_norm: Literal["none", "norm"] = "norm"
    """norm: the last block's output is normalised before the readout (norm: GPT-2; none: BERT)"""
    unembed: Literal["tied", "untied"] = "tied"
    """tied: W_U is W_E, one matrix; untied: two (tied: GPT-2; untied: Llama)"""
    readout: Literal["linear", "affine", "bert", "none"] = "linear"
    """linear: logits = x W_U^T;  affine: logits = x W_U^T + b_U;  bert: logits = norm(f(x W^T + b)) W_U^T + b_U;
    none: the stream is the result, and there are no logits
    (linear: GPT-2; affine: GPT-J; bert: BERT; none: the encoder of T5 alone)
    """
    readout_bias: Literal["all", "dense", "logits", "none"] = "all"
    """which of b and b_U there are where readout = bert: all; dense b alone; logits b_U alone; none (ModernBERT)"""
    logit_scale: Literal["1", "1/sqrt(d_model)", "logit_scale_value"] = "1"
    """1: W_U as it is; 1/sqrt(d_model): W_U / sqrt(d_model) in its place; logit_scale_value: logit_scale_value W_U
    (1/sqrt(d_model): T5; logit_scale_value: Cohere)
    """
    logit_scale_value: float = 1.0
    """the factor itself, where logit_scale = logit_scale_value (Cohere)"""
    logit_cap: float = 0.0
    """c > 0: c tanh(logit / c) replaces every logit; 0: no cap (Gemma 2)"""
    n_segments: int = 0
    """kinds of segment, each adding a learned vector W_S[s] to its positions; 0 adds nothing (BERT)"""
    ngrams: tuple[int, ...] = ()
    """lengths n of the n-grams that add a vector: x_0,i += sum_n W_n[r_n(t_{i-n+1} ... t_i)] where i has n - 1
    tokens before it, r_n = (sum_{k<n} (t_{i-k} + 1) 1000003^k mod (2^31 - 1)) mod ngram_rows; () adds nothing
    (Roy et al. 2022; Huang et al. 2025)
    """
    ngram_rows: int = 16_384
    """rows of each table of n-grams (Roy et al. 2022)"""
    encoder: "Architecture | None" = None
    """if given, every block has cross-attention to this encoder, between attention and MLP (Vaswani et al. 2017)"""
    source_embed: Literal["own", "shared"] = "own"
    """own: the encoder has a separate W_E; shared: it uses this W_E (without effect where there is no encoder)
    (own: Marian; shared: T5)
    """

    def __post_init__(self):
        _check(self)

    # Sizes that follow from the others ------------------------------------------------------

    @property
    def d_head(self) -> int:
        """Width of one head's queries, keys and values."""
        return self.attention.d_head or self.d_model // self.attention.n_heads

    @property
    def embed_width(self) -> int:
        """Width of the rows of W_E and W_U."""
        return self.d_embed or self.d_model

    @property
    def embed_sum_width(self) -> int:
        """Width of the sum of rows of tokens, positions, segments and n-grams."""
        return self.d_embed if self.embed_projection == "sum" else self.d_model

    @property
    def n_heads(self) -> int:
        return self.attention.n_heads

    @property
    def n_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.attention.n_kv_heads or self.attention.n_heads

    @property
    def d_ff(self) -> int:
        """Width of the MLP's hidden layers."""
        return self.mlp.d_ff or 4 * self.d_model

    @property
    def order_enters(self) -> Literal["stream", "rotation", "scores", "mask"]:
        """Where order enters the network: as its positional scheme says, or by the mask alone."""
        scheme = POSITIONAL_SCHEMES.get(self.positions.kind)
        return "mask" if scheme is None else scheme.enters

    @property
    def position_weights(self) -> tuple[int, ...]:
        """The shape of the weights of the positional scheme; () where there are none."""
        scheme = POSITIONAL_SCHEMES.get(self.positions.kind)
        return () if scheme is None else scheme.weights(self)

    @property
    def learns_positions(self) -> bool:
        """Whether the rows that are added to the stream are weights, one for each of n_ctx positions."""
        return self.adds_positions and self.position_weights != ()

    @property
    def adds_positions(self) -> bool:
        """Whether a row for each position is added to the stream."""
        return self.order_enters == "stream"

    @property
    def biases_scores(self) -> bool:
        """Whether scores have a bias by the distance between query and key."""
        return self.order_enters == "scores"

    def rotates(self, layer: int) -> bool:
        """Whether layer `layer` rotates its queries and keys."""
        left_out = self.positions.every and (layer + 1) % self.positions.every == 0
        return self.order_enters == "rotation" and not left_out

    @property
    def rotates_somewhere(self) -> bool:
        """Whether some layer rotates its queries and keys."""
        return any(self.rotates(layer) for layer in range(self.n_layers))

    @property
    def position_table_width(self) -> int:
        """The width of the fixed table of positions; 0 where there is none."""
        tables = 2 if self.positions.local_base else 1
        return {"rotary": tables * self.d_rotary, "sinusoidal": self.embed_sum_width}.get(self.positions.kind, 0)

    @property
    def position_fields(self) -> tuple[str, ...]:
        """The fields of `positions` that this architecture depends on."""
        scaling = SCALING_FIELDS[self.positions.scaling] if self.d_rotary else ()
        every = ("every",) if self.d_rotary and 0 < self.positions.every <= self.n_layers else ()
        if self.n_ctx <= self.positions.n_trained:  # no text is longer
            scaling = tuple(name for name in scaling if name != "long_factors")
        scheme = POSITIONAL_SCHEMES.get(self.positions.kind)
        return ("kind", *(scheme.fields if scheme else ()), *scaling, *every)

    @property
    def d_rotary(self) -> int:
        """The number of rotated coordinates of each head: the even part of floor(fraction * d_head)."""
        return int(self.d_head * self.positions.fraction) // 2 * 2 if self.positions.kind == "rotary" else 0

    @property
    def dynamic_factor(self) -> float:
        """The s of positions.scaling = dynamic: 1 for a context of up to n_trained positions."""
        p = self.positions
        return p.factor * self.n_ctx / p.n_trained - p.factor + 1 if self.n_ctx > p.n_trained else 1.0

    @property
    def frequency_border(self) -> int:
        """n > 0: texts of more than n positions are rotated with other frequencies than shorter ones; 0: none are."""
        p = self.positions
        if not self.d_rotary or p.scaling != "longrope" or self.n_ctx <= p.n_trained:
            return 0
        ones = (1.0,) * (self.d_rotary // 2)
        return 0 if (p.short_factors or ones) == (p.long_factors or ones) else p.n_trained

    @property
    def scales_rotation(self) -> bool:
        """Whether positions.scaling changes a w_k: dynamic changes none in a context of up to n_trained positions."""
        return self.positions.scaling != "none" and not (
            self.positions.scaling == "dynamic" and self.dynamic_factor == 1
        )

    @property
    def block_norms(self) -> tuple[str, ...]:
        """The names of a block's norms, of which norm.kind = none has none."""
        return {
            "shared": ("norm_1",),
            "inner": ("norm_1_out", "norm_2_out"),
            "sandwich": ("norm_1", "norm_1_out", "norm_2", "norm_2_out"),
        }.get(self.block, ("norm_1", "norm_2"))

    def norms_of(self, layer: int) -> tuple[str, ...]:
        """The names of the norms of block `layer`."""
        left_out = ("norm_1",) if layer == 0 and self.first_norm == "none" else ()
        return tuple(name for name in self.block_norms if name not in left_out)

    @property
    def score_scale(self) -> float:
        """The factor before q . k."""
        d, shared = self.d_head, self.d_model / self.n_heads
        factors = {"1/sqrt(d_head)": d**-0.5, "1/d_head": 1 / d, "1": 1.0, "1/sqrt(d_model/n_heads)": shared**-0.5}
        return (factors | {"scale_value": self.attention.scale_value})[self.attention.scale]

    @property
    def embed_factor(self) -> float:
        """The factor of W_E in the embedding."""
        factors = {"1": 1.0, "sqrt(d_model)": self.d_model**0.5, "embed_scale_value": self.embed_scale_value}
        return factors[self.embed_scale]

    @property
    def unembed_scale(self) -> float:
        """The factor of W_U in the readout."""
        factors = {"1": 1.0, "1/sqrt(d_model)": self.d_model**-0.5, "logit_scale_value": self.logit_scale_value}
        return factors[self.logit_scale]

    def window(self, layer: int) -> int:
        """The window of layer `layer`, 0 for none."""
        return self.attention.windows[layer % len(self.attention.windows)]

    # Values in and out ----------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Every field, nested, in plain JSON types."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The architecture that `to_dict` wrote; unknown fields and wrong types raise ArchitectureError."""
        return build(cls, values)

    def with_fields(self, changes: Mapping[str, Any]) -> Self:
        """A copy with dotted fields changed: `{"attention.n_heads": 8, "dropout": 0.1}`.

        Values may be strings as typed on a command line. A bare name is accepted when only one part
        has it (`n_heads`, `activation`); `dropout` given a number sets all four rates.
        """
        values = self.to_dict()
        for name, value in changes.items():
            *parts, last = resolve_field(name, architecture_fields()).split(".")
            target = values
            for part in parts:
                target = target[part]
            target[last] = dict.fromkeys(target[last], value) if last == "dropout" else value
        return type(self).from_dict(values)


OPTION_GROUPS = ("attention", "mlp", "positions", "norm", "dropout")


@functools.cache
def architecture_fields() -> tuple[str, ...]:
    """The dotted name of every field that can be set by name."""
    names = [f.name for f in fields(Architecture) if f.name not in (*OPTION_GROUPS, "encoder")] + ["dropout"]
    for part in OPTION_GROUPS:
        kind = field_hints(Architecture)[part]
        names += [f"{part}.{f.name}" for f in fields(kind)]
    return tuple(names)


def field_options() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every field of the architecture that takes one of a few options: its dotted name, and the options."""
    for name in architecture_fields():
        if name != "dropout" and typing.get_origin(hint := field_type(name)) is Literal:
            yield name, typing.get_args(hint)


@functools.cache
def field_type(name: str) -> Any:
    """The declared type of the field with this dotted name."""
    part, _, last = name.rpartition(".")
    hints = field_hints(Architecture)
    return field_hints(hints[part])[last] if part else hints[last]


#: more layers than any network has; each is visited in turn wherever an architecture is described
MOST_LAYERS = 10_000


def _check(a: Architecture) -> None:
    """Raise ArchitectureError for wrong types and for contradictions: first of sizes, then of each part."""
    for name in architecture_fields():
        if name == "dropout":
            continue
        part, _, last = name.rpartition(".")
        value = getattr(getattr(a, part) if part else a, last)
        parse_value(name, value, field_type(name))
        require(not isinstance(value, int) or value < 1 << 63, name, value, "a size below 2^63, as indices are")
    for name, least in (("n_vocab", 1), ("n_ctx", 1), ("d_model", 1), ("n_layers", 0), ("n_segments", 0)):
        require(getattr(a, name) >= least, name, getattr(a, name), f"at least {least}")
    require(a.n_layers <= MOST_LAYERS, "n_layers", a.n_layers, f"at most {MOST_LAYERS:,}")
    fits = a.d_embed >= 0 and a.d_embed != a.d_model
    require(fits, "d_embed", a.d_embed, f"0 (d_model, with no projection) or another width than d_model = {a.d_model}")
    fits = a.d_embed > 0 or a.embed_projection == "tokens"
    require(fits, "embed_projection", a.embed_projection, "tokens where d_embed = 0: nothing is projected")
    ascending = sorted({*a.ngrams}) == [*a.ngrams] and min(a.ngrams, default=2) >= 2
    require(ascending, "ngrams", a.ngrams, "lengths from 2 on, in ascending order, each once")
    require(a.ngram_rows >= 1, "ngram_rows", a.ngram_rows, "at least 1")
    require(a.logit_cap >= 0, "logit_cap", a.logit_cap, "0 (none) or a number above it")
    for name in ("residual_scale", "embed_scale_value", "logit_scale_value"):
        require(getattr(a, name) > 0, name, getattr(a, name), "a number above 0")
    for part in (a.attention, a.mlp, a.norm, a.positions, a.dropout):
        part.check(a)
    fits = a.first_norm == "norm" or a.block in ("pre", "parallel", "shared", "sandwich")
    require(fits, "first_norm", a.first_norm, f"norm where block = {a.block}: no norm comes before its attention")
    fits = a.readout_bias == "all" or a.readout == "bert"
    require(fits, "readout_bias", a.readout_bias, f"all where readout = {a.readout}: bert alone has another one")
    if a.readout == "none":
        for name, value, only in (
            ("unembed", a.unembed, "tied"),
            ("logit_scale", a.logit_scale, "1"),
            ("logit_cap", a.logit_cap, 0.0),
        ):
            require(value == only, name, value, f"{only} where readout = none: there are no logits")
    if a.encoder is not None:
        same = a.encoder.d_model == a.d_model
        require(same, "encoder.d_model", a.encoder.d_model, f"d_model = {a.d_model}")
        require(a.encoder.encoder is None, "encoder.encoder", "given", "an encoder without one of its own")
        require(a.block in ("pre", "post"), "block", a.block, "pre or post where an encoder is read")
        fits = a.source_embed == "own" or a.encoder.n_vocab == a.n_vocab
        require(fits, "encoder.n_vocab", a.encoder.n_vocab, f"n_vocab = {a.n_vocab} where W_E is shared")
        fits = a.source_embed == "own" or a.encoder.d_embed == a.d_embed
        require(fits, "encoder.d_embed", a.encoder.d_embed, f"d_embed = {a.d_embed} where W_E is shared")
