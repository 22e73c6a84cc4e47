"""The laws that compare the engine with the definition. Each is a function of the model under examination."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.verify.cached import in_pieces
from pellucid.verify.cases import Case, alone, padded_batch
from pellucid.verify.comparison import Subject, compare_case, compare_gradients, defined, first_wrong
from pellucid.verify.long_row import by_definition, by_engine, first_difference, remembered
from pellucid.verify.report import Difference, Result
from pellucid.verify.windows import compare_masks

#: the number of tokens for the gradient, and the largest model that it is computed for, since everything is in float64
GRADIENT_TOKENS, MOST_PARAMETERS = 6, 200_000_000
#: how many positions of the context are tested, and the tokens of the longest row of a batch
POSITIONS, BATCH_TOKENS = 48, 16


def broken_by(difference: Difference, where: str = "") -> Result:
    """The result of a law that a tensor breaks."""
    return Result(False, f"{where and f'{where}: '}{difference.name}: {difference}", difference.name)


def engine_is_reference(tensors: Sequence[Difference], problem: Result | None) -> Result:
    """Engine = reference on the prompts, tensor by tensor, logits and loss."""
    if problem is not None:
        return problem
    first = first_wrong(tensors)
    if first is not None:
        n = sum(not t.small for t in tensors)
        return Result(False, f"{first.name}: {first}; {n} of {len(tensors)} tensors differ", first.name)
    largest = max(tensors, key=lambda t: t.size)
    return Result(True, f"{len(tensors)} tensors, at most {largest} ({largest.name})")


def gradients_are_the_reference_s(s: Subject) -> Result:
    """The gradient of the loss with respect to every weight, on a few tokens, in float64."""
    if sum(p.numel() for p in s.exact.parameters()) > MOST_PARAMETERS:
        return Result(None, f"not taken of more than {MOST_PARAMETERS:,} parameters")
    if s.longest.size(1) < 2:
        return Result(None, "needs two tokens")
    differences = compare_gradients(s, GRADIENT_TOKENS)
    # gradients are computed from the end: all after the last that differs are right
    last, worst = first_wrong(differences[::-1]), max(differences, key=lambda d: d.size)
    if last is None:
        return Result(True, f"{len(differences)} weights, at most {worst} ({worst.name})")
    n = sum(not d.small for d in differences)
    return Result(False, f"{last.name}: {last}; {n} of {len(differences)} weights' differ, this the last")


def _cases(s: Subject, cases: Sequence[Case]) -> Result:
    """Compare every tensor of these calls of one text each."""
    worst = 0.0
    for case in cases:
        differences = compare_case(s.exact, case, [defined(s.a, s.weights, case.rows[0])])
        if (first := first_wrong(differences)) is not None:
            return broken_by(first, case.name)
        worst = max(worst, *(d.size for d in differences))
    return Result(True, f"{', '.join(case.name for case in cases)}: every tensor within {worst:.1e}")


def a_long_row_is_the_reference_s(s: Subject) -> Result:
    """Many tokens, at once and through a cache: compare the stream after every block, and where it differs its
    tensors.
    """
    if s.n_row <= s.longest.size(1):
        return Result(None, f"the prompts are as long as can be read in a row: {s.longest.size(1)} tokens")
    tokens, n, worst = long_tokens(s), s.n_row, 0.0
    case = alone(s.a, tokens)
    expected = remembered(by_definition(s.a, s.weights, case))
    ways = {f"{n} tokens": by_engine(s.exact, case)}
    if s.a.attention.mask != "bidirectional":
        ways["through a cache"] = in_pieces(s.exact, tokens, [n // 2, n - n // 2 - 1, 1])
    for how, compute in ways.items():
        first, apart = first_difference(s.a, compute, expected)
        if first is not None:
            return broken_by(first, how)
        worst = max(worst, apart)
    return Result(True, f"{' and '.join(ways)}, the stream and the logits within {worst:.1e}")


def long_tokens(s: Subject) -> Tensor:
    """The tokens of the long row [1, n_row]."""
    return torch.randint(0, s.a.n_vocab, (1, s.n_row), generator=torch.Generator().manual_seed(2))


def later_positions_are_the_reference_s(s: Subject) -> Result:
    """Tokens at positions spread over the whole context, from its last position to its first."""
    # if a row covers all positions, a few are enough to see that explicit positions are used
    n = min(POSITIONS, s.n_row) if s.n_row < s.a.n_ctx else s.longest.size(1)
    positions = spread_positions(s.a.n_ctx, n)
    tokens = torch.randint(0, s.a.n_vocab, (1, len(positions)), generator=torch.Generator().manual_seed(3))
    return _cases(s, [alone(s.a, tokens, f"{len(positions)} positions up to {s.a.n_ctx - 1}", positions=positions)])


def spread_positions(n_ctx: int, n: int) -> Tensor:
    """At most n evenly spaced positions of a context, starting with the last."""
    return torch.linspace(n_ctx - 1, 0, min(n, n_ctx), dtype=torch.float64).round().long()


def masks_of_the_context(s: Subject) -> Result:
    """Windows and distances of every layer up to the end of the context, checked on its mask."""
    worst, layers = 0.0, set()
    for difference in compare_masks(s.exact, s.weights):
        if not difference.small:
            return broken_by(difference)
        worst = max(worst, difference.size)
        layers.add(difference.name)
    return Result(True, f"{len(layers)} layers' masks, within {worst:.1e}")


def a_batch_is_its_rows(s: Subject) -> Result:
    """Texts of different lengths in one call, padded on either side, compared with the definition of each text
    alone.
    """
    texts = batch_of(s)
    cases = [padded_batch(s.a, texts, side) for side in ("left", "right")]
    expected, worst = [defined(s.a, s.weights, row) for row in cases[0].rows], 0.0
    for case in cases:
        differences = compare_case(s.exact, case, expected)
        if (first := first_wrong(differences)) is not None:
            return broken_by(first, case.name)
        worst = max(worst, *(d.size for d in differences))
    lengths = ", ".join(str(text.size(1)) for text in texts)
    return Result(True, f"rows of {lengths} tokens, padded left and right, within {worst:.1e}")


def batch_of(s: Subject) -> list[Tensor]:
    """Texts of different lengths [1, n]."""
    n, generator = min(s.longest.size(1), BATCH_TOKENS), torch.Generator().manual_seed(4)
    return [torch.randint(0, s.a.n_vocab, (1, k), generator=generator) for k in ((n + 1) // 2, n, 1)]


LAWS = {
    "gradient = reference": gradients_are_the_reference_s,
    "a long row = reference": a_long_row_is_the_reference_s,
    "later positions = reference": later_positions_are_the_reference_s,
    "masks up to n_ctx = reference": masks_of_the_context,
    "a batch = its rows": a_batch_is_its_rows,
}
