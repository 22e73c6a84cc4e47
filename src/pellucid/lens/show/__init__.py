"""Pictures of what the other modules of this room compute: one file of HTML each, with nothing to fetch."""

from pellucid.lens.show.experiments import show_ablation, show_patching, show_why
from pellucid.lens.show.figure import Figure
from pellucid.lens.show.pages import (
    inspect_page,
    show_attribution,
    show_composition,
    show_head,
    show_heads,
    show_scores,
    show_trace,
)

__all__ = [
    "Figure",
    "inspect_page",
    "show_ablation",
    "show_attribution",
    "show_composition",
    "show_head",
    "show_heads",
    "show_patching",
    "show_scores",
    "show_trace",
    "show_why",
]
