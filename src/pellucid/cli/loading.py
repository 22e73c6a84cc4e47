"""Load the model that a command was given."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.options import CheckpointOptions, MixOptions, OptionError, trust_of

if TYPE_CHECKING:
    from pellucid.language_model import LanguageModel
    from pellucid.predictors.predictor import Predictor


def loaded_from(model: str, options: CheckpointOptions) -> "LanguageModel | Predictor":
    """The model at the requested checkpoint or revision, on the requested device."""
    options.check(model)
    return open_any(model, options)


def open_any(model: str, options: CheckpointOptions) -> "LanguageModel | Predictor":
    """The model, opened by the function for its kind: load or load_predictor."""
    import pellucid
    from pellucid.training.kinds import FUNCTIONS, run_kind

    if not Path(model).exists() and (Path("runs") / model / "recipe.json").exists():
        raise OptionError(f"there is no {model} here: did you mean {Path('runs') / model}?")
    if not (Path(model) / "recipe.json").exists():
        return pellucid.load(
            model, revision=options.revision or None, device=options.device, trust=trust_of(options.trust)
        )
    if (kind := run_kind(Path(model))) == "features":
        words = "look at them with pellucid features active, card or graph"
        raise OptionError(f"{model} holds features of a model: {words}")
    loader = getattr(pellucid, FUNCTIONS[kind][1])
    return loader(model, checkpoint=options.checkpoint, device=options.device, trust=trust_of(options.trust))


def mixed_from(model: str, options: MixOptions) -> Any:
    """The model, mixed with the n-gram run `options.mix` if one is named, or with the model's own."""
    if not options.mix and options.mix_weight is not None:
        raise OptionError(f"--mix-weight {options.mix_weight} needs --mix: name the n-gram run to mix with")
    loaded = loaded_from(model, options)
    if not options.mix:
        return loaded

    other = None if options.mix == "auto" else open_any(options.mix, CheckpointOptions(trust=options.trust))
    return transformer_of(loaded, model, "--mix").mixed_with(other, options.mix_weight)


def transformer_of(loaded: Any, name: str, option: str = "") -> Any:
    """The loaded model if it is a transformer. Raises ValueError for other predictors, and names the `option` that
    only a transformer has, where one was given.
    """
    if getattr(loaded, "kind", "") == "mixture" and option:
        raise ValueError(f"{option} works on a transformer alone, and --mix adds an n-gram: leave one of them out")
    if hasattr(loaded, "kind"):
        raise ValueError(
            f"{option} needs a transformer, and {name} holds a predictor of kind {loaded.kind}: leave it out"
            if option
            else f"{name} holds a predictor of kind {loaded.kind}: this command needs a transformer"
        )
    return loaded
