"""A training run from text to checkpoints: decide everything once, write it down, train, or continue."""

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as recompute

from pellucid.architecture import count_parameters
from pellucid.model import Transformer
from pellucid.model.weights import initialise, load_state
from pellucid.text.documents import Corpus, read_corpus
from pellucid.text.preparation import prepare
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from pellucid.text.tokens import Tokens, describe_difference, read_manifest
from pellucid.training import resolve
from pellucid.training.checkpoint import CheckpointError, best_step, load_checkpoint, steps_of, write_json
from pellucid.training.data import TokenData
from pellucid.training.display import PlainReporter, describe
from pellucid.training.interrupt import Interruption
from pellucid.training.loop import Training
from pellucid.training.metrics import MetricsFile
from pellucid.training.objectives import precise
from pellucid.training.optimizer import Optimizer
from pellucid.training.recipe import Recipe, RecipeError, with_train

Sampler = Callable[[Transformer, Tokenizer, str, int], str]


@dataclass(frozen=True)
class Run:
    """A run's folder and how its last sitting ended: exit code 0 done, 130 or 143 interrupted after saving."""

    path: Path
    recipe: Recipe
    step: int
    held_out_loss: float | None = None
    bits_per_byte: float | None = None
    exit_code: int = 0


def cache_folder() -> Path:
    """Where prepared tokens are kept between runs: PELLUCID_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PELLUCID_CACHE") or Path(base) / "pellucid")


def choose_folder(out: Path | None, inputs: tuple[str, ...]) -> Path:
    """The folder of a new run: the one asked for, which may not exist, or the next free runs/NAME."""
    if out is not None:
        if out.exists():
            raise RecipeError(f"{out} exists: choose another --out, or continue that run with --resume --out {out}")
        return out
    name = re.sub(r"[^\w.-]+", "-", Path(inputs[0]).resolve().stem) or "run"
    candidates = [Path("runs") / name, *(Path("runs") / f"{name}-{i}" for i in range(2, 10_000))]
    return next(path for path in candidates if not path.exists())


def default_vocabulary(n_bytes: int) -> int:
    """How many ids BPE learns for so much text: about one for each 500 bytes, from 512 to 32,768."""
    wanted = max(512, min(32768, n_bytes // 500))
    return 2 ** (wanted.bit_length() - 1)


def make_tokenizer(recipe: Recipe, split: Split) -> Tokenizer:
    """The tokenizer that the recipe asks for, trained on the training part alone."""
    asked = recipe.text.tokenizer
    if asked not in ("bpe", "char", "byte"):
        return load_tokenizer(asked)
    n_vocab = (recipe.text.vocabulary or default_vocabulary(split.corpus.n_bytes)) if asked == "bpe" else None
    return train_tokenizer(asked, split.texts("train"), n_vocab)


# A new run ----------------------------------------------------------------------------------


def start(
    recipe: Recipe, out: Path | None, reporter: PlainReporter, sampler: Sampler | None = None, **given: Any
) -> Run:
    """Read the text, decide what is open, write the run's folder, train.

    `given` may hold `tokenizer` and `weights`, for a run that starts from another model.
    """
    with Interruption() as interruption:
        began = time.monotonic()
        run = choose_folder(out, recipe.inputs)
        corpus, tokens, tokenizer = read_text(recipe, reporter, given.get("tokenizer"))
        recipe = replace(recipe, model=replace(recipe.model, n_vocab=tokenizer.n_vocab))
        device = resolve.resolve_device(recipe.train.device)
        recipe = with_train(recipe, batch=resolve.resolve_batch(recipe))
        resolve.check_memory(recipe, device)
        network = build(recipe, device, given.get("weights"))
        recipe, lines = settle(recipe, network, tokens, device, given.get("weights"))
        n_parameters = count_parameters(recipe.model)["total"]
        reporter.start([describe(recipe.model, n_parameters), *lines, f"run: {run}"])
        if interruption:
            return Run(run, recipe, 0, exit_code=interruption.exit_code)
        run.mkdir(parents=True)
        tokenizer.save(run)
        write_json(run / "architecture.json", recipe.model.to_dict())
        write_json(run / "data.json", read_manifest(tokens.folder) | {"skipped": [list(s) for s in corpus.skipped]})
        write_json(run / "recipe.json", recipe.to_dict())  # last: a folder with a recipe can be resumed
        deadline = began + 1.1 * 60 * recipe.train.minutes if recipe.train.minutes else float("inf")
        return train(run, recipe, network, tokens, tokenizer, reporter, sampler, interruption, deadline)


def read_text(recipe: Recipe, reporter: PlainReporter, tokenizer: Tokenizer | None) -> tuple[Corpus, Tokens, Tokenizer]:
    """The corpus, its tokens on disk, and the tokenizer, made where none is given; says what was read."""
    corpus = read_corpus(recipe.inputs)
    split = split_corpus(corpus, recipe.text.held_out, recipe.train.seed)
    tokenizer = tokenizer or make_tokenizer(recipe, split)
    tokens = prepare(split, tokenizer, cache_folder())
    n_train, n_held = (len(tokens.part(p)) for p in ("train", "held_out"))
    lines = [
        f"text: {len(corpus.documents):,} documents, {corpus.n_bytes:,} bytes; {n_train:,} tokens to train on, "
        f"{n_held:,} held out",
        split.note,
        f"tokenizer: {tokenizer.kind}, {tokenizer.n_vocab:,} ids, "
        f"{corpus.n_bytes / (n_train + n_held):.2f} bytes per token",
        *tokenizer.notes,
    ]
    if corpus.replaced:
        lines.append(f"{corpus.replaced:,} sequences of bytes are not UTF-8 and became U+FFFD")
    lines += [f"skipped {s.path}: {s.reason}" for s in corpus.skipped[:5]]
    if len(corpus.skipped) > 5:
        lines.append(f"skipped {len(corpus.skipped) - 5} more files, listed in the run's data.json")
    reporter.start(lines)
    return corpus, tokens, tokenizer


def build(recipe: Recipe, device: torch.device, weights: dict[str, torch.Tensor] | None = None) -> Transformer:
    """The network with its first weights, drawn from the seed or given."""
    network = Transformer(recipe.model)
    initialise(network, recipe.train.seed, recipe.train.init_std)
    if weights is not None:
        load_state(network, weights, "the model to start from")
    if recipe.train.recompute == "yes":
        recompute_blocks(network)
    return network.to(device)


def recompute_blocks(network: Transformer) -> None:
    """Keep each block's input alone for the backward pass, and compute the rest again there."""
    for block in network.blocks:
        block.forward = partial(recompute, block.forward, use_reentrant=False)


