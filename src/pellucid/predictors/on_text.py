"""Scores a text or a file, and compares it with n-grams of a run's training text."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.generate.scoring import Score
from pellucid.predictors.ngram_baselines import COUNTED, as_part, score_baselines, spread
from pellucid.predictors.recipe import read_predictor_recipe
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder, read_json
from pellucid.text.chat_template import CHATML, ChatTemplate, read_chat_template
from pellucid.text.one_text import OneText, read_one_text
from pellucid.text.read.chunks import DocumentError
from pellucid.text.read.conversations import split_conversations
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.pairs import split_pairs
from pellucid.text.split import split_corpus
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.conversations import ConversationTokens, encode_conversations
from pellucid.text.tokens.pairs import PairTokens, encode_pairs
from pellucid.text.tokens.prepare import prepare_tokens
from pellucid.text.tokens.store import Tokens, describe_difference
from pellucid.training.load import read_recipe
from pellucid.training.recipe import Recipe
from pellucid.training.text_parts import read_recipe_conversations, read_recipe_pairs, read_recipe_text

#: progress(stage, done, total)
Progress = Callable[[str, int, int], None]


def score_given(score: Callable[[str], Score], text: str | os.PathLike, reading: ReadOptions | None) -> Score:
    """The score of a text, or of the text in a file where a path is given."""
    if isinstance(text, str):
        if reading is not None:
            raise DocumentError("`reading` says how a file is read, and a text was given: give a pathlib.Path")
        return score(text)
    one = read_one_text(text, reading)
    return of_file(score(one.text), one)


def of_file(score: Score, one: OneText) -> Score:
    """The score of a file's text, with the number of the file's bytes."""
    replaced = len(one.text.encode()) - one.n_bytes
    return replace(score, counted=one.counted, n_replaced_bytes=replaced, notes=one.notes)


def with_baselines(
    score: Score,
    run: str | os.PathLike | None,
    tokenizer: Tokenizer,
    progress: Progress | None = None,
    *,
    trust: bool = False,
) -> Score:
    """The score, with those of n-grams that are counted on a run's training text in the same way as its baselines.

    The run's text is read again; `trust` accepts patterns of its tokenizer that are not known to be safe. Raises
    RecipeError where the folder is no run, where the text has changed, and where the run has another tokenizer;
    DocumentError where the text is missing.
    """
    if run is None or not (Path(run) / "recipe.json").exists():
        named = "this model does not come from a run" if run is None else f"{run} is no run"
        raise RecipeError(f"{named}, so there is no training text to count n-grams on: give the folder of a run")
    run = Path(run)
    if load_tokenizer(run, trust=trust).ids_hash != tokenizer.ids_hash:
        raise RecipeError(f"{run} has another tokenizer than the model, so n-grams of its tokens do not compare")
    recipe = recipe_of(run)
    try:
        tokens = tokens_of(run, recipe, progress, trust=trust)
    except DocumentError as error:
        raise DocumentError(f"n-grams are counted on the text of {run}, which cannot be read: {error}") from None
    inside = isinstance(tokens, PairTokens) or recipe.text.inside_documents == "yes"
    ids, first = np.array([*score.context, *score.ids]), len(score.context)

    def poll() -> None:
        if progress:
            progress("counting n-grams", 0, 0)

    train = as_part(tokens, "train")
    if ranges := read_json(run / "data.json").get("set_aside"):
        train = train.without([(start, stop) for start, stop in ranges])
    found = score_baselines(
        spread(train, COUNTED),
        ids,
        _Scored(score),
        tokens.n_vocab,
        separator=tokens.separator if inside else None,
        first=first,
        poll=poll,
    )
    return replace(score, baselines=tuple(found))


class _Scored:
    """The scored text with the interface of a part of a run: its tokens and its bytes."""

    def __init__(self, score: Score):
        self.n_tokens, self.n_bytes = score.n_tokens, score.n_bytes

    def __len__(self) -> int:
        return self.n_tokens


def recipe_of(run: Path) -> Recipe:
    """The recipe of a run of any kind that is trained on text."""
    kind = read_json(run / "recipe.json").get("kind", "transformer")
    found: Any = read_recipe(run) if kind == "transformer" else read_predictor_recipe(run)
    return found


def tokens_of(
    run: Path, recipe: Recipe, progress: Progress | None, *, trust: bool = False
) -> Tokens | PairTokens | ConversationTokens:
    """The tokens that a run was trained on; RecipeError where its text has changed."""
    t, seed, tokenizer = recipe.text, recipe.train.seed, load_tokenizer(run, trust=trust)
    if recipe.train.objective == "source-target":
        tokens: Any = encode_pairs(split_pairs(read_recipe_pairs(recipe, progress), t.held_out, seed), tokenizer)
    elif recipe.train.objective == "chat":
        split = split_conversations(read_recipe_conversations(recipe, progress), t.held_out, seed)
        tokens = encode_conversations(split, tokenizer, read_chat_template(run) or ChatTemplate(CHATML))
    else:
        split = split_corpus(read_recipe_text(recipe, progress), t.held_out, seed, t.split)
        tokens = prepare_tokens(split, tokenizer, cache_folder(), progress=progress)
    if difference := describe_difference(read_json(run / "data.json"), tokens.manifest):
        said = "; ".join(difference.splitlines())
        raise RecipeError(f"{run} was trained on other text ({said}): put it back to count n-grams on it")
    return tokens
