"""What every page shows of a trace: its tokens, and how well the model expected each of them."""

import math
from typing import Any

import torch
from torch import Tensor

from pellucid.lens.trace import Trace
from pellucid.look.answers import json_number, numbers, spell, token_object
from pellucid.look.page_edits import edits_code, options_code
from pellucid.look.predictor_trace import POSITIONS_AT_ONCE, PredictorTrace
from pellucid.look.session import PromptBody
from pellucid.text.tokenizers.base import Tokenizer

#: the likeliest tokens that are listed for each position
TOP = 10


def trace_facts(trace: Trace | PredictorTrace, prompt: PromptBody) -> dict[str, Any]:
    """The tokens of the trace's one row and, where the model predicts tokens, what it expected at each position.

    Lists have one entry for each position. `surprisal`, in bits, and `rank`, from 0, are those of the token AT the
    position, given the ones before it, so the first are None; `entropy`, in bits, and `top` are those of the
    prediction made at the position.
    """
    if isinstance(trace, PredictorTrace):
        return predictor_facts(trace, prompt)
    tokenizer, a = trace.tokenizer, trace.architecture
    n = trace.inputs.lengths[0]
    ids = trace.ids[0, :n].tolist()
    card: dict[str, Any] = {
        "id": prompt.key(),
        "n": n,
        "tokens": [token_object(tokenizer, i) for i in ids],
        "source": [],
        "edits": [edit.model_dump(exclude_unset=True, by_alias=True) for edit in prompt.edits],
        "code": trace_code(prompt),
        "change": change_code(prompt),
        "predicts": a.readout != "none",
    }
    if trace.inputs.source is not None:
        length = trace.inputs.source.lengths[0]
        card["source"] = [token_object(tokenizer, i) for i in trace.inputs.source.tokens[0, :length].tolist()]
    if a.readout == "none":
        return card
    log_probs = trace.logits[0].float().log_softmax(-1)
    card["entropy"] = entropies(log_probs)
    card["top"] = likeliest(log_probs, tokenizer)
    if a.attention.mask != "bidirectional":
        following = torch.tensor(ids[1:], device=log_probs.device)
        said = log_probs[:-1].gather(1, following[:, None]) if n > 1 else log_probs[:0, :1]
        card["surprisal"] = [None, *numbers(trace.surprisal()[0, : n - 1])]
        card["rank"] = [None, *(log_probs[:-1] > said).sum(-1).tolist()] if n > 1 else [None]
        card["mean_surprisal"] = json_number(float(trace.surprisal()[0].nanmean())) if n > 1 else None
    return card


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


def predictor_facts(trace: PredictorTrace, prompt: PromptBody) -> dict[str, Any]:
    """`trace_facts` of a predictor that is no transformer."""
    n, ids = trace.ids.size(1), trace.ids[0]
    bits = trace.surprisal()[0]
    entropy, top, rank = [], [], [None]
    for first in range(0, n, POSITIONS_AT_ONCE):
        last = min(first + POSITIONS_AT_ONCE, n)
        log_probs = trace.logits(first, last).log_softmax(-1)
        entropy += entropies(log_probs)
        top += likeliest(log_probs, trace.tokenizer)
        following = ids[first + 1 : last + 1]
        said = log_probs[: len(following)].gather(1, following[:, None])
        rank += (log_probs[: len(following)] > said).sum(-1).tolist()
    text = repr(prompt.text) if prompt.ids is None else repr(list(prompt.ids))
    mean = bits[~bits.isnan()].mean() if n > 1 else None
    return {
        "id": prompt.key(),
        "n": n,
        "tokens": [token_object(trace.tokenizer, i) for i in ids.tolist()],
        "source": [],
        "edits": [],
        "code": (
            "from pellucid.look.predictor_trace import predictor_trace\n\n"
            f"trace = predictor_trace(model, {text}{', bos=True' if prompt.bos else ''})"
        ),
        "predicts": True,
        "entropy": entropy,
        "top": top,
        "surprisal": [None, *numbers(bits)],
        "rank": rank,
        "mean_surprisal": None if mean is None else json_number(float(mean)),
    }


def trace_code(prompt: PromptBody) -> str:
    """Python that makes this trace from `model`."""
    text = repr(prompt.text) if prompt.ids is None else repr(list(prompt.ids))
    read = options_code(prompt.options())
    if not prompt.edits:
        return f"trace = model.trace({text}{read})"
    return f"{change_code(prompt)}trace = model.trace({text}{read}, edits=change)"


def change_code(prompt: PromptBody) -> str:
    """Python that makes the edits of the prompt from `model`, "" where there are none."""
    if not prompt.edits:
        return ""
    return f"from pellucid import edits\n\nchange = {edits_code(prompt.edits, **prompt.options())}\n"
