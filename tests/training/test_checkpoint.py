"""Checkpoints: whole or absent, every flipped bit found, good ones never lost."""

import ast
import errno
import hashlib
import json
import math
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
import torch
from tiny import Heard, assert_same_run, forked, resume, rows, start

import pellucid
from pellucid import cli, destination
from pellucid.runs import checkpoint as module
from pellucid.runs.checkpoint import (
    Checkpoint,
    CheckpointError,
    best_loss,
    best_step,
    files_of,
    folder_of,
    load_checkpoint,
    mark_best,
    mark_needed,
    named_checkpoint,
    needed_steps,
    prune,
    rename_later_checkpoints,
    steps_of,
    verify_files,
    write_checkpoint,
)
from pellucid.runs.metrics import MetricsFile
from pellucid.runs.trainer import Trainer
from pellucid.training.load import load_run


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> Path:
    return write_checkpoint(run, files_of(checkpoint))


def make(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {"w": torch.randn(5, 3, generator=generator), "b": torch.randn(3, generator=generator)}
    optimizer = {"w/exp_avg": torch.randn(5, 3, generator=generator), "w/step": torch.tensor(float(step))}
    return Checkpoint(step, weights, optimizer, {"step": step, "bad_in_a_row": 0, "seconds": 1.5})


def assert_loads(run: Path, step: int) -> None:
    found, _ = load_checkpoint(run, step)
    expected = make(step)
    for a, b in ((found.weights, expected.weights), (found.optimizer, expected.optimizer)):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert found.state == expected.state


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 1, 2 and 3."""
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, make(step))
    return tmp_path


def test_what_is_saved_is_loaded(run):
    for step in (1, 2, 3):
        assert_loads(run, step)
    assert load_checkpoint(run)[0].step == 3
    assert load_checkpoint(run)[1] == []
    manifest = json.loads((folder_of(run, 2) / "manifest.json").read_bytes())
    assert manifest["tensors"]["w"] == {"shape": [5, 3], "dtype": "float32"}


def test_a_checkpoint_of_step_nought_has_an_empty_optimiser(tmp_path):
    save_checkpoint(tmp_path, Checkpoint(0, make(1).weights, {}, {}))
    assert load_checkpoint(tmp_path)[0].optimizer == {}


def test_every_flipped_bit_is_found_and_the_one_before_is_taken(run):
    rng = random.Random(0)
    files = sorted(folder_of(run, 3).iterdir())
    assert len(files) == 4
    for i in range(80):
        path = files[i % 4]
        before = path.read_bytes()
        spoilt = bytearray(before)
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        found, passed = load_checkpoint(run)
        assert found.step == 2, (path, i)
        assert len(passed) == 1
        assert path.name in passed[0]
        assert "step 3" in passed[0]
        path.write_bytes(before)
    assert load_checkpoint(run)[0].step == 3


def test_white_space_and_order_in_the_manifest_are_part_of_it(run):
    path = folder_of(run, 3) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert "checksum" in verify_files(folder_of(run, 3))


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model-00001-of-00001.safetensors"])
def test_files_cut_short_or_missing_are_found(run, name):
    path = folder_of(run, 3) / name
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 8, 0):
        path.write_bytes(content[:size])
        assert load_checkpoint(run)[0].step == 2
    path.unlink()
    found, passed = load_checkpoint(run)
    assert found.step == 2
    assert passed == [f"checkpoint of step 3 passed over: {name} is missing"]
    path.mkdir()
    assert load_checkpoint(run)[0].step == 2


def test_a_manifest_of_another_form_is_passed_over(run):
    path = folder_of(run, 3) / "manifest.json"
    for content in (b'{"a":' * 10**5, module.seal({"format": 1, "step": 3, "tensors": [], "files": {}})):
        path.write_bytes(content)
        assert load_checkpoint(run)[0].step == 2


def test_a_state_that_is_no_object_is_passed_over(run):
    folder = folder_of(run, 3)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    del manifest["sha256"]
    (folder / "state.json").write_bytes(b"[1]")
    manifest["files"]["state.json"] = {"bytes": 3, "sha256": hashlib.sha256(b"[1]").hexdigest()}
    (folder / "manifest.json").write_bytes(module.seal(manifest))
    assert load_checkpoint(run)[0].step == 2


def test_marks_that_are_nested_too_deeply_name_no_step(run):
    for name in ("best.json", "good.json", "needed.json"):
        (run / "checkpoints" / name).write_text("[" * 10**5)
    assert module.best_step(run) is module.good_step(run) is None
    assert module.needed_steps(run) == set()


def test_a_folder_that_was_renamed_is_not_another_step(run):
    shutil.copytree(folder_of(run, 2), folder_of(run, 9))
    found, passed = load_checkpoint(run)
    assert found.step == 3
    assert "step 2" in passed[0]


def test_leftovers_of_an_interrupted_save_are_not_checkpoints(run):
    shutil.copytree(folder_of(run, 3), folder_of(run, 4).with_suffix(".writing"))
    shutil.copytree(folder_of(run, 3), folder_of(run, 5).with_suffix(".removing"))
    assert steps_of(run) == [1, 2, 3]
    assert load_checkpoint(run)[0].step == 3
    prune(run, 3)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [f"step-0000000{i}" for i in (1, 2, 3)]


def test_all_damaged_is_one_clear_error(run):
    for step in (1, 2, 3):
        (folder_of(run, step) / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="no usable checkpoint") as caught:
        load_checkpoint(run)
    assert all(f"step {step}" in str(caught.value) for step in (1, 2, 3))
    with pytest.raises(CheckpointError, match="nothing has been saved yet"):
        load_checkpoint(run / "elsewhere")


def test_pruning_keeps_the_newest_and_the_best(run):
    mark_best(run, 1, 2.5)
    save_checkpoint(run, make(4))
    prune(run, 2)
    assert steps_of(run) == [1, 3, 4]
    prune(run, 1)
    assert steps_of(run) == [1, 4]
    assert best_step(run) == 1
    assert_loads(run, 1)


def test_pruning_keeps_what_adapters_of_other_runs_need(run):
    mark_needed(run, 1)
    save_checkpoint(run, make(4))
    prune(run, 1)
    assert steps_of(run) == [1, 4]
    mark_needed(run, 4)
    save_checkpoint(run, make(5))
    prune(run, 1)
    assert steps_of(run) == [1, 4, 5]
    for damaged in ("", "[]", '{"steps": 4}', '{"steps": "14"}'):
        (run / "checkpoints" / "needed.json").write_text(damaged)
        assert needed_steps(run) == set()
    prune(run, 1)
    assert steps_of(run) == [5]


def test_a_damaged_checkpoint_does_not_push_good_ones_out(run):
    mark_best(run, 3, 2.0)
    (folder_of(run, 3) / "state.json").write_bytes(b"{}")
    found, _ = load_checkpoint(run)
    rename_later_checkpoints(run, found.step)
    assert best_step(run) is None
    save_checkpoint(run, make(4))
    prune(run, 2)
    assert steps_of(run) == [2, 4]


def test_files_are_flushed_whole_and_so_are_the_folders(tmp_path, monkeypatch):
    flushed: dict[str, int] = {}
    named: list[tuple[str, set[str]]] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(handle: int) -> None:
        flushed[os.readlink(f"/proc/self/fd/{handle}")] = os.fstat(handle).st_size
        real_sync(handle)

    def rename(source, target) -> None:
        named.append((str(target), set(flushed)))
        real_rename(source, target)

    monkeypatch.setattr(module.os, "fsync", sync)
    monkeypatch.setattr(module.os, "rename", rename)
    target = save_checkpoint(tmp_path, make(7))
    aside = f"{target}.writing"
    assert len(named) == 1
    assert named[0][0] == str(target)
    for path in target.iterdir():
        assert flushed[f"{aside}/{path.name}"] == path.stat().st_size > 0
        assert f"{aside}/{path.name}" in named[0][1]  # before it had its name
    assert aside in named[0][1]
    assert str(target.parent) in flushed


# A full disk ----------------------------------------------------------------------------------


class FullFile:
    """A file on a disk with room for `room` bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        if len(content) > self.room[0]:
            self.file.write(content[: self.room[0]])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room[0] -= len(content)
        return self.file.write(content)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_disk_that_fills_at_any_byte_leaves_the_checkpoint_before(run, monkeypatch):
    need = sum(p.stat().st_size for p in folder_of(run, 3).iterdir())
    rng = random.Random(1)
    for room in (0, need - 1, *(rng.randrange(need) for _ in range(20))):
        left = [room]
        with monkeypatch.context() as patch:
            patch.setattr(destination, "open", lambda p, m, left=left: FullFile(open(p, m), left), raising=False)  # noqa: SIM115
            with pytest.raises(CheckpointError, match="disk is full") as caught:
                save_checkpoint(run, make(4))
        assert str(caught.value).endswith("; the checkpoint of step 3 is intact. Free that much and resume")
        said = int(str(caught.value).split(" needs ")[1].split(" ")[0].replace(",", ""))
        assert abs(said - need) < 16  # the step's digits apart
        assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [f"step-0000000{i}" for i in (1, 2, 3)]
    assert_loads(run, 3)
    save_checkpoint(run, make(4))
    assert_loads(run, 4)


def test_a_disk_that_is_full_at_the_first_checkpoint_has_none_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(destination, "open", lambda p, m: FullFile(open(p, m), [0]), raising=False)  # noqa: SIM115
    with pytest.raises(CheckpointError, match=r"; no checkpoint was saved before it\. Free that much and resume$"):
        save_checkpoint(tmp_path, make(1))


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_disk_that_is_full_for_a_system_call(run, monkeypatch, call, number):
    if call != "fsync" and number:
        number = 0
    real = {"mkdir": Path.mkdir, "fsync": os.fsync, "rename": os.rename}[call]
    count = [0]

    def full(*given, **named):
        count[0] += 1
        if count[0] == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "mkdir" else module.os, call, full)
        with pytest.raises(CheckpointError, match=r"needs .* bytes"):
            save_checkpoint(run, make(4))
    assert count[0] >= number + 1
    assert steps_of(run) == [1, 2, 3]
    assert not list((run / "checkpoints").glob("*.writing"))


