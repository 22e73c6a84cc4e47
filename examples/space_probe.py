"""S4-emb-f: the vectors that a language model learns for places form a map, though it saw only moves.

S4 (Dobriban), "LLM Representations Encode Space" (Gurnee and Tegmark 2024). The "language": random walks on an 8 x 8
grid, written as place, move, place, move ... with names that say nothing. A linear probe (ridge regression) from the
vector of a place to its coordinates is fitted on 48 places and tested on the other 16. The rows of W_U are probed; the
rows of W_E are reported too.
"""

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg
from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.model.weights import initialise

SIDE, LENGTH = 8, 24
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])
STEPS, BATCH, RATE, RIDGE, SPLITS = 800, 32, 3e-3, 1.0, 5


def walks(batch: int, rng: np.random.Generator) -> torch.Tensor:
    """Random walks on the grid [batch, 2 LENGTH + 1]: names 0 ... 63 of places and 64 ... 67 of moves.

    A move that would leave the grid repeats the place.
    """
    names = np.random.default_rng(99).permutation(SIDE * SIDE)
    cell = rng.integers(SIDE, size=(batch, 2))
    said = [names[cell[:, 0] * SIDE + cell[:, 1]]]
    for _ in range(LENGTH):
        move = rng.integers(4, size=batch)
        cell = np.clip(cell + MOVES[move], 0, SIDE - 1)
        said += [SIDE * SIDE + move, names[cell[:, 0] * SIDE + cell[:, 1]]]
    return torch.from_numpy(np.stack(said, 1))


def coordinates() -> np.ndarray:
    """Where the place with each name lies   [64, 2]"""
    names = np.random.default_rng(99).permutation(SIDE * SIDE)
    where = np.empty((SIDE * SIDE, 2))
    where[names] = np.stack(np.divmod(np.arange(SIDE * SIDE), SIDE), 1)
    return where


def train() -> tuple[Transformer, float]:
    """A two-block transformer on fresh walks, and its last losses on the places after a move, in nats."""
    a = Architecture(
        n_vocab=68, n_ctx=2 * LENGTH, d_model=64, n_layers=2, attention=Attention(n_heads=4), unembed="untied"
    )
    network, rng = initialise(Transformer(a), seed=1), np.random.default_rng(2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    losses = []
    for _ in range(STEPS):
        tokens = walks(BATCH, rng)
        # places alone are to be predicted: moves are drawn at random
        loss = F.cross_entropy(network(tokens[:, :-1])[:, 1::2].flatten(0, 1), tokens[:, 2::2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return network, float(np.mean(losses[-50:]))


def held_out_r2(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """R^2 of ridge regression on unseen places, and the mean of the guesses at each place while it was unseen.

    In each of SPLITS random orders every quarter of the places is left out once: 48 are fitted, 16 are guessed.
    """
    scores, guesses = [], np.zeros_like(y)
    x = (x - x.mean(0)) / x.std()
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(x))
        for test in order.reshape(4, 16):
            fit = np.setdiff1d(order, test)
            centre, mean = x[fit].mean(0), y[fit].mean(0)
            A = x[fit] - centre
            w = np.linalg.solve(A.T @ A + RIDGE * np.eye(x.shape[1]), A.T @ (y[fit] - mean))
            guess = (x[test] - centre) @ w + mean
            scores.append(1 - np.square(guess - y[test]).sum() / np.square(y[test] - y[test].mean(0)).sum())
            guesses[test] += guess / SPLITS
    return float(np.mean(scores)), guesses


def main() -> dict[str, float]:
    """Train, probe W_U and W_E, and W_U against shuffled coordinates; draws the guessed map."""
    network, loss = train()
    where = coordinates()
    W_U, W_E = (w.detach().double().numpy()[:64] for w in (network.unembed.weight, network.embed.token.weight))
    results = {"loss": loss}
    results["r2_W_U"], guesses = held_out_r2(W_U, where)
    results["r2_W_E"], _ = held_out_r2(W_E, where)
    results["r2_shuffled"], _ = held_out_r2(W_U, np.random.default_rng(0).permutation(where))
    table = Table("probed", "R^2 on unseen places", title=f"linear probe of places; loss after a move {loss:.3f} nats")
    for name in ("W_U", "W_E", "shuffled"):
        table.add_row(name, f"{results[f'r2_{name}']:.2f}")
    Console().print(table)
    draw(where, guesses)
    assert results["r2_W_U"] >= 0.6
    assert results["r2_shuffled"] <= 0.1
    return results


def draw(where: np.ndarray, guesses: np.ndarray) -> None:
    """Draw each place where the probe puts it, joined to its true neighbours."""
    at = {
        tuple(int(c) for c in cell): (60 + 42 * guess[1], 60 + 42 * guess[0])
        for cell, guess in zip(where, guesses, strict=True)
    }
    parts = [svg.text(20, 24, "Unseen places where the probe of W_U puts them", "start", font_weight="bold")]
    for (r, c), (x, y) in at.items():
        for other in ((r + 1, c), (r, c + 1)):
            if other in at:
                parts.append(f'<path d="M{x:.1f} {y:.1f}L{at[other][0]:.1f} {at[other][1]:.1f}" stroke="#1b6ca8"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#c8553d"/>')
    svg.save("space_probe", 420, 400, parts)


if __name__ == "__main__":
    main()
