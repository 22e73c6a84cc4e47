"""Fitting a predictor's network to text, with the loop that trains transformers; and a mixture's weight."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pellucid.generate.samples import SAMPLE_TOKENS, Poll, join_pieces
from pellucid.predictors.counting import peak_bytes
from pellucid.predictors.data import PredictorData, counted_loss
from pellucid.predictors.load import at_checkpoint, make_network
from pellucid.predictors.mixture import Counted, Mixture, fit_weight
from pellucid.predictors.neural import initialise_predictor
from pellucid.predictors.ngram import NGram, NGramOptions
from pellucid.predictors.ngram_baselines import baseline
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recipe import PredictorRecipe
from pellucid.text.tokenizers.tokenizer import Tokenizer
from pellucid.text.tokens.store import Part, Tokens
from pellucid.training import build as setup
from pellucid.training import resolve_recipe as resolve
from pellucid.training import run as runs
from pellucid.training.checkpoint import Checkpoint, best_step, write_json
from pellucid.training.interrupt import Interrupted, Interruption
from pellucid.training.loop import Training
from pellucid.training.measure import seconds_per_step
from pellucid.training.metrics import MetricsFile
from pellucid.training.optimizer import Optimizer
from pellucid.training.pace import Pace
from pellucid.training.recipe import RecipeError, with_train
from pellucid.training.reporter import PlainReporter
from pellucid.training.run import Run

#: the share of the training tokens that a mixture's weight is fitted on, and nothing is trained on
SET_ASIDE = 0.05


def transformer_recipe(recipe: PredictorRecipe) -> Any:
    """A predictor's recipe where a transformer's is declared: the training room reads what both have."""
    return recipe


def resolved(recipe: Any) -> PredictorRecipe:
    """The way back."""
    return recipe


def as_run(run: Path, recipe: PredictorRecipe, step: int, **given: Any) -> Run:
    """How a sitting of a predictor's run ended."""
    return Run(run, transformer_recipe(recipe), step, **given)


def count_part(part: Part, choices: NGramOptions, poll: Callable[[], object] = lambda: None) -> NGram:
    """An n-gram of a part of the text; RecipeError, before anything is allocated, where that does not fit.

    `poll` is called on the way and may raise.
    """
    need, have = 8 * len(part) + peak_bytes(len(part), choices.order), resolve.memory_bytes(torch.device("cpu"))
    if need > have:
        raise RecipeError(
            f"counting {len(part):,} tokens may take {need / 2**30:.1f} GiB and this machine has "
            f"{have / 2**30:.1f} GiB: give less text, or a lower order"
        )
    c = choices
    ids = part.read(0, len(part))
    return NGram.train(ids, c.n_vocab, c.order, c.smoothing, alpha=c.alpha, separator=c.separator, poll=poll)


def build_predictor(recipe: PredictorRecipe) -> nn.Module:
    """The network with its first weights, drawn from the seed."""
    return initialise_predictor(make_network(recipe.model), recipe.train.seed)


