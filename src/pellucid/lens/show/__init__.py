"""Pictures of what the other modules of this room compute: one file of HTML each, with nothing to fetch."""

from pellucid.lens.show.figure import Figure, show

__all__ = ["Figure", "show"]
