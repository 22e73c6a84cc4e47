"""makemore's names as one row of ids, in the split that the published numbers are on (seed 42, 80/10/10)."""

import random
from pathlib import Path

import numpy as np

NAMES = (Path(__file__).parent.parent / "data" / "names.txt").read_text(encoding="utf-8").split()
LETTERS = sorted(set("".join(NAMES)))
#: the 26 letters and the separator, which is 0
N_VOCAB = len(LETTERS) + 1
ID = {letter: i + 1 for i, letter in enumerate(LETTERS)}


def row(names: list[str]) -> np.ndarray:
    """Every name between separators."""
    return np.array([0, *(i for name in names for i in [*(ID[letter] for letter in name), 0])])


def parts() -> tuple[np.ndarray, np.ndarray]:
    """Train and dev."""
    shuffled = list(NAMES)
    random.Random(42).shuffle(shuffled)
    a, b = int(0.8 * len(shuffled)), int(0.9 * len(shuffled))
    return row(shuffled[:a]), row(shuffled[a:b])
