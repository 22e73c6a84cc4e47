"""Training nanoGPT on characters of a text, in a copy of a clone, and its logits, beside which ours are measured."""

import pickle
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.side_by_side import BenchmarkError
from benchmarks.strided_loss import Logits

#: nanoGPT's recipe for a CPU, from its README
RECIPE = {
    "device": "cpu", "compile": False, "eval_iters": 20, "log_interval": 100, "block_size": 64, "batch_size": 12,
    "n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0, "out_dir": "out", "always_save_checkpoint": True,
}  # fmt: skip


def run(command: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of the process, and what it printed."""
    start = time.perf_counter()
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise BenchmarkError((ended.stderr or ended.stdout)[-2000:])
    return time.perf_counter() - start, ended.stdout


class NanoGPT:
    """A copy of a clone in `folder`, with a text prepared as its own script does; all characters have ids."""

    def __init__(self, clone: Path, train: str, held_out: str, folder: Path) -> None:
        self.copy = folder / "nanoGPT"
        shutil.copytree(clone, self.copy, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
        characters = sorted(set(train + held_out))
        number = {c: i for i, c in enumerate(characters)}
        data = self.copy / "data" / "shakespeare_char"
        data.mkdir(parents=True, exist_ok=True)
        parts = [np.array([number[c] for c in text], dtype=np.uint16) for text in (train, held_out)]
        parts[0].tofile(data / "train.bin")
        parts[1].tofile(data / "val.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters), "itos": {}, "stoi": number}))
        self.held_out = torch.from_numpy(parts[1].astype(np.int64))

    def train(self, steps: int, **changes: Any) -> tuple[float, str]:
        """By its recipe for so many steps: seconds of the process, and what it printed."""
        fields = {**RECIPE, "max_iters": steps, "lr_decay_iters": steps, "eval_interval": min(250, steps), **changes}
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py"]
        return run([*command, *(f"--{name}={value}" for name, value in fields.items())], self.copy)

    def steps_in(self, seconds: float, changes: Mapping[str, Any], tried: int = 40) -> int:
        """The steps that fit into so many seconds of the process, by the median of `tried` steps."""
        quick = {**changes, "log_interval": 1, "eval_iters": 1}
        took, printed = self.train(tried, **quick)
        milliseconds = [float(ms) for ms in re.findall(r"^iter \d+: .*time ([\d.]+)ms", printed, re.MULTILINE)]
        if len(milliseconds) < tried:
            raise BenchmarkError(f"nanoGPT printed the time of {len(milliseconds)} of {tried} steps")
        step = statistics.median(milliseconds[5:]) / 1000
        return max(101, int((seconds - (took - sum(milliseconds) / 1000)) / step))

    def logits(self) -> tuple[Logits, int, int]:
        """Of its last checkpoint, with its context and its steps."""
        sys.path.insert(0, str(self.copy))
        from model import GPT, GPTConfig  # type: ignore[import-not-found]

        saved = torch.load(self.copy / "out" / "ckpt.pt", weights_only=False)
        network = GPT(GPTConfig(**saved["model_args"])).eval()
        network.load_state_dict(saved["model"])

        def logits(tokens: Tensor) -> Tensor:
            return network(tokens.contiguous(), tokens.contiguous())[0]  # without targets it gives the last row alone

        return logits, saved["model_args"]["block_size"], saved["iter_num"]
