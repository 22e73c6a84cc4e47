"""A network of any kind that is trained together with an n-gram of its training text (`train --mix auto`).

    P(w|h) = weight P_network(w|h) + (1 - weight) P_ngram(w|h)   (Bengio et al. 2003, section 4.2)

Before the first step a small part of the training tokens is set aside: stretches that are evenly spread over the text,
so that they resemble all of it. The n-gram is counted, and the network trained, on the rest. After the last step the
weight is fitted on what was set aside, with the network of the best checkpoint, and the mixture is measured on the
held-out text.

A run's folder then holds

    ngram/            the n-gram: interpolated modified Kneser-Ney of order 5, written before the first step
    mixture.json      the weight, on how many tokens it was fitted, and with the network of which step
    data.json         set_aside: the ranges of training tokens that neither the network nor the n-gram has read
"""

import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pellucid.predictors.load import at_checkpoint
from pellucid.predictors.mixture import fit_weight, mixed
from pellucid.predictors.ngram import NGram, NGramError
from pellucid.predictors.ngram_baselines import COUNTED, spread
from pellucid.predictors.recipe import PredictorRecipe
from pellucid.predictors.trainable import PredictorTrainable
from pellucid.runs.checkpoint import write_json
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.options import RecipeError
from pellucid.runs.pace import Pace
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.run_dir import DATA, read_json
from pellucid.text.tokens.store import Tokens, TokenSequence
from pellucid.training.data import TokenData
from pellucid.training.load import load_run
from pellucid.training.objectives import token_losses
from pellucid.training.recipe import Recipe, TextRecipeT
from pellucid.training.trainable import TextTrainable, TransformerTrainable
from pellucid.trust import Trust

#: tokens of an n-gram
ORDER = 5
#: the share of the training tokens that is set aside
SET_ASIDE_SHARE = 0.05
#: the most tokens that are set aside
MOST_SET_ASIDE = 1 << 16
#: ... in how many stretches at most
MOST_STRETCHES = 16
#: ... and the least tokens of a stretch
STRETCH = 1024
#: held-out tokens that both are measured on at most
MOST_MEASURED = 1 << 16
#: seconds of reading the n-gram's files and of scoring with it, for each token that it was counted on
READING = 2e-6

#: ranges [start, stop) of the training tokens
Ranges = list[tuple[int, int]]


