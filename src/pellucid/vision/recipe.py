"""The recipe of an image classifier."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np

from pellucid.option_values import ArchitectureError, parse_value, resolve_field
from pellucid.runs.length import with_length
from pellucid.runs.options import LENGTHS, RecipeError, RunRecipe, TrainOptions, parse_options
from pellucid.runs.run_dir import read_json
from pellucid.text.tokens.batches import permute
from pellucid.vision.data import channels_first
from pellucid.vision.network import ImageClassifier, ImagesError, vision

KIND = "image-classifier"
#: AdamW with strong decay for all weights, a cosine schedule to 0, no compilation and no samples
IMAGE_TRAIN = TrainOptions(
    epochs=40.0,
    batch=64,
    accumulate=1,
    optimizer="adamw",
    learning_rate=2e-3,
    weight_decay=1.0,
    floor=0.0,
    init_std=0.1,
    precision="float32",
    compile="no",
    attention="fused",
    sample_every=-1,
)
#: options that an image classifier does not have
NOT_OF_IMAGES = {
    *("tokens", "accumulate", "optimizer", "muon_learning_rate", "balance"),
    *("ngram_optimizer", "ngram_learning_rate", "ngram_weight_decay", "first_weights"),
    *("objective", "mask_share", "mix"),
    *("precision", "compile", "attention", "recompute", "evaluate_tokens", "sample_every", "sample_prompt"),
}


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The network: patches of `patch` x `patch` pixels, and the sizes of its blocks."""

    #: side of a square patch in pixels; 0: chosen by the size of the images
    patch: int = 0
    #: width of the residual stream
    d_model: int = 64
    #: number of blocks
    n_layers: int = 2
    #: attention heads of each block
    n_heads: int = 4


