"""The one object a user holds: a network, its tokenizer, and where both come from."""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor

from pellucid.adapters import base_of, base_weights, write_run_adapter
from pellucid.architecture import Architecture
from pellucid.destination import check_destination
from pellucid.edits import Edit
from pellucid.generate.fill import Filling, fill
from pellucid.generate.readers import NO_TAPS, TapFactory
from pellucid.generate.samples import sample_target, sample_text
from pellucid.generate.scoring import Score, score
from pellucid.generate.text import Generated, GenerateOptions, TextPiece, generate, stream_generate
from pellucid.hub.families import FamilyError
from pellucid.hub.open import LoadWarning, find_folder, open_folder
from pellucid.hub.open import copy_parameters as fill_network
from pellucid.hub.targets import PRESET_FOR, Target, check_target
from pellucid.lens.analysis.ablation import Ablation, ablate
from pellucid.lens.analysis.heads import Heads, detect_heads
from pellucid.lens.analysis.metrics import Metric
from pellucid.lens.analysis.patching import Patching, patch
from pellucid.lens.analysis.path_patching import End, PathEffect, path_patch
from pellucid.lens.analysis.steering import Probe, activations, direction, fit_probe, mean_activation
from pellucid.lens.core.inputs import InputOptions, Texts
from pellucid.lens.generation_trace import GenerationTrace, generate_traced
from pellucid.lens.trace import Trace, trace
from pellucid.lens.weights.circuit_weights import Part
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.embeddings import Embeddings
from pellucid.lens.weights.folding import WeightsView, weights_view
from pellucid.lens.weights.head_weights import Head
from pellucid.lens.weights.weight_edits import with_edits
from pellucid.model import Transformer
from pellucid.model.weights import check_finite, save_weights
from pellucid.plan.sizing import sizing_of
from pellucid.predictors.on_text import Progress, score_given, with_baselines
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.train import Kind, train_predictor
from pellucid.predictors.transformer_mixture import mixed_with
from pellucid.report.finalize import finalize, pre_run_checks
from pellucid.runs.checkpoint import steps_of
from pellucid.runs.device import resolve_device
from pellucid.runs.length import with_length
from pellucid.runs.options import RecipeError
from pellucid.runs.pipeline import NO_FOLDER, Run, resume_run, start_run
from pellucid.runs.reporter import PlainReporter, QuietReporter, make_reporter
from pellucid.text.chat_template import ChatTemplate, read_chat_template, write_chat_template
from pellucid.text.ids import IdTokenizer
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import Tokenizer
from pellucid.training.kinds import check_loader, kind_of
from pellucid.training.load import load_run, read_recipe
from pellucid.training.recipe import (
    Recipe,
    check_changes,
    differences,
    make_recipe,
    make_recipe_on,
    overlay,
    take_length,
)
from pellucid.training.text_parts import HeldOut, add_held_out
from pellucid.training.trainable import Sampler, TransformerTrainable
from pellucid.verify import Report, verify
from pellucid.vision.recipe import KIND as IMAGES
from pellucid.vision.run import train_images


class ModelError(ValueError):
    """A folder that holds no model."""


