"""What a feature is: the passages that it is active in, the tokens that it raises and lowers, and what excites it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.features.dictionary import Dictionary, DictionaryError, SavedDictionary, Site
from pellucid.features.splice import site_activations
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model.norm import LayerNorm, ScaledNorm
from pellucid.sources.places import PartText, TextPlace
from pellucid.text_model import Model
from pellucid.training.objectives import MicroBatch

#: training tokens that are read for the passages of a feature
READ_TOKENS = 65_536
#: the share of a feature's active positions that are below each passage: the highest, and others down to the median
QUANTILES = (1.0, 1.0, 1.0, 0.9, 0.9, 0.75, 0.75, 0.5)
#: tokens that are shown before and behind the active one
TOKENS_AROUND = 12
#: rows of a batch, about so many tokens
BATCH_TOKENS = 4096


class TokenEffect(NamedTuple):
    """A token, and how much a feature changes its logit, or the token the feature."""

    token: str
    effect: float


@dataclass(frozen=True)
class FeaturePassage:
    """A place of the training text where a feature is active.

    before, token, behind   the text around the active token
    quantile                the share of the active positions that were read whose activation is at most this
    """

    before: str
    token: str
    behind: str
    activation: float
    quantile: float
    place: TextPlace


@dataclass(frozen=True, repr=False)
class FeatureCard(PrintsAsTable):
    """One feature of a dictionary.

    frequency   the share of positions where it is active, of `n_tokens` that were read
    passages    where it is most active, and where it is at the quantiles of QUANTILES
    raised, lowered   tokens whose logits it changes most by what it adds to the stream, for an activation of 1, the
                      final norm's scale apart, less the mean over all tokens; empty where what is added is normalised
                      again (block = post), or the readout is not linear (bert)
    excited_by  tokens whose embedding alone, read as the dictionary reads, gives the largest pre-activations
    """

    site: Site
    feature: int
    frequency: float
    n_tokens: int
    passages: tuple[FeaturePassage, ...]
    raised: tuple[TokenEffect, ...]
    lowered: tuple[TokenEffect, ...]
    excited_by: tuple[TokenEffect, ...]

    def printed(self) -> PrintedTable:
        """The passages, a row each; the heading has the tokens."""

        def listed(effects: Sequence[TokenEffect]) -> str:
            return ", ".join(repr(e.token) for e in effects) or "-"

        heading = (
            f"feature {self.site.layer}.{self.feature} of {self.site.writes}, active at {self.frequency:.2%} of "
            f"{self.n_tokens:,} tokens, raises {listed(self.raised)}, lowers {listed(self.lowered)}, "
            f"excited by {listed(self.excited_by)}"
        )
        rows = [
            (f"...{p.before[-40:]}[{p.token}]{p.behind[:30]}...", p.activation, f"{p.quantile:.0%}", str(p.place))
            for p in self.passages
        ]
        return PrintedTable(heading, ("passage", "activation", "quantile", "place"), rows)


@torch.no_grad()
def feature_card(
    model: Model,
    saved: SavedDictionary,
    feature: int,
    text: PartText,
    *,
    n_tokens: int = READ_TOKENS,
    k: int = 8,
    poll: Callable[[int, int], object] = lambda *_: None,
) -> FeatureCard:
    """Read training text, evenly spread, and describe one feature by it.

    Raises DictionaryError for a feature that the dictionary does not have.
    """
    dictionary, site = saved.dictionary, saved.site
    if not 0 <= feature < dictionary.n_features:
        raise DictionaryError(f"there is no feature {feature}: there are {dictionary.n_features:,}, from 0 on")
    starts, active = activations_over(model, dictionary, site, feature, text, n_tokens, poll)
    raised, lowered = changed_logits(model, dictionary, feature, k)
    return FeatureCard(
        site=site,
        feature=feature,
        frequency=float((active > 0).mean()) if active.size else 0.0,
        n_tokens=active.size,
        passages=tuple(feature_passages(model, text, starts, active)),
        raised=raised,
        lowered=lowered,
        excited_by=exciting_tokens(model, dictionary, site, feature, k),
    )


def activations_over(
    model: Model,
    dictionary: Dictionary,
    site: Site,
    feature: int,
    text: PartText,
    n_tokens: int,
    poll: Callable[[int, int], object],
) -> tuple[np.ndarray, np.ndarray]:
    """The positions [window] of windows of the text, and the activation of a feature at each token [window, pos]."""
    n_ctx, device = model.architecture.n_ctx, next(model.network.parameters()).device
    width, length = min(n_ctx, len(text.part)), len(text.part)
    n_windows = max(1, min(n_tokens, length) // width)
    starts = np.linspace(0, length - width, n_windows).astype(np.int64)
    rows, per_batch = [], max(1, BATCH_TOKENS // width)
    one = Dictionary(dictionary.W_enc.size(0), 1, 1).to(dictionary.W_enc)
    one.W_enc.data, one.b_enc.data = dictionary.W_enc[:, [feature]], dictionary.b_enc[[feature]]
    one.threshold = dictionary.threshold[[feature]]
    for first in range(0, n_windows, per_batch):
        poll(first, n_windows)
        ids = np.stack([text.part.read(int(s), int(s) + width) for s in starts[first : first + per_batch]])
        tokens = torch.from_numpy(ids.astype(np.int64)).to(device)
        ((x, _),) = site_activations(model.network, MicroBatch(tokens, tokens), [site])
        rows.append(one.encode(x).view(len(ids), width).cpu().numpy())
    return starts, np.concatenate(rows)


def feature_passages(model: Model, text: PartText, starts: np.ndarray, active: np.ndarray) -> list[FeaturePassage]:
    """One passage for each of QUANTILES, from windows of their own as far as there are enough."""
    positive = np.sort(active[active > 0])
    if not len(positive):
        return []
    of_window = active.max(1)
    order = np.argsort(-of_window, kind="stable")
    order = order[of_window[order] > 0]
    passages, taken = [], set[int]()
    for quantile in QUANTILES:
        wanted = np.quantile(positive, quantile)
        left = [int(w) for w in order if int(w) not in taken]
        if not left:
            break
        window = min(left, key=lambda w: abs(float(of_window[w]) - wanted))
        taken.add(window)
        at = int(active[window].argmax())
        passages.append(passage_at(model, text, int(starts[window]) + at, float(active[window, at]), positive))
    return passages


def passage_at(model: Model, text: PartText, position: int, activation: float, positive: np.ndarray) -> FeaturePassage:
    """The text around a token, and its place in the user's file."""
    before, behind = text.around(position, position + 1, TOKENS_AROUND)
    token = text.bytes_between(position, position + 1).decode("utf-8", "replace")
    first = text.characters_before(position)
    (place,) = text.places(position, [(first, first + len(token))], [token])
    share = float(np.searchsorted(positive, activation, side="right")) / len(positive)
    return FeaturePassage(
        before.decode("utf-8", "replace"), token, behind.decode("utf-8", "replace"), activation, share, place
    )


