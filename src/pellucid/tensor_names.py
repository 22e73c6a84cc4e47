"""One name for each tensor of a transformer: ours, the source texts' symbols, the axes, other tools' names.

The table drives the engine's taps, the reference's taps, the documentation and the tests, so that a
name means one tensor everywhere. A block's tensors are written `blocks.i.` + name; an
encoder-decoder prefixes the encoder's with `encoder.`.

Axes use the letters of the whole project: b batch, i query position, j key position, h head,
g key-value head, m d_model, d d_head, f d_ff, e expert, s width of the shared expert, v vocabulary, 1 a single entry.

Sources are numbered S0 Becker-Kahn, S1 Goon, S2 notes on transformers, S3 AP & MF, S4 Dobriban.
"""

import difflib
import fnmatch
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pellucid.architecture import Architecture


@dataclass(frozen=True)
class TensorName:
    """One row: `symbol` in the source texts, `axes` in the project's letters, `equation`.

    `transformer_lens` is TransformerLens's classic name, "" where it has none.
    """

    name: str
    axes: str
    symbol: str
    equation: str
    transformer_lens: str = ""


TABLE = (
    TensorName(
        "embed",
        "b i m",
        "S0 (1.3) t W_E^T; S1 z_bsd; S3 W_E[Ind(i)]; S4 e_j",
        "c W_E[t_i],  c = embed_scale; with d_embed c W_E[t_i] P^T, unless embed_projection = sum",
        "hook_embed",
    ),
    TensorName("pos_embed", "b i m", "S0 Rem. 1.2 P; S1 p_sd; S4 Gamma", "W_P[i]", "hook_pos_embed"),
    TensorName("seg_embed", "b i m", "", "W_S[s_i]", ""),
    TensorName("ngram_embed", "b i m", "", "sum_n W_n[r_n(t_{i-n+1} ... t_i)]", ""),
    TensorName("embed_norm.scale", "b i 1", "", "sigma or rho", ""),
    TensorName("embed_norm.normalized", "b i m", "", "(x - mu) / sigma or x / rho", ""),
    TensorName("embed_norm", "b i m", "", "norm(x_0)", ""),
    TensorName(
        "embed_projected", "b i m", "", "y P^T + b_P, y the sum of the embeddings, normalised where embed_norm is", ""
    ),
    TensorName("blocks.i.resid_pre", "b i m", "S0 X; S2 x0; S3 x^(l-1)", "x", "blocks.i.hook_resid_pre"),
    TensorName("blocks.i.norm_1.scale", "b i 1", "S3, S4 sigma", "sigma or rho", "blocks.i.ln1.hook_scale"),
    TensorName(
        "blocks.i.norm_1.normalized",
        "b i m",
        "S3, S4 (x - mu) / sigma",
        "(x - mu) / sigma or x / rho",
        "blocks.i.ln1.hook_normalized",
    ),
    TensorName("blocks.i.norm_1", "b i m", "S1 LN(z); S3, S4 LN", "norm(x)", "blocks.i.ln1.hook_out"),
    TensorName("blocks.i.attn.q", "b h i d", "S1 q_bsea; S3 Query; S4 Q", "x W_Q^T", "blocks.i.attn.hook_q"),
    TensorName("blocks.i.attn.k", "b g j d", "S1 k_bsea; S3 Key; S4 K", "x W_K^T", "blocks.i.attn.hook_k"),
    TensorName("blocks.i.attn.v", "b g j d", "S1 v_bsea; S3 Value; S4 V", "x W_V^T", "blocks.i.attn.hook_v"),
    TensorName("blocks.i.attn.rot_q", "b h i d", "", "R_i q_i", "blocks.i.attn.hook_rot_q"),
    TensorName("blocks.i.attn.rot_k", "b g j d", "", "R_j k_j", "blocks.i.attn.hook_rot_k"),
    TensorName(
        "blocks.i.attn.scores",
        "b h i j",
        "S2 x Y x^T; S3 Score / sqrt(d_k); S4 Z",
        "scale q_i . k_j (- slope |i - j|, + b[r(i - j)]), -inf where i may not read j",
        "blocks.i.attn.hook_attn_scores",
    ),
    TensorName(
        "blocks.i.attn.pattern",
        "b h i j",
        "S0 (3.5) A^h; S1 w_bss'a; S3 Weight; S4 A",
        "softmax_j(scores)",
        "blocks.i.attn.hook_pattern",
    ),
    TensorName("blocks.i.attn.z", "b h i d", "S1 y_bse; S3 AH; S4 V-hat", "sum_j A_ij v_j", "blocks.i.attn.hook_z"),
    TensorName("blocks.i.attn.result", "b h i m", "S0 (3.6) h(X); S2 h_j", "z_h W_O^h^T", "blocks.i.attn.hook_result"),
    TensorName("blocks.i.norm_1_out.scale", "b i 1", "", "sigma or rho", "blocks.i.ln1_post.hook_scale"),
    TensorName(
        "blocks.i.norm_1_out.normalized",
        "b i m",
        "",
        "(x - mu) / sigma or x / rho",
        "blocks.i.ln1_post.hook_normalized",
    ),
    TensorName("blocks.i.norm_1_out", "b i m", "", "norm(sum_h result + b_O)", "blocks.i.ln1_post.hook_out"),
    TensorName(
        "blocks.i.attn_out",
        "b i m",
        "S0 sum_h h(X); S2 H(x); S4 e'",
        "c (sum_h result + b_O), or c norm_1_out,  c = residual_scale",
        "blocks.i.hook_attn_out",
    ),
    TensorName(
        "blocks.i.resid_mid", "b i m", "S0 ATTN_H(X); S2 x1; S3 x^(l-1,*)", "x + attn_out", "blocks.i.hook_resid_mid"
    ),
    TensorName("blocks.i.norm_cross.scale", "b i 1", "", "sigma or rho", ""),
    TensorName("blocks.i.norm_cross.normalized", "b i m", "", "(x - mu) / sigma or x / rho", ""),
    TensorName("blocks.i.norm_cross", "b i m", "S4 figure (Vaswani)", "norm(x)", ""),
    TensorName("blocks.i.cross.q", "b h i d", "S4 figure (Vaswani)", "x W_Q^T", ""),
    TensorName("blocks.i.cross.k", "b g j d", "S4 figure (Vaswani)", "y W_K^T for the encoder's output y", ""),
    TensorName("blocks.i.cross.v", "b g j d", "S4 figure (Vaswani)", "y W_V^T", ""),
    TensorName("blocks.i.cross.scores", "b h i j", "S4 figure (Vaswani)", "scale q_i . k_j", ""),
    TensorName("blocks.i.cross.pattern", "b h i j", "S4 figure (Vaswani)", "softmax_j(scores)", ""),
    TensorName("blocks.i.cross.z", "b h i d", "S4 figure (Vaswani)", "sum_j A_ij v_j", ""),
    TensorName("blocks.i.cross.result", "b h i m", "S4 figure (Vaswani)", "z_h W_O^h^T", ""),
    TensorName("blocks.i.cross_out", "b i m", "S4 figure (Vaswani)", "c (sum_h result + b_O),  c = residual_scale", ""),
    TensorName("blocks.i.resid_cross", "b i m", "S4 figure (Vaswani)", "x + cross_out", ""),
    TensorName("blocks.i.norm_2.scale", "b i 1", "S3, S4 sigma", "sigma or rho", "blocks.i.ln2.hook_scale"),
    TensorName(
        "blocks.i.norm_2.normalized",
        "b i m",
        "S3, S4 (x - mu) / sigma",
        "(x - mu) / sigma or x / rho",
        "blocks.i.ln2.hook_normalized",
    ),
    TensorName("blocks.i.norm_2", "b i m", "S3, S4 LN", "norm(x)", "blocks.i.ln2.hook_out"),
    TensorName("blocks.i.mlp.router", "b i e", "", "r = x W_R^T + b_R", ""),
    TensorName(
        "blocks.i.mlp.expert_weights",
        "b i e",
        "",
        "g_e as mlp.router_softmax says, 0 for experts that i does not use",
        "",
    ),
    TensorName("blocks.i.mlp.expert_k.gate", "b i f", "", "x W_gate^T + b_gate of expert k, for every position", ""),
    TensorName("blocks.i.mlp.expert_k.pre", "b i f", "", "x W_up^T + b_up of expert k, for every position", ""),
    TensorName(
        "blocks.i.mlp.expert_k.post",
        "b i f",
        "",
        "f(pre), or f(gate) * pre, of expert k",
        "",
    ),
    TensorName("blocks.i.mlp.expert_k.result", "b i m", "", "g_k (post W_out^T + b_out) of expert k", ""),
    TensorName("blocks.i.mlp.shared.gate", "b i s", "", "x W_gate^T + b_gate of the shared expert", ""),
    TensorName("blocks.i.mlp.shared.pre", "b i s", "", "x W_up^T + b_up of the shared expert", ""),
    TensorName(
        "blocks.i.mlp.shared.post",
        "b i s",
        "",
        "f(pre), or f(gate) * pre, of the shared expert",
        "",
    ),
    TensorName("blocks.i.mlp.shared.result", "b i m", "", "s(x) (post W_out^T + b_out) of the shared expert", ""),
    TensorName("blocks.i.mlp.gate", "b i f", "", "x W_gate^T + b_gate", "blocks.i.mlp.hook_pre"),
    TensorName(
        "blocks.i.mlp.pre", "b i f", "S0 (2.5) z^(1); S4 K~^T e", "x W_up^T + b_up", "blocks.i.mlp.hook_pre_linear"
    ),
    TensorName("blocks.i.mlp.pre.l", "b i f", "S0 (2.5) z^(l+1)", "a_l W_l^T + b_l", ""),
    TensorName("blocks.i.mlp.post.l", "b i f", "S0 (2.6) a^(l+1)", "f(pre.l)", ""),
    TensorName(
        "blocks.i.mlp.post",
        "b i f",
        "S0 (2.6) a^(1); S4 sigma(K~^T e)",
        "f(pre), or f(gate) * pre",
        "blocks.i.mlp.hook_post",
    ),
    TensorName("blocks.i.norm_2_out.scale", "b i 1", "", "sigma or rho", "blocks.i.ln2_post.hook_scale"),
    TensorName(
        "blocks.i.norm_2_out.normalized",
        "b i m",
        "",
        "(x - mu) / sigma or x / rho",
        "blocks.i.ln2_post.hook_normalized",
    ),
    TensorName("blocks.i.norm_2_out", "b i m", "", "norm(post W_out^T + b_out)", "blocks.i.ln2_post.hook_out"),
    TensorName(
        "blocks.i.mlp_out",
        "b i m",
        "S0 m(X); S2 MLP(x1); S3 FFN",
        "c (post W_out^T + b_out), or c sum_k of expert_k.result and shared.result; or c norm_2_out",
        "blocks.i.hook_mlp_out",
    ),
    TensorName(
        "blocks.i.resid_post", "b i m", "S0 (4.1) B(X); S2 x2; S3 x^(l)", "x + mlp_out", "blocks.i.hook_resid_post"
    ),
    TensorName("final_norm.scale", "b i 1", "S3, S4 sigma", "sigma or rho", "ln_final.hook_scale"),
    TensorName(
        "final_norm.normalized",
        "b i m",
        "S3, S4 (x - mu) / sigma",
        "(x - mu) / sigma or x / rho",
        "ln_final.hook_normalized",
    ),
    TensorName("final_norm", "b i m", "S1, S3, S4 LN", "norm(x)", "ln_final.hook_out"),
    TensorName(
        "logits",
        "b i v",
        "S0 l(S); S3 U x; S4 S",
        "c x W_U^T,  c = logit_scale; with d_embed c x Q^T W_U^T",
        "unembed.hook_out",
    ),
    TensorName("probs", "b i v", "S0 P_S; S4 P", "softmax_v(logits)", ""),
    TensorName("loss", "b i", "S4 -log P_v", "-log P(t_{i+1} | t_0 ... t_i)", ""),
)

