"""The checks of `verify`. Each takes the model under examination and returns whether its law holds.

REFERENCE_CHECKS compare the engine with the reference; MODEL_CHECKS compare the engine with itself, and try texts and
files.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Recorder, Transformer
from pellucid.model.weights import load_weights, save_weights
from pellucid.tensor_names import names
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.verify.cached import cached_computation, compare_cached
from pellucid.verify.cases import NetworkCall, padded_batch, single_text, source_of
from pellucid.verify.comparison import (
    Subject,
    compare_case,
    compare_gradients,
    first_difference_beyond_rounding,
    reference_tensors,
    run_engine,
)
from pellucid.verify.coverage import MAX_BATCH_TOKENS, far_positions
from pellucid.verify.long_row import engine_computation, first_difference, keep_last_result, reference_computation
from pellucid.verify.report import TOLERANCE, Difference, LawResult
from pellucid.verify.windows import compare_masks

#: the number of tokens that gradients are computed on
GRADIENT_TOKENS = 6
#: the largest model that gradients are computed for: all of them are float64 arrays in memory
MAX_GRADIENT_PARAMETERS = 200_000_000


def check_forward(tensors: Sequence[Difference], problem: LawResult | None) -> LawResult:
    """Engine = reference on the prompts, tensor by tensor, logits and loss.

    problem   why the tensors could not be compared, None if they were
    """
    if problem is not None:
        return problem
    first = first_difference_beyond_rounding(tensors)
    if first is not None:
        n = sum(not t.small for t in tensors)
        return LawResult(False, f"{first.name}: {first}; {n} of {len(tensors)} tensors differ", first.name)
    largest = max(tensors, key=lambda t: t.size)
    return LawResult(True, f"{len(tensors)} tensors, at most {largest} ({largest.name})")


def check_gradients(s: Subject) -> LawResult:
    """The gradient of the loss with respect to every weight, on a few tokens, in float64."""
    if sum(p.numel() for p in s.exact.parameters()) > MAX_GRADIENT_PARAMETERS:
        return LawResult(None, f"not taken of more than {MAX_GRADIENT_PARAMETERS:,} parameters")
    if s.longest.size(1) < 2:
        return LawResult(None, "needs two tokens")
    differences = compare_gradients(s, GRADIENT_TOKENS)
    # backpropagation starts at the end: all gradients after the last one that differs are right
    last, worst = first_difference_beyond_rounding(differences[::-1]), max(differences, key=lambda d: d.size)
    if last is None:
        return LawResult(True, f"{len(differences)} weights, at most {worst} ({worst.name})")
    n = sum(not d.small for d in differences)
    return LawResult(False, f"{last.name}: {last}; {n} of {len(differences)} weights' differ, this the last")


def check_long_row(s: Subject) -> LawResult:
    """Many tokens, at once and through a cache: the residual stream after every block, and all tensors of a block in
    which it differs.
    """
    n, worst = s.n_row, 0.0
    if n <= s.longest.size(1):
        return LawResult(None, f"the prompts are as long as can be read in a row: {s.longest.size(1)} tokens")
    case = single_text(s.a, random_tokens(s.a, n, seed=2))
    expected = keep_last_result(reference_computation(s.a, s.weights, case))
    engine = {f"{n} tokens": engine_computation(s.exact, case)}
    if s.a.attention.mask != "bidirectional":
        engine["through a cache"] = cached_computation(s.exact, case.tokens, [n // 2, n - n // 2 - 1, 1])
    for name, computation in engine.items():
        first, distance = first_difference(s.a, computation, expected)
        if first is not None:
            return _failed_at(first, name)
        worst = max(worst, distance)
    return LawResult(True, f"{' and '.join(engine)}, the stream and the logits within {worst:.1e}")


def check_far_positions(s: Subject) -> LawResult:
    """Tokens at positions spread over the whole context, from its last position to its first."""
    positions = far_positions(s.a.n_ctx, s.n_row, s.longest.size(1))
    name = f"{len(positions)} positions up to {s.a.n_ctx - 1}"
    case = single_text(s.a, random_tokens(s.a, len(positions), seed=3), name, positions=positions)
    return _compare_calls(s, [case], f"{name}: every tensor")


def check_masks_up_to_context(s: Subject) -> LawResult:
    """Every layer's mask at the edges of its window and at the end of the context, without running attention."""
    worst, layers = 0.0, set()
    for difference in compare_masks(s.exact, s.weights):
        if not difference.small:
            return _failed_at(difference)
        worst = max(worst, difference.size)
        layers.add(difference.name)
    return LawResult(True, f"{len(layers)} layers' masks, within {worst:.1e}")