@dataclass(frozen=True, kw_only=True)
class ImageRecipe(RunRecipe):
    """One run of an image classifier.

    It also records what follows from the images: `shape` (channels, height, width), the number of classes, and the mean
    and standard deviation of the training pixels, with which every image is standardized.
    """

    train: TrainOptions = IMAGE_TRAIN
    model: ImageOptions = field(default_factory=ImageOptions)
    #: share of the images that is never trained on
    held_out: float = 0.1
    shape: tuple[int, int, int] = (1, 1, 1)
    n_classes: int = 1
    mean: float = 0.0
    deviation: float = 1.0
    kind: str = KIND

    def __post_init__(self):
        self.train.check_decay_is_set()

    @property
    def row(self) -> float:
        return 1

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The recipe in a run's folder. Raises RecipeError unless it is the recipe of an image classifier."""
        values = read_json(run_dir / "recipe.json")
        try:
            train = dict(values["train"])
            if "device" in values:  # version 0.1.0 wrote it among the options of training
                train["device"] = values.pop("device")
            # version 0.1.0 had six of these options, and no segments
            parts = {
                "model": ImageOptions(**values.pop("model")),
                "train": parse_options(TrainOptions, {**vars(IMAGE_TRAIN), **train}, "train"),
                "segments": tuple((a, b) for a, b in values.get("segments", ())),
                "replans": tuple((a, b) for a, b in values.get("replans", ())),
                "chosen_intervals": tuple(values.get("chosen_intervals", ())),
            }
            return cls(**{**values, **parts, "inputs": tuple(values["inputs"]), "shape": tuple(values["shape"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise RecipeError(f"{run_dir / 'recipe.json'} is not the recipe of an image classifier: {error}") from None

    def build(self) -> ImageClassifier:
        """The network, without initial weights."""
        c, h, w = self.shape
        m = self.model
        n_patches = (h // m.patch) * (w // m.patch)
        return ImageClassifier(vision(m.d_model, m.n_layers, m.n_heads, n_patches), m.patch, c, self.n_classes)

    def scaled(self, images: np.ndarray) -> np.ndarray:
        """(x - mean) / deviation in float32, channels first. Raises ImagesError for images of another shape."""
        images = channels_first(images)
        if images.shape[1:] != self.shape:
            raise ImagesError(f"images of shape {images.shape[1:]} were given: expected {self.shape}")
        return ((images - self.mean) / self.deviation).astype(np.float32)


def image_fields() -> dict[str, list[str]]:
    """The names of the fields that can be set, by the part of the recipe that has them."""
    train = [f.name for f in fields(TrainOptions) if f.name not in NOT_OF_IMAGES]
    return {"model": [f.name for f in fields(ImageOptions)], "train": train, "": ["held_out"]}


def make_image_recipe(
    inputs: tuple[str, ...], changes: Mapping[str, Any], length: Mapping[str, Any] | None = None
) -> ImageRecipe:
    """A recipe from single fields (`patch`, or `model.patch`), as text or typed, and a length.

    Raises RecipeError, which names the nearest right field, or what is wrong with a value.
    """
    of_part: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "": {}}
    known = [f"{part}.{name}".lstrip(".") for part, names in image_fields().items() for name in names]
    kinds = {"model": ImageOptions, "train": TrainOptions, "": ImageRecipe}
    for name, value in changes.items():
        try:
            full_name = resolve_field("held_out" if name == "text.held_out" else name, known)
            part, _, last = full_name.rpartition(".")
            of_part[part][last] = parse_value(full_name, value, get_type_hints(kinds[part])[last])
        except ArchitectureError as error:
            raise RecipeError(str(error)) from None
    lengths = {name: value for name, value in (length or {}).items() if value}
    lengths |= {name: of_part["train"].pop(name) for name in LENGTHS if name in of_part["train"]}
    if lengths.get("tokens"):
        raise RecipeError("an image classifier reads no tokens: give its length in epochs, steps or minutes")
    train = replace(IMAGE_TRAIN, **of_part["train"])
    recipe = ImageRecipe(inputs=inputs, model=ImageOptions(**of_part["model"]), train=train, **of_part[""])
    recipe = with_length(recipe, lengths)
    recipe.train.check()
    m = recipe.model
    for name, value, least in (
        ("model.patch", m.patch, 0),
        *((f"model.{n}", getattr(m, n), 1) for n in ("d_model", "n_layers", "n_heads")),
        ("train.batch", recipe.train.batch, 1),
    ):
        if value < least:
            raise RecipeError(f"{name} = {value}: expected at least {least}")
    if not 0 < recipe.held_out < 1:
        raise RecipeError(f"held_out = {recipe.held_out}: expected a share between 0 and 1, such as 0.1")
    return recipe


def split_images(n: int, recipe: ImageRecipe) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the training images and of the held-out ones, drawn by the seed; ImagesError for too few."""
    order = permute(np.arange(n, dtype=np.uint64), n, recipe.train.seed, 0).astype(np.int64)
    n_held = max(1, round(recipe.held_out * n))
    if n_held >= n:
        raise ImagesError(f"{n} images: expected enough to hold {n_held} out and train on the others")
    return order[n_held:], order[:n_held]


def described_by_images(recipe: ImageRecipe, images: np.ndarray, labels: np.ndarray, used: np.ndarray) -> ImageRecipe:
    """The recipe with the fields that follow from the images; `used` are the indices of the training images.

    Raises ImagesError for a patch that does not divide the images.
    """
    c, h, w = images.shape[1:]
    side = recipe.model.patch or default_patch(h, w)
    if h % side or w % side:
        raise ImagesError(f"model.patch = {side}: an image of {h} x {w} has no whole number of {side} x {side} patches")
    return replace(
        recipe,
        model=replace(recipe.model, patch=side),
        shape=(c, h, w),
        n_classes=int(labels.max()) + 1,
        mean=float(images[used].mean()),
        deviation=float(images[used].std()) or 1.0,
    )


def default_patch(height: int, width: int) -> int:
    """The smallest side that divides both and leaves at most 196 patches, as ViT-B/16 has of 224 x 224 pixels."""
    common = math.gcd(height, width)
    sides = [p for p in range(2 if common > 1 else 1, common + 1) if common % p == 0]
    return next((p for p in sides if (height // p) * (width // p) <= 196), common)
