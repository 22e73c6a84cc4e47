"""Train a model on your own text, and let it write.

    python examples/short/train_on_my_text.py my_texts/ 10

The second argument is a number of minutes. The size of the model is chosen from the text, the time and this machine.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import pellucid


def main(text: str, minutes: float, out: str = "runs/my_text", fields: Mapping[str, int] | None = None) -> Path:
    """Train, print a sample, and return the folder of the run."""
    run = pellucid.train(text, minutes=minutes, out=out, fields=fields, show=True)
    model = pellucid.load(run.path)
    print(model.generate(max_tokens=100, temperature=0.8, seed=1).text)
    print(f"report: {run.path / 'report.html'}")
    return run.path


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
