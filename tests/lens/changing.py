"""Random edits of any tensor of an architecture, for the tests that hold what an edit means everywhere."""

import torch
from hypothesis import strategies as st

from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.edits import Edit
from pellucid.tensor_names import axes, axis_sizes, names


@st.composite
def drawn_edits(draw: st.DrawFn, a: Architecture, n: int = 4, in_generation: bool = False) -> list[Edit]:
    """One to three edits, each of one tensor, narrowed down to heads, positions or neurons or not."""
    chosen = draw(st.lists(st.sampled_from(names(a)), min_size=1, max_size=3))
    return [draw(one_edit(a, name, n, in_generation)) for name in chosen]


@st.composite
def one_edit(draw: st.DrawFn, a: Architecture, name: str, n: int, in_generation: bool) -> Edit:
    letters = axes(name)
    sizes = axis_sizes(name, a)
    where = {}
    if draw(st.booleans()):
        where["pos"] = draw(st.sampled_from([0, [1, 2], slice(1, None), slice(0, 2)]))
    for place, letter in (("head", "h"), ("kv_head", "g"), ("neuron", "f")):
        if letter in letters and draw(st.booleans()):
            where[place] = draw(st.integers(0, sizes[letter] - 1))
    # added to the pattern of all keys, a number also gives weight to later ones, which a generation does not have yet
    has_all_keys = not (in_generation and name.endswith(".attn.pattern"))
    if letters[-2:] == ["i", "j"] and (draw(st.booleans()) or not has_all_keys):
        where["key"] = draw(st.sampled_from([0, [0, 1]]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    scores = name.endswith((".scores", ".pattern"))

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    whole = [2 if letter == "b" else n if letter in "ij" else sizes.get(letter, 1) for letter in letters]
    vector = 0.3 if scores else noise(whole[-1])
    options = [
        change.zero(name, **where),
        change.set_to(name, vector, **where),
        change.add(name, vector, factor=0.5, **where),
        change.scale(name, 0.7, **where),
        change.clamp(name, -0.4, 0.6, **where),
        change.clamp(name, high=0.3, **where),
        change.clamp(name, low=-0.2, **where),
    ]
    if not scores:
        options += [change.resample(name, noise(*whole), **where), change.mean(name, vector, **where)]
    if whole[-1] > 1 and not scores:
        options.append(change.project_out(name, vector, **where))
    if not in_generation and not scores:
        options += [
            change.mean(name, "pos", **where),
            change.mean(name, "batch", **where),
            change.freeze(name, **where),
        ]
    if name.endswith(".scale"):  # a norm divides by it
        options = [
            change.scale(name, 0.7, **where),
            change.add(name, 0.5, **where),
            change.clamp(name, 0.1, 5, **where),
        ]
    return draw(st.sampled_from(options))
