"""Choose the model size for a text and a training time.

`expected` ranks sizes on one text by what they lack in weights, text and steps; it does not predict a loss. Its
constants, and those of the cost of a step, come from runs of plain networks (`python -m benchmarks.sizing`;
docs/experiments/sizes.md).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pellucid.architecture import Architecture
from pellucid.option_values import ArchitectureError
from pellucid.presets import gated_width, with_vocabulary
from pellucid.runs.options import RecipeError
from pellucid.training import resolve_recipe as resolve
from pellucid.training.recipe import Recipe, with_fields

WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
#: two layers at least: a head that finds what followed an earlier occurrence needs one below it (Elhage et al. 2021)
DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24)
VOCABULARIES = (SMALLEST := 320, 512, 1024, 2048, 4096, 8192, 16384, 32768)
CONTEXT, D_HEAD = 128, 32
#: tokens of a step in `expected` and in what it costs: twice as many steps of half as many tokens reach the same
STEP_TOKENS = 2048
#: widths of the two networks that are timed on a machine
PROBES = (64, 256)
#: the range of a text's variety that counts
VARIETIES = (0.5, 3.0)


@dataclass(frozen=True)
class Constants:
    """What sizes are chosen by. Losses are in bits per character; seconds are those of one thread of the machine of the
    log at width 128 in bfloat16, for a step of 2,048 tokens at a context of 128.
    """

    capacity: float = 0.18
    """too few weights: capacity variety (12 n_layers^depth d_model^2 / 10^5)^-capacity_power"""
    depth: float = 0.49
    capacity_power: float = 0.202
    capacity_of_characters: float = 0.6
    """the same where the text is read by characters or bytes: what rows of embeddings know of tokens, layers compute"""
    depth_of_characters: float = 1.25
    data: float = 0.78
    """too little text: data variety (characters read / 10^6)^-data_power"""
    data_power: float = 0.169
    repeats_worth: float = 5.1
    """the most fresh epochs that all epochs after the first are worth (Muennighoff et al. 2023)"""
    steps: float = 2.123
    """too few steps: steps steps^-steps_power + start (steps / 150)^-2, the second of which only short runs notice"""
    steps_power: float = 0.382
    start: float = 0.085

    layer: float = 0.0036
    """a layer, whatever its width, and the update of its matrices, by the cube of the width (Muon's products)"""
    update: float = 0.0035
    elementwise: float = 0.0064
    """what a layer computes of each number of the stream, and its matrix products"""
    products: float = 0.0134
    logits: float = 0.0105
    """the readout's product for 1,000 ids, and its softmax"""
    softmax: float = 0.0043

    id_occurrences: int = 200
    """how often an id must occur in training on average, and the characters of text for each id"""
    id_characters: int = 512
    sequences: int = 8
    """sequences in a step, and the steps above which the batch is doubled, and doubled again"""
    many_steps: tuple[int, ...] = (800, 8000)
    stepping: float = 0.93
    """the share of the time that is spent in steps; seconds before the first of them, and the largest share of these"""
    starting: float = 6.0
    starting_share: float = 0.15
    dropout: float = 0.1
    """dropout, of networks that read their text more often than this and have so many weights for each character of it
    """
    epochs_without_dropout: float = 12.0
    memorizing_weights: float = 1.6
    most_epochs: float = 30.0
    """epochs after which further ones gain nothing"""
    prose: float = 22.0
    """distinct trigrams over the root of a sample's length, in English prose"""


FITTED = Constants()


@dataclass(frozen=True)
class Size:
    """A size with its cost, the epochs over the text in the available time, and `expected`, by which sizes are
    ranked.
    """

    vocabulary: int
    d_model: int
    n_layers: int
    batch: int = FITTED.sequences
    seconds: float = 0.0
    steps: int = 0
    epochs: float = 0.0
    expected: float = math.inf

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
    """The chosen size, the candidates, and the measurements. `seconds` is the time for steps."""

    chosen: Size
    considered: list[Size]
    text: Text
    seconds: float
    scale: tuple[float, float]


def variety(sample: str) -> float:
    """The number of distinct trigrams in a sample, relative to English prose (about 1).

    It grows nearly with the root of the sample's length (Heaps 1978), up to the length of `Split.sample`.
    """
    different = len(set(zip(sample, sample[1:], sample[2:], strict=False)))
    low, high = VARIETIES
    return min(max(different / (FITTED.prose * math.sqrt(max(len(sample), 1))), low), high)


def choose_size(
    recipe: Recipe, text: Text, scale: tuple[float, float], room: float = math.inf, seconds: float = 0.0
) -> Sizing:
    """The best expected size of the largest vocabulary whose ids it meets often enough.

    `scale` is how many times longer than in `Constants` a step of either probe takes; `seconds` is the time for steps,
    by the minutes unless given. Raises RecipeError where the options of the recipe and the memory allow no size.
    """
    seconds, fixed = seconds or FITTED.stepping * 60 * recipe.train.minutes, fixed_vocabulary(recipe)
    considered = [
        fit_to_time(size, text, recipe, seconds, scale)
        for vocabulary in ((fixed,) if fixed else vocabularies(text.n_characters))
        for size in candidates(vocabulary)
        if (model := model_of_size(recipe, size)) and resolve.training_bytes(model, size.batch, "float32") < room
    ]
    if not considered:
        raise RecipeError(
            "none of the sizes from which one is chosen goes with the options that are set and fits into memory: set "
            "sizes of your own, such as --set d_model=64 --set n_layers=2"
        )
    return Sizing(best_size(considered), considered, text, seconds, scale)


def best_size(considered: list[Size]) -> Size:
    """Of the largest vocabulary whose ids occur often enough with its best size, that size; `considered` is ordered by
    vocabulary.
    """
    of_vocabularies = [list(of_one) for _, of_one in itertools.groupby(considered, key=lambda size: size.vocabulary)]
    best = [min(of_one, key=lambda size: size.expected) for of_one in of_vocabularies]
    met = [size for size in best if FITTED.id_occurrences * size.vocabulary <= size.steps * size.tokens]
    return (met or best[:1])[-1]


def fixed_vocabulary(recipe: Recipe) -> int | None:
    """The approximate vocabulary size if it is fixed; None if it is to be chosen."""
    if recipe.text.vocabulary or recipe.text.tokenizer == "bpe":
        return recipe.text.vocabulary
    return {"char": 128, "byte": 256}.get(recipe.text.tokenizer, 8192)


def vocabularies(n_characters: int) -> list[int]:
    """The vocabulary sizes that this many characters are worth, in increasing order."""
    return [v for v in VOCABULARIES if v == SMALLEST or v * FITTED.id_characters <= n_characters]


def candidates(vocabulary: int) -> Iterator[Size]:
    """Every candidate: as deep as networks of its width usually are, within a factor of two."""
    for d, n in itertools.product(WIDTHS, DEPTHS):
        if max(2, d // 64) <= n <= max(4, d // 32):
            yield Size(vocabulary, d, n)


def fit_to_time(size: Size, text: Text, recipe: Recipe, seconds: float, scale: tuple[float, float]) -> Size:
    """The size with its batch and steps for this time on a text."""
    by_character = recipe.text.tokenizer in ("char", "byte")
    each = 1.0 if by_character else characters_per_token(size.vocabulary, text.variety)
    for doubled in FITTED.many_steps:
        if not recipe.train.batch and seconds / seconds_of(size, scale) > doubled:
            size = replace(size, batch=2 * size.batch)
    size = replace(size, batch=recipe.train.batch or size.batch)
    per_step, n_tokens = seconds_of(size, scale), text.n_characters / each
    steps = max(1, min(int(seconds / per_step), int(FITTED.most_epochs * n_tokens / size.tokens)))
    timed = replace(size, seconds=per_step, steps=steps, epochs=steps * size.tokens / n_tokens)
    return replace(timed, expected=expected(timed, text, by_character))


def expected(size: Size, text: Text, by_character: bool = False) -> float:
    """The quantity that ranks sizes: bits per character above the least that a text allows, what `Constants` says of
    weights, text and steps added up. Characters of later epochs count less (Muennighoff et al. 2023).
    """
    k, again = FITTED, max(size.epochs - 1, 0.0)
    read = text.n_characters * (min(size.epochs, 1.0) + k.repeats_worth * (1 - math.exp(-again / k.repeats_worth)))
    steps = size.steps * size.tokens / STEP_TOKENS
    capacity, depth = (k.capacity_of_characters, k.depth_of_characters) if by_character else (k.capacity, k.depth)
    weights = capacity * (12 * size.n_layers**depth * size.d_model**2 / 1e5) ** -k.capacity_power
    data = k.data * (read / 1e6) ** -k.data_power
    return text.variety * (weights + data) + k.steps * steps**-k.steps_power + k.start * (steps / 150) ** -2


def memorizes(size: Size, text: Text) -> bool:
    """Whether a network of this size would learn its text by heart, so that dropout gains more than it costs."""
    weights = 12 * size.n_layers * size.d_model**2
    return size.epochs > FITTED.epochs_without_dropout and weights > FITTED.memorizing_weights * text.n_characters


def characters_per_token(vocabulary: int, variety: float) -> float:
    """The approximate characters per token of byte-pair encoding trained on the text itself."""
    return (2.0 + 0.5 * math.log2(vocabulary / 512)) * variety**-0.3


def seconds_of(size: Size, scale: tuple[float, float]) -> float:
    """Seconds of a step here: those of `Constants` times an interpolation of the two probes' scales."""
    d, tokens, k = size.d_model / 128, size.tokens / STEP_TOKENS, FITTED
    layer = k.layer + k.update * d**3 + tokens * (k.elementwise * d + k.products * d**2)
    seconds = size.n_layers * layer + tokens * size.vocabulary / 1000 * (k.logits * d + k.softmax)
    low, high = PROBES
    share = min(1.5, max(0.0, math.log(size.d_model / low) / math.log(high / low)))
    return seconds * scale[0] ** (1 - share) * scale[1] ** share


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


def size_fields(recipe: Recipe, size: Size) -> dict[str, Any]:
    """The fields of a recipe that a size decides.

    A gated MLP gets as many weights as the usual one of two matrices.
    """
    fields: dict[str, Any] = {
        "model.d_model": size.d_model,
        "model.n_layers": size.n_layers,
        "model.attention.n_heads": max(1, size.d_model // D_HEAD),
        "model.n_ctx": CONTEXT,
        "train.batch": size.batch,
    }
    if recipe.model.mlp.form == "gated":
        fields["model.mlp.d_ff"] = gated_width(size.d_model)
    return fields
