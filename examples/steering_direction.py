"""S4-draw-c: a direction that steers: the difference of two means, added to the stream, changes what is written.

A small network learns texts that are calm (small letters) or loud (capitals), with spaces and marks that are neither;
a text rarely changes its mood. After marks alone, either mood may follow. The mean of the stream after loud beginnings
minus the mean after calm ones is a direction (Turner et al. 2023; Marks and Tegmark 2023). When it is added during
generation, its factor decides the mood; a random direction of the same length does not.
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import svg
from pellucid import edits
from pellucid.architecture import MLP, Architecture, Attention
from pellucid.language_model import LanguageModel
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

CALM, LOUD, MARKS = "abcdefghij", "ABCDEFGHIJ", " ,.;!?"
LENGTH, STEPS, BATCH, RATE = 32, 400, 48, 3e-3
AT, FACTORS = "blocks.1.resid_pre", (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def text(generator: torch.Generator, mood: int | None = None) -> str:
    """LENGTH + 1 characters: four in ten are marks, the others letters of the mood, which changes once in fifty."""
    draw = torch.rand(LENGTH + 1, 3, generator=generator).tolist()
    mood = int(draw[0][2] < 0.5) if mood is None else mood
    written = ""
    for kind, which, turn in draw:
        mood = 1 - mood if turn > 0.98 else mood
        letters = MARKS if kind < 0.4 else (CALM, LOUD)[mood]
        written += letters[int(which * len(letters))]
    return written


def train() -> LanguageModel:
    """The network with its characters."""
    tokenizer = learn_tokenizer("char", [CALM + LOUD + MARKS], None)
    a = Architecture(
        n_vocab=tokenizer.n_vocab,
        n_ctx=64,
        d_model=48,
        n_layers=2,
        attention=Attention(n_heads=4),
        mlp=MLP(d_ff=96),
    )
    network, generator = initialise(Transformer(a), seed=1), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for _ in range(STEPS):
        tokens = torch.tensor([tokenizer.encode(text(generator)) for _ in range(BATCH)])
        loss = F.cross_entropy(network(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return LanguageModel(network.eval(), tokenizer, {})


def loudness(model: LanguageModel, vector: Tensor, factor: float) -> float:
    """The share of capitals among the letters of sixty texts that continue marks, steered at every position."""
    change = [edits.add(AT, vector, factor)] if factor else []
    written = "".join(
        generated.text
        for generated in model.generate_many(" ,", n=60, max_tokens=20, temperature=1.0, seed=3, edits=change)
    )
    letters = [c for c in written if c.isalpha()]
    return sum(c.isupper() for c in letters) / len(letters)


def main() -> dict[str, float]:
    """Train, find the direction, steer by it and by a random one, and probe for the mood."""
    model, generator = train(), torch.Generator().manual_seed(4)
    calm, loud = ([text(generator, mood)[:12] for _ in range(60)] for mood in (0, 1))
    vector = model.direction(loud, calm, at=AT)
    noise = torch.randn(vector.shape, generator=generator)
    noise = noise * vector.norm() / noise.norm()
    steered = [loudness(model, vector, factor) for factor in FACTORS]
    astray = [loudness(model, noise, factor) for factor in FACTORS]
    # behind a mark the last token does not say the mood: the stream has to
    hidden = [t[:11] + " " for t in (*calm, *loud)]
    probe = model.probe(hidden, ["calm"] * len(calm) + ["loud"] * len(loud), at="blocks.1.resid_post")
    table = Table("factor", "capitals, steered", "capitals, random direction", title="share of capitals")
    for factor, one, other in zip(FACTORS, steered, astray, strict=True):
        table.add_row(f"{factor:g}", f"{one:.2f}", f"{other:.2f}")
    Console().print(table)
    svg.lines(
        "steering",
        "A difference of means steers what is written",
        "factor",
        "share of capitals",
        FACTORS,
        {"difference of means": steered, "random direction of that length": astray},
        low=0,
        high=1,
    )
    results = {
        "calm": steered[0],
        "unsteered": steered[FACTORS.index(0.0)],
        "loud": steered[-1],
        "random_moves": max(abs(x - astray[FACTORS.index(0.0)]) for x in astray),
        "probe": probe.held_out,
        "probe_shuffled": sum(probe.shuffled) / len(probe.shuffled),
    }
    assert results["calm"] <= 0.2 <= results["unsteered"] <= 0.8 <= results["loud"]
    assert results["random_moves"] <= 0.5 * (results["loud"] - results["calm"])
    assert results["probe"] >= 0.9
    assert results["probe_shuffled"] <= 0.7
    return results


if __name__ == "__main__":
    print(main())
