"""Chooses the sizes of a run of minutes: whether they are open, what this machine takes, and what the recipe becomes.

The choice itself is `pellucid.plan.sizing`'s.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from pellucid.plan.sizing import (
    FITTED,
    PROBES,
    Size,
    Sizing,
    Text,
    choose_size,
    memorizes,
    model_of_size,
    recipe_of_size,
    seconds_of,
    size_fields,
    variety,
)
from pellucid.plan.speed import step_seconds
from pellucid.runs.device import CLEAR_GAIN, COMPILE_SECONDS, can_compile, free_bytes, resolve_device
from pellucid.runs.options import LENGTHS, with_train
from pellucid.runs.processes import world_size
from pellucid.text.read.chunks import counted
from pellucid.text.split import Split
from pellucid.training.recipe import Recipe, full_name, with_fields
from pellucid.training.step_choice import eager_recipes
from pellucid.training.step_functions import compile_saves

#: fields that are sizes: if the user sets one of them, none is chosen
SIZES = ("model.d_model", "model.n_layers", "model.attention.n_heads", "model.attention.d_head", "model.n_ctx")
#: layers of the two networks that are timed here
PROBE_LAYERS = 2
#: about how many seconds that takes
PROBE_SECONDS = 3.0
#: ... but at most this share of the run
PROBE_SHARE = 0.03


def sizes_are_open(recipe: Recipe, options: Mapping[str, Any]) -> bool:
    """Whether to choose sizes: the user set none, and the run has a time in minutes and predicts the next token."""
    t = recipe.train
    sized = {full_name(name) for name in options if name not in LENGTHS} & set(SIZES)
    return bool(t.minutes and not sized and t.objective in ("next-token", "prefix") and not recipe.adapt.rank)


def size_to(
    recipe: Recipe, split: Split, poll: Callable[[], object] = lambda: None, *, options: Mapping[str, Any]
) -> tuple[Recipe, list[str]]:
    """The recipe with sizes for the training text and the minutes, and lines that explain them.

    Fields in `options` stay as they are. Timing this machine takes a few seconds; `poll` is called meanwhile and may
    raise.
    """
    sizing = sizing_here(recipe, split, poll)
    known = {full_name(name) for name in options if name not in LENGTHS}
    final = sized(recipe, sizing, known)
    return final, [*sizing_lines(sizing, final), *explained(sizing)]


def sizing_here(recipe: Recipe, split: Split, poll: Callable[[], object] = lambda: None) -> Sizing:
    """The sizes of the recipe's minutes for the training text on this machine, which is timed for a few seconds."""
    device = resolve_device(recipe.train.device)
    room = 0.5 * free_bytes(device)
    scale = scale_of(recipe, device, poll)
    return choose_size(recipe, text_properties(split), scale, room, seconds_to_step(recipe, device))


def text_properties(split: Split) -> Text:
    """What is known about the training part."""
    return Text(sum(split.cuts), variety(split.sample()))