def test_a_real_limit_on_file_size_ends_the_run_with_exit_code_2(tmp_path, text, monkeypatch):
    """The system itself refuses to write: files may be 100 bytes smaller than this run's largest one."""
    run = start(text, tmp_path / "run", steps=2).path
    size = max(p.stat().st_size for p in folder_of(run, 2).iterdir())

    def train() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, size - 100))
        return cli.main(["train", "--resume", "--out", str(run), "--steps", "4"])

    code, _, errors = forked(train, tmp_path)
    assert code == 2, errors
    assert errors.startswith(
        "pellucid: a file is larger than the system allows (ulimit -f): the checkpoint of step 3 needs"
    )
    assert errors.rstrip().endswith("the checkpoint of step 1 is intact. Raise that limit and resume")
    assert len(errors.splitlines()) == 1
    assert steps_of(run) == [1]  # that of step 2 has another name, until one is better
    assert resume(run).step == 4


def test_an_error_of_writing_the_metrics_names_their_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.file.close()
    metrics.file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 (closed below)
    for do in (lambda: metrics.write({"step": 1}), metrics.close):
        with pytest.raises(OSError, match="No space left on device") as caught:
            do()
        assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no best.json"),
        ("{", "best.json is damaged"),
        ('{"step": 3}', "best.json names step 3, whose checkpoint is not there"),
    ],
)
def test_the_last_checkpoint_in_the_place_of_an_unknown_best_one_is_a_warning(text, tmp_path, content, why):
    run = start(text, tmp_path / "run").path
    marked = run / "checkpoints" / "best.json"
    marked.unlink() if content is None else marked.write_text(content)
    with pytest.warns(UserWarning, match=f"no checkpoint is known to be the best .{why}.; taking step 12"):
        assert named_checkpoint(run, "best").step == 12


