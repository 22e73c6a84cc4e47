"""Scores a text, a file or a folder, and compares it with n-grams of a run's training text."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from pellucid.generate.scoring import CorpusScore, Likelihood, Score, ScoringError
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import COUNTED, Baseline, baseline, count_ngrams, spread
from pellucid.predictors.recipe import read_predictor_recipe
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder, read_data
from pellucid.text.chat_template import CHATML, ChatTemplate, read_chat_template
from pellucid.text.one_text import document_name, one_text
from pellucid.text.read.chunks import DocumentError, counted
from pellucid.text.read.conversations import read_conversations, split_conversations
from pellucid.text.read.documents import Corpus, read_corpus
from pellucid.text.read.find import ReadOptions
from pellucid.text.read.pairs import read_pairs, split_pairs
from pellucid.text.read.rows import RowSplit
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.conversations import prepare_conversations
from pellucid.text.tokens.pairs import PairTokens, prepare_pairs
from pellucid.text.tokens.prepare import prepare_tokens
from pellucid.text.tokens.store import Tokens, describe_difference
from pellucid.training.kinds import run_kind
from pellucid.training.load import read_recipe
from pellucid.training.recipe import Recipe, TextRecipe
from pellucid.training.text_parts import input_files, lines_on_skipped
from pellucid.trust import Trust

#: progress(stage, done, total)
Progress = Callable[[str, int, int], None]


class ScoreTextOptions(TypedDict, total=False):
    """How any predictor scores a text; `Predictor.score` describes them and holds the defaults."""

    prefix: str
    reading: ReadOptions | None
    baselines: bool
    progress: Progress | None


class RunNGrams:
    """N-grams that are counted on a run's training text, and the nats that they need for what is added."""

    def __init__(self, ngrams: Mapping[str, NGram], n_vocab: int):
        self.ngrams, self.n_vocab = ngrams, n_vocab
        self.nats = dict.fromkeys(ngrams, 0.0)

    def add(self, score: Score) -> None:
        """Score the same tokens after the same context."""
        ids = np.array([*score.context, *score.ids])
        for name, ngram in self.ngrams.items():
            self.nats[name] -= float(ngram.log_probs(ids)[len(score.context) - 1 :].sum())

    def baselines(self, scored: Likelihood) -> tuple[Baseline, ...]:
        """The baselines of all that was added, whose tokens and bytes are those of `scored`."""
        nats = {"uniform": math.log(self.n_vocab)}
        nats |= {name: total / scored.n_tokens for name, total in self.nats.items()}
        return tuple(baseline(name, per_token, _Scored(scored)) for name, per_token in nats.items())


def score_given(
    score: Callable[[str], Score],
    text: str | os.PathLike,
    reading: ReadOptions | None,
    progress: Progress | None = None,
    count: Callable[[], RunNGrams] | None = None,
) -> Score | CorpusScore:
    """The score of a text, or of what is in a file or folder where a path is given.

    count   if given, counts the n-grams to compare with
    """
    if isinstance(text, str) and reading is not None:
        raise DocumentError("`reading` says how a file is read, and a text was given: give a pathlib.Path")
    corpus = None if isinstance(text, str) else read_corpus(text, progress, reading)
    ngrams = count() if count else None
    if progress:
        progress("scoring", 0, 0)
    if corpus is None:
        return _with_baselines(score(str(text)), ngrams)
    if len(corpus.documents) > 1:
        return score_corpus(score, corpus, progress, ngrams)
    one = one_text(corpus)
    notes = (*one.notes, *lines_on_skipped(corpus.skipped, where=""))
    scored = replace(score(one.text), counted=one.counted, notes=notes, document=corpus.documents[0])
    return _with_baselines(replace(scored, n_replaced_bytes=len(one.text.encode()) - one.n_bytes), ngrams)


def _with_baselines(score: Score, ngrams: RunNGrams | None) -> Score:
    if ngrams is None:
        return score
    ngrams.add(score)
    return replace(score, baselines=ngrams.baselines(score))


def score_corpus(
    score: Callable[[str], Score],
    corpus: Corpus,
    progress: Progress | None = None,
    ngrams: RunNGrams | None = None,
) -> CorpusScore:
    """The score of every document by itself. Memory holds one document and a few numbers for each.

    Raises ScoringError, naming the document, where one cannot be scored.
    """
    documents, n = corpus.documents, len(corpus.documents)
    log_probs, counts = np.empty(n), np.empty((3, n), dtype=np.int64)
    reasons, reason = 0, ""
    for k, chunks in corpus.stream():
        if progress:
            progress("scoring", k, n)
        text = "".join(chunk.text for chunk in chunks)
        try:
            one = score(text)
        except ScoringError as error:
            raise ScoringError(f"{document_name(documents[k])}: {error}") from None
        one = replace(one, n_replaced_bytes=len(text.encode()) - documents[k].n_bytes)
        log_probs[k], counts[:, k] = one.log_prob, (one.n_tokens, one.n_bytes, one.n_words)
        if one.why_not_comparable:
            reasons += 1
            reason = reason or f"{document_name(documents[k])}: {one.why_not_comparable}"
        if ngrams:
            ngrams.add(one)
    files = sum(source.n_documents > 0 for source in corpus.sources)
    scored = CorpusScore(
        documents,
        log_probs,
        *counts,
        counted=f"the bytes in UTF-8 of {counted(n, 'document')} in {counted(files, 'file')}",
        why_not_comparable=reason and f"{reasons:,} of {n:,} documents, the first is {reason}",
        notes=(*corpus.notes, *lines_on_skipped(corpus.skipped, where="")),
    )
    return replace(scored, baselines=ngrams.baselines(scored)) if ngrams else scored