BLOCK_NORMS = ("norm_1", "norm_1_out", "norm_2", "norm_2_out")
ROWS = {row.name: row for row in TABLE}


def row(full: str) -> TensorName:
    """The row of the table that a full name such as `blocks.3.attn.pattern` belongs to."""
    template = re.sub(r"^(encoder\.)?blocks\.\d+\.", "blocks.i.", full).removeprefix("encoder.")
    return ROWS[_numbers_as_letters(template)]


def _numbers_as_letters(template: str) -> str:
    """`mlp.pre.2` as `mlp.pre.l`, and `mlp.expert_2.pre` as `mlp.expert_k.pre`."""
    template = re.sub(r"\.mlp\.(pre|post)\.\d+$", r".mlp.\1.l", template)
    return re.sub(r"\.mlp\.expert_\d+\.", ".mlp.expert_k.", template)


def axes(full: str) -> list[str]:
    """The axes of a tensor, as letters: `["b", "h", "i", "j"]` for a pattern."""
    return row(full).axes.split()


def stack_of(full: str, a: Architecture) -> Architecture:
    """The stack that computes a tensor: the encoder, for a name that begins with `encoder.`, or the decoder."""
    return a.encoder if full.startswith("encoder.") and a.encoder is not None else a


def axis_sizes(full: str, a: Architecture) -> dict[str, int]:
    """The length of each axis that the architecture decides, by its letter; texts decide b, i and j.

    m is d_model, but d_embed in a tensor that the projection of embed_projection = sum comes after.
    """
    part, inner = stack_of(full, a), full.removeprefix("encoder.")
    m = part.embed_sum_width if inner in TEMPLATES_BEFORE and inner != "embed_projected" else part.d_model
    sizes = {"h": part.n_heads, "g": part.n_kv_heads, "d": part.d_head, "m": m, "f": part.d_ff, "v": part.n_vocab}
    return sizes | {"e": part.mlp.experts, "s": part.mlp.shared_d_ff, "1": 1}