# In a run ---------------------------------------------------------------------------------------


def spoil(folder: Path) -> None:
    path = folder / "optimizer-00001-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def test_a_run_falls_back_says_so_and_ends_the_same(text, tmp_path):
    whole = start(text, tmp_path / "whole")
    start(text, tmp_path / "run", keep_last=3)
    (tmp_path / "part").mkdir()
    copy = tmp_path / "part" / "run"
    shutil.copytree(tmp_path / "run", copy)
    spoil(folder_of(copy, 12))
    heard = Heard()
    assert resume(copy, heard).step == 12
    assert "warning: checkpoint of step 12 passed over: optimizer" in heard.text
    assert "continuing from step 8" in heard.text
    assert_same_run(copy, whole.path)
    assert (folder_of(copy, 12).with_suffix(".damaged")).is_dir()


def test_with_one_checkpoint_kept_a_damaged_one_costs_no_good_one(text, tmp_path):
    done = start(text, tmp_path / "run", keep_last=2)
    spoil(folder_of(done.path, 12))
    written = json.loads((done.path / "recipe.json").read_bytes())
    written["options"]["train"]["keep_last"] = 1
    (done.path / "recipe.json").write_text(json.dumps(written))
    assert resume(done.path).step == 12
    assert steps_of(done.path) == [8, 12]  # that before the decay is kept too
    assert not verify_files(folder_of(done.path, 12))


