"""The baselines of a run: the scores of simpler predictors on the same held-out text, and warnings about the data.

Everything is in bits per byte of the original text, so that predictors with any tokenizer compare.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.json_shapes import COUNT, POSITIVE, TEXT, Fields, ListOf
from pellucid.parameter_counts import count_parameters
from pellucid.predictors.ngram import NGram
from pellucid.predictors.ngram_baselines import (
    COUNTED,
    Baseline,
    baseline,
    rows_of,
    score_baselines,
    spread,
)
from pellucid.predictors.repeats import Repeats, repeats
from pellucid.runs.metrics import last_evaluation, part_measured, read_metrics
from pellucid.runs.pipeline import Run
from pellucid.runs.reporter import Detail
from pellucid.runs.run_dir import read_json
from pellucid.text.tokens.pairs import PairTokens
from pellucid.text.tokens.store import Tokens, TokenSequence
from pellucid.training.chat import epoch_targets
from pellucid.training.recipe import Recipe

FILE = "baselines.json"
#: the most held-out tokens that are scored
SCORED = 1 << 20
#: the share of held-out windows in the training text above which the loss is misleading
MOST_REPEATED = 0.01
#: the share of unknown held-out tokens above which bits per byte are misleading
MOST_UNKNOWN = 0.001
#: how far a unigram's bits per byte of the held-out text may exceed those of the text it is counted on
UNLIKE = 0.2
#: passes after which more add little (Muennighoff et al. 2023)
MANY_PASSES = 16
#: passes after which more add next to nothing
TOO_MANY_PASSES = 40
#: bits that a parameter can memorise (Morris et al. 2025)
BITS_PER_PARAMETER = 3.6

#: what that file holds
MEASURED = Fields(
    {
        "predictors": ListOf(Fields({"name": TEXT, "nats_per_token": POSITIVE, "bits_per_byte": POSITIVE})),
        **dict.fromkeys(("counted", "n_train", "scored", "n_held_out"), COUNT),
        "repeats": Fields({"share": POSITIVE, **dict.fromkeys(("windows", "length", "searched"), COUNT)}),
        **dict.fromkeys(("passes", "seconds", "unigram_of_training"), POSITIVE),
        "warnings": ListOf(TEXT),
        "note": TEXT,
    }
)


@dataclass(frozen=True)
class Baselines:
    """The measurements before a run's first step. `warnings` are sentences for the user."""

    predictors: list[Baseline]
    counted: int
    n_train: int
    scored: int
    n_held_out: int
    repeats: Repeats
    passes: float
    warnings: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0
    unigram_of_training: float = 0.0  # bits per byte that the unigram needs of the text it is counted on; 0: unknown

    @property
    def reach(self) -> str:
        """How much of either part was read."""
        return f"counted on {_count_of_total(self.counted, self.n_train)} training tokens, scored on " + (
            f"{_count_of_total(self.scored, self.n_held_out)} held-out tokens"
        )

    @property
    def lines(self) -> list[str]:
        """The lines that are printed before the first step."""
        said = ", ".join(f"{p.name} {p.bits_per_byte:.3f}" for p in self.predictors)
        return [
            f"baselines, bits/byte of the held-out text: {said}",
            Detail(f"baselines were {self.reach}, in {self.seconds:.1f} s"),
            *([self.note] if self.note else []),
            *(f"warning: {sentence}" for sentence in self.warnings),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as in a run's baselines.json."""
        return {**asdict(self), "predictors": [p._asdict() for p in self.predictors]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Baselines":
        """The inverse of `to_dict`."""
        predictors = [Baseline(**p) for p in values["predictors"]]
        return cls(**{**values, "predictors": predictors, "repeats": Repeats(**values["repeats"])})


def measure_baselines(recipe: Recipe, tokens: Tokens, poll: Callable[[], object] = lambda: None) -> Baselines:
    """Measure the baselines of a run that is about to begin, whose recipe is resolved. `poll` is called meanwhile.

    It takes seconds whatever the size of the text: of long texts an evenly spread part is read, and `reach` says how
    much.
    """
    began = time.monotonic()
    train, held_out = (tokens.targets(name) for name in ("train", "held_out"))
    masked, pairs = recipe.train.objective == "masked", isinstance(tokens, PairTokens)
    separator = tokens.separator if pairs or recipe.text.inside_documents == "yes" else None
    text = spread(held_out, SCORED)
    counted = spread(train, COUNTED)
    # the first token of a pair's target is predicted too, from the separator
    scored = np.append(tokens.separator, text) if pairs else text
    scores = score_baselines(
        counted, scored, held_out, tokens.n_vocab, longest=1 if masked else 5, separator=separator, poll=poll
    )
    again = repeats(train, held_out, poll)
    passes = recipe.n_steps * recipe.tokens_per_step / epoch_targets(tokens, recipe.model.n_ctx)
    own = unigram_of(counted, train, tokens.n_vocab, poll)
    lost = tokens.manifest["parts"]["held_out"]["unknown"] / len(held_out)
    warnings = [
        *warn_of_unknown(lost),
        *warn_of_repeats(again),
        *warn_of_unlike(own, scores),
        *warn_of_too_few(recipe, passes, train, scores[-1].bits_per_byte),
    ]
    note = "a masked model reads both sides, but n-grams only what came before: compare it with uniform and unigram"
    return Baselines(
        scores,
        len(counted),
        len(train),
        len(text),
        len(held_out),
        again,
        round(passes, 3),
        warnings,
        note if masked else "",
        round(time.monotonic() - began, 3),
        own,
    )


def warn_of_unknown(share: float) -> list[str]:
    """A warning if so many held-out tokens are unknown that bits per byte mislead."""
    if share < MOST_UNKNOWN:
        return []
    return [
        f"{share:.1%} of the held-out tokens are unknown: the model does not predict which words or characters "
        "they are, but their bytes count, so bits per byte are too low and do not compare with other "
        "tokenizers. Use a larger vocabulary, or bpe"
    ]


def warn_of_repeats(repeats: Repeats) -> list[str]:
    """A warning if the held-out text also occurs in the training text."""
    if repeats.share < MOST_REPEATED:
        return []
    return [
        f"{repeats.share:.0%} of the held-out text also occurs in the training text ({repeats.windows:,} windows of "
        f"{repeats.length} tokens were looked for): the held-out loss is lower than on new text. Remove copies "
        "(pellucid sources shared RUN lists them), or put text that belongs together into one file"
    ]


def unigram_of(
    counted: np.ndarray, part: TokenSequence, n_vocab: int, poll: Callable[[], object] = lambda: None
) -> float:
    """Bits per byte of a unigram on the ids of this part that it is counted on."""
    nats = -float(NGram.train(counted, n_vocab, 1, poll=poll).log_probs(counted, poll).mean())
    return baseline("", nats, part).bits_per_byte


def warn_of_unlike(own: float, scores: list[Baseline]) -> list[str]:
    """A warning if the held-out text differs from the training text, whose unigram needs `own` bits per byte of it."""
    held_out = next(p.bits_per_byte for p in scores if p.name == "unigram")
    if held_out <= (1 + UNLIKE) * own:
        return []
    return [
        f"the held-out text is unlike the training text: a unigram counted on the training text needs {held_out:.2f} "
        f"bits per byte of the held-out text and {own:.2f} of its own. The held-out loss says how well the model does "
        "on another kind of text. If that is not meant, hold out the end of every document (--set text.split=tail), or "
        "files of your own (--held-out FILE)"
    ]


def warn_of_too_few(recipe: Recipe, passes: float, train: TokenSequence, bits_per_byte: float) -> list[str]:
    """A warning if the text is read more often than helps, or so often that the model can memorise it.

    The information in a text is estimated by the bits per byte of the best n-gram.
    """
    n = count_parameters(recipe.model)["total"]
    read = f"the training text, {len(train):,} tokens, will be read {passes:.0f} times"
    if passes >= TOO_MANY_PASSES:
        return [
            f"{read}: more than {TOO_MANY_PASSES} epochs add next to nothing. Add text, or train for a shorter time"
        ]
    holds = bits_per_byte * train.n_bytes
    if passes >= MANY_PASSES and n * BITS_PER_PARAMETER > holds:
        return [
            f"{read}, and the model's {n:,} parameters can memorise all of it (about {BITS_PER_PARAMETER} bits "
            f"each; the text has about {holds / 1e6:,.1f} million): watch the held-out loss. Add text, or use a "
            "smaller model or dropout"
        ]
    return []


def read_baselines(run: Path) -> Baselines | None:
    """The baselines in a run's folder; None if it has none, or if they cannot be read."""
    path = run / FILE
    if not path.exists():
        return None
    try:
        return Baselines.from_dict(read_json(path, MEASURED))
    except (ValueError, TypeError, KeyError):
        return None


def table(run: Run) -> list[str]:
    """The run's last held-out loss among the baselines, one line each; empty if one is missing."""
    results = read_baselines(run.path)
    if results is None or run.held_out_loss is None or run.bits_per_byte is None:
        return []
    row = last_evaluation(read_metrics(run.path / "metrics.jsonl"))
    part = part_measured(row)
    name = f"this model, step {run.step:,}" + (f" (first {part:,} tokens)" if part else "")
    rows = [*results.predictors, Baseline(name, run.held_out_loss, run.bits_per_byte)]
    return [*rows_of("held-out text", rows), verdict(results, run.bits_per_byte, part)]


def verdict(results: Baselines, bits_per_byte: float, part: int = 0) -> str:
    """One sentence that says which predictors the model is better than.

    part  how many held-out tokens the model was measured on, 0 for all; a part does not compare with the whole
    """
    if part:
        return (
            f"no verdict: the model was measured on the first {part:,} held-out tokens alone, which may be easier or "
            f"harder than all of them ({results.reach}). A longer run is measured on all"
        )
    ahead = [p.name for p in results.predictors if p.bits_per_byte <= bits_per_byte]
    if not ahead:
        return f"the model is better than each of them ({results.reach})"
    return f"the model is behind {', '.join(ahead)} ({results.reach}): train longer, or on more text"


def _count_of_total(some: int, everything: int) -> str:
    return f"all {everything:,}" if some == everything else f"{some:,} of {everything:,}"
