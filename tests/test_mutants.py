"""Mutation testing itself: it says which mutants of a small package its tests tell from the original."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code

import mutants
from mutant_operators import ARRAY_OPERATORS, LoseOperand, ReverseSequence, SwapArguments

MUTANTS = Path(__file__).parent / "mutants.py"
SOURCE = """
FIRST = 3


def area(width, height):
    return width * height


def negative(x: int | None) -> bool:
    return x < 0


def climb(n, *, step=FIRST):
    height = 0
    while height < n:
        height += step
    return height
"""
TESTS = """
import pytest
from toy.numbers import FIRST, area, climb


def test_area():
    assert area(2, 5) == 10


def test_climb():
    assert FIRST == 3
    assert climb(5) == 6
    assert climb(2, step=1) == 2


@pytest.mark.skip
def test_what_is_skipped_kills_nothing():
    raise AssertionError
"""
TEST_OF_NEGATIVE = """

def test_negative():
    from toy.numbers import negative

    assert [negative(x) for x in (-1, 0, 1)] == [True, False, False]
"""
TABLE = """
grace = 0.3
[rooms.toy]
least = 0.5
[rooms.toy.tests]
"toy/numbers.py" = ["tests/test_toy.py"]
"""


@pytest.fixture
def package(tmp_path):
    for folder in ("src/toy", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/toy/__init__.py").touch()
    (tmp_path / "src/toy/numbers.py").write_text(SOURCE)
    (tmp_path / "tests/test_toy.py").write_text(TESTS)
    (tmp_path / "tests/mutants.toml").write_text(TABLE)
    return tmp_path


def run(package, *options):
    """Run the tool; what it printed, its exit status, and the last record of each mutant as (before, after)."""
    command = [sys.executable, MUTANTS, "--table", package / "tests/mutants.toml", "--session", package / "session"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(package / "src")}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    file = package / "session/toy.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return done, {(r["before"], r["after"]): r for r in records}, len(records)


@pytest.mark.slow
def test_mutants_die_where_a_test_looks_and_survive_where_none_does(package):
    done, records, count = run(package)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {change: record["outcome"] for change, record in records.items()}
    # in a function, in a constant, and in a default made of the constant
    assert outcomes["return width * height", "return width ** height"] == "killed"
    assert records["return width * height", "return width / height"]["by"].endswith("::test_area")
    assert outcomes["FIRST = 3", "FIRST = 4"] == "killed"
    assert outcomes["while height < n:", "while height != n:"] == "timeout"
    # no test calls negative, and its annotation is left alone
    assert {before for (before, _), outcome in outcomes.items() if outcome == "survived"} == {"return x < 0"}
    assert {outcome for (before, _), outcome in outcomes.items() if before == "return x < 0"} == {"survived"}
    assert not [before for before, _ in outcomes if before.startswith(("def negative", "def climb"))]
    assert "NOT KILLED" in done.stdout
    # what is known is not run again
    again, _, same_count = run(package)
    assert same_count == count
    assert again.stdout.endswith(done.stdout[done.stdout.index("mutants  killed") :])
    # a new test: the survivors are run again, and now die
    (package / "tests/test_toy.py").write_text(TESTS + TEST_OF_NEGATIVE)
    done, records, _ = run(package)
    assert "toy: 100.0% are killed" in done.stdout
    assert {record["outcome"] for record in records.values()} == {"killed", "timeout"}


@pytest.mark.slow
def test_too_many_survivors_are_a_failure_and_a_reason_is_shown(package):
    table = TABLE.replace("0.5", "0.99") + (
        '[[equivalent]]\npath = "toy/numbers.py"\nline = "return x < 0"\n'
        'mutant = "return x <= 0"\nbecause = "nobody asks about 0"\n'
    )
    (package / "tests/mutants.toml").write_text(table)
    (package / "src/toy/numbers.py").write_text("def negative(x):\n    return x < 0\n")
    (package / "tests/test_toy.py").write_text("def test_nothing():\n    import toy.numbers\n")
    done, _, _ = run(package)
    assert done.returncode == 1
    assert "nobody asks about 0" in done.stdout


def test_tests_that_fail_on_the_unchanged_code_are_no_measure(package):
    (package / "tests/test_toy.py").write_text(TESTS + "\n\ndef test_wrong():\n    assert area(1, 1) == 2\n")
    done, records, _ = run(package)
    assert done.returncode != 0
    assert "test_wrong" in done.stdout + done.stderr
    assert not records


def test_mutants_are_where_they_say():
    """What is left out is counted all the same: the nth place of an operator is the nth of all."""
    source = 'def f(x: "a" < "b", kind):\n    if kind == "word":\n        return x == 1\n    return x == 2\n'
    found = mutants.mutants_of("f.py", source, "core")
    assert {m.line for m in found if "_Eq_" in m.operator and not m.operator.endswith("NotEq")} == {3, 4}
    for mutant in found:
        mutated = mutate_code(source, mutants.operators()[mutant.operator], mutant.occurrence)
        lines = [k for k, (x, y) in enumerate(zip(source.splitlines(), mutated.splitlines(), strict=True), 1) if x != y]
        assert lines == [mutant.line], mutant


def test_operators_for_arrays_do_what_their_examples_say():
    for operator in ARRAY_OPERATORS:
        for example in operator.examples():
            mutated = mutate_code(example.pre_mutation_code, operator(), example.occurrence)
            assert mutated == example.post_mutation_code
    # names, stars, comprehensions and the first operand of a quotient stay
    for operator in (SwapArguments, ReverseSequence):
        for code in ("f(a, x=b)", "f(*a, b)", "[a for a in b]", "f(a)", "(a,)"):
            assert mutate_code(code, operator(), 0) is None
    assert mutate_code("a / b", LoseOperand(), 0) == "a"
    assert mutate_code("a / b", LoseOperand(), 1) is None


def test_the_table_names_files_and_lines_that_are_there():
    rooms, equivalent = mutants.load_rooms()
    for path, line, _ in equivalent:
        code = (mutants.ROOT / "src" / path).read_text(encoding="utf-8").splitlines()
        assert line in [text.strip() for text in code], f"{path}: {line}"
    for room in rooms.values():
        assert all(room.file(path).is_file() for path in room.tests)
        assert all((room.root / file).is_file() for file in room.test_files)
    covered = {path for room in rooms.values() for path in room.tests}
    for folder in ("reference", "model"):
        files = {f"pellucid/{folder}/{f.name}" for f in (mutants.ROOT / "src/pellucid" / folder).glob("*.py")}
        assert files - covered <= {f"pellucid/{folder}/__init__.py", "pellucid/model/shapes.py"}