def absent(template: str, a: Architecture, layer: int | None = None) -> str:
    """Why the architecture, or one layer of it, has no tensor of this row; "" where it has."""
    rotated = a.rotates_somewhere if layer is None else a.rotates(layer)
    unrotated = f"positions.kind = {a.positions.kind} rotates nothing"
    if a.rotates_somewhere:
        unrotated = f"layer {layer} rotates nothing"
    part = template.split(".")[-1] if template.endswith((".scale", ".normalized")) else ""
    tensor = template.removeprefix("blocks.i.").removesuffix(f".{part}")
    without = "norm.kind = none" if a.norm.kind == "none" else f"block = {a.block} has no such norm"
    is_first = layer == 0 or a.n_layers == 1
    unnormed = is_first and a.first_norm == "none" and a.norm.kind != "none"
    reasons = {
        "pos_embed": (
            not a.adds_positions,
            f"positions.kind = {a.positions.kind} adds nothing to the stream",
        ),
        "seg_embed": (not a.n_segments, "n_segments = 0"),
        "ngram_embed": (not a.ngrams, "ngrams = () adds nothing to the stream"),
        "embed_projected": (a.embed_projection != "sum", f"embed_projection = {a.embed_projection}"),
        "embed_norm": (a.embed_norm == "none" or a.norm.kind == "none", "the embedded stream is not normalised"),
        **{name: (a.norm.kind == "none" or name not in a.block_norms, without) for name in BLOCK_NORMS},
        **({"norm_1": (True, "first_norm = none: block 0 has no such norm")} if unnormed else {}),
        "norm_cross": (a.norm.kind == "none" or a.encoder is None, "no encoder is read, or norm.kind = none"),
        "final_norm": (a.final_norm == "none" or a.norm.kind == "none", "the last stream is not normalised"),
        "attn.rot_q": (not rotated, unrotated),
        "attn.rot_k": (not rotated, unrotated),
        "resid_mid": (
            a.block in ("parallel", "shared"),
            f"a {a.block} block adds attention and MLP to the stream at once",
        ),
        "logits": (a.readout == "none", "readout = none: the stream is the result, and no token has a probability"),
        **_absent_from_mixture(a),
        "mlp.gate": (a.mlp.form != "gated", "mlp.form = plain has no gate"),
        "mlp.pre": (a.mlp.n_hidden != 1, f"mlp.n_hidden = {a.mlp.n_hidden}: {_numbered('mlp.pre', a)}"),
        "mlp.post": (a.mlp.n_hidden != 1, f"mlp.n_hidden = {a.mlp.n_hidden}: {_numbered('mlp.post', a)}"),
    }
    if a.mlp.experts and tensor in ("mlp.gate", "mlp.pre", "mlp.post"):
        return f"mlp.experts = {a.mlp.experts}: say {tensor.replace('mlp.', 'mlp.expert_0.')}, ..., one for each expert"
    if tensor.endswith(".l") and a.mlp.n_hidden == 1:
        return f"mlp.n_hidden = 1: say {tensor.removesuffix('.l')}"
    if tensor.startswith(("cross", "resid_cross")):
        return "" if a.encoder is not None else "no encoder is read"
    missing, why = reasons.get(tensor, (False, ""))
    return why if missing else ""


