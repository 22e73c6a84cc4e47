"""S4-draw-c: a planted fact, traced by patching to the block where it is read.

A small network learns forty facts: after a subject somewhere among fillers, the query token at the end is followed by
that subject's object. Where is the fact on its way from the subject to the end? The clean text names one subject and
the corrupt text another; the activation of the clean run at one position is put into the corrupt run (Meng et al. 2022,
section 2). Before some block the whole answer is at the subject's position, after that block it is at the last
position: the block read it, and one of its heads carried most of it. Removing any other head costs less. A penalty
keeps the network from using more heads than it needs: without it all four heads of the first block read the subject, a
quarter each.
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import svg
from pellucid.architecture import MLP, Architecture, Attention, Positions
from pellucid.lens.analysis.ablation import ablate
from pellucid.lens.analysis.metrics import log_probability, logit_diff
from pellucid.lens.analysis.patching import Patching, patch
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.text_model import of_ids
from sparse import head_sizes

N_FACTS, N_FILLERS, LENGTH = 40, 12, 10
SUBJECTS, OBJECTS, FILLERS = 0, N_FACTS, 2 * N_FACTS
QUERY = 2 * N_FACTS + N_FILLERS
STEPS, BATCH, RATE, PENALTY = 700, 64, 3e-3, 0.02
LAYERS = 3


def objects() -> Tensor:
    """Which object belongs to each subject, drawn at random [fact]."""
    return OBJECTS + torch.randperm(N_FACTS, generator=torch.Generator().manual_seed(0))


def texts(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fillers with one subject among them and the query at the end [batch, LENGTH], and the objects [batch]."""
    tokens = torch.randint(FILLERS, QUERY, (batch, LENGTH), generator=generator)
    subject = torch.randint(0, N_FACTS, (batch,), generator=generator)
    position = torch.randint(0, LENGTH - 1, (batch,), generator=generator)
    tokens[torch.arange(batch), position] = subject
    tokens[:, -1] = QUERY
    return tokens, objects()[subject]


def train() -> tuple[Transformer, float]:
    """The network, and how often it knows the object on new texts."""
    a = Architecture(
        n_vocab=QUERY + 1,
        n_ctx=LENGTH,
        d_model=64,
        n_layers=LAYERS,
        attention=Attention(n_heads=4),
        mlp=MLP(d_ff=128),
        positions=Positions(kind="learned"),
        unembed="untied",
    )
    network, generator = initialise(Transformer(a), seed=1), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    for _ in range(STEPS):
        tokens, wanted = texts(BATCH, generator)
        loss = F.cross_entropy(network(tokens)[:, -1], wanted) + PENALTY * head_sizes(network).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        tokens, wanted = texts(1000, torch.Generator().manual_seed(2))
        return network, float((network(tokens)[:, -1].argmax(-1) == wanted).float().mean())


def trace_fact(network: Transformer, subject: int, other: int, position: int) -> tuple[Patching, Patching]:
    """Patch the stream and the heads from a text about `subject` into the same text about `other`."""
    tokens, _ = texts(1, torch.Generator().manual_seed(5))
    clean = torch.full_like(tokens, FILLERS)
    clean[0] = torch.where(tokens[0] < N_FACTS, FILLERS, tokens[0])
    corrupt = clean.clone()
    clean[0, position], corrupt[0, position] = subject, other
    metric = logit_diff(int(objects()[subject]), int(objects()[other]))
    stream = patch(of_ids(network), clean, corrupt, metric, site="resid_pre", mode="both")
    heads = patch(of_ids(network), clean, corrupt, metric, site="attn.z", positions=[LENGTH - 1])
    return stream, heads


def main() -> dict[str, float]:
    """Train, trace one fact, and check the head that carries it on all of them."""
    network, accuracy = train()
    position, pairs = 3, [(7, 21), (0, 39), (12, 5)]
    traced = [trace_fact(network, *pair, position) for pair in pairs]
    shares = torch.stack([stream.recovered for stream, _ in traced]).mean(0)  # [layer, pos]
    read_in = int((shares[:, position] >= 0.5).sum()) - 1
    carried = torch.stack([heads.recovered for _, heads in traced]).mean(0)[:, 0]  # [layer, head]
    tokens, wanted = texts(200, torch.Generator().manual_seed(9))
    lost = lost_without(network, tokens, wanted)
    layer, head = divmod(int(carried.argmax()), carried.size(1))
    table = Table("block", "at the subject", "at the end", "best head", "log P lost without it", title="recovered")
    for l in range(LAYERS):
        best = int(carried[l].argmax())
        row = (shares[l, position], shares[l, -1], lost[l, best])
        table.add_row(str(l), *(f"{x:.2f}" for x in row[:2]), f"{l}.{best}: {carried[l, best]:.2f}", f"{row[2]:.2f}")
    Console().print(table)
    svg.lines(
        "fact_traced",
        "Where the fact is: share of the answer that patching the stream brings back",
        "block",
        "recovered",
        range(LAYERS),
        {"at the subject": shares[:, position].tolist(), "at the last token": shares[:, -1].tolist()},
    )
    results = {
        "accuracy": accuracy,
        "read_in": read_in,
        "before": float(shares[read_in, position]),
        "behind": float(shares[read_in + 1, -1]) if read_in + 1 < LAYERS else 1.0,
        "elsewhere": float(shares[:, [i for i in range(LENGTH) if i not in (position, LENGTH - 1)]].abs().max()),
        "carried": float(carried.max()),
        "lost": float(lost[layer, head]),
        "agreement": min(stream.agreement["correlation"] for stream, _ in traced),
    }
    assert results["accuracy"] >= 0.99
    assert results["before"] >= 0.5 <= results["behind"]
    assert layer == read_in, "the head that carries the fact is in the block that reads it"
    assert results["lost"] == float(lost.max()), "no other head is missed as much"
    return results


def lost_without(network: Transformer, tokens: Tensor, wanted: Tensor) -> Tensor:
    """How many nats the objects' log-probability falls without each head, mean-ablated [layer, head]."""
    total = torch.zeros(LAYERS, network.architecture.n_heads)
    for answer in wanted.unique().tolist():
        rows = tokens[wanted == answer]
        ablation = ablate(of_ids(network), rows, log_probability(answer), site="attn.z", kind="mean", reference=tokens)
        total -= ablation.effect * len(rows) / len(tokens)
    return total


if __name__ == "__main__":
    print(main())
