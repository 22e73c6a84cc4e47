"""The panels of saved pages that are no answers of the inspector: attribution everywhere, tables, bars and matrices."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pellucid.lens.analysis.attribution import split_logits
from pellucid.lens.analysis.readout import about_the_readout, readout_of
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import numbers, with_arrays

Panel = dict[str, Any]

#: the scores in the table of heads, with the name of each column and how its bars are drawn
HEAD_COLUMNS = {
    "previous": ("previous", "share"),
    "first": ("first", "share"),
    "duplicate": ("duplicate", "share"),
    "induction": ("induction", "share"),
    "entropy": ("entropy, bits", "size"),
    "copying": ("copying", "sign"),
}


def attribution_panel(t: Recording, row: int) -> Panel:
    """The contribution of every part to the logit of the next token, less the mean logit, at every position."""
    labels, values, target = attribute_everywhere(t, row)
    return with_arrays(
        {"values": values},
        kind="attribution",
        title="Direct logit attribution",
        labels=labels,
        target=[t.spell(i) for i in target[: t.inputs.lengths[row]].tolist()],
        guessed=t.architecture.attention.mask != "bidirectional",
        held=about_the_readout(t),
    )


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

    return *split_logits(t, readout_of(t), above_mean, explained, row, slice(0, n), "head"), target


def heads_panel(scores: Mapping[str, Sequence[Sequence[float | None]]]) -> Panel:
    """A row for every head: its attention in this text, and the copying score of its weights; `scores` by kind [layer,
    head] as `attention_overview` has them.
    """
    shown = {kind: column for kind, column in HEAD_COLUMNS.items() if kind in scores}
    layers = len(next(iter(scores.values())))
    rows = [
        [f"{l}.{h}", *(scores[kind][l][h] for kind in shown)]
        for l in range(layers)
        for h in range(len(scores["entropy"][l]))
    ]
    return {
        "kind": "table",
        "title": "Heads",
        "note": "Mean attention that goes to the token before, to the first token, to earlier copies of the token, and "
        "to what followed them; the entropy of the pattern; the sign of what the weights alone write about the token "
        "attended to (copying score of the weights, from -1 to 1, norms left aside).",
        "columns": ["head", *(name for name, _ in shown.values())],
        "bars": [None, *(bar for _, bar in shown.values())],
        "rows": rows,
        "heads": True,
    }


def bars_panel(title: str, labels: Sequence[str], values: Tensor, note: str = "", most: float | None = None) -> Panel:
    """A bar chart of signed numbers with labels, in order; a whole bar is `most`, 1 for shares, or the largest."""
    panel = {"kind": "bars", "title": title, "labels": list(labels), "values": numbers(values), "note": note}
    return panel if most is None else panel | {"most": most}


def matrix_panel(title: str, note: str, values: Tensor, rows: list[str], columns: list[str], between: str) -> Panel:
    """A matrix of signed numbers with labels of rows and columns; `between` joins the two labels of an entry."""
    most = max(float(values.nan_to_num(0).abs().max()), 1e-9)
    sides = {"rows": rows, "columns": columns, "between": between, "high": most, "ramp": "signed"}
    return with_arrays({"values": values}, kind="matrix", title=title, note=note, **sides)
