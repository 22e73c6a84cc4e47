"""The table of extras, pyproject.toml and the locked requirements agree, and one sentence says what is missing."""

import re
import tomllib
from pathlib import Path

import pytest

from pellucid import extras
from pellucid.extras import EXTRAS, MissingExtraError, require_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: extras of those who develop
OF_DEVELOPERS = {"dev", "parity"}


def requirement_names(lines: list[str]) -> set[str]:
    """The packages that requirements name, with those of the extras of ours among them."""
    names = set()
    for line in lines:
        if own := re.match(r"pellucid\[(.*)\]", line):
            names |= {name for extra in own[1].split(",") for name in requirement_names(OPTIONAL[extra])}
        else:
            names |= {re.split(r"[\[<>=!~;]", line)[0]}
    return names


def test_the_table_names_the_packages_of_pyproject():
    of_users = OPTIONAL.keys() - OF_DEVELOPERS - {"all"}
    assert of_users == EXTRAS.keys()
    for extra, entry in EXTRAS.items():
        assert set(entry.packages) == requirement_names(OPTIONAL[extra])
    assert requirement_names(OPTIONAL["all"]) == {name for entry in EXTRAS.values() for name in entry.packages}


def test_what_an_extra_needs_is_not_needed_by_the_core():
    assert not requirement_names(PROJECT["dependencies"]) & requirement_names(OPTIONAL["all"])


@pytest.mark.parametrize("file", ["cpu.txt", "cuda.txt"])
def test_the_locked_versions_are_within_the_bounds(file):
    def canonical(name):
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    locked = {canonical(name): version for name, _, version in (line.partition("==") for line in lines)}
    for line in [*PROJECT["dependencies"], *(line for extra in OPTIONAL.values() for line in extra)]:
        if bound := re.match(r"([\w.-]+)>=([\d.]+)", line):
            numbers = [[int(n) for n in re.findall(r"\d+", v)] for v in (locked[canonical(bound[1])], bound[2])]
            assert numbers[0] >= numbers[1], line


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    require_extra("serve")
    monkeypatch.setattr(extras, "is_importable", lambda package: package not in ("fastapi", "uvicorn"))
    said = r"pellucid serve needs the packages fastapi, uvicorn: pip install 'pellucid\[serve\]'"
    with pytest.raises(MissingExtraError, match=said):
        require_extra("serve")
    with pytest.raises(MissingExtraError, match=r"pellucid look needs .*: pip install 'pellucid\[look\]'"):
        require_extra("look")


def test_the_table_of_the_page_names_every_extra():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*EXTRAS, "all"]
