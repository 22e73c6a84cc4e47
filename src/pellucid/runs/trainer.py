"""The training loop of every kind of run: take steps, save, evaluate and sample, and stop where nothing is lost."""

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import nn

from pellucid.runs.checkpoint import (
    Checkpoint,
    best_loss,
    best_step,
    files_of,
    mark_best,
    mark_good,
    prune,
    rename_later_checkpoints,
    steps_of,
    write_checkpoint,
    write_json,
)
from pellucid.runs.denormals import flushed_denormals
from pellucid.runs.figures import HeldOutTotal, StepFigures
from pellucid.runs.interrupt import Interrupted, Interruption, Phase
from pellucid.runs.kept_memory import kept_memory
from pellucid.runs.metrics import MetricsFile
from pellucid.runs.optimizer import Optimizer
from pellucid.runs.options import RecipeError, RecipeT, with_record
from pellucid.runs.overfitting import Curve
from pellucid.runs.pace import LEAST_EVALUATED, Pace, last_evaluation_units
from pellucid.runs.processes import Clocks, Processes
from pellucid.runs.saver import Saver
from pellucid.runs.schedule import rate_factor
from pellucid.runs.step import training_step
from pellucid.runs.trainable import Trainable, TrainingBatch

#: steps whose figures may still be on the device: reading them at once would make it wait
LAG = 4
#: what a process answers whose checkpoint could not be written
NOT_SAVED = 2
#: bad steps in a row after which a run stops
MOST_BAD_STEPS = 3


class NumericsError(RuntimeError):
    """Losses or gradients were not finite, several steps in a row, or the last held-out loss was not."""


class StepReporter(Protocol):
    """What the Trainer asks of a reporter; it does not care how something is shown."""

    def step(self, row: dict[str, Any], n_steps: int) -> None: ...
    def evaluation(self, row: dict[str, Any]) -> None: ...
    def sample(self, step: int, text: str) -> None: ...
    def note(self, text: str) -> None: ...


def step_seed(seed: int, step: int) -> int:
    """The seed of a step's random numbers: dropout needs no state to be resumed."""
    return (seed * 1_000_003 + step) % 2**63


def first_line(error: RuntimeError) -> str:
    """The first line of an error; of one that PyTorch's compiler has wrapped, that of the error inside."""
    inner = getattr(error, "inner_exception", error)
    return next(iter(str(inner).splitlines()), type(inner).__name__)