@dataclass
class LanguageModel:
    """A transformer with its tokenizer: generate text, score text, look inside, save.

    `pellucid.load` opens one. The network is a torch module and is used as it is: no conversion, no rewritten weights.
    `provenance` holds the folder that the weights come from, and the step of a run. `chat_template` turns a
    conversation into what the model reads, for a model that was trained on conversations.
    """

    network: Transformer
    tokenizer: Tokenizer
    provenance: dict[str, Any]
    chat_template: ChatTemplate | None = None

    @property
    def architecture(self) -> Architecture:
        return self.network.architecture

    def generate(
        self, prompt: str = "", *, edits: Sequence[Edit] = (), **options: Unpack[GenerateOptions]
    ) -> Generated:
        """Generate one text from the prompt; `pellucid.generate.text.stream_generate` describes the options.

        An encoder-decoder reads `source="..."` and generates the target; `beams=4` searches for the likeliest text.
        `edits` (`pellucid.edits`) are made at every step; their positions count from the prompt's first token.
        """
        return generate(self.network, self.tokenizer, prompt, taps=self._taps(edits), **options)[0]

    def generate_many(
        self,
        prompts: str | Sequence[str] = "",
        *,
        n: int = 1,
        edits: Sequence[Edit] = (),
        **options: Unpack[GenerateOptions],
    ) -> list[Generated]:
        """Generate n texts from every prompt in one batch, those of the first prompt first; `source` may be a list."""
        return generate(self.network, self.tokenizer, prompts, n=n, taps=self._taps(edits), **options)

    def stream(
        self,
        prompt: str | Sequence[str] = "",
        *,
        n: int = 1,
        edits: Sequence[Edit] = (),
        **options: Unpack[GenerateOptions],
    ) -> Iterator[TextPiece]:
        """Generate text piece by piece; the pieces' texts joined are the text that `generate` returns."""
        return stream_generate(self.network, self.tokenizer, prompt, n=n, taps=self._taps(edits), **options)

    def generate_traced(
        self,
        prompt: str = "",
        *,
        keep: str | Sequence[str],
        edits: Sequence[Edit] = (),
        n: int = 1,
        **options: Unpack[GenerateOptions],
    ) -> tuple[Generated, dict[str, Tensor]]:
        """Generate one text, and return it with the tensors named in `keep` as they were at each step [1, ...].

        Raises InputError for beams and for n above 1, which generate several texts.
        """
        return generate_traced(self.network, self.tokenizer, prompt, keep, edits, n=n, **options)

    def _taps(self, edits: Sequence[Edit]) -> TapFactory:
        return GenerationTrace(self.network, edits) if edits else NO_TAPS

    def with_edits(self, edits: Sequence[Edit]) -> "LanguageModel":
        """A model whose weights do what the edits do (`pellucid.lens.weights.weight_edits`), a copy."""
        changed = with_edits(self.network, edits)
        provenance = self.provenance | {"edits": [e.to_dict() for e in edits]}
        return LanguageModel(changed, self.tokenizer, provenance, self.chat_template)

    def score(
        self,
        text: str | os.PathLike,
        *,
        prefix: str = "",
        source: str | None = None,
        start: Literal["separator", "none"] = "separator",
        stride: int | None = None,
        batch: int = 8,
        reading: ReadOptions | None = None,
        baselines: bool = False,
        progress: Progress | None = None,
    ) -> Score:
        """How probable a text is, by itself or as the continuation of `prefix` (`pellucid.generate.scoring.score`).

        text       a string; or the pathlib.Path of a file, which is read as training reads it
        reading    how such a file is read: its field, its format, its encoding
        baselines  also score n-grams that are counted on the training text of the run that this model is from
        progress   progress(stage, done, total) is called during long steps
        """

        def score_text(text: str) -> Score:
            return score(
                self.network,
                self.tokenizer,
                text,
                prefix=prefix,
                source=source,
                start=start,
                stride=stride,
                batch=batch,
            )

        result = score_given(score_text, text, reading)
        return with_baselines(result, self.provenance.get("folder"), self.tokenizer, progress) if baselines else result

    def mixed_with(self, other: Predictor, weight: float = 0.5) -> Predictor:
        """Mix with an n-gram: `weight` is the model's share (`pellucid.predictors.transformer_mixture`)."""
        return mixed_with(self.network, self.tokenizer, other, weight)

    def fill(self, text: str, *, top: int = 5) -> list[Filling]:
        """What may stand at each [MASK] in `text`; for masked models (`pellucid.generate.fill.fill`)."""
        return fill(self.network, self.tokenizer, text, top=top)

    # Looking inside -------------------------------------------------------------------------

    def trace(
        self,
        texts: Texts,
        *,
        keep: str | Sequence[str] = (),
        edits: Sequence[Edit] = (),
        grad: bool = False,
        **options: Unpack[InputOptions],
    ) -> Trace:
        """One forward pass over texts or ids, with a name for every tensor (`pellucid.lens.trace.trace`)."""
        return trace(self.network, self.tokenizer, texts, keep=keep, edits=edits, grad=grad, **options)

    def patch(
        self,
        clean: Texts,
        corrupt: Texts,
        metric: Metric,
        *,
        site: str = "resid_pre",
        mode: Literal["exact", "attribution", "both"] = "exact",
        layers: Sequence[int] | None = None,
        positions: Sequence[int] | Literal["each", "all"] = "each",
        corrupt_source: Texts | None = None,
        **options: Unpack[InputOptions],
    ) -> Patching:
        """Activation patching, exact or by attribution, by position (`pellucid.lens.analysis.patching.patch`)."""
        return patch(
            self.network,
            self.tokenizer,
            clean,
            corrupt,
            metric,
            site=site,
            mode=mode,
            layers=layers,
            positions=positions,
            corrupt_source=corrupt_source,
            **options,
        )

    def path_patch(
        self,
        clean: Texts,
        corrupt: Texts,
        metric: Metric,
        *,
        sender: End,
        receivers: Sequence[End],
        mlps: Literal["free", "frozen"] = "free",
        corrupt_source: Texts | None = None,
        **options: Unpack[InputOptions],
    ) -> PathEffect:
        """The effect of one part on others along direct paths (`pellucid.lens.analysis.path_patching.path_patch`)."""
        return path_patch(
            self.network,
            self.tokenizer,
            clean,
            corrupt,
            metric,
            sender=sender,
            receivers=receivers,
            mlps=mlps,
            corrupt_source=corrupt_source,
            **options,
        )

    def ablate(
        self,
        texts: Texts,
        metric: Metric,
        *,
        site: str = "attn.z",
        kind: Literal["zero", "mean", "resample"] = "mean",
        layers: Sequence[int] | None = None,
        reference: Texts | None = None,
        **options: Unpack[InputOptions],
    ) -> Ablation:
        """The metric without each head, attention or MLP (`pellucid.lens.analysis.ablation.ablate`)."""
        return ablate(
            self.network,
            self.tokenizer,
            texts,
            metric,
            site=site,
            kind=kind,
            layers=layers,
            reference=reference,
            **options,
        )

    def heads(
        self,
        text: Texts | None = None,
        *,
        rows: int = 4,
        period: int | None = None,
        seed: int = 0,
        **options: Unpack[InputOptions],
    ) -> Heads:
        """Every head's scores on repeated random tokens, or on a text (`pellucid.lens.analysis.heads.detect_heads`)."""
        return detect_heads(self.network, self.tokenizer, text, rows=rows, period=period, seed=seed, **options)

    def direction(
        self,
        towards: Texts,
        away: Texts,
        at: str,
        pos: int | Literal["mean"] = -1,
        at_once: int = 32,
        **options: Unpack[InputOptions],
    ) -> Tensor:
        """A difference of means [m] to steer by, with `edits.add` (`pellucid.lens.analysis.steering.direction`)."""
        return direction(self.network, self.tokenizer, towards, away, at, pos, at_once, **options)

    def mean_activation(self, texts: Texts, at: str, at_once: int = 32, **options: Unpack[InputOptions]) -> Tensor:
        """The mean of a tensor over texts, for `edits.mean(at, over=...)` (`pellucid.lens.analysis.steering`)."""
        return mean_activation(self.network, self.tokenizer, texts, at, at_once, **options)

    def probe(
        self,
        texts: Texts,
        targets: Sequence[Any] | Tensor,
        at: str,
        *,
        pos: int | Literal["mean"] = -1,
        held_out: float = 0.3,
        shuffles: int = 5,
        seed: int = 0,
        **options: Unpack[InputOptions],
    ) -> Probe:
        """A ridge regression from a tensor to targets, one for each text (`pellucid.lens.analysis.steering`)."""
        x = activations(self.network, self.tokenizer, texts, at, pos, **options)
        return fit_probe(x, targets, held_out=held_out, shuffles=shuffles, seed=seed)

    def circuits(self, *, part: Part = "attn", fold_norms: bool = False, centre: bool = False) -> Circuits:
        """Heads and neurons as matrices, from the weights alone (`pellucid.lens.weights.circuits.Circuits`)."""
        return Circuits(self.network, self.tokenizer, part=part, fold_norms=fold_norms, centre=centre)

    def head(self, layer: int, head: int) -> Head:
        """One attention head as matrices, on raw weights (`pellucid.lens.weights.head_weights.Head`)."""
        return self.circuits()[layer, head]

    def embeddings(self, of: Literal["embed", "unembed", "positions"] = "embed") -> Embeddings:
        """A table of embeddings as a cloud of points (`pellucid.lens.weights.embeddings.Embeddings`)."""
        return Embeddings(self.network, self.tokenizer, of)

    def weights(self, *, fold_norms: bool = False, centre: bool = False) -> WeightsView:
        """Read-only weights by name, with norms folded in or means removed (`pellucid.lens.weights.folding`)."""
        return weights_view(self.network, fold_norms=fold_norms, centre=centre)

    def verify(self, prompts: list[str] | None = None, *, progress: Callable[[str], None] | None = None) -> Report:
        """The laws and the reference, run on this model (`pellucid.verify.verify`)."""
        only_ids = isinstance(self.tokenizer, IdTokenizer) and prompts is None
        return verify(self.network if only_ids else self, prompts, progress)

    def save(self, folder: str | Path, *, edits: Sequence[Edit] = ()) -> Path:
        """Write architecture.json, model.safetensors, and tokenizer files (where there are any) into a new folder.

        `edits` are written into the weights, where they are a change of weights; EditError, and nothing written, else.
        """
        network, folder = with_edits(self.network, edits) if edits else self.network, Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ModelError(f"{folder} is not empty: choose a new folder")
        check_destination(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "architecture.json").write_text(json.dumps(network.architecture.to_dict(), indent=1) + "\n")
        if not isinstance(self.tokenizer, IdTokenizer):
            self.tokenizer.save(folder)
            if self.chat_template is not None:
                write_chat_template(folder, self.chat_template)
        save_weights(network, folder / "model.safetensors")
        return folder


