"""Images and their classes, read from a .npz file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from pellucid.vision.learning import check_labels
from pellucid.vision.network import ImagesError


def read_images(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """`images` [n, channels, height, width] and `labels` [n] of a .npz file; pickled arrays are not read.

    Images may be [n, height, width] or [n, height, width, channels], of any number type; labels are integers from
    0. Raises ImagesError for anything else.
    """
    try:
        # opened here, because NumPy does not close a file that is not an archive
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as found:
            images, labels = found["images"], found["labels"]
    except OSError as error:
        raise ImagesError(f"{path} cannot be read: {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ImagesError(f"{path}: expected a .npz file with the arrays images and labels ({error})") from None
    if images.dtype.kind not in "iuf" or labels.dtype.kind not in "iu":
        raise ImagesError(f"{path}: images {images.dtype}, labels {labels.dtype}: expected real numbers and integers")
    images = channels_first(images)
    if not images.size:
        raise ImagesError(
            f"{path}: images of {images.shape[2]} x {images.shape[3]} pixels: expected at least "
            "one image with at least one pixel"
        )
    if not (np.abs(images) <= np.finfo(np.float32).max).all():
        raise ImagesError(f"{path}: some pixels are not finite in float32: expected finite numbers")
    check_labels(images, labels, int(labels.max(initial=0)) + 1)
    return images, labels.astype(np.int64)


def channels_first(images: np.ndarray) -> np.ndarray:
    """[n, height, width] and [n, height, width, channels] as [n, channels, height, width], float64."""
    if images.ndim not in (3, 4):
        raise ImagesError(f"images {images.shape}: expected [n, height, width] or [n, height, width, channels]")
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return images.astype(np.float64)
