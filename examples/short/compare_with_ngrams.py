"""Has the model learned more than counting could?

    python examples/short/compare_with_ngrams.py runs/my_text chapter.txt

Scores a text with a run's model, and with n-grams counted on the run's training text, all in bits per byte.
"""

import sys
from pathlib import Path

import pellucid


def main(run: str, text: str) -> dict[str, float]:
    """Bits per byte by predictor, the best last."""
    score = pellucid.load(run).score(Path(text), baselines=True)
    bits = {name: per_byte for name, _, per_byte in score.baselines} | {"this model": score.bits_per_byte}
    ranked = dict(sorted(bits.items(), key=lambda item: -item[1]))
    for name, per_byte in ranked.items():
        print(f"{name:<12} {per_byte:.4f} bits per byte")
    return ranked


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
