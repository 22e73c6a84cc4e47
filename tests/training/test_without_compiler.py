"""A run that compiles nothing does not import PyTorch's compiler, which takes more than a second (docs/log.md)."""

import subprocess
import sys

import pytest

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
