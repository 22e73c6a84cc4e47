"""Opens a trained predictor from its run folder."""

from pathlib import Path
from typing import Any

from torch import nn

from pellucid.model.weights import check_finite, check_stored, load_state, shapes_of, size_of
from pellucid.predictors.mixture import FITTED, Counted, NGramMixture
from pellucid.predictors.neural import NeuralProbabilistic, NeuralProbabilisticOptions
from pellucid.predictors.ngram import NGram
from pellucid.predictors.options import PredictorError
from pellucid.predictors.predictor import Predictor
from pellucid.predictors.recipe import PredictorRecipe, read_predictor_recipe
from pellucid.predictors.recurrent import Recurrent, RecurrentOptions
from pellucid.runs.checkpoint import CheckpointError, facts_on_step, named_checkpoint
from pellucid.runs.device import resolve_device
from pellucid.runs.run_dir import read_json
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.training.kinds import check_function
from pellucid.trust import Trust, check_trust


def load_predictor(
    run: str | Path, *, checkpoint: str = "best", device: str = "auto", allow_nan: bool = False, trust: Trust = False
) -> Predictor:
    """Open a run of an n-gram, a neural probabilistic or a recurrent predictor.

    `checkpoint` is best (lowest held-out loss), last, or the number of a step. A mixture is the network at its best
    checkpoint with the n-gram; other checkpoints are the network alone. `trust` accepts a tokenizer whose patterns are
    not known to be safe. Raises ValueError where there is no predictor, it is damaged, or, unless `allow_nan`, its
    weights hold NaN or infinity.
    """
    check_trust(trust)
    run = Path(run)
    check_function(run, "load_predictor")
    recipe, tokenizer = read_predictor_recipe(run), load_tokenizer(run, trust=trust).bare()
    provenance: dict[str, Any] = {"folder": str(run)}
    provenance |= {name: x for name, x in (("trust", trust), ("allow_nan", allow_nan)) if x}
    if recipe.kind == "ngram":
        if checkpoint not in ("best", "last"):
            raise CheckpointError(f"checkpoint {checkpoint!r}: an n-gram has no checkpoints, so leave it out")
        if device not in ("auto", "cpu"):
            raise PredictorError(f"device = {device}: {run} is an n-gram, which is looked up on the CPU: leave it out")
        return Predictor(Counted(NGram.load(run / "ngram")), tokenizer, recipe.kind, provenance)
    network, step = at_checkpoint(recipe, run, checkpoint)
    check_finite(network, f"{run}, step {step}", allow_nan)
    network = network.to(resolve_device(device))
    if (run / "mixture.json").exists() and checkpoint == "best":
        about = read_json(run / "mixture.json", FITTED)
        if about["step"] != step:
            raise PredictorError(
                f"the share of the n-gram in {run} was fitted with the network of step {about['step']}, and the best "
                f"checkpoint is that of step {step} now: finish the run (--resume), or open the network alone with "
                f"checkpoint = {step}"
            )
        network = NGramMixture(network, Counted(NGram.load(run / "ngram")), about["weight"])
    return Predictor(network.eval(), tokenizer, recipe.kind, provenance | facts_on_step(run, checkpoint, step))


def at_checkpoint(recipe: PredictorRecipe, run: Path, checkpoint: str) -> tuple[nn.Module, int]:
    """The network at a checkpoint (best, last or a step), and the step of that checkpoint."""
    stored = named_checkpoint(run, checkpoint)
    where = f"{run}, step {stored.step}"
    check_stored(shapes_of(stored.weights), 1, lambda: size_of(make_network, recipe.model), where)
    network = make_network(recipe.model)
    load_state(network, stored.weights, where)
    return network.eval(), stored.step


def make_network(choices: Any) -> NeuralProbabilistic | Recurrent:
    """The module that a description describes."""
    if isinstance(choices, NeuralProbabilisticOptions):
        return NeuralProbabilistic(choices)
    assert isinstance(choices, RecurrentOptions)
    return Recurrent(choices)
