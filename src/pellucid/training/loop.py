"""The training loop: step, now and then save, evaluate and sample; stop where nothing is lost."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pellucid.model import Transformer
from pellucid.model.weights import load_trained, trained_state
from pellucid.training.checkpoint import (
    Checkpoint,
    best_loss,
    mark_best,
    mark_good,
    prune,
    save_checkpoint,
    set_aside,
    steps_of,
    write_json,
)
from pellucid.training.interrupt import Interrupted, Interruption, Phase
from pellucid.training.metrics import MetricsFile
from pellucid.training.objectives import Loss, MicroBatch, losses_and_hits
from pellucid.training.optimizer import Optimizer
from pellucid.training.overfitting import Curve
from pellucid.training.pace import Pace
from pellucid.training.recipe import Recipe
from pellucid.training.schedule import position, rate_factor

#: steps whose figures may still be on the device: reading them at once would make it wait
LAG = 4
#: bad steps in a row after which a run stops
PATIENCE = 3


class NumericsError(RuntimeError):
    """Losses or gradients were not finite, several steps in a row, or the last held-out loss was not."""


class Data(Protocol):
    """What the loop asks of a dataset."""

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch; a pure function of its arguments."""
        ...

    def held_out(self) -> Iterator[MicroBatch]:
        """All held-out tokens in a fixed order; `counts` says which targets are scored."""
        ...

    @property
    def held_out_tokens_per_byte(self) -> float: ...

    @property
    def n_held_out(self) -> int:
        """Held-out tokens."""
        ...


class Reporter(Protocol):
    """Who is told what happens; the loop does not care how it is shown."""

    def step(self, row: dict[str, Any], n_steps: int) -> None: ...
    def evaluation(self, row: dict[str, Any]) -> None: ...
    def sample(self, step: int, text: str) -> None: ...
    def note(self, text: str) -> None: ...


def step_seed(seed: int, step: int) -> int:
    """The seed of a step's random numbers: dropout needs no state to be resumed."""
    return (seed * 1_000_003 + step) % 2**63


