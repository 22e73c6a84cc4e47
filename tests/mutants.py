"""Mutation testing: change one operator, number or word of the source; some test of the module must then fail.

`python tests/mutants.py` (`make mutants`) draws a seeded sample of mutants for each room of tests/mutants.toml. The
mutants are those of cosmic-ray. Its own runner rewrites files and starts a process for each mutant, which here means
seconds of imports for milliseconds of tests. So this file runs them in another way, in forked processes that import
nothing twice:

- Within a function: pytest collects the tests once. A fork for each mutant replaces the code of the live function and
  runs the tests that call this function until one fails, first those that are fast or have killed others.
- Outside of functions (defaults, constants, decorators, class bodies): a fork that has not imported the package yet
  imports it with the mutated module, and collects the tests itself.

The second way also has the last word about functions that no test calls or that are called while tests are imported
and collected; it runs all tests of the module. Hypothesis does not shrink, for the first failing example is enough. A
test may use ten times the processor time that it needs unchanged, and five seconds more.

Results are appended to a session file, one JSON object a line, and a run continues where the last one was stopped.
After tests or sources were changed, only survivors and mutants of changed modules are run again.
"""

import argparse
import ast
import gc
import hashlib
import importlib.abc
import importlib.util
import itertools
import json
import math
import os
import pickle
import random
import resource
import select
import signal
import sys
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import hypothesis
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from mutant_operators import ARRAY_OPERATORS

ROOT = Path(__file__).parent.parent
#: an operator is replaced by one of its kind: that bits of a float are a TypeError is no test's merit, and whether two
#: equal strings are identical is no property of the code
KINDS_OF_OPERATOR = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"},
    {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"},
    {"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"},
    {"Is", "IsNot"},
)
#: of the plugins only those that the tests need: a fork that collects tests loads them all
PLUGINS = ["_hypothesis_pytestplugin", "pytest_timeout"]
PYTEST_OPTIONS = [
    *("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-o", "timeout=0", "-o", "addopts=", *(word for name in PLUGINS for word in ("-p", name))),
]


@dataclass(frozen=True, order=True)
class Mutant:
    """The change that an operator of cosmic-ray makes at its nth place in a file."""

    path: str
    line: int
    column: int
    operator: str
    occurrence: int


@dataclass(frozen=True)
class Room:
    """A part of the package: its source files, relative to `source`, each with the test files it is checked by."""

    name: str
    least: float
    tests: Mapping[str, list[str]]
    source: Path = ROOT / "src"
    root: Path = ROOT
    imports: tuple[str, ...] = ()
    grace: float = 5.0  # seconds of processor time beyond ten times what a test needs unchanged

    def file(self, path: str) -> Path:
        """The source file of that name."""
        return self.source / path

    @property
    def test_files(self) -> list[str]:
        """The test files of all modules, each once."""
        return list(dict.fromkeys(file for files in self.tests.values() for file in files))


