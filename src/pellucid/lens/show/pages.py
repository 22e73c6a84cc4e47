"""The pictures of a trace, an attribution, a head, all heads, a composition, and of experiments."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from pellucid.lens.analysis.ablation import Ablation
from pellucid.lens.analysis.attribution import Attribution, Why
from pellucid.lens.analysis.heads import Heads
from pellucid.lens.analysis.patching import Patching
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import json_number, numbers, with_arrays
from pellucid.lens.show.attention import attention_parts, side_of, whole_attention
from pellucid.lens.show.figure import Figure, PanelName, show
from pellucid.lens.show.lens import lens_grid
from pellucid.lens.show.panels import Panel, attribution_panel, bars_panel, heads_panel, matrix_panel
from pellucid.lens.show.tokens import token_facts
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.composition import Composition
from pellucid.lens.weights.factored_matrix import FactoredMatrix
from pellucid.lens.weights.head_weights import Head
from pellucid.text.read.chunks import counted

#: the panels of a trace's page unless others are named
TRACE_PANELS: tuple[PanelName, ...] = ("tokens", "attention", "lens", "attribution")
#: kinds of scores whose column has another name
NAMED = {"entropy": "entropy, bits", "attended_rank": "attended token's rank"}
#: the scores of heads that are no shares of attention, and what they are measured by
NOT_SHARES = {"attended_rank": "the attended token's rank runs from -1 to 1", "entropy": "the entropy is in bits"}


@show.register(Recording)
def show_trace(t: Recording, panels: Sequence[PanelName] = TRACE_PANELS, *, row: int = 0, title: str = "") -> Figure:
    """A trace of one text: its tokens with their surprisal, all patterns, the logit lens, direct logit attribution.

    Of a model without a readout the patterns and the table of heads alone are drawn.

    Raises InputError for a panel or a row that does not exist.
    """
    if unknown := [name for name in panels if name not in get_args(PanelName)]:
        raise InputError(f"there is no panel {unknown[0]!r}: choose from {', '.join(get_args(PanelName))}")
    if not 0 <= row < len(t.inputs.lengths):
        raise InputError(f"row {row}: the trace has {len(t.inputs.lengths)}, counted from 0")
    if t.architecture.readout == "none":  # what is read from logits cannot be drawn
        panels = [name for name in panels if name in ("attention", "heads")]
    t = t.detached()
    n, drawn = t.inputs.lengths[row], []
    with torch.inference_mode():
        attentions = _attentions(t, row) if {"attention", "heads"} & {*panels} else []
        for name in panels:
            if name == "attention":
                drawn += attentions
            elif name == "heads":
                own = next((panel["scores"] for panel in attentions if panel["part"] == "attn"), {"entropy": []})
                drawn.append(heads_panel(own))
            else:
                drawn.append(PANEL_MAKERS[name](t, row))
    options = {"tokens": t.spelled(row), "facts": facts_of(t, row), "position": n - 1}
    return Figure(title or counted(n, "token"), drawn, vocabulary=t.architecture.n_vocab, **options)


def _attentions(t: Recording, row: int) -> list[Panel]:
    """The heads of every attention of a network: an encoder's, the network's own, and those from it to the encoder."""
    parts = sorted(attention_parts(t), key=lambda part: ("encoder", "attn", "cross").index(part["part"]))
    n_heads: int = sum(part["layers"] * part["heads"] for part in parts)
    n_source = 0 if t.inputs.source is None else t.inputs.source.lengths[row]
    side = side_of(n_heads, max(t.inputs.lengths[row], n_source))
    return [{"kind": "attention"} | whole_attention(t, part["part"], side, row) for part in parts]


def _lens(t: Recording, row: int) -> Panel:
    if not t.architecture.n_layers:
        return {"kind": "note", "title": "Logit lens", "text": "This network has no blocks."}
    *_, answer = lens_grid(t, mid=False, k=5, row=row)
    return {"kind": "lens", "title": "Logit lens"} | with_arrays(**answer)


#: the panels of a trace that are one answer each
PANEL_MAKERS: dict[PanelName, Callable[[Recording, int], Panel]] = {
    "tokens": lambda t, row: {"kind": "tokens", "title": "Tokens"} | token_facts(t, row),
    "lens": _lens,
    "attribution": attribution_panel,
}


def inspect_page(t: Recording, row: int = 0, name: str = "") -> Figure:
    """The shareable page about one prompt: everything `show_trace` can draw, and the table of heads."""
    figure = show_trace(t, get_args(PanelName), row=row)
    prompt = describe_inputs(t, row).strip().replace("\n", " ")
    figure.title = f"\u201c{prompt[:77] + '...' if len(prompt) > 80 else prompt}\u201d"
    figure.head = _strongest_head(figure.panels[-1]["rows"])
    figure.facts = ([("model", Path(name).name)] if name else []) + figure.facts
    return figure


def describe_inputs(t: Recording, row: int) -> str:
    """The input text without special tokens."""
    ids = t.ids[row, : t.inputs.lengths[row]].tolist()
    special = {*t.tokenizer.special.values()}
    return t.tokenizer.decode([i for i in ids if i not in special and i < t.tokenizer.n_vocab])


def _strongest_head(rows: list[list[Any]]) -> tuple[int, int]:
    """The head with the highest score of attention in a table of heads."""
    if not rows:
        return 0, 0
    layer, _, head = max(rows, key=lambda row: max(row[k] or 0 for k in (1, 3, 4)))[0].partition(".")
    return int(layer), int(head)


def facts_of(t: Recording, row: int) -> list[tuple[str, str]]:
    """The model's sizes and the prompt's surprisal."""
    a, n = t.architecture, t.inputs.lengths[row]
    parameters = sum(p.numel() for p in t.network.parameters())
    facts = [
        ("parameters", f"{parameters:,}"),
        ("blocks x heads", f"{a.n_layers} x {a.n_heads}"),
        ("d_model", str(a.d_model)),
        ("vocabulary", f"{a.n_vocab:,}"),
        ("tokens", str(n)),
    ]
    if a.attention.mask != "bidirectional" and a.readout != "none" and t.inputs.predicted[row].any():
        facts.append(("mean surprisal", f"{float(t.surprisal()[row].nanmean()):.3g} bits per token"))
    if t.edits:
        facts.append(("edits", ", ".join(f"{e.op} {e.name}" for e in t.edits)))
    return facts


@show.register(Attribution)
def show_attribution(attribution: Attribution, k: int = 24) -> Figure:
    """The k largest parts of a logit, or of a difference of two logits."""
    top = attribution.top(k)
    rest = attribution.total - sum(x for _, x in top)
    left = len(attribution.labels) - len(top)
    labels, values = [label for label, _ in top], [x for _, x in top]
    if left:
        labels, values = [*labels, f"{left} other parts"], [*values, rest]
    said = "the network says" if attribution.after_cap is None else "the logit before the cap is"
    note = f"At position {attribution.position}; the sum is {attribution.total:.4g}, {said} {attribution.logit:.4g}."
    note += f" After the cap it is {attribution.after_cap:.4g}." if attribution.after_cap is not None else ""
    note += f" {attribution.note[0].upper()}{attribution.note[1:]}." if attribution.note else ""
    panel = bars_panel(f"Logit of {attribution.target}", labels, torch.tensor(values), note) | {"parts": True}
    return Figure(f"Logit of {attribution.target}", [panel], height=60 + 18 * len(labels) + 120)


@show.register(Circuits)
def show_heads(circuits: Circuits) -> Figure:
    """A row for each head: its copying score and the sizes of its two circuits."""
    a = circuits.architecture
    offset = 1 if a.rotates_somewhere and circuits.part != "cross" else None
    try:
        copying = circuits.copying()
    except CircuitError:
        copying = None
    rows = []
    for l in range(a.n_layers):
        for h in range(a.n_heads):
            head = circuits[l, h]
            sizes = [head.ov.norm(), head.qk(offset if head.is_rotated else None).norm()]
            score = None if copying is None else json_number(float(copying[l, h]))
            rows.append([f"{l}.{h}", score, *(json_number(float(size)) for size in sizes)])
    at = "" if offset is None else f" (keys {offset} back)"
    panel = {
        "kind": "table",
        "title": "Heads by their weights",
        "note": "Copying score: the sum of the eigenvalues of the full OV circuit over the sum of their magnitudes.",
        "columns": ["head", "copying", "|W_OV|", f"|W_QK|{at}"],
        "bars": [None, "sign", "size", "size"],
        "rows": rows,
        "heads": True,
    }
    return Figure("Heads by their weights", [panel])


@show.register(Heads)
def show_scores(heads: Heads) -> Figure:
    """A table of the scores of all heads on random tokens or on a text."""
    kinds = list(heads.scores)
    said = ["shares of attention"] if {*kinds} - {*NOT_SHARES} else []
    note = "; ".join(said + [words for kind, words in NOT_SHARES.items() if kind in kinds])
    rows = [[f"{row['layer']}.{row['head']}", *(json_number(row[kind]) for kind in kinds)] for row in heads.table()]
    panel = {
        "kind": "table",
        "title": "Heads by their attention",
        "note": f"On {heads.text}. {note[0].upper()}{note[1:]}.",
        "columns": ["head", *(NAMED.get(kind, kind) for kind in kinds)],
        "bars": [None, *({"attended_rank": "sign", "entropy": "size"}.get(kind, "share") for kind in kinds)],
        "rows": rows,
        "heads": True,
    }
    return Figure("Heads by their attention", [panel])


@show.register(Head)
def show_head(head: Head, offset: int | None = None, n: int = 6, k: int = 5) -> Figure:
    """One head: the spectra of its circuits, and their strongest directions as tokens."""
    panels: list[Panel] = []
    if head.is_rotated and offset is None:
        offset = 1
    circuits: list[tuple[Literal["ov", "qk"], FactoredMatrix]] = [("ov", head.ov), ("qk", head.qk(offset))]
    for of, circuit in circuits:
        panels.append(_spectrum(f"Singular values of W_{of.upper()}", circuit))
        try:
            directions = head.directions(of, n, k, None if of == "ov" else offset)
        except CircuitError as error:
            panels.append({"kind": "note", "title": f"W_{of.upper()} as tokens", "text": f"{error}."})
            continue
        ends = ["read", "promoted"] if of == "ov" else ["as keys", "as queries"]
        rows = [
            [float(f"{d.strength:.4g}"), [token for token, _ in d.into], [token for token, _ in d.out]]
            for d in directions
        ]
        panels.append(
            {
                "kind": "table",
                "title": f"Directions of W_{of.upper()}",
                "note": "The sign of a pair of singular vectors is arbitrary: both ends may be negated together.",
                "columns": ["strength", *ends],
                "rows": rows,
            }
        )
    panels += _eigenvalues(head)
    back = [] if offset is None else [("keys", f"{offset} back")]
    return Figure(f"Head {head.index} of block {head.layer}", panels, facts=back)


def _spectrum(title: str, circuit: FactoredMatrix) -> Panel:
    values = circuit.singular_values()
    return bars_panel(title, [str(i + 1) for i in range(min(16, len(values)))], values[:16])


def _eigenvalues(head: Head) -> list[Panel]:
    try:
        values = head.full_ov().eigenvalues()
    except CircuitError:
        return []
    note = f"Eigenvalues of W_U W_OV W_E in the complex plane; to the right is copying (score {head.copying:.3g})."
    points = numbers(torch.stack([values.real, values.imag], -1))
    return [{"kind": "points", "title": "Full OV circuit", "note": note, "points": points}]


@show.register(Composition)
def show_composition(composition: Composition) -> Figure:
    """Composition scores of all pairs of heads, relative to random matrices."""
    layers, heads = composition.scores.shape[:2]
    names = [f"{l}.{h}" for l in range(layers) for h in range(heads)]
    if layers < 2:
        text = "There is no pair of heads in different blocks."
        return Figure(f"{composition.kind}-composition", [{"kind": "note", "title": "Pairs of heads", "text": text}])
    # no head reads the last block's heads, and the first block's heads read none
    excess = composition.excess[:-1, :, 1:].flatten(2).flatten(0, 1)
    note = (
        f"Rows write, columns read their {dict(Q='queries', K='keys', V='values')[composition.kind]} from it. Scores "
        f"less the {composition.baseline:.3g} that random heads have (give or take {composition.spread:.2g})."
    )
    panel = matrix_panel(f"{composition.kind}-composition", note, excess, names[:-heads], names[heads:], " \u2192 ")
    return Figure(f"{composition.kind}-composition", [panel])


@show.register(Patching)
def show_patching(patching: Patching) -> Figure:
    """The share of the clean run's answer that a patch at each place recovers: a row for each layer, or head."""
    values = patching.recovered.detach().cpu()
    n_heads = values.size(2) if values.ndim == 3 else 0
    by_row = values.transpose(1, 2).flatten(0, 1) if n_heads else values
    rows = [f"{layer}.{h}" for layer in patching.layers for h in range(n_heads)] or [
        f"block {l}" for l in patching.layers
    ]
    positions = [p for p in patching.positions if p is not None]
    columns = [patching.tokens[p] for p in positions] or ["all positions"]
    how = "each place exactly" if patching.exact is not None else "estimated by one backward pass"
    note = (
        f"{patching.metric}: {patching.clean:.4g} in the clean run, {patching.corrupt:.4g} in the corrupt one. The "
        f"share of the difference that comes back as the clean run's {patching.site} is put in, {how}: 0 nothing, 1 "
        f"all of it."
    )
    if patching.exact is not None and patching.estimate is not None:
        note += f" Estimates by one backward pass correlate with it at {patching.agreement['correlation']:.3g}."
    title = f"Patching {patching.site}"
    panel = matrix_panel(title, note, by_row, rows, columns, " at ")
    return Figure(title, [panel | ({"places": positions} if positions else {})])


