"""S2-4-g, S2-4-h, S2-4-j: one linear map R takes every sinusoidal position to the next, e_{k+1} = R e_k.

S2 (the notes), "Positional Encodings". R alone is enough to build a head, without training, that attends to the
previous token at every position: its scores are beta e_i . R e_j, greatest where j = i - 1.
"""

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import svg
from pellucid.architecture import Architecture, Attention, Norm, Positions
from pellucid.model import Transformer
from pellucid.model.tap import Recorder
from pellucid.reference.embedding import frequencies, shift_matrix, sinusoidal_positions

WIDTH, LENGTH = 64, 128
BETAS = (1.0, 2.0, 4.0, 6.0)
ARCHITECTURE = Architecture(
    n_vocab=2,
    n_ctx=LENGTH,
    d_model=WIDTH,
    n_layers=1,
    attention=Attention(n_heads=1, scale="1", bias="none"),
    positions=Positions(kind="sinusoidal"),
    norm=Norm(kind="none"),
    final_norm="none",
    unembed="untied",
)


def previous_token_head(beta: float, R: np.ndarray) -> torch.Tensor:
    """The pattern [LENGTH, LENGTH] of a head with W_Q = beta 1 and W_K = R, in Pellucid's Transformer."""
    network = Transformer(ARCHITECTURE).double().eval().requires_grad_(False)
    for p in network.parameters():
        p.zero_()
    network.blocks[0].attn.query.weight.copy_(beta * torch.eye(WIDTH))
    network.blocks[0].attn.key.weight.copy_(torch.from_numpy(R))
    tap = Recorder(keep=["blocks.0.attn.pattern"])
    network(torch.zeros(1, LENGTH, dtype=torch.int64), tap=tap)
    return tap.values["blocks.0.attn.pattern"][0, 0]


def main() -> dict[str, float]:
    """Check the identities, build the head for several beta; returns the errors and the attention on k - 1."""
    e, R = sinusoidal_positions(LENGTH, WIDTH), shift_matrix(WIDTH)
    z = e[:, WIDTH // 2 :] + 1j * e[:, : WIDTH // 2]
    turned = z[:-1] * np.exp(1j * frequencies(WIDTH // 2))
    gram = e @ e.T
    distances = [np.ptp(np.diagonal(gram, k)) for k in range(LENGTH)]
    results = {
        "shift_error": float(np.abs(e[:-1] @ R.T - e[1:]).max()),
        "orthogonality_error": float(np.abs(R @ R.T - np.eye(WIDTH)).max()),
        "ten_steps_error": float(np.abs(e[:-10] @ np.linalg.matrix_power(R, 10).T - e[10:]).max()),
        "complex_error": float(np.abs(turned - z[1:]).max()),
        "distance_error": float(max(distances)),
    }
    patterns = {beta: previous_token_head(beta, R) for beta in BETAS}
    table = Table(
        "beta", "least attention on k - 1 over k >= 1", title="W_Q = beta 1, W_K = R: the previous-token head"
    )
    for beta, pattern in patterns.items():
        results[f"previous_{beta:g}"] = float(pattern.diagonal(-1).min())
        table.add_row(f"{beta:g}", f"{results[f'previous_{beta:g}']:.4f}")
    Console().print(table)
    for name in list(results)[:5]:
        print(f"{name}: {results[name]:.1e}")
    svg.grids("shift_of_sinusoids", {f"beta = {beta:g}": pattern[:24, :24] for beta, pattern in patterns.items()})
    assert max(results[name] for name in list(results)[:5]) < 1e-12
    assert results["previous_1"] > 0.5
    assert results["previous_4"] > 0.97
    assert results["previous_6"] > 0.99
    return results


if __name__ == "__main__":
    main()
