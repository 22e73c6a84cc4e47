"""What size of model a text and a time want: runs over many sizes, and the chosen one beside its neighbours.

    python -m benchmarks.sizing grid       --results grid.jsonl       --data FOLDER
    python -m benchmarks.sizing fit        --results grid.jsonl       --data FOLDER
    python -m benchmarks.sizing check      --results check.jsonl      --data FOLDER
    python -m benchmarks.sizing characters --results characters.jsonl --data FOLDER

A run has the steps that its seconds of one core pay for by the cost in `pellucid.plan.sizing`, so what it reaches does
not depend on what else the machine does, and two runs go on side by side, a thread each. What stands in the results'
file is not run again. FOLDER has `gutenberg/` and `udhr.zip`; the Python text is the standard library's.
"""

import argparse
import itertools
import json
import multiprocessing
import sysconfig
import tempfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.side_by_side import header, show
from pellucid.demo import bundled
from pellucid.plan import sizing
from pellucid.plan.sized_recipe import text_properties
from pellucid.plan.sizing import CONTEXT, FITTED
from pellucid.presets import gated_width
from pellucid.runs.length import with_length
from pellucid.runs.pipeline import start_run
from pellucid.runs.reporter import QuietReporter
from pellucid.text import read_corpus, split_corpus
from pellucid.training.recipe import Recipe, make_recipe
from pellucid.training.trainable import TransformerTrainable

#: of a text, kept for measuring: a tenth, or this many bytes where that is less
HELD_OUT = 100_000
#: seconds of one core at which the choice is checked
CHECKED_AT = (15, 45)
#: times as long as without it takes a step with dropout
WITH_DROPOUT = 1.2


@dataclass(frozen=True)
class Cell:
    """One run: a text, seconds of one core, and a size. `steps` are given where they are not what the seconds pay for,
    and the seconds are 0 where nothing else is given.
    """

    corpus: str
    seconds: float
    vocabulary: int
    d_model: int = 128
    n_layers: int = 4
    batch: int = 16
    dropout: float = 0.0
    steps: int = 0
    seed: int = 1337
    tokenizer: str = "bpe"

    @property
    def key(self) -> str:
        """What tells it from the others."""
        return json.dumps({n: v for n, v in asdict(self).items() if n != "steps" or not self.seconds}, sort_keys=True)

    @property
    def size(self) -> sizing.Size:
        """What its cost depends on."""
        return sizing.Size(self.vocabulary, self.d_model, self.n_layers, self.batch)

    @property
    def n_steps(self) -> int:
        per_step = sizing.seconds_of(self.size, (1.0, 1.0)) * (WITH_DROPOUT if self.dropout else 1.0)
        return self.steps or max(2, int(FITTED.stepping * self.seconds / per_step))

    @property
    def fields(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "text.tokenizer": self.tokenizer,
            "text.vocabulary": self.vocabulary if self.tokenizer == "bpe" else None,
            "model.d_model": self.d_model,
            "model.n_layers": self.n_layers,
            "model.n_ctx": CONTEXT,
            "model.mlp.d_ff": gated_width(self.d_model),
            "model.attention.n_heads": max(1, self.d_model // sizing.D_HEAD),
            "train.batch": self.batch,
            "train.seed": self.seed,
        }
        return made | ({"model.dropout": self.dropout} if self.dropout else {})


def of_script(data: Path, script: str) -> str:
    """The Universal Declaration in all languages of a script, or of every script for "", its lines in turn.

    A line of each language follows a line of the next, so that what is held out at the end is in the same languages.
    """
    texts = []
    with zipfile.ZipFile(data / "udhr.zip") as archive:
        for name in sorted(archive.namelist()):
            text = archive.read(name).decode("utf-8", "replace")
            letters = Counter(unicodedata.name(c, "").partition(" ")[0] for c in text[:2000] if c.isalpha())
            if letters and script in ("", letters.most_common(1)[0][0]):
                texts.append([line for line in text.splitlines() if line])
    placed = [(k / len(lines), language, line) for language, lines in enumerate(texts) for k, line in enumerate(lines)]
    return "\n".join(line for _, _, line in sorted(placed))


def of_books(data: Path, *names: str) -> str:
    """Books of the Gutenberg folder, one after the other."""
    files = [data / "gutenberg" / f"{name}.txt" for name in names]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def of_all_books(data: Path) -> str:
    """Every book of the Gutenberg folder."""
    return of_books(data, *sorted(file.stem for file in (data / "gutenberg").glob("*.txt")))


def of_python(n_bytes: int) -> str:
    """The standard library's modules in the order of their names, until there are so many bytes."""
    texts, size = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "dist-packages"} & set(file.parts):
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
            size += len(texts[-1].encode())
        if size >= n_bytes:
            break
    return "\n".join(texts)