def autotune_predictor(
    recipe: PredictorRecipe, tokens: Tokens, interruption: Interruption, pace: Pace | None = None
) -> PredictorRecipe:
    """Batch, device, precision, number of steps and intervals: everything that was left open."""
    device = resolve.resolve_device(recipe.train.device)
    batch = recipe.train.batch or max(4, 2048 // recipe.window)
    plain = {"precision": "float32", "compile": "no"}
    passes = recipe.train.accumulate or 1
    words = {name: word for name, word in plain.items() if getattr(recipe.train, name) == "auto"}
    recipe = resolved(
        with_train(transformer_recipe(recipe), batch=batch, accumulate=passes, device=str(device), **words)
    )
    check_memory(recipe, device)
    train, _ = trained_part(recipe, tokens)

    def measure() -> float:
        with interruption.phase("measuring a step") as phase:
            return measure_step(recipe, build_predictor(recipe).to(device), tokens, device, phase)

    if pace:
        pace.start(measure())
        pace.know(len(tokens.part("held_out")), sum(p.numel() for p in build_predictor(recipe).parameters()))
        return resolved(setup.plan_in_time(transformer_recipe(recipe), transformer_recipe(recipe), pace)[0])
    n_steps, _ = resolve.resolve_steps(transformer_recipe(recipe), len(train), measure)
    return resolved(resolve.resolve_intervals(transformer_recipe(replace(recipe, segments=((0, n_steps),)))))


def check_memory(recipe: PredictorRecipe, device: torch.device) -> None:
    """Refuse a batch whose logits, their probabilities and their gradients alone do not fit."""
    need, have = 12 * recipe.train.batch * recipe.window * recipe.model.n_vocab, resolve.memory_bytes(device)
    if need > have:
        raise RecipeError(
            f"the logits of {recipe.train.batch:,} sequences need {need / 2**30:,.1f} GiB in training and "
            f"{device.type} has {have / 2**30:.1f} GiB: make batch smaller"
        )


def trained_part(recipe: PredictorRecipe, tokens: Tokens) -> tuple[Part, np.ndarray]:
    """What the network is trained on, and the ids set aside for a mixture's weight, none without a mixture."""
    part = tokens.part("train")
    if not recipe.mixture:
        return part, np.empty(0, dtype=np.int64)
    cut = int(len(part) * (1 - SET_ASIDE))
    ids = part.read(0, len(part))
    return Part.from_ids(ids[:cut], part.n_vocab), ids[cut:]


def measure_step(
    recipe: PredictorRecipe,
    network: nn.Module,
    tokens: Tokens,
    device: torch.device,
    poll: Callable[[], object] = lambda: None,
) -> float:
    """Seconds of a training step; the weights are spoilt."""
    data = PredictorData(trained_part(recipe, tokens)[0], tokens.part("held_out"), recipe, network, device)
    optimizer, loss = make_predictor_optimizer(recipe, network), counted_loss(network, device, recipe.train.precision)
    good, t = torch.zeros((), dtype=torch.bool, device=device), recipe.train

    def wait() -> None:
        next(network.parameters()).flatten()[0].item()

    def take_pass(rows: int) -> None:
        optimizer.zero_grad()
        given = data.at(0, 0, t.batch * t.accumulate // rows)
        (loss(given) / recipe.tokens_per_step).backward()
        wait()

    def update() -> None:
        optimizer.step(good)
        wait()

    return seconds_per_step(take_pass, update, rows=t.batch, passes=t.accumulate, poll=poll)


def make_predictor_optimizer(recipe: PredictorRecipe, network: nn.Module) -> Optimizer:
    """AdamW over everything."""
    return setup.make_optimizer(transformer_recipe(recipe), network)  # type: ignore[arg-type]


def fit_network(
    run: Path,
    recipe: PredictorRecipe,
    network: Any,
    tokens: Tokens,
    tokenizer: Tokenizer,
    reporter: PlainReporter,
    interruption: Interruption,
    pace: Pace | None,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Train to the end from a checkpoint, or from the first weights; then fit the mixture, if there is one."""
    device = torch.device(recipe.train.device)
    network.to(device)
    part, aside = trained_part(recipe, tokens)
    loss = counted_loss(network, device, recipe.train.precision)
    training = Training(
        run=run,
        recipe=transformer_recipe(recipe),
        network=network,
        optimizer=make_predictor_optimizer(recipe, network),
        loss=setup.compiled(loss) if recipe.train.compile == "yes" else loss,
        data=PredictorData(part, tokens.part("held_out"), recipe, network, device),
        reporter=reporter,
        metrics=MetricsFile(run / "metrics.jsonl", checkpoint.step if checkpoint else 0),
        interruption=interruption,
        sample=lambda net, seed, poll: sample_predictor(net, tokenizer, recipe, seed, poll),
        pace=pace,
    )
    if checkpoint:
        training.restore(checkpoint)
    reporter.begin(transformer_recipe(recipe), training.step)
    try:
        with runs.deterministic_kernels(recipe.train.deterministic == "yes"):
            training.go()
        if recipe.mixture and not interruption and "mixture_weight" not in (training.last_evaluation or {}):
            with interruption.phase("mixing with an n-gram") as phase, suppress(Interrupted):
                mix(run, recipe, part, aside, tokens.part("held_out"), training, phase)
    finally:
        reporter.close()
        training.metrics.close()
    last = training.last_evaluation or {}
    mixed = not recipe.mixture or "mixture_weight" in last
    code = 0 if training.complete and mixed else interruption.exit_code
    found = {"held_out_loss": last.get("held_out_loss"), "bits_per_byte": last.get("bits_per_byte")}
    return as_run(run, resolved(training.recipe), training.step, **found, exit_code=code)


def mix(
    run: Path,
    recipe: PredictorRecipe,
    part: Part,
    aside: np.ndarray,
    held_out: Part,
    training: Training,
    poll: Callable[[], object],
) -> None:
    """Count an n-gram, fit its share on the text set aside, and measure the two together on the held-out part.

    `poll` is called until anything is written; it may raise.
    """
    m = recipe.model
    separator = m.separator if recipe.text.inside_documents == "yes" else None
    choices = NGramOptions(n_vocab=m.n_vocab, order=recipe.mixture, separator=separator)
    counted = Counted(count_part(part, choices, poll))
    network: Any = at_checkpoint(recipe, run, "best")[0]
    weight = fit_weight(network.log_probs(aside), counted.log_probs(aside))
    poll()
    shutil.rmtree(run / "ngram", ignore_errors=True)  # of a run that was shorter
    counted.ngram.save(run / "ngram")
    write_json(run / "mixture.json", {"weight": weight, "fitted_on_tokens": len(aside), "step": best_step(run)})
    log_probs = Mixture(network, counted, weight).log_probs(held_out.read(0, len(held_out)))
    _, loss, bits = baseline("", -float(log_probs.mean()), held_out)
    row = {"step": training.step, "held_out_loss": loss, "bits_per_byte": bits, "whole": True, "mixture_weight": weight}
    training.metrics.write(row)
    training.reporter.note(f"mixed with an n-gram of order {recipe.mixture}, weight of the network {weight:.3f}")
    training.reporter.evaluation(row)
    training.last_evaluation = row


def sample_predictor(
    network: nn.Module, tokenizer: Tokenizer, recipe: PredictorRecipe, seed: int, poll: Poll
) -> str | None:
    """What the network writes after the recipe's prompt; None where its logits are not finite."""
    predictor, prompt = Predictor(network, tokenizer, recipe.kind, {}), recipe.train.sample_prompt
    text = join_pieces(predictor.stream(prompt, max_tokens=SAMPLE_TOKENS, seed=seed), poll)
    return None if text is None else prompt + text
