"""A checkpoint in several files is converted, or opened beside its weights, in the memory of 1.3 of the largest."""

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


#: opens a folder in this precision and prints its bytes of weights, and the peak of memory above what there was before
OPENING = """
import sys, torch, pellucid
from pathlib import Path

def resident(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(kind))

dtype = getattr(torch, sys.argv[3])
pellucid.load(sys.argv[1], dtype=dtype)  # a small folder: what is imported meanwhile is no memory of weights
before = resident("VmRSS")
network = pellucid.load(sys.argv[2], dtype=dtype).network
print(sum(p.nbytes for p in network.parameters()), resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_opening_takes_the_weights_and_less_than_a_shard(dtype, tmp_path):
    write_checkpoint(tmp_path / "small", 1, 1, "huggingface")
    _, largest = write_checkpoint(tmp_path / "large", 150, 6, "huggingface")
    command = [sys.executable, "-c", OPENING, str(tmp_path / "small"), str(tmp_path / "large"), dtype]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    weights, most = map(int, done.stdout.split())
    assert weights < most <= weights + TARGET * largest + SMALL
