"""Predictors in the pipeline of runs: networks that are trained on text, and n-grams that are counted."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pellucid.generate.samples import SAMPLE_TOKENS, Poll, join_pieces
from pellucid.predictors.counting import peak_bytes
from pellucid.predictors.data import PredictorData, counted_loss
from pellucid.predictors.load import make_network
from pellucid.predictors.neural import initialise_predictor
from pellucid.predictors.ngram import NGram, NGramOptions
from pellucid.predictors.ngram_baselines import baseline
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recipe import PredictorRecipe, described_by_text
from pellucid.runs.device import check_precision, free_bytes, memory_bytes, resolve_device
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.measure import settle_length
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.pace import Pace
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.trainable import BatchLoss, CountedKind
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.store import Tokens, TokenSequence
from pellucid.training.build import read_text
from pellucid.training.trainable import TextTrainable
from pellucid.trust import Trust


class PredictorTrainable(TextTrainable[PredictorRecipe]):
    """The network of a predictor, and the text that it is trained on."""

    tokens: Tokens

    def __init__(self, recipe: PredictorRecipe, trust: Trust = False):
        self.recipe = recipe
        self.trust: Trust = trust

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        # raise before the text is read
        check_precision(self.recipe.train.precision, resolve_device(self.recipe.train.device))
        tokenizer = load_tokenizer(run_dir, trust=self.trust) if run_dir else None
        self.recipe, self.corpus, self.tokens, self.tokenizer = read_text(
            self.recipe, reporter, tokenizer, interruption, trust=self.trust
        )
        self.recipe = described_by_text(self.recipe, self.tokenizer.n_vocab, self.tokenizer.separator)

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        device, t = resolve_device(self.recipe.train.device), self.recipe.train
        closed = {name: word for name, word in AUTO_VALUES.items() if getattr(t, name) is None}
        batch, passes = t.batch or max(4, 2048 // self.recipe.window), t.accumulate or 1
        self.recipe = with_train(self.recipe, batch=batch, accumulate=passes, device=str(device), **closed)
        self.check_memory()
        settle_length(self, interruption, pace)
        return [f"model: {self.recipe.kind}, {self.n_trained:,} parameters; {self.recipe.n_steps:,} steps"]

    def files(self) -> dict[str, Any]:
        return {"architecture.json": dataclasses.asdict(self.recipe.model), **super().files()}

    def check_memory(self) -> None:
        """Raise RecipeError for a batch whose logits, probabilities and gradients alone do not fit into memory."""
        recipe = self.recipe
        need, have = 12 * recipe.train.batch * recipe.window * recipe.model.n_vocab, free_bytes(self.device)
        if need > have:
            raise RecipeError(
                f"the logits of {recipe.train.batch:,} sequences need {need / 2**30:,.1f} GiB in training and "
                f"{self.device.type} has {have / 2**30:.1f} GiB: make batch smaller"
            )

    def build(self) -> None:
        self.network = build_predictor(self.recipe).to(self.device)

    def make_data(self) -> PredictorData:
        return PredictorData(self.tokens, self.recipe, self.device)

    def make_loss(self) -> BatchLoss:
        return counted_loss(self.network, self.device, self.recipe.train.precision)

    @property
    def n_trained(self) -> int:
        return sum(p.numel() for p in make_network(self.recipe.model).parameters())

    @property
    def can_sample(self) -> bool:
        return True

    def sample(self, seed: int, phase: Phase) -> str | None:
        return sample_predictor(self.network, self.tokenizer, self.recipe, seed, phase)


#: what `auto` means for networks without blocks
AUTO_VALUES = {"precision": "float32", "compile": "no", "sample_prompt": ""}


def build_predictor(recipe: PredictorRecipe) -> nn.Module:
    """The network with its first weights, drawn from the seed."""
    return initialise_predictor(make_network(recipe.model), recipe.train.seed)


def sample_predictor(
    network: nn.Module, tokenizer: Tokenizer, recipe: PredictorRecipe, seed: int, poll: Poll
) -> str | None:
    """The text that the network generates from the recipe's prompt; None where its logits are not finite."""
    predictor, prompt = Predictor(network, tokenizer, recipe.kind, {}), recipe.train.sample_prompt
    text = join_pieces(predictor.stream(prompt, max_tokens=SAMPLE_TOKENS, seed=seed), poll)
    return None if text is None else prompt + text


def check_counting(n_tokens: int, order: int) -> None:
    """Raise RecipeError where an n-gram of so many tokens could not be counted in this machine's memory."""
    need, have = 8 * n_tokens + peak_bytes(n_tokens, order), memory_bytes(torch.device("cpu"))
    if need > have:
        raise RecipeError(
            f"counting {n_tokens:,} tokens may take {need / 2**30:.1f} GiB and this machine has "
            f"{have / 2**30:.1f} GiB: give less text, or a lower order"
        )


def count_part(part: TokenSequence, options: NGramOptions, poll: Callable[[], object] = lambda: None) -> NGram:
    """An n-gram of a part of the text; RecipeError, before anything is allocated, where it does not fit into memory.

    `poll` is called repeatedly and may raise.
    """
    check_counting(len(part), options.order)
    ids, o = part.read(0, len(part)), options
    return NGram.train(ids, o.n_vocab, o.order, o.smoothing, alpha=o.alpha, separator=o.separator, poll=poll)


class NGramRun(CountedKind[PredictorRecipe]):
    """A run of an n-gram. It is counted and measured before its folder is written, so that a signal leaves no files."""

    def __init__(self, recipe: PredictorRecipe, trust: Trust = False):
        self.recipe = recipe
        self.trust: Trust = trust

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        resolve_device(self.recipe.train.device)
        self.recipe, self.corpus, self.tokens, self.tokenizer = read_text(
            self.recipe, reporter, None, interruption, trust=self.trust
        )
        self.recipe = described_by_text(self.recipe, self.tokenizer.n_vocab, self.tokenizer.separator)

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        began, options = time.monotonic(), self.recipe.model
        assert isinstance(options, NGramOptions)
        with interruption.phase("counting") as phase:
            self.ngram = count_part(self.tokens.part("train"), options, phase)
        held_out = self.tokens.part("held_out")
        with interruption.phase("evaluating") as phase:
            log_probs = self.ngram.log_probs(held_out.read(0, len(held_out)), phase)
        _, loss, bits = baseline("", -float(log_probs.mean()), held_out)
        is_finite = math.isfinite(loss)
        self.evaluation = {
            "step": 0,
            "held_out_loss": loss if is_finite else None,
            "bits_per_byte": bits if is_finite else None,
            "without_probability": float(np.mean(~np.isfinite(log_probs))),
            "whole": True,
            "seconds": round(time.monotonic() - began, 3),
        }
        return [f"model: ngram, order {options.order}, {self.ngram.n_parameters:,} counts", *self.ngram.notes]

    def files(self) -> dict[str, Any]:
        data = self.tokens.manifest | self.corpus.about()
        return {"architecture.json": dataclasses.asdict(self.recipe.model), "data.json": data}

    def fill(self, folder: Path) -> None:
        self.tokenizer.save(folder)
        self.ngram.save(folder / "ngram")
