"""Images as tokens: patches."""

import numpy as np

from pellucid.reference.tape import Array, real


def patchify(image: Array, patch: int) -> Array:
    """The patches of an image in reading order, each as one vector   [c, h, w] -> [h w / patch^2, c patch^2]

    S4 "Compromise for Symbol Representation": "for images define the tokens as patches"; Dosovitskiy et al. 2021. The
    entries of a patch are in the order (channel, row, column). Raises ValueError if patch does not divide h and w.
    """
    c, h, w = np.shape(image)
    if h % patch or w % patch:
        raise ValueError(f"an image of {h} x {w} has no whole number of {patch} x {patch} patches")
    grid = np.reshape(real(image), (c, h // patch, patch, w // patch, patch))
    return np.transpose(grid, (1, 3, 0, 2, 4)).reshape(-1, c * patch * patch)


def unpatchify(patches: Array, shape: tuple[int, int, int], patch: int) -> Array:
    """The image of shape (c, h, w) that has these patches   [n, c patch^2] -> [c, h, w].   S4, as patchify"""
    c, h, w = shape
    grid = np.reshape(real(patches), (h // patch, w // patch, c, patch, patch))
    return np.transpose(grid, (2, 0, 3, 1, 4)).reshape(c, h, w)


def embed_patches(patches: Array, W: Array, b: Array, class_token: Array | None = None) -> Array:
    """(class token,) patches W^T + b: the embeddings of an image's tokens   [n, k], W [m, k] -> [n (+ 1), m]

    S4 "Compromise for Symbol Representation" (figure: Dosovitskiy et al. 2021).
    """
    e = real(patches) @ real(W).T + b
    return e if class_token is None else np.concatenate([real(class_token)[None], e])


def vision_parameters(m: int, n_layers: int, d_ff: int, patch: int, c: int, n_patches: int, n_classes: int) -> int:
    """Trainable numbers of a vision transformer with a class token, learned positions and a linear class head

    S4 (figure: Dosovitskiy et al. 2021); per block 4 m^2 + 4 m attention, 2 m f + m + f MLP, 4 m norms (E-25).
    """
    block = 4 * m * m + 4 * m + 2 * m * d_ff + m + d_ff + 4 * m
    embedding = c * patch * patch * m + m + m + (n_patches + 1) * m
    return embedding + n_layers * block + 2 * m + n_classes * (m + 1)
