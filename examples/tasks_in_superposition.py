"""S4-att-o: heads compute several tasks at once: a prompt that shows two tasks is answered with a mixture of both.

A small network learns two tasks from examples in its context, "the letter after x" and "the seventh letter after x"
of a circular alphabet; each sequence of its training shows one of them. Afterwards k of seven examples show the second
task and the others the first, which no training sequence did. The model divides its probability between the two tasks'
answers about as the examples are divided, and leaves almost nothing for any other (Xiong et al. 2024, "Everything
everywhere all at once").
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import svg
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import initialise

LETTERS, EXAMPLES, SHIFTS = 20, 8, (1, 7)
STEPS, BATCH, RATE = 500, 64, 2e-3


def sequences(second: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """x_1 y_1 ... x_8 y_8, y_i by the second task where `second` [batch, 8] says so; and both answers to every x_i.

    Answers are tokens of their own, LETTERS above the questions: int64 [batch, 16] and [batch, 8, 2].
    """
    x = torch.randint(0, LETTERS, second.shape, generator=generator)
    both = LETTERS + torch.stack([(x + shift) % LETTERS for shift in SHIFTS], -1)
    shown = both.gather(-1, second.long().unsqueeze(-1)).squeeze(-1)
    return torch.stack([x, shown], -1).flatten(1), both


def train() -> Transformer:
    """Train two layers on the answers after the first example; each sequence shows one task."""
    a = Architecture(n_vocab=2 * LETTERS, n_ctx=2 * EXAMPLES, d_model=64, n_layers=2).with_fields({"n_heads": 4})
    network, generator = initialise(Transformer(a), seed=1), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    for _ in range(STEPS):
        task = torch.randint(0, 2, (BATCH, 1), generator=generator).expand(-1, EXAMPLES)
        tokens, _ = sequences(task, generator)
        logits = network(tokens[:, :-1])[:, 2::2]  # behind x_2 ... x_8
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 3::2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@torch.no_grad()
def answers(network: Transformer, n_second: int, generator: torch.Generator) -> tuple[float, float]:
    """Mean probability of the first and of the second task's answer where `n_second` of seven examples show the second.

    The examples' order is random in each of 500 sequences.
    """
    second = torch.rand(500, EXAMPLES - 1, generator=generator).argsort(1) < n_second
    tokens, both = sequences(F.pad(second, (0, 1)), generator)
    p = network(tokens[:, :-1])[:, -1].softmax(-1).gather(1, both[:, -1]).mean(0)
    return float(p[0]), float(p[1])


def main() -> dict[str, list[float]]:
    """Train, mix the examples, and check that the answers are mixed in the same way."""
    network, generator = train(), torch.Generator().manual_seed(1)
    probabilities = [answers(network, k, generator) for k in range(EXAMPLES)]
    first, second = [p for p, _ in probabilities], [q for _, q in probabilities]
    table = Table(
        "examples of the second task", "its answer", "the first task's", "any other", title="two tasks at once"
    )
    for k, (p, q) in enumerate(probabilities):
        table.add_row(f"{k} of {EXAMPLES - 1}", f"{q:.3f}", f"{p:.3f}", f"{1 - p - q:.3f}")
    Console().print(table)
    svg.lines(
        "tasks_in_superposition",
        "Answers to a prompt that shows two tasks",
        "examples of the second task, of seven",
        "probability",
        range(EXAMPLES),
        {"the first task's answer": first, "the second's": second},
        low=0,
        high=1,
    )
    assert second == sorted(second), "more examples of a task, more of its answer"
    assert min(p + q for p, q in probabilities) > 0.9, "nothing else is answered"
    assert min(first[3], second[3], first[4], second[4]) > 0.25, "mixed about equally, both are there"
    return {"first": first, "second": second}


if __name__ == "__main__":
    main()
