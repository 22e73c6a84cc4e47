"""The kinds of runs, and the function that opens each."""

from pathlib import Path
from typing import Any

from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import read_json

#: the public function that opens a run of each kind
LOADERS = {
    "transformer": "load",
    "ngram": "load_predictor",
    "neural-probabilistic": "load_predictor",
    "recurrent": "load_predictor",
    "image-classifier": "load_images",
}


def recipe_values(run: Path) -> dict[str, Any]:
    """What recipe.json of a run holds, its kind one of LOADERS.

    Raises RecipeError where the file is missing, is damaged, or names another kind.
    """
    if not (path := run / "recipe.json").exists():
        what = "has no recipe.json" if run.exists() else "does not exist"
        raise RecipeError(f"{run} {what}: give the folder of a run, such as runs/NAME")
    values = read_json(path)
    kind = values.get("kind", "transformer") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in LOADERS:
        raise RecipeError(
            f"{path} is not a recipe: expected an object whose kind is one of "
            f"{', '.join(LOADERS)}, found {kind!r}; was "
            "the file written by a later version, or damaged?"
        )
    return values | {"kind": kind}


def kind_of(run: Path) -> str:
    """The kind of a run, one of LOADERS. Raises RecipeError as `recipe_values` does."""
    return recipe_values(run)["kind"]


def check_loader(run: Path, loader: str) -> dict[str, Any]:
    """What recipe.json of a run holds. Raises RecipeError where another function opens runs of this kind."""
    values = recipe_values(run)
    if (other := LOADERS[values["kind"]]) != loader:
        raise RecipeError(f"{run} is a run of kind {values['kind']}: open it with pellucid.{other}(...)")
    return values