CORPORA: dict[str, Callable[[Path], str]] = {
    "blake": lambda data: of_books(data, "blake-poems")[:50_000],
    "plays": lambda data: of_books(data, "shakespeare-caesar", "shakespeare-hamlet", "shakespeare-macbeth"),
    "austen": lambda data: of_books(data, "austen-emma", "austen-persuasion", "austen-sense"),
    "python": lambda data: of_python(10_000_000),
    "devanagari": lambda data: of_script(data, "DEVANAGARI"),
    "cyrillic": lambda data: of_script(data, "CYRILLIC"),
    "shakespeare": lambda data: bundled("shakespeare").read_text(encoding="utf-8"),
    "udhr": lambda data: of_script(data, ""),
    "books": of_all_books,
}
CHECKED = ("devanagari", "cyrillic", "shakespeare", "udhr")


#: seconds of one core, and vocabulary, width, layers and sequences of the networks that take them, on each text
GRID = {
    30: [
        *((512, 64, 2, 8), (1024, 64, 2, 8), (512, 96, 2, 8), (1024, 96, 2, 8), (1024, 128, 2, 8), (2048, 96, 2, 8)),
        *((1024, 64, 4, 8), (2048, 64, 2, 8), (320, 96, 2, 8)),
    ],
    120: [
        *((1024, 128, 2, 16), (1024, 128, 4, 8), (2048, 128, 2, 8), (2048, 128, 4, 8), (1024, 192, 3, 8)),
        *((2048, 192, 3, 8), (4096, 128, 2, 8), (1024, 96, 2, 16), (1024, 128, 3, 8), (512, 128, 3, 16)),
    ],
    480: [(1024, 192, 3, 16), (2048, 192, 4, 16), (2048, 256, 4, 16), (4096, 192, 4, 16), (2048, 128, 4, 16)],
}
GRID_TEXTS = ("books", "shakespeare", "udhr")
#: widths and layers of networks that read tiny Shakespeare by characters for so many steps of 16 sequences
BY_CHARACTERS = {
    400: [(64, 2), (96, 2), (128, 2), (64, 4), (96, 4), (128, 4)],
    1500: [(64, 2), (96, 2), (128, 2), (64, 4), (128, 4)],
}


def grid() -> Iterator[Cell]:
    """The runs that the constants come from."""
    for seconds, text in itertools.product(GRID, GRID_TEXTS):
        yield from (Cell(text, seconds, v, d, n, batch) for v, d, n, batch in GRID[seconds])


def characters() -> Iterator[Cell]:
    """The runs by characters, whose capacity has constants of its own."""
    for steps, sizes in BY_CHARACTERS.items():
        yield from (Cell("shakespeare", 0, 128, d, n, steps=steps, tokenizer="char") for d, n in sizes)


def neighbours(corpus: str, text: str, seconds: float) -> list[Cell]:
    """The size that is chosen, first, and those next to it in width, depth and vocabulary, each used as it would be."""
    recipe = with_length(make_recipe((), None, {}), {"minutes": seconds / 60})
    known = known_of(text)
    c = sizing.choose_size(recipe, known, (1.0, 1.0)).chosen
    beside = [c, *(replace(c, d_model=d) for d in two_beside(c.d_model, sizing.WIDTHS))]
    beside += [replace(c, n_layers=k) for k in two_beside(c.n_layers, sizing.DEPTHS)]
    beside += [replace(c, vocabulary=v) for v in two_beside(c.vocabulary, sizing.VOCABULARIES)]
    return [as_cell(corpus, seconds, used(size, known, recipe), known) for size in beside]


