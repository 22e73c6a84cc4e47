"""Read a run's folder once for the report; a missing optional part is left out."""

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.baselines import Baselines, read_baselines
from pellucid.json_files import read_regular
from pellucid.json_shapes import OBJECT
from pellucid.parameter_counts import count_parameters
from pellucid.plan.flops import Flops, flops
from pellucid.report.run_list import reported_neighbours
from pellucid.runs.checkpoint import best_loss, best_step
from pellucid.runs.metrics import current_lines
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import CHOICES, DATA, LINES, MACHINE, read_json
from pellucid.sources.novelty import Novelty, read_novelty
from pellucid.text.read.chunks import counted
from pellucid.text.read.find import STANDARD_INPUT
from pellucid.training.kinds import run_kind
from pellucid.training.load import check_saved, read_recipe
from pellucid.training.recipe import Recipe

#: the number of steps of which the report draws the median speed
STEPS_TOGETHER = 8
#: names of parts of a network
COMPONENT_LABELS = {"embed": "embedding", "mlp": "MLP", "unembed": "unembedding"}

Points = list[tuple[float, float]]


def series_of(rows: Iterable[Mapping[str, Any]], name: str) -> Points:
    """(step, value) of every row of metrics.jsonl that has the number, for a run of any kind."""
    points = [(row["step"], row.get(name)) for row in rows]
    return [(float(step), float(v)) for step, v in points if isinstance(v, int | float) and math.isfinite(v)]


@dataclass(frozen=True)
class Contents:
    """A run as read from its folder. `rows` are those of metrics.jsonl; `machine` and `data` may be empty. `best` is
    the step of the best checkpoint, and its held-out loss over the part that is read during training. `damages` are
    sentences on what cannot be read, `choices` the lines about what was read and chosen before training,
    `neighbours` the other runs in the same folder that have a report, `novelty` what `pellucid sources novelty` has
    measured.
    """

    run: Path
    recipe: Recipe
    rows: list[dict[str, Any]]
    baselines: Baselines | None = None
    data: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    best: tuple[int, float] | None = None
    damages: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    neighbours: list[Path] = field(default_factory=list)
    novelty: Novelty | None = None

    @classmethod
    def of(cls, run: Path) -> "Contents":
        """Read the folder. Raises RecipeError if it is not a transformer's run, and as `check_saved`."""
        if (kind := run_kind(run)) != "transformer":
            raise RecipeError(f"{run} is a run of kind {kind}: a report describes a transformer's run")
        recipe, metrics, damages = read_recipe(run), run / "metrics.jsonl", []
        check_saved(run, recipe)
        rows = [row for _, row in current_lines(read_regular(metrics) if metrics.exists() else b"")]
        if n := rows.count(None):
            damages.append(f"{counted(n, 'line')} of {metrics.name} cannot be read: the report is without them")
        files: dict[str, dict[str, Any]] = {}
        for name, shape in (("data.json", DATA), (MACHINE, OBJECT), (CHOICES, LINES)):
            try:
                files[name] = read_json(run / name, shape) if (run / name).exists() else {}
            except RecipeError as error:
                files[name] = {}
                damages.append(f"the report is without {name}: {error}")
        readable = [row for row in rows if row is not None]
        step, loss = best_step(run), best_loss(run)
        best = None if step is None or math.isinf(loss) else (step, loss)
        choices = files[CHOICES].get("lines", [])
        known = files["data.json"], files[MACHINE]
        beside = reported_neighbours(run), read_novelty(run)
        return cls(run, recipe, readable, read_baselines(run), *known, best, damages, choices, *beside)

    def series(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of every row that has the number."""
        return series_of(self.rows, name)

    def held_out(self) -> tuple[tuple[Points, Points], tuple[Points, Points]]:
        """Nats per token and bits per byte of the held-out text: of its beginning during the run, and of all of it at
        the end.

        During the run the same first part is measured every time; at the end everything. The two differ only for long
        texts.
        """
        part, loss, bits = (dict(self.series(name)) for name in ("held_out_part", "held_out_loss", "bits_per_byte"))
        steps = [step for step in part if loss.get(step) and step in bits]
        begun = [(step, part[step]) for step in steps], [(step, bits[step] * part[step] / loss[step]) for step in steps]
        ends = [step for step in steps if part[step] != loss[step]][-1:]
        return begun, ([(step, loss[step]) for step in ends], [(step, bits[step]) for step in ends])

    def texts(self, name: str) -> list[tuple[int, str]]:
        """(step, text) of every row that has one."""
        return [(row["step"], row[name]) for row in self.rows if isinstance(row.get(name), str)]

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters by part, the total last; n-gram rows, which are looked up, separate from those of single
        tokens.
        """
        counts, a = count_parameters(self.recipe.model), self.recipe.model
        grams = len(a.ngrams) * a.ngram_rows * a.embed_sum_width
        named = {COMPONENT_LABELS.get(part, part): n for part, n in counts.items()}
        named = {"embedding": named.pop("embedding") - grams, "n-gram tables": grams} | named
        return {part: n for part, n in named.items() if n}

    @property
    def flops(self) -> Flops:
        return flops(self.recipe.model)

    @property
    def seconds(self) -> float:
        """Seconds of training over all sittings, including saving, evaluating and sampling."""
        return max((v for _, v in self.series("seconds")), default=0.0)

    def speeds(self) -> list[tuple[float, float]]:
        """(step, tokens per second): of every STEPS_TOGETHER timed steps the last one, and the median speed."""
        timed = self.series("tokens_per_second")
        groups = [timed[first : first + STEPS_TOGETHER] for first in range(0, len(timed), STEPS_TOGETHER)]
        return [(group[-1][0], statistics.median(speed for _, speed in group)) for group in groups]

    @property
    def command(self) -> str:
        """The command that trains the same run again, into a new folder; "" if the text came through a pipe."""
        r = self.recipe
        if STANDARD_INPUT in r.inputs:
            return ""
        begun = () if r.record.base is None else ("--from", r.record.base.path)
        begun += ("--revision", r.record.base.revision) if r.record.base and r.record.base.revision else ()
        chosen = ("--recipe", str(self.run / "recipe.json"), "--steps", str(r.n_steps), "--out", f"{self.run}-again")
        return shlex.join(["pellucid", "train", *r.located(r.inputs), *begun, *chosen, *self._layout])

    @property
    def n_processes(self) -> int:
        """How many processes trained the run."""
        return self.recipe.parallel.n_processes

    @property
    def _layout(self) -> list[str]:
        """The options that start as many processes and divide the work among them in the same way.

        A recipe file of a run does not say it, as a new run may have other processes.
        """
        if self.n_processes == 1:
            return []
        p = self.recipe.parallel
        asked = {name: str(size) for name, size in p.sizes.items() if name != "replicate" and size > 1}
        asked |= {} if p.gather == "float32" else {"gather": p.gather}
        fields = [word for name, value in asked.items() for word in ("--set", f"parallel.{name}={value}")]
        return ["--processes", str(self.n_processes), *fields]
