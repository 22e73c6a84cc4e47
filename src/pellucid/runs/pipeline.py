"""The pipeline of every kind of run: read, prepare, write the run's folder, train to the end; or resume."""

import glob
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from pellucid.destination import DestinationError
from pellucid.option_values import overlaid
from pellucid.runs.checkpoint import (
    Checkpoint,
    CheckpointError,
    best_loss,
    best_step,
    discard_later_checkpoints,
    diverged_steps,
    folder_of,
    load_checkpoint,
    prune,
    rename_later_checkpoints,
    steps_of,
    write_json,
)
from pellucid.runs.device import (
    check_precision,
    compiling_lacks,
    deterministic_kernels,
    device_here,
    peak_speed,
    prepare_deterministic,
    products_in,
    resolve_device,
)
from pellucid.runs.interrupt import Interrupted, Interruption
from pellucid.runs.kept_memory import kept_memory
from pellucid.runs.length import (
    choose_intervals_again,
    length_asked,
    plan_in_time,
    step_to_go_on_from,
    warmup_warnings,
    with_intervals,
    with_steps,
)
from pellucid.runs.measure import measure_step
from pellucid.runs.metrics import MetricsFile, read_metrics, tokens_per_second
from pellucid.runs.optimizer import check_rates, make_optimizer
from pellucid.runs.options import RecipeError, RecipeT, RunRecipe, TrainOptions, with_record, with_train
from pellucid.runs.pace import Pace
from pellucid.runs.recipe_changes import OF_MACHINE, OF_RECORD, check_unchanged
from pellucid.runs.reporter import PlainReporter, QuietReporter
from pellucid.runs.run_dir import CHOICES, choose_folder, read_json, training_lock, write_run_dir
from pellucid.runs.tracking import Tracked, check_tracker
from pellucid.runs.trainable import CountedKind, Startable, Trainable
from pellucid.runs.trainer import Trainer
from pellucid.text.read.find import STANDARD_INPUT

NO_FOLDER = "--resume continues a run that exists: name its folder with --out, such as --out runs/NAME"
WHERE_STARTED = "where the run was started or last given inputs"


@dataclass(frozen=True)
class Run(Generic[RecipeT]):
    """A run's folder and how it ended.

    held_out_loss  nats per token, None where it was not measured
    bits_per_byte  of the held-out text, None where it was not measured
    accuracy       the share of held-out targets that were the likeliest
    mixed_bits_per_byte  with the n-gram that the run stores (train.mix = auto), None without one
    mixture_weight       the share of the network in that mixture
    exit_code      0 where the run is done; 130 after Ctrl-C and 143 after SIGTERM, with the last step saved
    """

    path: Path
    recipe: RecipeT
    step: int
    held_out_loss: float | None = None
    bits_per_byte: float | None = None
    exit_code: int = 0
    accuracy: float | None = None
    mixed_bits_per_byte: float | None = None
    mixture_weight: float | None = None

    def __str__(self) -> str:
        """The folder, how far the run has come, what it has reached, and what to do next."""
        path, lines = str(self.path), [f"run: {self.path}"]
        of_kind = {"transformer": "", "features": "_features"}.get(
            self.recipe.to_dict()["options"]["kind"], "_predictor"
        )
        if self.step:
            lines.append(f"step {self.step:,} of {self.recipe.n_steps:,}")
        if self.held_out_loss is not None:
            bits = f", {self.bits_per_byte:.4f} bits/byte" if self.bits_per_byte is not None else ""
            lines.append(f"held-out loss {self.held_out_loss:.4f} nats/token{bits}")
        if self.exit_code:
            lines.append(f"stopped; go on with: pellucid.train{of_kind}(resume=True, out={path!r})")
        if (self.path / "report.html").exists():
            lines.append(f"report: {self.path / 'report.html'}")
        return "\n".join([*lines, f"next: model = pellucid.load{of_kind}({path!r})"])


