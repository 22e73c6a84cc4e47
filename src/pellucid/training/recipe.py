"""A recipe: every option that a training run depends on.

Options that a user leaves open (None, typed and shown as auto) are decided when the run starts, written to recipe.json
with the others, and used unchanged when the run is resumed.
"""

import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pellucid.architecture import Architecture, architecture_fields
from pellucid.json_files import MOST_BYTES, JSONFileError, parse_json_object, read_regular
from pellucid.option_values import (
    ArchitectureError,
    check_given_once,
    field_hints,
    is_auto,
    overlaid,
    parse_value,
    resolve_field,
)
from pellucid.presets import gated_width, preset
from pellucid.runs.options import (
    LENGTHS,
    RecipeError,
    RunRecipe,
    RunRecord,
    TrainOptions,
    refuser,
    with_train,
)
from pellucid.runs.recipe_changes import changed_options, flat
from pellucid.text.read.conversations import holds_conversations
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import TokenizerKind
from pellucid.training.config import ADAPTING, CONTINUING, AdapterOptions, Base, ParallelOptions
from pellucid.training.config import TextOptions as TextOptions
from pellucid.training.encoder import PREFIX, check_encoder, with_encoder, with_model_fields


@dataclass(frozen=True, kw_only=True)
class TextRecipe(RunRecipe):
    """The recipe of a model of text: it includes how the text becomes tokens."""

    text: TextOptions = field(default_factory=TextOptions)

    @property
    def input_files(self) -> tuple[str, ...]:
        return (*self.inputs, *self.text.held_out_files)

    def with_inputs(self, inputs: tuple[str, ...], held_out_files: tuple[str, ...] = ()) -> Self:
        """As `RunRecipe.with_inputs`, and with other files to hold out where some are given."""
        if not (inputs or held_out_files):
            return self
        text = replace(self.text, held_out_files=held_out_files or self.located(self.text.held_out_files))
        return replace(super().with_inputs(inputs or self.located(self.inputs)), text=text)


TextRecipeT = TypeVar("TextRecipeT", bound=TextRecipe)


@dataclass(frozen=True, kw_only=True)
class Record(RunRecord):
    """What happened in a run of a transformer."""

    base: Base | None = None
    """the model that the run started from; a run of adapters does not store its weights"""
    tokens_per_row: float = 0.0
    """how many tokens a row predicts on average, 0 where it predicts n_ctx of them"""
    new_ids: tuple[int, ...] = ()
    """the tokens that the base model did not have"""

    def check(self) -> None:
        """Raise RecipeError for numbers that no run can have."""
        super().check()
        refuse_unless = refuser(self, "record")
        refuse_unless(0 <= self.tokens_per_row < math.inf, "tokens_per_row", "a number from 0 on")
        refuse_unless(min(self.new_ids, default=0) >= 0, "new_ids", "ids of tokens, from 0 on")


