"""What every page shows of a trace: its tokens, and how well the model expected each of them."""

from typing import Any

from pellucid.lens.show.answers import json_number, numbers, token_object
from pellucid.lens.show.tokens import entropies, likeliest, token_facts
from pellucid.lens.trace import Trace
from pellucid.look.page_edits import edits_code, options_code
from pellucid.look.predictor_trace import POSITIONS_AT_ONCE, PredictorTrace
from pellucid.look.session import PromptBody, Session


def trace_facts(trace: Trace | PredictorTrace, prompt: PromptBody) -> dict[str, Any]:
    """The tokens of the trace's one row and what the model expected at each position (`token_facts`), with the code."""
    if isinstance(trace, PredictorTrace):
        return predictor_facts(trace, prompt)
    return {
        "id": prompt.key(),
        "edits": [edit.model_dump(exclude_unset=True, by_alias=True) for edit in prompt.edits],
        "code": trace_code(prompt),
        "change": change_code(prompt),
    } | token_facts(trace)


def facts_of_prompt(session: Session, asked: PromptBody) -> dict[str, Any]:
    """`trace_facts` of a prompt, and a `note` where only its last tokens are read."""
    prompt, note = session.fitted(asked)
    return trace_facts(session.trace(prompt), prompt) | ({"note": note} if note else {})


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