@kept_memory()
def start_run(
    startable: Startable[RecipeT], out: Path | None, reporter: PlainReporter, began: float | None = None
) -> Run[RecipeT]:
    """Read what the recipe names, decide what it leaves open, write the run's folder, and train.

    out    the folder of the run, runs/NAME unless given
    began  when the minutes of the run began, by time.monotonic(); now unless given

    Raises ValueError, before the folder is made, where the input or an option is wrong.
    """
    check_tracker(startable.recipe)
    startable.recipe = with_record(startable.recipe, started_in=os.getcwd())
    prepare_deterministic(startable.recipe.train.deterministic == "yes")
    run_dir = choose_folder(out, startable.recipe.inputs)
    pace = Pace.of_minutes(startable.recipe.train.minutes, began)
    with Interruption(reporter) as interruption:
        try:
            startable.read(reporter, interruption)
            lines = startable.prepare(interruption, pace)
            check_rates(startable.recipe)
            interruption.poll()
        except Interrupted:
            reporter.note(f"interrupted before the first step: nothing was written to {run_dir}")
            return Run(run_dir, startable.recipe, 0, exit_code=interruption.exit_code)
        remedy = "set a smaller warmup, or warmup=auto to have it chosen"
        reporter.start([*lines, *warmup_warnings(startable.recipe, remedy), f"run: {run_dir}"])
        while True:
            try:
                files = startable.files() | {CHOICES: {"lines": reporter.choices}}
                write_run_dir(run_dir, startable.recipe.to_dict(), files, startable.fill_folder)
                break
            except DestinationError:
                if out is not None or not run_dir.exists():
                    raise
            run_dir = choose_folder(None, startable.recipe.inputs)
            reporter.note(f"run: {run_dir}, because another run has taken that name")
        with training_lock(run_dir):
            if isinstance(startable, CountedKind):
                return write_counted(run_dir, startable, reporter)
            assert isinstance(startable, Trainable)
            startable.processes.announce(run_dir, None)
            return train_to_end(run_dir, startable, reporter, interruption, pace)


def write_counted(run_dir: Path, counted: CountedKind[RecipeT], reporter: PlainReporter) -> Run[RecipeT]:
    """Write and print the evaluation of a kind that takes no steps."""
    metrics = MetricsFile(run_dir / "metrics.jsonl")
    row = metrics.write(counted.evaluation)
    metrics.close()
    if row["held_out_loss"] is not None:
        reporter.evaluation(row)
    else:
        reporter.note(f"{row['without_probability']:.1%} of the held-out tokens have no probability, or probability 0")
    return ended_run(run_dir, counted, 0, row)


def resumed_with(recipe: RecipeT, asked: Mapping[str, Any], reporter: PlainReporter) -> RecipeT:
    """The recipe of a run that is resumed, with the options of RESUMABLE that are `asked` for.

    A warning says where one of OF_MACHINE differs. auto keeps the run's own device, or its compilation, where this
    machine has it. Raises RecipeError for a device that is not there, and for other values that are not valid.
    """
    recipe = with_intervals(recipe, {name: value for name, value in asked.items() if name in OF_RECORD})
    of_machine = {name: value for name, value in asked.items() if name in OF_MACHINE}
    before, train = recipe.train, overlaid(recipe.train, of_machine, "train")
    if train.device is None:
        train = replace(train, device=str(device_here(before.device)))
    if train.compile is None:
        train = replace(train, compile="no" if compiling_lacks(resolve_device(train.device)) else before.compile)
    for name in OF_MACHINE:
        if (old := getattr(before, name)) != (new := getattr(train, name)):
            reporter.start(
                [f"warning: train.{name} was {old} and is {new} from here on: the last digits of losses may differ"]
            )
    return replace(recipe, train=train)


def check_compiling(train: TrainOptions) -> None:
    """Raise RecipeError where a run that is resumed is compiled and this machine cannot compile."""
    if train.compile == "yes" and (lacks := compiling_lacks(resolve_device(train.device))):
        raise RecipeError(
            f"the run is compiled (train.compile = yes), and {lacks}: resume it with --set compile=no, or install what "
            "is missing"
        )


