"""`make demo`: train on the bundled text, show what the model generates, and suggest next steps."""

import argparse
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

HERE = Path("runs/demo")
PROMPTS = ("ROMEO:\n", "KING RICHARD III:\n", "First Citizen:\n")


def run_demo(arguments: list[str] | None = None) -> int:
    """Train unless a finished run exists, then generate from three prompts and score a line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--fresh", action="store_true", help="train again (make demo FRESH=1)")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        raise RecipeError(f"--minutes {options.minutes:g}: expected a number above 0")
    if options.fresh:
        shutil.rmtree(HERE, ignore_errors=True)
    run = continue_or_start(options.minutes)
    if run.exit_code:
        return run.exit_code
    show_run(run)
    return 0


def continue_or_start(minutes: float) -> Run:
    """The finished demo run; an interrupted one is continued, and otherwise a new one starts."""
    if not (HERE / "recipe.json").exists():
        return train(bundled("shakespeare"), out=HERE, minutes=minutes, fields={"sample_prompt": "ROMEO:\n"}, show=True)
    # a run is finished once it has measured all of the held-out text
    ends = [row["step"] for row in read_metrics(HERE / "metrics.jsonl") if row.get("whole")]
    if ends:
        print(f"{HERE} is finished; make demo FRESH=1 trains it again\n")
        return Run(HERE, read_recipe(HERE), max(ends))
    return train(bundled("shakespeare"), out=HERE, resume=True, show=True)


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
    print(
        f"where to look next\n"
        f'  .venv/bin/pellucid generate {run.path} "JULIET:" --seed 7     generate text from a prompt\n'
        f"  .venv/bin/pellucid score {run.path} README.md                how probable a text is\n"
        f"  .venv/bin/pellucid train YOUR_TEXTS/ --minutes 10             train on your own text\n"
        f"  {run.path}/                                             recipe, metrics, checkpoints\n"
        f"  src/pellucid/model/transformer.py                     the whole forward pass"
    )


def demo_command() -> int:
    """The command; what stops it is one line and an exit code."""
    return exit_code_of(run_demo)


if __name__ == "__main__":
    sys.exit(demo_command())