def load(
    model: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    trust: bool = False,
    tokenizer: Tokenizer | str | Path | None = None,
    allow_nan: bool = False,
) -> LanguageModel:
    """Open a transformer: a run's folder, a saved model, a Hugging Face folder, or a name on the Hugging Face hub.

    A name that is no folder here (`gpt2`, `OWNER/NAME`) is fetched from the hub. Runs of other kinds are opened by
    `load_predictor` and `load_images`. Raises ValueError when there is no model, it is damaged, or it is of another
    kind.

    checkpoint  of a run: best (lowest held-out loss), last, or the number of a step
    device      auto, cpu, cuda, ...
    dtype       of the weights; a run is trained and saved in float32
    trust       open pickled weights, and tokenizers whose patterns are not known to be safe. No code is ever run
    tokenizer   a tokenizer, or its file or folder, in place of the model's own. Where a folder has none and none is
                given, texts are ids in digits ("17 4 250")
    allow_nan   open a model although its weights hold NaN or infinity, to look into it
    """
    folder, torch_device = find_folder(model), resolve_device(device)
    if (folder / "recipe.json").exists():
        check_loader(folder, "load")
        if tokenizer is not None:
            raise ModelError(
                f"{folder} is a run, which has the tokenizer that it was trained with: leave tokenizer out"
            )
        network, own, step = load_run(folder, checkpoint, torch_device, base_weights, dtype)
        check_finite(network, f"{folder}, step {step}", allow_nan)
        return LanguageModel(network, own, {"folder": str(folder), "step": step}, read_chat_template(folder))
    opened = open_folder(folder, trust=trust)
    if (reads := opened.tokenizer(tokenizer)) is None:
        reads = opened.ids()
    chat_template, why_none = opened.chat_template()
    for sentence in (*opened.notes(reads), *why_none):
        warnings.warn(sentence, LoadWarning, stacklevel=2)
    network = fill_network(Transformer(opened.architecture).to(dtype), opened.ours())
    check_finite(network, str(folder), allow_nan)
    return LanguageModel(network.to(torch_device).eval(), reads, {"folder": str(folder)}, chat_template)