def scale_of(recipe: Recipe, device: torch.device, poll: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """How many times longer than in `Constants` a step of each probe takes here, in the precision that is the fastest
    of those that the recipe leaves open, as the run will choose it.
    """
    budget = min(PROBE_SECONDS, PROBE_SHARE * 60 * recipe.train.minutes)
    sequences = 16 if budget >= 1 else 4  # a run of less than half a minute must not spend much here
    probes = [Size(1024, d, PROBE_LAYERS, sequences) for d in PROBES]
    tried = [eager_recipes(probe_recipe(recipe, p), device)[0][: None if budget >= 1 else 1] for p in probes]
    each = budget / sum(map(len, tried))
    best = [min(step_seconds(r, device, each, poll) for r in of_probe) for of_probe in tried]
    low, high = (t / seconds_of(probe, (1.0, 1.0)) for t, probe in zip(best, probes, strict=True))
    return low, high


def seconds_to_step(recipe: Recipe, device: torch.device) -> float:
    """The seconds of steps that are not compiled in which the run would take as many steps as it will."""
    asked = 60 * recipe.train.minutes
    seconds = FITTED.stepping * asked - min(FITTED.starting, FITTED.starting_share * asked)
    saves, cost = compile_saves(recipe.model, device, world_size()), COMPILE_SECONDS[device.type]
    pays = saves * seconds > CLEAR_GAIN * cost and can_compile(device)
    if recipe.train.compile == "yes" or (recipe.train.compile is None and pays):
        # what was compiled before is found again, so of a short run half the time is left
        return max(seconds - cost, seconds / 2) / (1 - saves)
    return seconds


def probe_recipe(recipe: Recipe, probe: Size) -> Recipe:
    """The recipe with the size of a probe, without the options that a width may not allow where that one does not: they
    change little of the time of a step.
    """
    if model_of_size(recipe, probe) is None:
        a = recipe.model
        attention = replace(a.attention, n_kv_heads=0)
        recipe = replace(recipe, model=replace(a, d_embed=0, embed_projection="tokens", attention=attention))
    return recipe_of_size(recipe, probe)


def sized(recipe: Recipe, sizing: Sizing, known: set[str]) -> Recipe:
    """The recipe with the chosen size, except for the fields in `known`."""
    size = sizing.chosen
    chosen = size_fields(recipe, size)
    if recipe.text.tokenizer == "bpe":
        chosen["text.vocabulary"] = size.vocabulary
    if memorizes(size, sizing.text) and not any(name.startswith("model.dropout") for name in known):
        chosen["model.dropout"] = FITTED.dropout
    chosen = {name: value for name, value in chosen.items() if name not in known}
    if "model.mlp.d_ff" in known:
        chosen["model.mlp.d_ff"] = recipe.model.mlp.d_ff  # otherwise it would follow d_model
    made_recipe = with_fields(recipe, chosen)
    if size.epochs >= 0.99 * FITTED.most_epochs:
        return with_train(made_recipe, minutes=0.0, epochs=FITTED.most_epochs)
    return made_recipe


def sizing_lines(sizing: Sizing, final: Recipe) -> list[str]:
    """What was chosen and why, in a few lines, with the user's own values for fields that the user set."""
    c, n, a, k = sizing.chosen, sizing.text.n_characters, final.model, FITTED
    lines = [
        f"size: width {a.d_model}, {counted(a.n_layers, 'layer')}, vocabulary {c.vocabulary:,}, context {a.n_ctx}, "
        f"{counted(c.batch, 'sequence')} a step; chosen for {n:,} characters and {sizing.seconds:,.0f} s of steps",
        f"  about {counted(c.steps, 'step')} of {1e3 * c.seconds:.0f} ms, which read the text {c.epochs:.2g} times",
    ]
    if memorizes(c, sizing.text) and a.dropout.embed == k.dropout:
        lines.append(
            f"  dropout {k.dropout}, since the text is read more than {k.epochs_without_dropout:g} times and the "
            f"network has more than {k.memorizing_weights:g} weights for each of its characters"
        )
    if final.train.epochs == k.most_epochs:
        lines.append(
            f"  {k.most_epochs:g} epochs take {c.steps * c.seconds:,.0f} s: more epochs would only memorise this text"
        )
    return lines


def explained(sizing: Sizing) -> list[str]:
    """One table: the best size of each width at the chosen vocabulary, and what it is ranked by."""
    same = [size for size in sizing.considered if size.vocabulary == sizing.chosen.vocabulary]
    of_widths = [list(sizes) for _, sizes in itertools.groupby(same, key=lambda size: size.d_model)]
    best = [min(sizes, key=lambda size: size.expected) for sizes in of_widths]
    varied, (low, high) = f"{sizing.text.variety:.2f}", sizing.scale
    return [
        "  width  layers  batch  ms a step   steps  epochs  ranked by",
        *(
            f"  {s.d_model:5d}  {s.n_layers:6d}  {s.batch:5d}  {1e3 * s.seconds:9.1f}  {s.steps:6d}  {s.epochs:6.2f}  "
            f"{s.expected:9.3f}{'  <- chosen' if s == sizing.chosen else ''}"
            for s in best
        ),
        f"  (the best of each width, of {len(same)} sizes with this vocabulary and {len(sizing.considered)} in all; "
        "ranked by the bits per character that weights, text and steps leave to be learned, pellucid/plan/sizing.py; "
        f"the text's variety is {varied}; a step takes {low:.2f} and {high:.2f} times what it took on the machine of "
        f"the constants, at widths {PROBES[0]} and {PROBES[1]})",
    ]
