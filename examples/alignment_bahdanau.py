"""S4-att-b: one vector forgets long sentences, attention does not, and shows which word it reads.

S4 (Dobriban), "Attention Mechanism: Formulation" (Bahdanau et al. 2015). A recurrent encoder and decoder reverse random
sequences of 4 to 16 symbols. In one pair the decoder sees only the encoder's last state; in the other it attends to all
states with additive scores v . tanh(W q + U k). The accuracy of the first falls with the length; that of the second
falls far less, even beyond the lengths of the training, and its attention lies on the anti-diagonal: the alignment.
"""

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import svg
from pellucid.reference.attention import additive_attention

SYMBOLS, WIDTH, LENGTHS, TESTED = 10, 64, (4, 16), (4, 8, 12, 16, 24)
STEPS, BATCH, RATE = 1000, 64, 4e-3
START = SYMBOLS


class Reverser(nn.Module):
    """One GRU reads the source; another writes the target from the context that the first one leaves."""

    def __init__(self, attends: bool):
        super().__init__()
        self.attends = attends
        self.embed = nn.Embedding(SYMBOLS + 1, WIDTH)
        self.reader, self.writer = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRUCell(2 * WIDTH, WIDTH)
        self.W, self.U, self.v = (
            nn.Linear(WIDTH, WIDTH, False),
            nn.Linear(WIDTH, WIDTH, False),
            nn.Linear(WIDTH, 1, False),
        )
        self.out = nn.Linear(2 * WIDTH, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [batch, pos, SYMBOLS], attention [batch, pos, source_pos], and the queries and keys it came from.

        Each step reads the symbol before it: the target's if there is one, otherwise its own.
        """
        keys, last = self.reader(self.embed(source))
        q, projected = last[0], self.U(keys)
        said = torch.full_like(source[:, 0], START)
        logits, weights, queries = [], [], []
        for i in range(source.size(1)):
            pattern = self.v(torch.tanh(self.W(q)[:, None] + projected))[..., 0].softmax(-1)
            context = torch.einsum("bj,bjm->bm", pattern, keys) if self.attends else last[0]
            queries.append(q)
            weights.append(pattern)
            q = self.writer(torch.cat([self.embed(said), context], -1), q)
            logits.append(self.out(torch.cat([q, context], -1)))
            said = logits[-1].argmax(-1) if target is None else target[:, i]
        return torch.stack(logits, 1), torch.stack(weights, 1), torch.stack(queries, 1), keys


def sequences(length: int, batch: int, generator: torch.Generator) -> Tensor:
    """Random symbols [batch, length]."""
    return torch.randint(0, SYMBOLS, (batch, length), generator=generator)


def train(attends: bool) -> Reverser:
    """Train a reverser; each step draws a new length."""
    torch.manual_seed(0)
    model, generator = Reverser(attends), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    for _ in range(STEPS):
        length = int(torch.randint(LENGTHS[0], LENGTHS[1] + 1, (), generator=generator))
        source = sequences(length, BATCH, generator)
        loss = F.cross_entropy(model(source, source.flip(1))[0].flatten(0, 1), source.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def accuracies(model: Reverser) -> list[float]:
    """The share of correct symbols at each tested length, where the model reads its own symbols."""
    generator, accuracies = torch.Generator().manual_seed(2), []
    for length in TESTED:
        source = sequences(length, 500, generator)
        accuracies.append(float((model(source)[0].argmax(-1) == source.flip(1)).float().mean()))
    return accuracies


@torch.no_grad()
def alignment(model: Reverser) -> tuple[float, float, Tensor]:
    """How often attention peaks within one of the anti-diagonal, the distance to the reference, one pattern."""
    _, weights, queries, keys = model(sequences(12, 500, torch.Generator().manual_seed(3)))
    expected = 11 - torch.arange(12)
    near = float(((weights.argmax(-1) - expected).abs() <= 1).float().mean())
    q, k, W, U, v = (
        t.double().numpy() for t in (queries[0], keys[0], model.W.weight, model.U.weight, model.v.weight[0])
    )
    error = float(np.abs(additive_attention(q, k, W, U, v) - weights[0].numpy()).max())
    return near, error, weights[0]


def main() -> dict[str, float]:
    """Train both; returns accuracy by length and the alignment; draws both."""
    models = {"one vector": train(False), "attention": train(True)}
    curves = {name: accuracies(model) for name, model in models.items()}
    near, error, pattern = alignment(models["attention"])
    table = Table("length", *map(str, TESTED), title="symbols reversed rightly; trained on lengths 4 to 16")
    for name, curve in curves.items():
        table.add_row(name, *(f"{value:.3f}" for value in curve))
    Console().print(table)
    print(f"attention peaks within one of the anti-diagonal: {near:.3f}; from the reference: {error:.1e}")
    svg.lines(
        "alignment_bahdanau_lengths", "Symbols reversed rightly", "length", "share", TESTED, curves, low=0, high=1
    )
    svg.grids("alignment_bahdanau", {"written (rows) reads source (columns)": pattern})
    one, attention = curves.values()
    assert all(b > a for a, b in zip(one[2:], attention[2:], strict=True)), "attention is better from length 12 on"
    assert attention[-1] - one[-1] > 0.2
    assert near > 0.9
    assert error < 1e-5
    return {f"{name}_{l}": v for name, c in curves.items() for l, v in zip(TESTED, c, strict=True)} | {
        "near": near,
        "error": error,
    }


if __name__ == "__main__":
    main()
