"""What the tests of the mathematics share: the `item` marker that ties a test to a line of the conformance list."""

import numpy as np
import pytest
from numpy.testing import assert_allclose


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "item(*ids): the items of tests/conformance/items.toml that this test shows")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2024)


@pytest.fixture
def same():
    """Equal up to 1e-12, relative to the larger of 1 and the largest entry: reference against reference."""

    def check(actual, expected, tolerance=1e-12):
        expected = np.asarray(expected, np.float64)
        size = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        assert_allclose(actual, expected, rtol=0, atol=tolerance * size)

    return check