def _absent_from_mixture(a: Architecture) -> dict[str, tuple[bool, str]]:
    """For the tensors of a mixture of experts, whether it lacks them, and why."""
    mlp, plain = a.mlp, "mlp.form = plain has no gate"
    inner = ("router", "expert_weights", *(f"expert_k.{name}" for name in ("gate", "pre", "post", "result")))
    reasons = {f"mlp.{name}": (not mlp.experts, "mlp.experts = 0: there is one MLP") for name in inner}
    without_shared = (not mlp.shared_d_ff, "mlp.shared_d_ff = 0: there is no shared expert")
    reasons |= {f"mlp.shared.{name}": without_shared for name in ("gate", "pre", "post", "result")}
    ungated = ("mlp.expert_k.gate", "mlp.shared.gate") if mlp.form == "plain" else ()
    return reasons | {name: (True, plain) for name in ungated if not reasons[name][0]}


def _numbered(name: str, a: Architecture) -> str:
    """What to say in place of the name that only one hidden layer has."""
    return f"say {name}.0, {name}.1, ..." if a.mlp.n_hidden else "an affine map hides nothing"


def names(a: Architecture) -> list[str]:
    """The full name of every tensor that a forward pass of this architecture computes, in the order of the table."""
    return list(_tensor_names(a))


