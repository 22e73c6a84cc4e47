"""`pellucid.train`: start or resume a run of a transformer."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pellucid.adapters import write_run_adapter
from pellucid.generate.samples import sampler_for
from pellucid.hub.families import FamilyError
from pellucid.language_model import ModelError
from pellucid.option_values import check_given_once, parse_value, suggest_keywords
from pellucid.plan.sized_recipe import size_to, sizes_are_open
from pellucid.predictors.mixed_training import MixedTransformer
from pellucid.report.finalize import finalize, pre_run_checks
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.device import resolve_device
from pellucid.runs.length import with_length
from pellucid.runs.live_reporter import RunOutput, make_reporter
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.runs.pipeline import (
    NO_FOLDER,
    Run,
    follow_run,
    resume_run,
    resumed_with,
    start_run,
)
from pellucid.runs.processes import SINGLE_PROCESS, Processes, world_size
from pellucid.runs.recipe_changes import OF_MACHINE, OF_RECORD
from pellucid.runs.reporter import PlainReporter
from pellucid.starting_model import base_weights, open_starting_model
from pellucid.text.ids import IdTokenizer
from pellucid.text.read.known_scans import checking_text
from pellucid.training.compiled_functions import lines_on_resuming
from pellucid.training.config import ParallelOptions
from pellucid.training.kinds import check_function, run_kind
from pellucid.training.load import keep_base, read_recipe
from pellucid.training.recipe import (
    OF_TOKENIZER,
    Recipe,
    check_changes,
    differences,
    full_name,
    make_recipe,
    make_recipe_on,
    overlay,
    take_length,
)
from pellucid.training.text_parts import HeldOut, add_held_out
from pellucid.training.trainable import TransformerTrainable
from pellucid.trust import Trust, check_trust


@suggest_keywords()
def train(
    *inputs: str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    from_model: str | Path | None = None,
    revision: str | None = None,
    trust: Trust = False,
    preset: str | None = None,
    recipe: Recipe | str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    mix: Literal["auto"] | None = None,
    held_out: HeldOut | None = None,
    check_text: bool = False,
    explain: bool = False,
    show: RunOutput = True,
) -> Run[Recipe]:
    """Train a transformer on text files and folders, into the run folder `out` (runs/NAME unless given).

    N-grams, neural probabilistic and recurrent predictors are trained by `train_predictor`.

    preset      an architecture of `pellucid.presets`. Without a preset, a recipe and sizes among the fields, a run of
                minutes is sized to its text and time (`pellucid.plan.sizing`), and one of another length is "small"
    recipe      a `Recipe`, or a TOML or JSON file of fields. A Recipe describes the whole run: its `inputs` are read
                where none are named, and what it records of a run that took place (`decay`, `base`) is not used
    fields      single fields, such as {"model.d_model": 256, "dropout": 0.1}; they override the recipe
    minutes, steps, tokens, epochs   the length, at most one of them; the recipe's unless given, and 10 minutes where
                neither has one
    held_out    what is measured on and never trained on: a share of the text (a tenth unless given), or files and
                folders of your own
    check_text  read and hash every file, and the prepared tokens, also where size and times have not changed since
    resume      continue the run in `out` exactly; a length makes it longer, the layout of the processes, the tracker,
                the device, train.compile, the intervals of evaluations, checkpoints and samples and train.keep_last may
                change, and other options are refused. Relative inputs are looked up where the run was started, unless
                inputs are named anew
    from_model  start from the weights, tokenizer and architecture of this run or saved model
    revision    of a name on the Hugging Face hub to start from: a branch, a tag or a commit
    trust       open a model to start from whose weights are pickles, and a tokenizer (that model's, one at a path, or
                that of a resumed run) whose patterns are not known to be safe; such a run is loaded with trust too
    mix         auto: also count an n-gram on the training text and store it in the run. Its share beside the network is
                fitted on training text that neither has seen, and bits per byte are reported with and without it; the
                same as the field train.mix (`pellucid.predictors.mixed_training`)
    explain     also print how everything was chosen: what is held out, the sizes considered, precision, weight decay
    show        print what happens: live in a terminal, one line that changes in a notebook, plain lines elsewhere;
                "warnings" prints these alone, on standard error, and "json" one object a line

    Losses are in nats per token. Ctrl-C and SIGTERM save and return (`Run.exit_code` 130, 143). Raises
    ValueError, with nothing written, when the text or an option is wrong; NumericsError after three steps
    in a row whose loss or gradient was not finite.
    """
    began = time.monotonic()
    check_trust(trust)
    length = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    changes, length = take_length(add_mix(add_held_out(fields or {}, held_out), mix), length)
    if revision and from_model is None:
        raise RecipeError(f"revision = {revision!r} is of the model to start from: name it (--from), or leave it out")
    if world_size() > 1 and "-" in map(str, inputs):
        raise RecipeError(
            f"standard input is read by one process, and {world_size()} were started: leave out --processes"
        )
    if not isinstance(recipe, Recipe | str | Path | None):
        raise RecipeError(f"recipe is a {type(recipe).__name__}: expected a Recipe, or the path of a TOML or JSON file")
    start = Path(recipe) if isinstance(recipe, str | Path) else recipe
    if preset and isinstance(start, Recipe):
        raise RecipeError(f"the recipe has an architecture of its own: leave out the preset {preset}")
    reporter = make_reporter(show, explain)
    paths = tuple(map(str, inputs))
    with checking_text(check_text), joined_processes() as processes:
        if not processes.is_first:
            return follow_transformer(paths, processes, trust)
        if resume:
            if from_model is not None:
                raise RecipeError(f"{out} has weights of its own: leave out from_model when you resume it")
            run = resume_transformer(paths, out, preset, start, changes, length, reporter, processes, trust)
        else:
            run_recipe, base = new_recipe(inputs, preset, start, changes, from_model, revision, trust)
            run_recipe = with_length(run_recipe, length)
            is_open = preset is None and from_model is None and start is None and sizes_are_open(run_recipe, changes)
            trainable = trainable_class(run_recipe)(
                run_recipe,
                sampler_for(run_recipe.train.objective),
                checks=pre_run_checks,
                choose_sizes=partial(size_to, options=changes) if is_open else None,
                processes=processes,
                trust=trust,
                **base,
            )
            run = start_run(trainable, None if out is None else Path(out), reporter, began)
        return with_adapter(finalize(run, reporter), reporter, trust)


def add_mix(changes: dict[str, Any], mix: str | None) -> dict[str, Any]:
    """The fields, with train.mix. Raises RecipeError where both give one."""
    if mix is None:
        return changes
    if others := [value for name, value in changes.items() if full_name(name) == "train.mix" and value != mix]:
        raise RecipeError(f"train.mix is given twice, as {mix} and as {others[0]}: give it once")
    return {name: value for name, value in changes.items() if full_name(name) != "train.mix"} | {"train.mix": mix}


def with_adapter(run: Run[Recipe], reporter: PlainReporter, trust: Trust = False) -> Run[Recipe]:
    """The run itself, its best adapters written beside its checkpoints where they alone make up what was trained.

    Where peft could not read them, a note says why; the run is complete without them.
    """
    if run.recipe.adapt.rank and not run.recipe.record.new_ids and steps_of(run.path):
        try:
            write_run_adapter(run.path, run.path / "adapter", trust=trust)
        except (FamilyError, RecipeError) as error:
            reporter.note(f"no folder for peft is written beside the checkpoints: {error}")
    return run


def trainable_class(recipe: Recipe) -> type[TransformerTrainable]:
    """What the pipeline trains by this recipe: the network, or the network and an n-gram that it is mixed with."""
    return MixedTransformer if recipe.train.mix == "auto" else TransformerTrainable


def joined_processes() -> AbstractContextManager[Processes]:
    """A context in which this process has joined the others that a launcher has started; ALONE without a launcher."""
    if world_size() == 1:
        return nullcontext(SINGLE_PROCESS)
    from pellucid.training.parallel import joined

    return joined()


def follow_transformer(inputs: tuple[str, ...], processes: Processes, trust: Trust = False) -> Run[Recipe]:
    """Train together with the first process, in the run that it has started or resumed; `inputs` where they moved."""
    run_dir, step = processes.announced()
    recipe = read_recipe(run_dir)
    divides = recipe.parallel.shard * recipe.parallel.tensor > 1  # else the first process sends the first weights
    starts_from = recipe.record.base is not None and (recipe.adapt.rank or (step is None and divides))
    weights = base_weights(recipe, trust) if starts_from else None
    moved_recipe = replace(recipe, inputs=inputs or recipe.inputs)
    sampler = sampler_for(recipe.train.objective)
    trainable = trainable_class(recipe)(moved_recipe, sampler, weights=weights, processes=processes, trust=trust)
    return follow_run(trainable, run_dir, step)


def new_recipe(
    inputs: tuple[str | Path, ...],
    preset: str | None,
    start: Recipe | Path | None,
    changes: dict[str, Any],
    from_model: str | Path | None,
    revision: str | None,
    trust: Trust = False,
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a new run of a transformer; and, of `from_model`, the tokenizer and weights that it starts with."""
    if isinstance(start, Recipe):
        start = start.with_inputs(tuple(map(str, inputs)) or start.located(start.inputs))
        inputs = start.inputs
    if not inputs or not all(map(str, inputs)):
        raise RecipeError("no text was named, or one by an empty path: give at least one file or folder")
    paths = tuple(str(Path(path)) for path in inputs)
    base: dict[str, Any] = {}
    if from_model is not None:
        recipe, base = start_from(from_model, revision, paths, preset, changes, start, trust)
    else:
        recipe = make_recipe(paths, preset, changes, start)
        if recipe.adapt.rank:
            raise RecipeError("adapters change a model that exists: name it with --from, or leave out --lora")
    return recipe, base


