"""Every kind of run goes through one pipeline: each of its parts is defined once, and used from one file."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from parsed import tree_of

import pellucid

SOURCE = Path(pellucid.__file__).parent
#: the rooms of the kinds, which describe what is trained and leave to `runs` how
KINDS = ("training", "predictors")
#: what a run is made of, and the file that defines it
PARTS = {
    "start_run": "runs/pipeline.py",
    "resume_run": "runs/pipeline.py",
    "Run": "runs/pipeline.py",
    "Trainer": "runs/trainer.py",
    "Pace": "runs/pace.py",
    "length_asked": "runs/length.py",
    "plan_in_time": "runs/length.py",
    "resolve_intervals": "runs/length.py",
    "make_optimizer": "runs/optimizer.py",
    "Optimizer": "runs/optimizer.py",
    "measure_step": "runs/measure.py",
    "training_step": "runs/step.py",
    "PlainReporter": "runs/reporter.py",
    "LiveReporter": "runs/live_reporter.py",
    "QuietReporter": "runs/reporter.py",
    "Interruption": "runs/interrupt.py",
    "MetricsFile": "runs/metrics.py",
    "write_run_dir": "runs/run_dir.py",
    "training_lock": "runs/run_dir.py",
    "write_checkpoint": "runs/checkpoint.py",
    "Saver": "runs/saver.py",
    "TrainOptions": "runs/options.py",
}
#: what is called in one file alone, which is how every run comes to have it
CALLED_ONCE = {
    "choose_folder": "runs/pipeline.py",
    "write_run_dir": "runs/pipeline.py",
    "training_lock": "runs/pipeline.py",
    "Trainer": "runs/pipeline.py",
    "MetricsFile": "runs/pipeline.py",
    "deterministic_kernels": "runs/pipeline.py",
    "Optimizer": "runs/optimizer.py",
    "length_asked": "runs/pipeline.py",
    "rename_later_checkpoints": None,
}


@cache
def trees():
    return {str(p.relative_to(SOURCE)): tree_of(p) for p in SOURCE.rglob("*.py")}


def definitions(name):
    """The files that define a class or function of this name at their top."""
    return [
        path
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]


@cache
def callers():
    """The files that call something, by its name."""
    found = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found[node.func.id].add(path)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_pipeline_is_defined_once(name):
    assert definitions(name) == [PARTS[name]]


@pytest.mark.parametrize("name", CALLED_ONCE)
def test_a_part_of_the_pipeline_is_used_from_one_file(name):
    expected = {"runs/pipeline.py", "runs/trainer.py"} if CALLED_ONCE[name] is None else {CALLED_ONCE[name]}
    assert callers()[name] == expected


@pytest.mark.parametrize("room", KINDS)
def test_a_kind_has_no_signals_deadlines_or_reporters_of_its_own(room):
    """It is given them: its files may name their types, and make none."""
    for path, tree in trees().items():
        if not path.startswith(f"{room}/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called.split(".")[0] not in ("Interruption", "Pace", "Trainer", "MetricsFile", "signal"), path
            if isinstance(node, ast.ClassDef):
                assert not node.name.endswith("Reporter"), f"{path} defines {node.name}"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                assert not re.match("(start|resume|deadline)(_|$)|settle$", node.name), f"{path} defines {node.name}"
