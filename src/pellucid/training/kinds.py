"""The kinds of runs, and the functions that train and open each."""

from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from pellucid.runs.options import RecipeError, TrainOptions
from pellucid.runs.run_dir import read_json

#: the public functions that train and open a run of each kind
FUNCTIONS = {
    "transformer": ("train", "load"),
    "ngram": ("train_predictor", "load_predictor"),
    "neural-probabilistic": ("train_predictor", "load_predictor"),
    "recurrent": ("train_predictor", "load_predictor"),
    "features": ("train_features", "load_features"),
}
#: options that are None until a run chooses them, before its folder is written; attention is that of transformers
CHOSEN_BY_RUNS = frozenset(name for name, hint in get_type_hints(TrainOptions).items() if NoneType in get_args(hint))


def recipe_values(run: Path) -> dict[str, Any]:
    """What recipe.json of a run holds, its kind one of FUNCTIONS.

    Raises RecipeError where the file is missing, is damaged, names another kind, or leaves open what a run chooses.
    """
    if not (path := run / "recipe.json").exists():
        raise RecipeError(why_no_run(run))
    values = read_json(path)
    options = values.get("options")
    kind = options.get("kind") if isinstance(options, dict) else None
    if not isinstance(options, dict) or not isinstance(kind, str) or kind not in FUNCTIONS:
        raise RecipeError(
            f"{path} is not a recipe: expected an object whose options.kind is one of {', '.join(FUNCTIONS)}, found "
            f"{kind!r}; was the file written by another version, or damaged?"
        )
    if kind != "ngram":  # which is counted, not trained
        check_chosen(path, options, CHOSEN_BY_RUNS - (set() if kind == "transformer" else {"attention"}))
    return values


def why_no_run(run: Path) -> str:
    """Why this folder is no run, and what to give: the run of that name in `runs`, where there is one."""
    if run.exists():
        return f"{run} has no recipe.json: give the folder of a run, such as runs/NAME"
    is_near = (Path("runs") / run / "recipe.json").is_file()
    hint = f"did you mean {Path('runs') / run}?" if is_near else "give the folder of a run, such as runs/NAME"
    return f"{run} does not exist: {hint}"


def check_chosen(path: Path, options: dict[str, Any], chosen: frozenset[str]) -> None:
    """Raise RecipeError where an option of `chosen`, which a run chooses before it writes its recipe, is left open."""
    train = options.get("train")
    left_open = sorted(name for name in chosen if train.get(name) is None) if isinstance(train, dict) else []
    if left_open:
        raise RecipeError(
            f"options.train.{left_open[0]} of {path} is missing or null, and a run chooses it before the file is "
            "written: put back what it was; state.json of a checkpoint has the recipe too"
        )


def run_kind(run: Path) -> str:
    """The kind of a run, one of FUNCTIONS. Raises RecipeError as `recipe_values` does."""
    return recipe_values(run)["options"]["kind"]


def check_function(run: Path, function: str) -> dict[str, Any]:
    """What recipe.json of a run holds. Raises RecipeError where another function trains or opens runs of this kind."""
    values = recipe_values(run)
    trains, opens = FUNCTIONS[kind := values["options"]["kind"]]
    if function not in (trains, opens):
        right = f"resume it with pellucid.{trains}" if "train" in function else f"open it with pellucid.{opens}"
        raise RecipeError(f"{run} is a run of kind {kind}: {right}(...)")
    return values
