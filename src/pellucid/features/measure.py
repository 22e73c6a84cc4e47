"""What dictionaries explain: figures that the field judges them by, beside controls."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pellucid.features.dictionary import Dictionary, Site
from pellucid.features.splice import Spliced, site_activations
from pellucid.model import Transformer
from pellucid.model.float64 import in_float64
from pellucid.training.objectives import MicroBatch, logits_of


@dataclass(frozen=True)
class SiteFigures:
    """Of one dictionary, on held-out text.

    active          features that are active at a position, on average (L0)
    unexplained     share of the variance of what it is to write
    by_linear_map   the same share for the best linear map of what it reads, a control
    silent          share of features that are never active
    frequency       of each feature, the share of positions where it is active
    """

    layer: int
    writes: str
    active: float
    unexplained: float
    by_linear_map: float
    silent: float
    frequency: list[float]


@dataclass(frozen=True)
class Measured:
    """Losses in nats per token of the model itself, with all dictionaries in the place of what they explain, with
    zeros there, and with the mean of the training text there; and the divergence KL(model | with dictionaries).
    """

    n_tokens: int
    own_loss: float
    loss: float
    zero_loss: float
    mean_loss: float
    kl: float
    sites: list[SiteFigures]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@torch.no_grad()
def calibrated_thresholds(
    network: Transformer,
    sites: Sequence[Site],
    dictionaries: Sequence[Dictionary],
    batches: Sequence[MicroBatch],
    k: int,
    poll: Callable[..., object] = lambda *_: None,
) -> None:
    """Set one threshold for each dictionary, above which k activations a position are on average on these batches."""
    largest: list[list[Tensor]] = [[] for _ in sites]
    n_rows = 0
    for number, batch in enumerate(batches):
        poll(number, len(batches))
        n_rows += batch.inputs.numel()
        pairs = site_activations(network, batch, sites)
        for kept, dictionary, (x, _) in zip(largest, dictionaries, pairs, strict=True):
            h = dictionary.pre_activations(x)
            kept.append(h.flatten().topk(min(h.numel(), 2 * k * len(x))).values)
    for kept, dictionary in zip(largest, dictionaries, strict=True):
        every = torch.cat(kept).sort(descending=True).values
        dictionary.threshold.fill_(every[min(k * n_rows, len(every) - 1)].clamp(min=0))


class LinearMap:
    """The best affine map from x to y by least squares, from sums over batches."""

    def __init__(self, d_in: int, d_out: int):
        self.xx, self.xy = (
            torch.zeros(d_in + 1, d_in + 1, dtype=torch.float64),
            torch.zeros(d_in + 1, d_out, dtype=torch.float64),
        )

    def see(self, x: Tensor, y: Tensor) -> None:
        """Add rows."""
        x = F.pad(x.cpu().double(), (0, 1), value=1.0)
        self.xx += x.T @ x
        self.xy += x.T @ y.cpu().double()

    @property
    def mean(self) -> Tensor:
        """The mean of y."""
        return self.xy[-1] / self.xx[-1, -1]

    def solved(self) -> Tensor:
        """The map, [d_in + 1, d_out]; the last row is the constant."""
        ridge = 1e-9 * self.xx.diagonal().mean() * torch.eye(len(self.xx), dtype=torch.float64)
        return torch.linalg.solve(self.xx + ridge, self.xy)


@torch.no_grad()
def measure(
    network: Transformer,
    sites: Sequence[Site],
    dictionaries: Sequence[Dictionary],
    held_out: Iterable[MicroBatch],
    training: Sequence[MicroBatch],
    most_tokens: int,
    poll: Callable[..., object] = lambda *_: None,
) -> Measured:
    """The figures of dictionaries on the first held-out tokens; the controls are fitted on training batches."""
    fitted = [LinearMap(d.W_enc.size(0), d.W_dec.size(1)) for d in dictionaries]
    for batch in training:
        for linear, (x, y) in zip(fitted, site_activations(network, batch, sites), strict=True):
            linear.see(x, y)
    maps = [linear.solved() for linear in fitted]
    means = [linear.mean.to(d.W_dec) for linear, d in zip(fitted, dictionaries, strict=True)]
    replacements: dict[str, Sequence[Any]] = {
        "loss": dictionaries,
        "zero_loss": [torch.zeros_like] * len(sites),
        "mean_loss": [lambda value, mean=mean: mean.expand_as(value) for mean in means],
    }
    networks = {name: Spliced(network, sites, functions) for name, functions in replacements.items()}
    sums = dict.fromkeys(("own_loss", *networks, "kl"), 0.0)
    totals = [SiteTotals(dictionary.n_features) for dictionary in dictionaries]
    n_tokens = 0
    for batch in held_out:
        if n_tokens >= most_tokens:
            break
        poll(n_tokens, most_tokens)
        counts = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.counts is None else batch.counts
        own = F.log_softmax(logits_of(network, batch), -1)[counts]
        targets = batch.targets[counts][:, None]
        sums["own_loss"] -= own.gather(1, targets).sum().item()
        for name, spliced in networks.items():
            other = F.log_softmax(logits_of(spliced, batch), -1)[counts]  # type: ignore[arg-type]
            sums[name] -= other.gather(1, targets).sum().item()
            if name == "loss":
                sums["kl"] += F.kl_div(other, own, reduction="sum", log_target=True).item()
        for total, dictionary, (x, y), linear in zip(
            totals, dictionaries, site_activations(network, batch, sites), maps, strict=True
        ):
            total.see(dictionary, x, y, linear)
        n_tokens += len(targets)
    each = {name: total / n_tokens for name, total in sums.items()}
    return Measured(n_tokens, sites=[t.figures(site) for t, site in zip(totals, sites, strict=True)], **each)


class SiteTotals:
    """Sums over held-out batches for one dictionary."""

    def __init__(self, n_features: int):
        self.n_active = torch.zeros(n_features, dtype=torch.int64)
        self.n_rows, self.error, self.linear_error, self.square = 0, 0.0, 0.0, 0.0
        self.sum: Tensor | None = None

    def see(self, dictionary: Dictionary, x: Tensor, y: Tensor, linear: Tensor) -> None:
        """Add the rows of a batch."""
        f = dictionary.encode(x)
        self.n_active += (f > 0).sum(0).cpu()
        self.error += in_float64(y - dictionary.decode(f, x)).square().sum().item()
        by_map = F.pad(x.cpu().double(), (0, 1), value=1.0) @ linear
        self.linear_error += (y.cpu().double() - by_map).square().sum().item()
        self.square += in_float64(y).square().sum().item()
        total = in_float64(y).sum(0).cpu()
        self.sum, self.n_rows = total if self.sum is None else self.sum + total, self.n_rows + len(y)

    def figures(self, site: Site) -> SiteFigures:
        """The figures of the rows seen."""
        assert self.sum is not None
        variance = self.square - self.sum.square().sum().item() / self.n_rows
        frequency = (self.n_active / self.n_rows).tolist()
        return SiteFigures(
            layer=site.layer,
            writes=site.writes,
            active=math.fsum(frequency),
            unexplained=self.error / variance,
            by_linear_map=self.linear_error / variance,
            silent=sum(share == 0 for share in frequency) / len(frequency),
            frequency=frequency,
        )


def table_of(measured: Measured) -> list[str]:
    """Lines for people."""
    lost = measured.loss - measured.own_loss
    lines = [
        f"with the dictionaries the model loses {lost:.3f} nats/token ({measured.own_loss:.3f} -> {measured.loss:.3f}; "
        f"{measured.zero_loss:.3f} with zeros, {measured.mean_loss:.3f} with means; KL {measured.kl:.3f}), on "
        f"{measured.n_tokens:,} held-out tokens",
        "layer  active  variance unexplained  by a linear map  silent features",
    ]
    lines += [
        f"{s.layer:5}  {s.active:6.1f}  {s.unexplained:20.1%}  {s.by_linear_map:15.1%}  {s.silent:15.1%}"
        for s in measured.sites
    ]
    return lines
