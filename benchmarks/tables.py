"""What tables of n-grams leave to learn: runs of fixed steps with them and without, and the constants of sizing.

    python -m benchmarks.tables --results tables.jsonl --data FOLDER [--fit]

Each run trains on the first nine tenths of a text of `benchmarks.equal_time` and reads the rest, in float32 on one
thread; two go on side by side. What stands in the file of results is not run again. Printed is how far
`pellucid.plan.sizing.expected` is from each, as it differs from the mean of its text and tokens, and with `--fit` the
constants for tables that least squares find. FOLDER has `gutenberg/` and `udhr.zip`.
"""

import argparse
import json
import math
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.equal_time import TEXTS, parts_of
from benchmarks.side_by_side import header, show
from benchmarks.sizing import known_of
from pellucid.plan import sizing
from pellucid.presets import gated_width
from pellucid.runs.length import with_length
from pellucid.runs.pipeline import start_run
from pellucid.runs.reporter import QuietReporter
from pellucid.training.recipe import make_recipe
from pellucid.training.trainable import TransformerTrainable

#: the vocabulary of each text, None for characters, and the rows of its tables
TOKENS: dict[str, tuple[int | None, int]] = {
    "shakespeare": (None, 32_768),
    "books": (1024, 32_768),
    "udhr": (512, 65_536),
}


