"""S4-deep-b: what each block adds: the loss falls after every block of a trained model.

S4 (Dobriban), "Deep Architecture": attention contextualises, the MLP extracts, block after block. Logits are read off
the residual stream at every depth (final norm, then unembedding: the logit lens) on text that was not trained on.
"""

from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg
from character_model import character_model, held_out_windows
from pellucid import LanguageModel
from pellucid.model.tap import Recorder


@torch.no_grad()
def losses(model: LanguageModel, n_windows: int = 300) -> dict[str, float]:
    """The mean loss, in nats per character, of the logits read off after each block; the last is the model's own."""
    network = model.network
    inputs, targets = held_out_windows(model, n_windows)
    depths = ["blocks.0.resid_pre", *(f"blocks.{l}.resid_post" for l in range(len(network.blocks)))]
    tap = Recorder(keep=depths)
    logits = network(inputs, tap=tap)
    results = {}
    for name in depths:
        read = network.unembed(network.final_norm(tap.values[name]))
        results[name] = float(F.cross_entropy(read.flatten(0, 1), targets.flatten()))
    assert torch.allclose(read, logits, atol=1e-5), "after the last block the lens is the model"
    return results


def main(model: LanguageModel | None = None) -> dict[str, float]:
    """Losses by depth; draws them."""
    results = losses(model or character_model())
    table = Table("after", "nats per character", title="losses read off the stream, held-out text")
    for name, loss in results.items():
        table.add_row(name, f"{loss:.3f}")
    Console().print(table)
    labels = ["embedding", *(f"block {l}" for l in range(len(results) - 1))]
    title = "Loss read off the stream, held-out text"
    svg.bars("losses_after_each_block", title, "nats per character", labels, {"loss": list(results.values())})
    assert all(later < earlier for earlier, later in pairwise(results.values())), "the loss falls at every block"
    return results


if __name__ == "__main__":
    main()
