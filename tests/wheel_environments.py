"""Virtual environments that hold the wheel alone: `python tests/wheel_environments.py locked lowest`.

    build/installed/locked   the core, with the versions of requirements/cpu.txt
    build/installed/lowest   the core and most extras, with the lowest versions that pyproject.toml allows

PyTorch is that of requirements/cpu.txt in both: the public index has its lower versions as CUDA builds of gigabytes.
`make test-slow` and `make test-floor` make them; tests/slow/test_installed.py runs their commands.
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "requirements" / "cpu.txt"
ENVIRONMENTS = ROOT / "build" / "installed"
#: the extras whose lowest versions agree with those of the core; transformers asks for newer ones than the core
LOWEST_EXTRAS = ("serve", "look", "data", "gguf")


def pyproject() -> dict:
    """The table [project] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lowest_versions() -> list[str]:
    """A constraint for each package of the core and of LOWEST_EXTRAS: exactly the lowest version that is allowed."""
    project = pyproject()
    extras = [line for extra in LOWEST_EXTRAS for line in project["optional-dependencies"][extra]]
    bounds = [re.match(r"([\w.-]+)>=([\d.]+)$", line) for line in [*project["dependencies"], *extras]]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"]


def locked_torch() -> str:
    """The line of requirements/cpu.txt that names PyTorch."""
    return next(line for line in LOCKED.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))


def build_wheel(folder: Path) -> Path:
    """The wheel of this working tree, in a folder that holds no other wheel of ours."""
    for old in folder.glob("pellucid-*.whl"):
        old.unlink()
    command = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    run_pip(sys.executable, *command)
    (wheel,) = folder.glob("pellucid-*.whl")
    return wheel


def run_pip(python: str | Path, *arguments: str) -> None:
    """Run pip, which shows its progress. Raises CalledProcessError where it fails."""
    subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def make_environment(name: str, wheel: Path) -> None:
    """Install the wheel and what it depends on in an environment of its own; once that is there, the wheel alone."""
    folder, constraints = ENVIRONMENTS / name, ENVIRONMENTS / f"{name}.txt"
    wanted = [locked_torch(), *lowest_versions()] if name == "lowest" else LOCKED.read_text("utf-8").splitlines()
    # the bounds are part of it, so that a changed bound installs all again
    content = "\n".join([*wanted, *(f"# {line}" for line in pyproject()["dependencies"])])
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if python.exists() and constraints.exists() and constraints.read_text(encoding="utf-8") == content:
        run_pip(python, "install", "--force-reinstall", "--no-deps", str(wheel))
        return
    constraints.unlink(missing_ok=True)
    venv.create(folder, clear=True, with_pip=True)
    constraints_to_be = constraints.with_suffix(".new")
    constraints_to_be.write_text(content, encoding="utf-8")
    extras = f"[{','.join(LOWEST_EXTRAS)}]" if name == "lowest" else ""
    run_pip(python, "install", "--constraint", str(constraints_to_be), f"{wheel}{extras}")
    constraints_to_be.replace(constraints)


if __name__ == "__main__":
    built = build_wheel(ENVIRONMENTS)
    for environment in sys.argv[1:]:
        make_environment(environment, built)
