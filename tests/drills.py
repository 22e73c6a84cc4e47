"""Faults in real processes: `make drills` prints their table (docs/experiments/processes.md); the slow tests run a few.

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
    "sample_every": 0,
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

    def start_to_a_tenth(self, out: Path) -> subprocess.Popen[bytes]:
        """The command, which has taken a tenth of its steps."""
        process = self.start(out)
        self.wait_for(process, lambda: last_step(out) >= self.n_steps // 10)
        return process

    def resume_to_the_end(self, out: Path) -> None:
        """Resume the run and compare it, bit for bit, with the undisturbed one."""
        assert self.start(out).wait(HUNG) == 0, self.log.read_text()[-2000:]
        assert_same_run(out, self.undisturbed)

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
        runs.resume_to_the_end(out)
    return Drill(
        f"SIGTERM to one process or to the command, {runs.n} training",
        count,
        "every step taken has its checkpoint; resumed, the run ends bit for bit as without",
    )


def signalled_twice(runs: Runs, count: int) -> Drill:
    """SIGINT twice to the command: every process ends, and the run can be resumed."""
    for k in range(count):
        out = runs.folder / f"twice-{runs.n}-{k}"
        process = runs.start_to_a_tenth(out)
        trainers = runs.trainers(process)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.wait(60) in (0, 130), runs.log.read_text()[-2000:]
        wait_until_ended(trainers)
        runs.resume_to_the_end(out)
    return Drill(
        f"SIGINT twice, {runs.n} training", count, "all processes end; resumed, the run ends bit for bit as without"
    )


def launcher_killed(runs: Runs, count: int) -> Drill:
    """kill -9 of the command that has started the processes."""
    for k in range(count):
        out = runs.folder / f"launcher-{runs.n}-{k}"
        process = runs.start_to_a_tenth(out)
        trainers = trainers_of(process.pid)
        process.kill()
        process.wait()
        wait_until_ended(trainers)
        assert steps_of(out)[-1] == last_step(out), "steps were taken that no checkpoint has"
        runs.resume_to_the_end(out)
    return Drill(
        f"kill -9 of the command, {runs.n} training",
        count,
        "its processes save and end; resumed, the run ends bit for bit as without",
    )


def killed_while_waiting(runs: Runs, count: int) -> Drill:
    """kill -9 of the command while one of its processes has been stopped and the others wait for it."""
    for k in range(count):
        out = runs.folder / f"waiting-{runs.n}-{k}"
        process = runs.start_to_a_tenth(out)
        stopped, *waiting = runs.rng.sample(trainers := trainers_of(process.pid), len(trainers))
        os.kill(stopped, signal.SIGSTOP)
        process.kill()
        process.wait()
        wait_until_ended(waiting)
        os.kill(stopped, signal.SIGCONT)
        wait_until_ended([stopped])
        runs.resume_to_the_end(out)
    return Drill(
        f"kill -9 of the command while its processes wait for one, {runs.n} training",
        count,
        "its processes end; resumed, the run ends bit for bit as without",
    )


def hung_up(runs: Runs, count: int) -> Drill:
    """SIGHUP to the command, as of a closed terminal."""
    for k in range(count):
        out = runs.folder / f"hung-up-{runs.n}-{k}"
        process = runs.start_to_a_tenth(out)
        process.send_signal(signal.SIGHUP)
        assert process.wait(HUNG) in (0, 129), runs.log.read_text()[-2000:]
        assert steps_of(out)[-1] == last_step(out), "steps were taken that no checkpoint has"
        runs.resume_to_the_end(out)
    return Drill(
        f"SIGHUP to the command, {runs.n} training",
        count,
        "every step taken has its checkpoint; resumed, the run ends bit for bit as without",
    )


def written_to_full_disk(runs: Runs, count: int) -> Drill:
    """Standard output and errors on a full disk."""
    for k in range(count):
        out, log = runs.folder / f"full-{runs.n}-{k}", runs.log
        runs.log = Path("/dev/full")
        process = runs.start(out)
        runs.log = log
        assert process.wait(HUNG) == 0
        assert_same_run(out, runs.undisturbed)
    return Drill(f"lines written to a full disk, {runs.n} training", count, "the run ends bit for bit as without")


def wait_until_ended(pids: list[int]) -> None:
    """Return when none of these processes runs."""
    ends = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid) for pid in pids):
        assert time.monotonic() < ends, f"of the processes {pids} some still run"
        time.sleep(0.05)


def state_of(pid: int) -> str:
    """The letter of a process's state; Z where it has ended, and nobody has asked how."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


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
    """This share of the full count, in runs of `n_steps`: 208 kills, 24 signals, 8 full disks, 60 flipped
    bits, 20 files cut short."""
    rng, results = random.Random(seed), []
    for n in (1, 2):
        runs = Runs(folder, n, n_steps, rng)
        results.append(killed(runs, max(1, round(100 * share))))
        few = max(1, round(4 * share))
        results += [drill(runs, few) for drill in (terminated, signalled_twice, hung_up, written_to_full_disk)]
        results += [drill(runs, few) for drill in (launcher_killed, killed_while_waiting) if n > 1]
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
