"""Image classifiers in the pipeline of runs."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from pellucid.runs.device import on_device, resolve_device
from pellucid.runs.interrupt import Interruption
from pellucid.runs.length import plan_in_time, resolve_intervals, resolve_steps
from pellucid.runs.measure import measure_step
from pellucid.runs.options import with_train
from pellucid.runs.pace import Pace
from pellucid.runs.reporter import PlainReporter
from pellucid.runs.trainable import BatchLoss, HeldOutSums, Trainable
from pellucid.text.tokens.batches import permute
from pellucid.vision.data import read_images
from pellucid.vision.learning import initialise_classifier
from pellucid.vision.network import ImageClassifier, Images
from pellucid.vision.recipe import ImageRecipe, described_by_images, split_images

#: held-out images in one batch
HELD_OUT_BATCH = 256


@dataclass(frozen=True)
class ImageBatch:
    """Images and their classes; `total` is the number of images of the whole step."""

    images: Images
    labels: Int[Tensor, " batch"]
    total: int


class ImageData:
    """Every image once an epoch, in an order drawn by (seed, epoch); the last batch of an epoch may be smaller.

    images  float32 [n, channels, height, width], scaled
    labels  int64 [n]
    """

    #: None, since there is no text
    held_out_tokens_per_byte = None

    def __init__(
        self,
        train: tuple[np.ndarray, np.ndarray],
        held_out: tuple[np.ndarray, np.ndarray],
        recipe: ImageRecipe,
        device: torch.device,
    ):
        self.images, self.labels = (torch.from_numpy(array).to(device) for array in train)
        self.held_out_images, self.held_out_labels = (torch.from_numpy(array).to(device) for array in held_out)
        self.batch, self.seed = recipe.train.batch, recipe.train.seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        return -(-len(self.images) // self.batch)

    def at(self, step: int, micro: int, of: int) -> ImageBatch:
        """Part `micro` of `of` of a step's batch."""
        epoch, k = divmod(step, self.steps_per_epoch)
        rows = self.order(epoch)[k * self.batch : (k + 1) * self.batch]
        share = -(-len(rows) // of)
        part = rows[micro * share : (micro + 1) * share]
        return ImageBatch(self.images[part], self.labels[part], len(rows))

    def order(self, epoch: int) -> Int[Tensor, " images"]:
        """The numbers of the training images in the order of this epoch."""
        if epoch != self._epoch:
            n = len(self.images)
            drawn = permute(np.arange(n, dtype=np.uint64), n, self.seed, epoch).astype(np.int64)
            self._epoch, self._order = epoch, on_device(drawn, self.images.device)
        return self._order

    def held_out(self) -> Iterator[ImageBatch]:
        """All held-out images in a fixed order."""
        n = self.n_held_out
        for images, labels in zip(
            self.held_out_images.split(HELD_OUT_BATCH), self.held_out_labels.split(HELD_OUT_BATCH), strict=True
        ):
            yield ImageBatch(images, labels, n)

    @property
    def n_held_out(self) -> int:
        """Held-out images."""
        return len(self.held_out_images)


def summed_class_loss(network: ImageClassifier, batch: ImageBatch) -> Tensor:
    """The sum of -log P(class) over the images, in nats."""
    return F.cross_entropy(network(batch.images), batch.labels, reduction="sum")


class ImageTrainable(Trainable[ImageRecipe]):
    """An image classifier and the images that it is trained on."""

    network: ImageClassifier
    unit = "image"
    input_name = "images"
    remedies = "more images or a smaller model"

    def __init__(self, recipe: ImageRecipe):
        self.recipe = recipe

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        device = resolve_device(self.recipe.train.device)
        with interruption.phase("reading images"):
            images, labels = read_images(self.recipe.inputs[0])
            self.about = {
                "file": self.recipe.inputs[0],
                "sha256": hashlib.sha256(Path(self.recipe.inputs[0]).read_bytes()).hexdigest(),
                "images": len(images),
            }
        interruption.poll()
        used, held = split_images(len(images), self.recipe)
        if run_dir is None:
            recipe = described_by_images(self.recipe, images, labels, used)
            self.recipe = with_train(recipe, device=str(device))
        self.images, self.labels, self.used, self.held = images, labels, used, held

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        data, t = self.make_data(), self.recipe.train
        # epochs are short, so each ends with an evaluation and a checkpoint
        every = t.evaluate_every or data.steps_per_epoch
        self.recipe = with_train(self.recipe, evaluate_every=every, evaluate_tokens=data.n_held_out)

        def measure() -> float:
            self.build()
            with interruption.phase("measuring a step") as phase:
                return measure_step(self, phase)

        if pace:
            pace.start(measure())
            pace.know(data.n_held_out, self.n_trained, can_sample=self.can_sample)
            self.recipe, why = plan_in_time(self.recipe, self.recipe, pace)
        else:
            n_steps, why = resolve_steps(self.recipe, self.n_train, measure, unit=self.unit)
            self.recipe = resolve_intervals(replace(self.recipe, segments=((0, n_steps),)))
        if t.warmup < 0:
            self.recipe = with_train(self.recipe, warmup=self.recipe.n_steps // 20)
        with interruption.phase("making the network"):
            self.build()
        size, side = " x ".join(map(str, self.recipe.shape)), self.recipe.model.patch
        return [
            f"images: {len(self.used):,} to train on, {len(self.held):,} held out, {size}, {self.recipe.n_classes} "
            "classes",
            f"model: {self.n_trained:,} parameters, patches of {side} x {side} pixels",
            why,
        ]

    def files(self) -> dict[str, Any]:
        return {"data.json": self.about, "architecture.json": self.recipe.build().encoder.architecture.to_dict()}

    def difference(self, data: Mapping[str, Any]) -> str:
        return "" if data.get("sha256") == self.about["sha256"] else f"{self.about['file']} changed"

    def check_memory(self) -> None:
        """Nothing to check: the images are in memory already, and a classifier is small compared with them."""

    def build(self) -> None:
        network = self.recipe.build()
        initialise_classifier(network, self.recipe.train.seed, self.recipe.train.init_std)
        self.network = network.to(self.device)

    def make_data(self) -> ImageData:
        scaled = self.recipe.scaled(self.images.transpose(0, 2, 3, 1))
        train, held_out = ((scaled[rows], self.labels[rows]) for rows in (self.used, self.held))
        return ImageData(train, held_out, self.recipe, self.device)

    def make_loss(self) -> BatchLoss:
        return lambda batch: summed_class_loss(self.network, batch)

    @property
    def n_train(self) -> int:
        """Images of an epoch, counted as if its last batch were full."""
        batch = self.recipe.train.batch
        return -(-len(self.used) // batch) * batch

    @property
    def n_trained(self) -> int:
        return sum(p.numel() for p in self.recipe.build().parameters())

    def held_out_sums(self, batch: ImageBatch) -> HeldOutSums:
        log_probs = self.network(batch.images).double().log_softmax(-1)
        n, n_right = len(batch.labels), int((log_probs.argmax(-1) == batch.labels).sum())
        return HeldOutSums(F.nll_loss(log_probs, batch.labels, reduction="sum").item(), n_right, n, n)
