"""Shared by every room's tests: reproducible property tests, the `item` marker, and the data that is not shipped."""

import atexit
import importlib.util
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

# before anything imports the client of the hub: no test asks the network
os.environ["HF_HUB_OFFLINE"] = "1"
# where transformers copies the code of a model that it is trusted to run; read when it is imported
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="hf-modules-")
atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)

hypothesis.settings.register_profile("pellucid", derandomize=True, deadline=None)
hypothesis.settings.load_profile("pellucid")

DATA = Path(__file__).parent / "data"
#: the first browser that is installed, by the names of Chromium and Chrome; None where there is none
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

#: the Python of the environment in which requirements/clients.txt is installed
CLIENTS = Path(os.environ.get("PELLUCID_CLIENTS") or DATA.parents[1] / ".clients") / "bin" / "python"
#: the versions with which tests/wheel_environments.py has installed the wheel
WHEEL_ALONE = DATA.parents[1] / "build" / "installed" / "lowest.txt"
#: the version of PyTorch whose internal functions tests/device uses
LOCKED_TORCH = "2.13"
#: the property tests whose number of examples is set, by their identity: one function is several items
SHARED: dict[int, object] = {}
#: whether what requirements/docs.txt names is installed
SITE_TOOLS = all(map(importlib.util.find_spec, ("sphinx", "furo", "myst_parser", "ziamath")))


@pytest.fixture(scope="session")
def shakespeare() -> str:
    """The first 100 kB of tiny Shakespeare, the bundled corpus."""
    return (DATA / "shakespeare.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def udhr() -> dict[str, str]:
    """The Universal Declaration of Human Rights in twelve scripts, by language."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((DATA / "udhr").glob("*.txt"))}


@pytest.fixture(scope="session")
def needs_data() -> Path:
    """The folder of data that is not shipped (gpt2/, cmudict.zip, ...); tests asking for it run where it is given."""
    return Path(os.environ["PELLUCID_DATA"])


@pytest.fixture(scope="session")
def needs_browser() -> str:
    """The program of a Chromium; tests asking for it run where one is installed."""
    assert BROWSER is not None
    return BROWSER


@pytest.fixture(scope="module")
def browser(needs_browser):
    """A Chromium without a window, for the tests of one module."""
    from tests.browsing import running_browser

    with running_browser(needs_browser) as running:
        yield running


@pytest.fixture(scope="session")
def needs_site_tools() -> None:
    """Tests asking for it build the site: they run where `make site` or `make test-slow` has installed its tools."""


@pytest.fixture(scope="session")
def needs_clients() -> Path:
    """The Python of other projects' clients; tests asking for it run where `make test-slow` has installed them."""
    return CLIENTS


@pytest.fixture(scope="session")
def needs_installed() -> None:
    """Tests asking for it run where `make test-slow` or `make test-floor` has installed the wheel alone."""


@pytest.fixture(scope="session")
def needs_locked_torch() -> None:
    """Tests asking for it use internal functions of PyTorch: they run with the version that requirements/ locks."""


@pytest.fixture(scope="session")
def needs_typescript() -> str:
    """TypeScript's compiler, which checks the pages' scripts; tests asking for it run where `tsc` is on the PATH."""
    return shutil.which("tsc") or ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=float, default=1.0, help="the share of each property test's examples to draw")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "item(*ids): the items of tests/conformance/items.toml that this test shows")


def pytest_report_header() -> list[str]:
    data = os.environ.get("PELLUCID_DATA") or "not set, tests of data that is not shipped are left out"
    return [f"PELLUCID_DATA: {data}", f"Chromium: {BROWSER or 'not found, tests of pages in a browser are left out'}"]


def has_gpu() -> bool:
    """Whether PyTorch can compute on an NVIDIA GPU here."""
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of data that is not shipped where PELLUCID_DATA does not name its folder, those in a browser
    where none is installed, those of the site where its tools are not, and those of a GPU where there is none. A slow
    test has half an hour: enough on a busy machine too. Property tests are marked, and draw the share of their examples
    that --examples asks for."""
    share = config.getoption("--examples")
    for item in items:
        function = getattr(item, "function", None)
        if hypothesis.is_hypothesis_test(function):
            item.add_marker(pytest.mark.property)
            if share < 1 and id(function) not in SHARED:
                SHARED[id(function)] = function
                settings = function._hypothesis_internal_use_settings
                n = max(2, round(share * settings.max_examples))
                function._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=n)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))
    there = {"needs_data": os.environ.get("PELLUCID_DATA"), "needs_browser": BROWSER, "needs_site_tools": SITE_TOOLS}
    there |= {"needs_installed": WHEEL_ALONE.exists()}
    there |= {"needs_clients": CLIENTS.exists(), "needs_typescript": shutil.which("tsc")}
    there |= {"needs_locked_torch": version("torch").startswith(f"{LOCKED_TORCH}.")}
    missing = {fixture for fixture, found in there.items() if not found}
    needing = [item for item in items if missing & {*getattr(item, "fixturenames", ())}]
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    needing += of_gpu if of_gpu and not has_gpu() else []
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]