def heads_over(
    run: str | Path,
    *,
    steps: Sequence[int] | None = None,
    text: Texts | None = None,
    rows: int = 4,
    period: int | None = None,
    seed: int = 0,
    **options: Unpack[InputOptions],
) -> dict[int, Heads]:
    """The scores of the heads at each checkpoint of a run, by step: how they came to do what they do.

    `steps` picks checkpoints, all of them unless given; the other options are those of `LanguageModel.heads`.
    """
    check_loader(Path(run), "load")
    return {
        step: load(run, checkpoint=str(step)).heads(text, rows=rows, period=period, seed=seed, **options)
        for step in (steps_of(Path(run)) if steps is None else steps)
    }


def train(
    *inputs: str | Path,
    out: str | Path | None = None,
    resume: bool = False,
    from_model: str | Path | None = None,
    predictor: str | None = None,
    preset: str | None = None,
    recipe: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    opens_in: Target | None = None,
    held_out: HeldOut | None = None,
    explain: bool = False,
    show: bool = False,
) -> Run[Any]:
    """Train a language model on text files and folders, into the run folder `out` (runs/NAME unless given).

    predictor   transformer unless given, or ngram, neural-probabilistic, recurrent (`pellucid.predictors`), with
                their own fields; image-classifier reads a .npz file of images and labels (`pellucid.vision.run`), its
                length in epochs
    preset      an architecture of `pellucid.presets`. Without one, and without sizes among the fields, a run of
                minutes is sized to its text and time (`pellucid.plan.sizing`), and one of another length is "small"
    recipe      a TOML or JSON file of fields
    fields      single fields, such as {"model.d_model": 256, "dropout": 0.1}; they override the recipe file
    minutes, steps, tokens, epochs   the length, at most one of them; 10 minutes unless given
    held_out    what is measured on and never trained on: a share of the text (a tenth unless given), or files and
                folders of your own
    resume      continue the run in `out` exactly; a length makes it longer, and other options are refused
    from_model  start from the weights, tokenizer and architecture of this run or saved model
    opens_in    transformers or gguf (llama.cpp): where no preset is named, start from one that this software opens
                without extra code, and refuse options that it cannot represent, before the text is read
    explain     print what decided the sizes: all that were considered, and the formulas
    show        print what happens: live in a terminal, plain lines elsewhere

    Losses are in nats per token. Ctrl-C and SIGTERM save and return (`Run.exit_code` 130, 143). Raises
    ValueError, with nothing written, when the text or an option is wrong; NumericsError after three steps
    in a row whose loss or gradient was not finite.
    """
    began, reporter = time.monotonic(), make_reporter() if show else QuietReporter()
    file = None if recipe is None else Path(recipe)
    asked = {"minutes": minutes, "steps": steps, "tokens": tokens, "epochs": epochs}
    fields = add_held_out(fields or {}, held_out)
    changes, length = take_length(fields, asked)
    kind = (predictor or "transformer") if not resume or out is None else kind_of(Path(out))
    if resume and (predictor not in (None, kind) or from_model is not None):
        raise RecipeError(f"{out} is a {kind} with weights of its own: resume it without --predictor and --from")
    if kind != "transformer":
        if opens_in is not None:
            raise RecipeError(f"opens_in = {opens_in} applies to a transformer, not to {kind}: leave it out")
        if wrong := [n for n, v in (("preset", preset), ("recipe", recipe), ("from", from_model)) if v is not None]:
            raise RecipeError(f"{wrong[0]} applies to a transformer, not to predictor = {kind}: leave it out")
        if kind == IMAGES:
            if "text.held_out_files" in changes:
                raise RecipeError("an image classifier holds out a share of its images, no files: give --held-out 0.1")
            return train_images(*inputs, out=out, fields=changes, resume=resume, show=show, **asked)
        return train_predictor(
            *inputs, kind=cast(Kind, kind), out=out, fields=fields, resume=resume, show=show, **asked
        )
    if resume:
        return continue_run(tuple(map(str, inputs)), out, preset, file, changes, length, reporter, opens_in)
    if not inputs or not all(map(str, inputs)):
        raise RecipeError("no text was named, or one by an empty path: give at least one file or folder")
    paths = tuple(str(Path(path)) for path in inputs)
    model: dict[str, Any] = {}
    if from_model is not None:
        run_recipe, model = start_from(from_model, paths, preset, changes, file)
    else:
        run_recipe = make_recipe(paths, preset, changes, file)
        if opens_in is not None:
            run_recipe = make_recipe(paths, preset, changes, file, PRESET_FOR.get(run_recipe.train.objective, "small"))
        if run_recipe.adapt.rank:
            raise RecipeError("adapters change a model that exists: name it with --from, or leave out --lora")
    if opens_in is not None:
        run_recipe = made_for(opens_in, run_recipe)
    folder = None if out is None else Path(out)
    run_recipe = with_length(run_recipe, length)
    sizes = sizing_of(
        run_recipe, changes, open_=preset is None and from_model is None and file is None, explain=explain
    )
    trainable = TransformerTrainable(
        run_recipe, sampler_of(run_recipe), checks=pre_run_checks, choose_sizes=sizes.get("size"), **model
    )
    run = start_run(trainable, folder, reporter, began)
    return with_adapter(finalize(run, reporter))


