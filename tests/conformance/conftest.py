"""What the tests of the mathematics share: the `erratum` marker ties a test to a line of errata.toml."""

import numpy as np
import pytest
from numpy.testing import assert_allclose


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "erratum(*ids): the errata of errata.toml whose counterexample this is")


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
