"""S1-1.1.2-j (footnote 10): why muP divides the scores by d_head instead of its square root.

S1 (Goon), footnote 10; Yang et al. 2022 (Tensor Programs V). Queries and keys are independent at the start, so that
q . k grows as sqrt(d_head); after a few steps they are correlated and it grows as d_head. With 1/d_head and learning
rates of matrices in proportion to 1/d_model the scores are as large at every width; with 1/sqrt(d_head) and one
learning rate they grow without bound.
"""

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg
from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.model.tap import Recorder
from pellucid.text.read.documents import bundled

WIDTHS, BASE = (64, 128, 256, 512), 64
STEPS, RATE, BATCH, LENGTH = 8, 0.01, 8, 32


def architecture(width: int, scale: str) -> Architecture:
    """Two blocks of one head: d_head is the width."""
    attention = Attention(n_heads=1, scale=scale, bias="none")
    return Architecture(n_vocab=256, n_ctx=LENGTH, d_model=width, n_layers=2, attention=attention, unembed="untied")


def network_and_optimizer(width: int, scheme: str, seed: int) -> tuple[Transformer, torch.optim.Adam]:
    """Weights and learning rates of the scheme; at width BASE the two schemes differ only in query and scale.

    standard  N(0, 1/fan_in), one learning rate, 1/sqrt(d_head)
    muP       hidden matrices learn at RATE BASE/width, the unembedding starts at and learns in proportion to
              1/width, queries start at 0, 1/d_head (Tensor Programs V, table 8 and appendix D.2)
    """
    mup = scheme == "muP"
    network = Transformer(architecture(width, "1/d_head" if mup else "1/sqrt(d_head)"))
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for name, p in network.named_parameters():
        rate = RATE
        if p.ndim == 2 and not name.startswith("embed."):
            shrink = BASE / width if mup else 1.0
            rate = RATE * shrink
            size = p.size(1) ** -0.5 * (shrink**0.5 if name == "unembed.weight" else 1.0)
            size = 0.0 if mup and "attn.query" in name else size
            torch.nn.init.normal_(p, std=size, generator=generator)
        elif name.startswith("embed."):
            torch.nn.init.normal_(p, std=1.0, generator=generator)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)
        groups.append({"params": [p], "lr": rate})
    return network, torch.optim.Adam(groups)


def scores_after_training(width: int, scheme: str, rows: torch.Tensor, seed: int = 0) -> float:
    """The mean |score| over positions a query may read, after STEPS steps on one batch of text."""
    network, optimizer = network_and_optimizer(width, scheme, seed)
    for _ in range(STEPS):
        loss = F.cross_entropy(network(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tap = Recorder(keep=[f"blocks.{l}.attn.scores" for l in range(2)])
    with torch.no_grad():
        network(rows[:, :-1], tap=tap)
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return float(torch.stack([scores[..., allowed].abs().mean() for scores in tap.values.values()]).mean())


def main() -> dict[str, float]:
    """Train at each width under both schemes; returns the scores and the largest over the least of each scheme."""
    text = np.frombuffer(bundled("shakespeare").read_bytes()[:100_000], np.uint8)
    starts = np.random.default_rng(0).integers(len(text) - LENGTH - 1, size=BATCH)
    rows = torch.from_numpy(text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int64))
    curves = {scheme: [scores_after_training(w, scheme, rows) for w in WIDTHS] for scheme in ("standard", "muP")}
    table = Table("d_model", *map(str, WIDTHS), "max / min", title=f"mean |score| after {STEPS} steps of Adam")
    results = {}
    for scheme, curve in curves.items():
        results |= {f"{scheme}_{width}": value for width, value in zip(WIDTHS, curve, strict=True)}
        results[f"{scheme}_ratio"] = max(curve) / min(curve)
        table.add_row(scheme, *(f"{v:.2f}" for v in curve), f"{results[f'{scheme}_ratio']:.2f}")
    Console().print(table)
    logs = {scheme: np.log10(curve).tolist() for scheme, curve in curves.items()}
    svg.lines(
        "mup_scores", f"Attention scores after {STEPS} steps of Adam", "d_model", "log10 mean |score|", WIDTHS, logs
    )
    assert results["muP_ratio"] <= 1.6
    assert results["standard_ratio"] >= 5
    return results


if __name__ == "__main__":
    main()
