"""What a type checker must conclude of a user's calls: `make types` checks this file, which is never run."""

from pathlib import Path
from typing import assert_type

import pellucid
from pellucid.predictors.recipe import PredictorRecipe
from pellucid.runs.pipeline import Run

recipe = pellucid.Recipe(inputs=("a.txt",), model=pellucid.preset("small"))
assert_type(pellucid.train("a.txt", minutes=1, mix="auto"), Run[pellucid.Recipe])
assert_type(pellucid.train(recipe=recipe, steps=3, show=True), Run[pellucid.Recipe])
assert_type(pellucid.train(Path("a.txt"), recipe="own.toml", from_model="gpt2"), Run[pellucid.Recipe])
assert_type(pellucid.train(Path("a.txt"), preset="gpt2"), Run[pellucid.Recipe])
assert_type(pellucid.train(out="a", resume=True, steps=9), Run[pellucid.Recipe])
assert_type(pellucid.train_predictor("a.txt", kind="ngram", fields={"order": 3}), Run[PredictorRecipe])
assert_type(pellucid.train_predictor(out="a", resume=True), Run[PredictorRecipe])
assert_type(pellucid.load("a"), pellucid.LanguageModel)
assert_type(pellucid.load("a").score("text", stride=8, baselines=True), pellucid.Score)
assert_type(pellucid.load("a").score(Path("a.jsonl"), start="none"), pellucid.Score | pellucid.CorpusScore)
assert_type(pellucid.load_predictor("a").score("text", prefix="a"), pellucid.Score)
assert_type(pellucid.load_predictor("a"), pellucid.Predictor)
