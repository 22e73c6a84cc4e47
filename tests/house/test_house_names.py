"""A name means one thing, says what it is, and a file's private names stay private."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from parsed import tree_of

import pellucid

SOURCE = Path(pellucid.__file__).parent
#: written into converted folders and imported there alone
WRITTEN_OUT = "hub/transformers_code/"

#: names that two files may define, and why; at most ten
TWO_MEANINGS: dict[str, str] = {"add_routes": "each page of the inspector adds its own routes to the application"}
MOST_EXCEPTIONS = 10

#: modules that had names of no meaning outside this project, by room; none of them comes back
FORMER_MODULES = {
    "lens": "asking opened fed spelling pieces stream running editing generating memories matrices low_rank",
    "training": "choices chunks folder setup resolve",
    "text": "pieces opening making interface visible",
    "generate": "reading source prepare products",
    "hub": "lazily source read lazy_state_dict",
    "plan": "telling yardstick",
    "report": "ending beside",
    ".": "yardstick beside",
}

#: identifiers that say nothing of what they hold, and how often they may occur in all
EMPTY_NAMES = {"found", "given", "made", "place", "whole", "kept"}
MOST_EMPTY_NAMES = 400

#: words that any program has, and that alone say nothing of what a name stands for in this field
GENERIC_WORDS = """
    add added after again all alone always any anything around aside ask asked asking at be begin begun beside
    best between both by case change changed changes done down each ends enough every everything extra fact
    facts few find first for found from get give given gone here hide hold how in inside is item just keep
    kept kind kinds known large larger largest last later left less like list listed long longer longest look
    looked looks made make many more most name named names nearest need needed new next no none not nothing
    number numbers of on once one only other others own part parts piece pieces place places plain put read
    reason result results right said same say seen set settle settled short shorter shortest show shown side
    sides small so some take taken tell thing to together told two unseen unused up used usual value values
    want wanted what when where which whole why wide with without worst write written wrong
"""
#: the names of such words that are left: each new one needs a noun
MOST_GENERIC_NAMES = 35


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each file, by its path in the package."""
    return {path.relative_to(SOURCE).as_posix(): tree_of(path) for path in sorted(SOURCE.rglob("*.py"))}


def definitions() -> dict[str, list[str]]:
    """The files that define a class or a public function of each name, at the top of a module."""
    files = defaultdict(list)
    for file, tree in trees().items():
        for node in tree.body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
            overload = public and any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
            if public and not overload and not file.startswith(WRITTEN_OUT):
                files[node.name].append(file)
    return files


def test_no_name_has_two_meanings():
    """The reference's definition of a function of the engine may have its name."""
    several = {
        name: files
        for name, files in definitions().items()
        if len([file for file in files if not file.startswith("reference/")]) > 1
    }
    assert several.keys() == TWO_MEANINGS.keys(), several  # and no exception that is no longer needed
    assert len(TWO_MEANINGS) <= MOST_EXCEPTIONS


def test_no_former_module_is_back():
    for room, names in FORMER_MODULES.items():
        for name in names.split():
            pattern = f"{name}.py" if room == "." else f"{room}/**/{name}.py"
            assert not list(SOURCE.glob(pattern)), f"{room}/{name}"


def test_local_names_say_what_they_hold():
    counts = {
        file: sum(isinstance(node, ast.Name) and node.id in EMPTY_NAMES for node in ast.walk(tree))
        for file, tree in trees().items()
    }
    worst = sorted(counts.items(), key=lambda item: -item[1])[:5]
    assert sum(counts.values()) <= MOST_EMPTY_NAMES, f"most of them in {worst}"


def names_of_module(tree: ast.Module) -> set[str]:
    """The functions, classes and constants that a module defines, public and private."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if name.strip("_") and not name.startswith("__")}


def test_names_of_modules_have_a_noun_of_the_field():
    generic, generic_words = [], set(GENERIC_WORDS.split())
    for file, tree in trees().items():
        for name in sorted(names_of_module(tree)):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)
            if len(words) <= 2 and {word.lower() for word in words} <= generic_words:
                generic.append(f"{file}: {name}")
    assert len(generic) <= MOST_GENERIC_NAMES, generic


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_stay_in_their_file():
    """No `from pellucid.x import _y`, and no `x._y` of an imported module or class."""
    taken = []
    for file, tree in trees().items():
        imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pellucid"):
                imported |= {alias.asname or alias.name for alias in node.names}
                taken += [f"{file}: {alias.name}" for alias in node.names if private(alias.name)]
        taken += [
            f"{file}:{node.lineno}: {node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if node.value.id in imported and private(node.attr)
        ]
    assert taken == []
