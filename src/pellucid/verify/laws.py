"""Laws without the definition: the engine compared with itself, texts and files."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.model import Recorder, Transformer
from pellucid.model.weights import load_weights, save_weights
from pellucid.tensor_names import names
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.verify.cached import compare_cached
from pellucid.verify.cases import alone, source_of
from pellucid.verify.comparison import Subject, run_engine
from pellucid.verify.reference_laws import broken_by
from pellucid.verify.report import TOLERANCE, Result


def causality(s: Subject) -> Result:
    """Later tokens change no earlier logits of a text of one length: bitwise, and to rounding in a mixture of experts.

    An expert multiplies the rows of all tokens that choose it at once, so that a later token changes how many rows a
    product has, and with it the order of its sums; a mixture is therefore examined in float64.
    """
    n = s.longest.size(1)
    if s.a.attention.mask == "bidirectional":
        return Result(None, "attention.mask = bidirectional: every position reads all")
    if n < 2:
        return Result(None, "needs two tokens")
    places = sorted({1, n // 2, n - 1} - {0})
    # the encoder's input stays as it is
    source: dict[str, Any] = {} if s.a.encoder is None else {"source": source_of(s.a, s.longest)}
    network, allowed = (s.exact, TOLERANCE) if s.a.mlp.experts else (s.network, 0.0)
    before = run_engine(network, s.longest).nan_to_num(1e30)
    for position in places:
        changed = s.longest.clone()
        changed[:, position:] = (changed[:, position:] + 1) % s.a.n_vocab
        after = alone(s.a, changed, **source).run(network).nan_to_num(1e30)
        moved = ((before - after).abs()[0] > allowed).any(-1).nonzero().flatten().tolist()
        if moved and moved[0] < position:
            return Result(False, f"tokens from position {position} on change the logits of position {moved[0]}")
    how = "moves by more than rounding in float64" if s.a.mlp.experts else "moves, bitwise"
    return Result(True, f"no earlier logit {how}: tokens changed from {', '.join(map(str, places))} on")


def tap_is_silent(s: Subject) -> Result:
    """Recording every tensor changes no logit, bitwise."""
    recorded, plain = run_engine(s.network, s.longest, tap=Recorder(names(s.a))), run_engine(s.network, s.longest)
    same = _same_bits(recorded, plain)
    measured = "every tensor kept, logits the same bitwise" if same else f"logits move by {_gap(recorded, plain):.1e}"
    return Result(same, measured)


def cached_is_uncached(s: Subject) -> Result:
    """A cache gives the same tensors, however a text is split."""
    n, worst = s.longest.size(1), 0.0
    if s.a.attention.mask == "bidirectional":
        return Result(None, "attention.mask = bidirectional: nothing can be cached")
    # a cache does not go on where a longer text has other frequencies
    longer, n = n, min(n, s.a.frequency_border or n)
    splits = {"token by token": [1] * n, "in halves": [n // 2, n - n // 2], "all but the last": [n - 1, 1]}
    if longer > n + 1:
        splits["beyond the border of its frequencies"] = [n + 1] + [1] * (longer - n - 1)
    for how, sizes in splits.items():
        first, apart = compare_cached(s, s.longest[:, : sum(sizes)], sizes)
        if first is not None:
            return broken_by(first, f"read {how}")
        worst = max(worst, apart)
    return Result(True, f"{len(splits)} ways to split {longer} tokens, at most {worst:.1e}")


def text_comes_back(s: Subject) -> Result:
    """decode(encode(text)) = text, no special id comes from text, and every id has its row in the embedding."""
    if s.tokenizer is None:
        return Result(None, "no tokenizer was given")
    if s.tokenizer.n_vocab > s.a.n_vocab:
        return Result(False, f"{s.tokenizer.n_vocab} ids for an embedding of {s.a.n_vocab} rows")
    special, foreign = set(s.tokenizer.special.values()) - {s.tokenizer.unknown}, 0
    for prompt in s.prompts:
        ids = s.tokenizer.encode(prompt)
        if special & set(ids):
            return Result(False, f"{_short(prompt)} yields a special id")
        if s.tokenizer.unknown in ids:
            foreign += 1
        elif s.tokenizer.lossless and s.tokenizer.decode(ids) != prompt:
            return Result(False, f"{_short(prompt)} comes back as {_short(s.tokenizer.decode(ids))}")
    if not s.tokenizer.lossless:
        return Result(None, f"this tokenizer ({s.tokenizer.kind}) changes text before it cuts it")
    exact = len(s.prompts) - foreign
    note = f"; {foreign} with characters outside the vocabulary" if foreign else ""
    return Result(True if exact else None, f"{exact} of {len(s.prompts)} prompts came back exactly{note}")


def saved_is_loaded(s: Subject) -> Result:
    """A network loaded from files alone gives the same logits, bitwise, and its tokenizer the same ids."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_weights(s.network, path)
        size = path.stat().st_size
        try:
            again = _loaded(s, path)
        except ValueError as error:
            return Result(False, str(error).replace(str(path), path.name))
        loaded, own = run_engine(again, s.longest), run_engine(s.network, s.longest)
        if not _same_bits(loaded, own):
            return Result(False, f"the loaded network's logits differ by {_gap(loaded, own):.1e}")
        if s.tokenizer is not None and not isinstance(s.tokenizer, IdTokenizer):  # which has no file
            s.tokenizer.save(folder)
            tokenizer = load_tokenizer(folder, trust=True)  # it is running already
            if any(tokenizer.encode(text) != s.tokenizer.encode(text) for text in s.prompts):
                return Result(False, "the loaded tokenizer gives other ids")
    return Result(True, f"{size:,} bytes, logits the same bitwise")


def _loaded(s: Subject, path: Path) -> Transformer:
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


def _gap(actual: Tensor, expected: Tensor) -> float:
    """max |actual - expected| / max(1, max |expected|)."""
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def _short(text: str) -> str:
    """At most 24 characters of a text, as Python writes it."""
    return ascii(text if len(text) <= 24 else text[:24] + "...")


LAWS: dict[str, Callable[[Subject], Result]] = {
    "causality": causality,
    "a tap changes nothing": tap_is_silent,
    "cached = uncached": cached_is_uncached,
    "text -> tokens -> text": text_comes_back,
    "save -> load": saved_is_loaded,
}