@dataclass
class Baseline:
    """What the tests do with the unchanged code: their processor time, and which functions each of them calls."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    collecting: set[tuple[str, int]] = field(default_factory=set)
    #: the first test that fails, and how; nothing is measured then
    failure: str = ""


def load_rooms(
    table: Path = ROOT / "tests" / "mutants.toml",
) -> tuple[dict[str, Room], dict[tuple[str, str, str], str]]:
    """The rooms of the table, and the reason of each mutant known to be equivalent, by path, line and mutated line."""
    settings = tomllib.loads(table.read_text(encoding="utf-8"))
    imports = tuple(settings.get("imports", ()))
    root = table.resolve().parent.parent
    base = {"root": root, "source": root / "src", "imports": imports, "grace": settings.get("grace", 5.0)}
    rooms = {name: Room(name, room["least"], room["tests"], **base) for name, room in settings["rooms"].items()}
    equivalent = {(e["path"], e["line"], e["mutant"]): e["because"] for e in settings.get("equivalent", ())}
    return rooms, equivalent


# Mutants ------------------------------------------------------------------------------------------


@cache
def operators() -> dict[str, Any]:
    """Ours for arrays, and those of cosmic-ray that need no arguments and do not cross the kinds of operators."""
    kept = {f"array/{kind.__name__}": kind() for kind in ARRAY_OPERATORS}
    for name in operator_names():
        operator = get_operator(name)
        replaced = set(name.split("_")[1:]) if "BinaryOperator_" in name or "ComparisonOperator_" in name else set()
        crosses = not any(replaced <= kind for kind in KINDS_OF_OPERATOR)
        if not operator.arguments() and not crosses:
            kept[name] = operator()
    return kept


def mutants_of(path: str, source: str, provider: str) -> list[Mutant]:
    """Every mutant of a file by the operators of a provider, core (cosmic-ray's) or array.

    Type annotations are left alone: their mutants fail on import or change nothing.
    """
    annotations = annotated_spans(source)
    counts: Counter[str] = Counter()
    found = []
    for node in ast_nodes(get_ast(source)):
        for name, operator in operators().items():
            if not name.startswith(provider + "/"):
                continue
            for start, _ in operator.mutation_positions(node):
                annotated = any(first <= start < last for first, last in annotations)
                if not annotated and not orders_words(name, node):
                    found.append(Mutant(path, *start, name, counts[name]))
                counts[name] += 1
    return sorted(found)


def orders_words(operator: str, node: Any) -> bool:
    """Whether a comparison with a word would become one by the alphabet, which means nothing."""
    equality = operator.endswith(("_Eq_NotEq", "_NotEq_Eq"))
    words = node.type == "comparison" and any(child.type == "string" for child in node.children)
    return words and "ComparisonOperator_" in operator and not equality


def annotated_spans(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the annotations of arguments, results and variables begin and end, as (line, column)."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            if annotation is not None:
                start = (annotation.lineno, annotation.col_offset)
                spans.append((start, (annotation.end_lineno, annotation.end_col_offset)))
    return spans


def mutated_source(room: Room, mutant: Mutant) -> str:
    """The source of the mutant's file with its change."""
    source = room.file(mutant.path).read_text(encoding="utf-8")
    mutated = mutate_code(source, operators()[mutant.operator], mutant.occurrence)
    if mutated is None:
        raise ValueError(f"{mutant} changes nothing: its occurrence is beyond the last one")
    return mutated


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """The first line that differs, before and after."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(((x.strip(), y.strip()) for x, y in pairs if x != y), ("", ""))


def changes_code(room: Room, mutant: Mutant) -> bool:
    """Whether the mutant compiles, to another code than the original, and with the same parameters.

    To cosmic-ray the star and the stroke that part parameters are operators too.
    """
    original = room.file(mutant.path).read_text(encoding="utf-8")
    try:
        functions, outside = code_differences(
            *(compiled(room, mutant, s) for s in (original, mutated_source(room, mutant)))
        )
    except SyntaxError:
        return False
    return (bool(functions) or outside) and parted(original) == parted(mutated_source(room, mutant))


def parted(source: str) -> list[tuple[int, int]]:
    """How many parameters of each function are given by place alone and by name alone."""
    arguments = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.arguments)]
    return [(len(each.posonlyargs), len(each.kwonlyargs)) for each in arguments]


def sample(room: Room, count: int, seed: int, provider: str = "core") -> list[Mutant]:
    """`count` mutants of the room, drawn without replacement; all of them if there are fewer."""
    sources = {path: room.file(path).read_text(encoding="utf-8") for path in sorted(room.tests)}
    everything = [mutant for path, source in sources.items() for mutant in mutants_of(path, source, provider)]
    random.Random(f"{room.name} {seed}").shuffle(everything)
    return sorted(itertools.islice((m for m in everything if changes_code(room, m)), count))


# Code ---------------------------------------------------------------------------------------------


def compiled(room: Room, mutant: Mutant, source: str) -> CodeType:
    """The code of a source of the mutant's file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, str(room.file(mutant.path)), "exec", dont_inherit=True)


Place = tuple[str, str, int]  # file, qualified name, first line


def code_differences(before: CodeType, after: CodeType) -> tuple[dict[Place, CodeType], bool]:
    """The functions whose code differs, by their place in the old code; whether code outside of functions differs."""
    functions: dict[Place, CodeType] = {}
    outside = False
    is_function = bool(before.co_flags & 2)  # CO_NEWLOCALS: neither a module nor a class body
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (before, after)]
    differs = strip(before) != strip(after) or len(inner[0]) != len(inner[1])
    for x, y in zip(*inner, strict=False):
        deeper, deeper_outside = code_differences(x, y)
        functions |= deeper
        outside |= deeper_outside
        differs |= is_function and bool(deeper)
    if differs and is_function and not before.co_name.startswith("<class"):
        functions[place_of(before)] = after
    return functions, outside or (differs and not is_function)


