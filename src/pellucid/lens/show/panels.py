"""The data of the panels of a figure."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pellucid.lens.analysis.attribution import points_of_stream, split_logits
from pellucid.lens.analysis.heads import looked_for, share
from pellucid.lens.analysis.logit_lens import logit_lens
from pellucid.lens.analysis.readout import about_the_readout
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.packing import pack_pattern, pack_tensor, plain, side_of
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits

Panel = dict[str, Any]


class Glossary:
    """The texts of all ids that the panels of a figure use, each once."""

    def __init__(self, t: Recording):
        self.trace, self.places, self.texts = t, {}, []

    def __call__(self, ids: Tensor) -> Tensor:
        """The indices of these ids in `texts`."""
        distinct, inverse = ids.unique(return_inverse=True)
        for token in distinct.tolist():
            if token not in self.places:
                self.places[token] = len(self.texts)
                self.texts.append(self.trace.spell(token))
        return torch.tensor([self.places[token] for token in distinct.tolist()])[inverse.cpu()]


def tokens_panel(t: Recording, row: int, words: Glossary, k: int = 10) -> Panel:
    """Every token with its surprisal, and the tokens that were likeliest at its position."""
    n = t.inputs.lengths[row]
    log_p = t.logits[row, :n].float().log_softmax(-1)
    best = log_p.topk(min(k, log_p.size(-1)), dim=-1)
    panel = {
        "kind": "tokens",
        "title": "Tokens",
        "entropy": pack_tensor(-(log_p.exp() * log_p).sum(-1) / torch.log(torch.tensor(2.0))),
        "top": pack_tensor(words(best.indices)),
        "probability": pack_tensor(best.values.exp()),
        "masked": t.architecture.attention.mask == "bidirectional",
    }
    if not panel["masked"]:
        target = t.ids[row, 1:n]
        at = log_p[:-1].gather(-1, target[:, None])
        panel["surprisal"] = [None, *plain(t.surprisal()[row, : n - 1])]
        panel["rank"] = [None, *(log_p[:-1] > at).sum(-1).tolist()]
    return panel


def attention_panels(t: Recording, row: int, scores: list[Tensor] | None = None) -> list[Panel]:
    """The pattern of every head; for an encoder-decoder, of the encoder, of the decoder, and of cross-attention.

    The scores of each layer's patterns are added to `scores`, for the table of heads.
    """
    a, n, n_source = (
        t.architecture,
        t.inputs.lengths[row],
        0 if t.inputs.source is None else t.inputs.source.lengths[row],
    )
    kinds = [("encoder", "Attention inside the source", "encoder.", "attn", a.encoder, n_source, n_source)]
    kinds += [("", "Attention" if a.encoder is None else "Attention inside the target", "", "attn", a, n, n)]
    kinds += [("cross", "Attention from the target to the source", "", "cross", a, n, n_source)]
    kinds = [kind for kind in kinds if a.encoder is not None or not kind[0]]
    n_heads = sum(part.n_layers * part.n_heads for _, _, _, _, part, _, _ in kinds if part is not None)
    panels: list[Panel] = []
    for of, title, prefix, scope, part, n_queries, n_keys in kinds:
        if part is None or not part.n_layers:
            continue
        side, layers = side_of(n_heads, max(n_queries, n_keys)), []
        for l in range(part.n_layers):
            pattern = t[f"{prefix}blocks.{l}.{scope}.pattern"][row, :, :n_queries, :n_keys]
            layers.append(pack_pattern(pattern, side))
            if scores is not None and not of:
                scores.append(pattern_scores(t, row, pattern))
        panels.append({"kind": "attention", "title": title, "of": of, "layers": layers, "heads": part.n_heads})
    return panels


def lens_panel(t: Recording, row: int, words: Glossary) -> Panel:
    """The logit lens after every block."""
    points = points_of_stream(t, mid=False)
    if not points:
        return {"kind": "note", "title": "Logit lens", "text": "This network has no blocks."}
    n, lens = t.inputs.lengths[row], logit_lens(t, mid=False, k=5)
    return {
        "kind": "lens",
        "title": "Logit lens",
        "masked": t.architecture.attention.mask == "bidirectional",
        "points": ["embedding" if p.endswith("resid_pre") else f"block {p.split('.')[1]}" for p in points],
        "top": pack_tensor(words(lens.tokens[:, row, :n])),
        "probability": pack_tensor(lens.probabilities[:, row, :n]),
        "target": pack_tensor(lens.probability[:, row, :n].nan_to_num(-1)),
        "rank": pack_tensor(lens.rank[:, row, :n]),
        "entropy": pack_tensor(lens.entropy[:, row, :n] / torch.log(torch.tensor(2.0))),
        "kl": pack_tensor(lens.kl[:, row, :n].clamp(min=0) / torch.log(torch.tensor(2.0))),
    }


def attribution_panel(t: Recording, row: int, words: Glossary) -> Panel:
    """The contribution of every part to the logit of the next token, less the mean logit, at every position."""
    n = t.inputs.lengths[row]
    labels, values, target = attribute_everywhere(t, row)
    return {
        "kind": "attribution",
        "title": "Direct logit attribution",
        "labels": [short_label(label) for label in labels],
        "values": pack_tensor(values),
        "target": words(target[:n]).tolist(),
        "guessed": t.architecture.attention.mask != "bidirectional",
        "held": about_the_readout(t),
    }


def attribute_everywhere(t: Recording, row: int) -> tuple[list[str], Tensor, Tensor]:
    """Direct logit attribution at every position: labels, values [part, i], and the target ids [i].

    The target is the next token; at the last position, and for masked models at every position, it is the likeliest
    token. The columns sum to its logit less the mean over the vocabulary, before the cap where there is one.
    """
    n = t.inputs.lengths[row]
    target = t.logits[row].argmax(-1)
    if t.architecture.attention.mask != "bidirectional":
        target[: n - 1] = t.ids[row, 1:n]
    logits = t.logits_before_cap()[row, :n]
    explained = logits.gather(-1, target[:n, None])[:, 0] - logits.mean(-1)

    def above_mean(of_tokens: Tensor) -> Tensor:
        """The targets' entries less the mean over the vocabulary [v, ...] -> [i, ...]."""
        return of_tokens[target] - of_tokens.mean(0)

    return *split_logits(t, above_mean, explained, row, slice(0, n), "head"), target