def check_checkpoints(run_dir: Path, checkpoint_every: int) -> None:
    """Raise RecipeError where a run has saved checkpoints and none can be found."""
    folder, wrong = run_dir / "checkpoints", ""
    try:
        os.listdir(folder)
    except OSError as error:
        link = f"; it is a link to {os.readlink(folder)}" if folder.is_symlink() else ""
        wrong = f"{folder} cannot be read ({error.strerror}{link})"
    if not wrong and not steps_of(run_dir) and not diverged_steps(run_dir):
        # an evaluation of a step whose checkpoint is due follows its save, and a save waits for the one before it
        for row in read_metrics(run_dir / "metrics.jsonl"):
            is_due = row.get("whole") or row["step"] % max(checkpoint_every, 1) == 0
            if (row["step"] and "held_out_loss" in row and is_due) or row["step"] > 2 * checkpoint_every:
                wrong = f"{folder} has none, and metrics.jsonl says that some were saved"
                break
    if wrong:
        raise RecipeError(
            f"{run_dir} has lost its checkpoints: {wrong}. Put them back, for example by mounting their disk, and "
            "resume; without them only a new run can be started"
        )


def check_inputs(recipe: RunRecipe, run_dir: Path) -> None:
    """Raise RecipeError where an input of a run that is resumed is not there, with the path that was looked up."""
    for path in recipe.input_files:
        (location,) = recipe.located([path])
        has_matches = glob.has_magic(location) and any(glob.iglob(location, recursive=True))
        if path == STANDARD_INPUT or os.path.exists(location) or has_matches:
            continue
        why = ""
        if not os.path.isabs(path):
            why = f"; relative inputs are looked up in {recipe.record.started_in}, {WHERE_STARTED}"
        held_out = " --held-out FILES" if recipe.input_files != recipe.inputs else ""
        raise RecipeError(
            f"{os.path.abspath(location)}: there is no such file or folder{why}. Put it back, or name all inputs where "
            f"they are now: pellucid train INPUTS{held_out} --resume --out {run_dir}"
        )


@kept_memory()
def resume_run(
    trainable: Trainable[RecipeT],
    run_dir: Path,
    length: Mapping[str, Any],
    reporter: PlainReporter,
    written: RecipeT | None = None,
) -> Run[RecipeT]:
    """Continue a run exactly where its last verified checkpoint left it; another `length` makes it longer.

    trainable  has the recipe of the run, with other inputs where those have moved
    written    the recipe as recipe.json has it, that of `trainable` unless given

    The input is read again. Raises RecipeError where it is no longer the same, and names the file that differs; and for
    a device or a compiler that this machine does not have.
    """
    written = written or trainable.recipe
    prepare_deterministic(written.train.deterministic == "yes")
    check_compiling(trainable.recipe.train)
    check_checkpoints(run_dir, written.train.checkpoint_every)
    with Interruption(reporter) as interruption, training_lock(run_dir):
        resumption = Resumption(trainable, run_dir, written, length, reporter, interruption)
        try:
            resumption.read_input()
            resumption.load_checkpoint()
            trainable.build()
            resumption.choose_length()
        except Interrupted:
            reporter.note(f"interrupted before the first step: {run_dir} is as it was")
            return Run(run_dir, trainable.recipe, resumption.step, exit_code=interruption.exit_code)
        resumption.write_recipe()
        if resumption.has_measured:  # which spoils the weights
            trainable.build()
        reporter.start(resumption.lines())
        checkpoint = resumption.checkpoint
        trainable.processes.announce(run_dir, checkpoint and checkpoint.step)
        return train_to_end(run_dir, trainable, reporter, interruption, resumption.pace, checkpoint)