@dataclass(frozen=True, kw_only=True)
class Recipe(TextRecipe):
    """One run of a transformer: the text, the network, how it is trained, and the record of what happened."""

    model: Architecture
    adapt: AdapterOptions = field(default_factory=AdapterOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    kind: Literal["transformer"] = "transformer"
    record: Record = field(default_factory=Record)

    @property
    def row(self) -> float:
        """Tokens that a row predicts, on average where rows differ."""
        return self.record.tokens_per_row or self.model.n_ctx


OPTION_CLASSES = {"text": TextOptions, "train": TrainOptions, "adapt": AdapterOptions, "parallel": ParallelOptions}


def recipe_fields() -> list[str]:
    """The dotted name of every field that --set takes."""
    return [f"model.{n}" for n in architecture_fields()] + [
        f"{p}.{f.name}" for p, c in OPTION_CLASSES.items() for f in fields(c)
    ]


def make_recipe(
    inputs: tuple[str, ...],
    preset_name: str | None,
    changes: Mapping[str, Any],
    start: Recipe | Path | None = None,
) -> Recipe:
    """A recipe from a preset (small unless named), then a recipe or its file, then single fields.

    Each overrides what came before. `changes` maps field names (`model.d_model`, or `d_model` where no other
    part has it) to values, as text or typed. Raises RecipeError or ArchitectureError: one line that names the
    nearest right field.
    """
    check_given_once(changes, full_name)
    if isinstance(start, Recipe):
        recipe = with_fields(replace(start, inputs=inputs, record=Record()), changes)
    else:
        name, from_file = _preset_and_fields(preset_name, start)
        base = Recipe(inputs=inputs, model=preset(name or "small"))
        recipe = with_fields(base, with_objective(inputs, recipe_with_changes(from_file, changes)))
    check_tokenizer(recipe.text)
    check_effect(recipe, changes)
    return recipe


def with_objective(inputs: tuple[str, ...], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes`, with the objective `chat` where the inputs are conversations and neither it nor a field is named."""
    named = {full_name(name): value for name, value in changes.items()}
    if named.keys() & {"train.objective", "text.field"}:
        return changes
    include, exclude = (str(named.get(f"text.{name}", "")) for name in ("include", "exclude"))
    reading = ReadOptions(include=include, exclude=exclude)
    return {**changes, "train.objective": "chat"} if holds_conversations(inputs, reading) else changes


def check_tokenizer(text: TextOptions) -> None:
    """Raise RecipeError for a tokenizer that is neither a known kind nor an existing file."""
    if text.tokenizer not in typing.get_args(TokenizerKind) and not Path(text.tokenizer).exists():
        near = difflib.get_close_matches(text.tokenizer, typing.get_args(TokenizerKind), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecipeError(
            f"{text.tokenizer}: there is no such tokenizer; {hint}expected bpe, word, char, byte or the path of a "
            "tokenizer.json"
        )
    if text.chat_template not in ("", "chatml") and not Path(text.chat_template).is_file():
        raise RecipeError(f"{text.chat_template}: there is no such chat template; say chatml or the path of one")


def make_recipe_on(
    architecture: Architecture, inputs: tuple[str, ...], changes: Mapping[str, Any], start: Recipe | Path | None = None
) -> Recipe:
    """As make_recipe, for a run that starts from a model, whose tokenizer and architecture it keeps.

    The dropout may change, and n_ctx too where positions are computed and no weight depends on it.
    """
    name, from_start = _preset_and_fields(None, start, has_model=True)
    objective = "source-target" if architecture.encoder else MASK_OBJECTIVE[architecture.attention.mask]
    base = with_train(Recipe(inputs=inputs, model=architecture), objective=objective)
    fields = recipe_with_changes(from_start, changes)
    asked = with_objective(inputs, fields)
    check_objective_on(objective, asked, changes, from_start)
    recipe = with_fields(base, {**CONTINUING, **asked})
    if recipe.adapt.rank:
        recipe = with_fields(base, {**ADAPTING, **asked})
    fixed = ("model.", *OF_TOKENIZER)
    free = ("model.dropout",) if architecture.learns_positions else ("model.dropout", "model.n_ctx")
    # the tokenizer is the model's, so that no option of it says what it is, not even one that is the default
    wrong = [full for full in map(full_name, changes) if full in OF_TOKENIZER]
    wrong += [line for line in differences(base, recipe) if line.startswith(fixed) and not line.startswith(free)]
    if name or wrong:
        raise RecipeError(
            "a run that starts from a model keeps its architecture and tokenizer: leave out "
            + (f"the preset {name}" if name else wrong[0].partition(":")[0])
        )
    check_effect(recipe, changes)
    return recipe


#: the fields that describe the tokenizer of a new run
OF_TOKENIZER = ("text.tokenizer", "text.vocabulary", "text.pattern", "text.sample")


def check_objective_on(
    own: str, fields: Mapping[str, Any], changes: Mapping[str, Any], from_recipe: Mapping[str, Any]
) -> None:
    """Raise RecipeError where the objective among the fields needs another architecture than the model that a run
    starts from, whose objective is `own`.

    changes, from_recipe  those of the fields that the user set, and those of a recipe; an objective that neither names
                          follows from the inputs, which are conversations
    """
    asked = {full_name(name): value for name, value in fields.items()}.get("train.objective", own)
    needs, has = ((OBJECTIVE_MASK.get(word), word == "source-target") for word in (asked, own))
    if needs == has or asked not in OBJECTIVE_MASK:  # another word is refused with the list of them
        return
    what = "an encoder beside its decoder" if needs[1] else f"model.attention.mask = {needs[0]} and no encoder"
    remedy = "give other inputs, which are no conversations"
    if "train.objective" in map(full_name, changes):
        remedy = f"leave out --objective {asked}"
    elif "train.objective" in map(full_name, from_recipe):
        remedy = f"set --objective {own}, or leave the recipe out"
    raise RecipeError(
        f"train.objective = {asked} needs {what}, and a run that starts from a model keeps its architecture, which is "
        f"that of {own}: {remedy}"
    )


def check_effect(recipe: Recipe, changes: Mapping[str, Any]) -> None:
    """Raise RecipeError where one of the fields that a user sets in `changes` has no effect in a run of this recipe.

    Fields of a recipe file are not checked: a run writes every field there, and one file may serve several runs.
    """
    t, text = recipe.train, recipe.text
    adapts = (recipe.adapt.rank > 0, "low-rank adapters (--lora), and this run trains none")
    goes_with = {
        "text.pattern": (text.tokenizer == "bpe", f"text.tokenizer = bpe, not {text.tokenizer}"),
        "adapt.alpha": adapts,
        "adapt.modules": adapts,
        "train.mask_share": (t.objective == "masked", f"train.objective = masked, not {t.objective}"),
        "train.muon_learning_rate": (t.optimizer == "muon", f"train.optimizer = muon, not {t.optimizer}"),
        "train.sample_prompt": (t.sample_every != 0, "samples, and train.sample_every = 0 writes none"),
    }
    named = {full_name(name): value for name, value in changes.items()}
    for name, (has_effect, what) in goes_with.items():
        part, _, last = name.partition(".")
        if name in named and not has_effect and (value := getattr(getattr(recipe, part), last)) is not None:
            raise RecipeError(f"{name} = {value} goes with {what}: leave it out")


def _preset_and_fields(
    preset_name: str | None, start: Recipe | Path | None, has_model: bool = False
) -> tuple[str | None, dict[str, Any]]:
    """The preset that is named, here or in a recipe file, and the fields of the recipe or its file, which is for a run
    that starts from a model where it `has_model`.
    """
    if start is None:
        return preset_name, {}
    if not isinstance(start, Path):
        return preset_name, without_vocabulary_size(fields_of_options(start.to_dict()["options"]))
    from_file = read_recipe_file(start, has_model)
    name = from_file.pop("preset", None)
    if name is not None and preset_name not in (None, name):
        raise RecipeError(f"the preset is given twice, {preset_name} and, in {start}, {name}: give one of them")
    return preset_name or name, from_file


def without_vocabulary_size(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without n_vocab, which a tokenizer decides when the run starts."""
    return {name: value for name, value in values.items() if name.rpartition(".")[2] != "n_vocab"}


def recipe_with_changes(from_recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe with `changes` over them: files to hold out replace the recipe's share and its rule of
    choosing it, and a share replaces its files.
    """
    named = {full_name(name) for name in changes}
    own = {full_name(name): value for name, value in from_recipe.items()}
    replaced: set[str] = set()
    if "text.held_out_files" in named:
        replaced = {"text.held_out", "text.split"}
    elif "text.held_out" in named and own.get("text.held_out_files"):
        replaced = {"text.held_out_files", "text.split"}
    return {name: value for name, value in from_recipe.items() if full_name(name) not in replaced} | dict(changes)


def take_length(changes: Mapping[str, Any], length: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`changes` without the lengths among them, and `length` with those. Raises RecipeError for two lengths."""
    hints, rest, of_fields = typing.get_type_hints(TrainOptions), {}, {}
    for name, value in changes.items():
        bare = name.removeprefix("train.")
        if bare in LENGTHS:
            if bare in of_fields:
                raise RecipeError(f"the length is given twice, by {bare} and train.{bare}: give one of them")
            of_fields[bare] = parse_value(f"train.{bare}", value, hints[bare])
        else:
            rest[name] = value
    lengths = [(n, v) for n, v in (*length.items(), *of_fields.items()) if v is not None]
    for name, value in lengths:
        if not 0 < value < float("inf"):
            raise RecipeError(f"{name} = {value}: expected a number above 0")
        if hints[name] is int and value != int(value):
            raise RecipeError(f"{name} = {value}: expected a whole number")
    if len(lengths) > 1:
        raise RecipeError(f"the length is given twice, by {' and '.join(n for n, _ in lengths)}: give one of them")
    return rest, {name: hints[name](value) for name, value in lengths}


def with_fields(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A copy with named fields changed; see make_recipe for names and errors."""
    named: dict[str, Any] = {}
    for name, value in changes.items():
        full = full_name(name)
        named.pop(full, None)  # the last one wins: `dropout` sets all of dropout.*
        named[full] = value
    of = {
        p: {n.partition(".")[2]: v for n, v in named.items() if n.startswith(f"{p}.")}
        for p in ("model", *OPTION_CLASSES)
    }
    of["text"] = settle_held_out(recipe.text, of["text"])
    parts = {p: overlaid(getattr(recipe, p), of[p], p) for p in OPTION_CLASSES}
    model = {"attention.mask": OBJECTIVE_MASK[parts["train"].objective]} if "objective" in of["train"] else {}
    base = with_encoder(recipe.model) if parts["train"].objective == "source-target" else recipe.model
    model = with_model_fields(base, model | mlp_width(base, of["model"]) | of["model"])
    return _checked(replace(recipe, model=model, **parts))


def mlp_width(a: Architecture, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The new width of a gated MLP whose preset chose it by d_model, where d_model or the MLP's form changes."""
    if a.mlp.form != "gated" or a.mlp.d_ff != gated_width(a.d_model):
        return {}
    if changes.get("mlp.form", "gated") != "gated":
        return {"mlp.d_ff": 0}
    d_model = parse_value("model.d_model", changes.get("d_model", a.d_model), int)
    return {} if d_model == a.d_model else {"mlp.d_ff": gated_width(d_model)}


#: the options of reading that do not go with pairs and conversations
READ_AS_TEXT = ("field", "format", "encoding", "html", "split_at", "drop_duplicates")
#: the mask that each objective needs: a position must not read the token that it predicts
OBJECTIVE_MASK = {"next-token": "causal", "prefix": "prefix", "masked": "bidirectional", "source-target": "causal"}
OBJECTIVE_MASK |= {"chat": "causal"}
MASK_OBJECTIVE = {"causal": "next-token", "prefix": "prefix", "bidirectional": "masked"}


def settle_held_out(base: TextOptions, changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` to `base`, with the fields that must change too where files are held out instead of a share of the
    text.

    Raises RecipeError where a share, or a rule of choosing it, is given together with files.
    """
    if base.held_out_files and "held_out" in changes and "held_out_files" not in changes:
        return {"held_out_files": (), "split": "stratified", **changes}  # a share takes the place of the files
    if not (files := changes.get("held_out_files", base.held_out_files)):
        return dict(changes)
    implied = {"held_out": 0.0, "split": "files"}
    if wrong := [n for n, v in implied.items() if n in changes and str(changes[n]) not in (str(v), "0")]:
        raise RecipeError(
            f"text.{wrong[0]} = {changes[wrong[0]]} and text.held_out_files = {files} are both given: hold out a share "
            "of the text, or files of your own"
        )
    return {**changes, **implied}


def _checked(recipe: Recipe) -> Recipe:
    """The recipe, unless its objective and its mask contradict each other."""
    objective, mask = recipe.train.objective, recipe.model.attention.mask
    if mask != OBJECTIVE_MASK[objective]:
        raise RecipeError(
            f"train.objective = {objective} needs model.attention.mask = {OBJECTIVE_MASK[objective]}, not {mask}: "
            "under another mask a token could read what it is to predict, or not read what it may"
        )
    check_encoder(recipe.model, objective)
    options = {f"text.{n}": getattr(recipe.text, n) for n in READ_AS_TEXT}
    options["text.split"] = recipe.text.split if recipe.text.split in ("documents", "tail") else ""
    rows = {"source-target": "pairs", "chat": "conversations"}.get(objective)
    if rows and (set_options := [n for n, v in options.items() if v not in ("", "auto", "no", "all")]):
        raise RecipeError(f"{set_options[0]} = {options[set_options[0]]} does not go with {rows}: leave it out")
    if recipe.text.chat_template and objective != "chat":
        raise RecipeError(
            f"text.chat_template = {recipe.text.chat_template} goes with train.objective = chat, not {objective}"
        )
    _check_adapters(recipe.adapt)
    if recipe.train.balance and not recipe.model.mlp.experts:
        raise RecipeError(f"train.balance = {recipe.train.balance}: expected 0 where mlp.experts = 0, as here")
    if objective != "next-token" and recipe.train.mix == "auto":
        raise RecipeError(
            f"train.mix = auto (--mix auto) goes with train.objective = next-token, not {objective}: an n-gram "
            "predicts the next token from those before it"
        )
    if objective != "next-token" and recipe.text.inside_documents == "yes":
        raise RecipeError(f"text.inside_documents = yes goes with train.objective = next-token, not {objective}")
    return recipe


def _check_adapters(adapt: AdapterOptions) -> None:
    refuse_unless = refuser(adapt, "adapt")
    refuse_unless(adapt.alpha is None or 0 < adapt.alpha < math.inf, "alpha", "a number above 0, or auto")
    if adapt != AdapterOptions() and not adapt.rank:
        raise RecipeError("adapt.alpha and adapt.modules describe low-rank adapters: give their rank too (--lora 8)")


def check_changes(changes: Mapping[str, Any], start: Recipe | Path | None = None, inputs: tuple[str, ...] = ()) -> None:
    """Raise RecipeError for fields that do not exist and values that are never valid, before the run's model is known.

    `make_recipe_on` checks what depends on the architecture.
    """
    check_given_once(changes, full_name)
    _, from_start = _preset_and_fields(None, start)
    named = {full_name(name): value for name, value in recipe_with_changes(from_start, changes).items()}
    of_training = {name: value for name, value in named.items() if not name.startswith("model.")}
    checked = with_fields(Recipe(inputs=(), model=preset("small")), with_objective(inputs, of_training))
    if checked.train.mix == "auto":
        raise RecipeError(
            "train.mix = auto (--mix auto) fits a share on text that the network has not seen, and what the weights "
            "that a run starts from have seen is not known: leave out --mix or --from, or train an n-gram by itself "
            "(--predictor ngram) and name it where the model is used (--mix RUN)"
        )


def full_name(name: str) -> str:
    """The dotted name of a field. Raises RecipeError, which names the nearest one, also for the initials of a name."""
    try:
        if (bare := name.removeprefix("model.")).startswith(PREFIX):
            return f"model.{PREFIX}{resolve_field(bare.removeprefix(PREFIX), architecture_fields())}"
        return resolve_field(name, recipe_fields())
    except ArchitectureError as error:
        for known in recipe_fields():
            if name.lower() == "".join(word[0] for word in known.rpartition(".")[2].split("_")):
                raise RecipeError(f"there is no field {name!r}; did you mean {known!r}?") from None
        raise RecipeError(str(error)) from None


def overlay(
    recipe: Recipe,
    preset_name: str | None,
    changes: Mapping[str, Any],
    start: Recipe | Path | None,
    processes: int = 1,
) -> Recipe:
    """A run's recipe with these options on top; it is equal to the run's where they say the same.

    Several `processes` may have divided the rows of a step into other passes than were asked for.
    """
    name, from_start = _preset_and_fields(preset_name, start)
    base, t = recipe if name is None else replace(recipe, model=preset(name, recipe.model.n_vocab)), recipe.train
    named = {full_name(n): v for n, v in recipe_with_changes(from_start, changes).items()}
    asked = {name: value for name, value in named.items() if not (name in OPEN and is_auto(value))}
    sizes = [str(asked.get("train.batch")), str(asked.get("train.accumulate", 1))]
    rows = t.batch and t.batch * (t.accumulate or 1)
    is_same_step = all(map(str.isdecimal, sizes)) and math.prod(map(int, sizes)) == rows
    if is_same_step and ("train.accumulate" not in asked or processes > 1):
        # the run has divided these rows into passes, where they were left open or for its processes
        asked = {name: value for name, value in asked.items() if name not in ("train.batch", "train.accumulate")}
    try:
        return with_fields(base, asked)
    except RecipeError:
        # an option that contradicts others of the run differs from the run's, and that is the error to report
        changed = _with_unchecked(base, asked)
        if changed == base:
            raise
        return changed


def _with_unchecked(recipe: Recipe, asked: Mapping[str, Any]) -> Recipe:
    """A copy with these fields changed, without checking that they go together; fields of the model are left out."""
    parts = {}
    for part, kind in OPTION_CLASSES.items():
        hints = typing.get_type_hints(kind)
        own = {n.removeprefix(f"{part}."): v for n, v in asked.items() if n.startswith(f"{part}.")}
        parsed = {name: parse_value(f"{part}.{name}", value, hints[name]) for name, value in own.items()}
        parts[part] = replace(getattr(recipe, part), **parsed)
    return replace(recipe, **parts)


#: the fields that a run decides where they are auto
OPEN = {
    f"{part}.{name}"
    for part, kind in OPTION_CLASSES.items()
    for name, hint in field_hints(kind).items()
    if types.NoneType in typing.get_args(hint)
}


def read_recipe_file(path: Path, has_model: bool = False) -> dict[str, Any]:
    """The fields of a TOML or JSON recipe, as dotted names; a run's recipe.json can be given as it is.

    has_model  whether they are for a run that starts from a model: then the size of another run's vocabulary is left
               out, as that run may have gained tokens, and the text decides whether this one gains them
    """
    try:
        content = read_regular(path, MOST_BYTES).decode("utf-8")
        values = tomllib.loads(content) if path.suffix == ".toml" else parse_json_object(content, str(path))
    except OSError as error:
        raise RecipeError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except JSONFileError as error:
        raise RecipeError(f"the recipe {error}") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"the recipe {path} is not valid TOML: {error}") from None
    if isinstance(options := values.get("options"), dict):  # it is a run's recipe
        values = {name: value for name, value in options.items() if name != "parallel"}  # a new run has its own
        if has_model:
            return without_vocabulary_size(fields_of_options(values))
    return fields_of_options(values)


def fields_of_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields among the options of a recipe, as dotted names; `options` are nested as in recipe.json."""
    return flat({name: value for name, value in options.items() if name not in ("inputs", "kind")})


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The options in which two recipes differ, one line each; `--resume` may change none of them."""
    changed = changed_options(old.to_dict()["options"], new.to_dict()["options"])
    values = [(name, *("auto" if value is None else value for value in pair)) for name, *pair in changed]
    return [f"{name}: {a} in the run, {b} asked for" for name, a, b in values]
