"""Times a training step of a mixture of experts beside a dense network with as many parameters for each position.

    python benchmarks/experts.py [d_model]

8 experts, of which each position uses 2, beside one MLP of twice an expert's width. The two are timed in turn.
"""

import statistics
import sys
import time

import torch

from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.presets import preset
from pellucid.training.objectives import MicroBatch, summed_loss

ROUNDS, BATCH, N_CTX = 12, 16, 128


def main() -> None:
    d_model = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    common = {"d_model": d_model, "n_layers": 4, "n_heads": 4, "n_ctx": N_CTX, "n_vocab": 512, "ngrams": ()}
    mixture = {"mlp.experts": 8, "mlp.experts_per_token": 2, "mlp.d_ff": 2 * d_model}
    kinds = {"dense": {"mlp.d_ff": 4 * d_model}, "8 experts, 2 used": mixture}
    networks = {name: preset("small").with_fields(common | fields) for name, fields in kinds.items()}
    tokens = torch.randint(0, 512, (BATCH, N_CTX), generator=torch.Generator().manual_seed(0))
    steps, seconds = {}, {name: [] for name in networks}
    for name, a in networks.items():
        network = initialise(Transformer(a), 0)
        optimizer = torch.optim.AdamW(network.parameters())
        steps[name] = network, optimizer
    for _ in range(ROUNDS):
        for name, (network, optimizer) in steps.items():
            began = time.perf_counter()
            summed_loss(network, MicroBatch(tokens, tokens)).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds[name].append(time.perf_counter() - began)
    dense = statistics.median(seconds["dense"][2:])
    for name, a in networks.items():
        median = statistics.median(seconds[name][2:])
        counts = f"{count_parameters(a)['total']:,} parameters, {count_active_parameters(a):,} for each position"
        print(f"{name}: {counts}: {1000 * median:.0f} ms a step, {median / dense:.2f} of the dense step")


if __name__ == "__main__":
    main()