def made_for(target: Target, recipe: Recipe) -> Recipe:
    """The recipe, with its target noted; RecipeError where the target cannot open what it describes."""
    try:
        check_target(target, recipe.model, recipe.text.tokenizer, recipe.text.pattern)
    except FamilyError as error:
        raise RecipeError(f"--for {target}: {error}") from None
    return replace(recipe, opens_in=target)


def start_from(
    model: str | Path, paths: tuple[str, ...], preset: str | None, changes: dict[str, Any], file: Path | None
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a run that starts from a model, and the tokenizer and weights that it starts with."""
    if preset:
        raise RecipeError(f"--from takes the architecture of {model}: leave out --preset {preset}")
    check_changes(changes, file)
    if (Path(model) / "recipe.json").exists() and (kind := kind_of(Path(model))) != "transformer":
        raise ModelError(f"{model} is a run of kind {kind}: --from needs a transformer")
    source = load(model, device="cpu")
    weights = dict(source.network.named_parameters())
    base = base_of(model, source.provenance, weights)
    run_recipe = replace(make_recipe_on(source.architecture, paths, changes, file), base=base)
    return run_recipe, {"tokenizer": source.tokenizer, "weights": weights}


def continue_run(
    inputs: tuple[str, ...],
    out: str | Path | None,
    preset: str | None,
    file: Path | None,
    changes: dict[str, Any],
    length: dict[str, Any],
    reporter: PlainReporter,
    opens_in: Target | None = None,
) -> Run:
    """Resume the run in `out`; every other option must be the one that the run has."""
    if out is None:
        raise RecipeError(NO_FOLDER)
    recipe = read_recipe(Path(out))
    if opens_in not in (None, recipe.opens_in):
        raise RecipeError(
            f"{out} cannot be resumed with --for {opens_in}: it was trained for {recipe.opens_in or 'no target'}; "
            "leave it out, or start a new run"
        )
    moved = changes.pop("text.held_out_files", ()) if recipe.text.held_out_files else ()
    if changed := differences(recipe, overlay(recipe, preset, changes, file)):
        raise RecipeError(
            f"{out} cannot be resumed with other options ({'; '.join(changed[:3])}): leave them out, or start a new "
            f"run from its weights with --from {out}"
        )
    weights = base_weights(recipe) if recipe.adapt.rank else None
    text = replace(recipe.text, held_out_files=moved or recipe.text.held_out_files)
    moved_recipe = replace(recipe, inputs=inputs or recipe.inputs, text=text)
    trainable = TransformerTrainable(moved_recipe, sampler_of(recipe), weights=weights)
    run = resume_run(trainable, Path(out), length, reporter, recipe)
    return with_adapter(finalize(run, reporter))


def with_adapter(run: Run) -> Run:
    """The run itself, its best adapters written beside its checkpoints where it has any."""
    if run.recipe.adapt.rank and steps_of(run.path):
        write_run_adapter(run.path, run.path / "adapter")
    return run


def sampler_of(recipe: Recipe) -> Sampler | None:
    """What writes samples during training; a masked model writes none, an encoder-decoder the target of a source."""
    return {"masked": None, "source-target": sample_target}.get(recipe.train.objective, sample_text)
