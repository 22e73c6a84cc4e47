"""Check a config.json before anything is allocated, and read the architecture that it describes."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pellucid.architecture import Architecture
from pellucid.hub.families import FamilyError, architecture_of, value_at
from pellucid.hub.files import FolderError
from pellucid.hub.own_code import architecture_in, is_own
from pellucid.hub.tables import Family
from pellucid.hub.tables.entries import BOUNDS, LARGEST
from pellucid.parameter_counts import count_parameters

LONGEST_LIST, LONGEST_NGRAM = 1 << 14, 1 << 10
#: limit on the numbers in a position table, unless the weights have more: 131,072 positions of 128 coordinates
LARGEST_TABLE = 1 << 24


def read_config(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The architecture that a folder's config.json describes, with every entry checked. Raises ValueError with one
    line.
    """
    _check_entries(config)
    for name, why in (("auto_map", "code of its own"), ("quantization_config", "quantised weights")):
        # the code next to a model of ours computes what its configuration describes, and is not run either
        if config.get(name) and not (name == "auto_map" and is_own(config)):
            raise FolderError(f"{path / 'config.json'} asks for {why} ({name}), which Pellucid does not read")
    if is_own(config):
        return architecture_in(config)
    try:
        return architecture_of(config)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise FolderError(f"{path / 'config.json'} is damaged: {error!r}") from None


def is_body(config: Mapping[str, Any], family: Family, names: Iterable[str]) -> bool:
    """Whether the weights have no readout; for a config.json that names no class."""
    of_heads = {row.theirs.split(".")[0] for row in family.rows if row.modules[0].split(".")[0] == "unembed"}
    return not config.get("architectures") and not any(name.split(".")[0] in of_heads for name in names)


def _check_entries(value: Any, depth: int = 0) -> None:
    """Raise FolderError for unreasonable numbers, list lengths or nesting in config.json."""
    if isinstance(value, dict | list):
        if len(value) > LONGEST_LIST or depth > 16:
            raise FolderError(f"config.json holds a list of {len(value):,} entries or one nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_entries(one, depth + 1)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise FolderError(f"config.json holds the number {str(value)[:40]}: expected {LARGEST:,} at most")


def check_sizes(path: Path, a: Architecture) -> None:
    """Raise FolderError for sizes that no model has."""
    sizes = a.to_dict()
    for name, most in BOUNDS.items():
        if (value := value_at(sizes, name)) is not None and not value <= most:
            raise FolderError(f"{path}: {name} = {value}: expected {most:,} at most")
    if max(a.ngrams, default=0) > LONGEST_NGRAM:
        raise FolderError(f"{path}: ngrams = {max(a.ngrams)}: expected {LONGEST_NGRAM} at most")
    if a.encoder is not None:
        check_sizes(path, a.encoder)


def check_weights(path: Path, a: Architecture, n_numbers: int) -> None:
    """Raise FolderError if the architecture needs more numbers than the weight files hold, `n_numbers`.

    The position table, which no file holds, may be larger than the weights if it is of a usual size.
    """
    for part in (a, a.encoder):
        if part is not None and (size := part.n_ctx * part.position_table_width) > max(LARGEST_TABLE, n_numbers):
            raise FolderError(f"{path}: positions of n_ctx = {part.n_ctx} would be a table of {size:,} numbers")
    asked = count_parameters(a)["total"]
    if asked > n_numbers:
        raise FolderError(f"{path}: the configuration needs {asked:,} numbers, but the files hold {n_numbers:,}")