def make_optimizer(recipe: Recipe, network: Transformer) -> Optimizer:
    """The recipe's optimiser over the network's parameters."""
    t = recipe.train
    return Optimizer(
        network,
        t.optimizer,
        learning_rate=t.learning_rate,
        muon_learning_rate=t.muon_learning_rate,
        betas=(t.beta_1, t.beta_2),
        eps=t.eps,
        weight_decay=t.weight_decay,
    )


def settle(
    recipe: Recipe, network: Transformer, tokens: Tokens, device: torch.device, weights: Any
) -> tuple[Recipe, list[str]]:
    """Precision, number of steps, compilation and intervals, each with the sentence that explains it."""
    precision, why = resolve.resolve_precision(recipe, device)
    recipe = with_train(recipe, precision=precision, device=str(device))
    lines = [
        f"device: {device}, {torch.get_num_threads()} threads" if device.type == "cpu" else f"device: {device}",
        why,
    ]
    seconds: list[float] = []

    def measure() -> float:
        if not seconds:
            seconds.append(seconds_per_step(recipe, network, tokens, device))
            initialise(network, recipe.train.seed, recipe.train.init_std)
            if weights is not None:
                load_state(network, weights)
        return seconds[0]

    steps, why = resolve.resolve_steps(recipe, len(tokens.part("train")), measure)
    recipe = replace(recipe, segments=((0, steps),))
    lines.append(why)
    if recipe.train.compile == "auto":
        pays, why = resolve.compile_pays(device, measure(), steps)
        recipe = with_train(recipe, compile="yes" if pays else "no")
        lines.append(why)
    elif recipe.train.compile == "yes" and not resolve.can_compile(device):
        raise RecipeError("train.compile = yes: there is no C++ compiler here (g++ or clang++); say no, or install one")
    return resolve.resolve_intervals(recipe), lines


