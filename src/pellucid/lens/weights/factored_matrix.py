"""Matrices that are kept as the product of a tall and a wide factor."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class SVD(NamedTuple):
    """M = U diag(S) V^T with S descending: U [n, r], S [r], V [k, r]"""

    U: Tensor
    S: Tensor
    V: Tensor


class FactoredMatrix:
    """M = left right, of rank at most r, for `left` [n, r] and `right` [r, k].

    Results are computed from the factors: M[rows, columns] costs r times its size; norm, eigenvalues and singular
    values need products of r by r matrices, however large n and k are (as TransformerLens's class of this name).
    Factors in half precision are converted to float32.
    """

    def __init__(self, left: Tensor, right: Tensor):
        if left.ndim != 2 or right.ndim != 2 or left.size(1) != right.size(0):
            raise ValueError(
                f"factors of shapes {list(left.shape)} and {list(right.shape)} have no product: give [n, r] and [r, k]"
            )
        self.left, self.right = exact(left), exact(right)

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.size(0), self.right.size(1)

    @property
    def rank(self) -> int:
        """r, the upper bound of the rank."""
        return min(*self.shape, self.left.size(1))

    @property
    def T(self) -> "FactoredMatrix":  # noqa: N802
        """The transpose."""
        return FactoredMatrix(self.right.T, self.left.T)

    def __matmul__(self, other: "Tensor | FactoredMatrix") -> Any:
        """M x for a vector [k] or matrix [k, ...]; a FactoredMatrix where `other` is one."""
        if not isinstance(other, FactoredMatrix):
            return self.left @ (self.right @ other.to(self.left.dtype))
        inner = self.right @ other.left
        if inner.size(0) <= inner.size(1):
            return FactoredMatrix(self.left, inner @ other.right)
        return FactoredMatrix(self.left @ inner, other.right)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        """x M for rows x [..., n]."""
        return (other.to(self.left.dtype) @ self.left) @ self.right

    def __mul__(self, factor: float) -> "FactoredMatrix":
        return FactoredMatrix(self.left * factor, self.right)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Tensor:
        """M[i], M[i, j], M[:, j], M[a:b, c:d], M[[2, 3], [5, 7, 11]]: only these rows and columns are computed."""
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        return self.left[rows] @ self.right[:, columns]

    def blocks(self, n_rows: int = 1024) -> Iterator[Tensor]:
        """M, `n_rows` rows at a time [<= n_rows, k]."""
        for start in range(0, self.shape[0], n_rows):
            yield self[start : start + n_rows]

    def dense(self) -> Tensor:
        """M as one tensor [n, k], for small matrices."""
        return self.left @ self.right

    def norm(self) -> Tensor:
        """The Frobenius norm, from the triangles of the factors."""
        left, right = triangle(self.left), triangle(self.right.T)
        return (left @ right.T).norm()

    def trace(self) -> Tensor:
        """The sum of the diagonal of a square M."""
        self._check_square("a trace")
        return (self.left * self.right.T).sum()

    def eigenvalues(self) -> Tensor:
        """The r eigenvalues that may differ from 0, largest magnitude first [rank], complex.

        They are the eigenvalues of right left [r, r]; all others are 0. Raises ValueError unless M is square.
        """
        self._check_square("eigenvalues")
        small = self.right @ self.left if self.left.size(1) <= self.shape[0] else self.dense()
        # on a GPU it needs a library that not every build of PyTorch has
        eigenvalues = torch.linalg.eigvals(small.cpu()).to(small.device)
        return eigenvalues[eigenvalues.abs().argsort(descending=True)]

    def svd(self) -> SVD:
        """Singular values and vectors: left = Q_1 R_1, right^T = Q_2 R_2, and the svd of R_1 R_2^T."""
        Q_1, R_1 = torch.linalg.qr(self.left)
        Q_2, R_2 = torch.linalg.qr(self.right.T)
        U, S, Vh = torch.linalg.svd(R_1 @ R_2.T, full_matrices=False)
        return SVD(Q_1 @ U, S, Q_2 @ Vh.T)

    def singular_values(self) -> Tensor:
        """Singular values in descending order [rank]."""
        return torch.linalg.svdvals(triangle(self.left) @ triangle(self.right.T).T)

    def _check_square(self, what: str) -> None:
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"{what} of a matrix of shape {list(self.shape)}: expected a square matrix")

    def __repr__(self) -> str:
        return f"LowRank({self.shape[0]} x {self.shape[1]}, rank <= {self.rank})"


def triangle(x: Tensor) -> Tensor:
    """R of x = Q R [..., min(n, r), r], which has the norms of x in every direction, and far fewer rows."""
    return torch.linalg.qr(x, mode="r").R


def exact(x: Tensor) -> Tensor:
    """x in float32, or unchanged where its precision is at least that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