@dataclass
class Trainer(Generic[RecipeT]):
    """A run under way: `trainable` has begun, and `optimizer` is over its network."""

    run_dir: Path
    trainable: Trainable[RecipeT]
    optimizer: Optimizer
    reporter: StepReporter
    metrics: MetricsFile
    interruption: Interruption
    step: int = 0
    seconds_before: float = 0.0
    """seconds of this run before it was last interrupted"""
    pace: Pace | None = None
    """of a run of minutes"""
    peak: float | None = None
    """targets a second at the speed of large matrix products, in all processes together; None where it is not known"""
    bad_in_a_row: int = 0
    saved: int | None = None
    """the step of the last checkpoint that was saved or restored"""
    candidate: int | None = None
    """the step whose checkpoint is good as soon as training has gone on from it"""
    pending: deque[tuple[dict[str, Any], StepFigures]] = field(default_factory=deque)
    """rows of the last steps, with figures that may still be on the device"""
    started: float = field(default_factory=time.monotonic)
    last_evaluation: dict[str, Any] | None = None
    curve: Curve = field(default_factory=Curve)
    saver: Saver = field(default_factory=Saver)
    phase: Phase = field(default_factory=lambda: Phase("", "", Interruption()))
    """what is being done, for whoever looks on"""

    @property
    def recipe(self) -> RecipeT:
        """The recipe of the run; a run of minutes changes it."""
        return self.trainable.recipe

    @property
    def network(self) -> nn.Module:
        """The network that is trained."""
        return self.trainable.network

    @property
    def processes(self) -> Processes:
        """The processes that train this run; the first of them writes its files."""
        return self.trainable.processes

    # One step ------------------------------------------------------------------------------

    def factor(self, step: int) -> float:
        """The learning rate's factor."""
        t = self.recipe.train
        return rate_factor(step, self.recipe.record.decay, shape=t.schedule, warmup=t.warmup, floor=t.floor)

    def take_step(self) -> None:
        """One update from the batch of this step; a step that is not finite changes no weight.

        A signal that has been waiting ends the step between two passes; then no update is made.
        """
        t, clocks = self.recipe.train, Clocks()
        device = next(self.network.parameters()).device
        left = StepFigures(device)
        torch.manual_seed(step_seed(t.seed, self.step))
        rate = self.factor(self.step)
        self.optimizer.set_factor(rate)
        figures = training_step(self.trainable, self.optimizer, self.batches(), t.accumulate)
        if figures is None:
            return
        self.step += 1
        row = {
            "step": self.step,
            "learning_rate": rate * t.learning_rate,
            "tokens": self.step * self.recipe.tokens_per_step,
            "seconds": round(self.seconds(), 4),
        }
        if device.type == "cpu" and self.processes.n > 1:
            row["waiting"] = clocks.waiting()
        left.leave(figures)
        self.pending.append((row, left))

    def batches(self) -> Iterator[TrainingBatch]:
        """What the passes of this step read; they end early where a signal has been waiting."""
        n = self.recipe.train.accumulate
        for micro in range(n):
            if micro and self.processes.largest(self.interruption.is_overdue):
                return
            self.phase.set(micro, n)
            yield self.trainable.data.at(self.step, micro, n)

    def speed(self, targets_per_second: float) -> dict[str, float]:
        """The speed of a step, and its share of the peak, for the row of the step."""
        speed = {"tokens_per_second": round(targets_per_second, 1)}
        return speed | ({"share_of_peak": round(targets_per_second / self.peak, 4)} if self.peak else {})

    def read_figures(self, keep: int) -> None:
        """Write the rows of all but the last `keep` steps; raises NumericsError after three bad steps in a row."""
        while len(self.pending) > keep:
            row, figures = self.pending.popleft()
            values, seconds = figures.read()
            if seconds is not None:
                row |= self.speed(self.recipe.tokens_per_step / seconds)
            row |= {name: value for name, value in values.items() if name != "bad"}
            self.bad_in_a_row = self.bad_in_a_row + 1 if values["bad"] else 0
            if values["bad"]:
                row |= {"loss": None, "grad_norm": None, "skipped": True}
                self.reporter.note(f"step {row['step']} skipped: its loss or gradient is not finite")
            elif self.candidate is not None and row["step"] > self.candidate:
                self.accept(self.candidate)
            self.metrics.write(row)
            self.curve.see(row)
            self.reporter.step(row, self.expected_steps)
            if self.bad_in_a_row >= MOST_BAD_STEPS:
                self.refuse(row["step"])
                raise self.diverged(
                    f"the loss or the gradient was not finite {MOST_BAD_STEPS} steps in a row, up to step {row['step']}"
                )

    def accept(self, step: int) -> None:
        """Record that the checkpoint of this step is good: its held-out loss is finite and training went on from it."""
        self.candidate = None
        if self.processes.is_first:
            mark_good(self.run_dir, step)
            if not self.saver.is_open:  # what is being written looks like a leftover
                prune(self.run_dir, self.recipe.train.keep_last, self.recipe.before_decay)

    def refuse(self, step: int) -> None:
        """Set aside the checkpoints that hold the weights of this step, which have diverged; those of step 0 stay."""
        self.candidate = None
        self.finish_saving()
        if self.processes.is_first:
            rename_later_checkpoints(self.run_dir, max(step - self.bad_in_a_row - 1, 0), "diverged")

    def diverged(self, what: str) -> NumericsError:
        """The error that ends a run that has diverged: what happened, which checkpoint is left, and what helps."""
        steps, t = steps_of(self.run_dir), self.recipe.train
        starts_anew = f"a new run with --from {self.run_dir} starts from the best one with other rates"
        remedy = (
            f"the newest good checkpoint is of step {steps[-1]}: --resume continues from there by the same steps, and "
            f"{starts_anew if self.trainable.can_start_from else 'a new run can take other rates'}"
            if steps
            else "no good checkpoint was saved: start a new run"
        )
        rates = "learning_rate and muon_learning_rate" if t.optimizer == "muon" else "learning_rate"
        precise = ", or set precision=float32" if t.precision == "bfloat16" else ""
        return NumericsError(f"stopped: {what}; {remedy}. Lower {rates}{precise}")

    def seconds(self) -> float:
        """Seconds this run has trained, over all its sittings."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def expected_steps(self) -> int:
        """How many steps the run has, by the speed of its steps as long as its end is not known."""
        if self.recipe.record.decay or not self.pace:
            return self.recipe.n_steps
        return max(self.pace.expected, self.step)

    def stops(self) -> bool:
        """Whether a signal has come, to this process or another; all of them ask at the same places."""
        agreed = self.processes.largest(self.interruption.signal)
        if agreed:  # one that came to this process while it asked stays, and is seen when it asks again
            self.interruption.signal = agreed
        return agreed > 0

    # Between steps -------------------------------------------------------------------------

    def train(self) -> None:
        """Train to the last step, or until a signal or the deadline; the last step taken always has a checkpoint."""
        try:
            self.take_steps()
        except Exception:
            self.saver.wait()
            raise
        self.finish_saving()

    @flushed_denormals()
    def take_steps(self) -> None:
        """Train, and leave the last checkpoint to be finished."""
        t, first = self.recipe.train, self.step
        self.network.train()
        if self.step:
            # a signal may have come between the save and this
            self.evaluate_and_sample(whole=self.recipe.is_last(self.step))
            if self.recipe.is_last(self.step):
                self.conclude()
        elif self.trainable.starts_from_model and not self.has_row("held_out_loss"):
            self.evaluate(whole=False)
        while not self.recipe.is_last(self.step) and not self.stops():
            before = self.step
            self.advance(compiles=t.compile == "yes" and before == first)
            if self.step == before:
                break
            ends = self.processes.largest(
                NOT_SAVED * self.saver.has_failed or (self.pace is not None and self.pace.is_over)
            )
            if ends == NOT_SAVED:
                self.finish_saving()
            late = ends > 0
            stop = late or self.recipe.is_last(self.step)
            if stop or self.is_due(t.checkpoint_every):
                self.save()  # before anything that can fail or be interrupted
            if stop or self.is_due(t.evaluate_every) or self.is_due(t.sample_every):
                self.read_last_figures()
                self.evaluate_and_sample(whole=stop)
            if stop:
                self.conclude()
            if late and not self.recipe.is_last(self.step):
                self.reporter.note(
                    f"the time is up: stopped after step {self.step} of {self.expected_steps}; --resume continues"
                )
                return
            if not stop:
                self.keep_pace()
                if self.saved != self.step and self.recipe.before_decay == self.step:
                    self.save()
        if self.stops():
            self.save()

    def advance(self, compiles: bool) -> None:
        """Take a step, and write the figures of earlier ones; `compiles` says that it takes longer than others."""
        began = time.monotonic()
        name = "compiling the first step" if compiles else f"step {self.step + 1}"
        with self.interruption.phase(name, "micro-batches") as self.phase:
            try:
                self.take_step()
            except RuntimeError as error:  # of the compiler, or of a graph that needs more memory than there is
                if not compiles:
                    raise
                raise RecipeError(f"the compiled step failed ({first_line(error)}): set compile=no") from error
            self.read_figures(LAG)
        kept_memory.bound(self.processes.n)
        if self.pace:
            self.pace.stepped(time.monotonic() - began, counts=not compiles)

    def keep_pace(self) -> None:
        """Let the learning rate of a run of minutes fall if the time says so: write that to recipe.json, and save.

        A resumed run finds there when its decay begins, so that the same steps have the same rates.
        """
        if self.recipe.record.decay:
            return
        decay = self.pace.decay_from(self.recipe, self.step) if self.pace else None
        # the first process alone has a clock
        if end := self.processes.largest(decay[1] if decay else 0):
            first = self.processes.largest(decay[0] if decay else 0)
            self.trainable.recipe = with_record(self.recipe, decay=(first, end))
            if self.processes.is_first:
                write_json(self.run_dir / "recipe.json", self.recipe.to_dict())

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
        is_measured = row.get("step") == self.step and (row["whole"] or row.get("cut", 0) > 0)
        return self.recipe.is_last(self.step) and is_measured

    def is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def save(self) -> None:
        """A checkpoint of this step, which a thread writes; older ones beyond `keep_last` go, the best stays."""
        self.finish_saving()
        self.read_last_figures()
        self.metrics.sync()
        state = {"step": self.step, "bad_in_a_row": self.bad_in_a_row, "seconds": round(self.seconds(), 3)}
        state["recipe"] = self.recipe.to_dict()
        if self.pace:
            state |= self.pace.state()
        with self.interruption.phase(f"saving step {self.step}"):
            checkpoint = Checkpoint(self.step, self.trainable.state(), self.optimizer.state(), state)
            files = files_of(checkpoint, self.processes)
        self.saver.start(lambda: write_checkpoint(self.run_dir, files, self.processes))
        self.saved = self.step

    def read_last_figures(self) -> None:
        """Write the rows of all steps that were taken."""
        began = time.monotonic()
        self.read_figures(0)
        if self.pace:
            self.pace.waited(time.monotonic() - began)

    def finish_saving(self) -> None:
        """Wait until the checkpoint that is being written is on disk, where there is one; all processes do."""
        if not self.saver.is_open:
            return
        with self.interruption.phase("saving"):
            self.saver.finish()
            if self.processes.is_first:
                prune(self.run_dir, self.recipe.train.keep_last, self.recipe.before_decay)
                self.metrics.remove_superseded(self.saved or 0)
        if self.pace:
            self.pace.took["save"] = self.saver.seconds

    def evaluate_and_sample(self, whole: bool) -> None:
        """What is due at this step and not in its metrics yet: the held-out loss, on a part or the whole; a sample."""
        t = self.recipe.train
        if (whole or self.is_due(t.evaluate_every)) and not self.has_row("held_out_loss"):
            self.evaluate(whole)
        is_due = self.trainable.can_sample and t.sample_every > 0 and (whole or self.is_due(t.sample_every))
        if is_due and not self.has_row("sample") and not self.stops():
            text, began = None, time.monotonic()
            if not self.has_diverged:
                try:
                    with self.processes.plain(self.trainable), self.interruption.phase("sampling", "tokens") as phase:
                        if self.processes.is_first:
                            text = self.trainable.sample(step_seed(t.seed, self.step), phase)
                except Interrupted:
                    return
            self.metrics.write({"step": self.step, "sample": text})
            if text is None:
                self.reporter.note(f"no sample at step {self.step}: the network's logits are not finite")
            else:
                self.reporter.sample(self.step, text)
                if self.pace:
                    self.pace.took["sample"] = time.monotonic() - began

    def evaluate(self, whole: bool) -> None:
        """Measure the held-out loss; of the steps whose checkpoints are due, the best one has the lowest loss over the
        same part.
        """
        with self.interruption.phase("evaluating", "tokens") as self.phase:
            measured = self.held_out_loss(whole)
        if measured is None:
            return
        self.finish_saving()
        loss, part, accuracy, n_read = measured
        cut = n_read if whole else 0
        if not math.isfinite(loss + (part or 0.0)):
            loss = part = math.nan
        # step 0 is the model that the run started from, not a result of the run
        is_saved = self.step > 0 and (whole or self.is_due(self.recipe.train.checkpoint_every))
        if self.processes.is_first and is_saved and part is not None and part < best_loss(self.run_dir):
            mark_best(self.run_dir, self.step, part)  # before the row, by which a run that is resumed knows of it
        elif self.processes.is_first and whole and part is None and best_step(self.run_dir) is None:
            mark_best(self.run_dir, self.step, None)
        per_byte = self.trainable.data.held_out_tokens_per_byte
        row = {"step": self.step, "held_out_loss": loss, "bits_per_byte": loss / math.log(2) * per_byte}
        row |= {"accuracy": accuracy, "whole": whole and not cut}
        if cut or not whole:
            row["cut" if cut else "read"] = n_read
        row = self.metrics.write(row | {"held_out_part": part, "seconds": round(self.seconds(), 3)})
        self.last_evaluation = row
        if row["held_out_loss"] is None:
            self.refuse(self.step)
            gone = ": its checkpoint was set aside" if self.saved == self.step else ""
            self.reporter.note(f"the held-out loss after step {self.step} is not finite{gone}")
            return
        self.candidate = self.saved
        self.reporter.evaluation(row)
        if cut:
            n = self.trainable.data.n_held_out
            everything = f"{n:,} held-out tokens"
            best = best_step(self.run_dir)
            compared = part is not None or best in (None, self.step)
            said = (
                f"the time for the last evaluation was over after {cut:,} of {everything}, and the loss is over these; "
                f"a longer run reads all, and so does one of steps with evaluate_tokens={n}"
                if self.pace
                else f"the last evaluation read {cut:,} of {everything}, its share of the run, and the loss is over "
                f"these; evaluate_tokens={n} reads all"
            )
            few = f". They are too few to compare: the checkpoint of step {best} stays the best"
            self.reporter.note(said + few * (not compared))
        self.curve.see(row)
        if warning := self.curve.warning(self.trainable.remedies):
            self.metrics.write(said := {"step": self.step, "warning": warning})
            self.curve.see(said)
            self.reporter.note(f"warning: {warning}")

    def has_row(self, field: str) -> bool:
        """Whether the run wrote this for this step before it was interrupted."""
        return any(row["step"] == self.step and field in row for row in self.metrics.kept)

    @torch.no_grad()
    def held_out_loss(self, whole: bool) -> tuple[float, float | None, float, int] | None:
        """The mean held-out loss in nats per token, over everything or, unless `whole`, over the first
        `evaluate_tokens`; the mean over those first ones, None where the time was over before; the accuracy, the share
        of likeliest targets; and how many tokens were read, 0 where these were all. With `whole` they are not all where
        the time of a run of minutes was over, or where a run without a clock has too few of them
        (`last_evaluation_units`).

        None where a signal came.
        """
        self.network.eval()
        n_read, part, ended_at = 0, None, 0
        total, first_began = HeldOutTotal(self.processes), time.monotonic()
        # seconds of a token in each batch, by whether a checkpoint was being written beside it
        per_token: dict[bool, list[float]] = {False: [], True: []}
        try:
            for batch in self.trainable.data.held_out():
                if part is not None and not whole:
                    ended_at = n_read
                    break
                if self.stops():
                    return None
                began, is_writing = time.monotonic(), self.saver.is_writing
                of_batch = self.trainable.held_out_sums(batch)
                per_token[is_writing].append((time.monotonic() - began) / of_batch.n_read)
                total.add(of_batch.sums)
                n_read += of_batch.n_read
                self.phase.set(n_read, self.trainable.data.n_held_out if whole else self.recipe.train.evaluate_tokens)
                if part is None and n_read >= self.recipe.train.evaluate_tokens:
                    part = total.read().loss
                n_held_out = self.trainable.data.n_held_out
                may_end = whole and n_held_out > n_read >= LEAST_EVALUATED
                # the first process alone knows whether the run has a clock
                has_clock = self.pace is not None or not self.processes.is_first
                is_enough = not has_clock and n_read >= last_evaluation_units(self.recipe)
                is_over = self.pace is not None and self.pace.must_end(self.recipe)
                if may_end and self.processes.largest(is_enough or is_over):
                    ended_at = n_read
                    break
        finally:
            self.network.train()
        total.read()
        if self.trainable.device.type != "cpu" and n_read:  # each batch was only launched
            per_token = {False: [(time.monotonic() - first_began) / n_read], True: []}
        if self.pace and n_read:
            # batches beside the thread that writes a checkpoint, whose time `Pace` counts by itself, take about five
            # times as long (docs/experiments/quality.md)
            self.pace.took["token"] = statistics.median(per_token[False] or [min(per_token[True])])
        loss = total.loss
        return loss, loss if part is None and not ended_at else part, total.accuracy, ended_at

    # From a checkpoint ---------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where the checkpoint was written."""
        parameters = dict(self.network.named_parameters())
        weights, averages = (self.processes.divided(x, parameters) for x in (checkpoint.weights, checkpoint.optimizer))
        self.trainable.load_state(weights, f"the checkpoint of step {checkpoint.step}")
        if checkpoint.step:
            self.optimizer.load_state(averages)
        self.step = self.saved = checkpoint.step
        self.bad_in_a_row = checkpoint.state["bad_in_a_row"]
        self.seconds_before = checkpoint.state["seconds"]
        evaluations = [row for row in self.metrics.kept if "held_out_loss" in row]
        self.last_evaluation = evaluations[-1] if evaluations else None
        if self.last_evaluation and self.last_evaluation["step"] == self.step and not self.has_diverged:
            self.candidate = self.step
        self.curve = Curve.of(self.metrics.kept)
