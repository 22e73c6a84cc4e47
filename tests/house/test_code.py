"""How the code is written: choices made when a model is built, budgets, docstrings, plain text."""

import ast
import importlib
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from parsed import tree_of

import pellucid

SOURCE = Path(pellucid.__file__).parent
ROOT = SOURCE.parent.parent
TESTS = ROOT / "tests"
TEXT_FILES = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".html", ".js", "")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

#: a forward is a paragraph
FORWARD_LINES, FORWARD_BRANCHES = 25, 3
BRANCHY_FORWARDS = {
    "model/embed.py:Embed": "the summands of x_0 that an architecture or a call may leave out",
    "model/mask.py:Mask": "a call with no mask to speak of must not build one",
}
#: texts and tests of texts are in any script
ANY_SCRIPT = ("tests/", "src/pellucid/data/")

#: files whose numbers in float64 are on the CPU, where no call shows it
FLOAT64_ON_CPU = {
    "model/tables.py": "tables are made on the CPU",
    "model/weights.py": "tables are read from files",
    "lens/weights/weight_edits.py": "the network is a copy on the CPU",
    "lens/analysis/steering.py": "rows are copied to the CPU first",
}


def modules():
    return sorted(SOURCE.rglob("*.py"))


def short(path):
    return path.relative_to(SOURCE).as_posix()


def functions(path):
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, FUNCTION)]


def code_lines(function):
    """Lines of the body behind the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@cache
def forwards():
    """Every forward of the package, by file and class."""
    return {
        f"{short(path)}:{kind.name}": node
        for path in modules()
        if "def forward" in path.read_text(encoding="utf-8")
        for kind in ast.walk(tree_of(path))
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, FUNCTION) and node.name == "forward"
    }


@pytest.mark.parametrize("forward", forwards())
def test_variants_are_chosen_when_the_model_is_built(forward):
    """No forward asks the architecture anything: what a network does is what it is built of."""
    for node in ast.walk(forwards()[forward]):
        if isinstance(node, ast.Attribute):
            asked = isinstance(node.value, ast.Name) and node.value.id in ("a", "architecture")
            assert node.attr != "architecture", f"line {node.lineno}"
            assert not asked, f"line {node.lineno}"


@pytest.mark.item("S4-code-b")
@pytest.mark.parametrize("forward", forwards())
def test_a_forward_is_a_paragraph(forward):
    node = forwards()[forward]
    assert code_lines(node) <= FORWARD_LINES
    branches = [inner for inner in ast.walk(node) if isinstance(inner, ast.If | ast.IfExp | ast.Match)]
    assert len(branches) <= FORWARD_BRANCHES or forward in BRANCHY_FORWARDS


def test_the_forwards_are_found():
    assert {"model/block.py:PreBlock", "model/attention.py:MultiHeadAttention", *BRANCHY_FORWARDS} <= forwards().keys()


def tracked():
    """Every text file under version control, or all of src and tests where there is no repository."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        paths = [ROOT / name for name in filter(None, listed.decode().split("\0"))]
    else:
        paths = [*SOURCE.rglob("*"), *TESTS.rglob("*")]
    for path in paths:
        if path.is_file() and path.suffix in TEXT_FILES:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


# written with a line in the middle so that this file passes itself
HOSTS = (r"py_pi\.org", r"files\.python_hosted", r"registry\.npm_js", r"proxy\.gol_ang")
UNWANTED = {
    "an emoji": re.compile("[\U0001f300-\U0001faff\u2728\u2705\u274c\u26a0]"),
    "a path of one machine": re.compile(r"(?<![\w.~$}])/(?:home|root|work|Users)/\w"),
    "a package registry": re.compile("|".join(host.replace("_", "") for host in HOSTS)),
}


def test_files_are_plain_and_of_no_particular_machine():
    found = [
        f"{name}: {what}: {match.group()!r}"
        for name, text in tracked()
        for what, pattern in UNWANTED.items()
        for match in [pattern.search(text)]
        if match and not (what == "an emoji" and name.startswith(ANY_SCRIPT))
    ]
    assert not found


def test_what_is_unwanted_would_be_found():
    assert UNWANTED["an emoji"].search("done \N{ROCKET}")
    assert UNWANTED["a path of one machine"].search("see /ho_me/someone/model".replace("_", ""))
    assert not UNWANTED["a path of one machine"].search("pellucid/work/of/art")
    assert UNWANTED["a package registry"].search("https://py_pi.org/simple".replace("_", ""))


def test_no_test_is_skipped_or_expected_to_fail():
    """Tests of data that is not shipped ask for the fixture `needs_data`, tests of a page in a browser for
    `needs_browser`, and tests of a GPU have the marker `gpu`; nothing else is left out."""
    unwanted = ("skip", "skipif", "xfail", "importorskip", "SkipTest")
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in unwanted) else ():
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert name not in unwanted, f"{path.name}:{node.lineno}"


def test_annotations_that_are_checked_are_not_strings():
    """A postponed annotation cannot be checked by the tests (jaxtyping), so model files have none."""
    for path in modules():
        text = path.read_text(encoding="utf-8")
        if "__future__" in text:
            imports = [node.module for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)]
            assert "__future__" not in imports or "jaxtyping" not in text, short(path)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_benchmarks_find_what_they_import(file):
    """They run by hand, so that a name that has moved would be noticed late."""
    tree = tree_of(file)
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    for node in imports:
        if str(node.module).partition(".")[0] in ("benchmarks", "pellucid"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")


def test_modules_of_tests_have_names_of_their_own():
    """pytest imports them by their names alone: two of one name cannot be run together."""
    names = [file.name for file in TESTS.rglob("*.py") if file.name != "conftest.py"]
    assert not {name for name in names if names.count(name) > 1}


def test_float64_is_asked_of_no_device_that_may_lack_it():
    """Apple's GPUs have none: numbers go to the CPU first, or through `in_float64`."""
    calls = [
        (short(path), node.lineno)
        for path in modules()
        if not short(path).startswith(("reference/", "verify/"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "double"
        if ".cpu()" not in ast.unparse(node.func.value)
    ]
    assert {file for file, _ in calls} == FLOAT64_ON_CPU.keys(), calls


#: where JSON is parsed without `pellucid.json_files`, and why
PARSES_JSON = {
    "json_files.py": "the one reader",
    "architecture.py": "values of its own",
    "runs/options.py": "values of its own",
    "verify/checks.py": "values of its own",
    "text/tokenizers/base.py": "text that a tokenizer has written",
    "text/tokenizers/beside.py": "values of its own",
    "text/tokenizers/bpe.py": "text that was parsed by the reader before",
    "text/tokenizers/external.py": "text that was parsed by the reader before",
    "text/tokenizers/symbols.py": "text that a tokenizer has written",
    "text/tokenizers/tokenizer.py": "text that was parsed by the reader before",
    "text/tokenizers/words.py": "text that a tokenizer has written",
    "text/chat_template.py": "replies of its own subprocess",
    "text/sandbox.py": "requests of the process that started it",
    "text/read/rows.py": "rows of users' text",
    "text/read/conversations.py": "rows of users' text",
    "text/read/formats.py": "rows of users' text",
    "serve/json_bodies.py": "bodies of requests",
    "generate/grammar_trial.py": "requests of the process that started it",
    "look/stream.py": "a field of a request",
    "hub/gguf.py": "text that a tokenizer has written",
    "hub/write.py": "files that it has just written",
}


def test_files_of_json_have_one_reader():
    calls = {
        short(path)
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "json.loads")
    }
    assert not calls ^ PARSES_JSON.keys()
