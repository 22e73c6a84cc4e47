"""Every law on one model, and what was found."""

import copy
from collections.abc import Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.weights import state_of
from pellucid.reference.tap import Tap as ReferenceTap
from pellucid.text.interface import SEPARATOR, Tokenizer
from pellucid.verify.comparison import Subject, compare, compare_tensors, define, run, weights_of
from pellucid.verify.laws import LAWS, engine_is_reference
from pellucid.verify.report import Difference, Report

#: multiplications by weights that a prompt may cost, which decides how many of its tokens are read
AFFORDABLE, MOST_TOKENS = 2e9, 48
PROMPTS = (
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "na\u00efve caf\u00e9, \u03a9\u03bc\u03ad\u03b3\u03b1, \u65e5\u672c\u8a9e and\ttabs; 3.14159 is not 22/7",
    f"def f(x):\n    return x**2  # {SEPARATOR} is only text here\n",
)


class Model(Protocol):
    """What is verified: a LanguageModel, or anything with these two."""

    @property
    def network(self) -> Transformer: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...


class Parts(NamedTuple):
    """A network and its tokenizer, None where it has none: its prompts are then tokens drawn at random."""

    network: Transformer
    tokenizer: Tokenizer | None = None


def verify(model: Model | Transformer, prompts: Sequence[str] | None = None) -> Report:
    """The laws on a model, with float64 copies of its weights where numbers are compared.

    Engine and reference are compared tensor by tensor, in logits and in loss, in the loss's gradient by every weight
    and under masks given with the input; then causality, a silent tap, the cache, attention rows, the tokenizer and
    files. Prompts are cut to what is affordable: fewer tokens for larger models. A network without a tokenizer is
    given tokens drawn at random. Training mode is put back.

    Raises ValueError for prompts without a tokenizer.
    """
    parts = Parts(model) if isinstance(model, Transformer) else model
    network, tokenizer = parts.network, parts.tokenizer
    if prompts is not None and (tokenizer is None or not prompts):
        raise ValueError("prompts need a tokenizer and at least one text: give both, or neither")
    texts = PROMPTS if prompts is None else tuple(prompts)
    n_parameters = sum(p.numel() for p in state_of(network).values())
    n = max(2, min(MOST_TOKENS, int(AFFORDABLE / max(n_parameters, 1))))
    tokens = read_prompts(network.architecture, tokenizer, texts, n)
    with evaluating(network):
        exact = copy.deepcopy(network).to("cpu", torch.float64)
        subject = Subject(network, exact, tokenizer, texts, tokens)
        tensors, problem = _compare(subject)
        checks = (engine_is_reference(tensors, problem), *(law(subject) for law in LAWS))
        own = Difference("logits", None, "an unknown distance") if problem else _own_precision(subject)
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    return Report(checks, tensors, n_parameters, tuple(t.size(1) for t in tokens), dtype, own)


def read_prompts(a: Architecture, tokenizer: Tokenizer | None, texts: Sequence[str], n: int) -> tuple[Tensor, ...]:
    """The first n tokens of each text [1, <= n], or random ones where there is no tokenizer."""
    n = min(n, a.n_ctx)
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randint(0, a.n_vocab, (1, n), generator=generator) for _ in range(2))
    # an empty text has no token to read: the separator stands for it
    ids = [tokenizer.encode(text)[:n] or [tokenizer.separator] for text in texts]
    # ids beyond the embedding are a broken law of their own, and must not stop the others
    return tuple(torch.tensor([i]) % a.n_vocab for i in ids)


@contextmanager
def evaluating(network: Transformer):
    """Without dropout; every module's mode is put back."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _compare(subject: Subject) -> tuple[tuple[Difference, ...], str]:
    """The tensors, or why they cannot be compared."""
    try:
        return compare_tensors(subject), ""
    except ValueError as error:
        return (), str(error)


def _own_precision(subject: Subject) -> Difference:
    """The logits of the model as it runs."""
    expected = define(subject.a, weights_of(subject.exact), subject.longest, ReferenceTap())
    return compare("logits", run(subject.network, subject.longest).double(), expected)