@dataclass(frozen=True)
class Run:
    """One run; `rows` of each table, 0 without tables; `vocabulary` None for characters."""

    text: str
    vocabulary: int | None
    rows: int
    d_model: int
    n_layers: int
    steps: int
    batch: int = 16

    @property
    def fields(self) -> dict[str, Any]:
        """The recipe's."""
        tokens = {"text.tokenizer": "char"} if self.vocabulary is None else {"text.vocabulary": self.vocabulary}
        tables = {"model.ngram_rows": self.rows} if self.rows else {"model.ngrams": ()}
        return (
            tokens
            | tables
            | {
                "model.d_model": self.d_model,
                "model.n_layers": self.n_layers,
                "model.n_ctx": sizing.CONTEXT,
                "model.attention.n_heads": max(1, self.d_model // sizing.HEAD),
                "model.mlp.d_ff": gated_width(self.d_model),
                "train.batch": self.batch,
                "train.precision": "float32",
                "train.attention": "fused",
                "train.compile": "no",
                "train.sample_every": -1,
                "train.evaluate_every": self.steps,
                "train.evaluate_tokens": 2048,
            }
        )


def runs() -> Iterator[Run]:
    """Widths and steps with tables, single layers beside two, steps of half as many tokens, and runs without tables."""
    for steps in (400, 800, 1600):
        for text in TEXTS:
            yield from (Run(text, *TOKENS[text], width, 1, steps) for width in (64, 96, 128))
        two = () if steps == 400 else ("shakespeare",) if steps == 1600 else ("shakespeare", "books")
        for text in two:
            yield from (Run(text, *TOKENS[text], width, 2, steps) for width in (96, 128))
    for text, steps in (("books", 800), ("books", 1600), ("books", 3200), ("shakespeare", 1600), ("shakespeare", 3200)):
        yield Run(text, *TOKENS[text], 96, 1, steps, batch=8)
    yield Run("udhr", *TOKENS["udhr"], 96, 1, 1600, batch=8)
    without = {name: (vocabulary, 0) for name, (vocabulary, _) in TOKENS.items()}
    for text, width, n, steps, batch in (
        ("books", 96, 1, 800, 16),
        ("books", 96, 2, 800, 16),
        ("books", 96, 1, 1600, 8),
        ("shakespeare", 96, 1, 800, 16),
        ("shakespeare", 96, 1, 1600, 16),
        ("shakespeare", 96, 1, 1600, 8),
        ("udhr", 96, 1, 800, 16),
        ("udhr", 64, 1, 400, 16),
    ):
        yield Run(text, *without[text], width, n, steps, batch)
    yield from (Run("shakespeare", 1024, rows, 96, 1, 800) for rows in (32_768, 0))
    yield Run("shakespeare", 1024, 0, 96, 2, 800)


def reached(run: Run, data: Path) -> dict[str, Any]:
    """Its bits per character of all that is held out, and how often it read its text."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.txt" for name in ("train", "held-out")]
        parts = parts_of(run.text, data)
        for file, part in zip(files, parts, strict=True):
            file.write_text(part, encoding="utf-8", newline="")
        held_out = {"text.held_out": 0.0, "text.split": "files", "text.held_out_files": (str(files[1]),)}
        recipe = with_length(make_recipe((str(files[0]),), None, run.fields | held_out), {"steps": run.steps})
        made = start_run(TransformerTrainable(recipe), Path(folder) / "run", QuietReporter())
        if made.exit_code:  # it was interrupted
            raise SystemExit(made.exit_code)
        n_train = json.loads((made.path / "data.json").read_text())["parts"]["train"]["tokens"]
    assert made.bits_per_byte is not None
    return asdict(run) | {
        "epochs": made.recipe.tokens_per_step * run.steps / n_train,
        "tokens": n_train,
        "bits_per_character": made.bits_per_byte * len(parts[1].encode()) / len(parts[1]),
    }


def run_and_keep(run: Run, data: Path, results: Path) -> None:
    """In a process of its own."""
    line = json.dumps(reached(run, data))
    with results.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def read(results: Path) -> dict[Run, dict[str, Any]]:
    """What was run."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {Run(**{name: line[name] for name in Run.__dataclass_fields__}): line for line in lines}


class Ranked:
    """Runs beside what `sizing.expected` makes of them; each text, by its own tokens, has a minimum of its own."""

    def __init__(self, lines: Sequence[dict[str, Any]], data: Path) -> None:
        known = {name: known_of(parts_of(name, data)[0]) for name in TEXTS}
        self.texts = [known[x["text"]] for x in lines]
        self.by_character = [x["vocabulary"] is None for x in lines]
        self.sizes = [self.size_of(x, text) for x, text in zip(lines, self.texts, strict=True)]
        kinds = sorted({(x["text"], x["vocabulary"] or 0) for x in lines})
        self.kinds = np.array([kinds.index((x["text"], x["vocabulary"] or 0)) for x in lines])
        self.reached = np.array([x["bits_per_character"] for x in lines])

    @staticmethod
    def size_of(line: dict[str, Any], text: sizing.Text) -> sizing.Size:
        """The size of a run, with the share of epochs that its tables may have."""
        recipe = make_recipe((), None, {})
        most = sizing.epochs_with_tables(recipe, line["tokens"] * text.variety, line["vocabulary"] is None)
        return sizing.Size(
            line["vocabulary"] or 128,
            line["d_model"],
            line["n_layers"],
            line["batch"],
            ngrams=line["rows"] > 0,
            steps=line["steps"],
            epochs=line["epochs"],
            repeats=line["epochs"] / most,
        )

    def residuals(self) -> np.ndarray:
        """Expected less reached, less the mean of the same text and tokens, in bits per character."""
        each = zip(self.sizes, self.texts, self.by_character, strict=True)
        above = np.array([sizing.expected(*of_one) for of_one in each]) - self.reached
        means = np.array([above[self.kinds == k].mean() for k in range(self.kinds.max() + 1)])
        return above - means[self.kinds]

    def fit(self) -> dict[str, Any]:
        """The constants for tables by least squares; MEMORIZED as it is, for want of runs."""
        from scipy.optimize import least_squares

        def constants(p: Sequence[float]) -> dict[str, Any]:
            u, u_c, w, w_c, x, x_c, v, y, m, m_c, q = (float(number) for number in p)
            return {
                "WITH_TABLES": ((u, w, x), (u_c, w_c, x_c)),
                "TABLES_OF_VARIED": (v, y),
                "DEPTH_WITH_TABLES": ((m, m_c), q),
            }

        def residuals(p: Sequence[float]) -> np.ndarray:
            with patch.multiple(sizing, **constants(p)):
                return self.residuals()

        start = (0.6, 0.35, 0.65, 0.41, 0.28, 0.44, 0.67, 0.19, 0.12, 0.065, 0.6)
        low, high = (
            [0.0] * 4 + [-2.0] * 2 + [0.0, -1.0, 0.0, 0.0, 0.2],
            [3.0] * 4 + [2.0] * 2 + [2.0, 1.0, 0.5, 0.5, 2.0],
        )
        found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.02)
        return constants(found.x) | {"root mean square": math.sqrt(np.mean(residuals(found.x) ** 2))}


def main() -> None:
    """Run what is missing, and print every run beside the formula."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fit", action="store_true", help="print the constants that fit the runs best")
    parser.add_argument("--kept", action="store_true", help="run nothing, and use what the file of results has")
    o = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    have, wanted = read(o.results), list(runs())
    missing = [(run, o.data, o.results) for run in wanted if run not in have and not o.kept]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(run_and_keep, missing, chunksize=1)
    have = read(o.results)
    lines = [have[run] for run in wanted if run in have]
    ranked = Ranked(lines, o.data)
    residuals = ranked.residuals()
    names = ["text", "vocabulary", "rows", "d_model", "n_layers", "batch", "steps"]
    rows = [
        [*(str(x[name] or "-") for name in names), f"{x['epochs']:.2f}", f"{x['bits_per_character']:.4f}", f"{r:+.4f}"]
        for x, r in zip(lines, residuals, strict=True)
    ]
    show("bits per character", [*names, "epochs", "reached", "expected less reached"], rows)
    print(f"root mean square of the last column: {math.sqrt(np.mean(residuals**2)):.4f}")
    if o.fit:
        print(json.dumps(ranked.fit(), indent=1))


if __name__ == "__main__":
    main()
