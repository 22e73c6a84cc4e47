"""S4-att-a: "Anna was born on Tuesday. Bikram was born on Wednesday. What day followed Anna's birthday?"

S4 (Dobriban), "The Attention Mechanism: Intuition". Nothing is trained: the weights of one block of Pellucid's
Transformer are written by hand, and it answers the question for all 7 x 7 pairs of days and both people.

    stream        one plane of coordinates each for the person, the day, the question, the answer
    attention     key = whose birthday, query = whom the question is about, value = the day
    memory (MLP)  one key-value pair per day: key = that day was read, value = the day after it

With a file name, the script also writes the inspect page about the question:

    python examples/day_after_annas_birthday.py page.html
"""

import sys
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

import svg
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.lens import trace
from pellucid.lens.show import Figure
from pellucid.lens.show.pages import inspect_page
from pellucid.model import Transformer
from pellucid.model.tap import Recorder
from pellucid.text.tokenizers.words import WordTokenizer
from pellucid.text_model import Model

PEOPLE = ("Anna", "Bikram")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
BORN = [f"{person} was born on" for person in PEOPLE]
ASKED = [f"What day followed {person}'s birthday?" for person in PEOPLE]
#: a statement is one token: these weights show retrieval, not how words are joined to phrases
VOCABULARY = [f"{born} {day}." for born in BORN for day in DAYS] + ASKED + list(DAYS)
#: Anna was born on Tuesday. Bikram was born on Wednesday. What day followed Anna's birthday?
QUESTION = [VOCABULARY.index(f"{BORN[0]} Tuesday."), VOCABULARY.index(f"{BORN[1]} Wednesday."), 14]
# coordinates of the stream: who is spoken of, who is asked about, the day said, the day read, the answer
WHO, WHOM, SAID, READ, ANSWER = (slice(a, b) for a, b in ((0, 2), (2, 4), (4, 11), (11, 18), (18, 25)))
ARCHITECTURE = Architecture(
    n_vocab=len(VOCABULARY),
    n_ctx=3,
    d_model=25,
    n_layers=1,
    attention=Attention(n_heads=1, d_head=7, scale="1", bias="none"),
    mlp=MLP(d_ff=7, activation="relu", bias="none"),
    positions=Positions(kind="none"),
    norm=Norm(kind="none"),
    final_norm="none",
    unembed="untied",
)


def hand_built() -> Transformer:
    """The network with every weight written by hand; weights that are not named here are zero."""
    network = Transformer(ARCHITECTURE).double().eval().requires_grad_(False)
    for p in network.parameters():
        p.zero_()
    block, E = network.blocks[0], network.embed.token.weight
    for k in range(2):
        for day in range(7):
            E[7 * k + day, WHO][k] = E[7 * k + day, SAID][day] = 1
        E[14 + k, WHOM][k] = 1
    block.attn.query.weight[:2, WHOM] = 20 * torch.eye(2)  # softmax of (20, 0, 0): all but e^-20 on one place
    block.attn.key.weight[:2, WHO] = torch.eye(2)
    block.attn.value.weight[:, SAID] = torch.eye(7)
    block.attn.out.weight[READ] = torch.eye(7)
    block.mlp.up[0].weight[:, READ] = torch.eye(7)
    block.mlp.down.weight[ANSWER] = torch.eye(7).roll(1, 0)  # column d is the day after d
    network.unembed.weight[16:, ANSWER] = torch.eye(7)
    return network


def page(network: Transformer, question: Sequence[int] = QUESTION) -> Figure:
    """The inspect page: what the head reads, and what speaks for the answer."""
    return inspect_page(trace(Model(network, WordTokenizer(VOCABULARY)), question), name="weights written by hand")


def main() -> dict[str, float]:
    """Ask all 98 questions; returns how many answers are right and the least attention on the right statement."""
    network = hand_built()
    right, least = 0, 1.0
    for anna in range(7):
        for bikram in range(7):
            for asked in range(2):
                tap = Recorder(keep=["blocks.0.attn.pattern"])
                logits = network(torch.tensor([[anna, 7 + bikram, 14 + asked]]), tap=tap)[0, -1]
                right += VOCABULARY[int(logits.argmax())] == DAYS[((anna, bikram)[asked] + 1) % 7]
                least = min(least, float(tap.values["blocks.0.attn.pattern"][0, 0, 2, asked]))
    show(network)
    print(
        f"{right} of 98 questions answered rightly; at least {least:.9f} of the attention on the statement asked about"
    )
    assert right == 98
    assert least > 1 - 1e-8
    return {"right": right, "least_attention": least}


def show(network: Transformer) -> None:
    """The source's own question, step by step, and the pattern as a figure."""
    tokens = QUESTION
    names = ["blocks.0.attn.pattern", "blocks.0.resid_mid", "blocks.0.mlp.post", "logits"]
    tap = Recorder(keep=names)
    network(torch.tensor([tokens]), tap=tap)
    pattern, stream, memory, logits = (tap.values[name][0] for name in names)
    table = Table("tensor", "at the question", title=" ".join(VOCABULARY[t] for t in tokens))
    table.add_row(
        "attn.pattern", ", ".join(f"{VOCABULARY[t]} {p:.3f}" for t, p in zip(tokens, pattern[0, 2], strict=True))
    )
    table.add_row("resid_mid, the day read", DAYS[int(stream[2, READ].argmax())])
    table.add_row("mlp.post, the memory's key that fires", DAYS[int(memory[2].argmax())])
    table.add_row("logits, the answer", VOCABULARY[int(logits[2].argmax())])
    Console(width=110).print(table)
    svg.grids(
        "day_after_annas_birthday",
        {"attention: rows read columns": pattern[0]},
        ["Anna Tue", "Bikram Wed", "Anna?"],
        60,
    )


if __name__ == "__main__":
    main()
    for path in sys.argv[1:]:
        print(page(hand_built()).save(path))
