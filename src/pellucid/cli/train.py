"""The command that trains: its options in groups, and their checks before any text is read."""

import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.options import (
    ARGV,
    DEVICE,
    FILE,
    MODEL,
    CorpusOptions,
    NoEffect,
    OptionError,
    Revision,
    TrustOption,
    above,
    at_least,
    command,
    option,
    refuse_given,
    trust_of,
)
from pellucid.destination import check_destination
from pellucid.option_values import check_given_once

if TYPE_CHECKING:
    from pellucid.runs.pipeline import Run


@dataclass(frozen=True)
class TrainingTextOptions(CorpusOptions):
    """The text, and how it becomes tokens."""

    tokenizer: Annotated[str | None, option("KIND", default="bpe")] = None
    """Make tokens with bpe, word, char or byte, or with the tokenizer.json at this path."""
    vocabulary: Annotated[int | None, option("N", default="chosen by the amount of text"), at_least(1)] = None
    """Let the tokenizer learn this many tokens (bpe and word)."""
    inside_documents: Annotated[bool, option()] = False
    """Attend only to tokens of the same document."""
    licence: Annotated[str | None, option("TEXT")] = None
    """Note this licence of the text in the data.json of the run."""


@dataclass(frozen=True)
class ModelOptions:
    """What is trained. Without a preset and sizes, they are chosen from the text, the time and this machine."""

    preset: Annotated[str | None, option("NAME")] = None
    """Take this architecture: small, modern, gpt2, bert, and others."""
    from_: Annotated[str | None, option("MODEL", name="from"), MODEL] = None
    """Start from the weights, the tokenizer and the architecture of this run or model."""
    revision: Revision = ""
    trust: TrustOption = "no"
    layers: Annotated[int | None, option("N"), at_least(0)] = None
    """Set model.n_layers, the number of blocks."""
    width: Annotated[int | None, option("N"), at_least(1)] = None
    """Set model.d_model, the width of the residual stream."""
    context: Annotated[int | None, option("N"), at_least(1)] = None
    """Set model.n_ctx, the most tokens that the model reads at once."""
    lora: Annotated[int | None, option("RANK"), at_least(1)] = None
    """Train low-rank adapters of this rank, and leave the weights of --from unchanged."""
    objective: Annotated[
        Literal["next-token", "prefix", "masked", "source-target", "chat"] | None,
        option("KIND", default="next-token, or chat for conversations"),
    ] = None
    """Predict next-token, prefix (the text after one), masked (hidden tokens), source-target, or chat (the answers)."""
    mix: Annotated[Literal["auto"] | None, option("WHEN", default="off")] = None
    """With auto, also store an n-gram of the training text, and fit its share on text that neither model has seen."""
    predictor: Annotated[
        Literal["transformer", "ngram", "neural-probabilistic", "recurrent"] | None,
        option("KIND", default="transformer"),
    ] = None
    """Train transformer, ngram, neural-probabilistic or recurrent."""


@dataclass(frozen=True)
class TrainingOptions:
    """The length of the training (give one of the first four), its seed and its precision."""

    minutes: Annotated[float | None, option("N", default="10"), above(0)] = None
    """Train for this many minutes; with --resume, for this many more. A stopped run given its own goes on with them."""
    steps: Annotated[int | None, option("N"), at_least(1)] = None
    """Train for this many steps (updates of the weights)."""
    tokens: Annotated[int | None, option("N"), at_least(1)] = None
    """Train on this many tokens."""
    epochs: Annotated[float | None, option("N"), above(0)] = None
    """Train on the whole text this many times."""
    batch: Annotated[int | None, option("N", default="chosen"), at_least(1)] = None
    """Set train.batch, the sequences of a micro-batch."""
    learning_rate: Annotated[float | None, option("RATE", default="0.005"), above(0)] = None
    """Set train.learning_rate, AdamW's at its peak."""
    seed: Annotated[int | None, option("N", default="1337")] = None
    """Draw the first weights, the order of the text and the dropout from this seed."""
    device: Annotated[str | None, option("DEVICE", default="auto"), DEVICE] = None
    """Compute on auto, cpu, cuda or mps; auto takes a GPU where there is one."""
    precision: Annotated[Literal["auto", "float32", "tf32", "bfloat16"] | None, option("FORMAT", default="auto")] = None
    """Multiply matrices in auto, float32, tf32 (NVIDIA GPUs) or bfloat16; auto takes float32 or bfloat16, by speed."""
    deterministic: Annotated[bool, option()] = False
    """Use only algorithms that give the same result in every run."""
    processes: Annotated[int | None, option("N", default="1, or as many as torchrun started"), at_least(1)] = None
    """Train in this many processes of this machine; the losses are those of one process."""
    oversubscribe: Annotated[
        bool, option(), NoEffect(lambda o: (o.processes or 1) == 1, "--oversubscribe needs --processes of 2 or more")
    ] = False
    """With --processes, start more processes than this machine has cores."""
    max_restarts: Annotated[int, option("N"), at_least(0)] = 0
    """With --processes, start them again up to N times where one of them dies; needs --out, which they resume."""