def test_a_run_whose_checkpoints_are_all_damaged_is_left_as_it_is(text, tmp_path):
    done = start(text, tmp_path / "run")
    for step in steps_of(done.path):
        spoil(folder_of(done.path, step))
    before = {p: p.read_bytes() for p in done.path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        resume(done.path, steps=20)
    assert {p: p.read_bytes() for p in done.path.rglob("*") if p.is_file()} == before


def test_loading_the_last_one_warns_of_a_damaged_one_and_the_best_is_refused(text, tmp_path):
    done = start(text, tmp_path / "run")
    best = best_step(done.path)
    assert best == 12
    spoil(folder_of(done.path, 12))
    with pytest.warns(UserWarning, match="step 12 passed over: .* taking step 8"):
        _, _, step = load_run(done.path, "last", torch.device("cpu"))
    assert step == 8
    with pytest.raises(CheckpointError, match="step 12 passed over"):
        load_run(done.path, "best", torch.device("cpu"))
    assert load_run(done.path, "8", torch.device("cpu"))[2] == 8
    with pytest.raises(CheckpointError, match="best, last"):
        load_run(done.path, "latest", torch.device("cpu"))


def test_the_best_is_chosen_by_one_part_of_the_held_out_text_and_never_pruned(text, tmp_path, monkeypatch):
    # (over what is reported, over the part that is read each time)
    measured = {4: (2.0, 2.0), 8: (3.0, 3.0), 12: (1.5, 2.5), 16: (1.9, 1.9), 20: (1.4, 2.1)}
    monkeypatch.setattr(Trainer, "held_out_loss", lambda self, whole: (*measured[self.step], 0.5, 0))
    run = start(text, tmp_path / "run", keep_last=1).path
    # all of the text at the end is another measure than a part before it: 1.5 is no better than 2.0
    assert json.loads((run / "checkpoints" / "best.json").read_bytes()) == {"step": 4, "held_out_loss": 2.0}
    assert steps_of(run) == [4, 8, 12]  # the best, the one before the decay and the last
    assert not verify_files(folder_of(run, 4))
    assert [row["held_out_loss"] for row in rows(run) if "held_out_loss" in row] == [2.0, 3.0, 1.5]
    resume(run, steps=20)
    assert best_step(run) == 16
    assert steps_of(run) == [13, 16, 20]


def test_no_source_file_can_read_or_write_a_pickle():
    """But for the tensors alone of a folder somebody else made, where the user trusts it (`weights_only`)."""
    root = Path(pellucid.__file__).parent
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tensors_alone = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and weights_only(node)}
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if names != ["UnpicklingError"]:
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            refused = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
            assert not {n.partition(".")[0] for n in names} & refused, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr not in ("load", "save") or id(node) in tensors_alone, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def weights_only(call):
    """Whether the call says weights_only=True."""
    return any(
        k.arg == "weights_only" and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords
    )


@pytest.mark.parametrize("content", ["[]", "null", '{"step": "x"}', '{"step": null}', "{", "{}"])
def test_a_mark_of_the_best_checkpoint_that_another_program_wrote_is_none(text, tmp_path, content):
    run = start(text, tmp_path / "run").path
    (run / "checkpoints" / "best.json").write_text(content)
    assert best_step(run) is None
    assert best_loss(run) == math.inf
