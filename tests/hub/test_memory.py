"""A checkpoint in several files is converted in the memory of less than one and a third of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.conversion import TARGET, WAYS, write_checkpoint  # noqa: E402

#: what the interpreter may take meanwhile for objects that have nothing to do with the size of the files
SMALL = 8 << 20


@pytest.mark.slow
@pytest.mark.parametrize("way", ["huggingface to pellucid", "pellucid to huggingface"])
def test_memory_is_of_a_shard(way, tmp_path):
    given, to = WAYS[way]
    n_bytes, largest = write_checkpoint(tmp_path / "given", 150, 6, given)
    assert n_bytes > 5 * largest
    command = [
        sys.executable,
        "-m",
        "benchmarks.conversion",
        "--once",
        str(tmp_path / "given"),
        str(tmp_path / "out"),
        to,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["peak"] <= TARGET * largest + SMALL
