"""The three notebooks: without outputs, valid, and run by Jupyter's own kernel."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = ("attribute_and_patch", "compare_with_ngrams", "train_and_look")
#: run the notebook named first, in the folder named last, and write it with its outputs to the file between
EXECUTE = """
import sys
import nbclient, nbformat
notebook, to, folder = sys.argv[1:]
read = nbformat.read(notebook, as_version=4)
nbformat.validate(read)
nbclient.NotebookClient(read, timeout=600, resources={"metadata": {"path": folder}}).execute()
nbformat.write(read, to)
"""


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook that hold code."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_the_list_of_examples_names_each():
    assert tuple(sorted(path.stem for path in NOTEBOOKS.iterdir())) == NAMES
    readme = (NOTEBOOKS.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"`notebooks/{name}.ipynb`" in readme for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_no_output_and_installs_what_is_missing(name: str):
    """What nbformat 4.5 wants is checked by nbformat itself in the slow test; here, what would not survive a review."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    first, *others = cells_of(NOTEBOOKS / f"{name}.ipynb")
    assert re.search(r'find_spec\("pellucid"\) is None:\n    %pip install pellucid', "".join(first["source"]))
    for cell in [first, *others]:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    for cell in others:
        compile("".join(cell["source"]), name, "exec")  # without a magic: it runs as Python, too


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_its_figures(name: str, tmp_path: Path, needs_clients: Path):
    """In Jupyter's kernel, from an empty folder, with Pellucid installed; figures and the inspector are HTML."""
    written = tmp_path / "executed.ipynb"
    command = [str(needs_clients), "-c", EXECUTE, str(NOTEBOOKS / f"{name}.ipynb"), str(written), str(tmp_path)]
    source = str(NOTEBOOKS.parents[1] / "src")
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in cells_of(written) for output in cell["outputs"]]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    shown = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    figures = [html for html in shown if html.startswith("<iframe srcdoc=")]
    assert not [output for output in outputs if output["output_type"] == "error"]
    if name == "train_and_look":
        losses = [float(loss) for loss in re.findall(r"^step +\d+ +([\d.]+) nats per token", printed, re.MULTILINE)]
        assert len(losses) > 1
        assert losses[-1] < losses[0] < 6.9  # an untrained model of 1,024 tokens has ln 1024 = 6.93
        assert len(figures) == 1
        assert any(re.match(r'<iframe src="http://127.0.0.1:\d+/#a=KING', html) for html in shown)
    elif name == "attribute_and_patch":
        assert len(figures) == 3
        assert "as it is  Italy." in printed
        assert "edited  France." in printed
    else:
        bits = {who: float(n) for who, n in re.findall(r"^(\S.*?) +([\d.]+) bits per byte", printed, re.MULTILINE)}
        assert {"uniform", "unigram", "bigram", "trigram", "5-gram", "this model"} <= {*bits}
        assert bits["5-gram"] < bits["bigram"] < bits["unigram"] < bits["uniform"]
        assert bits["this model"] < bits["unigram"]
        assert len(figures) == 1
