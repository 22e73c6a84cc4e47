"""Run every check on one model and report the results."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pellucid.model import Transformer
from pellucid.model.embed import NoReadout, ReadoutError
from pellucid.model.modes import in_evaluation_mode
from pellucid.model.weights import state_of
from pellucid.reference.tap import OFF
from pellucid.text.ids import IdTokenizer
from pellucid.text_model import Model, of_ids
from pellucid.verify.cases import single_text
from pellucid.verify.checks import MODEL_CHECKS, REFERENCE_CHECKS, check_forward
from pellucid.verify.comparison import Subject, compare, compare_tensors, run_engine, run_reference
from pellucid.verify.coverage import (
    PROMPTS,
    far_positions,
    long_row_length,
    prompt_length,
    prompt_tokens,
    uncovered_by_row,
)
from pellucid.verify.report import Check, Difference, LawResult, Report
from pellucid.verify.windows import max_keys

NOT_COMPARED = "nothing can be compared: engine = reference says why"


def verify(
    model: Model | Transformer,
    prompts: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Check the laws on a model, with float64 copies of its weights where numbers are compared.

    Engine and reference are compared tensor by tensor on the prompts, in logits, in loss and in the loss's gradient by
    every weight; then in a long row, at late positions of the context, in the masks up to its end, and in batches of
    different lengths. Causality, silent taps, the cache, the tokenizer and files follow. Prompts and the long row are
    shorter for larger models; the report lists what was not compared. A network without a tokenizer reads random
    tokens, or prompts that are ids in digits. Training mode is restored. `progress` is called with the name of each law
    before it is tried.

    Raises ValueError for an empty list of prompts.
    """
    model = of_ids(model) if isinstance(model, Transformer) else model
    network = model.network
    if network.architecture.readout == "none":
        raise ReadoutError(NoReadout.why)
    if prompts is not None and not prompts:
        raise ValueError("prompts = []: expected at least one text, or None for prompts of Pellucid's own")
    reads = None if prompts is None and isinstance(model.tokenizer, IdTokenizer) else model.tokenizer
    texts = PROMPTS if prompts is None else tuple(prompts)
    n_parameters = sum(p.numel() for p in state_of(network).values())
    tokens = prompt_tokens(network.architecture, reads, texts, prompt_length(n_parameters))
    with in_evaluation_mode(network):
        exact = copy.deepcopy(network).to("cpu", torch.float64)
        n_row = long_row_length(network.architecture, n_parameters)
        subject = Subject(model, exact, texts, tokens, n_row)
        tensors, problem = _compare_prompts(subject)
        checks = [Check("engine = reference", *check_forward(tensors, problem))]
        for name, check in (REFERENCE_CHECKS | MODEL_CHECKS).items():
            if progress:
                progress(name)
            applies = not (problem and name in REFERENCE_CHECKS)
            checks.append(Check(name, *(_run_check(check, subject) if applies else LawResult(None, NOT_COMPARED))))
        own = Difference("logits", None, "an unknown distance") if problem else _own_precision(subject)
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    return Report(
        tuple(checks), tensors, n_parameters, tuple(t.size(1) for t in tokens), dtype, own, uncovered_parts(subject)
    )


def uncovered_parts(subject: Subject) -> tuple[str, ...]:
    """One line for each part of the model of which nothing is compared."""
    a, n_row = subject.a, subject.n_row
    lines = uncovered_by_row(a, n_row)
    if n_row < a.n_ctx:
        n_far = int((far_positions(a.n_ctx, n_row, subject.longest.size(1)) >= n_row).sum())
        lines.append(f"{a.n_ctx - n_row - n_far:,} of the {a.n_ctx - n_row:,} positions from {n_row:,} on")
    if max_keys(a) < a.n_ctx:
        lines.append(f"masks of more than {max_keys(a):,} keys")
    return (*lines, "dropout, compiled graphs and steps, int8 and int4 products")


def _compare_prompts(subject: Subject) -> tuple[tuple[Difference, ...], LawResult | None]:
    """Compare the tensors, or say why they cannot be compared."""
    if wrong := first_miscopied_tensor(subject):
        return (), LawResult(False, f"{wrong} is not that of the network's own copy in float64", wrong)
    try:
        return compare_tensors(subject), None
    except ValueError as error:
        return (), LawResult(False, str(error))
    except Exception as error:
        return (), LawResult(False, _in_one_line(error))


def first_miscopied_tensor(subject: Subject) -> str:
    """The first parameter or table that is missing or different in the float64 copy, "" if none.

    A copy builds its tables anew and ties its readout again, so an error there would disappear in the copy.
    """
    for tensors in ("named_parameters", "named_buffers"):
        exact = dict(getattr(subject.exact, tensors)())
        for name, own in getattr(subject.network, tensors)():
            if name not in exact or not _equal_with_nan(own, exact[name].to(own.device, own.dtype)):
                return name
    return ""


def _equal_with_nan(one: Tensor, other: Tensor) -> bool:
    """Equality in which NaN equals itself."""
    return torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30))


def _run_check(check: Callable[[Subject], LawResult], subject: Subject) -> LawResult:
    """The result of a check; a model that cannot be computed breaks its law."""
    try:
        return check(subject)
    except Exception as error:
        return LawResult(False, _in_one_line(error))


def _in_one_line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _own_precision(subject: Subject) -> Difference:
    """The error of the logits in the model's own precision."""
    row = single_text(subject.a, subject.longest).rows[0]
    expected = run_reference(subject.a, subject.weights, row, OFF)
    return compare("logits", run_engine(subject.network, subject.longest).double(), expected)
