"""How much of a model is compared, by `verify` and after a conversion, and what is left out.

Prompts and long rows are shorter for larger models, so that a comparison takes seconds to minutes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.text.tokenizers.base import SEPARATOR, Tokenizer

PROMPTS = (
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "na\u00efve caf\u00e9, \u03a9\u03bc\u03ad\u03b3\u03b1, \u65e5\u672c\u8a9e and\ttabs; 3.14159 is not 22/7",
    f"def f(x):\n    return x**2  # {SEPARATOR} is only text here\n",
)
#: how many multiplications by weights a prompt may cost
PROMPT_COST = 2e9
MAX_PROMPT_TOKENS = 48
#: the same for the long row: GPT-2 small, of 124 million weights, reads 1,024 tokens
LONG_ROW_COST = 1.3e11
MAX_ROW_TOKENS = 1024
#: the largest array of logits of the long row
MAX_ROW_LOGITS = 2**26
#: how many positions of a context are tried that is longer than the long row
MAX_FAR_POSITIONS = 48
#: the tokens of the longest text of a padded batch
MAX_BATCH_TOKENS = 16


def prompt_length(n_parameters: int) -> int:
    """How many tokens of each prompt are read, at most."""
    return max(2, min(MAX_PROMPT_TOKENS, int(PROMPT_COST / max(n_parameters, 1))))


def long_row_length(a: Architecture, n_parameters: int) -> int:
    """How many tokens are read in one row: 1,024, or fewer if the context, the time or the memory is less."""
    affordable = min(int(LONG_ROW_COST / max(n_parameters, 1)), MAX_ROW_LOGITS // a.n_vocab, MAX_ROW_TOKENS)
    return min(a.n_ctx, max(2, affordable))


def prompt_tokens(a: Architecture, tokenizer: Tokenizer | None, texts: Sequence[str], n: int) -> tuple[Tensor, ...]:
    """The first n tokens of each text [1, <= n], or random ones without a tokenizer."""
    n = min(n, a.n_ctx)
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randint(0, a.n_vocab, (1, n), generator=generator) for _ in range(2))
    # an empty text has no token, so the separator is read instead
    ids = [tokenizer.encode(text)[:n] or [tokenizer.separator] for text in texts]
    # ids beyond the embedding break a law of their own and must not stop the others
    return tuple(torch.tensor([i]) % a.n_vocab for i in ids)


def far_positions(n_ctx: int, n_row: int, n_prompt: int) -> Tensor:
    """Evenly spaced positions of a context, from the last to the first.

    If the long row of n_row tokens covers all positions, as many as the longest prompt has tokens are enough to see
    that explicit positions are used.
    """
    n = min(MAX_FAR_POSITIONS, n_row) if n_row < n_ctx else min(n_prompt, n_ctx)
    return torch.linspace(n_ctx - 1, 0, n, dtype=torch.float64).round().long()


def uncovered_by_row(a: Architecture, n_row: int) -> list[str]:
    """What a row of n_row tokens does not reach: longer rows, and the edges of wider windows."""
    lines = [f"more than {n_row:,} tokens in a row"] if n_row < a.n_ctx else []
    if wide := sorted({w for layer in range(a.n_layers) if n_row <= (w := a.window(layer)) < a.n_ctx}):
        lines.append(f"attention across windows of {', '.join(f'{w:,}' for w in wide)} tokens, but for our masks")
    return lines
