"""A training step of a mixture of experts beside that of a dense network with as many parameters for each position.

    python -m benchmarks.experts [--width 256]

8 experts, of which each position uses 2, beside one MLP of twice an expert's width, in turns; AdamW updates all.
"""

import argparse
from collections.abc import Callable

import torch

from benchmarks.side_by_side import header, interleave, seconds, show, spread
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.presets import preset
from pellucid.training.objectives import MicroBatch, summed_loss

BATCH, N_CTX, N_VOCAB = 16, 128, 512


def step_of(a: Architecture) -> Callable[[], None]:
    """A training step of a network of its own."""
    network = initialise(Transformer(a), 0)
    optimizer = torch.optim.AdamW(network.parameters())
    tokens = torch.randint(0, N_VOCAB, (BATCH, N_CTX), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        summed_loss(network, MicroBatch(tokens, tokens)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(*header(torch.device("cpu")), sep="\n")
    d_model = options.width
    common = {"d_model": d_model, "n_layers": 4, "n_heads": 4, "n_ctx": N_CTX, "n_vocab": N_VOCAB, "ngrams": ()}
    mixture = {"mlp.experts": 8, "mlp.experts_per_token": 2, "mlp.d_ff": 2 * d_model}
    fields = {"dense": {"mlp.d_ff": 4 * d_model}, "8 experts, 2 used": mixture}
    architectures = {name: preset("small").with_fields(common | more) for name, more in fields.items()}
    times = interleave({name: seconds(step_of(a)) for name, a in architectures.items()}, options.rounds, warm_up=2)
    rows = [
        [
            name,
            f"{count_parameters(a)['total']:,}",
            f"{count_active_parameters(a):,}",
            spread(times[name], 1e3),
            f"{times['dense'].ratio_to(times[name]).median:.2f}",
        ]
        for name, a in architectures.items()
    ]
    columns = ["", "parameters", "for each position", "ms a step", "x dense"]
    show(f"{BATCH} rows of {N_CTX} tokens, width {d_model}", columns, rows)


if __name__ == "__main__":
    main()
