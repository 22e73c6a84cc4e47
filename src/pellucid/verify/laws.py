"""What must hold of every model, whatever its weights. Each law is a function of the model under examination."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Cache, Recorder, Transformer
from pellucid.model.mask import prefix_mask
from pellucid.model.weights import load_weights, save_weights
from pellucid.names import names
from pellucid.reference import layers
from pellucid.text.tokenizer import load_tokenizer
from pellucid.verify.comparison import Subject, compare_gradients, compare_masked, encode, run, segments
from pellucid.verify.report import TOLERANCE, Check, Difference

#: tokens of the prompt whose loss is differentiated, and how large a model may be: both gradients and the copies that
#: the definition makes are float64
GRADIENT_TOKENS, MOST_PARAMETERS = 6, 200_000_000
NOT_ITS_PARAMETERS = "the parameters are not those of the architecture"


def engine_is_reference(tensors: Sequence[Difference], problem: str) -> Check:
    """Engine = reference, tensor by tensor, logits and loss."""
    law = "engine = reference"
    if problem:
        return Check(law, False, problem)
    first = _first(tensors)
    if first is not None:
        n = sum(not t.small for t in tensors)
        return Check(law, False, f"{first.name}: {first}; {n} of {len(tensors)} tensors differ")
    largest = max(tensors, key=lambda t: t.size)
    return Check(law, True, f"{len(tensors)} tensors, at most {largest} ({largest.name})")


def gradients_are_the_reference_s(s: Subject) -> Check:
    """The loss's derivative by every weight, on a few tokens, in float64."""
    law, n_parameters = "gradient = reference", sum(p.numel() for p in s.exact.parameters())
    if n_parameters > MOST_PARAMETERS:
        return Check(law, None, f"not taken of more than {MOST_PARAMETERS:,} parameters")
    if s.longest.size(1) < 2:
        return Check(law, None, "needs two tokens")
    try:
        found = compare_gradients(s, GRADIENT_TOKENS)
    except ValueError:
        return Check(law, None, NOT_ITS_PARAMETERS)
    # the derivatives are computed from the end: all behind the last that differs are right
    last, worst = _first(found[::-1]), max(found, key=lambda d: d.size)
    if last is None:
        return Check(law, True, f"{len(found)} weights, at most {worst} ({worst.name})")
    n = sum(not d.small for d in found)
    return Check(law, False, f"{last.name}: {last}; {n} of {len(found)} weights' differ, this the last")


