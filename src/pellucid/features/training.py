"""Dictionaries in the pipeline of runs: trained on what a model computes, measured by what it predicts with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.features.dictionary import Dictionary, Site, save_dictionary
from pellucid.features.measure import Measured, calibrated_thresholds, measure, table_of
from pellucid.features.recipe import FeaturesRecipe, sites_of
from pellucid.features.splice import Spliced, site_activations
from pellucid.model import Transformer
from pellucid.model.weights import generator_of, load_into
from pellucid.runs.checkpoint import named_checkpoint
from pellucid.runs.device import free_bytes, resolve_device
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.measure import settle_length
from pellucid.runs.options import RecipeError, with_train
from pellucid.runs.pace import Pace
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.run_dir import write_json
from pellucid.runs.shards import FLOAT32_BYTES
from pellucid.runs.trainable import BatchLoss
from pellucid.text_model import Model
from pellucid.training.build import read_text
from pellucid.training.data import TokenData
from pellucid.training.objectives import MicroBatch
from pellucid.training.trainable import TextTrainable
from pellucid.trust import Trust

#: tokens of one step, about
TOKENS_PER_STEP = 2048
#: of so many rows of a batch one is looked at to find the batch's threshold: the largest numbers of all rows would take
#: longer to find than everything else that a step does
ROWS_PER_SAMPLE = 8
#: the file of what was measured, written when all dictionaries are
FIGURES = "features.json"
#: held-out tokens, and training tokens, on which the trained dictionaries are measured and calibrated
MEASURED_TOKENS = 32_768


class TrainedDictionary(Dictionary):
    """A dictionary while it is trained: the k n largest activations of a batch of n rows are kept, as many as exceed
    the threshold of a sample of its rows (BatchTopK, Bussmann et al. 2024).

    `silent` counts the tokens since each feature was active.
    """

    def __init__(self, d_in: int, d_out: int, n_features: int, k: int, has_skip: bool):
        super().__init__(d_in, d_out, n_features, has_skip)
        self.k = k
        self.silent: Tensor
        self.register_buffer("silent", torch.zeros(n_features, dtype=torch.int64))

    def unit_decoder(self) -> Float[Tensor, "feature d_out"]:
        """W_dec with rows of norm 1."""
        return nn.functional.normalize(self.W_dec, dim=1)

    def active(self, h: Float[Tensor, "rows feature"]) -> Float[Tensor, "rows feature"]:
        """The activations that are kept of a batch."""
        sample = h.detach()[::ROWS_PER_SAMPLE].flatten()
        n_kept = max(1, self.k * (sample.numel() // h.size(1)))
        least = sample.kthvalue(sample.numel() - n_kept + 1).values.clamp(min=0)
        return torch.where((h >= least) & (h > 0), h, 0.0)

    def unexplained(
        self, x: Float[Tensor, "rows d_in"], y: Float[Tensor, "rows d_out"], dead_tokens: int, dead_share: float
    ) -> Tensor:
        """The share of the variance of y that is left, and that of the rest which silent features leave of it, times
        `dead_share` (Gao et al. 2024, appendix A.2).
        """
        h = self.pre_activations(x)
        f, decoder = self.active(h), self.unit_decoder()
        out = f @ decoder + self.b_dec
        error = y - (out if self.W_skip is None else out + x @ self.W_skip.T)
        variance = (y - y.mean(0)).square().sum()
        loss = error.square().sum() / variance
        with torch.no_grad():
            self.silent.add_(len(x)).masked_fill_((f > 0).any(0), 0)
            dead = (self.silent > dead_tokens).nonzero()[:, 0]
        if dead_share and len(dead):
            n_revived = min(len(dead), max(1, x.size(1) // 2))
            largest = h[:, dead].topk(n_revived)
            revived = torch.zeros_like(h[:, dead]).scatter(1, largest.indices, largest.values.relu())
            rest = error.detach()
            loss = loss + dead_share * (rest - revived @ decoder[dead]).square().sum() / rest.square().sum()
        return loss

    def forward(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        """What the dictionary writes for all these rows as one batch."""
        rows = x.flatten(0, -2)
        out = self.active(self.pre_activations(rows)) @ self.unit_decoder() + self.b_dec
        return (out if self.W_skip is None else out + rows @ self.W_skip.T).view(*x.shape[:-1], -1)


class FeaturesTrainable(TextTrainable[FeaturesRecipe]):
    """Dictionaries of every layer of a model, and the text that the model reads.

    model  what they explain, whose tokenizer and weights stay as they are
    """

    network: nn.ModuleList
    loss_unit = "of the variance unexplained"
    finish_name = "measuring the dictionaries"
    remedies = "more text or fewer features"

    def __init__(self, recipe: FeaturesRecipe, model: Model, trust: Trust = False):
        self.recipe, self.model = recipe, model
        self.trust: Trust = trust
        self.under: Transformer = model.network.eval().requires_grad_(False)
        self.sites: Sequence[Site] = sites_of(model.architecture, recipe.model.tensor)

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        resolve_device(self.recipe.train.device)  # raise before the text is read
        self.recipe, self.corpus, self.tokens, self.tokenizer = read_text(
            self.recipe, reporter, self.model.tokenizer, interruption, trust=self.trust
        )

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        t, device = self.recipe.train, resolve_device(self.recipe.train.device)
        batch = t.batch or max(1, TOKENS_PER_STEP // self.recipe.model.n_ctx)
        self.recipe = with_train(self.recipe, batch=batch, device=str(device), attention="fused", sample_prompt="")
        self.check_memory()
        settle_length(self, interruption, pace)
        o, site = self.recipe.model, self.sites[0]
        what = f"{len(self.sites)} {site.kind}s of {o.n_features:,} features, about {o.k} active at each position"
        return [f"features: {what}; {self.n_trained:,} parameters; {self.recipe.n_steps:,} steps"]

    def check_memory(self) -> None:
        """Raise RecipeError for dictionaries whose weights, averages and activations do not fit into memory."""
        o, rows = self.recipe.model, self.recipe.train.batch * self.recipe.model.n_ctx
        # weights, gradients and two averages; of each dictionary four copies of the activations
        need = FLOAT32_BYTES * 4 * (self.n_trained + len(self.sites) * rows * o.n_features)
        have = free_bytes(self.device)
        if need > have:
            raise RecipeError(
                f"dictionaries of {o.n_features:,} features need {need / 2**30:,.1f} GiB in training and "
                f"{self.device.type} has {have / 2**30:.1f} GiB: make n_features or batch smaller"
            )

    def build(self) -> None:
        self.under.to(self.device)
        o, d, seed = self.recipe.model, self.model.architecture.d_model, self.recipe.train.seed
        self.dictionaries = [TrainedDictionary(d, d, o.n_features, o.k, o.linear == "yes") for _ in self.sites]
        self.network = nn.ModuleList(self.dictionaries).to(self.device)
        first = self.make_data().at(0, 0, 1)
        values = site_activations(self.under, first, self.sites)
        with torch.no_grad():
            for number, (dictionary, (_, y)) in enumerate(zip(self.dictionaries, values, strict=True)):
                generator = generator_of(seed, f"dictionaries.{number}")
                decoder = torch.randn(o.n_features, d, generator=generator)
                encoder = torch.randn(o.n_features, d, generator=generator)
                decoder = nn.functional.normalize(decoder, dim=1)
                is_autoencoder = self.sites[number].kind == "autoencoder"
                encoder = decoder if is_autoencoder else nn.functional.normalize(encoder, dim=1)
                dictionary.W_dec.copy_(decoder)
                dictionary.W_enc.copy_(encoder.T)
                dictionary.b_dec.copy_(y.mean(0))

    def make_data(self) -> TokenData:
        return TokenData(self.tokens, cast(Any, self.recipe), self.device)

    def make_loss(self) -> BatchLoss:
        o = self.recipe.model

        def loss(batch: MicroBatch) -> Tensor:
            pairs = zip(self.dictionaries, site_activations(self.under, batch, self.sites), strict=True)
            shares = [one.unexplained(x, y, o.dead_tokens, o.dead_share) for one, (x, y) in pairs]
            # the trainer divides by the number of tokens
            return torch.stack(shares).mean() * batch.inputs.numel()

        return loss

    @property
    def n_trained(self) -> int:
        o, d = self.recipe.model, self.model.architecture.d_model
        return len(self.sites) * ((2 * d + 1) * o.n_features + d + (d * d if o.linear == "yes" else 0))

    def state(self) -> dict[str, Tensor]:
        return dict(self.network.state_dict())

    def load_state(self, weights: Any, where: str) -> None:
        load_into(self.network.state_dict(), weights, where)

    @property
    def evaluated_network(self) -> Spliced:
        """The model in which every dictionary stands in the place of what it explains."""
        return Spliced(self.under, self.sites, self.dictionaries)

    @property
    def finish_field(self) -> str:
        return "features_loss" if self.processes.is_first else ""

    @property
    def finish_cost(self) -> tuple[int, float]:
        return 6 * MEASURED_TOKENS, 2.0 * len(self.sites)

    def finish(self, run_dir: Path, step: int, phase: Phase) -> tuple[dict[str, Any], list[str]]:
        """Calibrate the thresholds of the best checkpoint, write the dictionaries, and measure what they explain."""
        stored = named_checkpoint(run_dir, "best")
        self.load_state(stored.weights, f"{run_dir}, step {stored.step}")
        dictionaries = [as_used(dictionary) for dictionary in self.dictionaries]
        data, k = self.make_data(), self.recipe.model.k
        n_batches = max(1, MEASURED_TOKENS // 2 // (self.recipe.train.batch * self.recipe.model.n_ctx))
        calibration = [data.at(step, 0, 1) for step in range(n_batches)]
        (run_dir / FIGURES).unlink(missing_ok=True)  # what follows is complete when it is written again
        calibrated_thresholds(self.under, self.sites, dictionaries, calibration, k, phase)
        measured = measure(self.under, self.sites, dictionaries, data.held_out(), calibration, MEASURED_TOKENS, phase)
        facts = {"model": self.recipe.base.path, "checkpoint": self.recipe.base.checkpoint, "step": stored.step, "k": k}
        for site, dictionary in zip(self.sites, dictionaries, strict=True):
            save_dictionary(dictionary.cpu(), site, run_dir / "dictionaries" / f"layer_{site.layer}", facts)
        write_json(run_dir / FIGURES, measured.to_dict())
        look = f'look at them: pellucid features active {run_dir} "some text", then card and graph'
        return {"step": step, **figures_of(measured)}, [*table_of(measured), look]


def figures_of(measured: Measured) -> dict[str, Any]:
    """The figures of the row of metrics."""
    return {
        "features_loss": measured.loss,
        "features_lost": measured.loss - measured.own_loss,
        "features_kl": measured.kl,
        "features_tokens": measured.n_tokens,
    }


def as_used(trained: TrainedDictionary) -> Dictionary:
    """The dictionary with decoder rows of norm 1, without what training alone needs; its thresholds are still 0."""
    used = Dictionary(trained.W_enc.size(0), trained.W_dec.size(1), trained.n_features, trained.W_skip is not None)
    used = used.to(trained.W_enc.device)
    state = trained.state_dict()
    used.load_state_dict({name: state[name] for name in used.state_dict()})
    with torch.no_grad():
        used.W_dec.copy_(trained.unit_decoder())  # training normalises the rows without changing the encoder
    return used
