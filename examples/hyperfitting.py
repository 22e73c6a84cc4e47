"""S4-acc-b: loss and quality differ: a model that memorises a very small text writes less repetitively.

S4 (Dobriban), "Accuracy vs. Loss" (Carlsson et al. 2024, hyperfitting). The character model is trained on 2,048
characters until their loss is near zero. Held-out loss gets far worse and predictions far more certain, and yet text
that is written greedily, which used to repeat itself, is more varied. The script also measures how much of it is
recited: the share of its runs of 16 characters that occur in the 2,048.
"""

import copy
import re

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg
from character_model import character_model, held_out_windows
from pellucid import LanguageModel
from pellucid.text.read.documents import bundled

WINDOWS, STEPS, ENOUGH, RATE = 32, 600, 0.04, 2e-3
PROMPTS, WRITTEN, RUN = 20, 192, 16


def little_text(model: LanguageModel) -> tuple[torch.Tensor, torch.Tensor, str]:
    """The text to memorise, from the training part, as windows of n_ctx: inputs and targets."""
    length = model.architecture.n_ctx
    text = bundled("shakespeare").read_text(encoding="utf-8")[300_000 : 300_000 + WINDOWS * length + 1]
    ids = torch.tensor(model.tokenizer.encode(text))
    return ids[:-1].reshape(WINDOWS, length), ids[1:].reshape(WINDOWS, length), text


def hyperfit(model: LanguageModel) -> tuple[LanguageModel, float]:
    """A copy trained on the little text until its loss is below ENOUGH, and that loss."""
    tuned = copy.deepcopy(model)
    inputs, targets, _ = little_text(model)
    optimizer = torch.optim.Adam(tuned.network.parameters(), lr=RATE)
    for _ in range(STEPS):
        loss = F.cross_entropy(tuned.network(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < ENOUGH:
            break
    return tuned, loss.item()


@torch.no_grad()
def measure(model: LanguageModel) -> dict[str, float]:
    """Held-out loss, accuracy and entropy in nats, and what text written greedily after held-out prompts is like."""
    inputs, targets = held_out_windows(model, 100)
    log_p = model.network(inputs).log_softmax(-1)
    starts, _ = held_out_windows(model, PROMPTS, seed=5)
    prompts = [model.tokenizer.decode(row[:32].tolist()) for row in starts]
    texts = [g.text for g in model.generate_many(prompts, max_tokens=WRITTEN, temperature=0.0, seed=1)]
    words = [re.findall(r"[a-z']+", text.lower()) for text in texts]
    _, _, learned = little_text(model)
    runs = [text[k : k + RUN] for text in texts for k in range(len(text) - RUN + 1)]
    return {
        "held-out loss": float(F.nll_loss(log_p.flatten(0, 1), targets.flatten())),
        "held-out accuracy": float((log_p.argmax(-1) == targets).float().mean()),
        "predictive entropy": float(-(log_p.exp() * log_p).sum(-1).mean()),
        "type-token ratio": sum(len(set(w)) / len(w) for w in words) / len(words),
        "verbatim overlap": sum(run in learned for run in runs) / len(runs),
    }


def main(model: LanguageModel | None = None) -> dict[str, float]:
    """Measure before and after; returns both as "before: ..." and "after: ..."."""
    model = model or character_model()
    tuned, final = hyperfit(model)
    before, after = measure(model), measure(tuned)
    table = Table(
        "measured", "before", "after", title=f"trained to a loss of {final:.3f} on {WINDOWS * 64:,} characters"
    )
    for name in before:
        table.add_row(name, f"{before[name]:.3f}", f"{after[name]:.3f}")
    Console().print(table)
    for name, which in (("before", model), ("after", tuned)):
        print(f"{name}: {which.generate('KING ', max_tokens=90, temperature=0.0, seed=1).text!r}")
    series = {"before": list(before.values()), "hyperfitted": list(after.values())}
    svg.bars(
        "hyperfitting",
        "A model that knows 2,048 characters by heart",
        "",
        ["loss", "accuracy", "entropy", "types/tokens", "recited"],
        series,
    )
    assert final < 0.1
    assert after["type-token ratio"] > before["type-token ratio"]
    assert after["predictive entropy"] < before["predictive entropy"]
    assert after["held-out loss"] > before["held-out loss"]
    return (
        {f"before: {k}": v for k, v in before.items()} | {f"after: {k}": v for k, v in after.items()} | {"final": final}
    )


if __name__ == "__main__":
    main()
