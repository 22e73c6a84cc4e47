"""Choose the model size for a text and a training time.

The formula and its constants are those of docs/log.md ("what size a text and a time want", and "what tables of n-grams
leave to learn"), from runs on texts of 50 kB to 10 MB (`benchmarks/sizing.py`, `benchmarks/tables.py`). It ranks sizes
on one text; it does not predict a loss.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pellucid.architecture import Architecture
from pellucid.option_values import ArchitectureError
from pellucid.plan.speed import in_turn, steppers
from pellucid.presets import gated_width, with_vocabulary
from pellucid.runs.device import (
    CLEAR_GAIN,
    COMPILE_SECONDS,
    can_compile,
    free_bytes,
    resolve_device,
)
from pellucid.runs.options import LENGTHS, RecipeError, TrainOptions, with_train
from pellucid.runs.processes import world_size
from pellucid.text.read.chunks import counted
from pellucid.text.split import Split
from pellucid.training import resolve_recipe as resolve
from pellucid.training.autotune import combinations, default_of
from pellucid.training.recipe import Recipe, full_name, with_fields
from pellucid.training.step_functions import compile_saves

#: fields that are sizes: if the user sets one of them, none is chosen
SIZES = ("model.d_model", "model.n_layers", "model.attention.n_heads", "model.attention.d_head", "model.n_ctx")
WIDTHS, DEPTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024), (1, 2, 3, 4, 6, 8, 12, 16, 24)
VOCABULARIES = (SMALLEST := 320, 512, 1024, 2048, 4096, 8192, 16384, 32768)
CONTEXT, HEAD = 128, 32
#: the widest network of fewer layers than usual: one of width 128, two of 192 and of 256
WIDEST_SHALLOW = 256
#: the share of the time that is spent in steps, as in `runs.length.resolve_steps`
STEPPING = 0.93
#: seconds of a run before its first step, and the most of its time that they are counted for
STARTING, STARTING_SHARE = 6.0, 0.15
#: n-gram tables are left out if the run reads its text more often than this times the cube root of variety and tokens
#: for each of their rows: they would memorize it. For subword tokens, and for characters or bytes
EPOCHS_WITH_TABLES = (4.0, 5.0)
#: epochs up to which tables have more rows, for a variety of 1: of a text that is read more often they memorize more
FEW_EPOCHS = 2.5
#: how often the size is chosen in an octave of time, and how many bits per character a larger network of less time may
#: rank behind the best
RUNGS, KEPT = 8, 0.05
#: sequences in a step, and the number of steps above which the batch is doubled
FEWEST_SEQUENCES, MANY_STEPS = 8, (800, 8000)
#: how often an id must occur in training, at least and on average, without n-gram tables, and with them at a variety of
#: 1, as they do better on the longer sequences of smaller vocabularies; the power of the variety by which the latter
#: grows; and the least characters of the text for each id
MIN_TOKEN_COUNT, OF_VARIED, CHARACTERS_PER_ID = (200, 450), 2.5, 512
#: epochs above which dropout is used, and after which further epochs gain nothing
EPOCHS_WITHOUT_DROPOUT, MOST_EPOCHS, DROPOUT = 12.0, 30.0, 0.1

#: about the seconds of a step of 2,048 tokens on one thread of the machine of docs/log.md, at width 128: by layer
#: (Muon's products first), in the readout, and in what every network has once, as its embedding and tables of n-grams
COST = {
    "update": 0.0211,
    "wide": 0.0111,
    "products": 0.0222,
    "attention": 0.0077,
    "logits": 0.0134,
    "softmax": 0.0030,
    "once": 0.0238,
}
#: widths of the two networks that are timed here, their layers, and about how many seconds that takes: at most a share
PROBES, PROBE_LAYERS, PROBE_SECONDS, PROBE_SHARE = (64, 256), 2, 3.0, 0.03

#: the most fresh epochs that all epochs after the first are worth
WORTH = 5.1
#: distinct trigrams over the root of a sample's length, in English prose, and the largest variety that counts
PROSE, VARIETIES = 22.0, (0.5, 3.0)
#: bits per character: from too few weights, too little text and too few steps
CAPACITY_FIT, DATA_FIT, STEP_FIT = (0.206, 0.49, 0.202), (0.78, 0.169), (2.123, 0.382)
#: bits per character that a run lacks beyond STEP_FIT where its steps are few, and the number of steps at which it
#: lacks them; it falls with the square of the steps
START_FIT = (0.085, 150)
#: tokens of a step in these terms: twice as many steps of half as many tokens reach the same
STEP_TOKENS = 2048
#: bits per character that a single layer lacks in the end, as it cannot find what followed an earlier occurrence
#: (Olsson et al. 2022), and the steps that two layers take to learn it, for subword tokens and for characters or bytes;
#: without tables of n-grams
ONE_LAYER_FIT = (0.09, (1200, 5000))
#: what n-gram tables leave of the term in the weights, of a single layer and for a variety of 1, and of those in text
#: and steps; the bits per character that a network with tables lacks in the end: for subword tokens, and for characters
#: or bytes
WITH_TABLES = ((0.60, 0.65, 0.28), (0.35, 0.41, 0.44))
#: bits per character that a single layer with tables lacks beside many, for a variety of 1, and the power of the layers
#: by which that falls
DEPTH_WITH_TABLES = ((0.12, 0.065), 0.6)
#: what too few weights and layers cost with tables grows with this power of the variety, and what a network with tables
#: lacks in the end falls by so much for a variety of 1
TABLES_OF_VARIED = (0.67, 0.19)
#: bits per character that a network loses as its tables learn the text by heart: times ln(share / o)^2 for epochs that
#: are a share of EPOCHS_WITH_TABLES above o, and linear in ln(share) above 1, where tables would be left out
MEMORIZED = ((0.03, 0.12), (0.10, 0.30))


@dataclass(frozen=True)
class Size:
    """A size with its cost, the epochs over the text in the available time, and `expected`, by which sizes are
    ranked.
    """

    vocabulary: int
    d_model: int
    n_layers: int
    batch: int
    ngrams: bool = False
    #: of each table of n-grams; 0: as the recipe has it
    rows: int = 0
    seconds: float = 0.0
    steps: int = 0
    epochs: float = 0.0
    #: epochs, as a share of those up to which there may be tables
    repeats: float = 0.0
    expected: float = math.inf

    @property
    def weights(self) -> int:
        """The weights of its blocks: 12 n_layers d_model^2."""
        return 12 * self.n_layers * self.d_model**2

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        return self.batch * CONTEXT


@dataclass(frozen=True)
class Text:
    """What the choice knows about the training text."""

    n_characters: int
    variety: float = 1.0


@dataclass(frozen=True)
class Sizing:
    """The chosen size, the candidates, and the measurements. `seconds` is the time for steps.

    `by_character` means that tokens are characters or bytes.
    """

    chosen: Size
    considered: list[Size]
    text: Text
    seconds: float
    scale: tuple[float, float]
    by_character: bool = False


def sizes_are_open(recipe: Recipe, options: Mapping[str, Any]) -> bool:
    """Whether to choose sizes: the user set none, and the run has a time in minutes and predicts the next token."""
    t = recipe.train
    sized = {full_name(name) for name in options if name not in LENGTHS} & set(SIZES)
    return bool(t.minutes and not sized and t.objective in ("next-token", "prefix") and not recipe.adapt.rank)


def sizing_of(recipe: Recipe, options: Mapping[str, Any], *, open_: bool, explain: bool) -> dict[str, Any]:
    """The arguments for a run's start: under `size`, the function that chooses sizes if they are `open_`.

    Raises RecipeError if the user asked to explain a choice that is not made.
    """
    if open_ and sizes_are_open(recipe, options):
        return {"size": partial(size_to, options=options, explain=explain)}
    if explain:
        raise RecipeError(
            "--explain describes how sizes are chosen, and those of this run are not: that takes a length in minutes, "
            "an objective that predicts the next token or continues a prefix, and no starting model, preset, recipe or "
            "sizes; leave it out"
        )
    return {}


def size_to(
    recipe: Recipe,
    split: Split,
    poll: Callable[[], object] = lambda: None,
    *,
    options: Mapping[str, Any],
    explain: bool = False,
) -> tuple[Recipe, list[str]]:
    """The recipe with sizes for the training text and the minutes, and lines that explain them.

    Fields in `options` stay as they are. Timing this machine takes a few seconds; `poll` is called meanwhile and may
    raise.
    """
    device = resolve_device(recipe.train.device)
    room = 0.5 * free_bytes(device)
    scale = scale_of(recipe, device, poll)
    sizing = choose_size(recipe, text_properties(split), scale, room, seconds_to_step(recipe, device))
    known = {full_name(name) for name in options if name not in LENGTHS}
    final = sized(recipe, sizing, known)
    return final, [*sizing_lines(sizing, final), *(explained(sizing) if explain else [])]


def text_properties(split: Split) -> Text:
    """What is known about the training part."""
    return Text(sum(split.cuts), variety(split.sample()))


def variety(sample: str) -> float:
    """The number of distinct trigrams in a sample, relative to English prose (about 1).

    It grows nearly with the root of the sample's length (Heaps 1978), up to the length of `Split.sample`.
    """
    different = len(set(zip(sample, sample[1:], sample[2:], strict=False)))
    low, high = VARIETIES
    return min(max(different / (PROSE * math.sqrt(max(len(sample), 1))), low), high)


def choose_size(
    recipe: Recipe, text: Text, scale: tuple[float, float], room: float = math.inf, seconds: float = 0.0
) -> Sizing:
    """The size with the best expected result; its network is no smaller than what less time would have chosen, unless
    that would now be clearly worse.

    `scale` is how many times longer than COST a step of either probe takes; `seconds` is the time for steps, by the
    minutes unless given. A machine that is twice as fast is as good as twice the time.
    Raises RecipeError where the options of the recipe and the memory allow no size.
    """
    seconds, fixed = seconds or STEPPING * 60 * recipe.train.minutes, fixed_vocabulary(recipe)
    sizes = [
        size
        for vocabulary in ((fixed,) if fixed else vocabularies(text.n_characters))
        for size in candidates(vocabulary)
        if (model := model_of_size(recipe, size)) and resolve.training_bytes(model, size.batch, "float32") < room
    ]
    if not sizes:
        raise RecipeError(
            "none of the sizes from which one is chosen goes with the options that are set and fits into memory: set "
            "sizes of your own, such as --set d_model=64 --set n_layers=2"
        )
    considered = [fit_to_time(size, text, recipe, seconds, scale) for size in sizes]
    largest = largest_choice(sizes, text, recipe, seconds, scale)
    same = (largest.vocabulary, largest.d_model, largest.n_layers)
    chosen = next(size for size in considered if (size.vocabulary, size.d_model, size.n_layers) == same)
    return Sizing(chosen, considered, text, seconds, scale, is_by_character(recipe))


def largest_choice(sizes: list[Size], text: Text, recipe: Recipe, seconds: float, scale: tuple[float, float]) -> Size:
    """The best size of this time, or the largest that was best of a shorter time and ranks at most KEPT behind now.

    By rank alone, more time would sometimes make the network smaller, where the vocabulary becomes larger. But one that
    then reads its text too often for its tables of n-grams is not kept. The times are RUNGS an octave, from one second
    on a machine of scale 1; on one that is twice as fast they are half as long.
    """
    speed = math.sqrt(scale[0] * scale[1])
    relative, time = (scale[0] / speed, scale[1] / speed), seconds / speed
    now = [fit_to_time(size, text, recipe, time, relative) for size in sizes]
    largest = best = best_of(now, text)
    for rung in range(math.floor(RUNGS * math.log2(max(time, 1.0)) + 1e-9) + 1):
        then = [fit_to_time(size, text, recipe, 2 ** (rung / RUNGS), relative) for size in sizes]
        size = now[then.index(best_of(then, text))]
        # of two alike, that of the longer time
        if size.weights >= largest.weights and size.expected <= best.expected + KEPT:
            largest = size
    return largest


def best_of(considered: list[Size], text: Text) -> Size:
    """Of the largest vocabulary whose ids occur often enough with its best size, that size."""
    best = [min(of_one, key=lambda size: size.expected) for of_one in by_vocabulary(considered)]
    met = [size for size in best if min_token_count(size, text) * size.vocabulary <= size.steps * size.tokens]
    return (met or best[:1])[-1]


def min_token_count(size: Size, text: Text) -> float:
    """How often an id must occur in training, on average."""
    return MIN_TOKEN_COUNT[size.ngrams] * (text.variety**OF_VARIED if size.ngrams else 1.0)


def by_vocabulary(sizes: list[Size]) -> list[list[Size]]:
    """Group sizes, which are ordered by vocabulary, from the smallest vocabulary to the largest."""
    return [list(of_one) for _, of_one in itertools.groupby(sizes, key=lambda size: size.vocabulary)]


def fixed_vocabulary(recipe: Recipe) -> int:
    """The approximate vocabulary size if it is fixed; 0 if it is to be chosen."""
    if recipe.text.vocabulary or recipe.text.tokenizer == "bpe":
        return recipe.text.vocabulary
    return {"char": 128, "byte": 256}.get(recipe.text.tokenizer, 8192)


def is_by_character(recipe: Recipe) -> bool:
    """Whether a token is a character or a byte."""
    return recipe.text.tokenizer in ("char", "byte")


def vocabularies(n_characters: int) -> list[int]:
    """The vocabulary sizes that this many characters are worth, in increasing order."""
    return [v for v in VOCABULARIES if v == SMALLEST or v * CHARACTERS_PER_ID <= n_characters]


def candidates(vocabulary: int) -> Iterator[Size]:
    """Every candidate: as deep as networks of its width usually are, within a factor of two, and shallow ones of little
    width, which tables of n-grams make do with.
    """
    for d, n in itertools.product(WIDTHS, DEPTHS):
        if max(1, d // (96 if d <= WIDEST_SHALLOW else 64)) <= n <= max(4, d // 32):
            yield Size(vocabulary, d, n, FEWEST_SEQUENCES)


def fit_to_time(size: Size, text: Text, recipe: Recipe, seconds: float, scale: tuple[float, float]) -> Size:
    """The size with its batch and steps for this time on a text."""
    by_character = is_by_character(recipe)
    each = 1.0 if by_character else characters_per_token(size.vocabulary, text.variety)
    for doubled in MANY_STEPS:
        if not recipe.train.batch and seconds / seconds_of(size, scale) > doubled:
            size = replace(size, batch=2 * size.batch)
    size = replace(size, batch=recipe.train.batch or size.batch)
    per_step, n_tokens = seconds_of(size, scale), text.n_characters / each
    steps = max(1, min(int(seconds / per_step), int(MOST_EPOCHS * n_tokens / size.tokens)))
    epochs = steps * size.tokens / n_tokens
    timed = replace(size, seconds=per_step, steps=steps, epochs=epochs)
    found = [timed]
    repeats = epochs / epochs_with_tables(recipe, n_tokens * text.variety, by_character)
    if recipe.model.ngrams and repeats <= 1:
        rows = rows_of_tables(recipe, text) if epochs <= FEW_EPOCHS * text.variety else 0
        found = [replace(timed, ngrams=True, rows=rows, repeats=repeats), timed]
    ranked = [replace(s, expected=expected(s, text, by_character)) for s in found]
    return min(ranked, key=lambda s: s.expected)


def rows_of_tables(recipe: Recipe, text: Text) -> int:
    """The rows of each table of n-grams where the text is read few times, 0 to leave the recipe's.

    N-grams that share a row tell less, and there are more of them where languages and scripts are many. On a CPU
    RMSprop does not read the rows that a step does not meet; AdamW reads all of them, and several processes send each
    other the gradients of all.
    """
    if recipe.train.ngram_optimizer != "rmsprop" or world_size() > 1:
        return 0
    return recipe.model.ngram_rows * 2 ** round(math.log2(1 + text.variety))


def epochs_with_tables(recipe: Recipe, varied: float, by_character: bool) -> float:
    """How often a text may be read before n-gram tables memorize it; `varied` is its tokens x variety."""
    a = recipe.model
    return EPOCHS_WITH_TABLES[by_character] * (varied / max(1, len(a.ngrams) * a.ngram_rows)) ** (1 / 3)


def expected(size: Size, text: Text, by_character: bool = False) -> float:
    """The quantity that ranks sizes, in bits per character above the minimum that a text allows:

    W + T, where the weights decide W = a (12 n_layers^c d_model^2 / 10^5)^-b, and text and steps
    T = d variety (characters / 10^6)^-e + f steps^-g + h (steps / k)^-2, with m (1 - e^(-steps / q)) more for a single
    layer. With n-gram tables variety^v (u W_1 + m n_layers^-q) + w T + x - y variety, where W_1 is W of a single layer,
    and z ln(repeats / o)^2 more where repeats > o. Steps are of STEP_TOKENS tokens.

    Without the term in h, runs of a few hundred steps got networks too wide to learn in them (docs/log.md). The
    characters are those that are read; those of later epochs count less (Muennighoff et al. 2023).
    """
    (a, b, c), (d, e), (f, g), (h, k) = CAPACITY_FIT, DATA_FIT, STEP_FIT, START_FIT
    again = max(size.epochs - 1, 0.0)
    read = text.n_characters * (min(size.epochs, 1.0) + WORTH * (1 - math.exp(-again / WORTH)))
    steps = size.steps * size.tokens / STEP_TOKENS
    trained = d * text.variety * (read / 1e6) ** -e + f * steps**-g + h * (steps / k) ** -2
    if not size.ngrams:
        m, q = ONE_LAYER_FIT
        single = m * (1 - math.exp(-steps / q[by_character])) if size.n_layers == 1 else 0.0
        return a * (12 * size.n_layers**c * size.d_model**2 / 1e5) ** -b + trained + single
    (u, w, x), (v, y), (z, o) = WITH_TABLES[by_character], TABLES_OF_VARIED, MEMORIZED[by_character]
    m, q = DEPTH_WITH_TABLES
    weights = u * a * (12 * size.d_model**2 / 1e5) ** -b + m[by_character] * size.n_layers**-q
    r, limit = math.log(max(size.repeats / o, 1.0)), -math.log(o)
    memorized = z * (min(r, limit) ** 2 + 2 * limit * max(r - limit, 0.0))
    return text.variety**v * weights + w * trained + x - y * text.variety + memorized


def characters_per_token(vocabulary: int, variety: float) -> float:
    """The approximate characters per token of byte-pair encoding trained on the text itself."""
    return (2.0 + 0.5 * math.log2(vocabulary / 512)) * variety**-0.3


def seconds_of(size: Size, scale: tuple[float, float], n_ctx: int = CONTEXT) -> float:
    """Seconds of a step here: those on the machine of docs/log.md, times an interpolation of the two probes' scales."""
    d, tokens, k = size.d_model / 128, size.tokens / 2048, COST
    layer = k["update"] * d**3 + tokens * (k["wide"] * d + k["products"] * d**2 + k["attention"] * n_ctx / 128 * d)
    readout = size.vocabulary / 1000 * (k["logits"] * d + k["softmax"])
    seconds = size.n_layers * layer + tokens * (readout + k["once"] * d)
    low, high = PROBES
    share = min(1.5, max(0.0, math.log(size.d_model / low) / math.log(high / low)))
    return seconds * scale[0] ** (1 - share) * scale[1] ** share


