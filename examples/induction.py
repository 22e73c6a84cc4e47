"""S4-deep-b: depth builds on depth. One attention layer cannot continue a repetition, two can.

S4 (Dobriban), "Deep Architecture" and the figure of Ferrando et al. 2024 (induction heads: Elhage et al. 2021, Olsson
et al. 2022). Random tokens with a random period are repeated. To continue, a head must find the token after the last
occurrence of the present one: an earlier layer has to write at each position which token came before it. The
period is random because a single layer could read a fixed one off the positions.

The networks have attention only. The architecture has no option for that: mlp.n_hidden = 0 is the affine map
m(x) = x W_out^T + b_out, whose weights are set to zero here and stay zero.
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import svg
from pellucid.architecture import MLP, Architecture, Attention, Positions
from pellucid.model import Transformer
from pellucid.model.tap import Recorder
from pellucid.model.weights import initialise

N_VOCAB, LENGTH, PERIODS = 24, 32, (5, 15)
STEPS, BATCH, RATE = 800, 64, 3e-3


def attention_only(n_layers: int) -> Transformer:
    """n_layers blocks whose MLP is always zero."""
    a = Architecture(
        n_vocab=N_VOCAB,
        n_ctx=LENGTH,
        d_model=64,
        n_layers=n_layers,
        attention=Attention(n_heads=4, bias="none"),
        mlp=MLP(n_hidden=0, bias="none"),
        positions=Positions(kind="rotary"),
        unembed="untied",
    )
    network = initialise(Transformer(a), seed=1)
    for block in network.blocks:
        block.mlp.down.weight.requires_grad_(False).zero_()
    return network


def repeated(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [batch, LENGTH + 1] of random period, and where the next token repeats an earlier one [batch, LENGTH].

    All tokens of a period differ, so that each has one continuation.
    """
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (batch, 1), generator=generator)
    order = torch.rand(batch, N_VOCAB, generator=generator).argsort(1)
    position = torch.arange(LENGTH + 1)
    return order.gather(1, position % period), position[1:] >= period


def train(network: Transformer) -> list[float]:
    """The losses of the repeated part, in nats, step by step."""
    generator, losses = torch.Generator().manual_seed(2), []
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)
    warm = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    for _ in range(STEPS):
        tokens, determined = repeated(BATCH, generator)
        loss = F.cross_entropy(network(tokens[:, :-1])[determined], tokens[:, 1:][determined])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def look(network: Transformer) -> tuple[float, Tensor, Tensor, dict[str, Tensor], Tensor]:
    """Accuracy on new sequences, and by layer and head the attention on the token before and on the one to copy.

    The tokens to copy are those after earlier occurrences of the present token. Also all patterns of one sequence of
    period 8, and its tokens.
    """
    tokens, determined = repeated(500, torch.Generator().manual_seed(3))
    names = [f"blocks.{l}.attn.pattern" for l in range(len(network.blocks))]
    tap = Recorder(keep=names)
    logits = network(tokens[:, :-1], tap=tap)
    accuracy = float((logits.argmax(-1) == tokens[:, 1:])[determined].float().mean())
    patterns = torch.stack([tap.values[name] for name in names], 1)  # [batch, layer, head, i, j]
    previous = patterns.diagonal(-1, -2, -1).mean((0, -1))
    period = (~determined).sum(1) + 1
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    after = ((i + 1 - j) % period[:, None, None] == 0) & (j <= i)  # places that hold the token that comes next
    on_those = (patterns * after[:, None, None]).sum(-1)
    copying = torch.stack([on_those[b, :, :, determined[b]].mean(-1) for b in range(len(tokens))]).mean(0)
    example = int((period == 8).nonzero()[0])
    return accuracy, previous, copying, dict(zip(names, patterns[example], strict=True)), tokens[example]


def main() -> dict[str, float]:
    """Train both; returns accuracies on repeated tokens and the two heads' attention; draws the two heads."""
    results, curves = {}, {}
    table = Table(
        "layers", "accuracy", "best previous-token head", "best copying head", title="repetition, random period"
    )
    for n_layers in (1, 2):
        network = attention_only(n_layers)
        losses = train(network)
        curves[f"{n_layers} layer{'s' * (n_layers > 1)}"] = [sum(losses[k : k + 40]) / 40 for k in range(0, STEPS, 40)]
        accuracy, previous, copying, patterns, tokens = look(network)
        best = [divmod(int(score.argmax()), score.size(1)) for score in (previous, copying)]
        results |= {f"accuracy_{n_layers}": accuracy, f"previous_{n_layers}": float(previous.max())}
        results[f"copying_{n_layers}"] = float(copying.max())
        shown = [f"{l}.{h}: {score[l, h]:.2f}" for (l, h), score in zip(best, (previous, copying), strict=True)]
        table.add_row(str(n_layers), f"{accuracy:.3f}", *shown)
    Console().print(table)
    svg.lines(
        "induction_losses",
        "Loss on repeated tokens (nats)",
        "step",
        "nats per token",
        range(40, STEPS + 1, 40),
        curves,
        low=0,
    )
    titles = [f"layer {l} head {h}: {what}" for (l, h), what in zip(best, ("previous token", "induction"), strict=True)]
    shown = {
        title: patterns[f"blocks.{l}.attn.pattern"][h][:24, :24] for title, (l, h) in zip(titles, best, strict=True)
    }
    svg.grids("induction_heads", shown, [chr(97 + int(t)) for t in tokens[:24]], 13)
    assert results["accuracy_1"] <= 0.6
    assert results["accuracy_2"] >= 0.9
    assert best[0][0] == 0, "the previous-token head is in the first layer"
    assert best[1][0] == 1, "the induction head is in the second"
    assert results["previous_2"] >= 0.3
    assert results["copying_2"] >= 0.5
    return results


if __name__ == "__main__":
    main()