def strip(code: CodeType) -> tuple:
    """What a code object does by itself, without the functions within it and without line numbers."""
    consts = tuple((type(c), repr(c)) for c in code.co_consts if not isinstance(c, CodeType))
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def place_of(code: CodeType) -> Place:
    """What identifies a function's code."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def live_functions(source: Path) -> dict[Place, list[FunctionType]]:
    """Every function object of the files under `source`, wrapped ones included."""
    functions: dict[Place, list[FunctionType]] = {}
    for x in gc.get_objects():
        if type(x) is FunctionType and x.__code__.co_filename.startswith(str(source)):
            functions.setdefault(place_of(x.__code__), []).append(x)
    return functions


class MutatedImport(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one file from a changed source."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = str(path), source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of the changed module; None for all others."""
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.origin != self.path:
            return None
        spec.loader = self
        return spec

    def get_filename(self, fullname: str) -> str:
        """The file that the code claims to come from."""
        return self.path

    def get_data(self, path: str) -> bytes:
        """The changed source; nothing for a cached compilation."""
        if path != self.path:
            raise OSError(path)
        return self.source.encode()


# Processes ----------------------------------------------------------------------------------------


def forked(task: Callable[[], Any], seconds: float = math.inf, quiet: bool = True) -> tuple[str, Any]:
    """Run a task in a fork: ("done", its result), ("died", None), or ("timeout", None) if it was stopped for its time.

    Raises RuntimeError for an exception of the task.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        if quiet:
            silence()
        try:
            answer = "done", task()
        except BaseException:
            answer = "failed", traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    data = read_all(read, seconds)
    if data is None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if data is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
        return "timeout", None
    outcome, result = pickle.loads(data) if status == 0 else ("died", None)
    if outcome == "failed":
        raise RuntimeError(result)
    return outcome, result


def silence() -> None:
    """Send what is printed to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def read_all(pipe: int, seconds: float) -> bytes | None:
    """All that is written to a pipe until it is closed, or None if that takes longer than `seconds`."""
    data, end = b"", time.monotonic() + seconds
    with os.fdopen(pipe, "rb") as file:
        while True:
            left = None if seconds == math.inf else max(0.0, end - time.monotonic())
            if not select.select([file], [], [], left)[0]:
                return None
            block = os.read(file.fileno(), 1 << 16)
            if not block:
                return data
            data += block


def limit_processor(seconds: float) -> None:
    """Let the system end this process once it has used that much more processor time; 0 lifts the limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory(gigabytes: float = 6.0) -> None:
    """Let allocations fail beyond so much more address space than is in use."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(gigabytes * 2**30),) * 2)


# Tests --------------------------------------------------------------------------------------------


def without_shrinking(item: pytest.Item) -> None:
    """Let a property test stop at its first failing example."""
    test = getattr(item, "function", None)
    if getattr(test, "is_hypothesis_test", False):
        settings = getattr(test, "_hypothesis_internal_use_settings", hypothesis.settings.default)
        test._hypothesis_internal_use_settings = hypothesis.settings(  # type: ignore[union-attr]
            settings, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], database=None, deadline=None
        )


