"""Faults in real processes: `make drills` prints their table, which is in docs/log.md; the slow tests run a few.

Each drill starts `pellucid train` as a user would, does it harm at random moments, and compares what is left with a run
that nothing happened to.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "training"))

from tiny import assert_same_run, rows, write_text

from pellucid.runs.checkpoint import folder_of, load_checkpoint, steps_of

OPTIONS = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_ctx": 16,
    "dropout": 0.1,
    "batch": 4,
    "precision": "float32",
    "compile": "no",
    "attention": "fused",
    "device": "cpu",
    "checkpoint_every": 10,
    "evaluate_every": 20,
    "keep_last": 2,
    "sample_every": -1,
}
#: seconds between two faults: shorter than a start takes, and as long as many steps
MOMENTS = (1.0, 9.0)
#: seconds after which a command has hung
HUNG = 600


@dataclass(frozen=True)
class Drill:
    """What was done, how often, and what came of it."""

    fault: str
    count: int
    outcome: str


class Runs:
    """The runs of a drill in one folder: the same text and options, by some number of processes."""

    def __init__(self, folder: Path, n: int, n_steps: int, rng: random.Random):
        self.folder, self.n, self.n_steps, self.rng = folder, n, n_steps, rng
        self.text = folder / "text.txt" if (folder / "text.txt").exists() else write_text(folder)
        self.undisturbed = folder / f"undisturbed-{n}"
        self.log = folder / f"log-{n}.txt"
        process = self.start(self.undisturbed)
        assert process.wait(HUNG) == 0, self.log.read_text()[-2000:]

    def start(self, out: Path, *more: str) -> subprocess.Popen[bytes]:
        """The command, begun; a run that exists is resumed."""
        divided = {"parallel.shard": self.n} if self.n > 1 else {}
        words = [f"--set={name}={value}" for name, value in (OPTIONS | divided).items()]
        words = [str(self.text), "--tokenizer=byte", f"--steps={self.n_steps}", f"--processes={self.n}", *words]
        words = ["--resume", f"--processes={self.n}"] if (out / "recipe.json").exists() else words
        environment = os.environ | {"PELLUCID_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            command = [sys.executable, "-m", "pellucid", "train", *words, f"--out={out}", *more]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def trainers(self, process: subprocess.Popen[bytes]) -> list[int]:
        """The processes that train: the command itself, or those that it has started."""
        return [process.pid] if self.n == 1 else trainers_of(process.pid)

    def wait_for(self, process: subprocess.Popen[bytes], when: Callable[[], bool]) -> None:
        """Return when it is so, or the command has ended."""
        ends = time.monotonic() + HUNG
        while process.poll() is None and not when():
            assert time.monotonic() < ends, f"the command hung: {self.log.read_text()[-2000:]}"
            time.sleep(0.01)


def trainers_of(pid: int) -> list[int]:
    """The processes that this launcher has started to train; it has other children too."""
    trainers = []
    with contextlib.suppress(OSError):  # one of them, or the launcher, has just ended
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"LOCAL_RANK=" in Path(f"/proc/{child}/environ").read_bytes():
                trainers.append(int(child))
    return trainers


def killed(runs: Runs, count: int) -> Drill:
    """kill -9 of a random process at random moments, until the run is done all the same."""
    done = n_runs = 0
    while done < count:
        out = runs.folder / f"killed-{runs.n}-{n_runs}"
        n_runs += 1
        more = ["--max-restarts=1000"] if runs.n > 1 else []
        process = runs.start(out, *more)
        while True:
            moment = time.monotonic() + runs.rng.uniform(*MOMENTS)
            runs.wait_for(process, lambda moment=moment: time.monotonic() > moment)
            if process.poll() == 0:
                break
            if runs.n == 1 and process.poll() is not None:
                process = runs.start(out)
            elif done < count and (trainers := runs.trainers(process)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(runs.rng.choice(trainers), signal.SIGKILL)
                    done += 1
        assert_same_run(out, runs.undisturbed)
    unreadable = runs.log.read_text(errors="replace").count("passed over")
    assert unreadable == 0, f"{unreadable} checkpoints were unreadable"
    what = f"kill -9 of a random process, {runs.n} training"
    return Drill(
        what, done, f"{n_runs} runs of {runs.n_steps} steps end bit for bit as without; 0 checkpoints unreadable"
    )


def terminated(runs: Runs, count: int) -> Drill:
    """SIGTERM to one process or to the command at random moments."""
    done = 0
    for k in itertools.count():
        if done == count:
            break
        assert k < 10 * count, f"of {k} runs only {done} were still training when SIGTERM came: take more steps"
        out = runs.folder / f"terminated-{runs.n}-{k}"
        process = runs.start(out)
        after = runs.rng.randrange(1, runs.n_steps // 2)
        runs.wait_for(process, lambda out=out, after=after: last_step(out) >= after)
        trainers = runs.trainers(process)
        if k % 2 or not trainers:
            process.send_signal(signal.SIGTERM)
        else:
            with contextlib.suppress(ProcessLookupError):  # it has just taken its last step and ended
                os.kill(runs.rng.choice(trainers), signal.SIGTERM)
        if process.wait(HUNG) == 0:
            assert_same_run(out, runs.undisturbed)
            continue  # it was done before the signal came
        assert process.returncode == 143, runs.log.read_text()[-2000:]
        done += 1
        assert steps_of(out)[-1] == last_step(out), "steps were taken that no checkpoint has"
        assert runs.start(out).wait(HUNG) == 0
        assert_same_run(out, runs.undisturbed)
    return Drill(
        f"SIGTERM to one process or to the command, {runs.n} training",
        count,
        "every step taken has its checkpoint; resumed, the run ends bit for bit as without",
    )


def last_step(run: Path) -> int:
    """The last step that the run's metrics have."""
    if not (run / "metrics.jsonl").exists():
        return 0
    return max((row["step"] for row in rows(run) if "loss" in row), default=0)


