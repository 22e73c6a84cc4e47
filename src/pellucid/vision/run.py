"""A run that learns to tell images apart: a .npz file in, a run folder like every other's out."""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np

from pellucid.architecture import ArchitectureError, parse_value, resolve_field
from pellucid.model.weights import check_finite, load_state, state_of
from pellucid.text.tokens.batches import permute
from pellucid.training.checkpoint import (
    Checkpoint,
    best_loss,
    best_step,
    load_checkpoint,
    mark_best,
    prune,
    save_checkpoint,
    sentence_on_steps,
    write_json,
)
from pellucid.training.interrupt import Interrupted, Interruption
from pellucid.training.kinds import check_loader
from pellucid.training.loop import NumericsError
from pellucid.training.metrics import MetricsFile
from pellucid.training.recipe import RecipeError
from pellucid.training.reporter import PlainReporter, make_reporter
from pellucid.training.resolve_recipe import resolve_device
from pellucid.training.run_dir import choose_folder, read_json
from pellucid.vision.data import channels_first, read_images
from pellucid.vision.learning import REMEDY, ImageTraining, check_labels, class_log_probs, classify, epochs
from pellucid.vision.network import ImageClassifier, ImagesError, vision

KIND = "image-classifier"


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The network: patches of `patch` x `patch` pixels, and the sizes of its blocks."""

    #: side of a square patch in pixels; 0: chosen by the images
    patch: int = 0
    #: width of the residual stream
    d_model: int = 64
    #: how many blocks there are
    n_layers: int = 2
    #: heads of attention in each block
    n_heads: int = 4


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """One run. What the images decide is written with the rest: shape (channels, height, width), classes, and the
    mean and deviation of the training pixels, by which every image is shifted and divided."""

    inputs: tuple[str, ...]
    model: ImageOptions = field(default_factory=ImageOptions)
    train: ImageTraining = field(default_factory=ImageTraining)
    #: share of the images that is never trained on
    held_out: float = 0.1
    #: auto, cpu, cuda or mps; auto takes a GPU where there is one
    device: str = "auto"
    shape: tuple[int, int, int] = (1, 1, 1)
    n_classes: int = 1
    mean: float = 0.0
    deviation: float = 1.0
    kind: str = KIND

    @classmethod
    def read(cls, run: Path) -> Self:
        """The recipe of a run's folder; RecipeError where it is none of an image classifier."""
        values = read_json(run / "recipe.json")
        try:
            parts = {"model": ImageOptions(**values.pop("model")), "train": ImageTraining(**values.pop("train"))}
            made = cls(**{**values, **parts, "inputs": tuple(values["inputs"]), "shape": tuple(values["shape"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise RecipeError(f"{run / 'recipe.json'} is not the recipe of an image classifier: {error}") from None
        return made

    def build(self) -> ImageClassifier:
        """The network, its weights not set."""
        c, h, w = self.shape
        m = self.model
        n_patches = (h // m.patch) * (w // m.patch)
        return ImageClassifier(vision(m.d_model, m.n_layers, m.n_heads, n_patches), m.patch, c, self.n_classes)

    def scaled(self, images: np.ndarray) -> np.ndarray:
        """(x - mean) / deviation in float32, channels first; ImagesError for images of another shape."""
        images = channels_first(images)
        if images.shape[1:] != self.shape:
            raise ImagesError(f"images of shape {images.shape[1:]} were given: this classifier reads {self.shape}")
        return ((images - self.mean) / self.deviation).astype(np.float32)


PARTS: dict[str, type] = {"model": ImageOptions, "train": ImageTraining}


def make_image_recipe(inputs: tuple[str, ...], changes: Mapping[str, Any]) -> ImageRecipe:
    """A recipe from single fields (`patch`, or `model.patch`), as text or typed; RecipeError names the right one."""
    of: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "": {}}
    known = [f"{part}.{f.name}" for part, kind in PARTS.items() for f in fields(kind)] + ["held_out", "device"]
    same = {"text.held_out": "held_out", "train.device": "device"}
    for name, value in changes.items():
        try:
            full = resolve_field(same.get(name, name), known)
            part, _, last = full.rpartition(".")
            of[part][last] = parse_value(full, value, get_type_hints(PARTS[part] if part else ImageRecipe)[last])
        except ArchitectureError as error:
            raise RecipeError(str(error)) from None
    made = ImageRecipe(inputs=inputs, model=ImageOptions(**of["model"]), train=ImageTraining(**of["train"]), **of[""])
    m, t = made.model, made.train
    for name, value, least in (
        ("model.patch", m.patch, 0),
        *((f"model.{n}", getattr(m, n), 1) for n in ("d_model", "n_layers", "n_heads")),
        *((f"train.{n}", getattr(t, n), 1) for n in ("epochs", "batch")),
    ):
        if value < least:
            raise RecipeError(f"{name} = {value}: expected at least {least}")
    for name, value, fits in (
        ("learning_rate", t.learning_rate, t.learning_rate > 0),
        ("init_std", t.init_std, t.init_std > 0),
        ("weight_decay", t.weight_decay, t.weight_decay >= 0),
    ):
        if not fits or not math.isfinite(value):
            least = "0 or a finite number above it" if name == "weight_decay" else "a finite number above 0"
            raise RecipeError(f"train.{name} = {value}: expected {least}")
    if not 0 < made.held_out < 1:
        raise RecipeError(f"held_out = {made.held_out}: expected a share between 0 and 1, such as 0.1")
    return made


def default_patch(height: int, width: int) -> int:
    """The smallest side that divides both and leaves at most 196 patches, as ViT-B/16 has of 224 x 224 pixels."""
    common = math.gcd(height, width)
    sides = [p for p in range(2 if common > 1 else 1, common + 1) if common % p == 0]
    return next((p for p in sides if (height // p) * (width // p) <= 196), common)


@dataclass(frozen=True)
class ImageScore:
    """How well images are told apart: their number, the share whose likeliest class is right, -log P in nats."""

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
    """Accuracy and loss on images that are scaled already."""
    log_probs = class_log_probs(network, x)
    loss = -float(log_probs[np.arange(len(labels)), labels].mean())
    return ImageScore(len(labels), float((log_probs.argmax(-1) == labels).mean()), loss)


@dataclass(frozen=True)
class ImageRun:
    """A run's folder and how it ended; exit code 130 or 143 where it was interrupted after saving."""

    path: Path
    recipe: ImageRecipe
    step: int
    score: ImageScore
    exit_code: int = 0


def train_images(
    *inputs: str | Path, out: str | Path | None = None, fields: Mapping[str, Any] | None = None, show: bool = False
) -> ImageRun:
    """Train a classifier on one .npz file, into the run folder `out` (runs/NAME unless given).

    fields   patch, d_model, n_layers, n_heads; epochs, batch, learning_rate, weight_decay, init_std, seed; held_out
    A checkpoint is written after every epoch, the best and the last are kept. Losses are nats per image. Raises
    ValueError, with nothing written, when the file or a choice is wrong.
    """
    if len(inputs) != 1:
        raise RecipeError(f"{len(inputs)} files were named: an image classifier is trained on one .npz file")
    recipe = make_image_recipe(tuple(map(str, inputs)), fields or {})
    run = choose_folder(None if out is None else Path(out), recipe.inputs)
    images, labels = read_images(inputs[0])
    used, held = split(len(images), recipe)
    recipe = settled(recipe, images, labels, used)
    network = recipe.build().to(recipe.device)
    x = recipe.scaled(images.transpose(0, 2, 3, 1))
    reporter = make_reporter() if show else Quiet()
    with Interruption(reporter) as interruption:
        write_run(
            run,
            recipe,
            {
                "file": str(inputs[0]),
                "sha256": hashlib.sha256(Path(inputs[0]).read_bytes()).hexdigest(),
                "images": len(images),
            },
        )
        size = " x ".join(map(str, recipe.shape))
        n_parameters = sum(p.numel() for p in network.parameters())
        reporter.start(
            [
                f"images: {len(used):,} to train on, {len(held):,} held out, {size}, {recipe.n_classes} classes",
                f"model: {n_parameters:,} parameters, patches of {recipe.model.patch} x {recipe.model.patch} pixels",
                f"run: {run}",
            ]
        )
        return fit(run, recipe, network, (x[used], labels[used]), (x[held], labels[held]), reporter, interruption)


def split(n: int, recipe: ImageRecipe) -> tuple[np.ndarray, np.ndarray]:
    """Which of n images are trained on and which are held out, drawn by the seed."""
    order = permute(np.arange(n, dtype=np.uint64), n, recipe.train.seed, 0).astype(np.int64)
    n_held = max(1, round(recipe.held_out * n))
    if n_held >= n:
        raise ImagesError(f"{n} images: expected enough to hold {n_held} out and train on the others")
    return order[n_held:], order[:n_held]


def settled(recipe: ImageRecipe, images: np.ndarray, labels: np.ndarray, used: np.ndarray) -> ImageRecipe:
    """The recipe with what the images decide; ImagesError for a patch that does not fit."""
    c, h, w = images.shape[1:]
    side = recipe.model.patch or default_patch(h, w)
    if h % side or w % side:
        raise ImagesError(f"model.patch = {side}: an image of {h} x {w} has no whole number of {side} x {side} patches")
    return replace(
        recipe,
        model=replace(recipe.model, patch=side),
        device=str(resolve_device(recipe.device)),
        shape=(c, h, w),
        n_classes=int(labels.max()) + 1,
        mean=float(images[used].mean()),
        deviation=float(images[used].std()) or 1.0,
    )


class Quiet(PlainReporter):
    """Says nothing."""

    def line(self, text: str) -> None:
        pass


def write_run(run: Path, recipe: ImageRecipe, data: dict[str, Any]) -> None:
    """Make the run's folder with its recipe, architecture and what was read."""
    run.mkdir(parents=True)
    write_json(run / "data.json", data)
    write_json(run / "architecture.json", recipe.build().encoder.architecture.to_dict())
    write_json(run / "recipe.json", json.loads(json.dumps(asdict(recipe))))


def fit(
    run: Path,
    recipe: ImageRecipe,
    network: ImageClassifier,
    train: tuple[np.ndarray, np.ndarray],
    held_out: tuple[np.ndarray, np.ndarray],
    reporter: PlainReporter,
    interruption: Interruption,
) -> ImageRun:
    """Epoch after epoch: measure and save. Where a signal comes the epoch is left unfinished; what was saved stays."""
    began, metrics, epoch = time.monotonic(), MetricsFile(run / "metrics.jsonl"), 0
    found = ImageScore(0, 0.0, math.inf)
    try:
        with interruption.phase("training", "steps") as phase:
            for loss in epochs(network, *train, recipe.train, phase):
                epoch, found = epoch + 1, score_scaled(network, *held_out)
                if not math.isfinite(found.loss):
                    raise NumericsError(f"stopped: the held-out loss after epoch {epoch} is not finite; {REMEDY}")
                keep(run, epoch, network, loss, found, metrics, round(time.monotonic() - began, 3))
                said = f"loss {loss:.4f}  held-out {found.loss:.4f} nats/image, {found.accuracy:.2%} right"
                n = recipe.train.epochs
                reporter.now_and_then(f"epoch {epoch}/{n}  {said}", is_last=epoch == n)
    except Interrupted:
        kept = f"epoch {epoch} is the last one that was saved" if epoch else "no epoch was finished, nothing was saved"
        reporter.note(f"interrupted in epoch {epoch + 1} of {recipe.train.epochs}: {kept}")
    finally:
        metrics.close()
    return ImageRun(run, recipe, epoch, found, 0 if epoch == recipe.train.epochs else interruption.exit_code)


def keep(
    run: Path,
    epoch: int,
    network: ImageClassifier,
    loss: float,
    found: ImageScore,
    metrics: MetricsFile,
    seconds: float,
) -> None:
    """Write what an epoch measured and its checkpoint; the best and the last one stay."""
    row = {"step": epoch, "loss": loss, "held_out_loss": found.loss, "accuracy": found.accuracy}
    metrics.write(row | {"whole": True, "seconds": seconds})
    metrics.sync()
    state = {"step": epoch, "bad_in_a_row": 0, "seconds": seconds}
    save_checkpoint(run, Checkpoint(epoch, state_of(network), {}, state))
    if found.loss < best_loss(run):
        mark_best(run, epoch, found.loss)
    prune(run, 1)


def load_images(
    run: str | Path, *, checkpoint: str = "best", device: str = "auto", allow_nan: bool = False
) -> ImageModel:
    """Open a run of an image classifier.

    `checkpoint` is best (lowest held-out loss), last, or the number of an epoch. Raises ValueError where there is no
    image classifier, it is damaged, or, unless `allow_nan`, its weights hold NaN or infinity.
    """
    run = Path(run)
    check_loader(run, "load_images")
    recipe = ImageRecipe.read(run)
    step = int(checkpoint) if checkpoint.isdigit() else best_step(run) if checkpoint == "best" else None
    if not checkpoint.isdigit() and checkpoint not in ("best", "last"):
        raise ImagesError(f"checkpoint {checkpoint!r}: {sentence_on_steps(run)}")
    found, _ = load_checkpoint(run, step)
    network = recipe.build()
    load_state(network, found.weights, f"{run}, epoch {found.step}")
    check_finite(network, f"{run}, epoch {found.step}", allow_nan)
    return ImageModel(network.to(resolve_device(device)).eval(), recipe, {"folder": str(run), "step": found.step})