# every tensor that is read by its name asks for them
@functools.lru_cache(maxsize=64)
def _tensor_names(a: Architecture) -> dict[str, None]:
    """The names as the keys of a dictionary, which keeps their order and finds one at once."""
    names = [] if a.encoder is None else [f"encoder.{name}" for name in _tensor_names(a.encoder) if name != "logits"]
    templates = [r.name for r in TABLE if not absent(r.name, a) and r.name not in ("probs", "loss")]
    inside = [t for t in templates if t.startswith("blocks.i.")]
    names += [t for t in templates if t in TEMPLATES_BEFORE]
    for i in range(a.n_layers):
        for template in (t for t in inside if not absent(t, a, i)):
            full = template.replace("blocks.i.", f"blocks.{i}.")
            if template == "blocks.i.mlp.expert_k.result":
                names += _expert_names(i, a)
            elif ".expert_k." in template:
                continue  # with its expert's result
            elif full.endswith(".l"):
                names += [f"{full[:-1]}{l}" for l in range(a.mlp.n_hidden)]
            else:
                names.append(full)
    names += [t for t in templates if t not in inside and t not in TEMPLATES_BEFORE]
    return dict.fromkeys(names)


def _expert_names(layer: int, a: Architecture) -> list[str]:
    """The full names of the inner tensors of one layer's experts, expert after expert."""
    inner = [t for t in ROWS if ".expert_k." in t and not absent(t, a)]
    of_layer = [template.replace("blocks.i.", f"blocks.{layer}.") for template in inner]
    return [name.replace(".expert_k.", f".expert_{e}.") for e in range(a.mlp.experts) for name in of_layer]