@show.register(Ablation)
def show_ablation(ablation: Ablation) -> Figure:
    """The change of the metric without each head, or each block's part."""
    title, effect = f"Without {ablation.site}, by {ablation.kind}", ablation.effect.detach().cpu()
    note = f"{ablation.metric}: {ablation.baseline:.4g} with everything there; shown is the change."
    if effect.ndim == 1:
        return Figure(title, [bars_panel(title, [f"block {l}" for l in ablation.layers], effect, note)])
    rows, columns = [f"block {l}" for l in ablation.layers], [f"head {h}" for h in range(effect.size(1))]
    return Figure(title, [matrix_panel(title, note, effect, rows, columns, ", ")])


@show.register(Why)
def show_why(why: Why) -> Figure:
    """The scores of one query: the contribution of each part at each key, largest parts first."""
    values = why.values.detach().cpu()
    order = values.abs().amax(1).argsort(descending=True).tolist()
    rows = [why.labels[i] for i in order]
    columns = list(why.tokens)
    title = f"Why head {why.head} of block {why.layer} looks where it looks from {why.query}"
    note = "A column is a key; its parts sum to its score. Keys with a higher score than others are read more."
    note += "" if why.after_cap is None else " The scores are those before the cap (attention.score_cap)."
    split = matrix_panel("Scores by what was written", note, values[torch.tensor(order)], rows, columns, " at ")
    panels = [split | {"parts": True}]
    panels.append(bars_panel("The scores themselves", columns, why.scores.detach().cpu()))
    return Figure(title, [panel | {"places": why.keys} for panel in panels])
