"""Packages that only some commands need, by the extra of pyproject.toml that installs them."""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class PackageExtra:
    """An extra of the package.

    use       what it is for
    packages  the names by which its packages are imported
    """

    use: str
    packages: tuple[str, ...]


SERVER = ("fastapi", "starlette", "uvicorn", "prometheus_client")
EXTRAS = {
    "serve": PackageExtra("pellucid serve", SERVER),
    "look": PackageExtra("pellucid look", (*SERVER, "latex2mathml")),
    "data": PackageExtra(
        "Parquet, Arrow and .zst files, the main text of pages, and more encodings",
        ("pyarrow", "zstandard", "chardet", "trafilatura", "lxml_html_clean"),
    ),
    "gguf": PackageExtra("files of llama.cpp", ("gguf",)),
    "transformers": PackageExtra(
        "comparing conversions with transformers, and adapters with peft", ("transformers", "peft")
    ),
    "structured": PackageExtra("text in a form that is asked for, such as a JSON Schema", ("llguidance",)),
    "sources": PackageExtra("finding where a text is from", ("pydivsufsort",)),
    "track": PackageExtra("TensorBoard and Weights & Biases", ("tensorboard", "wandb")),
}


class MissingExtraError(ImportError, ValueError):
    """A command needs packages that are not installed."""


def is_importable(package: str) -> bool:
    """Whether there is such a package; it is not imported."""
    return find_spec(package) is not None


def missing_packages(extra: str) -> list[str]:
    """Those packages of an extra that cannot be imported."""
    return [name for name in EXTRAS[extra].packages if not is_importable(name)]


def install_command(extra: str) -> str:
    """The command that installs an extra beside the package."""
    return f"pip install 'pellucid[{extra}]'"


def require_extra(extra: str) -> None:
    """Raise MissingExtraError, with the command that helps, unless all packages of the extra can be imported."""
    if lacking := missing_packages(extra):
        noun = "package" if len(lacking) == 1 else "packages"
        raise MissingExtraError(f"{EXTRAS[extra].use} needs the {noun} {', '.join(lacking)}: {install_command(extra)}")