def first_failing(items: list[pytest.Item], seconds: Mapping[str, float], grace: float) -> str | None:
    """The name of the first test that fails, or None; a test that takes too long ends the process."""
    from _pytest.runner import runtestprotocol

    for item, following in zip(items, [*items[1:], None], strict=True):
        limit_processor(10 * seconds[item.nodeid] + grace)
        try:
            failed = any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))
        except BaseException:  # pytest lets some through, such as KeyboardInterrupt and pytest.exit
            failed = True
        limit_processor(0)
        if failed:
            return item.nodeid
    return None


class Session:
    """A pytest plugin that runs a task in the place of the tests, which are collected."""

    def __init__(self, task: Callable[[pytest.Session], Any]) -> None:
        self.task, self.result = task, None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out slow tests, and shrinking."""
        items[:] = [x for x in items if not any(x.get_closest_marker(mark) for mark in ("slow", "gpu"))]
        for item in items:
            without_shrinking(item)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the task."""
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        self.result = self.task(session)
        return True


def measure(room: Room) -> Baseline:
    """Run every test of a room once on the unchanged code. Raises ValueError if one fails."""
    baseline, source = Baseline(), str(room.source)
    called: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(source):
            called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def run(session: pytest.Session) -> None:
        from _pytest.runner import runtestprotocol

        baseline.collecting = set(called)
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            called.clear()
            start = time.process_time()
            reports = runtestprotocol(item, log=False, nextitem=following)
            if failed := [r for r in reports if r.failed]:
                baseline.failure = f"{item.nodeid} fails on the unchanged code:\n{failed[0].longreprtext}"
                return
            if not any(r.skipped for r in reports):
                baseline.seconds[item.nodeid] = time.process_time() - start
                baseline.calls[item.nodeid] = set(called)

    sys.settrace(trace)
    try:
        status = pytest.main([*PYTEST_OPTIONS, *room.test_files], plugins=[Session(run)])
    finally:
        sys.settrace(None)
    if baseline.failure:
        raise ValueError(baseline.failure)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not baseline.seconds:
        raise ValueError(f"the tests of {room.name} do not pass on the unchanged code: pytest says {status!r}")
    return baseline


def known_baseline(room: Room, path: Path) -> Baseline:
    """The baseline, measured once for each state of the package and the tests."""
    state = digest(source_files([room.source, *(room.root / file for file in room.test_files)]))
    if path.exists():
        known, baseline = pickle.loads(path.read_bytes())
        if known == state:
            return baseline
    _, baseline = forked(lambda: measure(room), quiet=False)
    path.write_bytes(pickle.dumps((state, baseline)))
    return baseline


def names_of_tests(room: Room, path: str, baseline: Baseline, lines: Iterable[int] | None = None) -> list[str]:
    """The tests of a module that call a function beginning on one of the lines (None: all tests), fast ones first."""
    files = tuple(room.tests[path])
    file = str(room.file(path))
    starts = None if lines is None else {(file, line) for line in lines}
    names = [
        name for name, calls in baseline.calls.items() if name.startswith(files) and (starts is None or starts & calls)
    ]
    return sorted(names, key=lambda name: baseline.seconds[name])


