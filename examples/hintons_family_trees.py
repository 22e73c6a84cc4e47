"""S4-emb-d: embeddings learn what no input states: Hinton's family trees (1986).

S4 (Dobriban), "Word Embeddings". 24 people in an English and an Italian family of the same shape, 12 relations,
112 facts such as (Colin, aunt, Jennifer) in 104 questions (person, relation). A network with codes of six units sees
100 questions; no input names a nationality, yet the codes of people separate by it, and it answers unseen questions.
"""

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import svg

ENGLISH = "Christopher Penelope Andrew Christine Margaret Arthur Victoria James Jennifer Charles Colin Charlotte"
ITALIAN = "Roberto Maria Pierro Francesca Gina Emilio Lucia Marco Angela Tomaso Alfonso Sophia"
PEOPLE = (ENGLISH + " " + ITALIAN).split()
#: numbers within a family: the couples, husband first, and the children of couples
COUPLES = ((0, 1), (2, 3), (5, 4), (7, 6), (9, 8))
CHILDREN = {(0, 1): (5, 6), (2, 3): (7, 8), (7, 6): (10, 11)}
MEN = {0, 2, 5, 7, 9, 10}
RELATIONS = (
    "father",
    "mother",
    "husband",
    "wife",
    "son",
    "daughter",
    "uncle",
    "aunt",
    "brother",
    "sister",
    "nephew",
    "niece",
)
NETWORKS, HELD_OUT, STEPS, CODE = 24, 4, 800, 6


def relatives(family: int) -> set[tuple[int, str, int]]:
    """Every fact of one family as (person, relation, relative), numbers 12 * family + place."""
    parents = {c: couple for couple, children in CHILDREN.items() for c in children}
    spouse = dict(COUPLES) | {wife: husband for husband, wife in COUPLES}
    siblings = {c: [s for s in CHILDREN[parents[c]] if s != c] for c in parents}
    facts = {(a, "husband" if b in MEN else "wife", b) for a, b in spouse.items()}
    facts |= {(c, "father" if p in MEN else "mother", p) for c, couple in parents.items() for p in couple}
    facts |= {(p, "son" if c in MEN else "daughter", c) for c, couple in parents.items() for p in couple}
    facts |= {(a, "brother" if b in MEN else "sister", b) for a in siblings for b in siblings[a]}
    # uncles and aunts are siblings of a parent, and whom those married
    elders = {c: [e for p in parents[c] for s in siblings.get(p, []) for e in (s, spouse.get(s, s))] for c in parents}
    facts |= {(c, "uncle" if e in MEN else "aunt", e) for c in elders for e in elders[c]}
    facts |= {(e, "nephew" if c in MEN else "niece", c) for c in elders for e in elders[c]}
    return {(12 * family + a, relation, 12 * family + b) for a, relation, b in facts}


def questions() -> tuple[torch.Tensor, torch.Tensor]:
    """(person, relation) of each question [104, 2], and which people are right answers [104, 24]."""
    facts = relatives(0) | relatives(1)
    asked = sorted({(a, RELATIONS.index(relation)) for a, relation, _ in facts})
    answers = torch.zeros(len(asked), 24)
    for a, relation, b in facts:
        answers[asked.index((a, RELATIONS.index(relation))), b] = 1
    return torch.tensor(asked), answers


def initial() -> dict[str, torch.Tensor]:
    """Weights of all networks, each drawn by its own generator; the first axis numbers the networks."""
    shapes = {"person": (24, CODE), "relation": (12, CODE), "up": (2 * CODE, 24), "down": (24, CODE), "out": (CODE, 24)}
    drawn = [torch.Generator().manual_seed(seed) for seed in range(NETWORKS)]
    parameters = {}
    for name, shape in shapes.items():
        size = 0.15 if name in ("person", "relation") else 0.3 * shape[0] ** -0.5
        parameters[name] = torch.stack([torch.randn(shape, generator=g) * size for g in drawn]).requires_grad_()
    return parameters


def answer(w: dict[str, torch.Tensor], person: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
    """Logits over people [network, question, 24] of one-hot questions: codes, a hidden layer, the answer's code."""
    x = torch.cat([person @ w["person"], relation @ w["relation"]], -1)
    return torch.tanh(torch.tanh(x @ w["up"]) @ w["down"]) @ w["out"]


def train() -> tuple[torch.Tensor, float, float]:
    """Codes of people [network, 24, 6], and the share of right first answers to seen and to unseen questions."""
    asked, answers = questions()
    generators = [torch.Generator().manual_seed(1000 + k) for k in range(NETWORKS)]
    orders = torch.stack([torch.randperm(len(asked), generator=g) for g in generators])
    unseen, seen = orders[:, :HELD_OUT], orders[:, HELD_OUT:]
    person, relation = F.one_hot(asked[:, 0], 24).float(), F.one_hot(asked[:, 1], 12).float()
    target = F.normalize(answers, p=1, dim=-1)
    w = initial()
    optimizer = torch.optim.AdamW(w.values(), lr=0.02, weight_decay=1.0)
    for _ in range(STEPS):
        loss = -(target[seen] * answer(w, person[seen], relation[seen]).log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def share_right(which: torch.Tensor) -> float:
        first = answer(w, person[which], relation[which]).argmax(-1, keepdim=True)
        return float(answers[which].gather(2, first).mean())

    return w["person"].detach(), share_right(seen), share_right(unseen)


def sides(codes: torch.Tensor) -> torch.Tensor:
    """Where each of the 24 codes lies across the line that separates the nations best, English below 0   [24]"""
    x = torch.cat([codes, torch.ones(24, 1)], 1)
    nation = (torch.arange(24) // 12).float()
    w = torch.zeros(CODE + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=200)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(x @ w, nation) + 1e-4 * w.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return (x @ w).detach()


def main() -> dict[str, float]:
    """Train the networks; returns the counts, how well nationality separates, and right answers seen and unseen."""
    asked, answers = questions()
    codes, seen, unseen = train()
    across = torch.stack([sides(code) for code in codes])
    separable = ((across > 0) == (torch.arange(24) >= 12)).float().mean(1)
    results = {
        "questions": len(asked),
        "facts": int(answers.sum()),
        "separable_least": float(separable.min()),
        "separable_mean": float(separable.mean()),
        "right_seen": seen,
        "right_unseen": unseen,
    }
    table = Table("measured", "", title="Hinton's family trees", caption=f"{NETWORKS} networks, {HELD_OUT} unseen each")
    for name, value in results.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)
    svg.lines(
        "hintons_family_trees",
        "Codes across the line that separates the nations (network 0)",
        "place in the family tree",
        "distance from the line",
        range(1, 13),
        {"English": across[0, :12].tolist(), "Italian": across[0, 12:].tolist()},
    )
    assert (results["questions"], results["facts"]) == (104, 112)
    assert results["separable_mean"] >= 0.95
    assert results["right_unseen"] >= 0.3
    return results


if __name__ == "__main__":
    main()
