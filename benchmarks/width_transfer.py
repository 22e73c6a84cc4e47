"""Whether the best learning rate at one width is the best at another: a grid of rates at each width.

    python -m benchmarks.width_transfer --widths 64 128 256 512 --steps 150

Each cell trains the default network of that width (2 layers, heads of 32, context 64) on tiny Shakespeare by
characters and gives the held-out loss in nats per character; everything but width and rate is the same.
"""

import argparse
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.side_by_side import header, show
from pellucid.demo import bundled
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.presets import modern
from pellucid.runs.optimizer import Optimizer
from pellucid.runs.schedule import rate_factor

CONTEXT, BATCH, HEAD = 64, 16, 32


def characters() -> tuple[Tensor, Tensor, int]:
    """The first 90 % and the last 10 % of the text as ids, and how many characters there are."""
    text = bundled("shakespeare").read_text(encoding="utf-8")
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([alphabet[c] for c in text])
    return *ids.split([int(0.9 * len(ids)), len(ids) - int(0.9 * len(ids))]), len(alphabet)


def windows(ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of windows of the context that begin at `starts`."""
    rows = ids[starts[:, None] + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


def loss_of(network: Transformer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean nats per character."""
    return F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten())


def held_out_loss(width: int, rate: float, steps: int, seed: int) -> float:
    """The loss after `steps` of training at this width and peak rate of Muon."""
    train, held_out, n_vocab = characters()
    architecture = dataclasses.replace(modern(width, 2, max(1, width // HEAD), CONTEXT), n_vocab=n_vocab)
    network = initialise(Transformer(architecture), seed)
    optimizer = Optimizer(
        network,
        "muon",
        learning_rate=5e-3,
        muon_learning_rate=rate,
        betas=(0.9, 0.99),
        eps=1e-8,
        weight_decay=0.1,
    )
    generator, good = torch.Generator().manual_seed(seed), torch.tensor(False)
    for step in range(steps):
        optimizer.set_factor(rate_factor(step, (steps // 20, steps), shape="cosine", warmup=steps // 20, floor=0.0))
        optimizer.zero_grad()
        starts = torch.randint(len(train) - CONTEXT - 1, (BATCH,), generator=generator)
        loss_of(network, *windows(train, starts)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step(good)
    with torch.no_grad():
        starts = torch.arange(0, min(len(held_out) - CONTEXT - 1, 512 * CONTEXT), CONTEXT)
        return loss_of(network.eval(), *windows(held_out, starts)).item()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the grid and print it, the best rate of each width and how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.04, 0.08])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    rows, best = [], []
    for width in chosen.widths:
        losses = [held_out_loss(width, rate, chosen.steps, chosen.seed) for rate in chosen.rates]
        best.append(chosen.rates[losses.index(min(losses))])
        rows.append([str(width), *(f"{loss:.4f}" for loss in losses), f"{best[-1]:g}"])
    print("\n".join(header(torch.device("cpu"))))
    columns = ["width", *(f"{rate:g}" for rate in chosen.rates), "best rate"]
    show(f"held-out nats per character after {chosen.steps} steps, by Muon's rate", columns, rows)
    print(f"best rates within a factor of {max(best) / min(best):g}")


if __name__ == "__main__":
    main()
