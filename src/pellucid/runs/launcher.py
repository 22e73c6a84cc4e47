"""Starts the processes that train one network on this machine, passes signals on to them, and waits for their end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from pellucid.runs.interrupt import stopping_signals
from pellucid.runs.options import RecipeError

#: seconds that processes have to end after a second signal
KILLING = 5.0
#: seconds after which a process that does not answer is named
SILENCE = 20.0
#: seconds that the other processes have to end by themselves after one has failed
ENDING = 20.0
#: seconds between two looks at the processes
TICK = 0.1
#: the exit codes after a signal, which all processes obey after the same step
AFTER_SIGNALS = (129, 130, 143)
#: the number of a pipe that ends when the launcher of this process does
LAUNCHED = "PELLUCID_LAUNCHED"
#: seconds that a process has to save and end when its launcher has died
ORPHANED = 30.0


def check_cores(n: int, oversubscribe: bool) -> None:
    """Raise RecipeError for more processes than cores, which wait for each other most of the time."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if n > cores and not oversubscribe:
        raise RecipeError(
            f"--processes {n} on {cores} cores: the processes would wait for each other most of the time; give "
            f"--processes {cores}, or --oversubscribe to start them all the same"
        )


def launch(n: int, words: Sequence[str], max_restarts: int = 0) -> int:
    """Run `pellucid` with these words in `n` processes of this machine; the exit code of the command.

    Where one of them dies, all are started again up to `max_restarts` times. Raises RecipeError on Windows, where no
    process inherits the pipe that ends with its launcher.
    """
    if sys.platform == "win32":
        raise RecipeError("--processes is for Linux, macOS and WSL: leave it out, or run the command in WSL")
    launcher = Launcher(n, [sys.executable, "-m", "pellucid", *words])
    before = {number: signal.signal(number, launcher.handle) for number in stopping_signals()}
    try:
        for restart in range(max_restarts + 1):
            code = launcher.run(restart)
            if code in (0, 2, 3) or launcher.signals or code in AFTER_SIGNALS:
                break
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_launcher(pipe: int) -> None:
    """Wait until the launcher of this process has died, ask the process to save and stop, and end it where it has not
    done so in time: one that waits for another process obeys no signal.
    """
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHANED)
    os._exit(128 + signal.SIGTERM)


class Launcher:
    """The processes of one command, which are started by `run`."""

    def __init__(self, n: int, command: Sequence[str]):
        self.n, self.command = n, command
        #: those that have come, and how many of them were passed on
        self.signals: list[int] = []
        self.n_passed_on = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def run(self, restart: int) -> int:
        """Start the processes and return when all of them have ended, with the exit code of the first that failed."""
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        answers = Answers(self.n, PrefixStore(f"start {restart}", server))
        pipe, processes = os.pipe(), []
        try:
            for rank in range(self.n):
                processes.append(self.start(rank, server.port, restart, pipe[0]))
            return self.wait(processes, answers)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for end in pipe:
                os.close(end)

    def start(self, rank: int, port: int, restart: int, pipe: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.n),
            "LOCAL_WORLD_SIZE": str(self.n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(restart),
            LAUNCHED: str(pipe),
        }
        # a session of its own: Ctrl-C in a terminal comes to the launcher alone, which passes it on
        return subprocess.Popen(self.command, env=environment, pass_fds=[pipe], start_new_session=True)

    def wait(self, processes: Sequence[subprocess.Popen[bytes]], answers: "Answers") -> int:
        failed, ends, killed = 0, float("inf"), set[int]()
        while any(process.poll() is None for process in processes):
            time.sleep(TICK)
            for number in self.signals[self.n_passed_on :]:
                self.n_passed_on += 1
                for process in processes:
                    process.send_signal(number)
                if self.n_passed_on == 2:
                    ends = min(ends, time.monotonic() + KILLING)
            codes = [process.poll() for process in processes]
            if not failed and (bad := [rank for rank, code in enumerate(codes) if code]):
                failed = codes[bad[0]] or 0
                # after a signal the others save, unless they still wait for this one to join them
                if (failed not in AFTER_SIGNALS and not self.signals) or not all(answers.lives):
                    ends = min(ends, time.monotonic() + ENDING)
            if time.monotonic() > ends:
                for rank, process in enumerate(processes):
                    if process.poll() is None:
                        process.kill()
                        killed.add(rank)
            answers.name_silent([rank for rank, code in enumerate(codes) if code is None])
        codes = [process.returncode for process in processes]
        for rank, code in enumerate(codes):
            if code < 0 and rank not in killed and not self.signals:
                print_on_stderr(f"process {rank} was ended by {signal.Signals(-code).name}")
        if codes[0] == 0:
            return 0  # the first process writes, and ends last: whatever the others did, the run is complete
        if self.signals:
            return 128 + self.signals[0]
        failed = failed or next(code for code in codes if code)
        return failed if failed > 0 else 128 - failed


class Answers:
    """What the processes say in the store every second: that they live, and how often they have asked the others."""

    def __init__(self, n: int, store: Store):
        self.store = store
        self.lives, self.asked = [""] * n, [0] * n
        self.lived, self.changed, self.looked = [time.monotonic()] * n, time.monotonic(), time.monotonic()
        self.named: set[int] = set()

    def name_silent(self, ranks: Sequence[int]) -> None:
        """Say which of these processes have not answered for SILENCE seconds, or have kept the others waiting for as
        long; once until that is over.
        """
        now = time.monotonic()
        if now - self.looked < 1:
            return
        self.looked = now
        for rank in ranks:
            if self.store.check([f"alive/{rank}"]) and (value := self.store.get(f"alive/{rank}").decode()):
                if value != self.lives[rank]:
                    self.lives[rank], self.lived[rank] = value, now
                if (asked := int(value.partition(" ")[2])) != self.asked[rank]:
                    self.asked[rank], self.changed = asked, now
        silent = {rank for rank in ranks if self.lives[rank] and now - self.lived[rank] > SILENCE}
        slow: set[int] = set()
        if ranks and now - self.changed > SILENCE:  # all wait for those that have asked less often
            slow = {rank for rank in ranks if self.asked[rank] < max(self.asked[r] for r in ranks)} - silent
        for rank in sorted(silent - self.named):
            print_on_stderr(f"process {rank} has not answered for {SILENCE:.0f} seconds, and the others wait for it")
        for rank in sorted(slow - self.named):
            print_on_stderr(f"the others have waited {SILENCE:.0f} seconds for process {rank}, which is still running")
        self.named = silent | slow


def print_on_stderr(text: str) -> None:
    from pellucid.runs.reporter import say_on_stderr

    say_on_stderr(f"pellucid: {text}")
