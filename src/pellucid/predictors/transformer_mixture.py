"""Mixtures of a transformer and an n-gram that have the same tokenizer."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from pellucid.generate.readers import evaluation_mode, last_logits
from pellucid.generate.scoring import score_tokens
from pellucid.model import Transformer
from pellucid.model.shapes import LastLogits, Logits, Tokens
from pellucid.predictors.mixture import FITTED, Counted, NGramMixture
from pellucid.predictors.ngram import NGram
from pellucid.predictors.options import PredictorError, plain_forward
from pellucid.predictors.predictor import Predictor
from pellucid.runs.run_dir import read_json
from pellucid.text_model import Model


class Windowed(nn.Module):
    """A transformer with a predictor's interface: it reads the last n_ctx tokens."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.transformer = transformer
        #: `NGramMixture` reads this attribute of its parts
        self.choices = transformer.architecture

    @property
    def reach(self) -> int:
        """How many tokens back a prediction reads."""
        return self.transformer.architecture.n_ctx

    def forward(self, tokens: Tokens, *, mask: None = None, positions: None = None) -> Logits:
        """Logits of the token after each position, of which the later ones have a window of n_ctx tokens each."""
        plain_forward(mask, positions)
        ends = range(self.reach + 1, tokens.size(1) + 1)
        with evaluation_mode(self.transformer):
            first = self.transformer(tokens[:, : self.reach])
            later = [self.last(tokens[:, :end])[:, None] for end in ends]
            return torch.cat([first, *later], 1) if later else first

    def last(self, tokens: Tokens) -> LastLogits:
        """`forward` at the last position alone, [batch, n_vocab]."""
        with evaluation_mode(self.transformer):
            return last_logits(self.transformer, tokens[:, -self.reach :])

    def log_probs(self, ids: np.ndarray) -> np.ndarray:
        """log P of each token after the first, in windows that move by half a context, float64 [len(ids) - 1]."""
        return score_tokens(self.transformer, ids)


def mixed_with(model: Model, other: Predictor | None = None, weight: float | None = None) -> Predictor:
    """Mix with an n-gram: P(w|h) = weight P_transformer(w|h) + (1 - weight) P_counted(w|h)   (Bengio et al. 2003, 4.2)

    other   an n-gram trained on the same tokens; without it, the one that the model's run holds
            (`train(..., mix="auto")`)
    weight  the model's share: 0.5 unless given, and for the n-gram of the run the share that was fitted

    The provenance of the mixture is the model's, with `weight` and, as `mixed_with`, the n-gram's folder.

    Raises PredictorError for another predictor, another tokenizer, a transformer that does not predict the next token
    from those before it, and a weight that is not between 0 and 1; without `other`, where the model is from no run,
    where the run holds no n-gram or its weight is not fitted yet, and where the weight was fitted for another
    checkpoint; NGramError where the files of the n-gram are damaged.
    """
    if other is None:
        other, weight = _stored(model, weight)
    a = model.architecture
    if not isinstance(other.network, Counted):
        kind = getattr(other, "kind", "transformer")
        raise PredictorError(f"a predictor of kind {kind} was given: expected an n-gram (--predictor ngram)")
    if a.attention.mask != "causal" or a.encoder is not None:
        raise PredictorError(
            f"attention.mask = {a.attention.mask}{' with an encoder' if a.encoder else ''}: expected a transformer "
            "that predicts the next token from all before it"
        )
    if model.tokenizer.ids_hash != other.tokenizer.ids_hash:
        raise PredictorError(
            f"the transformer's tokenizer ({model.tokenizer.n_vocab:,} ids) is not the n-gram's "
            f"({other.tokenizer.n_vocab:,}): count the n-gram with --tokenizer and the transformer's folder"
        )
    share = 0.5 if weight is None else weight
    mixture = NGramMixture(Windowed(model.network), other.network, share)
    about = {**model.provenance, "mixed_with": other.provenance.get("folder"), "weight": share}
    return Predictor(mixture, model.tokenizer, "mixture", about)


def _stored(model: Model, weight: float | None) -> tuple[Predictor, float]:
    """The n-gram that the model's run holds, and the weight that was fitted unless one is given."""
    run, step = Path(model.provenance.get("folder", "")), model.provenance.get("step")
    if step is None or not (run / "ngram").exists():
        what = "the model does not come from a run" if step is None else f"{run} holds no n-gram"
        raise PredictorError(
            f"{what}: train with --mix auto to have one stored, or name the folder of an n-gram run (--mix RUN)"
        )
    if weight is None:
        fitted = read_json(run / "mixture.json", FITTED) if (run / "mixture.json").exists() else None
        if fitted is None:
            raise PredictorError(
                f"{run} holds an n-gram whose share is not fitted yet: finish the run with --resume --out {run}, or "
                "give a share (--mix-weight)"
            )
        if fitted["step"] != step:
            raise PredictorError(
                f"the share of the n-gram in {run} was fitted with the network of step {fitted['step']}, and that of "
                f"step {step} was loaded: load the best checkpoint of the finished run, or give a share (--mix-weight)"
            )
        weight = float(fitted["weight"])
    return Predictor(Counted(NGram.load(run / "ngram")), model.tokenizer, "ngram", dict(model.provenance)), weight
