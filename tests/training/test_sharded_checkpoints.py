"""Checkpoints that several processes write, each its part: read by any number of them, complete or not there."""

import json
import os
import random
import resource
import signal
from pathlib import Path

import pytest
import tiny
import torch
import torch.distributed as dist
from tiny import assert_same_run, assert_same_tensors, rows, tensors, write_text
from together import laid_out, together, train

import pellucid
from pellucid import cli
from pellucid.look import server
from pellucid.look.session import PromptBody, Session
from pellucid.model.weights import state_of
from pellucid.runs import checkpoint as module
from pellucid.runs.checkpoint import CheckpointError, folder_of, load_checkpoint, steps_of, verify_files
from pellucid.runs.trainer import Trainer

SHARDED = laid_out((1, 2, 1))
FIELDS = {"optimizer": "muon", "steps": 6, "evaluate_every": 3, "checkpoint_every": 3, "keep_last": 9}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(text, tmp_path_factory) -> Path:
    """A run of two processes, each of which holds half of every weight; checkpoints of steps 3 and 6."""
    return train(text, tmp_path_factory.mktemp("runs") / "run", 2, **FIELDS, **SHARDED)


def test_each_process_writes_its_part_and_one_process_reads_the_whole(run, text, tmp_path):
    folder = folder_of(run, 6)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    files = {f"{kind}-0000{k}-of-00002.safetensors" for kind in ("model", "optimizer") for k in (1, 2)}
    assert set(manifest["files"]) == files | {"state.json"}
    sizes = {name: manifest["files"][name]["bytes"] for name in files}
    assert sizes["model-00002-of-00002.safetensors"] > 0.3 * sizes["model-00001-of-00002.safetensors"]
    entry = manifest["tensors"]["blocks.0.mlp.down.weight"]
    assert [part["start"] for part in entry["parts"]] == [[0, 0], [entry["shape"][0] // 2, 0]]
    plain = train(text, tmp_path / "one", **FIELDS)
    ours, theirs = tensors(run, 6), tensors(plain, 6)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5) for name in ours)


def test_whoever_reads_a_checkpoint_needs_no_processes(run, tmp_path, monkeypatch):
    monkeypatch.setattr(dist, "init_process_group", None)
    model = pellucid.load(run, checkpoint="last", device="cpu")
    assert len(model.generate("To be", max_tokens=4, temperature=0).ids) == 4
    pellucid.convert(run, tmp_path / "saved", to="pellucid", checkpoint="last")
    assert_same_tensors(state_of(model.network), state_of(pellucid.load(tmp_path / "saved", device="cpu").network))
    sessions: list[Session] = []
    monkeypatch.setattr(server, "run_look", lambda session, port, **_: [port.close(), sessions.append(session)])
    assert cli.main(["look", str(run), "--checkpoint", "3", "--port", "0", "--no-browser"]) == 0
    at_6 = sessions[0].trace(PromptBody(text="To be", checkpoint="6"))
    assert sessions[0].steps == (3, 4, 6)
    assert torch.equal(at_6.logits, model.trace("To be").logits)
    assert not torch.equal(at_6.logits, sessions[0].trace(PromptBody(text="To be")).logits)
    assert cli.main(["verify", str(run), "--checkpoint", "last", "--prompt", "To be"]) == 0


def test_a_flipped_bit_or_a_missing_end_of_any_part_is_found_and_the_one_before_is_taken(run):
    rng = random.Random(0)
    for path in sorted(folder_of(run, 6).iterdir()):
        content = path.read_bytes()
        for change in ("flip", "cut"):
            spoilt = bytearray(content)
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            path.write_bytes(spoilt if change == "flip" else content[: rng.randrange(len(content))])
            found, passed = load_checkpoint(run)
            assert found.step == 4, path
            assert path.name in passed[0]
        path.write_bytes(content)
    assert load_checkpoint(run)[0].step == 6


def test_a_manifest_whose_parts_do_not_fit_the_files_is_refused(run):
    path = folder_of(run, 6) / "manifest.json"
    content = path.read_bytes()
    manifest = json.loads(content)
    del manifest["sha256"]
    for part in manifest["tensors"]["final_norm.gain"]["parts"]:
        part["start"] = [8 - part["start"][0]]
    first, second = manifest["tensors"]["blocks.0.mlp.down.weight"]["parts"]
    first["file"], second["file"] = second["file"], "model-00003-of-00002.safetensors"
    path.write_bytes(module.seal(manifest))
    assert verify_files(folder_of(run, 6)) == ""
    found, passed = load_checkpoint(run)
    assert found.step == 4
    assert "the manifest names other files" in passed[0]
    path.write_bytes(content)


@pytest.mark.slow
def test_resumed_in_the_same_layout_it_is_the_same_bit_for_bit(run, text, tmp_path, monkeypatch):
    """The process that writes dies before the second checkpoint has its name."""
    real = os.rename

    def rename(source, target) -> None:
        if Path(target).name == folder_of(run, 6).name:
            os._exit(9)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(Exception, match="exit code 9"):
            train(text, tmp_path / "run", 2, **FIELDS, **SHARDED)
    assert steps_of(tmp_path / "run") == [3, 4]
    train(text, tmp_path / "run", 2, resume=True)  # in the layout that it had
    assert_same_run(tmp_path / "run", run)


@pytest.mark.slow
def test_where_one_process_has_no_disk_left_all_stop_with_the_message(text, tmp_path, monkeypatch):
    """The system refuses to write a file beyond some bytes; only the second process has this limit."""
    real = Trainer.save

    def save(self: Trainer) -> None:
        if self.step == 6 and not self.processes.is_first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        real(self)

    monkeypatch.setattr(Trainer, "save", save)

    def do(rank: int) -> None:
        with pytest.raises(
            CheckpointError,
            match=r"a file of process 1 is larger than the system allows \(ulimit -f\): the checkpoint of step 6 needs",
        ):
            pellucid.train(text, out=tmp_path / "run", preset="small", fields={**tiny.FIELDS, **FIELDS, **SHARDED})

    together(2, do)
    assert steps_of(tmp_path / "run") == [3, 4]
    assert load_checkpoint(tmp_path / "run")[0].step == 4
    assert not list((tmp_path / "run" / "checkpoints").glob("*.writing"))
    assert len([row for row in rows(tmp_path / "run") if "loss" in row]) >= 3


#: where a signal comes, and to whom
PHASES = [("take_step", "one"), ("save", "all"), ("evaluate", "one"), ("evaluate", "all"), ("finish_saving", "one")]


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "whom"), PHASES)
def test_a_signal_in_any_phase_leaves_a_checkpoint_of_the_last_step(run, text, tmp_path, monkeypatch, phase, whom):
    """The first time that the phase begins. Resumed, the run ends as one to which none came, bit for bit."""
    real, times = getattr(Trainer, phase), iter(range(100))

    def begin(self: Trainer, *given: object, **options: object) -> object:
        if next(times) == 0 and (whom == "all" or not self.processes.is_first):
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given, **options)

    def do(rank: int) -> None:
        fields = {**tiny.FIELDS, "batch": 4, "evaluate_every": 10, **FIELDS, **SHARDED}
        stopped = pellucid.train(text, out=tmp_path / "run", preset="small", fields=fields)
        assert steps_of(tmp_path / "run")[-1] == stopped.step
        assert stopped.exit_code == 143

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, phase, begin)
        together(2, do)
    train(text, tmp_path / "run", 2, resume=True)
    assert_same_run(tmp_path / "run", run)
