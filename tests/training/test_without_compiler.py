"""A run that compiles nothing does not import PyTorch's compiler, which takes more than a second
(docs/experiments/step-speed.md); a run whose C++ functions cannot be compiled says so.
"""

import json
import subprocess
import sys

import pytest
from tiny import FIELDS

import pellucid
from pellucid.training import compiled_functions

SCRIPT = """
import sys
from pathlib import Path
import pellucid

folder, compiled = Path(sys.argv[1]), sys.argv[2]
(folder / "text.txt").write_text("To be, or not to be, that is the question.\\n" * 60)
fields = {"text.tokenizer": "byte", "model.n_ctx": 16, "model.d_model": 16, "model.n_layers": 1}
fields |= {"train.batch": 4, "train.evaluate_every": 2, "train.compile": compiled}
pellucid.train(folder / "text.txt", out=folder / "run", steps=4, fields=fields)
sys.exit(3 if "torch._dynamo" in sys.modules else 0)
"""


@pytest.mark.parametrize("compiled", ["no", pytest.param("yes", marks=pytest.mark.slow)])
def test_only_a_compiled_run_imports_the_compiler(tmp_path, compiled):
    """Every optimiser, tables of n-grams, the compiled cross-entropy (256 ids), evaluations and a sample among it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), compiled], capture_output=True, text=True)
    assert done.returncode == {"no": 0, "yes": 3}[compiled], done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-00000004").exists()


def test_c_plus_plus_functions_that_cannot_be_compiled_are_named_at_the_start_and_on_resuming(
    text, tmp_path, capsys, monkeypatch
):
    fields = {name: value for name, value in FIELDS.items() if name != "steps"}

    def train(run: str, steps: int, **options) -> str:
        inputs = () if options else (text,)
        pellucid.train(*inputs, out=tmp_path / run, steps=steps, show=True, fields=fields, **options)
        return capsys.readouterr().out

    assert "C++ functions" not in train("with", 2)
    for source in compiled_functions.SOURCES.values():
        monkeypatch.setattr(source, "load", lambda: (None, "there is no C++ compiler (c++)"))
        monkeypatch.setattr(source, "is_loaded", False)
    names = "step_functions, cross_entropy, denormals"
    said = (
        f"warning: C++ functions of training cannot be used here ({names}): there is no C++ compiler (c++). PyTorch's "
        "operations take their place: steps take longer, and last digits differ."
    )
    assert train("without", 2).count(said) == 1
    machine = json.loads((tmp_path / "without" / "machine.json").read_bytes())
    assert machine["compiled_functions"] == dict.fromkeys(names.split(", "), "there is no C++ compiler (c++)")
    resumed = train("with", 4, resume=True)
    assert said in resumed
    assert f"warning: the run began with these C++ functions ({names}): the last digits" in resumed
    monkeypatch.undo()
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    resumed = train("without", 4, resume=True)
    assert said not in resumed
    assert f"warning: the run began without these C++ functions ({names}): the last digits" in resumed
