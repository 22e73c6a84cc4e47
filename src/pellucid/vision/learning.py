"""How a classifier of images is trained: every image once an epoch, AdamW, a cosine after a warm-up."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.text.tokens.batches import permute
from pellucid.training.loop import PATIENCE, NumericsError, step_seed
from pellucid.training.optimizer import Optimizer
from pellucid.training.schedule import rate_factor
from pellucid.vision.network import ImageClassifier, Images, ImagesError

NOT_FINITE = "the loss or the gradient was not finite"
REMEDY = "the checkpoints of earlier epochs are kept. Lower learning_rate"


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """How a classifier is trained: AdamW, a cosine after a warm-up, the gradient's norm at most 1."""

    #: passes over the training images
    epochs: int = 40
    #: images in a step
    batch: int = 64
    #: the largest learning rate
    learning_rate: float = 2e-3
    #: decoupled weight decay
    weight_decay: float = 1.0
    #: standard deviation of the first weights
    init_std: float = 0.1
    #: where the first weights and the order of the images are drawn from
    seed: int = 1337


def initialise_classifier(model: ImageClassifier, seed: int, std: float) -> None:
    """Matrices N(0, std^2), each drawn by its own generator; biases 0 and gains 1."""
    for k, (name, p) in enumerate(model.named_parameters()):
        if p.ndim < 2:
            nn.init.constant_(p, float(name.endswith("gain") and model.encoder.architecture.norm.gain == "g"))
        else:
            generator = torch.Generator().manual_seed(step_seed(seed, k))
            with torch.no_grad():
                p.copy_(std * torch.randn(p.shape, generator=generator))


def train_classifier(
    model: ImageClassifier,
    images: np.ndarray,
    labels: np.ndarray,
    choices: ImageTraining = ImageTraining(),
) -> list[float]:
    """Train from the first weights, drawn from the seed; the mean loss of each epoch. See `epochs`."""
    losses = list(epochs(model, images, labels, choices))
    model.eval()
    return losses


def epochs(
    model: ImageClassifier,
    images: np.ndarray,
    labels: np.ndarray,
    choices: ImageTraining,
    poll: Callable[[int, int], object] = lambda done, total: None,
) -> Iterator[float]:
    """Train on images [n, channels, height, width] and classes [n], epoch by epoch: its mean loss, nats per image.

    Every epoch reads every image once, in an order drawn by (seed, epoch). `poll` is called before every step with the
    steps taken and those of the run; it may raise. Raises ImagesError where images and labels do not go together, and
    NumericsError after three steps in a row whose loss or gradient is not finite.
    """
    check_labels(images, labels, model.head.out_features)
    initialise_classifier(model, choices.seed, choices.init_std)
    c, n = choices, len(images)
    optimizer = Optimizer(
        model,
        "adamw",
        learning_rate=c.learning_rate,
        muon_learning_rate=c.learning_rate,
        betas=(0.9, 0.99),
        eps=1e-8,
        weight_decay=c.weight_decay,
    )
    x, y = torch.from_numpy(images).to(model.head.weight), torch.from_numpy(labels).to(model.head.weight.device)
    step, bad, n_steps = 0, 0, c.epochs * -(-n // c.batch)
    for epoch in range(c.epochs):
        model.train()
        order = torch.from_numpy(permute(np.arange(n, dtype=np.uint64), n, c.seed, epoch).astype(np.int64)).to(x.device)
        total, read = 0.0, 0
        for rows in order.split(c.batch):
            poll(step, n_steps)
            torch.manual_seed(step_seed(c.seed, step))  # dropout's
            optimizer.set_factor(rate_factor(step, n_steps, shape="cosine", warmup=n_steps // 20, floor=0.0))
            loss = learn(model, optimizer, x[rows], y[rows])
            step, bad = step + 1, 0 if math.isfinite(loss) else bad + 1
            if bad == PATIENCE:
                raise NumericsError(f"stopped: {NOT_FINITE} {PATIENCE} steps in a row, up to step {step}; {REMEDY}")
            if not bad:
                total, read = total + loss * len(rows), read + len(rows)
        yield total / max(read, 1)


def check_labels(images: np.ndarray, labels: np.ndarray, n_classes: int) -> None:
    """ImagesError unless there is one class of 0 ... n_classes - 1 for each image, and an image at all."""
    if images.ndim != 4 or labels.shape != (len(images),) or not len(images):
        raise ImagesError(f"images {images.shape}, labels {labels.shape}: expected [n, c, h, w] and [n], n at least 1")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ImagesError(f"labels from {labels.min()} to {labels.max()}: this classifier knows 0 to {n_classes - 1}")


def learn(model: ImageClassifier, optimizer: Optimizer, images: Images, labels: Int[Tensor, " batch"]) -> float:
    """One update; the mean of -log P(class) before it, nats.

    NaN where the loss or the gradient is not finite: then nothing is changed.
    """
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    bad = ~torch.isfinite(loss.detach() + norm)
    optimizer.step(bad)
    return loss.detach().masked_fill(bad, math.nan).item()


@torch.inference_mode()
def class_log_probs(model: ImageClassifier, images: np.ndarray) -> np.ndarray:
    """log P(class) of every image, nats, float64 [n, classes]."""
    model.eval()
    rows = torch.from_numpy(images).to(model.head.weight).split(256)
    return torch.cat([model(some).double().log_softmax(-1) for some in rows]).cpu().numpy()


def classify(model: ImageClassifier, images: np.ndarray) -> np.ndarray:
    """The likeliest class of each image, int64 [n]."""
    return class_log_probs(model, images).argmax(-1)
