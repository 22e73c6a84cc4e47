"""A loss or a gradient that is not finite changes nothing; three in a row end the run."""

import math
import signal

import pytest
import torch
from tiny import assert_same_tensors, make_training, resume, rows, start, tensors

from pellucid import cli
from pellucid.runs.checkpoint import folder_of, steps_of, verify_files
from pellucid.runs.trainer import NumericsError, Trainer

BAD = [math.nan, math.inf, -math.inf]


def snapshot(training: Trainer) -> dict[str, torch.Tensor]:
    state = {**dict(training.network.named_parameters()), **training.optimizer.state()}
    return {name: value.detach().clone() for name, value in state.items()}


def spoil_loss(training: Trainer, value: float):
    real = training.trainable.loss
    training.trainable.loss = lambda given: real(given) * value


def spoil_gradient(training: Trainer, value: float, where: str = "blocks.0.mlp.down.weight"):
    """One element of one gradient, in the last of the step's passes."""
    parameter = dict(training.network.named_parameters())[where]

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    return parameter.register_hook(hook)


@pytest.mark.parametrize("word", ["adamw", "muon"])
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("where", ["loss", "blocks.0.mlp.down.weight", "embed.token.weight", "final_norm.gain"])
def test_a_bad_step_changes_no_bit(text, tmp_path, word, value, where):
    training = make_training(text, tmp_path / "run", optimizer=word)
    training.network.train()
    for _ in range(2):
        training.take_step()
    before = snapshot(training)
    real = training.trainable.loss
    hook = None if where == "loss" else spoil_gradient(training, value, where)
    if where == "loss":
        spoil_loss(training, value)
    training.take_step()
    assert_same_tensors(snapshot(training), before)
    training.trainable.loss = real
    if hook:
        hook.remove()
    training.take_step()
    training.read_figures(0)
    found = rows(training.run_dir)
    assert [row.get("skipped", False) for row in found] == [False, False, True, False]
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    assert found[2]["loss"] is None
    assert found[2]["grad_norm"] is None
    assert all(math.isfinite(row["loss"]) for row in found if not row.get("skipped"))
    assert "step 3 skipped" in training.reporter.text
    assert training.bad_in_a_row == 0


@pytest.mark.parametrize("word", ["adamw", "muon"])
def test_what_follows_a_skipped_step_is_as_if_it_had_not_been_taken(text, tmp_path, word):
    """Bias corrections and momentum count the steps that were taken: a skipped one leaves no trace in the numbers."""
    ends = []
    for name, bad in (("with", (0, 3)), ("without", ())):
        training = make_training(text, tmp_path / name, optimizer=word, schedule="constant", warmup=0, dropout=0.0)
        data, seen = training.trainable.data, []

        class Same:
            """The same batches for the steps that count."""

            def at(self, step, micro, of, data=data, bad=bad):
                return data.at(step - sum(b < step for b in bad), micro, of)

        training.trainable.data = Same()
        real = training.trainable.loss
        for step in range(4 + len(bad)):
            training.trainable.loss = (lambda given, real=real: real(given) * math.nan) if step in bad else real
            training.take_step()
            seen.append(step)
        ends.append(snapshot(training))
    assert_same_tensors(*ends)


def bad_steps(monkeypatch, steps: set[int]) -> None:
    real = Trainer.take_step

    def take_step(self: Trainer) -> None:
        loss = self.trainable.loss
        if self.step in steps:
            self.trainable.loss = lambda given: loss(given) * math.nan
        try:
            real(self)
        finally:
            self.trainable.loss = loss

    monkeypatch.setattr(Trainer, "take_step", take_step)


def test_three_in_a_row_end_the_run_and_keep_its_checkpoints(text, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        bad_steps(patch, {5, 6, 7, 8, 9, 10, 11})
        with pytest.raises(NumericsError, match="3 steps in a row, up to step 8"):
            start(text, run)
    assert steps_of(run) == [4]
    assert not verify_files(folder_of(run, 4))
    assert [row["step"] for row in rows(run) if row.get("skipped")] == [6, 7, 8]
    whole = start(text, tmp_path / "whole").path
    resume(run)
    assert_same_tensors(tensors(run, 12), tensors(whole, 12))
    assert rows(run) == rows(whole)


def test_two_in_a_row_and_then_a_good_one_do_not(text, tmp_path, monkeypatch):
    bad_steps(monkeypatch, {1, 2, 4, 5, 7, 8})
    done = start(text, tmp_path / "run")
    assert done.step == 12
    assert [row["step"] for row in rows(done.path) if row.get("skipped")] == [2, 3, 5, 6, 8, 9]


def test_bad_steps_are_counted_across_an_interruption(text, tmp_path, monkeypatch):
    bad_steps(monkeypatch, {2, 3, 4})
    real = Trainer.take_step

    def take_step(self: Trainer) -> None:
        real(self)
        if self.step == 4:
            self.interruption.signal = signal.SIGINT

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", take_step)
        assert start(text, tmp_path / "run", evaluate_every=4).step == 4
    assert steps_of(tmp_path / "run") == [4]  # two bad steps behind it
    with pytest.raises(NumericsError, match="up to step 5"):
        resume(tmp_path / "run")


def test_the_command_line_ends_with_3_and_one_line(text, tmp_path, monkeypatch, capsys):
    bad_steps(monkeypatch, set(range(100)))
    monkeypatch.setitem(cli.COMMANDS, "train", lambda: start(text, tmp_path / "run").exit_code)
    assert cli.main(["train"]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("pellucid: stopped: the loss or the gradient was not finite 3 steps in a row")
    assert len(errors.splitlines()) == 1


def test_a_gradient_is_clipped_to_the_norm_asked_for_and_reported_before(text, tmp_path):
    training = make_training(text, tmp_path / "run", clip=0.01)
    training.take_step()
    norm = training.pending[0][1].values["grad_norm"].item()
    after = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in training.network.parameters()]))
    assert norm > 0.1
    assert after.item() == pytest.approx(0.01, rel=1e-3)
