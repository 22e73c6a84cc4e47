"""One name for each tensor of a transformer: ours, the source texts' symbols, the axes, other tools' names.

The table drives the engine's taps, the reference's taps, the documentation and the tests, so that a
name means one tensor everywhere. A block's tensors are written `blocks.i.` + name; an
encoder-decoder prefixes the encoder's with `encoder.`.

Axes use the letters of the whole project: b batch, i query position, j key position, h head,
g key-value head, m d_model, d d_head, f d_ff, v vocabulary, 1 a single entry.

Sources are numbered S0 Becker-Kahn, S1 Goon, S2 notes on transformers, S3 AP & MF, S4 Dobriban.
"""

import fnmatch
import re
from dataclasses import dataclass

from pellucid.architecture import Architecture


@dataclass(frozen=True)
class Name:
    """One row: `symbol` in the source texts, `axes` in the project's letters, `equation`, and aliases."""

    name: str
    axes: str
    symbol: str
    equation: str
    transformer_lens: str = ""


TABLE = (
    Name("embed", "b i m", "S0 (1.3) t W_E^T; S1 z_bsd; S3 W_E[Ind(i)]; S4 e_j", "W_E[t_i]", "hook_embed"),
    Name("pos_embed", "b i m", "S0 Rem. 1.2 P; S1 p_sd; S4 Gamma", "W_P[i]", "hook_pos_embed"),
    Name("blocks.i.resid_pre", "b i m", "S0 X; S2 x0; S3 x^(l-1)", "x", "blocks.i.hook_resid_pre"),
    Name("blocks.i.norm_1", "b i m", "S1 LN(z); S3, S4 LN", "norm(x)", ""),
    Name("blocks.i.attn.q", "b h i d", "S1 q_bsea; S3 Query; S4 Q", "x W_Q^T", "blocks.i.attn.hook_q"),
    Name("blocks.i.attn.k", "b g j d", "S1 k_bsea; S3 Key; S4 K", "x W_K^T", "blocks.i.attn.hook_k"),
    Name("blocks.i.attn.v", "b g j d", "S1 v_bsea; S3 Value; S4 V", "x W_V^T", "blocks.i.attn.hook_v"),
    Name("blocks.i.attn.rot_q", "b h i d", "", "R_i q_i", "blocks.i.attn.hook_rot_q"),
    Name("blocks.i.attn.rot_k", "b g j d", "", "R_j k_j", "blocks.i.attn.hook_rot_k"),
    Name(
        "blocks.i.attn.scores",
        "b h i j",
        "S2 x Y x^T; S3 Score / sqrt(d_k); S4 Z",
        "scale q_i . k_j (- slope |i - j|), -inf where i may not read j",
        "blocks.i.attn.hook_attn_scores",
    ),
    Name(
        "blocks.i.attn.pattern",
        "b h i j",
        "S0 (3.5) A^h; S1 w_bss'a; S3 Weight; S4 A",
        "softmax_j(scores)",
        "blocks.i.attn.hook_pattern",
    ),
    Name("blocks.i.attn.z", "b h i d", "S1 y_bse; S3 AH; S4 V-hat", "sum_j A_ij v_j", "blocks.i.attn.hook_z"),
    Name("blocks.i.attn.result", "b h i m", "S0 (3.6) h(X); S2 h_j", "z_h W_O^h^T", "blocks.i.attn.hook_result"),
    Name("blocks.i.attn_out", "b i m", "S0 sum_h h(X); S2 H(x); S4 e'", "sum_h result + b_O", "blocks.i.hook_attn_out"),
    Name("blocks.i.resid_mid", "b i m", "S0 ATTN_H(X); S2 x1; S3 x^(l-1,*)", "x + attn_out", "blocks.i.hook_resid_mid"),
    Name("blocks.i.norm_cross", "b i m", "S4 figure (Vaswani)", "norm(x)", ""),
    Name("blocks.i.cross.q", "b h i d", "S4 figure (Vaswani)", "x W_Q^T", ""),
    Name("blocks.i.cross.k", "b g j d", "S4 figure (Vaswani)", "y W_K^T for the encoder's output y", ""),
    Name("blocks.i.cross.v", "b g j d", "S4 figure (Vaswani)", "y W_V^T", ""),
    Name("blocks.i.cross.scores", "b h i j", "S4 figure (Vaswani)", "scale q_i . k_j", ""),
    Name("blocks.i.cross.pattern", "b h i j", "S4 figure (Vaswani)", "softmax_j(scores)", ""),
    Name("blocks.i.cross.z", "b h i d", "S4 figure (Vaswani)", "sum_j A_ij v_j", ""),
    Name("blocks.i.cross.result", "b h i m", "S4 figure (Vaswani)", "z_h W_O^h^T", ""),
    Name("blocks.i.cross_out", "b i m", "S4 figure (Vaswani)", "sum_h result + b_O", ""),
    Name("blocks.i.resid_cross", "b i m", "S4 figure (Vaswani)", "x + cross_out", ""),
    Name("blocks.i.norm_2", "b i m", "S3, S4 LN", "norm(x)", ""),
    Name("blocks.i.mlp.gate", "b i f", "", "x W_gate^T + b_gate", "blocks.i.mlp.hook_pre"),
    Name("blocks.i.mlp.pre", "b i f", "S0 (2.5) z^(1); S4 K~^T e", "x W_up^T + b_up", "blocks.i.mlp.hook_pre"),
    Name("blocks.i.mlp.post", "b i f", "S0 (2.6) a^(1); S4 sigma(K~^T e)", "f(pre), or f(gate) * pre", "blocks.i.mlp.hook_post"),
    Name("blocks.i.mlp_out", "b i m", "S0 m(X); S2 MLP(x1); S3 FFN", "post W_out^T + b_out", "blocks.i.hook_mlp_out"),
    Name("blocks.i.resid_post", "b i m", "S0 (4.1) B(X); S2 x2; S3 x^(l)", "x + mlp_out", "blocks.i.hook_resid_post"),
    Name("final_norm", "b i m", "S1, S3, S4 LN", "norm(x)", ""),
    Name("logits", "b i v", "S0 l(S); S3 U x; S4 S", "x W_U^T", ""),
    Name("probs", "b i v", "S0 P_S; S4 P", "softmax_v(logits)", ""),
    Name("loss", "b i", "S4 -log P_v", "-log P(t_{i+1} | t_0 ... t_i)", ""),
)
