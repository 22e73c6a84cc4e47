"""Bits per byte of whole held-out texts after equal times: ours, an earlier edition of ours, nanoGPT, and an n-gram.

    python -m benchmarks.equal_time --data FOLDER --nanogpt PATH [--before SRC] --minutes 1 3 --texts shakespeare udhr

Each trains on the first nine tenths of a text (of every book, or of the lines of all languages in turn), and is scored
on the rest by `benchmarks.strided_loss`. Ours is `pellucid train TEXT --held-out REST --minutes M`: as nanoGPT, it
trains on all nine tenths and watches its loss on the rest. Tiny Shakespeare is read by characters. With `--mix auto`
the run holds an n-gram, and what is scored is both together. nanoGPT has its recipe for CPUs, by characters, in each of
the sizes asked for, with as many steps as fit into the same minutes, start and end included; only the best of its sizes
is to be compared. `--before` is the source folder of an earlier edition. The n-gram is of characters on tiny
Shakespeare and of the default tokens on the other texts. FOLDER has `gutenberg/` and `udhr.zip`. What `--results` holds
already is not run again.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.nanogpt import NanoGPT, run
from benchmarks.side_by_side import header, show
from benchmarks.sizing import of_script
from benchmarks.strided_loss import bits_per_byte
from pellucid.demo import bundled

#: nanoGPT's sizes: that of its README's recipe, a smaller one, that with our context and batch, and a larger one
SIZES: dict[str, dict[str, int]] = {
    "64/2, 12 of 64": {"n_embd": 64, "n_layer": 2, "n_head": 2, "block_size": 64, "batch_size": 12},
    "128/4, 12 of 64": {"n_embd": 128, "n_layer": 4, "n_head": 4, "block_size": 64, "batch_size": 12},
    "128/4, 16 of 128": {"n_embd": 128, "n_layer": 4, "n_head": 4, "block_size": 128, "batch_size": 16},
    "256/4, 16 of 128": {"n_embd": 256, "n_layer": 4, "n_head": 8, "block_size": 128, "batch_size": 16},
}
TEXTS = ("shakespeare", "books", "udhr")


def two_parts(text: str) -> tuple[str, str]:
    """The first nine tenths and the rest."""
    border = int(0.9 * len(text))
    return text[:border], text[border:]


def parts_of(name: str, data: Path) -> tuple[str, str]:
    """What a text is trained on and what is held out of it."""
    if name == "shakespeare":
        return two_parts(bundled("shakespeare").read_text(encoding="utf-8"))
    if name == "udhr":
        return two_parts(of_script(data, ""))
    books = [
        two_parts(file.read_text(encoding="utf-8", errors="replace"))
        for file in sorted((data / "gutenberg").glob("*.txt"))
    ]
    return "\n".join(first for first, _ in books), "\n".join(rest for _, rest in books)


class Contest:
    """The runs of one text, in a folder with its two parts."""

    def __init__(self, name: str, data: Path, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.parts = parts_of(name, data)
        for part, text in zip(("train", "held-out"), self.parts, strict=True):
            (folder / f"{part}.txt").write_text(text, encoding="utf-8", newline="")

    def trained(self, arguments: list[str], source: Path | None = None) -> dict[str, Any]:
        """`pellucid train` with arguments, by the package in `source`: seconds, and what it reaches."""
        environment = {"PYTHONPATH": str(source)} if source else {}
        out = tempfile.mkdtemp(dir=self.folder) + "/run"
        base = ["env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, "-m"]
        text, held_out = self.folder / "train.txt", self.folder / "held-out.txt"
        tokenizer = ["--set", "text.tokenizer=char"] if self.name == "shakespeare" else []
        options = [str(text), "--held-out", str(held_out), *tokenizer, *arguments]
        seconds, _ = run([*base, "pellucid", "train", *options, "--out", out], Path.cwd())
        _, printed = run([*base, "benchmarks.strided_loss", out, str(held_out)], Path.cwd())
        return {"seconds": seconds} | json.loads(printed.splitlines()[-1])

    def nanogpt(self, clone: Path, minutes: float, size: str) -> dict[str, Any]:
        """nanoGPT by its recipe for as long."""
        peer = NanoGPT(clone, *self.parts, self.folder)
        steps = peer.steps_in(60 * minutes, SIZES[size])
        seconds, _ = peer.train(steps, **SIZES[size], eval_interval=steps)
        logits, n_ctx, taken = peer.logits()
        bits = bits_per_byte(logits, peer.held_out, n_ctx, self.parts[1])
        return {"seconds": seconds, "bits_per_byte": bits, "step": taken, "n_ctx": n_ctx, "size": size}


def runs(o: argparse.Namespace, contest: Contest) -> Iterator[tuple[str, float, Callable[[], dict[str, Any]]]]:
    """Who runs, for how many minutes, and how."""
    if o.order:
        given = ["--predictor", "ngram", "--set", f"order={o.order}"]
        yield f"{o.order}-gram", 0, lambda: contest.trained(given)
    for minutes in o.minutes:
        given = ["--minutes", str(minutes)]
        if not o.without_ours:
            yield "ours", minutes, lambda given=given: contest.trained(given)
            yield "ours, --mix auto", minutes, lambda given=given: contest.trained([*given, "--mix", "auto"])
        for seed in o.seeds:
            seeded = [*given, "--set", f"seed={seed}"]
            yield f"ours, seed {seed}", minutes, lambda seeded=seeded: contest.trained(seeded)
        if o.before:
            yield "ours, before", minutes, lambda given=given: contest.trained(given, o.before.resolve())
        for size in o.sizes if o.nanogpt else ():
            yield f"nanoGPT {size}", minutes, lambda m=minutes, s=size: contest.nanogpt(o.nanogpt.resolve(), m, s)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; left out without one")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="of nanoGPT")
    parser.add_argument("--before", type=Path, help="the source folder of an earlier edition; left out without one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="ours too, with each of these seeds")
    parser.add_argument("--without-ours", action="store_true", help="measure the others alone, for --results")
    parser.add_argument("--order", type=int, default=7, help="of the n-gram; 0: none")
    parser.add_argument("--results", type=Path, help="JSON lines, to which each result is added")
    o = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    lines = o.results.read_text().splitlines() if o.results and o.results.exists() else []
    have = {(x["text"], x["who"], x["minutes"]): x for x in map(json.loads, lines)}
    rows = []
    for name in o.texts:
        with tempfile.TemporaryDirectory() as folder:
            contest = Contest(name, o.data, Path(folder))
            for who, minutes, measure in runs(o, contest):
                key = (name, who, minutes)
                if key not in have:
                    have[key] = {"text": name, "who": who, "minutes": minutes} | measure()
                    if o.results:
                        with o.results.open("a") as file:
                            file.write(json.dumps(have[key]) + "\n")
                x = have[key]
                minute = f"{minutes:g}" if minutes else ""
                seconds, bits = f"{x['seconds']:.0f}", f"{x.get('mixed', x['bits_per_byte']):.4f}"
                rows.append([name, minute, who, seconds, x["size"], f"{x['step']:,}", str(x["n_ctx"]), bits])
    columns = ["text", "minutes", "", "seconds", "width/layers/tokens", "steps", "context", "bits per byte"]
    show("the last tenth of each text, strided by half a context", columns, rows)


if __name__ == "__main__":
    main()
