"""S4-emp-b: Shannon's series of approximations to English (1948), and where a trained model stands in it.

S4 (Dobriban), "Empirical Next-Token Predictor". Samples of zeroth to third order in letters, of first and second order
in words, and a text of the character model; the entropies F_0 ... F_3 of a letter given those before it, in bits.
Order k keeps the frequencies of runs of k letters and not those of k + 1: the distance (total variation) of a million
letters from the text's runs of k is below 0.01 for k = 1 and 2. For k = 3 it is 0.019; a sample of independent runs
of that size is already 0.018 away, so the limit is 1.25 times that. F_3 of a text this short is too low: most runs of
three letters that English has are rare in it.
"""

import re
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.table import Table

import svg
from character_model import character_model
from pellucid import LanguageModel
from pellucid.reference.predictors import conditional_entropies, shannon_approximation
from pellucid.text.read.documents import bundled

SAMPLE = 1_000_000
#: what Shannon found for printed English of 27 symbols (1951, table 1)
SHANNON = (4.76, 4.03, 3.32, 3.1)


def letters(text: str) -> str:
    """The text in Shannon's 27 symbols: a ... z and the space."""
    return re.sub(r"[^a-z]+", " ", text.lower().replace("'", ""))


def run_frequencies(symbols: str, n: int) -> np.ndarray:
    """How often each run of n symbols comes, as a share   [27^n]"""
    codes = np.frombuffer(symbols.encode(), np.uint8).astype(np.int64)
    digits = np.where(codes == ord(" "), 0, codes - ord("a") + 1)
    runs = sum(digits[k : len(digits) - n + 1 + k] * 27 ** (n - 1 - k) for k in range(n))
    return np.bincount(runs, minlength=27**n) / len(runs)


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """Total variation: half the sum of |p - q| over all runs."""
    return float(np.abs(p - q).sum() / 2)


def samples(text: str, rng: np.random.Generator) -> dict[str, str]:
    """One line of each approximation."""
    samples = {f"letters, order {k}": "".join(shannon_approximation(text, k, 70, rng)) for k in range(4)}
    words = text.split()
    return samples | {f"words, order {k}": " ".join(shannon_approximation(words, k, 13, rng)) for k in (1, 2)}


def main(model: LanguageModel | None = None, with_model: bool = True) -> dict[str, float]:
    """Samples, entropies and the distances of order-k samples from the text's k- and (k + 1)-runs."""
    rng = np.random.default_rng(1948)
    text = letters(bundled("shakespeare").read_text(encoding="utf-8"))
    shown = samples(text, rng)
    if with_model:
        model = model or character_model()
        shown["the model, 3 blocks"] = letters(model.generate("\n", max_tokens=70, temperature=1.0, seed=1).text)
    table = Table("approximation", "sample", title="Shannon's series")
    for name, sample in shown.items():
        table.add_row(name, sample)
    Console(width=110).print(table)

    entropies = conditional_entropies(text, 3)
    results = {f"F_{k}": value for k, value in enumerate(entropies)}
    print("bits per letter: " + ", ".join(f"{name} = {value:.3f}" for name, value in results.items()))
    svg.lines(
        "shannons_series",
        "Entropy of a letter given the N - 1 before it",
        "N",
        "bits per letter",
        range(4),
        {"bundled text": entropies, "Shannon 1951": SHANNON},
    )
    for order in (1, 2, 3):
        sample = "".join(shannon_approximation(text, order, SAMPLE, rng))
        for runs in (order, order + 1):
            expected = run_frequencies(text, runs)
            results[f"order_{order}_runs_{runs}"] = distance(run_frequencies(sample, runs), expected)
            if runs == 3:
                results["chance_3"] = distance(rng.multinomial(SAMPLE, expected) / SAMPLE, expected)
        print(f"order {order}: distance {results[f'order_{order}_runs_{order}']:.4f} from the text's runs of {order}, "
              f"{results[f'order_{order}_runs_{order + 1}']:.4f} from those of {order + 1}")  # fmt: skip
    print(f"independent runs of 3: distance {results['chance_3']:.4f}")
    check(results)
    return results


def check(results: dict[str, float]) -> None:
    """Entropies fall and are near Shannon's; samples have the runs they should have, and no longer ones."""
    F = [results[f"F_{k}"] for k in range(4)]
    assert all(later < earlier for earlier, later in pairwise(F))
    assert abs(F[1] - SHANNON[1]) < 0.1
    assert abs(F[2] - SHANNON[2]) < 0.25
    for order in (1, 2, 3):
        assert results[f"order_{order}_runs_{order}"] < (0.01 if order < 3 else 1.25 * results["chance_3"])
        assert results[f"order_{order}_runs_{order + 1}"] > 0.05


if __name__ == "__main__":
    main()
