"""Bytes and memory of converting a checkpoint of random numbers: theirs to ours, ours to theirs, ours to one GGUF file.

    python -m benchmarks.conversion --megabytes 1000 --shards 5 --folder /tmp/conversion

Each conversion runs in a process of its own, without the comparison of logits, which holds the network itself. Memory
is what the process holds of its own (RssAnon: mapped files are not counted), above what it held before it opened the
checkpoint; the target is 1.3 times the largest shard.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

TARGET = 1.3
#: what is converted to what: the layout read, the layout written, and options
WAYS = {
    "huggingface to pellucid": ("huggingface", "pellucid"),
    "pellucid to huggingface": ("pellucid", "huggingface"),
    "huggingface to huggingface": ("huggingface", "huggingface"),
    "huggingface to gguf": ("huggingface", "gguf"),
}


def write_checkpoint(folder: Path, megabytes: float, shards: int, layout: str) -> tuple[int, int]:
    """A GPT-2 of random numbers, a tensor at a time; the bytes of its tensors and of its largest file."""
    from pellucid.hub.families import config_of, each_to_theirs
    from pellucid.hub.write import write_object, write_tensors
    from pellucid.presets import preset
    from pellucid.text.tokenizers.tokenizer import learn_tokenizer

    tokenizer = learn_tokenizer("bpe", ["to be, or not to be. to be, or not to be"], 260)
    d_model = max(64, 64 * round((megabytes * 1e6 / 4 / 12 / 12) ** 0.5 / 64))
    a = preset("gpt2", tokenizer.n_vocab).with_fields({"d_model": d_model, "n_heads": d_model // 64, "n_layers": 12})
    folder.mkdir(parents=True)
    tokenizer.save(folder)
    random = Random(a)
    n_bytes = sum(4 * shape.numel() for shape in random.shapes.values())
    size = int(n_bytes / shards * 1.02) + 1
    if layout == "huggingface":
        write_object(folder / "config.json", config_of(a, end_token=tokenizer.separator) | {"dtype": "float32"})
        write_tensors(folder, lambda: each_to_theirs(random, a), size)
    else:
        write_object(folder / "architecture.json", a.to_dict())
        write_tensors(folder, lambda: iter(random.items()), size)
    return n_bytes, max(path.stat().st_size for path in folder.glob("*.safetensors"))


class Random(dict):
    """Every parameter of an architecture, drawn when it is looked up."""

    def __init__(self, a):
        from pellucid.model import Transformer

        with torch.device("meta"):
            self.shapes = {name: p.shape for name, p in Transformer(a).named_parameters()}
        super().__init__(dict.fromkeys(self.shapes))

    def __getitem__(self, name: str) -> torch.Tensor:
        seed = sum(name.encode()) % 2**31
        return torch.randn(self.shapes[name], generator=torch.Generator().manual_seed(seed)) * 0.02

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self[name]) for name in self)


def own_memory() -> int:
    """Bytes that this process holds and no file does."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """The most that `own_memory` was, looked at every millisecond."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.over = 0, False

    def run(self) -> None:
        while not self.over:
            self.most = max(self.most, own_memory())
            time.sleep(0.001)


def convert_once(given: str, destination: str, to: str) -> dict[str, float]:
    """One conversion in this process."""
    from pellucid.conversion import convert

    import_everything()
    base, peak = own_memory(), Peak()
    peak.start()
    began = time.perf_counter()
    done = convert(given, destination, to=to, compare=False)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    peak.over = True
    peak.join()
    return {"bytes": done.n_bytes, "peak": max(0, peak.most - base), "base": base, "seconds": seconds}


def import_everything() -> None:
    """What a conversion loads when it needs it, loaded before: it is not memory of the tensors."""
    import gguf
    import safetensors.torch
    import tokenizers

    from pellucid.model import Transformer
    from pellucid.presets import preset

    assert gguf
    assert safetensors.torch
    assert tokenizers
    torch.set_num_threads(1)
    with torch.device("meta"):  # the shapes of parameters are asked of it: 70 MB of torch's modules
        Transformer(preset("gpt2", 300).with_fields({"n_layers": 1, "d_model": 64, "n_heads": 1}))
    (torch.randn(64, 64) @ torch.randn(64, 64)).sum().item()


def measure(folder: Path, megabytes: float, shards: int) -> list[dict[str, object]]:
    """A row for each way."""
    rows = []
    for way, (given, to) in WAYS.items():
        shutil.rmtree(folder, ignore_errors=True)
        n_bytes, largest = write_checkpoint(folder / "given", megabytes, shards, given)
        command = [
            sys.executable,
            "-m",
            "benchmarks.conversion",
            "--once",
            str(folder / "given"),
            str(folder / "out"),
            to,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append({"way": way, "largest_shard": largest, "share": row["peak"] / largest} | row | {"bytes": n_bytes})
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("conversion-benchmark"))
    parser.add_argument("--once", nargs=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(convert_once(*given.once)))
        return
    rows = measure(given.folder, given.megabytes, given.shards)
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{os.cpu_count()} CPUs, torch {torch.__version__}; target: peak at most {TARGET} x the largest shard")
    print("way | bytes | largest shard | own memory before | peak above it | peak / largest shard | seconds")
    for row in rows:
        sizes = " | ".join(f"{row[name] / 1e6:,.1f} MB" for name in ("bytes", "largest_shard", "base", "peak"))
        print(f"{row['way']} | {sizes} | {row['share']:.2f} | {row['seconds']:.1f}")


if __name__ == "__main__":
    main()
