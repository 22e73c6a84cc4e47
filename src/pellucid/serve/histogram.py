"""Counts of times by their length, for the metrics."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many observations were at most each bound; written by one thread and read by others."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = tuple(bounds)
        #: of each bound, and of what is above all of them, how many observations fell there
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus' cumulative buckets: each bound, and how many observations were at most that."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        total, cumulative = 0, []
        for name, count in zip(names, list(self.counts), strict=True):
            total += count
            cumulative.append((name, float(total)))
        return cumulative
