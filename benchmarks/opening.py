"""What opening a folder of weights takes, beside reading the bytes of its files.

    python -m benchmarks.opening [--threads 1 2] [--layers 28] [--rounds 9] [--folder FOLDER]

The folder holds random bfloat16 weights in five shards, of Qwen3-0.6B's shape but for its vocabulary (32,000 tokens),
which the page cache keeps. Opening it with `dtype=torch.bfloat16`, by one thread or more, and `read_bytes()` of its
weight files take turns in one process. FOLDER is written where it is not there, and kept.
"""

import argparse
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch

import pellucid
from benchmarks.conversion import Random
from benchmarks.side_by_side import header, interleave, seconds, show, spread
from pellucid.hub.families import config_of, each_to_theirs
from pellucid.hub.folder import LoadWarning
from pellucid.hub.write import write_object, write_tensors
from pellucid.presets import preset
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

SHARDS = 5


def write_folder(folder: Path, n_layers: int) -> None:
    """A Qwen3-0.6B of random bfloat16 weights."""
    a = preset("qwen3", 32_000).with_fields({"n_layers": n_layers, "n_ctx": 512})
    random = Random(a)
    n_bytes = sum(2 * shape.numel() for shape in random.shapes.values())
    folder.mkdir(parents=True)
    learn_tokenizer("bpe", ["to be, or not to be. to be, or not to be"], 260).save(folder)
    write_object(folder / "config.json", config_of(a) | {"dtype": "bfloat16"})
    weights = {name: x.bfloat16() for name, x in random.items()}
    write_tensors(folder, lambda: each_to_theirs(weights, a), int(n_bytes / SHARDS * 1.02) + 1)


def open_with(folder: Path, threads: int) -> None:
    """Open the folder by so many threads."""
    torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)  # its tokenizer has fewer ids than the embedding has rows
        pellucid.load(folder, device="cpu", dtype=torch.bfloat16)


def read_and_keep(paths: list[Path]) -> None:
    """Read the bytes of all files, which are in memory together at the end, as a model's weights are."""
    _ = [path.read_bytes() for path in paths]


def read_one_by_one(paths: list[Path]) -> None:
    """Read the bytes of each file into memory that the one before has given back."""
    for path in paths:
        path.read_bytes()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "folder"
        if not folder.exists():
            write_folder(folder, options.layers)
        paths = sorted(folder.glob("*.safetensors"))
        ways = {"read_bytes, kept": seconds(partial(read_and_keep, paths))}
        ways |= {"read_bytes, one by one": seconds(partial(read_one_by_one, paths))}
        ways |= {f"load, {n} threads": seconds(partial(open_with, folder, n)) for n in options.threads}
        taken = interleave(ways, options.rounds)  # the first call imports modules, and is not kept
        n_bytes = sum(path.stat().st_size for path in paths)
    print(*header(torch.device("cpu"), ["pellucid"]), f"{n_bytes / 1e6:,.0f} MB in {len(paths)} files", sep="\n")
    read = taken["read_bytes, kept"]
    rows = [
        [name, spread(each, digits=2), f"{min(each.values):.2f}", spread(read.ratio_to(each), digits=2)]
        for name, each in taken.items()
    ]
    show("", ["", "seconds", "fastest", "x read_bytes, kept"], rows)


if __name__ == "__main__":
    main()
