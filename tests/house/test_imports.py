"""Rooms depend one way, and importing the package costs next to nothing."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from parsed import tree_of

import pellucid

SOURCE = Path(pellucid.__file__).parent
#: from the ground up: a room may use the rooms in earlier rows and itself
FLOORS = (
    ("version", "extras", "option_values", "field_docs", "json_files", "trust", "model_names"),
    ("architecture", "json_shapes"),
    ("tensor_names", "presets", "edits", "destination", "parameter_counts", "compiled_source"),
    ("text", "reference", "model"),
    ("text_model",),
    # what every kind of run shares stands below the kinds
    ("runs",),
    ("predictors", "training", "generate", "lens", "hub"),
    ("plan", "verify", "baselines", "machine_check", "sources"),
    # adapters are trained in one room and named for other projects in another; a run starts from files of either
    ("adapters", "starting_model"),
    ("features",),
    # a conversion is checked before it is given its name
    ("conversion", "report"),
    ("serve", "look"),
    ("language_model", "text_report"),
    ("training_run", "features_run", "novelty"),
    ("cli",),
    ("demo", "__main__"),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: what only tests and the room that compares see beside the definition
SEE_THE_REFERENCE = {"reference", "verify"}
#: (room, room on the same floor that it may use) and why
NEIGHBOURS: dict[tuple[str, str], str] = {
    (
        "predictors",
        "training",
    ): "a run folder of any predictor has the same outer layout, data, schedule and checkpoints",
    ("lens", "generate"): "tensors are kept and edited while text is generated",
    ("look", "serve"): "the inspector answers with the security, the strict bodies and the files' routes of the server",
    ("predictors", "generate"): "any predictor is sampled and scored by the same code",
}
TORCHLESS = ("json_files", "option_values", "architecture", "parameter_counts", "tensor_names", "presets", "edits")
TORCHLESS += ("json_shapes", "destination", "model_names", "text", "reference")
#: packages of others, by the rooms that may use them at all; loaded where they are used
#: what is written into converted folders and imported there alone, by transformers
WRITTEN_OUT = "hub/transformers_code/"
FOREIGN = {
    "transformers": {"hub"},
    "fastapi": {"serve", "look"},
    "uvicorn": {"serve", "look"},
    "prometheus_client": {"serve"},
    "llguidance": {"generate"},
}


def modules():
    return sorted(SOURCE.rglob("*.py"))


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


#: for each test, one case for each room: there are hundreds of files, and a case for each takes seconds to distribute
EACH_ROOM = pytest.mark.parametrize("here", sorted(set(map(room, modules()))))


def modules_in(here):
    return [path for path in modules() if room(path) == here]


def imported(path, top_level_only=False):
    """The full names of the modules that a file imports; inside `if TYPE_CHECKING` nothing is."""
    tree = tree_of(path)
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide which room is used"
            yield str(node.module)
            # `from pellucid import model` imports a room
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "pellucid")
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            stack += node.orelse
        elif not (top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            stack += ast.iter_child_nodes(node)


def rooms_used(path):
    named = {name.split(".")[1] for name in imported(path) if name.startswith("pellucid.")}
    return {used for used in named if used in FLOOR or (SOURCE / used).exists() or (SOURCE / f"{used}.py").exists()}


@pytest.mark.item("S0-0-c")
@EACH_ROOM
def test_rooms_depend_one_way(here):
    if here == "__init__":
        return  # names what others may use, when they do
    assert here in FLOOR, f"{here} is a new room: give it a floor in FLOORS"
    for path in modules_in(here):
        for used in rooms_used(path) - {here}:
            lower = FLOOR[used] < FLOOR[here]
            assert lower or (here, used) in NEIGHBOURS, f"{path} imports {used}, which is not below {here}"
            assert used != "reference" or here in SEE_THE_REFERENCE, f"{path} imports the reference"


@EACH_ROOM
def test_code_that_is_written_out_is_not_imported_here(here):
    room_of_code = "pellucid." + WRITTEN_OUT.strip("/").replace("/", ".")
    for path in modules_in(here):
        inside = path.relative_to(SOURCE).as_posix().startswith(WRITTEN_OUT)
        assert inside or not [name for name in imported(path) if name.startswith(room_of_code)], path


def test_neighbours_use_each_other_one_way():
    for one, other in NEIGHBOURS:
        assert FLOOR[one] == FLOOR[other]
        assert (other, one) not in NEIGHBOURS


@EACH_ROOM
def test_foreign_packages_stay_in_their_rooms(here):
    for path in modules_in(here):
        foreign = {name.split(".")[0] for name in imported(path)}
        if here in TORCHLESS:
            assert not foreign & {"torch", "jaxtyping", "safetensors"}, path
        if here == "reference":
            assert foreign <= {"numpy", "pellucid", *sys.stdlib_module_names}, path
            assert {used for used in rooms_used(path)} <= {"reference", "architecture", "tensor_names", "edits"}, path
        if here in ("option_values", "architecture", "tensor_names", "presets", "edits", "destination"):
            assert foreign <= {"pellucid", *sys.stdlib_module_names}, path
        for package, rooms in FOREIGN.items():
            assert package not in foreign or here in rooms, f"{path} imports {package}"
        at_once = {name.split(".")[0] for name in imported(path, top_level_only=True)}
        if path.relative_to(SOURCE).as_posix().startswith(WRITTEN_OUT):
            at_once.discard("transformers")
        assert not at_once & {"transformers", "matplotlib", "wandb", "tensorboard", "pyarrow", "zstandard"}, path


def loaded_by(code):
    """The modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {"torch", "numpy", "transformers", "fastapi", "uvicorn", "matplotlib", "wandb", "tokenizers", "safetensors"}
LIGHT = ("import pellucid", "import pellucid.tensor_names, pellucid.presets", "import pellucid; dir(pellucid)")


@pytest.mark.parametrize("code", LIGHT)
def test_describing_loads_nothing_heavy(code):
    assert not loaded_by(code) & HEAVY


def test_the_network_loads_neither_servers_nor_other_libraries():
    heavy = {"transformers", "fastapi", "uvicorn", "matplotlib", "wandb", "pellucid.reference", "pellucid.training"}
    assert not loaded_by("import pellucid.model, pellucid.model.weights") & heavy


def test_every_public_name_can_be_had():
    for name in pellucid.__all__:
        assert getattr(pellucid, name) is not None
    assert not loaded_by("import pellucid; pellucid.Architecture") & {"torch"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pellucid.nothing
    assert set(dir(pellucid)) >= set(pellucid.__all__)
