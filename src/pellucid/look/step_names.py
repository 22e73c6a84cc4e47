"""The symbols and titles of the tensors of a model's computation, as the page shows them."""

import re

#: symbols of tensors, by the last part of their names
SYMBOLS = {
    "embed": "e_i",
    "pos_embed": "p_i",
    "seg_embed": "s_i",
    "ngram_embed": "g_i",
    "embed_norm": "y_i",
    "embed_projected": "y_i^{\\text{wide}}",
    "resid_pre": "x_i",
    "resid_mid": "x_i^{\\text{mid}}",
    "resid_cross": "x_i^{\\text{cross}}",
    "resid_post": "x_i^{\\text{post}}",
    "norm_1": "y_i",
    "norm_cross": "y_i^{\\text{cross}}",
    "norm_2": "y_i^{\\text{mid}}",
    "norm_1_out": "y_i^{\\text{out}}",
    "norm_2_out": "y_i^{\\text{out}}",
    "final_norm": "y_i^{\\text{last}}",
    "attn_out": "a_i",
    "cross_out": "a_i^{\\text{cross}}",
    "mlp_out": "m_i",
    "q": "q_i^h",
    "k": "k_j^h",
    "v": "v_j^h",
    "rot_q": "r_i^h",
    "rot_k": "r_j^h",
    "scores": "S_{ij}^h",
    "pattern": "A_{ij}^h",
    "z": "z_i^h",
    "result": "o_i^h",
    "gate": "n_i^{\\text{gate}}",
    "pre": "n_i",
    "post": "f_i",
    "logits": "l_i",
    "probs": "P_i",
    "router": "r_i",
    "expert_weights": "g_i",
}
#: what tensors are, in plain words, by the last part of their names
TITLES = {
    "embed": "Each token becomes a vector",
    "pos_embed": "Each position adds a vector",
    "seg_embed": "Each segment adds a vector",
    "ngram_embed": "The last few tokens add a vector from a table",
    "embed_projected": "The sum is brought to the width of the stream",
    "resid_pre": "The stream that this block reads",
    "q": "Queries: what each head looks for",
    "k": "Keys: what each position can be found by",
    "v": "Values: what each position passes on",
    "rot_q": "Queries, turned by their position",
    "rot_k": "Keys, turned by their position",
    "scores": "Scores: how well each key matches the query",
    "pattern": "Attention: the scores as shares that add up to 1",
    "z": "Values, mixed in these shares",
    "result": "What each head writes, as a vector of the stream",
    "attn_out": "What attention writes: all heads together",
    "cross_out": "What reading the source writes: all heads together",
    "resid_mid": "Added to the stream",
    "resid_cross": "Added to the stream",
    "gate": "The gates of the neurons",
    "pre": "The neurons before their activation",
    "post": "The neurons: how strongly each one fires",
    "mlp_out": "What the MLP writes",
    "resid_post": "The stream that leaves this block",
    "logits": "A score for each token of the vocabulary",
    "probs": "The probabilities of the next token",
    "router": "A score for each expert",
    "expert_weights": "The weights of the experts, 0 for those that are not used",
}


def expert_symbol(name: str) -> str:
    """The symbol of what an expert writes, with its number, or of what the shared one does; "" for other tensors."""
    match = re.search(r"\.mlp\.(?:expert_(\d+)|shared)\.result$", name)
    return (match and f"o_i^{{{match[1] or 's'}}}") or ""