class Resumption(Generic[RecipeT]):
    """What a run that is resumed goes on with.

    checkpoint  that it goes on from, None where none was saved yet
    last_step   the step of the last verified checkpoint
    step        that of `checkpoint`: an earlier one where a run is made longer whose learning rate had begun to fall
    pace        the clock of a run of minutes
    is_longer   whether another length is asked for
    """

    def __init__(
        self,
        trainable: Trainable[RecipeT],
        run_dir: Path,
        written: RecipeT,
        length: Mapping[str, Any],
        reporter: PlainReporter,
        interruption: Interruption,
    ):
        self.trainable, self.run_dir, self.written, self.length = trainable, run_dir, written, length
        self.reporter, self.interruption = reporter, interruption
        self.pace = Pace.of_minutes(length.get("minutes") or 0.0)
        self.step = self.last_step = max(steps_of(run_dir), default=0)
        self.checkpoint: Checkpoint | None = None
        self.is_longer = self.has_measured = self.has_lost_clock = False

    def read_input(self) -> None:
        """Read the input again. Raises RecipeError where it is not there, or no longer the same."""
        trainable, run_dir = self.trainable, self.run_dir
        check_inputs(trainable.recipe, run_dir)
        if folder := trainable.recipe.input_folder:
            self.reporter.start([f"relative inputs are looked up in {folder}, {WHERE_STARTED}"])
        trainable.read(self.reporter, self.interruption, run_dir)
        if difference := trainable.difference(read_json(run_dir / "data.json", trainable.data_shape)):
            back = f" in {folder}, {WHERE_STARTED}" if folder else ""
            anew = f" with --from {run_dir}" if trainable.can_start_from else ""
            raise RecipeError(
                f"{run_dir} was trained on other text ({difference}): put it back{back}, or start a new run{anew}"
            )
        check_precision(trainable.recipe.train.precision, trainable.device)
        trainable.check_memory()

    def load_checkpoint(self) -> None:
        """Load the last verified checkpoint, whose recipe must be that of the run."""
        at_once, passed = not self.trainable.processes.divides_weights, []
        if steps_of(self.run_dir):
            self.checkpoint, passed = load_checkpoint(self.run_dir, at_once=at_once)
        self.step = self.last_step = self.checkpoint.step if self.checkpoint else 0
        if self.checkpoint and (recipe := self.checkpoint.state.get("recipe")):
            # the given weights, of step 0, have none; fields that a later release added have their defaults
            saved = type(self.written).from_dict(recipe).to_dict()
            check_unchanged(saved, self.written.to_dict(), self.step, str(self.run_dir))
        is_over = self.written.is_last(self.step)
        if self.pace and not is_over and self.pace.total == seconds_in_all(self.written, self.checkpoint):
            # the minutes of a run that was stopped are those it has, not further ones
            self.length, self.pace = {}, None
        self.reporter.start(warnings_on_start(self.run_dir, self.step, passed, self.trainable.can_start_from))

    def choose_length(self) -> None:
        """Decide the steps that are left, the checkpoint that they follow, and the intervals that the run chooses."""
        trainable, written = self.trainable, self.written
        recipe = trainable.recipe
        if not self.pace:
            recipe = length_asked(recipe, self.step, self.length, trainable.n_train)
        self.is_longer = bool(self.pace) or recipe is not trainable.recipe
        if self.is_longer and (step := step_to_go_on_from(written, self.last_step)) < self.last_step:
            at_once = not trainable.processes.divides_weights
            self.step, self.checkpoint = step, checkpoint_before_decay(self.run_dir, step, at_once)
        n_held_out = trainable.make_data().n_held_out
        about = {"finish": trainable.finish_cost, "can_sample": trainable.can_sample}
        if self.pace:
            self.pace.know(n_held_out, trainable.n_trained, **about)
            self.pace.start(self.measure())
            recipe = self.planned_in_time(recipe, self.pace)
        elif self.is_longer or {*recipe.record.chosen_intervals} - {*written.record.chosen_intervals}:
            speed = recorded_seconds_per_step(self.run_dir, trainable)
            recipe = choose_intervals_again(recipe, speed, may_move=not self.is_longer and recipe.train.minutes > 0)
        if self.checkpoint and not self.pace and (pace := resumed_pace(recipe, self.checkpoint)):
            pace.know(n_held_out, trainable.n_trained, pace.most, **about)
            self.pace = pace
        self.has_lost_clock = not self.pace and not recipe.record.decay
        if self.has_lost_clock:  # no time is left, or it is that of another length
            recipe = with_steps(recipe, max(recipe.record.planned, self.step + 1), self.step, by_clock=False)
        trainable.recipe = recipe

    def measure(self) -> float:
        """Seconds of a step, which changes the weights."""
        self.has_measured = True
        with self.interruption.phase("measuring a step") as phase:
            return measure_step(self.trainable, phase)

    def planned_in_time(self, recipe: RecipeT, pace: Pace) -> RecipeT:
        """The recipe with as many more steps as fit into the minutes that are asked for.

        Its intervals are chosen by the time of all steps: the run's own minutes are those of its former length.
        """
        minutes = (pace.total + self.step * pace.per_step) / 60
        asked = with_train(recipe, minutes=minutes, **dict.fromkeys(recipe.record.chosen_intervals))
        planned, _ = plan_in_time(asked, asked, pace, self.step)
        return with_train(planned, minutes=self.written.train.minutes)

    def write_recipe(self) -> None:
        """Write what has changed, and set aside the checkpoints that are not gone on from."""
        rename_later_checkpoints(self.run_dir, self.last_step)
        if self.step < self.last_step:
            discard_later_checkpoints(self.run_dir, self.step)
        if self.trainable.recipe != self.written:
            if not self.checkpoint and not diverged_steps(self.run_dir):
                # nothing was saved yet: with other intervals `check_checkpoints` would take these rows for saved steps
                (self.run_dir / "metrics.jsonl").unlink(missing_ok=True)
            write_json(self.run_dir / "recipe.json", self.trainable.recipe.to_dict())

    def lines(self) -> list[str]:
        """What is printed before the first step: where the run is, and what has changed."""
        recipe, n_steps = self.trainable.recipe, self.trainable.recipe.n_steps
        lines = [f"{self.run_dir} is at step {self.step} of {n_steps}"]
        if recipe.is_last(self.step):
            lines[0] += ": finished; --steps, --minutes, ... make it longer"
        lines += lines_on_record(self.written, recipe)
        if self.has_lost_clock:
            lines.append(
                "none of the run's minutes is left, or its checkpoint was saved before they were changed: it ends "
                f"after {n_steps:,} steps, however long they take"
            )
        if self.is_longer:
            lines += warmup_warnings(recipe, "make it longer by more steps than that")
        if self.step < self.last_step:
            lines.append(
                f"going on from step {self.step}, before the learning rate fell; the best checkpoint of the shorter "
                "run is loaded until another one is better"
            )
        return lines


