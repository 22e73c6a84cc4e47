"""Pictures of experiments: patching, ablation, and the scores of a head."""

import torch
from torch import Tensor

from pellucid.lens.analysis.ablation import Ablation
from pellucid.lens.analysis.attribution import Why
from pellucid.lens.analysis.patching import Patching
from pellucid.lens.show.figure import Figure, show
from pellucid.lens.show.packing import pack_tensor
from pellucid.lens.show.panels import Panel, bars_panel, short_label


def matrix_panel(title: str, note: str, values: Tensor, rows: list[str], columns: list[str], between: str) -> Panel:
    """A matrix of signed numbers with labels of rows and columns; `between` joins the two labels of an entry."""
    most = max(float(values.nan_to_num(0).abs().max()), 1e-9)
    sides = {"rows": rows, "columns": columns, "between": between, "low": -most, "high": most, "ramp": "signed"}
    return {"kind": "matrix", "title": title, "note": note, "values": pack_tensor(values)} | sides


@show.register(Patching)
def show_patching(patching: Patching) -> Figure:
    """The share of the clean run's answer that a patch at each place recovers: a row for each layer, or head."""
    values = patching.recovered.detach().cpu()
    n_heads = values.size(2) if values.ndim == 3 else 0
    by_row = values.transpose(1, 2).flatten(0, 1) if n_heads else values
    rows = [f"{layer}.{h}" for layer in patching.layers for h in range(n_heads)] or [
        f"block {l}" for l in patching.layers
    ]
    places = [p for p in patching.positions if p is not None]
    columns = [patching.tokens[p] for p in places] or ["all positions"]
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
    return Figure(title, [panel | ({"places": places} if places else {})])


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
    rows = [short_label(why.labels[i]) if why.side != "pair" else why.labels[i] for i in order]
    columns = list(why.tokens)
    title = f"Why head {why.head} of block {why.layer} looks where it looks from {why.query}"
    note = "A column is a key; its parts sum to its score. Keys with a higher score than others are read more."
    note += "" if why.after_cap is None else " The scores are those before the cap (attention.score_cap)."
    panels = [matrix_panel("Scores by what was written", note, values[torch.tensor(order)], rows, columns, " at ")]
    panels.append(bars_panel("The scores themselves", columns, why.scores.detach().cpu()))
    return Figure(title, [panel | {"places": why.keys} for panel in panels])
