"""Trains and opens image classifiers: from a .npz file to a run folder with the layout of all others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.model.weights import check_finite, load_state
from pellucid.runs.checkpoint import named_checkpoint
from pellucid.runs.device import resolve_device
from pellucid.runs.live_reporter import make_reporter
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import NO_FOLDER, RESUMABLE, Run, resume_run, resumed_with, start_run
from pellucid.runs.reporter import QuietReporter
from pellucid.training.kinds import check_loader
from pellucid.vision.data import read_images
from pellucid.vision.learning import check_labels, class_log_probs, classify
from pellucid.vision.network import ImageClassifier
from pellucid.vision.recipe import KIND, NOT_OF_IMAGES, ImageRecipe, make_image_recipe
from pellucid.vision.trainable import ImageTrainable


@dataclass(frozen=True)
class ImageScore:
    """The scores of a classifier: number of images, share of correct classes, mean -log P in nats."""

    n: int
    accuracy: float
    loss: float


@dataclass
class ImageModel:
    """An image classifier that `load_images` opened."""

    network: ImageClassifier
    recipe: ImageRecipe
    provenance: dict[str, Any]
    kind: str = KIND

    def classify(self, images: np.ndarray) -> np.ndarray:
        """The likeliest class of each image [n, height, width(, channels)], int64 [n]."""
        return classify(self.network, self.recipe.scaled(images))

    def score(self, images: np.ndarray, labels: np.ndarray) -> ImageScore:
        """Accuracy and mean log-loss on images whose classes are known."""
        x = self.recipe.scaled(images)
        check_labels(x, labels, self.recipe.n_classes)
        return score_scaled(self.network, x, labels)

    def score_file(self, path: str | Path) -> ImageScore:
        """`score` of a .npz file."""
        images, labels = read_images(path)
        return self.score(images.transpose(0, 2, 3, 1), labels)


def score_scaled(network: ImageClassifier, x: np.ndarray, labels: np.ndarray) -> ImageScore:
    """Accuracy and loss on images that are already scaled."""
    log_probs = class_log_probs(network, x)
    loss = -float(log_probs[np.arange(len(labels)), labels].mean())
    return ImageScore(len(labels), float((log_probs.argmax(-1) == labels).mean()), loss)


def train_images(
    *inputs: str | Path,
    out: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    resume: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    show: bool = False,
) -> Run[ImageRecipe]:
    """Train a classifier on one .npz file of images and labels, into the run folder `out` (runs/NAME unless given).

    fields   single fields, as text or typed: patch, d_model, n_layers, n_heads; batch, learning_rate, weight_decay,
             seed and others of train.*; held_out, the share of the images that is never trained on
    resume   continue the run in `out` exactly; a length makes it longer, and of the fields the device, evaluate_every,
             checkpoint_every and keep_last may change
    minutes, steps, epochs   the length, at most one; 40 epochs unless given

    The loss, in nats per image, is measured after every epoch. Raises ValueError, with nothing written, when the file
    or an option is wrong.
    """
    reporter = make_reporter() if show else QuietReporter()
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    paths = tuple(str(Path(path)) for path in inputs)
    if len(paths) > 1 or (not paths and not resume):
        raise RecipeError(f"{len(paths)} files were given: an image classifier is trained on one .npz file")
    if not resume:
        recipe = make_image_recipe(paths, fields or {}, length)
        return start_run(ImageTrainable(recipe), None if out is None else Path(out), reporter)
    if out is None:
        raise RecipeError(NO_FOLDER)
    written = ImageRecipe.read(Path(out))
    words = {name.removeprefix("train."): value for name, value in (fields or {}).items()}
    may_change = set(RESUMABLE) - NOT_OF_IMAGES
    if other := [name for name in fields or {} if name.removeprefix("train.") not in may_change]:
        raise RecipeError(f"{out} cannot be resumed with other options: leave out {', '.join(other)}")
    if tokens:
        raise RecipeError("an image classifier reads no tokens: give its length in epochs, steps or minutes")
    if not written.segments:
        raise RecipeError(
            f"{out} was trained by an earlier version, whose checkpoints of image classifiers hold no optimizer state, "
            "so training cannot continue exactly: start a new run. pellucid.load_images still opens this one"
        )
    recipe = resumed_with(replace(written, inputs=paths or written.inputs), words, reporter)
    return resume_run(ImageTrainable(recipe), Path(out), length, reporter, written)


def load_images(
    run: str | Path, *, checkpoint: str = "best", device: str = "auto", allow_nan: bool = False
) -> ImageModel:
    """Open a run of an image classifier.

    `checkpoint` is best (lowest held-out loss), last, or the number of a step. Raises ValueError where there is no
    image classifier, it is damaged, or, unless `allow_nan`, its weights hold NaN or infinity.
    """
    run_dir = Path(run)
    check_loader(run_dir, "load_images")
    recipe = ImageRecipe.read(run_dir)
    loaded = named_checkpoint(run_dir, checkpoint)
    network, where = recipe.build(), f"{run_dir}, step {loaded.step}"
    load_state(network, loaded.weights, where)
    check_finite(network, where, allow_nan)
    provenance = {"folder": str(run_dir), "step": loaded.step}
    return ImageModel(network.to(resolve_device(device)).eval(), recipe, provenance)
