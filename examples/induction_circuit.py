"""S4-deep-b: the induction circuit of two layers, found by its attention, by its weights, and by ablation.

Random tokens with a random period are repeated. To continue, a head of the second layer must find the token after the
last occurrence of the present one; for that, a head of the first layer has to write at each position which token came
before it (Elhage et al. 2021, "Induction heads"; Olsson et al. 2022). Three methods have to agree on the two heads:

attention   the detectors, on repeated random tokens: one head looks back one token, another at what followed
weights     K-composition: the induction head's keys read what the previous-token head wrote, more than any other pair
            of heads; its queries and values read it less than random matrices would
ablation    without either of the two the repetition is lost; without any other head it is not

One head of each layer starts ten times larger in W_V and W_O than the others, and a penalty keeps the others from
sharing its work. Without both, the four heads of a layer divide the work, and the network can do without any single
one: that the circuit has two heads is a choice made here; that there is a circuit is what the network learned.
"""

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg
from induction import LENGTH, N_VOCAB, repeated
from pellucid import edits
from pellucid.architecture import MLP, Architecture, Attention, Norm
from pellucid.lens.analysis.heads import Heads, detect_heads, repeated_tokens
from pellucid.lens.trace import trace
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.composition import Composition
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.text_model import of_ids
from sparse import head_sizes

N_HEADS, D_HEAD, PERIOD = 4, 16, 12
STEPS, BATCH, RATE, PENALTY = 400, 64, 3e-3, 1e-2
SMALLER = 0.1


def train(seed: int = 1) -> Transformer:
    """Two layers of attention alone, learned positions."""
    a = Architecture(
        n_vocab=N_VOCAB,
        n_ctx=LENGTH + 1,
        d_model=64,
        n_layers=2,
        attention=Attention(n_heads=N_HEADS, d_head=D_HEAD, bias="none"),
        mlp=MLP(n_hidden=0, bias="none"),
        norm=Norm(kind="rms"),
        unembed="untied",
    )
    network = initialise(Transformer(a), seed)
    with torch.no_grad():
        for block in network.blocks:
            block.mlp.down.weight.requires_grad_(False).zero_()
            block.attn.out.weight[:, D_HEAD:] *= SMALLER
            block.attn.value.weight[D_HEAD:] *= SMALLER
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(STEPS):
        tokens, determined = repeated(BATCH, generator)
        loss = F.cross_entropy(network(tokens[:, :-1])[determined], tokens[:, 1:][determined])
        optimizer.zero_grad()
        (loss + PENALTY * head_sizes(network).sum()).backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def accuracy(network: Transformer, without: tuple[int, int] | None = None) -> float:
    """How often the repetition is continued; `without` sets one head to its mean."""
    tokens = repeated_tokens(N_VOCAB, 200, PERIOD, seed=5)
    change = []
    if without is not None:
        layer, head = without
        name = f"blocks.{layer}.attn.z"
        measured = trace(of_ids(network), tokens)[name].mean((0, 2), keepdim=True)
        change = [edits.mean(name, measured, head=head)]
    logits = trace(of_ids(network), tokens, edits=change).logits
    return float((logits[:, PERIOD:-1].argmax(-1) == tokens[:, PERIOD + 1 :]).float().mean())


def report(heads: Heads, lost: dict[tuple[int, int], float]) -> None:
    """The table of all heads."""
    table = Table("head", "previous token", "induction", "attended rank", "accuracy without it")
    for row in heads.table():
        scores = (row["previous"], row["induction"], row["attended_rank"], lost[row["layer"], row["head"]])
        table.add_row(f"{row['layer']}.{row['head']}", *(f"{x:.2f}" for x in scores))
    Console().print(table)


def draw(heads: Heads, lost: dict[tuple[int, int], float], composition: Composition) -> None:
    """A square for each head, layers below each other; composition by writer (row) and reader (column)."""
    panels = {
        "previous token": heads.scores["previous"].tolist(),
        "induction": heads.scores["induction"].tolist(),
        "accuracy without": [[lost[layer, head] for head in range(N_HEADS)] for layer in range(2)],
        "3 x K-composition": (3 * composition.scores[0, :, 1]).tolist(),
    }
    svg.grids("induction_circuit", panels, cell=32)


def main() -> dict[str, float]:
    """Train, look in three ways, and see that they agree."""
    network = train()
    heads = detect_heads(of_ids(network), rows=32, period=PERIOD)
    previous, induction = heads.best("previous"), heads.best("induction")
    everyone = [(layer, head) for layer in range(2) for head in range(N_HEADS)]
    lost = {which: accuracy(network, which) for which in everyone}
    report(heads, lost)
    circuits = Circuits(of_ids(network), fold_norms=True)
    composition = circuits.compose("K")
    (writer, reader, score), (_, _, second) = composition.top(2)
    draw(heads, lost, composition)
    others = [lost[which] for which in everyone if which not in (previous, induction)]
    results = {
        "accuracy": accuracy(network),
        "previous": float(heads.scores["previous"][previous]),
        "induction": float(heads.scores["induction"][induction]),
        "composition": score,
        "second": second,
        "baseline": composition.baseline,
        "spread": composition.spread,
        "others_of_the_pair": max(float(circuits.compose(kind).scores[*previous, *induction]) for kind in ("Q", "V")),
        "without_previous": lost[previous],
        "without_induction": lost[induction],
        "without_another": min(others),
    }
    assert previous[0] == 0
    assert induction[0] == 1
    assert results["accuracy"] >= 0.95
    assert (writer, reader) == (previous, induction), "the weights name the two heads that the attention names"
    assert score >= composition.baseline + 10 * composition.spread
    assert second <= (score + composition.baseline) / 2, "no other pair comes near"
    assert results["others_of_the_pair"] < composition.baseline, "it is the keys that read it"
    assert max(results["without_previous"], results["without_induction"]) <= 0.5
    assert results["without_another"] >= 0.9
    return results


if __name__ == "__main__":
    print(main())