def damaged(runs: Runs, flips: int, cuts: int) -> list[Drill]:
    """Bits flipped and ends cut off in any file of the newest checkpoint."""
    before, newest = steps_of(runs.undisturbed)[-2:]
    files = sorted(folder_of(runs.undisturbed, newest).iterdir())
    for k in range(flips + cuts):
        path = files[k % len(files)]
        content = path.read_bytes()
        spoilt = bytearray(content)
        spoilt[runs.rng.randrange(len(spoilt))] ^= 1 << runs.rng.randrange(8)
        path.write_bytes(spoilt if k < flips else content[: runs.rng.randrange(len(content))])
        checkpoint, passed = load_checkpoint(runs.undisturbed)
        path.write_bytes(content)
        assert checkpoint.step == before, path
        assert path.name in passed[0]
    outcome = "all found, the file named, and the checkpoint before taken"
    return [Drill("one bit flipped in a file", flips, outcome), Drill("a file cut short", cuts, outcome)]


def drills(folder: Path, share: float, n_steps: int = 300, seed: int = 0) -> list[Drill]:
    """This share of the full count, in runs of `n_steps`: 200 kills, 8 signals, 60 flipped bits, 20 files cut short."""
    rng, results = random.Random(seed), []
    for n in (1, 2):
        runs = Runs(folder, n, n_steps, rng)
        results.append(killed(runs, max(1, round(100 * share))))
        results.append(terminated(runs, max(1, round(4 * share))))
    return [*results, *damaged(runs, max(1, round(60 * share)), max(1, round(20 * share)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full count")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="drills-"))
    print("| fault | count | outcome |\n| --- | --- | --- |")
    for drill in drills(folder, asked.share, seed=asked.seed):
        print(f"| {drill.fault} | {drill.count} | {drill.outcome} |", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
