"""Every test of this room keeps its prepared tokens to itself."""

from pathlib import Path

import pytest
import torch
from kinds import RunKind
from tiny import OPEN, write_text


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # sums do not depend on how many cores are free
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def whole_runs(tmp_path_factory):
    """A run of STEPS steps of each kind that was never interrupted, by the kind's name; each is made once."""
    made: dict[str, Path] = {}

    def whole_run(kind: RunKind) -> Path:
        if kind.name not in made:
            folder = tmp_path_factory.mktemp(kind.name)
            made[kind.name] = kind.start(kind.write_input(folder), folder / "run").path
        return made[kind.name]

    return whole_run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A small file to train on."""
    return write_text(tmp_path)
