"""Images as tokens: patches in, a class out (S4 "Compromise for Symbol Representation"; Dosovitskiy et al. 2021).

An image is cut into patches, a patch is a token, and its embedding is an affine map of its numbers. In
front stands a class token, learned; behind bidirectional blocks, its row of the stream is read out as the
logits of the classes. The blocks, positions and norms are those of every other network here.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.architecture import MLP, Architecture, Attention, Norm
from pellucid.model.transformer import Encoder
from pellucid.text.batches import permute
from pellucid.training.loop import step_seed
from pellucid.training.optimizer import Optimizer
from pellucid.training.schedule import factor

Images = Float[Tensor, "batch channels height width"]


class ImagesError(ValueError):
    """Images that cannot be cut into patches, or sizes that contradict each other."""


def patchify(images: Images, patch: int) -> Float[Tensor, "batch patches numbers"]:
    """The patches of each image in reading order, each as one vector in the order (channel, row, column)."""
    b, c, h, w = images.shape
    if h % patch or w % patch:
        raise ImagesError(f"an image of {h} x {w} has no whole number of {patch} x {patch} patches")
    grid = images.reshape(b, c, h // patch, patch, w // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * patch * patch)


def unpatchify(patches: Float[Tensor, "batch patches numbers"], shape: tuple[int, int, int], patch: int) -> Images:
    """The images of shape (channels, height, width) whose patches these are."""
    c, h, w = shape
    grid = patches.reshape(-1, h // patch, w // patch, c, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, c, h, w)


def vision(d_model: int, n_layers: int, n_heads: int, n_patches: int) -> Architecture:
    """Dosovitskiy et al. 2021: pre-norm, learned positions, gelu, every token reading every other.

    The vocabulary is the class token alone: all other tokens are patches and come as embeddings.
    """
    return Architecture(
        n_vocab=1,
        n_ctx=n_patches + 1,
        d_model=d_model,
        n_layers=n_layers,
        attention=Attention(n_heads=n_heads, mask="bidirectional"),
        mlp=MLP(activation="gelu"),
        norm=Norm(eps=1e-6),
    )


class ImageClassifier(nn.Module):
    """logits = x_0 W^T + b behind the last norm, x_0 the class token's row   (Dosovitskiy et al. 2021, (1) to (4))"""

    def __init__(self, a: Architecture, patch: int, channels: int, n_classes: int):
        super().__init__()
        if a.n_vocab != 1 or a.attention.mask != "bidirectional" or a.encoder is not None:
            raise ImagesError(
                f"n_vocab = {a.n_vocab}, attention.mask = {a.attention.mask}: expected 1, the class token, and "
                "bidirectional, without an encoder; see pellucid.images.vision"
            )
        self.patch = patch
        self.embed = nn.Linear(channels * patch * patch, a.d_model)
        self.encoder = Encoder(a)
        self.head = nn.Linear(a.d_model, n_classes)

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        patches = self.embed(patchify(images, self.patch))
        first = self.encoder.embed.token.weight.expand(len(images), 1, -1)
        tokens = torch.zeros(patches.size(0), patches.size(1) + 1, dtype=torch.int64, device=images.device)
        stream = self.encoder(tokens, embeddings=torch.cat([first, patches], 1))
        return self.head(stream[:, 0])


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """How a classifier is trained: AdamW, a cosine after a warm-up, the gradient's norm at most 1."""

    epochs: int = 40
    batch: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    init_std: float = 0.02
    seed: int = 1337


def initialise(model: ImageClassifier, seed: int, std: float) -> None:
    """Matrices N(0, std^2), each drawn by its own generator; biases 0 and gains 1."""
    for k, (name, p) in enumerate(model.named_parameters()):
        if p.ndim < 2:
            nn.init.constant_(p, float(name.endswith("gain")))
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
    """Train from the first weights, drawn from the seed, on images [n, channels, height, width] and classes [n].

    Every epoch reads every image once, in an order drawn by (seed, epoch). Returns the mean loss of each epoch, nats
    per image. Raises ImagesError where images and labels do not go together.
    """
    n_classes = model.head.out_features
    if images.ndim != 4 or labels.shape != (len(images),) or not len(images):
        raise ImagesError(f"images {images.shape}, labels {labels.shape}: expected [n, c, h, w] and [n], n at least 1")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ImagesError(f"labels from {labels.min()} to {labels.max()}: this classifier knows 0 to {n_classes - 1}")
    initialise(model, choices.seed, choices.init_std)
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
    losses, step, n_steps = [], 0, c.epochs * -(-n // c.batch)
    model.train()
    for epoch in range(c.epochs):
        order = torch.from_numpy(permute(np.arange(n, dtype=np.uint64), n, c.seed, epoch).astype(np.int64)).to(x.device)
        total = 0.0
        for rows in order.split(c.batch):
            torch.manual_seed(step_seed(c.seed, step))  # dropout's
            optimizer.set_factor(factor(step, n_steps, shape="cosine", warmup=n_steps // 20, floor=0.0))
            total += learn(model, optimizer, x[rows], y[rows]) * len(rows)
            step += 1
        losses.append(total / n)
    model.eval()
    return losses


def learn(model: ImageClassifier, optimizer: Optimizer, images: Images, labels: Int[Tensor, " batch"]) -> float:
    """One update; the mean of -log P(class) before it, nats."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(~torch.isfinite(loss.detach() + norm))
    return loss.item()


@torch.inference_mode()
def classify(model: ImageClassifier, images: np.ndarray) -> np.ndarray:
    """The likeliest class of each image, int64 [n]."""
    weight = model.head.weight
    rows = torch.from_numpy(images).to(weight).split(256)
    return torch.cat([model(some).argmax(-1) for some in rows]).cpu().numpy()