def ranges_to_set_aside(n_tokens: int) -> Ranges:
    """The ranges of so many training tokens that are set aside: the ends of equal sections of the text.

    The very last token, a separator, is not among them: of one document it is the only one that the network can learn.
    Raises RecipeError where there are too few tokens.
    """
    n_aside = min(int(SET_ASIDE_SHARE * n_tokens), MOST_SET_ASIDE)
    if n_aside < 2:
        raise RecipeError(
            f"{n_tokens} training tokens are too few to set {SET_ASIDE_SHARE:.0%} of them aside for train.mix = auto: "
            "give more text, or leave out --mix"
        )
    n = max(1, min(MOST_STRETCHES, n_aside // STRETCH))
    ends = [(n_tokens - 1) * (k + 1) // n for k in range(n)]
    return [(end - n_aside // n, end) for end in ends]


class MixedWithNGram(TextTrainable[TextRecipeT]):
    """What a network's training gains by an n-gram. The first of several processes counts and fits.

    ranges  of the training tokens that are set aside, and `aside` those tokens; `tokens` are without them
    ngram   between its counting and the writing of the run's folder
    """

    data_shape = replace(DATA, needed=(*DATA.needed, "set_aside"))
    tokens: Tokens
    trust: Trust
    finish_name = "mixing with the n-gram"
    ngram: NGram | None = None

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        super().read(reporter, interruption, run_dir)
        train = self.tokens.part("train")
        if run_dir is None:
            ranges = ranges_to_set_aside(len(train))
        else:
            data = read_json(run_dir / "data.json", self.data_shape)
            if self.difference(data):
                return  # which the pipeline refuses
            ranges = [(start, stop) for start, stop in data["set_aside"]]
        self.ranges, self.aside = ranges, [train.select([one]) for one in ranges]
        self.tokens = self.tokens.with_parts(train=train.without(ranges))

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        began = time.monotonic()
        with interruption.phase("counting the n-gram to mix with") as phase:
            self.ngram = self.count(phase)
        train, n_aside = self.tokens.part("train"), sum(map(len, self.aside))
        n_counted = self.ngram.n_tokens
        of_all = f"{n_counted:,}" + ("" if n_counted == len(train) else f" of {len(train):,}")
        line = (
            f"to mix with: a {ORDER}-gram, {self.ngram.n_parameters:,} counts of {of_all} training tokens; its share "
            f"is fitted on {n_aside:,} more, which are set aside ({time.monotonic() - began:.1f} s)"
        )
        return [*super().prepare(interruption, pace), line]

    def count(self, poll: Callable[[], object]) -> NGram:
        """The n-gram of the training tokens, or of COUNTED of them that are evenly spread over a long text."""
        ids = spread(self.tokens.part("train"), COUNTED)
        separator = self.tokens.separator if self.recipe.text.inside_documents == "yes" else None
        return NGram.train(ids, self.tokens.n_vocab, ORDER, separator=separator, poll=poll)

    def files(self) -> dict[str, Any]:
        files = super().files()
        return files | {"data.json": files["data.json"] | {"set_aside": self.ranges}}

    def fill(self, folder: Path) -> None:
        super().fill(folder)
        assert self.ngram is not None
        self.ngram.save(folder / "ngram")
        self.ngram = None

    @property
    def finish_field(self) -> str:
        return "mixture_weight" if self.processes.is_first else ""

    @property
    def finish_cost(self) -> tuple[int, float]:
        n_read = sum(map(len, self.aside)) + len(self.measured_part())
        return n_read, READING * (min(len(self.tokens.part("train")), COUNTED) + n_read)

    def measured_part(self) -> TokenSequence:
        """The held-out tokens that the mixture is measured on: the first MOST_MEASURED, and all of a shorter text."""
        held_out = self.tokens.part("held_out")
        return held_out.select([(0, min(len(held_out), MOST_MEASURED + 1))])

    def finish(self, run_dir: Path, step: int, phase: Phase) -> tuple[dict[str, Any], list[str]]:
        """Fit the weight on the tokens set aside, and measure the held-out text with the n-gram and without it."""
        began = time.monotonic()
        ngram, why_counted = self.stored_ngram(run_dir, phase)
        network, best = self.best_network(run_dir)
        pairs = [self.log_probs(network, ngram, part, phase) for part in self.aside]
        own, counted = (np.concatenate(log_probs) for log_probs in zip(*pairs, strict=True))
        weight = fit_weight(own, counted)
        write_json(run_dir / "mixture.json", {"weight": weight, "fitted_on_tokens": len(own), "step": best})

        own, counted = self.log_probs(network, ngram, self.measured_part(), phase)
        both = mixed(torch.from_numpy(own), torch.from_numpy(counted), weight).numpy()
        held_out = self.tokens.part("held_out")
        per_byte = len(held_out) / held_out.n_bytes / math.log(2)
        loss, own_loss = float(-both.mean()), float(-own.mean())
        row = {
            "step": step,
            "mixture_weight": weight,
            "mixed_loss": loss,
            "mixed_bits_per_byte": loss * per_byte,
            "unmixed_loss": own_loss,
            "unmixed_bits_per_byte": own_loss * per_byte,
            "mixed_tokens": len(own),
            "mixed_step": best,
            "mixing_seconds": round(time.monotonic() - began, 3),
        }
        return row, [*([why_counted] if why_counted else []), self.sentence(row)]

    def sentence(self, row: dict[str, Any]) -> str:
        """The result, in one line."""
        n_held_out = self.data.n_held_out - 1
        n, best = row["mixed_tokens"], row["mixed_step"]
        text = "the held-out text" if n == n_held_out else f"the first {n:,} of {n_held_out:,} held-out tokens"
        network = "the network" if best == row["step"] else f"the network of step {best}"
        return (
            f"mixed with its {ORDER}-gram, {network} having a share of {row['mixture_weight']:.3f}: "
            f"{row['mixed_bits_per_byte']:.4f} bits/byte of {text}, {row['unmixed_bits_per_byte']:.4f} without "
            f"({row['mixing_seconds']:.1f} s)"
        )

    def stored_ngram(self, run_dir: Path, poll: Callable[[], object]) -> tuple[NGram, str]:
        """The n-gram in the run's folder; where it is damaged or missing, it is counted and written again, and why."""
        try:
            return NGram.load(run_dir / "ngram"), ""
        except NGramError as error:
            ngram = self.count(poll)
            shutil.rmtree(run_dir / "ngram", ignore_errors=True)
            ngram.save(run_dir / "ngram")
            return ngram, f"the n-gram was counted and written again: {error}"

    def log_probs(
        self, network: Any, ngram: NGram, part: TokenSequence, poll: Callable[[], object]
    ) -> tuple[np.ndarray, np.ndarray]:
        """log P of each token of a part after the first, float64 [len(part) - 1], by the network and by the n-gram."""
        own = self.log_probs_by_network(network, part, poll)
        return own, ngram.log_probs(part.read(0, len(part)), poll)

    @abstractmethod
    def best_network(self, run_dir: Path) -> tuple[Any, int]:
        """The network of the best checkpoint, and the step of that checkpoint."""

    @abstractmethod
    def log_probs_by_network(self, network: Any, part: TokenSequence, poll: Callable[[], object]) -> np.ndarray:
        """log P of each token of a part after the first, float64 [len(part) - 1]."""


class MixedTransformer(MixedWithNGram[Recipe], TransformerTrainable):
    """A transformer that is mixed with an n-gram. It reads in windows of its context that do not overlap."""

    def best_network(self, run_dir: Path) -> tuple[Any, int]:
        network, _, best = load_run(run_dir, "best", self.device, trust=self.trust)
        return network, best

    @torch.no_grad()
    def log_probs_by_network(self, network: Any, part: TokenSequence, poll: Callable[[], object]) -> np.ndarray:
        losses = []
        for batch in TokenData(self.tokens.with_parts(held_out=part), self.recipe, self.device).held_out():
            poll()
            losses.append(token_losses(network, batch)[batch.counts].cpu().double().numpy())
        return -np.concatenate(losses)


class MixedPredictor(MixedWithNGram[PredictorRecipe], PredictorTrainable):
    """A neural probabilistic or recurrent predictor that is mixed with an n-gram."""

    def best_network(self, run_dir: Path) -> tuple[Any, int]:
        network, best = at_checkpoint(self.recipe, run_dir, "best")
        return network.to(self.device), best

    def log_probs_by_network(self, network: Any, part: TokenSequence, poll: Callable[[], object]) -> np.ndarray:
        poll()
        return network.log_probs(part.read(0, len(part)))
