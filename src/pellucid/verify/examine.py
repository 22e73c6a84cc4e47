"""Run every law on one model and report the results."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.embed import NoReadout, ReadoutError
from pellucid.model.modes import in_evaluation_mode
from pellucid.model.weights import state_of
from pellucid.reference.tap import OFF
from pellucid.text.tokenizers.base import SEPARATOR, Tokenizer
from pellucid.verify import laws, reference_laws
from pellucid.verify.cases import alone
from pellucid.verify.comparison import Subject, compare, compare_tensors, define, run_engine
from pellucid.verify.report import Check, Difference, Report, Result
from pellucid.verify.unread import what_is_not_read

#: how many multiplications by weights a prompt may cost, which limits its tokens
AFFORDABLE, MOST_TOKENS = 2e9, 48
#: the same for the long row (GPT-2 small's 124 million weights are read with 1,024 tokens), its logits, and its tokens
AFFORDABLE_ROW, MOST_LOGITS, MOST_IN_A_ROW = 1.3e11, 2**26, 1024
NOT_COMPARED = "nothing can be compared: engine = reference says why"
PROMPTS = (
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "na\u00efve caf\u00e9, \u03a9\u03bc\u03ad\u03b3\u03b1, \u65e5\u672c\u8a9e and\ttabs; 3.14159 is not 22/7",
    f"def f(x):\n    return x**2  # {SEPARATOR} is only text here\n",
)


class VerifiedModel(Protocol):
    """The model to verify: a LanguageModel, or anything with these two properties."""

    @property
    def network(self) -> Transformer: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...


class ModelParts(NamedTuple):
    """A network and its tokenizer; without a tokenizer (None) the prompts are random tokens."""

    network: Transformer
    tokenizer: Tokenizer | None = None


def verify(
    model: VerifiedModel | Transformer,
    prompts: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Check the laws on a model, with float64 copies of its weights where numbers are compared.

    Engine and reference are compared tensor by tensor on the prompts, in logits, in loss and in the loss's gradient by
    every weight; then in a long row, at late positions of the context, in the masks up to its end, and in batches of
    different lengths. Causality, silent taps, the cache, the tokenizer and files follow. Prompts and the long row are
    shorter for larger models; the report lists what was not compared. A network without a tokenizer reads random
    tokens. Training mode is restored. `progress` is called with the name of each law before it is tried.

    Raises ValueError for prompts without a tokenizer.
    """
    parts = ModelParts(model) if isinstance(model, Transformer) else model
    network, tokenizer = parts.network, parts.tokenizer
    if network.architecture.readout == "none":
        raise ReadoutError(NoReadout.why)
    if prompts is not None and (tokenizer is None or not prompts):
        raise ValueError("prompts need a tokenizer and at least one text: give both, or neither")
    texts = PROMPTS if prompts is None else tuple(prompts)
    n_parameters = sum(p.numel() for p in state_of(network).values())
    n = max(2, min(MOST_TOKENS, int(AFFORDABLE / max(n_parameters, 1))))
    tokens = read_prompts(network.architecture, tokenizer, texts, n)
    with in_evaluation_mode(network):
        exact = copy.deepcopy(network).to("cpu", torch.float64)
        n_row = longest_row(network.architecture, n_parameters)
        subject = Subject(network, exact, tokenizer, texts, tokens, n_row)
        tensors, problem = _compare(subject)
        checks = [Check("engine = reference", *reference_laws.engine_is_reference(tensors, problem))]
        for name, law in (reference_laws.LAWS | laws.LAWS).items():
            if progress:
                progress(name)
            applies = not (problem and name in reference_laws.LAWS)
            checks.append(Check(name, *(_applied(law, subject) if applies else Result(None, NOT_COMPARED))))
        own = Difference("logits", None, "an unknown distance") if problem else _own_precision(subject)
        unread = what_is_not_read(subject)
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    return Report(tuple(checks), tensors, n_parameters, tuple(t.size(1) for t in tokens), dtype, own, unread)


def longest_row(a: Architecture, n_parameters: int) -> int:
    """How many tokens are read in one row: 1,024, or fewer if the context, the time or the memory is less."""
    affordable = min(int(AFFORDABLE_ROW / max(n_parameters, 1)), MOST_LOGITS // a.n_vocab, MOST_IN_A_ROW)
    return min(a.n_ctx, max(2, affordable))


def read_prompts(a: Architecture, tokenizer: Tokenizer | None, texts: Sequence[str], n: int) -> tuple[Tensor, ...]:
    """The first n tokens of each text [1, <= n], or random ones without a tokenizer."""
    n = min(n, a.n_ctx)
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randint(0, a.n_vocab, (1, n), generator=generator) for _ in range(2))
    # an empty text has no token, so the separator is read instead
    ids = [tokenizer.encode(text)[:n] or [tokenizer.separator] for text in texts]
    # ids beyond the embedding break a law of their own and must not stop the others
    return tuple(torch.tensor([i]) % a.n_vocab for i in ids)


def _compare(subject: Subject) -> tuple[tuple[Difference, ...], Result | None]:
    """Compare the tensors, or say why they cannot be compared."""
    if wrong := copied_wrongly(subject):
        return (), Result(False, f"{wrong} is not that of the network's own copy in float64", wrong)
    try:
        return compare_tensors(subject), None
    except ValueError as error:
        return (), Result(False, str(error))
    except Exception as error:
        return (), Result(False, _said(error))


def copied_wrongly(subject: Subject) -> str:
    """The first parameter or table that is missing or different in the float64 copy, "" if none.

    A copy builds its tables anew and ties its readout again, so an error there would disappear in the copy.
    """
    for tensors in ("named_parameters", "named_buffers"):
        exact = dict(getattr(subject.exact, tensors)())
        for name, own in getattr(subject.network, tensors)():
            if name not in exact or not _same(own, exact[name].to(own.device, own.dtype)):
                return name
    return ""


def _same(one: Tensor, other: Tensor) -> bool:
    """Equality in which NaN equals itself."""
    return torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30))


def _applied(law: Callable[[Subject], Result], subject: Subject) -> Result:
    """The result of a law; a model that cannot be computed breaks it."""
    try:
        return law(subject)
    except Exception as error:
        return Result(False, _said(error))


def _said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _own_precision(subject: Subject) -> Difference:
    """The error of the logits in the model's own precision."""
    row = alone(subject.a, subject.longest).rows[0]
    expected = define(subject.a, subject.weights, row, OFF)
    return compare("logits", run_engine(subject.network, subject.longest).double(), expected)
