"""What a release needs and a machine can check: `make release-check`. It uploads nothing.

1. The working tree is clean.
2. The version is that of CHANGELOG.md's latest release and of CITATION.cff, and nothing is left under "Unreleased".
3. Wheel and source archive are built twice from the commit, in folders of other names, with the same bytes.
4. The wheel is installed in an environment of its own, where it says its version.
5. A list of what stands there, with licences, is written (CycloneDX): build/release/sbom.json.
"""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.wheel_environments import ENVIRONMENTS, ROOT, make_environment

from pellucid.version import __version__

RELEASE = ROOT / "build" / "release"
TOOLS = RELEASE / "tools" / "bin"
#: what a person runs before a release, since it takes up to an hour
TESTS = ("make test", "make test-slow", "make types", "make demo", "make test-gpu (on a machine with an NVIDIA GPU)")


def git(*words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


def faults_of_version(changelog: str, citation: str) -> list[str]:
    """Sentences on what does not name the version, and on changes that belong to no release."""
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    unreleased, released = parts[0], parts[1]
    faults = []
    if not unreleased.startswith("Unreleased"):
        faults.append('CHANGELOG.md does not begin with "Unreleased"')
    if re.search(r"^- ", unreleased, re.MULTILINE):
        faults.append(f'CHANGELOG.md has lines under "Unreleased": move them under {__version__}')
    if released.split()[0] != __version__:
        faults.append(f"CHANGELOG.md's latest release is {released.split()[0]}, and the version is {__version__}")
    if f"version: {__version__}\n" not in citation:
        faults.append(f"CITATION.cff does not name version {__version__}")
    return faults


def build_from_commit(folder: Path) -> dict[str, str]:
    """Build wheel and source archive of the commit inside `folder`; the SHA-256 of each, by its name."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    archive = folder / "commit.tar"
    git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    environment = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder / "dist")]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "dist").iterdir())}


def check_release() -> list[str]:
    """Do all of it, and return sentences on what is wrong."""
    faults = [f"the working tree is not clean:\n{changes}"] if (changes := git("status", "--porcelain")) else []
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")]
    faults += faults_of_version(*texts)
    if __version__ in git("tag").split():
        faults.append(f"there is a tag {__version__} already")

    subprocess.run(["rm", "-rf", str(RELEASE / "first"), str(RELEASE / "second-time")], check=True)
    first, second = (build_from_commit(RELEASE / name) for name in ("first", "second-time"))
    if first != second:
        faults.append(f"two builds of one commit have other bytes: {first} and {second}")
    for name, checksum in first.items():
        print(f"{checksum}  {name}")
    wheels = [name for name in first if name.endswith(".whl")]
    if not wheels[0].startswith(f"pellucid-{__version__}-"):
        faults.append(f"the wheel is called {wheels[0]}, and the version is {__version__}")

    make_environment("locked", RELEASE / "first" / "dist" / wheels[0])
    installed = ENVIRONMENTS / "locked" / "bin"
    said = subprocess.run([str(installed / "pellucid"), "--version"], capture_output=True, text=True).stdout.strip()
    if said != f"pellucid {__version__}":
        faults.append(f"the installed wheel says {said!r}")
    listing = ["environment", "--output-reproducible", "-o", str(RELEASE / "sbom.json"), str(installed / "python")]
    subprocess.run([str(TOOLS / "cyclonedx-py"), *listing], check=True)
    return faults


if __name__ == "__main__":
    found = check_release()
    print(*(f"wrong: {fault}" for fault in found), sep="\n")
    if not found:
        print(f"{__version__} can be released once these have passed on this commit:")
        print(*(f"  {test}" for test in TESTS), sep="\n")
        print(
            f"then: git tag {__version__}, and upload build/release/first/dist/* with build/release/sbom.json by hand"
        )
    sys.exit(1 if found else 0)
