"""The tokens of a trace as panels show them, and how well the model expected each of them."""

import math
from typing import Any

import torch
from torch import Tensor

from pellucid.lens.core.recording import Recording
from pellucid.lens.show.answers import json_number, numbers, spell, token_object
from pellucid.text.tokenizers.base import Tokenizer

#: the likeliest tokens that are listed for each position
TOP = 10


def token_facts(t: Recording, row: int = 0) -> dict[str, Any]:
    """The tokens of one text of a trace and, where the model predicts tokens, what it expected at each position.

    Lists have one entry for each position. `surprisal`, in bits, and `rank`, from 0, are those of the token AT the
    position, given the ones before it, so the first are None; `entropy`, in bits, and `top` are those of the
    prediction made at the position.
    """
    tokenizer, a, n = t.tokenizer, t.architecture, t.inputs.lengths[row]
    ids = t.ids[row, :n].tolist()
    facts: dict[str, Any] = {
        "n": n,
        "tokens": [token_object(tokenizer, i) for i in ids],
        "source": [],
        "predicts": a.readout != "none",
    }
    if t.inputs.source is not None:
        length = t.inputs.source.lengths[row]
        facts["source"] = [token_object(tokenizer, i) for i in t.inputs.source.tokens[row, :length].tolist()]
    if a.readout == "none":
        return facts
    log_probs = t.logits[row, :n].float().log_softmax(-1)
    facts["entropy"] = entropies(log_probs)
    facts["top"] = likeliest(log_probs, tokenizer)
    if a.attention.mask != "bidirectional":
        following = torch.tensor(ids[1:], dtype=torch.long, device=log_probs.device)
        said, surprisal = log_probs[:-1].gather(1, following[:, None]), t.surprisal()[row, : n - 1]
        facts["surprisal"] = [None, *numbers(surprisal)]
        facts["rank"] = [None, *(log_probs[:-1] > said).sum(-1).tolist()]
        facts["mean_surprisal"] = json_number(float(surprisal.nanmean())) if n > 1 else None
    return facts


def entropies(log_probs: Tensor) -> list[float | None]:
    """The entropy of each row of log-probabilities [n, n_vocab], in bits; None for a row that is NaN."""
    bits = -(log_probs.exp() * log_probs).masked_fill(log_probs == -math.inf, 0).sum(-1) / math.log(2)
    return numbers(bits)


def likeliest(log_probs: Tensor, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """The likeliest tokens of each row of log-probabilities [n, n_vocab]; none for a row that is NaN."""
    best = log_probs.topk(min(TOP, log_probs.size(-1)), dim=-1)
    return [
        [
            {"id": i, "text": spell(tokenizer, i), "p": math.exp(x)}
            for i, x in zip(row, values, strict=True)
            if not math.isnan(x)
        ]
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
