"""Which training passages made a prediction likely? Methods judged by retraining without passages.

    python -m benchmarks.influence TEXT [--subsets 24] [--queries 24] [--drop 0.1 0.5]

A small transformer is trained on blocks of 128 tokens, each with a weight of 1. It is trained again, with the same seed
and batches, with the weights of a random share of the blocks set to 0, many times. A method gives every block a score
for a held-out query; its linear datamodeling score (Park et al. 2023, TRAK, section 2) is the rank correlation, over
the retrained models, of the query's loss with the sum of the scores of the blocks that were left in, mean over queries.
The ceiling is the same correlation between the losses of two sets of retrainings with other first weights and batches.

bm25           the words that query and block share (Robertson & Zaragoza 2009)
cosine         of the gradients at the end
gradients      their product, summed over checkpoints times the rate (Pruthi et al. 2020, TracIn)
adam           that, divided by the root of Adam's second moments
trak           gradients projected to random directions, times the inverse of their second moments (Park et al. 2023)
eigenbasis     gradients in the eigenbases of their covariances, divided by their variances there (as EK-FAC, George et
               al. 2018, with the covariances of whole gradients)
replay         the exact derivative of the query's loss with respect to every block's weight, by differentiating
               through the training (Ilyas & Engstrom 2025, MAGIC)
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import pellucid
from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.weights import initialise

BLOCK, BATCH, EPOCHS, RATE, BETAS, EPS = 128, 16, 3, 5e-3, (0.9, 0.99), 1e-6
CHECKPOINTS, DIRECTIONS = 6, 2048

Weights = dict[str, Tensor]
State = tuple[Weights, Weights, Weights]


def blocks_of(path: Path, n_vocab: int) -> Tensor:
    """The text as ids, in blocks."""
    tokenizer = pellucid.train_tokenizer(path, vocabulary=n_vocab)
    ids = torch.tensor(tokenizer.encode(path.read_text(encoding="utf-8")))
    return ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)


class Training:
    """Adam on weighted blocks, as a function of the blocks' weights alone."""

    def __init__(self, blocks: Tensor, n_vocab: int, seed: int):
        a = Architecture(n_vocab=n_vocab, n_ctx=BLOCK, d_model=64, n_layers=2, attention=Attention(n_heads=4))
        self.network = Transformer(a)
        choose_attention_kernel(self.network, "explicit")  # the fused one has no second derivative
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        initialise(self.network, seed=seed)
        self.first = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        self.blocks = blocks
        orders = [torch.randperm(len(blocks), generator=generator) for _ in range(EPOCHS)]
        self.batches = torch.cat([order[: len(order) // BATCH * BATCH] for order in orders]).view(-1, BATCH)

    def losses(self, weights: Weights, ids: Tensor) -> Tensor:
        """Nats per token of each block."""
        logits = functional_call(self.network, weights, (ids[:, :-1],))
        targets = ids[:, 1:]
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(1)

    def rate(self, step: int) -> float:
        """It rises for 10 steps and falls to 0."""
        return RATE * min(1.0, (step + 1) / 10) * (1 - step / len(self.batches))

    def step(self, state: State, step: int, block_weights: Tensor, create_graph: bool = False) -> State:
        weights, mean, square = state
        batch = self.batches[step]
        if not create_graph:
            weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        loss = (self.losses(weights, self.blocks[batch]) * block_weights[batch]).sum() / BATCH
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
        new: State = ({}, {}, {})
        for (name, w), g in zip(weights.items(), gradients, strict=True):
            new[1][name] = m = BETAS[0] * mean[name] + (1 - BETAS[0]) * g
            new[2][name] = v = BETAS[1] * square[name] + (1 - BETAS[1]) * g.square()
            m, v = m / (1 - BETAS[0] ** (step + 1)), v / (1 - BETAS[1] ** (step + 1))
            # eps inside the root: its derivative is finite where v is 0
            new[0][name] = w - self.rate(step) * m / (v + EPS**2).sqrt()
        if not create_graph:
            new = tuple({name: t.detach() for name, t in part.items()} for part in new)  # type: ignore[assignment]
        return new

    def states(self, block_weights: Tensor) -> Iterator[State]:
        """The state before each step, and the last one."""
        zeros = {name: torch.zeros_like(w) for name, w in self.first.items()}
        state: State = (self.first, zeros, zeros)
        yield state
        for step in range(len(self.batches)):
            state = self.step(state, step, block_weights)
            yield state

    def trained(self, block_weights: Tensor) -> State:
        *_, state = self.states(block_weights)
        return state

    def gradients(self, weights: Weights, ids: Tensor) -> Iterator[tuple[int, Weights]]:
        """The gradients of blocks, 32 at a time, with the number of the first."""
        of_one = vmap(grad(lambda w, block: self.losses(w, block[None])[0]), (None, 0))
        for start in range(0, len(ids), 32):
            yield start, {name: g.detach() for name, g in of_one(weights, ids[start : start + 32]).items()}

    def flat(self, gradients: Weights) -> Tensor:
        return torch.cat([g.flatten(1) for g in gradients.values()], 1)


def scores_by_products(t: Training, weights: Weights, queries: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Products of the gradients of queries and blocks, each changed by `of`."""
    mine = torch.cat([of(t.flat(g)) for _, g in t.gradients(weights, queries)])
    return torch.cat([mine @ of(t.flat(g)).T for _, g in t.gradients(weights, t.blocks)], 1)


def by_checkpoints(t: Training, kept: dict[int, State], queries: Tensor, divided: bool) -> Tensor:
    total = torch.zeros(len(queries), len(t.blocks))
    for step, (weights, _, square) in kept.items():
        v = torch.cat([s.flatten() for s in square.values()]) / (1 - BETAS[1] ** step)
        scale = (v + EPS**2) ** -0.25 if divided else torch.ones_like(v)  # half the division on each side
        total += t.rate(step) * scores_by_products(t, weights, queries, lambda g, scale=scale: g * scale)
    return total


def by_projection(t: Training, weights: Weights, queries: Tensor) -> Tensor:
    n = sum(w.numel() for w in weights.values())
    directions = torch.randn(n, DIRECTIONS, generator=torch.Generator().manual_seed(0)) / math.sqrt(DIRECTIONS)
    mine = torch.cat([t.flat(g) @ directions for _, g in t.gradients(weights, queries)])
    blocks = torch.cat([t.flat(g) @ directions for _, g in t.gradients(weights, t.blocks)])
    moments = blocks.T @ blocks / len(blocks)
    damping = 0.1 * moments.diagonal().mean() * torch.eye(DIRECTIONS)
    return mine @ torch.linalg.solve(moments + damping, blocks.T)


def by_eigenbasis(t: Training, weights: Weights, queries: Tensor) -> Tensor:
    names = [name for name, w in weights.items() if w.dim() == 2 and "block" in name]
    left = {name: 0.0 for name in names}
    right = dict(left)
    for _, g in t.gradients(weights, t.blocks):
        for name in names:
            left[name] = left[name] + (g[name] @ g[name].transpose(1, 2)).sum(0)
            right[name] = right[name] + (g[name].transpose(1, 2) @ g[name]).sum(0)
    bases = {name: (torch.linalg.eigh(left[name])[1], torch.linalg.eigh(right[name])[1]) for name in names}

    def turned(g: Weights) -> Tensor:
        return torch.cat([(bases[name][0].T @ g[name] @ bases[name][1]).flatten(1) for name in names], 1)

    variance = sum(turned(g).square().sum(0) for _, g in t.gradients(weights, t.blocks)) / len(t.blocks)
    assert isinstance(variance, Tensor)
    scale = (variance + 0.1 * variance.mean()).rsqrt()
    mine = torch.cat([turned(g) * scale for _, g in t.gradients(weights, queries)])
    return torch.cat([mine @ (turned(g) * scale).T for _, g in t.gradients(weights, t.blocks)], 1)


def by_replay(t: Training, queries: Tensor) -> Tensor:
    """-d loss(query) / d weight(block), exactly."""
    ones = torch.ones(len(t.blocks))
    states = list(t.states(ones))
    rows = []
    for query in queries:
        weights = {name: w.detach().requires_grad_() for name, w in states[-1][0].items()}
        names = list(weights)
        first = torch.autograd.grad(t.losses(weights, query[None])[0], list(weights.values()))
        adjoint = [*first, *[torch.zeros_like(w) for w in first], *[torch.zeros_like(w) for w in first]]
        of_blocks = torch.zeros(len(t.blocks))
        for step in reversed(range(len(t.batches))):
            state = [{name: x[name].detach().requires_grad_() for name in names} for x in states[step]]
            block_weights = ones.clone().requires_grad_()
            after = t.step((state[0], state[1], state[2]), step, block_weights, create_graph=True)
            outputs = [x[name] for x in after for name in names]
            inputs = [x[name] for x in state for name in names]
            *adjoint, of_step = torch.autograd.grad(outputs, [*inputs, block_weights], adjoint)
            of_blocks += of_step
        rows.append(-of_blocks)
    return torch.stack(rows)


def by_bm25(blocks: Tensor, queries: Tensor, k: float = 1.2, b: float = 0.75) -> Tensor:
    counts = [Counter(block.tolist()) for block in blocks]
    within = Counter(token for block in counts for token in block)
    n = len(blocks)
    rows = []
    for query in queries:
        terms = Counter(query.tolist())
        weight = {token: math.log(1 + (n - within[token] + 0.5) / (within[token] + 0.5)) for token in terms}
        rows.append([sum(weight[w] * c[w] * (k + 1) / (c[w] + k) for w in terms if w in c) for c in counts])
    return torch.tensor(rows)


def ranks(values: np.ndarray) -> np.ndarray:
    return values.argsort().argsort().astype(float)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The mean over rows of the rank correlation of two matrices."""
    return float(np.mean([np.corrcoef(ranks(x), ranks(y))[0, 1] for x, y in zip(a, b, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--subsets", type=int, default=24)
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--drop", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--n-vocab", type=int, default=1024)
    asked = parser.parse_args()
    every = blocks_of(asked.text, asked.n_vocab)
    blocks, rest = every[: asked.blocks], every[asked.blocks :]
    queries = rest[torch.linspace(0, len(rest) - 1, asked.queries).long()]
    t, other = Training(blocks, asked.n_vocab, seed=0), Training(blocks, asked.n_vocab, seed=1)
    print(f"{len(blocks):,} blocks of {BLOCK} tokens, {len(t.batches)} steps, {asked.queries} queries", flush=True)
    ones, at = torch.ones(len(blocks)), torch.linspace(1, len(t.batches) - 1, CHECKPOINTS).long().tolist()
    began = time.monotonic()
    kept = {step: state for step, state in enumerate(t.states(ones)) if step in at}
    last = t.trained(ones)[0]
    with torch.no_grad():
        print(
            f"loss {t.losses(last, queries).mean():.3f} nats, {(time.monotonic() - began) / 2:.1f} s a training",
            flush=True,
        )
    methods: dict[str, Callable[[], Tensor]] = {
        "bm25": lambda: by_bm25(blocks, queries),
        "cosine": lambda: scores_by_products(t, last, queries, lambda g: g / g.norm(dim=1, keepdim=True)),
        "gradients": lambda: by_checkpoints(t, kept, queries, divided=False),
        "adam": lambda: by_checkpoints(t, kept, queries, divided=True),
        "trak": lambda: by_projection(t, last, queries),
        "eigenbasis": lambda: by_eigenbasis(t, last, queries),
        "replay": lambda: by_replay(t, queries),
    }
    scores: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for name, method in methods.items():
        began = time.monotonic()
        scores[name], seconds[name] = method(), time.monotonic() - began
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
    generator = torch.Generator().manual_seed(0)
    for drop in asked.drop:
        masks = [(torch.rand(len(blocks), generator=generator) >= drop).float() for _ in range(asked.subsets)]
        losses = [[w.losses(w.trained(mask)[0], queries).detach().numpy() for mask in masks] for w in (t, other)]
        measured, again = (np.array(values).T for values in losses)
        kept_in = torch.stack(masks, 1)
        print(f"left out {drop:.0%}, {asked.subsets} retrainings: ceiling {rank_correlation(measured, again):.3f}")
        for name, values in scores.items():
            print(
                f"  {name:12} {rank_correlation((values @ kept_in).numpy(), -measured):7.3f}  {seconds[name]:7.1f} s",
                flush=True,
            )
    n_out, few = len(blocks) // 50, queries[:4]
    print(f"without the {n_out} highest blocks of a query, its loss rises by (nats; mean of {len(few)} queries)")
    base = t.losses(last, few).detach()
    scores["random"] = torch.rand(len(few), len(blocks), generator=generator)
    for name, values in scores.items():
        rises = []
        for q, query in enumerate(few):
            mask = ones.clone()
            mask[values[q].topk(n_out).indices] = 0
            rises.append(t.losses(t.trained(mask)[0], query[None])[0].item() - base[q].item())
        print(f"  {name:12} {np.mean(rises):+.4f}", flush=True)


if __name__ == "__main__":
    main()