def scale_of(recipe: Recipe, device: torch.device, poll: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """How many times longer than on the machine of docs/log.md a step of each probe takes here, in the combination of
    precision and attention that is the fastest of those that the recipe leaves open, as the run will choose it.
    """
    budget = min(PROBE_SECONDS, PROBE_SHARE * 60 * recipe.train.minutes)
    # a run of less than half a minute must not spend much of it here, and first steps count where they are slow
    sequences, least = (16, 3) if budget >= 1 else (4, 0)
    probes = [Size(1024, d, PROBE_LAYERS, sequences) for d in PROBES]
    recipes = [probe_recipe(recipe, probe) for probe in probes]
    found = [combinations(r, device)[0] for r in recipes]
    if least == 0:
        found = [[default_of(of_probe)] for of_probe in found]
    of_probes = [steppers([c.applied(r) for c in tried], device) for r, tried in zip(recipes, found, strict=True)]
    steps = [step for of_probe in of_probes for step in of_probe]
    if len(steps) > len(probes) or (least == 0 and device.type != "cpu"):  # a GPU's first step loads its kernels
        least = 1
    taken = iter(in_turn(steps, budget, poll, least))
    best = [min(itertools.islice(taken, len(of_probe))) for of_probe in found]
    low, high = (t / seconds_of(probe, (1.0, 1.0)) for t, probe in zip(best, probes, strict=True))
    return low, high


def seconds_to_step(recipe: Recipe, device: torch.device) -> float:
    """The seconds of steps that are not compiled in which the run would take as many steps as it will."""
    asked = 60 * recipe.train.minutes
    seconds = STEPPING * asked - min(STARTING, STARTING_SHARE * asked)
    saves, cost = compile_saves(recipe.model, device, world_size()), COMPILE_SECONDS[device.type]
    pays = saves * seconds > CLEAR_GAIN * cost and can_compile(device)
    if recipe.train.compile == "yes" or (recipe.train.compile == "auto" and pays):
        # what was compiled before is found again, so of a short run half the time is left
        return max(seconds - cost, seconds / 2) / (1 - saves)
    return seconds


def recipe_of_size(recipe: Recipe, size: Size) -> Recipe:
    """The recipe with this size, all other fields unchanged."""
    sized_recipe = with_fields(recipe, size_fields(recipe, size))
    return replace(sized_recipe, model=with_vocabulary(sized_recipe.model, size.vocabulary))


def model_of_size(recipe: Recipe, size: Size) -> Architecture | None:
    """The model of this size; None where an option that was set does not allow it, such as an attention.n_kv_heads that
    does not divide the heads, or a d_embed that is the width.
    """
    try:
        return recipe_of_size(recipe, size).model
    except ArchitectureError:
        return None


def probe_recipe(recipe: Recipe, probe: Size) -> Recipe:
    """The recipe with the size of a probe, without the options that a width may not allow where that one does not: they
    change little of the time of a step.
    """
    if model_of_size(recipe, probe) is None:
        a = recipe.model
        attention = replace(a.attention, n_kv_heads=0)
        recipe = replace(recipe, model=replace(a, d_embed=0, embed_projection="tokens", attention=attention))
    return recipe_of_size(recipe, probe)


def size_fields(recipe: Recipe, size: Size) -> dict[str, Any]:
    """The fields of a recipe that a size decides.

    A gated MLP gets as many weights as the plain one that the constants were fitted to.
    """
    fields: dict[str, Any] = {
        "model.d_model": size.d_model,
        "model.n_layers": size.n_layers,
        "model.attention.n_heads": max(1, size.d_model // HEAD),
        "model.n_ctx": CONTEXT,
        "train.batch": size.batch,
    }
    if size.rows:
        fields["model.ngram_rows"] = size.rows
    if recipe.model.mlp.form == "gated":
        fields["model.mlp.d_ff"] = gated_width(size.d_model)
    return fields


def sized(recipe: Recipe, sizing: Sizing, known: set[str]) -> Recipe:
    """The recipe with the chosen size, except for the fields in `known`."""
    size = sizing.chosen
    chosen = size_fields(recipe, size)
    if recipe.text.tokenizer == "bpe":
        chosen["text.vocabulary"] = size.vocabulary
    if not size.ngrams and "model.ngrams" not in known:
        chosen["model.ngrams"] = ()
    if size.epochs > EPOCHS_WITHOUT_DROPOUT and not any(name.startswith("model.dropout") for name in known):
        chosen["model.dropout"] = DROPOUT
    chosen = {name: value for name, value in chosen.items() if name not in known}
    if "model.mlp.d_ff" in known:
        chosen["model.mlp.d_ff"] = recipe.model.mlp.d_ff  # otherwise it would follow d_model
    made_recipe = with_fields(recipe, chosen)
    if size.epochs >= 0.99 * MOST_EPOCHS:
        return with_train(made_recipe, minutes=0.0, epochs=MOST_EPOCHS)
    return made_recipe


def sizing_lines(sizing: Sizing, final: Recipe) -> list[str]:
    """What was chosen and why, in a few lines, with the user's own values for fields that the user set."""
    c, n, a = sizing.chosen, sizing.text.n_characters, final.model
    tables = (
        f"with tables of n-grams of {a.ngram_rows:,} rows"
        if a.ngrams
        else f"without tables of n-grams ({c.epochs:.1f} epochs)"
    )
    lines = [
        f"size: width {a.d_model}, {counted(a.n_layers, 'layer')}, vocabulary {c.vocabulary:,}, context {a.n_ctx}, "
        f"{counted(c.batch, 'sequence')} a step, {tables}; chosen for {n:,} characters and {sizing.seconds:,.0f} s of "
        "steps",
        f"  about {counted(c.steps, 'step')} of {1e3 * c.seconds:.0f} ms, which read the text {c.epochs:.2g} times; "
        "rates as for every width; --explain shows the other candidates",
    ]
    if c.epochs > EPOCHS_WITHOUT_DROPOUT and a.dropout.embed == DROPOUT:
        lines.append(f"  dropout {DROPOUT}, since the text is read more than {EPOCHS_WITHOUT_DROPOUT:g} times")
    if final.train.epochs == MOST_EPOCHS:
        lines.append(
            f"  {MOST_EPOCHS:g} epochs take {c.steps * c.seconds:,.0f} s: more epochs would only memorise this text"
        )
    return [*lines, *lines_without_effect(final)]


def lines_without_effect(final: Recipe) -> list[str]:
    """A warning for each option of tables of n-grams that the user set, where the chosen size has no tables."""
    t, unset = final.train, TrainOptions()
    names = () if final.model.ngrams else ("ngram_learning_rate", "ngram_weight_decay")
    return [
        f"warning: train.{name} = {getattr(t, name):g} has no effect: the chosen size has no tables of n-grams; set "
        "model.ngrams to have them"
        for name in names
        if getattr(t, name) != getattr(unset, name)
    ]


def explained(sizing: Sizing) -> list[str]:
    """The formula with its constants, and the best size of each width."""
    (a, b, c), (d, e), (f, g), (h, k) = CAPACITY_FIT, DATA_FIT, STEP_FIT, START_FIT
    same = [size for size in sizing.considered if size.vocabulary == sizing.chosen.vocabulary]
    of_width = itertools.groupby(same, key=lambda size: size.d_model)  # they are in that order
    listed = [list(sizes) for _, sizes in of_width]
    chosen = sizing.chosen
    best = [chosen if chosen in sizes else min(sizes, key=lambda size: size.expected) for sizes in listed]
    first = best_of(sizing.considered, sizing.text)
    by_rank = f"{first.d_model}/{first.n_layers} with {first.vocabulary:,} ids"
    kept = [f"  (rank alone would choose {by_rank}, and less time a larger network: more time keeps it)"]
    varied = f"{sizing.text.variety:.2f}"
    (m, q), (u, w, x), (v, y) = ONE_LAYER_FIT, WITH_TABLES[sizing.by_character], TABLES_OF_VARIED
    (z, o), (deep, fall) = MEMORIZED[sizing.by_character], DEPTH_WITH_TABLES
    return [
        f"sizes are ranked by W + T (bits per character, from runs of docs/log.md): W = {a:g} (12 n_layers^{c:g} "
        f"d_model^2 / 10^5)^-{b:g}, T = {d:g} x {varied} (characters read / 10^6)^-{e:g} + {f:g} steps^-{g:g} + {h:g} "
        f"(steps / {k:g})^-2, steps of {STEP_TOKENS:,} tokens, and {m:g} (1 - e^(-steps / "
        f"{q[sizing.by_character]:g})) more for a single layer; with tables of n-grams by {varied}^{v:g} ({u:g} W_1 + "
        f"{deep[sizing.by_character]:g} n_layers^-{fall:g}) + {w:g} T + {x:g} - {y:g} x {varied}, where W_1 is W of a "
        f"single layer, and {z:g} ln(share / {o:g})^2 more where the share is above {o:g}, the epochs being "
        f"a share of {EPOCHS_WITH_TABLES[sizing.by_character]:g} x ({varied} x tokens of the text / rows of the "
        f"tables)^(1/3); they are left out above that, or where that ranks better, and have more rows up to "
        f"{FEW_EPOCHS:g} x {varied} epochs",
        f"a step takes {sizing.scale[0]:.2f} times what it took there at width {PROBES[0]}, "
        f"{sizing.scale[1]:.2f} times at "
        f"width {PROBES[1]}; the vocabulary is the largest whose ids are met {MIN_TOKEN_COUNT[0]} times on average, "
        f"{MIN_TOKEN_COUNT[1]} x {varied}^{OF_VARIED:g} with tables",
        f"{varied} is the text's variety: different runs of three characters in a sample, beside English prose",
        "  width  layers  batch  ms a step   steps  epochs  n-grams  ranked by",
        *(
            f"  {s.d_model:5d}  {s.n_layers:6d}  {s.batch:5d}  {1e3 * s.seconds:9.1f}  {s.steps:6d}  {s.epochs:6.2f}  "
            f"{'yes' if s.ngrams else 'no':>7}  {s.expected:9.3f}{'  <- chosen' if s == sizing.chosen else ''}"
            for s in best
        ),
        *(kept if first.weights < chosen.weights else ()),
        f"  (of each width the best; {len(same)} sizes with this vocabulary, {len(sizing.considered)} in all)",
    ]
