"""A product of two factors answers as the matrix that it stands for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import difference
from pellucid.lens.weights.factored_matrix import FactoredMatrix


@st.composite
def products(draw, square=False):
    """A LowRank with factors of any sizes, narrow or not, and the same matrix written down."""
    n, r = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    k = n if square else draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    left, right = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((n, r), (r, k)))
    return FactoredMatrix(left, right), left @ right


@settings(deadline=None, max_examples=40)
@given(products(), products())
def test_products_norms_and_parts_are_the_dense_matrix_s(one, other):
    M, dense = one
    n, k = M.shape
    assert difference(M.dense(), dense) <= 1e-12
    assert difference(M.T.dense(), dense.T) <= 1e-12
    assert difference((2 * M).dense(), 2 * dense) <= 1e-12
    assert difference(M.norm(), dense.norm()) <= 1e-12
    assert difference(torch.cat(list(M.blocks(2))), dense) <= 1e-12
    assert difference(M[n - 1], dense[n - 1]) <= 1e-12
    assert difference(M[:, 0], dense[:, 0]) <= 1e-12
    assert difference(M[0, k - 1], dense[0, k - 1]) <= 1e-12
    assert difference(M[1:, [0, k - 1]], dense[1:, [0, k - 1]]) <= 1e-12
    x = torch.ones(k, 2, dtype=torch.float64)
    assert difference(M @ x, dense @ x) <= 1e-12
    assert difference(torch.ones(3, n, dtype=torch.float64) @ M, torch.ones(3, n, dtype=torch.float64) @ dense) <= 1e-12
    N = FactoredMatrix(
        torch.ones(k, 2, dtype=torch.float64), other[0].left[:2].reshape(-1)[:2].repeat(3)[:2].reshape(2, 1)
    )
    assert difference((M @ N).dense(), dense @ N.dense()) <= 1e-12


@settings(deadline=None, max_examples=40)
@given(products())
def test_singular_values_and_vectors_are_the_dense_matrix_s(product):
    M, dense = product
    U, S, V = M.svd()
    expected = torch.linalg.svdvals(dense)
    assert difference(S[: M.rank], expected[: M.rank]) <= 1e-12
    assert difference(M.singular_values()[: M.rank], expected[: M.rank]) <= 1e-12
    assert difference(U @ S.diag() @ V.T, dense) <= 1e-12
    eye = torch.eye(S.numel(), dtype=torch.float64)
    assert difference(U.T @ U, eye) <= 1e-12
    assert difference(V.T @ V, eye) <= 1e-12


@settings(deadline=None, max_examples=40)
@given(products(square=True))
def test_eigenvalues_are_the_dense_matrix_s_that_are_not_zero(product):
    M, dense = product
    found, expected = M.eigenvalues(), torch.linalg.eigvals(dense)
    # sums of powers name a multiset of eigenvalues without matching them one by one
    for power in (1, 2, 3):
        size = max(1.0, float(expected.abs().max())) ** power
        assert (found.pow(power).sum() - expected.pow(power).sum()).abs() <= 1e-9 * size
    assert difference(found[0].abs(), expected.abs().max()) <= 1e-8
    assert difference(M.trace(), dense.trace()) <= 1e-12


def test_half_precision_factors_are_raised_and_misfits_refused():
    M = FactoredMatrix(torch.ones(3, 2, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.bfloat16))
    assert M.dense().dtype == torch.float32
    with pytest.raises(ValueError, match="expected a square matrix"):
        M.eigenvalues()
    with pytest.raises(ValueError, match="no product"):
        FactoredMatrix(torch.ones(3, 2), torch.ones(3, 2))