@dataclass(frozen=True)
class OutputOptions:
    """Where the run is written, and what is printed about it."""

    out: Annotated[Path | None, option("RUN", default="runs/NAME")] = None
    """Write the run into this folder, which must be new unless --resume is given."""
    resume: Annotated[bool, option()] = False
    """Continue the run in --out exactly where its last checkpoint left it; another length makes it longer."""
    explain: Annotated[
        bool, option(), NoEffect(lambda o: o.quiet or o.as_json, "--quiet and --json print no explanations for people")
    ] = False
    """Also print how everything was chosen: what is held out, the sizes considered, precision, weight decay."""
    quiet: Annotated[bool, option(), NoEffect(lambda o: o.as_json, "--json prints everything")] = False
    """Print only warnings, on standard error, and at the end the folder of the run."""
    as_json: Annotated[bool, option(name="json")] = False
    """Print one JSON object a line, for scripts: choices, steps, evaluations, samples, notes and the end."""


@command
def train_command(
    paths: Annotated[Positional[tuple[str, ...]], option("[TEXT ...]")] = (),
    *,
    input: TrainingTextOptions,
    model: ModelOptions,
    training: TrainingOptions,
    output: OutputOptions,
    recipe: Annotated[Path | None, option("FILE"), FILE] = None,
    set_: Annotated[UseAppendAction[tuple[str, ...]], option("FIELD=VALUE", name="set", repeatable=True)] = (),
    help_fields: Annotated[bool, option()] = False,
) -> int:
    """Train a model on text files and folders.

    Files may be plain text, Markdown, HTML, JSON lines, CSV, TSV or Parquet, each also as .gz or .zst. With
    --objective source-target they are pairs (.tsv or .jsonl). JSON lines with messages are conversations, and the
    answers in them are learned.

    Args:
        paths: Train on these files, folders and patterns; - reads standard input. Not needed with --resume.
        recipe: Read fields from this TOML or JSON file, after the preset and before --set.
        set_: Set a field of the recipe, such as model.d_model=256 or dropout=0.1.
        help_fields: List every field that --set takes, and exit.

    Examples:
        pellucid train my_texts/ --minutes 10
        pellucid train my_texts/ --preset gpt2 --set n_layers=4 --steps 2000
    """
    if help_fields:
        from pellucid.cli.fields import print_fields

        return print_fields(model.predictor or "transformer")
    from pellucid.training.text_parts import add_held_out

    of_set, of_options = parse_fields(set_), fields_of(input, model, training)
    check_given_once([*(pair.partition("=")[0].strip() for pair in set_), *of_options], str)
    fields = add_held_out(of_set | of_options, input.held_out)
    length: dict[str, Any] = {name: getattr(training, name) for name in ("minutes", "steps", "tokens", "epochs")}
    if training.max_restarts and (output.out is None or (training.processes or 1) == 1):
        raise OptionError("--max-restarts starts several processes again and resumes --out: give --processes and --out")
    if is_begun_again(output.out):
        from pellucid.training.recipe import take_length

        output, model = replace(output, resume=True), replace(model, from_=None, revision="")
        fields, length = take_length(fields, length)
        length.pop("minutes", None)  # what is left of them stands in the checkpoint
    check_before_reading(paths, model, output, recipe, fields, length)
    kind = kind_to_train(model, output, recipe)
    if (training.processes or 1) > started_processes(training.processes):
        import torch

        from pellucid.runs.launcher import check_cores, launch

        if training.device == "cpu" or not torch.cuda.is_available():
            check_cores(training.processes or 1, training.oversubscribe)
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // (training.processes or 1))))
        return launch(training.processes or 1, ARGV.get(), training.max_restarts)

    import pellucid

    of_any: dict[str, Any] = {"out": output.out, "resume": output.resume, "fields": fields, **length}
    of_any |= {"trust": trust_of(model.trust), "check_text": input.check_text}
    of_any["show"] = "json" if output.as_json else "warnings" if output.quiet else True
    if kind == "features":
        return print_end(pellucid.train_features(None, *paths, **of_any), output)
    if kind != "transformer":
        return print_end(pellucid.train_predictor(*paths, kind=kind, **of_any), output)
    run = pellucid.train(
        *paths,
        preset=model.preset,
        from_model=model.from_,
        revision=model.revision or None,
        recipe=recipe,
        explain=output.explain,
        **of_any,
    )
    return print_end(run, output)