def check_batch(s: Subject) -> LawResult:
    """Texts of different lengths in one call, padded on either side: each equals the reference of the text alone."""
    n = min(s.longest.size(1), MAX_BATCH_TOKENS)
    lengths = ((n + 1) // 2, n, 1)
    texts = random_tokens(s.a, sum(lengths), seed=4).split(lengths, 1)
    cases = [padded_batch(s.a, texts, side) for side in ("left", "right")]
    return _compare_calls(s, cases, f"rows of {', '.join(map(str, lengths))} tokens, padded left and right,")


def _compare_calls(s: Subject, cases: Sequence[NetworkCall], description: str) -> LawResult:
    """Compare every tensor of calls that read the same texts."""
    expected, worst = [reference_tensors(s.a, s.weights, row) for row in cases[0].rows], 0.0
    for case in cases:
        differences = compare_case(s.exact, case, expected)
        if (first := first_difference_beyond_rounding(differences)) is not None:
            return _failed_at(first, case.name)
        worst = max(worst, *(d.size for d in differences))
    return LawResult(True, f"{description} within {worst:.1e}")


def _failed_at(difference: Difference, where: str = "") -> LawResult:
    """The result of a law that a tensor breaks."""
    return LawResult(False, f"{where and f'{where}: '}{difference.name}: {difference}", difference.name)


def random_tokens(a: Architecture, n: int, seed: int) -> Tensor:
    """Random tokens [1, n]."""
    return torch.randint(0, a.n_vocab, (1, n), generator=torch.Generator().manual_seed(seed))


def check_causality(s: Subject) -> LawResult:
    """Later tokens change no earlier logits of a text of one length: bitwise, and to rounding in a mixture of experts.

    An expert multiplies the rows of all tokens that choose it at once, so that a later token changes how many rows a
    product has, and with it the order of its sums; a mixture is therefore examined in float64.
    """
    n = s.longest.size(1)
    if s.a.attention.mask == "bidirectional":
        return LawResult(None, "attention.mask = bidirectional: every position reads all")
    if n < 2:
        return LawResult(None, "needs two tokens")
    positions = sorted({1, n // 2, n - 1} - {0})
    # the encoder's input stays as it is
    source: dict[str, Any] = {} if s.a.encoder is None else {"source": source_of(s.a, s.longest)}
    network, allowed = (s.exact, TOLERANCE) if s.a.mlp.experts else (s.network, 0.0)
    before = run_engine(network, s.longest).nan_to_num(1e30)
    for position in positions:
        changed = s.longest.clone()
        changed[:, position:] = (changed[:, position:] + 1) % s.a.n_vocab
        after = single_text(s.a, changed, **source).run(network).nan_to_num(1e30)
        moved = ((before - after).abs()[0] > allowed).any(-1).nonzero().flatten().tolist()
        if moved and moved[0] < position:
            return LawResult(False, f"tokens from position {position} on change the logits of position {moved[0]}")
    how = "moves by more than rounding in float64" if s.a.mlp.experts else "moves, bitwise"
    return LawResult(True, f"no earlier logit {how}: tokens changed from {', '.join(map(str, positions))} on")


def check_silent_taps(s: Subject) -> LawResult:
    """Recording every tensor changes no logit, bitwise."""
    recorded, plain = run_engine(s.network, s.longest, tap=Recorder(names(s.a))), run_engine(s.network, s.longest)
    same = _same_bits(recorded, plain)
    measured = (
        "every tensor kept, logits the same bitwise" if same else f"logits move by {_relative_gap(recorded, plain):.1e}"
    )
    return LawResult(same, measured)


def check_cached_reading(s: Subject) -> LawResult:
    """A cache gives the same tensors, however a text is split."""
    n, worst = s.longest.size(1), 0.0
    if s.a.attention.mask == "bidirectional":
        return LawResult(None, "attention.mask = bidirectional: nothing can be cached")
    # a cache does not go on where a longer text has other frequencies
    longer, n = n, min(n, s.a.frequency_border or n)
    splits = {"token by token": [1] * n, "in halves": [n // 2, n - n // 2], "all but the last": [n - 1, 1]}
    if longer > n + 1:
        splits["beyond the border of its frequencies"] = [n + 1] + [1] * (longer - n - 1)
    for how, sizes in splits.items():
        first, distance = compare_cached(s, s.longest[:, : sum(sizes)], sizes)
        if first is not None:
            return _failed_at(first, f"read {how}")
        worst = max(worst, distance)
    return LawResult(True, f"{len(splits)} ways to split {longer} tokens, at most {worst:.1e}")


def check_text_round_trip(s: Subject) -> LawResult:
    """decode(encode(text)) = text, no special id comes from text, and every id has its row in the embedding."""
    if s.tokenizer is None:
        return LawResult(None, "there is no tokenizer")
    if s.tokenizer.n_vocab > s.a.n_vocab:
        return LawResult(False, f"{s.tokenizer.n_vocab} ids for an embedding of {s.a.n_vocab} rows")
    special, foreign = set(s.tokenizer.special.values()) - {s.tokenizer.unknown}, 0
    for prompt in s.prompts:
        ids = s.tokenizer.encode(prompt)
        if special & set(ids):
            return LawResult(False, f"{_shortened_text(prompt)} yields a special id")
        if s.tokenizer.unknown in ids:
            foreign += 1
        elif s.tokenizer.lossless and s.tokenizer.decode(ids) != prompt:
            return LawResult(
                False, f"{_shortened_text(prompt)} comes back as {_shortened_text(s.tokenizer.decode(ids))}"
            )
    if not s.tokenizer.lossless:
        return LawResult(None, f"this tokenizer ({s.tokenizer.kind}) changes text before it cuts it")
    exact = len(s.prompts) - foreign
    note = f"; {foreign} with characters outside the vocabulary" if foreign else ""
    return LawResult(True if exact else None, f"{exact} of {len(s.prompts)} prompts came back exactly{note}")


def check_save_and_load(s: Subject) -> LawResult:
    """A network loaded from files alone gives the same logits, bitwise, and its tokenizer the same ids."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_weights(s.network, path)
        size = path.stat().st_size
        try:
            again = _reload(s, path)
        except ValueError as error:
            return LawResult(False, str(error).replace(str(path), path.name))
        loaded, own = run_engine(again, s.longest), run_engine(s.network, s.longest)
        if not _same_bits(loaded, own):
            return LawResult(False, f"the loaded network's logits differ by {_relative_gap(loaded, own):.1e}")
        if s.tokenizer is not None:
            s.tokenizer.save(folder)
            tokenizer = load_tokenizer(folder, trust=True)  # it is running already
            if any(tokenizer.encode(text) != s.tokenizer.encode(text) for text in s.prompts):
                return LawResult(False, "the loaded tokenizer gives other ids")
    return LawResult(True, f"{size:,} bytes, logits the same bitwise")


def _reload(s: Subject, path: Path) -> Transformer:
    """The network from the saved file and description, on the same device and in the same precision."""
    p = next(s.network.parameters())
    # a new network draws random numbers, which must not come from the caller's generator
    with torch.random.fork_rng(devices=[]):
        loaded = Transformer(Architecture.from_dict(json.loads(json.dumps(s.a.to_dict()))))
    loaded = loaded.to(p.device, p.dtype).eval()
    load_weights(loaded, path)
    return loaded


def _same_bits(actual: Tensor, expected: Tensor) -> bool:
    """Equality in which NaN equals itself."""
    return torch.equal(actual.nan_to_num(1e30), expected.nan_to_num(1e30))


def _relative_gap(actual: Tensor, expected: Tensor) -> float:
    """max |actual - expected| / max(1, max |expected|)."""
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def _shortened_text(text: str) -> str:
    """At most 24 characters of a text, as Python writes it."""
    return ascii(text if len(text) <= 24 else text[:24] + "...")


REFERENCE_CHECKS: dict[str, Callable[[Subject], LawResult]] = {
    "gradient = reference": check_gradients,
    "a long row = reference": check_long_row,
    "later positions = reference": check_far_positions,
    "masks up to n_ctx = reference": check_masks_up_to_context,
    "a batch = its rows": check_batch,
}
MODEL_CHECKS: dict[str, Callable[[Subject], LawResult]] = {
    "causality": check_causality,
    "a tap changes nothing": check_silent_taps,
    "cached = uncached": check_cached_reading,
    "text -> tokens -> text": check_text_round_trip,
    "save -> load": check_save_and_load,
}