def start_from(
    model: str | Path,
    revision: str | None,
    paths: tuple[str, ...],
    preset: str | None,
    changes: dict[str, Any],
    start: Recipe | Path | None,
    trust: Trust = False,
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a run that starts from a model, and the tokenizer and weights that it starts with."""
    if preset:
        raise RecipeError(f"--from takes the architecture of {model}: leave out --preset {preset}")
    check_changes(changes, start, paths)
    if (Path(model) / "recipe.json").exists() and (kind := run_kind(Path(model))) != "transformer":
        raise ModelError(f"{model} is a run of kind {kind}: --from needs a transformer")
    source = open_starting_model(model, revision, trust=trust)
    if isinstance(source.tokenizer, IdTokenizer):
        raise ModelError(
            f"{model} has no tokenizer that can be used, with which a run that starts from it would read text: give a "
            "model that has one"
        )
    run_recipe = with_record(make_recipe_on(source.architecture, paths, changes, start), base=source.base)
    opened = {"tokenizer": source.tokenizer, "chat_template": source.chat_template, "weights": source.weights}
    return run_recipe, opened


def resume_transformer(
    inputs: tuple[str, ...],
    out: str | Path | None,
    preset: str | None,
    start: Recipe | Path | None,
    changes: dict[str, Any],
    length: dict[str, Any],
    reporter: PlainReporter,
    processes: Processes,
    trust: Trust = False,
) -> Run[Recipe]:
    """Resume the run in `out`; every option must be the run's, but the layout of the processes, the tracker and those
    of `recipe_changes.RESUMABLE`.
    """
    if out is None:
        raise RecipeError(NO_FOLDER)
    check_function(Path(out), "train")
    recipe = read_recipe(Path(out))
    check_given_once(changes, full_name)
    changes = {full_name(name): value for name, value in changes.items()}
    moved = changes.get("text.held_out_files", ()) if recipe.text.held_out_files else ()
    moved = parse_value("text.held_out_files", moved, tuple[str, ...])
    if moved:
        changes["text.held_out_files"] = recipe.text.held_out_files  # wherever they lie now
    # the layout of the processes changes nothing that is computed: it is asked for, kept, or chosen anew
    asked = overlay(replace(recipe, parallel=ParallelOptions()), preset, changes, start, processes.n)
    of_base = [name for name in OF_TOKENIZER if recipe.record.base and name in changes]
    changed = [f"{name}: the tokenizer is that of the base model" for name in of_base]
    if changed := changed or differences(recipe, asked):
        raise RecipeError(
            f"{out} cannot be resumed with other options ({'; '.join(changed[:3])}): leave them out, or start a new "
            f"run from its weights with --from {out}"
        )
    # a run that started from a model and has lost its checkpoints begins again with that model's weights
    needs_base = recipe.record.base is not None and (recipe.adapt.rank or not steps_of(Path(out)))
    weights = base_weights(recipe, trust) if needs_base else None
    if recipe.adapt.rank:
        keep_base(recipe.record.base)
    moved_recipe = recipe.with_inputs(inputs, moved)
    keeps_layout = asked.parallel == ParallelOptions() and recipe.parallel.n_processes == processes.n
    layout = recipe.parallel if keeps_layout else asked.parallel
    moved_recipe = replace(moved_recipe, parallel=layout)
    moved_recipe = with_train(moved_recipe, track=asked.train.track)
    words = {n: getattr(asked.train, n) for n in OF_MACHINE}
    words |= {n: value for n in OF_RECORD if (value := getattr(asked.train, n)) != getattr(recipe.train, n)}
    # one that is asked for again is not chosen, though it is equal to what the run chose
    words |= {n: changes[f"train.{n}"] for n in (*OF_MACHINE, *OF_RECORD) if f"train.{n}" in changes}
    moved_recipe = resumed_with(moved_recipe, words, reporter)
    reporter.start(lines_on_resuming(Path(out), resolve_device(moved_recipe.train.device)))
    trainable = trainable_class(recipe)(
        moved_recipe, sampler_for(recipe.train.objective), weights=weights, processes=processes, trust=trust
    )
    return resume_run(trainable, Path(out), length, reporter, recipe)
