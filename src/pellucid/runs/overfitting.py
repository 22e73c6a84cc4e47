"""When a run has begun to learn its text by heart: the held-out loss rises while the training loss falls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: how far above its best the held-out loss must lie, as a share of it: evaluations of a part vary
MARGIN = 0.01
#: evaluations after the best one that must lie above it
WORSE_EVALUATIONS = 2


@dataclass
class Curve:
    """What a run's evaluations said: (step, held-out loss of the same part, mean training loss since the one before).

    Fed with the rows of metrics.jsonl in order, so that a run that is resumed knows what it knew.
    """

    points: list[tuple[int, float, float]] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    warned: bool = False

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "Curve":
        """The curve of a run's rows so far."""
        curve = cls()
        for row in rows:
            curve.see(row)
        return curve

    def see(self, row: Mapping[str, Any]) -> None:
        """One row of the metrics."""
        if row.get("loss") is not None:
            self.total, self.count = self.total + row["loss"], self.count + 1
        if row.get("held_out_part") is not None:
            mean = self.total / self.count if self.count else float("nan")
            self.points.append((row["step"], row["held_out_part"], mean))
            self.total, self.count = 0.0, 0
        self.warned |= "warning" in row

    def warning(self, remedies: str = "more text or a smaller model") -> str:
        """A sentence, once in a run, where the run overfits; nothing otherwise."""
        if self.warned or len(self.points) <= WORSE_EVALUATIONS:
            return ""
        best = min(range(len(self.points)), key=lambda i: self.points[i][1])
        (step, lowest, before), later = self.points[best], self.points[best + 1 :]
        _, now, training = self.points[-1]
        above = all(loss > lowest for _, loss, _ in later)
        if len(later) < WORSE_EVALUATIONS or not above or now < lowest * (1 + MARGIN) or not training < before:
            return ""
        return (
            f"the model overfits: since step {step} the held-out loss has risen from {lowest:.4f} to {now:.4f} nats "
            f"per token while the training loss fell from {before:.4f} to {training:.4f}. The best checkpoint "
            f"is kept and used; give {remedies}, or train for a shorter time"
        )
