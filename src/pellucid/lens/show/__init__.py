"""Pictures of traces and results: each is one self-contained file of HTML."""

from pellucid.lens.show.figure import Figure, show

__all__ = ["Figure", "show"]