@kept_memory()
def follow_run(trainable: Trainable[RecipeT], run_dir: Path, step: int | None) -> Run[RecipeT]:
    """Train together with the process that has started or resumed this run, which alone decides and writes.

    trainable  has the recipe of the run
    step       of the checkpoint to go on from, None where there is none
    """
    reporter = QuietReporter()
    prepare_deterministic(trainable.recipe.train.deterministic == "yes")
    with Interruption() as interruption:
        # a signal during this is obeyed before the first step, together with the other processes
        trainable.read(reporter, Interruption(), run_dir)
        if difference := trainable.difference(read_json(run_dir / "data.json", trainable.data_shape)):
            raise RecipeError(f"{run_dir} is trained on other text than is read here ({difference})")
        trainable.build()
        at_once = not trainable.processes.divides_weights
        folder = folder_of(run_dir, step or 0)
        checkpoint = None if step is None else load_checkpoint(run_dir, step, at_once, folder)[0]
        return train_to_end(run_dir, trainable, reporter, interruption, None, checkpoint)


def recorded_seconds_per_step(run_dir: Path, trainable: Trainable) -> float | None:
    """Seconds of a step by the metrics of a run that is resumed; None where they have no speeds."""
    speed = tokens_per_second(run_dir / "metrics.jsonl")
    return trainable.recipe.tokens_per_step / speed if speed else None


