"""Runs beside each other on one page: curves over steps, tokens and seconds, differing options, samples."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pellucid.destination import replace_file
from pellucid.report.charts import MOST_RUNS, Line, chart
from pellucid.report.contents import series_of
from pellucid.report.page import PAGE, POLICY, e, page_section, style
from pellucid.report.run_list import HEADINGS, RunSummary, summary_of_run
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.runs.recipe_changes import flat
from pellucid.text.read.chunks import counted
from pellucid.training.kinds import recipe_values


def compare_runs(*runs: str | Path, out: str | Path = "comparison.html") -> Path:
    """Write one page about several runs: what they reach, where their options differ, and what they wrote last.

    Returns its path.

    Raises RecipeError for fewer than two runs, more than the colours of the charts, and folders that are none.
    """
    paths = [Path(run) for run in runs]
    if not 2 <= len(paths) <= MOST_RUNS:
        raise RecipeError(f"{counted(len(paths), 'run')} given: name two to {MOST_RUNS}")
    options = {str(path): options_of_run(path) for path in paths}
    metrics = {str(path): read_metrics(path / "metrics.jsonl") for path in paths}
    names = e(" and ".join(path.name for path in paths))
    body = "\n".join(
        [
            f"<header><h1>{names}</h1>{summaries(map(summary_of_run, paths))}</header>",
            page_section("What they reach", "Bits per byte of the held-out text.", charts_of(metrics), "charts"),
            page_section("Where their options differ", "", table_of_differences(options)),
            page_section("What they wrote last", "", last_samples(metrics)),
        ]
    )
    page = PAGE.format(policy=POLICY, title="Runs beside each other", style=style(), body=body)
    replace_file(Path(out), page.encode())
    return Path(out)


def options_of_run(run: Path) -> dict[str, Any]:
    """The options of a run by their dotted names. Raises RecipeError where it is none."""
    return flat(recipe_values(run)["options"])


def differing_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The options that are not the same in all runs, and their values in the order of the runs; None where unset."""
    names = sorted(set().union(*options.values()))
    values = {name: [of_run.get(name) for of_run in options.values()] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def charts_of(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A chart of bits per byte over steps, tokens and seconds."""
    return "".join(
        chart(
            f"Over {axis}",
            [
                Line(Path(run).name, points_over(rows, axis), f"run{number}")
                for number, (run, rows) in enumerate(metrics.items())
            ],
            unit="bits per byte",
            axis=axis,
        )
        for axis in ("steps", "tokens", "seconds")
    )


def points_over(rows: Sequence[Mapping[str, Any]], axis: str) -> list[tuple[float, float]]:
    """(step, tokens or seconds; bits per byte) of each evaluation; its tokens are those of the steps before it."""
    bits = series_of(rows, "bits_per_byte")
    if axis == "steps":
        return bits
    reached: dict[float, float] = {}
    for row in rows:
        if isinstance(value := row.get(axis), int | float):
            reached[row["step"]] = max(reached.get(row["step"], 0.0), float(value))
    at = sorted(reached.items())
    return [(max((value for step, value in at if step <= of), default=0.0), loss) for of, loss in bits]


def summaries(runs: Iterable[RunSummary]) -> str:
    """The rows of the list of runs."""
    head = "".join(f"<th>{e(name)}" for name in HEADINGS)
    rows = "".join("<tr>" + "".join(f"<td>{e(cell)}" for cell in run.cells) for run in runs)
    return f"<div class=scroll><table><tr>{head}{rows}</table></div>"


def table_of_differences(options: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each option in which the runs differ."""
    differing = differing_options(options)
    if not differing:
        return "<p>Their options are the same.</p>"
    head = "<tr><th>option" + "".join(f"<th>{e(Path(run).name)}" for run in options)
    rows = "".join(
        f"<tr><td class=path>{e(name)}" + "".join(f"<td>{'-' if value is None else e(str(value))}" for value in values)
        for name, values in differing.items()
    )
    return f"<div class=scroll><table>{head}{rows}</table></div>"


def last_samples(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The last sample of each run, side by side."""
    last = {run: next((row for row in reversed(rows) if "sample" in row), None) for run, rows in metrics.items()}
    figures = "".join(
        f"<figure class=sample><figcaption>{e(Path(run).name)}, step {row['step']:,}</figcaption>"
        f"<pre dir=auto>{e(row['sample'])}</pre></figure>"
        for run, row in last.items()
        if row is not None
    )
    return f"<div class=samples>{figures}</div>" if figures else "<p>They wrote no samples.</p>"