@dataclass
class Training:
    """A run under way. `loss` is the objective over the network, compiled or not; the rest is plain."""

    run: Path
    recipe: Recipe
    network: Transformer
    optimizer: Optimizer
    loss: Loss
    data: Data
    reporter: Reporter
    metrics: MetricsFile
    interruption: Interruption
    #: gives None where the network's logits are not finite
    sample: Callable[[Transformer, int, Phase], str | None] | None = None
    step: int = 0
    #: seconds of this run before it was last interrupted
    seconds_before: float = 0.0
    #: of a run of minutes
    pace: Pace | None = None
    bad_in_a_row: int = 0
    #: the checkpoint that is good as soon as training has gone on from it
    candidate: int | None = None
    pending: deque[tuple[dict[str, Any], dict[str, Tensor]]] = field(default_factory=deque)
    started: float = field(default_factory=time.monotonic)
    last_evaluation: dict[str, Any] | None = None
    curve: Curve = field(default_factory=Curve)
    #: what is being done, for whoever looks on
    phase: Phase = field(default_factory=lambda: Phase("", "", Interruption()))

    # One step ------------------------------------------------------------------------------

    def factor(self, step: int) -> float:
        """The learning rate's factor, within the segment that the step is in."""
        t, r = self.recipe.train, self.recipe
        start, end = next(s for s in reversed(r.segments) if s[0] <= step)
        until = next((s[0] for s in r.segments if s[0] > start), math.inf)
        moved = [replan for replan in r.replans if start <= replan[0] < until]
        warmup = min(100, (end - start) // 50) if t.warmup < 0 else t.warmup
        at = position(step, start, end, moved) - start
        return rate_factor(at, end - start, shape=t.schedule, warmup=warmup, floor=t.floor)

    def take_step(self) -> None:
        """One update from the batch of this step; the weights of a step that is not finite stay as they were.

        Where a signal has been waiting and more passes are to come, no step is taken.
        """
        t = self.recipe.train
        torch.manual_seed(step_seed(t.seed, self.step))
        rate = self.factor(self.step)
        self.optimizer.set_factor(rate)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=next(self.network.parameters()).device)
        for micro in range(t.accumulate):
            if micro and self.interruption.is_overdue:
                return
            self.phase.set(micro, t.accumulate)
            given = self.data.at(self.step, micro, t.accumulate)
            part = self.loss(given) / (given.total or self.recipe.tokens_per_step)
            part.backward()
            total += part.detach()
        norm = self.clip(t.clip)
        bad = ~(torch.isfinite(total) & torch.isfinite(norm))
        self.optimizer.step(bad)
        self.step += 1
        row = {
            "step": self.step,
            "learning_rate": rate * t.learning_rate,
            "tokens": self.step * self.recipe.tokens_per_step,
        }
        self.pending.append((row, {"loss": total, "grad_norm": norm, "bad": bad}))

    def clip(self, largest: float) -> Tensor:
        """The norm of the gradient, scaled down where it is larger than allowed."""
        parameters = [p for p in self.network.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if largest:
            torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
        return norm

    def read_figures(self, keep: int) -> None:
        """Write the figures of all but the last `keep` steps; raises NumericsError after three bad ones in a row."""
        while len(self.pending) > keep:
            row, figures = self.pending.popleft()
            values = {name: t.item() for name, t in figures.items()}
            seconds = self.seconds()
            row |= {"loss": values["loss"], "grad_norm": values["grad_norm"], "seconds": round(seconds, 3)}
            self.bad_in_a_row = self.bad_in_a_row + 1 if values["bad"] else 0
            if values["bad"]:
                row |= {"loss": None, "grad_norm": None, "skipped": True}
                self.reporter.note(f"step {row['step']} skipped: its loss or gradient is not finite")
            elif self.candidate is not None and row["step"] > self.candidate:
                self.accept(self.candidate)
            self.metrics.write(row)
            self.curve.see(row)
            self.reporter.step(row, self.recipe.n_steps)
            if self.bad_in_a_row >= PATIENCE:
                self.refuse(row["step"])
                raise self.diverged(
                    f"the loss or the gradient was not finite {PATIENCE} steps in a row, up to step {row['step']}"
                )

    def accept(self, step: int) -> None:
        """Record that the checkpoint of this step is good: its held-out loss is finite and training went on from it."""
        self.candidate = None
        mark_good(self.run, step)
        prune(self.run, self.recipe.train.keep_last)

    def refuse(self, step: int) -> None:
        """Set aside the checkpoints that hold the weights of this step, which have diverged; those of step 0 stay."""
        self.candidate = None
        set_aside(self.run, max(step - self.bad_in_a_row - 1, 0), "diverged")

    def diverged(self, what: str) -> NumericsError:
        """The error that ends a run whose weights have diverged: what happened, what is left and what helps."""
        left = steps_of(self.run)
        kept = (
            f"the newest good checkpoint is of step {left[-1]}: --resume continues from there by the same steps, and "
            f"a new run with --from {self.run} starts from the best one with other rates"
            if left
            else "no good checkpoint was saved: start a new run"
        )
        return NumericsError(
            f"stopped: {what}; {kept}. Lower learning_rate and muon_learning_rate, or set precision=float32"
        )

    def seconds(self) -> float:
        """Seconds this run has trained, over all its sittings."""
        return self.seconds_before + time.monotonic() - self.started

    # Between steps -------------------------------------------------------------------------

    def go(self) -> None:
        """Train to the last step, or until interrupted or out of time; always ends with a checkpoint."""
        t, first = self.recipe.train, self.step
        self.network.train()
        if self.step:
            self.evaluate_and_sample(
                whole=self.step == self.recipe.n_steps
            )  # an interruption may have come between the save and this
            if self.step == self.recipe.n_steps:
                self.conclude()
        while self.step < self.recipe.n_steps and not self.interruption:
            before = self.step
            self.advance(compiles=t.compile == "yes" and before == first)
            if self.step == before:
                break
            late = self.pace is not None and self.pace.is_over
            stop = late or self.step == self.recipe.n_steps
            if stop or any(map(self.is_due, (t.checkpoint_every, t.evaluate_every, t.sample_every))):
                self.save()  # before anything that can fail or be interrupted
                self.evaluate_and_sample(whole=stop)
            if stop:
                self.conclude()
            if late and self.step < self.recipe.n_steps:
                self.reporter.note(
                    f"the time is up: stopped after step {self.step} of {self.recipe.n_steps}; --resume continues"
                )
                return
            if not stop:
                self.keep_pace()
        if self.interruption:
            self.save()

    def advance(self, compiles: bool) -> None:
        """Take a step, and write the figures of earlier ones; `compiles` says that it takes longer than others."""
        began = time.monotonic()
        name = "compiling the first step" if compiles else f"step {self.step + 1}"
        with self.interruption.phase(name, "passes") as self.phase:
            self.take_step()
            self.read_figures(LAG)
        if self.pace:
            self.pace.stepped(time.monotonic() - began, counts=not compiles)

    def keep_pace(self) -> None:
        """Move the end of a run of minutes where steps turn out slower or faster than planned, and write that down.

        What was written down before the run was interrupted is followed first: the same steps have the same rates.
        """
        if (
            self.pace is None
            or not self.pace.is_due(self.recipe, self.step)
            or any(step >= self.step for step, _ in self.recipe.replans)
        ):
            return
        end = self.pace.moved_end(self.recipe, self.step)
        if end is not None:
            self.recipe = replace(self.recipe, replans=(*self.recipe.replans, (self.step, end)))
            write_json(self.run / "recipe.json", self.recipe.to_dict())

    def conclude(self) -> None:
        """Judge the last checkpoint by its held-out loss alone, as no step follows that could show more."""
        if self.has_diverged:
            raise self.diverged(f"the held-out loss after step {self.step} is not finite")
        if self.candidate == self.step:
            self.accept(self.step)

    @property
    def has_diverged(self) -> bool:
        """Whether the held-out loss was measured after this step and is not finite."""
        row = self.last_evaluation or {}
        return row.get("step") == self.step and row["held_out_loss"] is None

    @property
    def complete(self) -> bool:
        """Whether the last step was taken and all of the held-out text read after it."""
        row = self.last_evaluation or {}
        return self.step == self.recipe.n_steps == row.get("step") and row["whole"]

    def is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def save(self) -> None:
        """A checkpoint of this step; older ones beyond `keep_last` go, the best stays."""
        self.read_figures(0)
        self.metrics.sync()
        state = {"step": self.step, "bad_in_a_row": self.bad_in_a_row, "seconds": round(self.seconds(), 3)}
        began = time.monotonic()
        if self.pace:
            state |= self.pace.state()
        with self.interruption.phase(f"saving step {self.step}"):
            save_checkpoint(self.run, Checkpoint(self.step, trained_state(self.network), self.optimizer.state(), state))
            prune(self.run, self.recipe.train.keep_last)
        self.tell_pace("save", began)

    def tell_pace(self, what: str, began: float, times: int = 1) -> None:
        """Say how long something between steps took, or each of so many."""
        if self.pace and times:
            self.pace.took[what] = (time.monotonic() - began) / times

    def evaluate_and_sample(self, whole: bool) -> None:
        """What is due at this step and not in its metrics yet: the held-out loss, on a part or the whole; a sample."""
        t = self.recipe.train
        if (whole or self.is_due(t.evaluate_every)) and not self.has_row("held_out_loss"):
            self.evaluate(whole)
        asked = self.sample and t.sample_every > 0 and (whole or self.is_due(t.sample_every))
        if self.sample and asked and not self.interruption and not self.has_row("sample"):
            text, began = None, time.monotonic()
            if not self.has_diverged:
                try:
                    with self.interruption.phase("sampling", "tokens") as phase:
                        text = self.sample(self.network, step_seed(t.seed, self.step), phase)
                except Interrupted:
                    return
            self.metrics.write({"step": self.step, "sample": text})
            if text is None:
                self.reporter.note(f"no sample at step {self.step}: the network's logits are not finite")
            else:
                self.reporter.sample(self.step, text)
                self.tell_pace("sample", began)

    def evaluate(self, whole: bool) -> None:
        """Measure the held-out loss; the best checkpoint is the one whose loss over the same part is lowest."""
        began = time.monotonic()
        with self.interruption.phase("evaluating", "tokens") as self.phase:
            measured = self.held_out_loss(whole)
        if measured is None:
            return
        self.tell_pace("token", began, self.phase.done)
        loss, part, accuracy = measured
        if not math.isfinite(loss + part):
            loss = part = math.nan
        if part < best_loss(self.run):
            mark_best(self.run, self.step, part)  # before the row, by which a run that is resumed knows of it
        bits = loss / math.log(2) * self.data.held_out_tokens_per_byte
        row = {"step": self.step, "held_out_loss": loss, "bits_per_byte": bits, "accuracy": accuracy, "whole": whole}
        row = self.metrics.write(row | {"held_out_part": part, "seconds": round(self.seconds(), 3)})
        self.last_evaluation = row
        if row["held_out_loss"] is None:
            self.refuse(self.step)
            self.reporter.note(f"the held-out loss after step {self.step} is not finite: its checkpoint was set aside")
            return
        self.candidate = self.step
        self.reporter.evaluation(row)
        self.curve.see(row)
        if warning := self.curve.warning():
            self.metrics.write(said := {"step": self.step, "warning": warning})
            self.curve.see(said)
            self.reporter.note(f"warning: {warning}")

    def has_row(self, field: str) -> bool:
        """Whether the run wrote this for this step before it was interrupted."""
        return any(row["step"] == self.step and field in row for row in self.metrics.kept)

    @torch.no_grad()
    def held_out_loss(self, whole: bool) -> tuple[float, float, float] | None:
        """Mean nats per held-out token over what is asked for and over the first `evaluate_tokens`; then accuracy,
        the share of tokens that were the likeliest.

        Windows of the training context, as many as begin within that number; None when interrupted.
        """
        self.network.eval()
        total, right, count, read, part = 0.0, 0, 0, 0, None
        try:
            for given in self.data.held_out():
                if self.interruption:
                    return None
                losses, likeliest = losses_and_hits(self.network, given)
                total += losses[given.counts].double().sum().item()
                right += int(likeliest[given.counts].sum())
                count += losses[given.counts].numel()
                read += given.inputs.numel()
                self.phase.set(read, self.data.n_held_out if whole else self.recipe.train.evaluate_tokens)
                if part is None and read >= self.recipe.train.evaluate_tokens:
                    part = total / count
                    if not whole:
                        break
        finally:
            self.network.train()
        return total / count, total / count if part is None else part, right / count

    # From a checkpoint ---------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where the checkpoint was written."""
        load_trained(self.network, checkpoint.weights, f"the checkpoint of step {checkpoint.step}")
        if checkpoint.step:
            self.optimizer.load_state(checkpoint.optimizer)
        self.step = checkpoint.step
        self.bad_in_a_row = checkpoint.state["bad_in_a_row"]
        self.seconds_before = checkpoint.state["seconds"]
        evaluations = [row for row in self.metrics.kept if "held_out_loss" in row]
        self.last_evaluation = evaluations[-1] if evaluations else None
        if self.last_evaluation and self.last_evaluation["step"] == self.step and not self.has_diverged:
            self.candidate = self.step
        self.curve = Curve.of(self.metrics.kept)
