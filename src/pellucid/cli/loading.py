"""Load the model that a command was given."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.options import CheckpointOptions, MixOptions, OptionError

if TYPE_CHECKING:
    from pellucid.language_model import LanguageModel
    from pellucid.predictors.predictor import Predictor
    from pellucid.vision.run import ImageModel


def check_checkpoint_options(model: str, checkpoint: str, revision: str) -> None:
    """Raise OptionError for --checkpoint of anything but a run, and --revision of a path here, before loading it."""
    is_run = (Path(model) / "recipe.json").exists()
    if checkpoint != "best" and not is_run:
        raise OptionError(f"--checkpoint {checkpoint} applies to a run, but {model} is not a run: leave it out")
    if revision and Path(model).exists():
        instead = "give its step as --checkpoint" if is_run else "leave it out"
        raise OptionError(
            f"--revision {revision} applies to a name on the Hugging Face hub, but {model} is a path here: {instead}"
        )


def loaded_from(model: str, options: CheckpointOptions) -> "LanguageModel | Predictor | ImageModel":
    """The model at the requested checkpoint or revision, on the requested device."""
    check_checkpoint_options(model, options.checkpoint, options.revision)
    return open_any(model, options)


def open_any(model: str, options: CheckpointOptions) -> "LanguageModel | Predictor | ImageModel":
    """The model, opened by the function for its kind: load, load_predictor or load_images."""
    import pellucid
    from pellucid.training.kinds import LOADERS, kind_of

    if not (Path(model) / "recipe.json").exists():
        return pellucid.load(model, revision=options.revision or None, device=options.device, trust=options.trust)
    loader = LOADERS[kind_of(Path(model))]
    of_text = {"trust": True} if options.trust else {}
    if of_text and loader == "load_images":
        raise OptionError(f"--trust is about tokenizers, and {model} classifies images: leave it out")
    return getattr(pellucid, loader)(model, checkpoint=options.checkpoint, device=options.device, **of_text)


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