#: what a norm of a post-norm block reads, though its row in the table is before it
_READ_BY_NORM = {"norm_1": "resid_mid", "norm_cross": "resid_cross", "norm_2": "mlp_out"}


def computation_order(a: Architecture) -> list[str]:
    """The names in the order of computation.

    It differs from that of the table in post-norm blocks, and where an MLP has several hidden layers.
    """
    listed = {name: n for n, name in enumerate(_tensor_names(a))}

    def place(name: str) -> tuple[int, int]:
        inner = row(name).name.removeprefix("blocks.i.")
        read = _READ_BY_NORM.get(inner.split(".")[0]) if stack_of(name, a).block == "post" else None
        if read:
            return listed[name.removesuffix(inner) + read], 1
        if inner.endswith(".l"):
            mlp, _, layer = name.rsplit(".", 2)
            return listed[f"{mlp}.pre.0"], int(layer)
        return listed[name], 0

    return sorted(listed, key=place)


#: which attention is meant: the model's own, its attention to an encoder's output, or the encoder's own
AttentionPart = Literal["attn", "cross", "encoder"]


def attention_scope(part: AttentionPart, layer: int) -> str:
    """What the names of one layer's attention begin with, such as `blocks.3.attn`."""
    return f"encoder.blocks.{layer}.attn" if part == "encoder" else f"blocks.{layer}.{part}"


#: what is summed before the first block
EMBEDDINGS = ("embed", "pos_embed", "seg_embed", "ngram_embed")
#: what adds to the stream
_WRITERS = (*EMBEDDINGS, "embed_projected", "attn_out", "cross_out", "mlp_out")


def is_stream(full: str, a: Architecture) -> bool:
    """Whether a tensor is the residual stream at some point: in post-norm blocks, behind a norm too."""
    part, last = stack_of(full, a), full.split(".")[-1]
    norms = ("norm_1", "norm_cross", "norm_2") if part.block == "post" else ()
    normed = last == "embed_norm" and part.embed_projection == "tokens"
    return normed or last.startswith("resid_") or last in norms


def writers(point: str, a: Architecture) -> list[str]:
    """The tensors that were added to the stream before a point of it, in order: embeddings, attn_out, mlp_out, ...

    Where the embeddings' sum is projected, embed_projected is in their place. Before "" are all of the decoder.
    """
    scope, known = "encoder." if point.startswith("encoder.") else "", computation_order(a)
    before = known[: known.index(point)] if point else known
    if f"{scope}embed_projected" in before:
        before = before[before.index(f"{scope}embed_projected") :]
    return [n for n in before if n.split(".")[-1] in _WRITERS and n.startswith("encoder.") == bool(scope)]


TEMPLATES_BEFORE = tuple(r.name for r in TABLE if r.name.startswith(("embed", "pos_embed", "seg_embed", "ngram_embed")))
ALIASES = {r.transformer_lens: r.name for r in TABLE if r.transformer_lens}


#: TransformerLens's logits, which stand before the cap of `logit_cap`; ours stand after it
_UNCAPPED = "unembed.hook_out"