def seconds_per_step(recipe: Recipe, network: Transformer, tokens: Tokens, device: torch.device) -> float:
    """Seconds of a training step, not compiled, after a warm-up; the weights are spoilt."""
    optimizer, data = make_optimizer(recipe, network), TokenData(tokens, recipe, device)
    loss = precise(network, device, recipe.train.precision)
    good = torch.zeros((), dtype=torch.bool, device=device)
    times: list[float] = []
    network.train()
    while len(times) < 3 or (len(times) < 12 and sum(times) < 3.0):
        start = time.perf_counter()
        optimizer.zero_grad()
        for micro in range(recipe.train.accumulate):
            (loss(data.at(0, micro, recipe.train.accumulate)) / recipe.tokens_per_step).backward()
        optimizer.step(good)
        next(network.parameters()).flatten()[0].item()  # wait for the device
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[len(times[1:]) // 2]


# Training and continuing --------------------------------------------------------------------


def train(
    run: Path,
    recipe: Recipe,
    network: Transformer,
    tokens: Tokens,
    tokenizer: Tokenizer,
    reporter: PlainReporter,
    sampler: Sampler | None,
    interruption: Interruption,
    deadline: float,
) -> Run:
    """Train from the newest checkpoint that verifies, or from the first weights where there is none."""
    if recipe.train.deterministic == "yes":
        torch.use_deterministic_algorithms(True)
    device = torch.device(recipe.train.device)
    checkpoint = None
    if steps_of(run):
        checkpoint, passed = load_checkpoint(run)
        for sentence in passed:
            reporter.note(f"warning: {sentence}; continuing from step {checkpoint.step}")
    loss = precise(network, device, recipe.train.precision)
    training = Training(
        run=run,
        recipe=recipe,
        network=network,
        optimizer=make_optimizer(recipe, network),
        loss=torch.compile(loss) if recipe.train.compile == "yes" else loss,
        data=TokenData(tokens, recipe, device),
        reporter=reporter,
        metrics=MetricsFile(run / "metrics.jsonl", checkpoint.step if checkpoint else 0),
        interruption=interruption,
        sample=None if sampler is None else lambda net, seed: sampler(net, tokenizer, recipe.train.sample_prompt, seed),
        deadline=deadline,
    )
    if checkpoint:
        training.restore(checkpoint)
    reporter.begin(recipe, training.step)
    try:
        training.go()
    finally:
        reporter.close()
        training.metrics.close()
    last = training.last_evaluation or {}
    code = interruption.exit_code if training.step < recipe.n_steps else 0
    return Run(run, recipe, training.step, last.get("held_out_loss"), last.get("bits_per_byte"), code)


def resume(
    run: Path,
    inputs: tuple[str, ...],
    length: dict[str, Any],
    reporter: PlainReporter,
    sampler: Sampler | None = None,
) -> Run:
    """Continue a run exactly where its last verified checkpoint left it; `length` makes it longer.

    The text is read again, from `inputs` where they are given (it may have moved); text that is no longer
    the same is refused, and the file that differs is named.
    """
    with Interruption() as interruption:
        began = time.monotonic()
        recipe = read_recipe(run)
        recipe = replace(recipe, inputs=inputs or recipe.inputs)
        tokenizer = load_tokenizer(run)
        _, tokens, _ = read_text(recipe, reporter, tokenizer)
        old, new = json.loads((run / "data.json").read_bytes()), read_manifest(tokens.folder)
        if difference := describe_difference(old, new):
            raise RecipeError(
                f"{run} was trained on other text ({difference}): put it back, or start a new run with --from {run}"
            )
        device = resolve.resolve_device(recipe.train.device)
        resolve.check_memory(recipe, device)
        network = build(recipe, device)
        step = max(steps_of(run), default=0)
        recipe = lengthen(
            recipe, step, length, lambda: seconds_per_step(recipe, build(recipe, device), tokens, device), tokens
        )
        write_json(run / "recipe.json", recipe.to_dict())
        minutes = length.get("minutes")
        deadline = began + 1.1 * 60 * minutes if minutes else float("inf")
        reporter.start([f"resuming {run} at step {step} of {recipe.n_steps}"])
        return train(run, recipe, network, tokens, tokenizer, reporter, sampler, interruption, deadline)


def lengthen(recipe: Recipe, step: int, length: dict[str, Any], measure: Callable[[], float], tokens: Tokens) -> Recipe:
    """The recipe with a new segment of the schedule from `step` on, where a length was asked for.

    Steps, tokens and epochs count from the beginning of the run; minutes count from now.
    """
    given = {name: value for name, value in length.items() if value}
    if not given:
        return recipe
    timed = replace(
        recipe, train=replace(recipe.train, **{**dict.fromkeys(("steps", "tokens", "epochs", "minutes"), 0), **given})
    )
    total, _ = resolve.resolve_steps(timed, len(tokens.part("train")), measure)
    total += step if given.get("minutes") else 0
    if total <= step:
        raise RecipeError(f"the run has {step} steps already: ask for more than that, not {total}")
    if total == recipe.n_steps:
        return recipe
    kept = tuple((a, min(b, step)) for a, b in recipe.segments if a < step)
    return replace(recipe, segments=(*kept, (step, total)))


def read_recipe(run: Path) -> Recipe:
    """The recipe of a run's folder; raises RecipeError where there is none."""
    path = run / "recipe.json"
    if not path.exists():
        what = "does not exist" if not run.exists() else "has no recipe.json"
        raise RecipeError(f"{run} {what}: give the folder of a run, such as runs/NAME")
    try:
        return Recipe.from_dict(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from None


def load_run(run: Path, checkpoint: str, device: torch.device) -> tuple[Transformer, Tokenizer, int]:
    """The network and tokenizer of a run at a checkpoint: best, last, or a step, and which step that is."""
    recipe = read_recipe(run)
    if checkpoint not in ("best", "last") and not checkpoint.isdigit():
        raise CheckpointError(f"checkpoint {checkpoint!r}: say best, last, or one of the steps {steps_of(run)}")
    step = int(checkpoint) if checkpoint.isdigit() else best_step(run) if checkpoint == "best" else None
    found, _ = load_checkpoint(run, step)
    network = Transformer(recipe.model)
    load_state(network, found.weights, f"{run}, step {found.step}")
    return network.to(device).eval(), load_tokenizer(run), found.step
