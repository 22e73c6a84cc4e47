"""The image classifier: patches are tokens, and a class token predicts (S4 "Compromise for Symbol Representation";
Dosovitskiy et al. 2021).

An image is cut into patches. Each patch is a token, whose embedding is an affine map of its pixels. A learned class
token comes first; after bidirectional blocks, its row of the stream gives the logits of the classes. Blocks, positions
and norms are those of all other networks here.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.architecture import MLP, Architecture, Attention, Norm
from pellucid.model.transformer import Backbone

Images = Float[Tensor, "batch channels height width"]


class ImagesError(ValueError):
    """Images that cannot be divided into patches, or sizes that contradict each other."""


def patchify(images: Images, patch: int) -> Float[Tensor, "batch patches numbers"]:
    """The patches of each image in reading order, each as one vector in the order (channel, row, column)."""
    b, c, h, w = images.shape
    if h % patch or w % patch:
        raise ImagesError(f"an image of {h} x {w} has no whole number of {patch} x {patch} patches")
    grid = images.reshape(b, c, h // patch, patch, w // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * patch * patch)


def unpatchify(patches: Float[Tensor, "batch patches numbers"], shape: tuple[int, int, int], patch: int) -> Images:
    """The images of shape (channels, height, width) that have these patches."""
    c, h, w = shape
    grid = patches.reshape(-1, h // patch, w // patch, c, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, c, h, w)


def vision(d_model: int, n_layers: int, n_heads: int, n_patches: int) -> Architecture:
    """Dosovitskiy et al. 2021: pre-norm, learned positions, gelu, bidirectional attention.

    The vocabulary has only the class token; all other tokens are patches, which are given as embeddings.
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
    """logits = x_0 W^T + b after the last norm, x_0 is the class token's row   (Dosovitskiy et al. 2021, (1) to (4))"""

    def __init__(self, a: Architecture, patch: int, channels: int, n_classes: int):
        super().__init__()
        if a.n_vocab != 1 or a.attention.mask != "bidirectional" or a.encoder is not None:
            raise ImagesError(
                f"n_vocab = {a.n_vocab}, attention.mask = {a.attention.mask}: expected 1, the class token, and "
                "bidirectional, without an encoder; see pellucid.vision.network.vision"
            )
        self.patch = patch
        self.embed = nn.Linear(channels * patch * patch, a.d_model)
        self.encoder = Backbone(a)
        self.head = nn.Linear(a.d_model, n_classes)

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        patches = self.embed(patchify(images, self.patch))
        first = self.encoder.embed.token.weight.expand(len(images), 1, -1)
        tokens = torch.zeros(patches.size(0), patches.size(1) + 1, dtype=torch.int64, device=images.device)
        stream = self.encoder.hidden(tokens, embeddings=torch.cat([first, patches], 1))
        return self.head(stream[:, 0])
