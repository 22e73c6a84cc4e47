"""Whether more time, or a faster machine, ever gets a worse model: sizes are chosen, and trained.

    python -m benchmarks.doubling --data FOLDER --results doubling.jsonl

For each text and time, sizes are chosen on the machine whose steps `pellucid.plan.sizing` knows, on which one thread
takes the steps, and on three that are faster: in every step, in steps of narrow networks, and in steps of wide ones,
where the time of a step of the narrower or of the wider probe of `pellucid.plan.sizing` is half as long. Each network
is then trained here for as many steps as fit into the time by the model of a step's time that chose it
(`sizing.seconds_of`), so what it reaches does not depend on what else this machine does. The table has the held-out
bits per byte and what each doubling changes; a doubling that gets a worse model by more than NOISE is named, and the
exit status is 1.

FOLDER has `gutenberg/` and `udhr.zip`. What stands in the file of results is not run again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.side_by_side import header, show
from benchmarks.sizing import CORPORA, Cell, as_cell, known_of, run_cell
from pellucid.plan import sizing
from pellucid.runs.length import with_length
from pellucid.training.recipe import make_recipe

#: how much longer than on the machine of `pellucid.plan.sizing` a step of either probe takes
MACHINES = {
    "as fitted": (1.0, 1.0),
    "twice as fast": (0.5, 0.5),
    "narrow twice as fast": (0.5, 1.0),
    "wide twice as fast": (1.0, 0.5),
}
#: by what share of its bits per byte a model differs from one of another seed
NOISE = 0.01


@dataclass(frozen=True)
class Choice:
    """What was chosen for a text, a time and a machine: the size, and its runs, one for each seed."""

    corpus: str
    seconds: float
    machine: str
    size: sizing.Size
    cells: tuple[Cell, ...]

    def reached(self, results: Mapping[Cell, float]) -> float:
        """The mean of its bits per byte."""
        return statistics.mean(results[cell] for cell in self.cells)

    @property
    def name(self) -> str:
        """Width/layers/vocabulary."""
        return f"{self.size.d_model}/{self.size.n_layers}/{self.size.vocabulary}"


def choose(corpus: str, text: sizing.Text, seconds: float, machine: str, seeds: Sequence[int]) -> Choice:
    """The choice for this time on this machine."""
    recipe = with_length(make_recipe((), None, {}), {"minutes": seconds / 60})
    size = sizing.choose_size(recipe, text, MACHINES[machine]).chosen
    of_thread = round(size.steps * sizing.seconds_of(size, (1.0, 1.0)) / sizing.FITTED.stepping, 1)
    cell = as_cell(corpus, of_thread, size, text)
    return Choice(corpus, seconds, machine, size, tuple(with_seed(cell, seed) for seed in seeds))


def with_seed(cell: Cell, seed: int) -> Cell:
    """The same run by another seed."""
    return Cell(**{**vars(cell), "seed": seed})


def choices(
    corpus: str, data: Path, times: Sequence[float], faster: Sequence[str], seeds: Sequence[int]
) -> list[Choice]:
    """Of one text: every time on the machine of the fit, and each that is doubled on the `faster` machines too."""
    text = known_of(CORPORA[corpus](data))
    made = []
    for seconds in times:
        machines = ["as fitted", *(faster if 2 * seconds in times else ())]
        made += [choose(corpus, text, seconds, machine, seeds) for machine in machines]
    return made


def doublings(made: Sequence[Choice]) -> list[tuple[str, Choice, Choice]]:
    """What is doubled, the choice before and the choice after."""
    first = {(c.corpus, c.seconds): c for c in made if c.machine == "as fitted"}
    pairs = []
    for c in made:
        before = first[c.corpus, c.seconds]
        if c is not before:
            pairs.append((c.machine, before, c))
        elif (longer := first.get((c.corpus, 2 * c.seconds))) is not None:
            pairs.append(("twice the time", c, longer))
    return pairs


def train(cells: Sequence[Cell], data: Path, results: Path) -> dict[Cell, float]:
    """Bits per byte of every run; those that are not in the file of results are run first, the shortest first."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    names = Cell.__dataclass_fields__
    have = {Cell(**{n: v for n, v in line.items() if n in names}): line["bits_per_byte"] for line in lines}
    for cell in sorted(set(cells) - set(have), key=lambda cell: cell.seconds):
        line = run_cell(cell, data)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        have[cell] = line["bits_per_byte"]
    return have


def main() -> None:
    """Choose, train, and print what every doubling changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--texts", nargs="+", choices=CORPORA, default=["shakespeare", "udhr", "austen"])
    parser.add_argument("--times", nargs="+", type=float, default=[15, 30, 60], help="seconds of one thread")
    faster = [name for name in MACHINES if name != "as fitted"]
    parser.add_argument("--machines", nargs="*", choices=faster, default=faster, help="beside that of the fit")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337])
    parser.add_argument("--choose", action="store_true", help="print what is chosen, and train nothing")
    o = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    times = sorted(o.times)
    made = [choice for corpus in o.texts for choice in choices(corpus, o.data, times, o.machines, o.seeds)]
    if o.choose:
        rows = [[c.corpus, f"{c.seconds:g}", c.machine, *of_size(c), f"{c.size.expected:.3f}"] for c in made]
        show("chosen", ["text", "seconds", "machine", "size", "batch", "steps", "epochs", "ranked by"], rows)
        return
    results = train([cell for choice in made for cell in choice.cells], o.data, o.results)
    rows = [[c.corpus, f"{c.seconds:g}", c.machine, *of_size(c), f"{c.reached(results):.4f}"] for c in made]
    show("held-out bits per byte", ["text", "seconds", "machine", "size", "batch", "steps", "epochs", "reached"], rows)
    rows, worse = [], 0
    for what, before, after in doublings(made):
        change = after.reached(results) / before.reached(results) - 1
        worse += change > NOISE
        verdict = "WORSE" if change > NOISE else "no gain" if change > -NOISE else ""
        rows.append([before.corpus, f"{before.seconds:g}", what, before.name, after.name, f"{change:+.1%}", verdict])
    show("what doubling changes", ["text", "seconds", "doubled", "size", "size then", "bits per byte", ""], rows)
    print(f"worse by more than {NOISE:.0%}: {worse} of {len(rows)} doublings")
    sys.exit(bool(worse))


def of_size(choice: Choice) -> list[str]:
    """Cells of a table."""
    s = choice.size
    return [choice.name, str(s.batch), str(s.steps), f"{s.epochs:.2f}"]


if __name__ == "__main__":
    main()
