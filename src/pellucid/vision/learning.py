"""The initial weights of an image classifier, and the probabilities of classes."""

import numpy as np
import torch
from torch import nn

from pellucid.runs.trainer import step_seed
from pellucid.vision.network import ImageClassifier, ImagesError


def initialise_classifier(model: ImageClassifier, seed: int, std: float) -> None:
    """Matrices N(0, std^2), each drawn by its own generator; biases 0 and gains 1."""
    for k, (name, p) in enumerate(model.named_parameters()):
        if p.ndim < 2:
            nn.init.constant_(p, float(name.endswith("gain") and model.encoder.architecture.norm.gain == "g"))
        else:
            generator = torch.Generator().manual_seed(step_seed(seed, k))
            with torch.no_grad():
                p.copy_(std * torch.randn(p.shape, generator=generator))


def check_labels(images: np.ndarray, labels: np.ndarray, n_classes: int) -> None:
    """Raise ImagesError unless there are images, and each has one class of 0 ... n_classes - 1."""
    if images.ndim != 4 or labels.shape != (len(images),) or not len(images):
        raise ImagesError(f"images {images.shape}, labels {labels.shape}: expected [n, c, h, w] and [n], n at least 1")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ImagesError(f"labels from {labels.min()} to {labels.max()}: expected 0 to {n_classes - 1}")


@torch.inference_mode()
def class_log_probs(model: ImageClassifier, images: np.ndarray) -> np.ndarray:
    """log P(class) of every image, nats, float64 [n, classes]."""
    model.eval()
    rows = torch.from_numpy(images).to(model.head.weight).split(256)
    return torch.cat([model(some).double().log_softmax(-1) for some in rows]).cpu().numpy()


def classify(model: ImageClassifier, images: np.ndarray) -> np.ndarray:
    """The likeliest class of each image, int64 [n]."""
    return class_log_probs(model, images).argmax(-1)