def changed_logits(
    model: Model, dictionary: Dictionary, feature: int, k: int
) -> tuple[tuple[TokenEffect, ...], tuple[TokenEffect, ...]]:
    """The tokens whose logits a feature raises and lowers most: W_U g (w - mean(w)), the mean where the norm takes it
    away, before any cap, with w the feature's row of W_dec and g the final norm's gain.
    """
    network, a = model.network, model.architecture
    if a.block == "post" or a.readout == "bert":
        return (), ()
    written = dictionary.W_dec[feature]
    if isinstance(network.final_norm, LayerNorm):
        written = written - written.mean()
    gain = network.final_norm.multiplier if isinstance(network.final_norm, ScaledNorm) else 1.0
    effect = (a.unembed_scale * network.unembed.matrix @ (gain * written))[: model.tokenizer.n_vocab]
    effect = effect - effect.mean()
    return largest_tokens(model, effect, k), largest_tokens(model, effect, k, sign=-1)


def exciting_tokens(model: Model, dictionary: Dictionary, site: Site, feature: int, k: int) -> tuple[TokenEffect, ...]:
    """The tokens whose embedding alone gives the largest pre-activations, read through the norm of the site."""
    table = model.architecture.embed_factor * model.network.embed.token.weight[: model.tokenizer.n_vocab]
    if table.size(1) != dictionary.W_enc.size(0):
        return ()
    block, name = model.network.blocks[site.layer], site.reads.rpartition(".")[2]
    read = getattr(block, name)(table) if name.startswith("norm") else table
    h = read @ dictionary.W_enc[:, feature] + dictionary.b_enc[feature]
    return largest_tokens(model, h, k)


def largest_tokens(model: Model, values: Tensor, k: int, sign: int = 1) -> tuple[TokenEffect, ...]:
    """The k tokens with the largest values, or the smallest."""
    order = (sign * values).topk(min(k, len(values))).indices.tolist()
    return tuple(TokenEffect(model.tokenizer.decode([i]), float(values[i])) for i in order if math.isfinite(values[i]))


class ActiveFeature(NamedTuple):
    """A feature at a position of a text."""

    position: int
    token: str
    layer: int
    feature: int
    activation: float


@dataclass(frozen=True, repr=False)
class ActiveFeatures(PrintsAsTable):
    """The features that are active in a text, the highest first; `baseline` is the text they were compared with."""

    text: str
    rows: tuple[ActiveFeature, ...]
    baseline: str = ""

    def printed(self) -> PrintedTable:
        """A row for each."""
        than = f" more than in {self.baseline!r}" if self.baseline else ""
        rows = [(repr(r.token), r.position, f"{r.layer}.{r.feature}", r.activation) for r in self.rows]
        heading = f"features that are active in {self.text!r}{than}"
        return PrintedTable(heading, ("token", "position", "feature", "activation"), rows, "rows has k of each layer")
