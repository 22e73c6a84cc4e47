"""Fill in blanks with a masked model."""

from dataclasses import dataclass

import torch

from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import evaluation_mode
from pellucid.model.embed import NoReadout
from pellucid.model.float64 import in_float64
from pellucid.text.tokenizers.base import BLANK, MASK
from pellucid.text_model import Model


@dataclass(frozen=True)
class Filling:
    """One blank: the likeliest tokens as text, and their probabilities, in the same order."""

    texts: list[str]
    probabilities: list[float]


def fill(model: Model, text: str, *, top: int = 5) -> list[Filling]:
    """For each [MASK] in `text`, the `top` likeliest tokens given everything else   (Devlin et al. 2018).

    The network reads what the model's own tokenizer puts before and after a text too, such as [CLS] and [SEP].

    Raises GenerationError for a model that is not a masked model, a text without a blank or longer than the context,
    and a `top` below 1.
    """
    a, network, tokenizer = model.architecture, model.network, model.tokenizer
    if a.readout == "none":
        raise GenerationError(NoReadout.why)
    if tokenizer.mask is None or a.attention.mask != "bidirectional":
        raise GenerationError(
            f"this model cannot fill blanks: it has attention.mask = {a.attention.mask} and "
            f"{'no' if tokenizer.mask is None else 'a'} {MASK} token; train one with --objective masked"
        )
    if BLANK not in text:
        raise GenerationError(f"there is no blank in {text!r}: write {BLANK} in the place of the missing token")
    if top < 1:
        raise GenerationError(f"top = {top}: expected 1 or more")
    ids = tokenizer.masked_ids(tokenizer.blanked_ids(text))
    if len(ids) > a.n_ctx:
        raise GenerationError(f"the text has {len(ids)} tokens, more than the context of {a.n_ctx}: make it shorter")
    tokens = torch.tensor([ids], device=network.embed.token.weight.device)
    # a blank stands for text: not for special tokens, nor for rows of the readout beyond the tokenizer's ids
    n_known = min(a.n_vocab, tokenizer.n_vocab)
    special = sorted({i for i in tokenizer.special.values() if i < n_known})
    with evaluation_mode(network):
        logits = in_float64(network(tokens)[0, tokens[0] == tokenizer.mask, :n_known])
        logits = logits.index_fill(1, torch.tensor(special, device=logits.device), -torch.inf)
        likeliest = logits.softmax(-1).topk(min(top, n_known - len(special)))
    return [
        Filling([tokenizer.token_str(i) for i in row.tolist()], p.tolist())
        for row, p in zip(likeliest.indices, likeliest.values, strict=True)
    ]