def print_end(run: "Run[Any]", output: OutputOptions) -> int:
    """Print what scripts need of a run that is over, and return its exit code."""
    if output.as_json:
        figures = {name: value for name, value in vars(run).items() if name not in ("path", "recipe")}
        print(json.dumps({"event": "end", "run": str(run.path), **figures}))
    elif output.quiet:
        print(run.path)
    return run.exit_code


def fields_of(input: TrainingTextOptions, model: ModelOptions, training: TrainingOptions) -> dict[str, Any]:
    """The fields of the recipe that options set."""
    fields = {
        "text.tokenizer": input.tokenizer,
        "text.vocabulary": input.vocabulary,
        "text.inside_documents": "yes" if input.inside_documents else None,
        "text.field": input.joined_fields() or None,
        "text.format": input.format,
        "text.encoding": input.encoding,
        "text.html": input.html,
        "text.split_at": input.split_at,
        "text.include": ",".join(input.include) or None,
        "text.exclude": ",".join(input.exclude) or None,
        "text.skip_bad": "yes" if input.skip_bad else None,
        "text.drop_duplicates": "yes" if input.drop_duplicates else None,
        "text.licence": input.licence,
        "model.n_layers": model.layers,
        "model.d_model": model.width,
        "model.n_ctx": model.context,
        "train.batch": training.batch,
        "train.learning_rate": training.learning_rate,
        "train.objective": model.objective,
        "train.mix": model.mix,
        "adapt.rank": model.lora,
        "train.seed": training.seed,
        "train.device": training.device,
        "train.precision": training.precision,
        "train.deterministic": "yes" if training.deterministic else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def check_before_reading(
    paths: tuple[str, ...],
    model: ModelOptions,
    output: OutputOptions,
    recipe: Path | None,
    fields: dict[str, Any],
    length: dict[str, Any],
) -> None:
    """Raise an error for options that are wrong whatever the text and the model are, in a fraction of a second."""
    files = fields.get("text.held_out_files", ())  # a string where --set gives it
    named = [*paths, *((files,) if isinstance(files, str) else files)]
    if not all(named):
        raise OptionError("an empty path was given: give a file or a folder of text")
    if missing := [path for path in named if path != "-" and not glob.has_magic(path) and not Path(path).exists()]:
        raise OptionError("\n".join(map(missing_path, missing)))
    if model.revision and model.from_ is None:
        raise OptionError(f"--revision {model.revision} is of the model to start from: give --from, or leave it out")
    tokenizers = [str(fields[name]) for name in ("tokenizer", "text.tokenizer") if name in fields]
    if not (model.from_ or output.resume or recipe or any(Path(name).exists() for name in tokenizers)):
        refuse_given(
            ["--trust"], "--trust needs one of --from, --resume, --recipe and --tokenizer PATH, and none is given"
        )
    if output.resume:
        check_run(output.out)
        return  # the resumed run checks the other options
    if not paths:
        raise OptionError("no text was named: give at least one file or folder, or - for standard input")
    if os.environ.get("RANK", "0") == "0":  # another process may have made it by now
        check_new_folder(output.out)
    if model.predictor not in (None, "transformer"):
        return

    from pellucid.training.recipe import check_changes, make_recipe, take_length

    changes, _ = take_length(fields, length)
    if model.from_ is None:
        make_recipe(paths, model.preset, changes, recipe)
    elif model.preset is not None:
        raise OptionError(f"--from takes the architecture of {model.from_}: leave out --preset {model.preset}")
    else:
        check_changes(changes, recipe, paths)


def missing_path(path: str) -> str:
    """What to say of an input that is not there: how to get the text of an address or of a data set."""
    if "://" in path:
        return f"{path}: training reads files, not addresses: get it first, such as by curl -LO {path}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not Path(path).suffix:
        save = f"load_dataset('{path}')['train'].to_json('{path.rpartition('/')[2]}.jsonl')"
        return (
            f"{path}: there is no such file or folder. If it is a data set of the Hugging Face hub, write its text to "
            f'a file first: python -c "from datasets import load_dataset; {save}"'
        )
    return f"{path}: there is no such file or folder"


def kind_to_train(model: ModelOptions, output: OutputOptions, recipe: Path | None) -> Any:
    """What is trained, or was in the run that is resumed. Raises OptionError for options that it does not have."""
    from pellucid.training.kinds import run_kind

    kind = model.predictor or "transformer"
    if output.resume and output.out is not None:
        kind = run_kind(output.out)
        if model.predictor not in (None, kind) or model.from_ is not None:
            raise OptionError(
                f"{output.out} is a {kind} with weights of its own: resume it without --predictor and --from"
            )
    if kind == "ngram" and model.mix is not None:
        raise OptionError(f"--mix {model.mix} mixes a network with an n-gram, and ngram is one: leave it out")
    of_transformers = {"preset": model.preset, "recipe": recipe, "from": model.from_, "explain": output.explain}
    if kind != "transformer" and (not_here := [name for name, value in of_transformers.items() if value]):
        raise OptionError(f"--{not_here[0]} needs a transformer, not --predictor {kind}: leave it out")
    return kind


def is_begun_again(out: Path | None) -> bool:
    """Whether the launcher has started the processes again, by the words of the first time, and the run exists.

    Raises OptionError where its folder is not known.
    """
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return False
    if out is None:
        raise OptionError("the processes were started again, and --out does not say which run they should resume")
    return (out / "recipe.json").exists()


def started_processes(asked: int | None) -> int:
    """How many processes a launcher has started, 1 without one; OptionError where --processes says another number."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if asked not in (None, started) and started > 1:
        raise OptionError(f"--processes {asked}: torchrun has started {started} processes; leave --processes out")
    return started


def check_run(out: Path | None) -> None:
    """Raise OptionError unless the folder holds a run that can be resumed."""
    if out is None:
        raise OptionError("--resume continues a run that exists: name its folder with --out, such as --out runs/NAME")
    if not (out / "recipe.json").exists():
        what = "has no recipe.json" if out.exists() else "does not exist"
        raise OptionError(
            f"--resume --out {out}: it {what}; give the folder of a run, such as runs/NAME. A run that was stopped "
            "before its first step has none: start it again without --resume"
        )


def check_new_folder(out: Path | None) -> None:
    """Raise OptionError for a folder that exists, or that cannot be created."""
    if out is not None and out.exists():
        raise OptionError(f"--out {out} exists: choose another folder, or continue that run with --resume --out {out}")
    check_destination(Path("runs") / "run" if out is None else out)


def parse_fields(pairs: Sequence[str]) -> dict[str, str]:
    """`["d_model=256", ...]` as a dictionary; raises ValueError for anything that is not FIELD=VALUE."""
    fields = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"--set {pair!r}: expected FIELD=VALUE, such as --set model.d_model=256")
        fields[name.strip()] = value.strip()
    return fields