def count_on_run(provenance: Mapping[str, Any], tokenizer: Tokenizer, progress: Progress | None = None) -> RunNGrams:
    """N-grams that are counted, in the same way as its baselines, on the training text of the run of a model.

    provenance   the model's; its `trust` accepts patterns of the run's tokenizer that are not known to be safe

    The run's text is read again. Raises RecipeError where the folder is no run, where the text has changed, and where
    the run has another tokenizer; DocumentError where the text is missing.
    """
    run, trust = run_of(provenance), provenance.get("trust", False)
    if load_tokenizer(run, trust=trust).ids_hash != tokenizer.ids_hash:
        raise RecipeError(f"{run} has another tokenizer than the model, so n-grams of its tokens do not compare")
    recipe = recipe_of(run)
    try:
        tokens = tokens_of(run, recipe, progress, trust=trust)
    except DocumentError as error:
        raise DocumentError(f"n-grams are counted on the text of {run}, which cannot be read: {error}") from None

    def poll() -> None:
        if progress:
            progress("counting n-grams", 0, 0)

    ids, separator = ids_to_count(run, recipe, tokens)
    return RunNGrams(dict(count_ngrams(ids, tokens.n_vocab, separator=separator, poll=poll)), tokens.n_vocab)


def run_of(provenance: Mapping[str, Any]) -> Path:
    """The run that a model is from. Raises RecipeError for a model that is from none."""
    run = provenance.get("folder")
    if run is None or not (Path(run) / "recipe.json").exists():
        named = "this model does not come from a run" if run is None else f"{run} is no run"
        raise RecipeError(f"{named}, so there is no training text to look into: give the folder of a run")
    return Path(run)


def ids_to_count(run: Path, recipe: Recipe, tokens: Tokens) -> tuple[np.ndarray, int | None]:
    """The training tokens of a run that its n-grams are counted on, without those that it set aside, int64 [n]; and the
    separator across which no context reaches, None where they do.
    """
    train = tokens.targets("train")
    if ranges := read_data(run).get("set_aside"):
        train = train.without([(start, stop) for start, stop in ranges])
    inside = isinstance(tokens, PairTokens) or recipe.text.inside_documents == "yes"
    return spread(train, COUNTED), tokens.separator if inside else None


class _Scored:
    """What was scored with the interface of a part of a run: its tokens and its bytes."""

    def __init__(self, score: Likelihood):
        self.n_tokens, self.n_bytes = score.n_tokens, score.n_bytes

    def __len__(self) -> int:
        return self.n_tokens


def recipe_of(run: Path) -> Recipe:
    """The recipe of a run of any kind that is trained on text."""
    if (kind := run_kind(run)) == "features":
        raise RecipeError(f"{run} holds features of a model: give the run of the model itself")
    recipe: Any = read_recipe(run) if kind == "transformer" else read_predictor_recipe(run)
    return recipe


def tokens_of(run: Path, recipe: Recipe, progress: Progress | None, *, trust: Trust = False) -> Tokens:
    """The tokens that a run was trained on; RecipeError where its text has changed."""
    return text_of_run(run, recipe, progress, trust=trust)[0]


def text_of_run(
    run: Path, recipe: TextRecipe, progress: Progress | None, *, trust: Trust = False
) -> tuple[Tokens, Split | RowSplit[Any]]:
    """The tokens that a run was trained on, and the documents or rows that they are of, divided as the run did.

    Raises RecipeError where its text has changed.
    """
    t, seed, tokenizer = recipe.text, recipe.train.seed, load_tokenizer(run, trust=trust)
    files = input_files(recipe)
    if recipe.train.objective == "source-target":
        split: Any = split_pairs(read_pairs(**files, progress=progress), t.held_out, seed)
        tokens: Any = prepare_pairs(split, tokenizer, cache_folder(), progress)
    elif recipe.train.objective == "chat":
        split = split_conversations(read_conversations(**files, progress=progress), t.held_out, seed)
        template = read_chat_template(run) or ChatTemplate(CHATML)
        tokens = prepare_conversations(split, tokenizer, template, cache_folder(), progress)
    else:
        corpus = read_corpus(**files, progress=progress, kept=cache_folder())
        split = split_corpus(corpus, t.held_out, seed, t.split)
        tokens = prepare_tokens(split, tokenizer, cache_folder(), progress=progress)
    if difference := describe_difference(read_data(run), tokens.manifest):
        said = "; ".join(difference.splitlines())
        raise RecipeError(f"{run} was trained on other text ({said}): put it back, its tokens are needed")
    return tokens, split
