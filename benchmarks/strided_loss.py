"""The loss of a model on a whole held-out text, each token with context before it; for a run, as a command.

    python -m benchmarks.strided_loss RUN TEXT [--stride 0.5]

Windows of the model's own context move by a share of it, half by default, so that every token after the first half of
a context has at least that much before it. The command prints one JSON object: bits per byte of the text, and what the
run is. It uses little of pellucid, so that earlier editions can be scored by it (PYTHONPATH says which).
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: tokens [batch, pos] -> logits [batch, pos, n_vocab]
Logits = Callable[[Tensor], Tensor]


def windows(n: int, n_ctx: int, stride: int) -> Iterator[tuple[int, int]]:
    """Where windows over n tokens begin and their first target that no earlier window scored; each is scored once."""
    scored = 0
    while scored < n - 1:
        begin = max(0, min(scored - (n_ctx - stride), n - 1 - n_ctx))
        yield begin, scored - begin
        scored = min(begin + n_ctx, n - 1)


@torch.no_grad()
def nats(logits: Logits, ids: Tensor, n_ctx: int, stride: int, batch: int = 64) -> float:
    """Mean nats per token over all but the first."""
    places, total = list(windows(len(ids), n_ctx, stride)), 0.0
    for first in range(0, len(places), batch):
        part = places[first : first + batch]
        rows = torch.stack([ids[b : b + n_ctx + 1] for b, _ in part])
        losses = F.cross_entropy(logits(rows[:, :-1]).float().transpose(1, 2), rows[:, 1:], reduction="none")
        new = torch.arange(losses.size(1)) >= torch.tensor([done for _, done in part])[:, None]
        total += losses.double()[new].sum().item()
    return total / (len(ids) - 1)


def bits_per_byte(logits: Logits, ids: Tensor, n_ctx: int, text: str, stride: float = 0.5) -> float:
    """Of a text, given its ids."""
    step = max(1, int(stride * n_ctx))
    return nats(logits, ids, n_ctx, step) * (len(ids) - 1) / math.log(2) / len(text.encode())


def score_run(run: Path, text: str, stride: float = 0.5) -> dict[str, Any]:
    """What a run reaches on a text, and its size; an n-gram has always all of its context.

    A run with an n-gram stored inside says what both reach together too.
    """
    import pellucid

    mixed = (run / "mixture.json").exists()
    if (run / "ngram").is_dir() and not mixed:
        counted = pellucid.load_predictor(run, device="cpu")
        ids = counted.tokenizer.encode(text)
        bits = -counted.network.log_probs(ids).sum().item() / math.log(2) / len(text.encode())
        return {"bits_per_byte": bits, "step": 0, "n_ctx": 0, "size": str(counted.tokenizer.n_vocab)}
    model = pellucid.load(run, device="cpu")
    a, ids = model.architecture, torch.tensor(model.tokenizer.encode(text))
    size = f"{a.d_model}/{a.n_layers}/{a.n_vocab}{', tables' if a.ngrams else ''}"
    bits = bits_per_byte(model.network.eval(), ids, a.n_ctx, text, stride)
    both = {"mixed": bits_per_byte(model.mixed_with().network, ids, a.n_ctx, text, stride)} if mixed else {}
    return {"bits_per_byte": bits, "step": model.provenance["step"], "n_ctx": a.n_ctx, "size": size} | both


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--stride", type=float, default=0.5, help="share of the context that windows move by")
    o = parser.parse_args()
    print(json.dumps(score_run(o.run, o.text.read_text(encoding="utf-8"), o.stride)))


if __name__ == "__main__":
    main()