def two_beside(value: int, values: Sequence[int]) -> list[int]:
    """The one before and the one after; of the first or the last the next two."""
    k = values.index(value)
    first = min(max(k - 1, 0), len(values) - 3)
    return [v for v in values[first : first + 3] if v != value]


def known_of(text: str) -> sizing.Text:
    """What sizing knows of a text whose end is held out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8")
        return text_properties(split_corpus(read_corpus([file]), held_out(text)))


def used(size: sizing.Size, text: sizing.Text, recipe: Recipe) -> sizing.Size:
    """The size with the batch and the steps that it would have."""
    fresh = replace(size, batch=FITTED.sequences)
    return sizing.fit_to_time(fresh, text, recipe, FITTED.stepping * 60 * recipe.train.minutes, (1.0, 1.0))


def as_cell(corpus: str, seconds: float, s: sizing.Size, text: sizing.Text) -> Cell:
    """Its run."""
    dropout = FITTED.dropout if sizing.memorizes(s, text) else 0.0
    return Cell(corpus, seconds, s.vocabulary, s.d_model, s.n_layers, s.batch, dropout, s.steps)


def held_out(text: str) -> float:
    """The share of a text that is kept for measuring."""
    return min(0.1, HELD_OUT / len(text.encode()))


def run_cell(cell: Cell, data: Path) -> dict[str, Any]:
    """Held-out bits per byte at the run's end, and how often it read its text."""
    torch.set_num_threads(1)
    text, steps = CORPORA[cell.corpus](data), cell.n_steps
    fields = cell.fields | {
        "text.held_out": held_out(text),
        "train.attention": "explicit",
        "train.compile": "no",
        "train.sample_every": 0,
        "train.evaluate_every": steps,
        "train.evaluate_tokens": 2048,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8")
        recipe = with_length(make_recipe((str(file),), None, fields), {"steps": steps})
        run = start_run(TransformerTrainable(recipe), Path(folder) / "run", QuietReporter())
        if run.exit_code:  # it was interrupted
            raise SystemExit(run.exit_code)
        n_train = json.loads((run.path / "data.json").read_text())["parts"]["train"]["tokens"]
    return asdict(cell) | {
        "steps": steps,
        "bytes": len(text.encode()),
        "epochs": run.recipe.tokens_per_step * steps / n_train,
        "bits_per_byte": run.bits_per_byte,
    }


def read(results: Path) -> dict[str, dict[str, Any]]:
    """What was run, by cell."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    names = Cell.__dataclass_fields__
    return {Cell(**{n: v for n, v in line.items() if n in names}).key: line for line in lines}


def run_and_keep(cell: Cell, data: Path, results: Path) -> None:
    """In a process of its own."""
    line = json.dumps(run_cell(cell, data))
    with results.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def make(cells: Sequence[Cell], results: Path, data: Path, workers: int) -> list[dict[str, Any]]:
    """The results of all cells, those that are missing run first."""
    have = read(results)
    missing = [(cell, data, results) for cell in cells if cell.key not in have]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(run_and_keep, missing, chunksize=1)
    have = read(results)
    return [have[cell.key] for cell in cells]


def fit(lines: Sequence[dict[str, Any]], data: Path) -> dict[str, float]:
    """The constants of `sizing.expected`, each text's own floor beside them, in bits per character; relative errors.

    Runs of a few steps are left out, and those of much dropout.
    """
    from scipy.optimize import least_squares

    kept = [x for x in lines if x["steps"] >= 40 and x["dropout"] in (0, FITTED.dropout)]
    corpora = sorted({x["corpus"] for x in kept})
    texts = [CORPORA[name](data) for name in corpora]
    known, own = [known_of(text) for text in texts], np.array([corpora.index(x["corpus"]) for x in kept])
    d, n, epochs = (np.array([float(x[k]) for x in kept]) for k in ("d_model", "n_layers", "epochs"))
    steps = np.array([x["steps"] * x["batch"] * CONTEXT / sizing.STEP_TOKENS for x in kept])
    varied, n_characters = (np.array([getattr(k, name) for k in known])[own] for name in ("variety", "n_characters"))
    y = np.array([x["bits_per_byte"] for x in kept]) * np.array([len(t.encode()) / len(t) for t in texts])[own]
    again = np.maximum(epochs - 1, 0)
    names = ["few", "few_fall", "layers", "little", "little_fall", "short", "short_fall", "worth"]
    low, high = [0, 0.05, 0.1, 0, 0.05, 0, 0.2, 0.5], [3, 0.8, 1.5, 5, 0.8, 40, 1.2, 40]

    def made(p: np.ndarray) -> np.ndarray:
        a, b, c, e, f, g, h, w = p[len(corpora) :]
        read = n_characters * (np.minimum(epochs, 1) + w * (1 - np.exp(-again / w)))
        few, little = a * (12 * n**c * d**2 / 1e5) ** -b, e * (read / 1e6) ** -f
        return p[own] + varied * (few + little) + g * steps**-h

    bounds = np.array([0.1] * len(corpora) + low), np.array([6.0] * len(corpora) + high)
    draw, best = np.random.default_rng(0), None
    for _ in range(15):
        found = least_squares(
            lambda p: made(p) / y - 1, draw.uniform(*bounds), bounds=bounds, loss="soft_l1", f_scale=0.02
        )
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    spread = float(np.sqrt(np.mean((made(best.x) / y - 1) ** 2)))
    return dict(zip(names, best.x[len(corpora) :].tolist(), strict=True)) | {"spread": spread, "runs": float(len(y))}


def table(lines: Sequence[dict[str, Any]]) -> None:
    """Every run."""
    names = ["corpus", "seconds", "vocabulary", "d_model", "n_layers", "batch", "dropout", "steps"]
    rows = [
        [*(f"{x[n]:g}" if n != "corpus" else x[n] for n in names), f"{x['epochs']:.2f}", f"{x['bits_per_byte']:.4f}"]
        for x in lines
    ]
    show("held-out bits per byte", [*names, "epochs", "bits per byte"], rows)


def verdicts(groups: Sequence[Sequence[dict[str, Any]]]) -> None:
    """How far the chosen size, the first of its group, is from the best of the group."""
    rows = []
    for group in groups:
        chosen, best = group[0], min(group, key=lambda x: x["bits_per_byte"])
        above = chosen["bits_per_byte"] / best["bits_per_byte"] - 1
        said = [f"{x['d_model']}/{x['n_layers']}/{x['vocabulary']}" for x in (chosen, best)]
        reached = [f"{x['bits_per_byte']:.4f}" for x in (chosen, best)]
        of = [chosen["corpus"], f"{chosen['bytes'] / 1e6:.2f} MB", f"{chosen['seconds']:g}"]
        rows.append([*of, *said, *reached, f"{above:.1%}", str(len(group) - 1)])
    columns = ["text", "bytes", "seconds", "chosen", "best", "reached", "best reached", "above the best", "neighbours"]
    show("the chosen width/layers/vocabulary beside its neighbours", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grid", "fit", "check", "characters"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    if given.what == "fit":
        print(json.dumps(fit(list(read(given.results).values()), given.data), indent=1))
        return
    if given.what in ("grid", "characters"):
        cells = list(grid() if given.what == "grid" else characters())
        table(make(cells, given.results, given.data, given.workers))
        return
    texts = {name: CORPORA[name](given.data) for name in CHECKED}
    groups = [neighbours(name, text, seconds) for name, text in texts.items() for seconds in CHECKED_AT]
    results = make([cell for group in groups for cell in group], given.results, given.data, given.workers)
    table(results)
    have = {Cell(**{n: x[n] for n in Cell.__dataclass_fields__}).key: x for x in results}
    verdicts([[have[cell.key] for cell in group] for group in groups])


if __name__ == "__main__":
    main()
