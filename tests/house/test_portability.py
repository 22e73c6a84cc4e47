"""What only some systems have stands behind a branch, and text files are the same bytes everywhere.

Everything is run on Linux alone: these tests read what was written for macOS and Windows.
"""

import ast
from pathlib import Path

import pytest
from parsed import tree_of

import pellucid
from pellucid import compiled_source
from pellucid.compiled_source import CompiledSource, compiler_options
from pellucid.runs.launcher import launch
from pellucid.runs.options import RecipeError

SOURCE = Path(pellucid.__file__).parent
#: modules, attributes and arguments of subprocess that Windows lacks, and some of them macOS
MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
ATTRIBUTES = {
    "os": "fork forkpty getuid geteuid getpgid killpg mkfifo nice O_DIRECTORY O_NOFOLLOW sched_getaffinity setsid "
    "statvfs sysconf uname getloadavg posix_fadvise",
    "signal": "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE alarm pause pthread_sigmask setitimer",
    "mmap": "MADV_DONTNEED PROT_READ MAP_SHARED",
    "multiprocessing": "get_context",
}
ARGUMENTS = {"pass_fds", "preexec_fn", "process_group", "start_new_session"}
#: what shows that a function asks which system it is on
ASKS = ("sys.platform", "os.name", "hasattr(", "getattr(", "except ImportError", "suppress(ImportError)")
#: functions that need not ask, and why
CALLED_BEHIND_A_BRANCH = {
    "runs/kept_memory.py:resident_bytes": "called where glibc's thresholds were set",
    "runs/launcher.py:start": "`launch` refuses Windows",
}
#: text files without an end of line in them, or for people alone
ONE_LINE = {"text/tokens/writer.py", "runs/tracking.py", "cli/__init__.py"}


def functions_with(tree, is_one):
    """The innermost function around each node for which `is_one` holds; the module outside of functions."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, function = stack.pop()
        if is_one(node):
            yield function, node
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]


def is_of_one_system(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name in MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in MODULES
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr in ATTRIBUTES.get(node.value.id, "").split()
    return isinstance(node, ast.keyword) and node.arg in ARGUMENTS


def unguarded(path: Path):
    for function, node in functions_with(tree_of(path), is_of_one_system):
        name = f"{path.relative_to(SOURCE).as_posix()}:{getattr(function, 'name', 'the module')}"
        asks = isinstance(function, ast.FunctionDef) and any(word in ast.unparse(function) for word in ASKS)
        if not asks and name not in CALLED_BEHIND_A_BRANCH:
            yield f"{name}: line {getattr(node, 'lineno', '?')}"


def test_what_only_some_systems_have_stands_behind_a_branch():
    files = sorted(SOURCE.rglob("*.py"))
    assert [line for path in files for line in unguarded(path)] == []
    of_one_system = [path for path in files if list(functions_with(tree_of(path), is_of_one_system))]
    assert len(of_one_system) >= 6  # the test finds them


def test_no_file_lies_in_a_folder_of_linux_alone():
    assert [path for path in SOURCE.rglob("*.py") if "/dev/shm" in path.read_text(encoding="utf-8")] == []


def writes_text(node: ast.AST) -> bool:
    """Whether it is a call that writes a text file whose ends of line depend on the system."""
    if not isinstance(node, ast.Call) or any(keyword.arg == "newline" for keyword in node.keywords):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    modes = {argument.value for argument in node.args[-1:] if isinstance(argument, ast.Constant)}
    return name == "write_text" or (name == "open" and bool(modes & {"w", "a", "x", "wt", "at", "xt"}))


def test_text_files_have_the_same_ends_of_line_everywhere():
    """Checksums and offsets of files are of bytes."""
    calls = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if writes_text(node)
    }
    assert calls <= ONE_LINE


def test_apples_compiler_gets_options_that_it_knows(monkeypatch):
    monkeypatch.setattr(compiled_source.sys, "platform", "darwin")
    monkeypatch.setattr(compiled_source.platform, "machine", lambda: "arm64")
    options = compiler_options()
    assert options.count("-fopenmp") == 1
    assert options[options.index("-fopenmp") - 1] == "-Xclang"
    assert "-march=native" not in options
    (folder,) = [word.removeprefix("-L") for word in options if word.startswith("-L")]
    assert (Path(folder).parent / "__init__.py").exists()  # PyTorch's


def test_windows_compiles_nothing_and_has_one_process(monkeypatch):
    monkeypatch.setattr(compiled_source.sys, "platform", "win32")
    library, why = CompiledSource(Path(__file__)).load()
    assert library is None
    assert "WSL" in why
    with pytest.raises(RecipeError, match="Linux, macOS and WSL"):
        launch(2, ["train"])
