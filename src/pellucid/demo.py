"""`make demo`: train a small model in which heads can be found, show what it generates, and suggest next steps.

Two thirds of what it reads are Shakespeare. The rest repeats random letters, which only a head that looks for what
followed an earlier occurrence can predict: plays alone give no such induction head in minutes
(docs/experiments/looking.md).
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

from pellucid.cli import exit_code_of
from pellucid.language_model import LanguageModel, load
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import Run
from pellucid.text.read.documents import bundled
from pellucid.training.load import read_recipe
from pellucid.training_run import train

RUN_DIR, TEXTS = Path("runs/demo"), Path("runs/demo-texts")
PROMPTS = ("ROMEO:\n", "KING RICHARD III:\n", "First Citizen:\n")
#: the share of Shakespeare that is held out, at its end
HELD_OUT = 0.1
#: characters of repeated letters for each of Shakespeare
REPEATED = 0.5
#: the fewest and the most letters that are repeated
PERIODS = (4, 32)
#: letters of a line of repeated ones
LINE = 260
#: two layers, since an induction head needs a head below it that looks at the previous token (Elhage et al. 2021), four
#: heads of 32 so that each can do one thing, and every checkpoint, so that one sees when the heads appear
FIELDS = {
    "tokenizer": "char",
    "model.d_model": 96,
    "model.n_layers": 2,
    "model.n_ctx": 128,
    "model.attention.n_heads": 4,
    "model.attention.d_head": 32,
    "train.batch": 16,
    "train.keep_last": 1000,
    "train.sample_prompt": "ROMEO:\n",
}


def run_demo(arguments: list[str] | None = None) -> int:
    """Train unless a finished run exists, then generate from three prompts and score a line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--fresh", action="store_true", help="train again (make demo FRESH=1)")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        raise RecipeError(f"--minutes {options.minutes:g}: expected a number above 0")
    if options.fresh:
        shutil.rmtree(RUN_DIR, ignore_errors=True)
    run = continue_or_start(options.minutes)
    if run.exit_code:
        return run.exit_code
    show_run(run)
    return 0


def continue_or_start(minutes: float) -> Run:
    """The finished demo run; an interrupted one is continued, and otherwise a new one starts."""
    if not (RUN_DIR / "recipe.json").exists():
        texts, held_out = write_texts(bundled("shakespeare").read_text(encoding="utf-8"))
        return train(texts, held_out=[held_out], out=RUN_DIR, minutes=minutes, fields=FIELDS, show=True)
    # a run is finished once it has measured all of the held-out text
    ends = [row["step"] for row in read_metrics(RUN_DIR / "metrics.jsonl") if row.get("whole")]
    if ends:
        print(f"{RUN_DIR} is finished; make demo FRESH=1 trains it again\n")
        return Run(RUN_DIR, read_recipe(RUN_DIR), max(ends))
    return train(TEXTS / "train", out=RUN_DIR, resume=True, show=True)


def write_texts(text: str) -> tuple[Path, Path]:
    """The folder to train on, with the first part of the text and repeated letters, and the held-out rest."""
    border, folder, held_out = int((1 - HELD_OUT) * len(text)), TEXTS / "train", TEXTS / "held-out.txt"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shakespeare.txt").write_text(text[:border], encoding="utf-8", newline="")
    (folder / "repetitions.txt").write_text(repetitions(text[:border]), encoding="utf-8", newline="")
    held_out.write_text(text[border:], encoding="utf-8", newline="")
    return folder, held_out


def repetitions(text: str) -> str:
    """Lines that each repeat some letters of the text, drawn at random; `REPEATED` times as long as the text."""
    draw, letters = random.Random(0), sorted(set(text) - {"\n"})
    lines = []
    while LINE * len(lines) < REPEATED * len(text):
        period = draw.randint(PERIODS[0], min(PERIODS[1], len(letters)))
        lines.append(("".join(draw.sample(letters, period)) * LINE)[:LINE] + "\n")
    return "".join(lines)


def show_run(run: Run) -> None:
    """Print samples, a score, and the next commands."""
    model = load(run.path)
    assert isinstance(model, LanguageModel)
    rows = [row for row in read_metrics(run.path / "metrics.jsonl") if row.get("held_out_loss") is not None]
    first, best = rows[0], min(rows, key=lambda row: row["held_out_loss"])
    print(
        f"held-out text: {first['bits_per_byte']:.3f} bits per byte after {first['step']} steps, "
        f"{best['bits_per_byte']:.3f} after {best['step']}\n"
    )
    for seed, prompt in enumerate(PROMPTS, 1):
        print(prompt + model.generate(prompt, max_tokens=120, temperature=0.8, seed=seed).text + "\n" + "-" * 60)
    line = "But, soft! what light through yonder window breaks?"
    print(f"score: {line!r} has {model.score(line).bits_per_byte:.2f} bits per byte\n")
    heads = model.heads()
    print("the highest scores of heads, as shares of their attention on repeated random tokens")
    for kind, name in (("previous", "previous token"), ("induction", "induction")):
        layer, head = heads.best(kind)
        print(f"  {name:<14}  {float(heads.scores[kind][layer, head]):.2f}  layer {layer}, head {head}")
    print()
    command = ".venv/bin/pellucid"
    rows = (
        (f'{command} generate {run.path} "JULIET:" --seed 7', "generate text from a prompt"),
        (f"{command} score {run.path} README.md", "how probable a text is"),
        (f"{command} train YOUR_TEXTS/ --minutes 10", "train on your own text"),
        (f"{run.path}/", "recipe, metrics, checkpoints"),
        ("src/pellucid/model/transformer.py", "the whole forward pass"),
        (f"{command} report {run.path}", f"how training went: {run.path}/report.html"),
        (f'{command} inspect {run.path} "To be, or not to be"', "one page about a text: page.html"),
        (f"{command} look {run.path}", "every number inside the model, in your browser"),
    )
    print("where to look next", *(f"  {what:<60}  {does}" for what, does in rows), sep="\n")


def demo_command() -> int:
    """The command; what stops it is one line and an exit code."""
    return exit_code_of(run_demo)


if __name__ == "__main__":
    sys.exit(demo_command())