def masks_are_the_reference_s(s: Subject) -> Check:
    """Masks given with the input: a prefix that reads itself, and one drawn at random with a row that reads nothing."""
    law, n = "given masks = reference", s.longest.size(1)
    drawn = torch.rand(n, n, generator=torch.Generator().manual_seed(0)) < 0.6
    drawn[n // 2] = False
    given = {"a prefix": {"mask": prefix_mask(torch.tensor([(n + 1) // 2]), n)}, "a drawn mask": {"mask": drawn}}
    if s.a.encoder is not None:
        given["a drawn mask"]["source_mask"] = drawn[:, : s.a.encoder.n_ctx]
    worst = 0.0
    for how, masks in given.items():
        try:
            found = compare_masked(s, **masks)
        except ValueError:
            return Check(law, None, NOT_ITS_PARAMETERS)
        first = _first(found)
        if first is not None:
            return Check(law, False, f"{how}: {first.name}: {first}")
        worst = max(worst, *(d.size for d in found))
    return Check(law, True, f"{' and '.join(given)}, every tensor within {worst:.1e}")


def causality(s: Subject) -> Check:
    """Later tokens change no earlier logits, bitwise."""
    law = "causality"
    n = s.longest.size(1)
    if s.a.attention.mask == "bidirectional":
        return Check(law, None, "attention.mask = bidirectional: every position reads all")
    if n < 2:
        return Check(law, None, "needs two tokens")
    places = sorted({1, n // 2, n - 1} - {0})
    before = run(s.network, s.longest, source=s.longest)
    for place in places:
        changed = s.longest.clone()
        changed[:, place:] = (changed[:, place:] + 1) % s.a.n_vocab
        after = run(s.network, changed, source=s.longest)
        moved = (before.nan_to_num(1e30) != after.nan_to_num(1e30))[0].any(-1).nonzero().flatten().tolist()
        if moved and moved[0] < place:
            return Check(law, False, f"tokens from position {place} on change the logits of position {moved[0]}")
    return Check(law, True, f"no earlier logit moves, bitwise: tokens changed from {', '.join(map(str, places))} on")


def tap_is_silent(s: Subject) -> Check:
    """Keeping every tensor changes no logit, bitwise."""
    law = "a tap changes nothing"
    kept, plain = run(s.network, s.longest, tap=Recorder(names(s.a))), run(s.network, s.longest)
    same = _same_bits(kept, plain)
    measured = "every tensor kept, logits the same bitwise" if same else f"logits move by {_gap(kept, plain):.1e}"
    return Check(law, same, measured)


def cached_is_uncached(s: Subject) -> Check:
    """However a prompt is split, the cache gives the same logits."""
    law, n = "cached = uncached", s.longest.size(1)
    if s.a.attention.mask == "bidirectional":
        return Check(law, None, "attention.mask = bidirectional: nothing can be cached")
    whole, worst = run(s.exact, s.longest), 0.0
    splits = {"token by token": [1] * n, "in halves": [n // 2, n - n // 2], "all but the last": [n - 1, 1]}
    for how, sizes in splits.items():
        gap = _gap(run_cached(s.exact, s.longest, [size for size in sizes if size]), whole)
        if not gap <= TOLERANCE:
            return Check(law, False, f"read {how}, logits differ by {gap:.1e}")
        worst = max(worst, gap)
    return Check(law, True, f"{len(splits)} ways to split {n} tokens, at most {worst:.1e}")


def run_cached(network: Transformer, tokens: Tensor, sizes: Sequence[int]) -> Tensor:
    """Logits of all tokens, read in pieces of these sizes through a cache."""
    a, n = network.architecture, tokens.size(1)
    cache, start, pieces = Cache(a, capacity=n, dtype=torch.float64), 0, []
    with torch.no_grad():
        reading = {} if a.encoder is None else {"source": encode(network, tokens)}
        for size in sizes:
            if a.n_segments:
                reading["segments"] = segments(a, n)[:, start : start + size]
            pieces.append(network(tokens[:, start : start + size], cache=cache, **reading))
            start += size
    return torch.cat(pieces, 1)


def rows_sum_to_one(s: Subject) -> Check:
    """Each row of every pattern is a probability over what it may read, and nothing on what it may not."""
    law, recorder = "attention rows sum to 1", Recorder([n for n in names(s.a) if n.endswith(".pattern")])
    run(s.exact, s.longest, tap=recorder)
    n, worst = s.longest.size(1), 0.0
    for name, pattern in recorder.values.items():
        gap = (pattern.sum(-1) - 1).abs().max().item()
        if not gap <= 1e-12:
            return Check(law, False, f"{name}: a row sums to 1 + {gap:.1e}")
        worst = max(worst, gap)
        if ".attn." in name and not name.startswith("encoder."):
            allowed = layers.visible_keys(s.a, int(name.split(".")[1]), n, n, None)[0, 0]
            if pattern[0, :, torch.from_numpy(~allowed)].any():
                return Check(law, False, f"{name}: a row gives weight to what its mask hides")
    return Check(law, True, f"{len(recorder.values)} patterns, within {worst:.1e}; hidden keys get 0")


def text_comes_back(s: Subject) -> Check:
    """decode(encode(text)) = text, no special id comes from text, and every id has its row in the embedding."""
    law = "text -> tokens -> text"
    if s.tokenizer is None:
        return Check(law, None, "no tokenizer was given")
    if s.tokenizer.n_vocab > s.a.n_vocab:
        return Check(law, False, f"{s.tokenizer.n_vocab} ids for an embedding of {s.a.n_vocab} rows")
    special, foreign = set(s.tokenizer.special.values()) - {s.tokenizer.unknown}, 0
    for prompt in s.prompts:
        ids = s.tokenizer.encode(prompt)
        if special & set(ids):
            return Check(law, False, f"{_short(prompt)} yields a special id")
        if s.tokenizer.unknown in ids:
            foreign += 1
        elif s.tokenizer.lossless and s.tokenizer.decode(ids) != prompt:
            return Check(law, False, f"{_short(prompt)} comes back as {_short(s.tokenizer.decode(ids))}")
    if not s.tokenizer.lossless:
        return Check(law, None, f"this tokenizer ({s.tokenizer.kind}) changes text before it cuts it")
    exact = len(s.prompts) - foreign
    note = f"; {foreign} with characters outside the vocabulary" if foreign else ""
    return Check(law, True if exact else None, f"{exact} of {len(s.prompts)} prompts came back exactly{note}")


def saved_is_loaded(s: Subject) -> Check:
    """A network made from the files alone gives the same logits, bitwise, and its tokenizer the same ids."""
    law = "save -> load"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_weights(s.network, path)
        size = path.stat().st_size
        try:
            again = _loaded(s, path)
        except ValueError as error:
            return Check(law, False, str(error).replace(str(path), path.name))
        loaded, own = run(again, s.longest), run(s.network, s.longest)
        if not _same_bits(loaded, own):
            return Check(law, False, f"the loaded network's logits differ by {_gap(loaded, own):.1e}")
        if s.tokenizer is not None:
            s.tokenizer.save(folder)
            tokenizer = load_tokenizer(folder)
            if any(tokenizer.encode(text) != s.tokenizer.encode(text) for text in s.prompts):
                return Check(law, False, "the loaded tokenizer gives other ids")
    return Check(law, True, f"{size:,} bytes, logits the same bitwise")


def _loaded(s: Subject, path: Path) -> Transformer:
    """The network that the file and the description make, on the device and in the precision of ours."""
    p = next(s.network.parameters())
    # a new network starts from random numbers, and the caller's are not ours to draw
    with torch.random.fork_rng(devices=[]):
        made = Transformer(Architecture.from_dict(json.loads(json.dumps(s.a.to_dict()))))
    made = made.to(p.device, p.dtype).eval()
    load_weights(made, path)
    return made


LAWS: tuple[Callable[[Subject], Check], ...] = (
    gradients_are_the_reference_s,
    masks_are_the_reference_s,
    causality,
    tap_is_silent,
    cached_is_uncached,
    rows_sum_to_one,
    text_comes_back,
    saved_is_loaded,
)


def _first(found: Sequence[Difference]) -> Difference | None:
    """The first that is not the reference's."""
    return next((d for d in found if not d.small), None)


def _same_bits(given: Tensor, expected: Tensor) -> bool:
    """Equal entries; what is not a number equals itself."""
    return torch.equal(given.nan_to_num(1e30), expected.nan_to_num(1e30))


def _gap(given: Tensor, expected: Tensor) -> float:
    """max |given - expected| / max(1, max |expected|)."""
    return ((given - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def _short(text: str) -> str:
    """At most 24 characters of a text, as Python writes it."""
    return ascii(text if len(text) <= 24 else text[:24] + "...")