def checkpoint_before_decay(run_dir: Path, step: int, at_once: bool) -> Checkpoint:
    """The checkpoint of the step from which a run is made longer. Raises RecipeError where it is gone or damaged."""
    try:
        return load_checkpoint(run_dir, step, at_once, folder_of(run_dir, step))[0]
    except CheckpointError as error:
        raise RecipeError(
            f"{run_dir} cannot be made longer, as it goes on from the step before its learning rate fell: {error}. Put "
            f"that checkpoint back, or start a new run with --from {run_dir}"
        ) from None


def resumed_pace(recipe: RunRecipe, checkpoint: Checkpoint) -> Pace | None:
    """The clock of a run of minutes that goes on from this checkpoint; None where it is that of another length."""
    is_same = recipe.record.planned == checkpoint.state.get("recipe", {}).get("record", {}).get("planned")
    return Pace.resumed(recipe, checkpoint.state) if is_same else None


def lines_on_record(written: RunRecipe, recipe: RunRecipe) -> list[str]:
    """A line that names the options of OF_RECORD that a resumed run has changed, where there are any."""
    pairs = [(name, getattr(written.train, name), getattr(recipe.train, name)) for name in OF_RECORD]
    changed = [f"{name} = {after} ({before} before)" for name, before, after in pairs if before != after]
    return [f"from here on: {', '.join(changed)}"] if changed else []


def seconds_in_all(recipe: RunRecipe, checkpoint: Checkpoint | None) -> float:
    """The seconds of the schedule in which a run of minutes was stopped; 0 where none are left to go on with."""
    if checkpoint is None or checkpoint.state.get("seconds_left", 0.0) <= 0:
        return 0.0
    return checkpoint.state.get("seconds_in_all", 60 * recipe.train.minutes)


def warnings_on_start(run_dir: Path, step: int, passed: list[str], can_start_from: bool = True) -> list[str]:
    """Why a run continues from `step` and not from a later checkpoint; `passed` says what is wrong with damaged ones.

    `can_start_from`: a new run can start from the weights of this one.
    """
    diverged = [str(n) for n in diverged_steps(run_dir) if n > step]
    lines = [f"warning: {sentence}; continuing from step {step}" for sentence in passed]
    if diverged:
        where = f"step {step}, the last good checkpoint," if step else "the beginning, as no good checkpoint is left,"
        anew = f"a new run with --from {run_dir}" if can_start_from else "a new run"
        lines.append(
            f"warning: training had diverged by step {diverged[0]}; continuing from {where} by the same steps: {anew} "
            "can take other rates"
        )
    return lines


def train_to_end(
    run_dir: Path,
    trainable: Trainable[RecipeT],
    reporter: PlainReporter,
    interruption: Interruption,
    pace: Pace | None,
    checkpoint: Checkpoint | None = None,
) -> Run[RecipeT]:
    """Train from a checkpoint, or from the first weights where there is none, until the run is done or stopped."""
    trainable.begin()
    recipe, peak = trainable.recipe, peak_speed(run_dir, trainable.device)
    step, is_first = checkpoint.step if checkpoint else 0, trainable.processes.is_first
    trainer = Trainer(
        run_dir=run_dir,
        trainable=trainable,
        optimizer=make_optimizer(recipe, trainable.network, trainable.processes),
        reporter=reporter,
        metrics=MetricsFile(run_dir / "metrics.jsonl", step, writes=is_first),
        interruption=interruption,
        pace=pace,
        peak=peak and peak * trainable.processes.n,
    )
    if checkpoint:
        trainer.restore(checkpoint)
    reporter.start([f"warning: {damage}" for damage in trainer.metrics.damages])
    reporter.loss_unit = trainable.loss_unit
    reporter.begin(recipe, trainer.step, trainer.peak, pace)
    try:
        if is_first:
            trainer.metrics.copy_to = Tracked(run_dir, recipe, step)
        with deterministic_kernels(recipe.train.deterministic == "yes"), products_in(recipe.train.precision):
            trainer.train()
        last, finished = trainer.last_evaluation or {}, finish_row(trainer)
        # all processes ask, though one of them alone may have something left to do
        if not trainer.stops() and trainable.finish_field and not finished:
            finished = finish_training(trainer)
    finally:
        reporter.close()
        trainer.metrics.close()
    is_done = trainer.complete and (finished is not None or not trainable.finish_field)
    if is_done and is_first:
        reporter.start(lines_on_best(run_dir, trainer))
    elif is_first:
        reporter.note(line_on_stopping(run_dir, trainer.step))
    if finished:  # the row may be an evaluation of its own
        last = finished if "held_out_loss" in finished else {**last, **finished}
    return ended_run(run_dir, trainable, trainer.step, last, 0 if is_done else interruption.exit_code)