def run_in_place(
    room: Room, mutants: list[Mutant], baseline: Baseline, done: Callable[[Mutant, str, str], None]
) -> None:
    """Collect once, then run each mutant of a function in a fork that has the function's code replaced.

    `done` gets the mutants whose outcome is certain, with the outcome and the test; all others need the other way.
    """

    def run(session: pytest.Session) -> None:
        functions = live_functions(room.source)
        items = {item.nodeid: item for item in session.items}
        kills: Counter[str | None] = Counter()
        gc.collect()
        gc.freeze()
        for mutant in mutants:
            source = room.file(mutant.path).read_text(encoding="utf-8")
            codes = (compiled(room, mutant, s) for s in (source, mutated_source(room, mutant)))
            changed, outside = code_differences(*codes)
            living = {place: functions[place] for place in changed if place in functions}
            names = names_of_tests(room, mutant.path, baseline, [place[2] for place in changed])
            names.sort(key=lambda name: baseline.seconds[name] / (1 + 9 * kills[name]))
            if outside or not living or not names:
                continue

            def task(names=names, living=living, changed=changed) -> str | None:
                limit_memory()
                for place, objects in living.items():
                    for function in objects:
                        function.__code__ = changed[place]
                return first_failing([items[name] for name in names], baseline.seconds, room.grace)

            expected = sum(baseline.seconds[name] for name in names)
            outcome, name = forked(task, 60 + 40 * expected)
            starts = {(place[0], place[2]) for place in changed}
            if outcome != "done" or name is not None:
                done(mutant, "killed" if outcome == "done" else outcome, name or "")
                kills[name] += name is not None
            elif not starts & baseline.collecting:
                done(mutant, "survived", "")

    status = pytest.main([*PYTEST_OPTIONS, *room.test_files], plugins=[Session(run)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise ValueError(f"the tests of {room.name} could not be run: pytest says {status!r}")


def run_by_import(room: Room, mutant: Mutant, baseline: Baseline) -> tuple[str, str]:
    """Import the package with the mutated module, collect the tests of the module and run them: outcome and test."""
    names = names_of_tests(room, mutant.path, baseline)
    file = str(room.file(mutant.path))
    touching = [n for n in names if any(f == file for f, _ in baseline.calls[n])]
    names = touching + [n for n in names if n not in set(touching)]

    def run(session: pytest.Session) -> str | None:
        items = {item.nodeid: item for item in session.items}
        limit_processor(0)
        if missing := [name for name in names if name not in items]:
            return f"{missing[0]} is no longer collected"
        return first_failing([items[name] for name in names], baseline.seconds, room.grace)

    def task() -> str | None:
        limit_memory()
        sys.meta_path.insert(0, MutatedImport(room.file(mutant.path), mutated_source(room, mutant)))
        limit_processor(120)
        session = Session(run)
        status = pytest.main([*PYTEST_OPTIONS, *room.tests[mutant.path]], plugins=[session])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "collection fails"
        return session.result

    outcome, name = forked(task, 180 + 40 * sum(baseline.seconds[name] for name in names))
    if outcome != "done":
        return outcome, ""
    return ("killed", name) if name is not None else ("survived", "")


# A run --------------------------------------------------------------------------------------------


def digest(files: Iterable[Path]) -> str:
    """A hash of the contents of files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]


@dataclass
class Log:
    """The session file: what was found about each mutant."""

    room: Room
    path: Path
    records: dict[tuple, dict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.sources = {path: digest([self.room.file(path)]) for path in self.room.tests}
        tests = {path: [self.room.root / file for file in files] for path, files in self.room.tests.items()}
        self.tests = {path: digest(source_files(files)) for path, files in tests.items()}
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            record = json.loads(line)
            self.records[self.key(record["mutant"]), record["source"]] = record

    @staticmethod
    def key(mutant: Mapping) -> tuple:
        """What tells one mutant of a file from another."""
        return tuple(mutant[name] for name in ("path", "operator", "occurrence"))

    def of(self, mutant: Mutant) -> dict | None:
        """What is known about a mutant of the present source; a survivor of other tests counts as unknown."""
        record = self.records.get((self.key(asdict(mutant)), self.sources.get(mutant.path)))
        if record and record["outcome"] == "survived" and record["tests"] != self.tests[mutant.path]:
            return None
        return record

    def add(self, mutant: Mutant, outcome: str, by: str) -> None:
        """Write a result down and print it."""
        source = self.room.file(mutant.path).read_text(encoding="utf-8")
        before, after = changed_lines(source, mutated_source(self.room, mutant))
        record = {"mutant": asdict(mutant), "source": self.sources[mutant.path], "tests": self.tests[mutant.path],
                  "outcome": outcome, "by": by, "before": before, "after": after}  # fmt: skip
        self.records[self.key(asdict(mutant)), record["source"]] = record
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{outcome:8} {mutant.path}:{mutant.line} {describe(mutant)} {by.rpartition('::')[2]}", flush=True)


def source_files(paths: Iterable[Path]) -> list[Path]:
    """The test files of the given files and folders."""
    return [f for path in paths for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def describe(mutant: Mutant) -> str:
    """The operator without its provider."""
    return mutant.operator.removeprefix("core/")


def run(room: Room, mutants: list[Mutant], log: Log) -> None:
    """Find the outcome of every mutant that the session file does not know yet."""
    waiting = [m for m in mutants if log.of(m) is None]
    if not waiting:
        return
    baseline = known_baseline(room, log.path.with_suffix(".baseline"))
    print(f"{len(baseline.seconds)} tests pass unchanged in {sum(baseline.seconds.values()):.0f} s", flush=True)
    forked(lambda: run_in_place(room, waiting, baseline, log.add), quiet=False)
    log.records |= Log(room, log.path).records  # the fork's
    for mutant in waiting:
        if log.of(mutant) is None:
            log.add(mutant, *run_by_import(room, mutant, baseline))


def report(room: Room, mutants: list[Mutant], log: Log, equivalent: Mapping[tuple, str]) -> Iterator[str]:
    """A line for each module and for the room; the survivors, each with the reason why it is equivalent if it is."""
    outcomes = {m: log.of(m) for m in mutants}
    width = max(map(len, room.tests))
    yield f"{'':{width}}  mutants  killed  by time or a crash  survived"
    for path in [*sorted(room.tests), ""]:
        of = [r["outcome"] for m, r in outcomes.items() if r and m.path.startswith(path)]
        other = len(of) - of.count("killed") - of.count("survived")
        name = path or f"{room.name}, all"
        yield f"{name:{width}}  {len(of):7}  {of.count('killed') + other:6}  {other:18}  {of.count('survived'):8}"
    for mutant, record in outcomes.items():
        if record and record["outcome"] == "survived":
            because = equivalent.get((mutant.path, record["before"], record["after"]), "NOT KILLED")
            yield f"{mutant.path}:{mutant.line}: {record['before']}\n    -> {record['after']}\n    {because}"


def killed_share(mutants: list[Mutant], log: Log) -> float:
    """The share of the mutants that some test tells from the original."""
    outcomes = [r["outcome"] for m in mutants if (r := log.of(m))]
    return 1 - outcomes.count("survived") / len(outcomes) if outcomes else 1.0


def main() -> int:
    """Run the rooms and print the tables; 1 if a room's share of killed mutants is below the least of the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", help="the rooms to run; all of them if none is given")
    parser.add_argument("--table", type=Path, default=ROOT / "tests" / "mutants.toml", help="rooms and their tests")
    parser.add_argument("--count", type=int, default=300, help="how many mutants to draw in each room")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--operators", choices=("core", "array"), default="core", help="cosmic-ray's, or ours for arrays"
    )
    parser.add_argument("--session", type=Path, default=ROOT / ".cache" / "mutants", help="folder of the session files")
    parser.add_argument("--report", action="store_true", help="only print what the session files hold")
    options = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    rooms, equivalent = load_rooms(options.table)
    if unknown := set(options.rooms) - rooms.keys():
        parser.error(f"no room is named {', '.join(sorted(unknown))}: choose among {', '.join(rooms)}")
    enough = True
    for name in options.rooms or rooms:
        room = rooms[name]
        os.chdir(room.root)
        sys.path[:0] = [str(room.source), str(ROOT)]  # the root too: tests import each other from there
        for module in room.imports:
            importlib.import_module(module)
        mutants, log = (
            sample(room, options.count, options.seed, options.operators),
            Log(room, options.session / f"{name}.jsonl"),
        )
        if not options.report:
            run(room, mutants, log)
        print(*report(room, mutants, log, equivalent), sep="\n")
        share = killed_share(mutants, log)
        print(f"{name}: {share:.1%} are killed, {room.least:.0%} are asked for\n", flush=True)
        enough &= share >= room.least
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
