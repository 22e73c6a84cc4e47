"""The launcher of several processes, with small programs in the place of trainers."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.drills import wait_until_ended
from tiny import forked

from pellucid.runs import launcher as launcher_module
from pellucid.runs.launcher import Answers, Launcher, check_cores
from pellucid.runs.options import RecipeError

#: obeys no first signal, as a process that waits for another one
STUBBORN = (
    "import os, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "open(sys.argv[1] + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(600)"
)


def started(folder: Path, n: int = 2) -> list[int]:
    """The numbers of the processes, when all have started."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        paths = [folder / f"pid-{rank}" for rank in range(n)]
        if all(path.exists() and path.read_text() for path in paths):
            return [int(path.read_text()) for path in paths]
        time.sleep(0.02)
    raise AssertionError("the processes did not start")


def run_of(folder: Path, program: str) -> Launcher:
    return Launcher(2, [sys.executable, "-c", program, str(folder / "pid-")])


def test_a_second_signal_is_passed_on_and_kills_what_does_not_obey(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher_module, "KILLING", 0.2)
    launcher, pids = run_of(tmp_path, STUBBORN), []

    def interrupt_twice() -> None:
        pids.extend(started(tmp_path))
        launcher.handle(signal.SIGINT, None)
        launcher.handle(signal.SIGINT, None)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    assert launcher.run(0) == 130
    thread.join()
    assert launcher.n_passed_on == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((2, 0), 2), ((143, 143), 143), ((0, -9), 0), ((1, -9), 1)]
)
def test_the_exit_code_is_that_of_the_first_that_failed(tmp_path, capsys, codes, expected):
    """Where the first process has ended well, all is written, and one that was killed afterwards is named."""
    choose = f"import os, time; rank = int(os.environ['RANK']); time.sleep(rank); code = {codes}[rank]; "
    program = choose + "os.kill(os.getpid(), -code) if code < 0 else os._exit(code)"
    assert run_of(tmp_path, program).run(0) == expected
    errors = capsys.readouterr().err
    assert errors == ("pellucid: process 1 was ended by SIGKILL\n" if -9 in codes else "")


@pytest.mark.parametrize("does", ["obeys", "waits for another process"])
def test_processes_end_when_their_launcher_was_killed(tmp_path, does):
    """They are asked to save and stop; one that obeys no signal, as where it waits for another one, is ended."""
    wait = "signal.sigwait([signal.SIGTERM]); os._exit(0)" if does == "obeys" else "time.sleep(600)"
    program = (
        "import os, signal, sys, threading, time; from pellucid.runs import launcher; "
        f"launcher.ORPHANED = {600 if does == 'obeys' else 0.2}; pipe = int(os.environ['PELLUCID_LAUNCHED']); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
        "threading.Thread(target=launcher.end_with_launcher, args=(pipe,), daemon=True).start(); "
        f"open(sys.argv[1] + os.environ['RANK'], 'w').write(str(os.getpid())); {wait}"
    )
    pids = []

    def kill(pid: int) -> None:
        pids.extend(started(tmp_path))
        os.kill(pid, signal.SIGKILL)

    assert forked(lambda: run_of(tmp_path, program).run(0), tmp_path, then=kill, hang=60)[0] == -9
    wait_until_ended(pids)


def test_processes_are_started_again_where_one_was_killed(tmp_path, monkeypatch, capsys):
    """As often as is asked for, the last time without a fault; not where the options were refused."""
    monkeypatch.setattr(launcher_module, "ENDING", 0.2)
    program = (
        "import os, signal, sys, time; start, rank = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK']; "
        "open(f'start-{start}-{rank}', 'w').close(); "
        "start == '2' and sys.exit(0); rank == '0' and time.sleep(600); os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher_module, "Launcher", lambda n, command: Launcher(n, [sys.executable, "-c", program]))
    assert launcher_module.launch(2, [], max_restarts=1) == 128 + signal.SIGKILL
    assert not (tmp_path / "start-2-0").exists()
    assert launcher_module.launch(2, [], max_restarts=5) == 0
    assert not (tmp_path / "start-3-0").exists()
    assert capsys.readouterr().err == 4 * "pellucid: process 1 was ended by SIGKILL\n"  # not those the launcher ended


def test_more_processes_than_cores_are_refused_unless_that_is_asked_for():
    with pytest.raises(RecipeError, match=r"--processes 100000 on \d+ cores: .* --oversubscribe"):
        check_cores(100_000, oversubscribe=False)
    check_cores(100_000, oversubscribe=True)
    check_cores(1, oversubscribe=False)


class Store:
    """What processes have said."""

    def __init__(self, said):
        self.said = said

    def check(self, keys):
        return all(key in self.said for key in keys)

    def get(self, key):
        return self.said[key].encode()


@pytest.mark.parametrize("what", ["stopped", "behind"])
def test_a_process_that_the_others_wait_for_is_named_once(monkeypatch, capsys, what):
    now = [0.0]
    monkeypatch.setattr(launcher_module.time, "monotonic", lambda: now[0])
    said = {}
    answers = Answers(2, Store(said))
    for second in range(1, 60):
        now[0] = float(second)
        said["alive/0"] = f"{second} 7"
        said["alive/1"] = {"stopped": "1 7", "behind": f"{second} 6"}[what]
        answers.name_silent([0, 1])
        if second == 20:
            assert capsys.readouterr().err == ""
    assert (
        capsys.readouterr().err
        == (
            {
                "stopped": "pellucid: process 1 has not answered for 20 seconds, and the others wait for it\n",
                "behind": "pellucid: the others have waited 20 seconds for process 1, which is still running\n",
            }[what]
        )
    )