#: the scores of patterns, in the order of the table of heads
LOOKS = ("previous", "first", "duplicate", "induction")


def pattern_scores(t: Recording, row: int, pattern: Tensor) -> Tensor:
    """The scores of the heads of one layer [kind, head], with the entropy in bits last, from their pattern [head, i,
    j].
    """
    ids, pattern = t.ids[row : row + 1, : pattern.size(1)], pattern.float()
    wanted = looked_for(ids, torch.ones_like(ids, dtype=torch.bool))
    entropy = -torch.special.xlogy(pattern, pattern).sum(-1).mean(-1) / torch.log(torch.tensor(2.0))
    return torch.stack([*(share(pattern[None], wanted[kind]).nan_to_num(0) for kind in LOOKS), entropy])


def heads_panel(t: Recording, row: int, scores: Sequence[Tensor] = ()) -> Panel:
    """A row for every head: its attention in this text, and the copying score of its weights; `scores` if computed
    before.
    """
    a, n, rows = t.architecture, t.inputs.lengths[row], []
    copying = None
    with contextlib.suppress(CircuitError):
        t.module("")
        copying = Circuits(t.model).copying()
    for l in range(a.n_layers):
        known = scores[l] if scores else pattern_scores(t, row, t[f"blocks.{l}.attn.pattern"][row, :, :n, :n])
        for h in range(a.n_heads):
            own = None if copying is None else float(f"{float(copying[l, h]):.3g}")
            rows.append([f"{l}.{h}", *(float(f"{x:.4g}") for x in known[:, h].tolist()), own])
    return {
        "kind": "table",
        "title": "Heads",
        "note": "Mean attention that goes to the token before, to the first token, to earlier copies of the token, and "
        "to what followed them; the entropy of the pattern; the sign of what the weights alone write about the token "
        "attended to (copying score of the weights, from -1 to 1, norms left aside).",
        "columns": ["head", *LOOKS, "entropy, bits", "copying"],
        "bars": [None, "share", "share", "share", "share", "size", "sign"],
        "rows": rows,
        "heads": True,
    }


def bars_panel(title: str, labels: Sequence[str], values: Tensor, note: str = "", most: float | None = None) -> Panel:
    """A bar chart of signed numbers with labels, in order; a whole bar is `most`, 1 for shares, or the largest."""
    panel = {"kind": "bars", "title": title, "labels": list(labels), "values": plain(values), "note": note}
    return panel if most is None else panel | {"most": most}


def short_label(label: str) -> str:
    """`blocks.3.attn.head.2` as 3.2, `blocks.3.mlp_out` as mlp 3."""
    parts = label.split(".")
    if parts[0] != "blocks":
        return label
    if "head" in parts:
        rest = " ".join(parts[parts.index("head") + 1 :])
        return f"{'cross ' if 'cross' in parts else ''}head {parts[1]}.{rest}"
    return " ".join([*parts[2:], parts[1]]).replace("_out", "").replace("attn out bias", "attn bias")
