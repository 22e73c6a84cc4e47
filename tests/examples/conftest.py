"""The scripts of examples/ as modules."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(autouse=True)
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Figures are drawn into the test's own folder."""
    import svg

    monkeypatch.setattr(svg, "FIGURES", tmp_path / "figures")
    return tmp_path / "figures"