def is_being_trained(run_dir: Path) -> bool:
    """Whether a process trains in the folder now."""
    if not (run_dir / "lock").is_file():
        return False
    try:
        with training_lock(run_dir):
            return False
    except RecipeError:
        return True
    except OSError:
        return False  # a folder that cannot be written is trained by nobody here


def prune_checkpoints(run_dir: Path, recipe: RunRecipe, keep_last: int) -> None:
    """Remove the checkpoints of a run that nothing needs (`checkpoint.prune`). Raises RecipeError while it trains."""
    with training_lock(run_dir):
        prune(run_dir, keep_last, recipe.before_decay)


def line_on_stopping(run_dir: Path, step: int) -> str:
    """What is said of a run that a signal has stopped: what is saved, and how it goes on."""
    saved = max(steps_of(run_dir), default=0)
    what = "saved" if saved == step else f"of which step {saved:,} is saved" if saved else "before anything was saved"
    return f"stopped at step {step:,}, {what}; go on with: pellucid train --resume --out {shlex.quote(str(run_dir))}"


def lines_on_best(run_dir: Path, trainer: Trainer) -> list[str]:
    """A line that says which checkpoint is taken by default, where it is not the last one."""
    best, row = best_step(run_dir), trainer.last_evaluation or {}
    if best in (None, trainer.step):
        return []
    part = row.get("held_out_part")
    worse = "" if part is None else f", and {part:.4f} after the last step, {trainer.step}, over the same part"
    return [
        f"the best checkpoint is that of step {best}: held-out loss {best_loss(run_dir):.4f} nats/token{worse}. It is "
        "what load, generate, look and convert take; --checkpoint last takes the last one"
    ]


def finish_row(trainer: Trainer) -> dict[str, Any] | None:
    """The row that `finish` wrote for this step before the run was resumed, None where it did not."""
    field = trainer.trainable.finish_field
    rows = (row for row in reversed(trainer.metrics.kept) if row["step"] == trainer.step)
    return next((row for row in rows if field in row), None) if field else None


def finish_training(trainer: Trainer) -> dict[str, Any] | None:
    """Do what follows the last step and write its row; None where a signal came."""
    try:
        with trainer.interruption.phase(trainer.trainable.finish_name) as phase:
            row, lines = trainer.trainable.finish(trainer.run_dir, trainer.step, phase)
    except Interrupted:
        return None
    row = trainer.metrics.write(row | {"seconds": round(trainer.seconds(), 3)})
    for text in lines:
        trainer.reporter.note(text)
    if "held_out_loss" in row:
        trainer.reporter.evaluation(row)
    return row


def ended_run(
    run_dir: Path, startable: Startable[RecipeT], step: int, last: Mapping[str, Any], exit_code: int = 0
) -> Run[RecipeT]:
    """The run, with the figures of its last evaluation."""
    names = ("held_out_loss", "bits_per_byte", "accuracy", "mixed_bits_per_byte", "mixture_weight")
    figures = {name: last.get(name) for name in names}
    return Run(run_dir, startable.recipe, step, **figures, exit_code=exit_code)