def classic_names(a: Architecture) -> dict[str, str]:
    """TransformerLens's classic names -> the rows of the table that they stand for in this architecture."""
    stands_for = dict(ALIASES)
    if a.mlp.form == "plain":  # in gated MLPs hook_pre is the gate
        stands_for["blocks.i.mlp.hook_pre"] = "blocks.i.mlp.pre"
        del stands_for["blocks.i.mlp.hook_pre_linear"]
    # hook_embed is the stream as block 0 reads it
    if a.embed_projection == "sum":
        stands_for["hook_embed"] = "embed_projected"
    elif a.embed_norm == "norm" and a.norm.kind != "none":
        stands_for["hook_embed"] = "embed_norm"
    if a.logit_cap:
        del stands_for[_UNCAPPED]
    return stands_for


def canonical(name: str, a: Architecture) -> str:
    """Our name for one that is written in our spelling or as TransformerLens's classic name.

    In an encoder-decoder `decoder.` may stand before the decoder's names. With one hidden layer `mlp.pre.0` is
    `mlp.pre`, and in a gated MLP TransformerLens's `hook_pre` is the gate.
    """
    name = name if a.encoder is None else name.removeprefix("decoder.")
    scope, part = "encoder." if name.startswith("encoder.") else "", stack_of(name, a)
    template, layer = _template(name.removeprefix(scope))
    template = classic_names(part).get(template, template)
    if part.mlp.n_hidden == 1:
        template = re.sub(r"\.mlp\.(pre|post)\.0$", r".mlp.\1", template)
    return scope + template.replace("blocks.i.", f"blocks.{layer}.")


def _template(name: str) -> tuple[str, str]:
    """A name with `i` in the place of its layer, and the layer: a number or `*`."""
    match = re.match(r"^blocks\.(\d+|\*)\.(.*)$", name)
    return (f"blocks.i.{match[2]}", match[1]) if match else (name, "i")


def select(patterns: str | Sequence[str], a: Architecture) -> list[str]:
    """The names that the patterns (`*` stands for anything) choose, in the order of the table.

    Raises KeyError with the reason where a pattern chooses nothing that this architecture has.
    """
    known = _tensor_names(a)
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        name = canonical(pattern, a)
        matches = [name] if name in known else fnmatch.filter(known, name)
        if not matches:
            raise KeyError(_why_no_tensor(pattern, a))
        chosen.update(matches)
    return [name for name in known if name in chosen]


def _why_no_tensor(pattern: str, a: Architecture) -> str:
    name = canonical(pattern, a)
    template, layer = _template(name.removeprefix("encoder."))
    if template == _UNCAPPED:
        why = "TransformerLens's stands before the cap (logit_cap), logits after it; as_transformer_lens() holds theirs"
        return f"this architecture has no {pattern!r}: {why}"
    try:
        template = row(re.sub(r"blocks\.\*\.", "blocks.0.", name)).name
    except KeyError:
        near = difflib.get_close_matches(name, names(a), 1)
        hint = f", such as {near[0]!r}" if near else ""
        return f"there is no tensor {pattern!r}; pellucid.tensor_names.names(architecture) lists them{hint}"
    part = a.encoder if name.startswith("encoder.") else a
    if part is None:
        why = "no encoder is read"
    elif template in ("probs", "loss"):
        why = "it follows from the logits, outside the network"
    elif part is a.encoder and template == "logits":
        why = "an encoder ends in final_norm, or in the last resid_post"
    elif template.endswith(".l") and not absent(template, part):
        layers = "its hidden layers are numbered from 0" if part.mlp.n_hidden else "an affine map hides nothing"
        why = f"mlp.n_hidden = {part.mlp.n_hidden}: {layers}"
    else:
        why = (
            absent(template, part, int(layer) if layer.isdigit() else None)
            or f"the architecture has {part.n_layers} layers, numbered from 0"
        )
    return f"this architecture has no {pattern!r}: {why}"
