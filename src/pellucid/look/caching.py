"""What a cache keeps while a text is written: on the page Read, with the numbers of a real pass with a cache."""

from typing import Any

import torch

from pellucid.lens.trace import Trace
from pellucid.model import Cache


def why_no_cache(trace: Trace) -> str:
    """Why nothing is kept between the steps of writing, or why it is not shown; "" where it is."""
    a = trace.architecture
    if a.attention.mask != "causal":
        return "Every position of this model may read later ones, so nothing that was computed stays as it is."
    if a.encoder is not None:
        return (
            "Shown for models without an encoder: the keys and values of a source are computed once for the whole text."
        )
    if trace.edits:
        return "Shown for runs without edits: remove them above."
    return "" if a.n_layers else "This model has no attention, so there are no keys and values to keep."


@torch.inference_mode()
def cached_step(trace: Trace, pos: int) -> dict[str, Any]:
    """The step of writing that reads the token at `pos`: what a cache holds then, and what is computed anew.

    blocks      for each block, the first position that the new query may read (a window forgets earlier ones)
    difference  the largest difference of the logits at `pos`, with a cache and in the pass over the whole text
    per_token   numbers that are kept for each token, in all blocks; `bytes` those of all tokens up to `pos`
    reason      why there is no cache; the other fields are absent then
    """
    if reason := why_no_cache(trace):
        return {"reason": reason}
    a, at = trace.architecture, trace.position(pos)
    if a.frequency_border and at <= a.frequency_border < trace.ids.size(1):
        return {
            "reason": f"This text has more than {a.frequency_border} tokens (positions.n_trained), so that longrope "
            "gives it other frequencies than its beginning, which a cache would hold: choose a later position."
        }
    ids, network = trace.ids[:, : at + 1], trace.module("")
    cache = Cache(a, capacity=at + 1, dtype=trace["blocks.0.attn.k"].dtype, device=ids.device)
    if at:
        network.hidden(ids[:, :at], cache=cache)
    difference = None
    if a.readout != "none":
        logits = network(ids[:, at:], cache=cache)[0, -1]
        difference = float((logits - trace.logits[0, at]).abs().max())
    windows = [a.attention.windows[layer % len(a.attention.windows)] for layer in range(a.n_layers)]
    return {
        "reason": "",
        "pos": at,
        "blocks": [max(0, at - window + 1) if window else 0 for window in windows],
        "difference": difference,
        "per_token": 2 * a.n_layers * a.n_kv_heads * a.d_head,
        "bytes": cache.store.nbytes,
        "code": (
            "import torch\nfrom pellucid.model import Cache\n\n"
            f"ids, cache = trace.ids[:, : {at + 1}], Cache(model.architecture, capacity={at + 1})\n"
            "with torch.no_grad():\n"
            + (f"    model.network.hidden(ids[:, :{at}], cache=cache)\n" if at else "")
            + f"    logits = model.network(ids[:, {at}:], cache=cache)\n"
            f"logits  # those of trace.logits[:, {at}:{at + 1}]\n"
        ),
    }
