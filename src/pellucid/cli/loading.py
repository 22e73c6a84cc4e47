"""What a command was asked to work on."""

from pathlib import Path
from typing import Any

from pellucid.cli.options import CheckpointOptions, MixOptions, OptionError


def check_checkpoint(model: str, checkpoint: str) -> None:
    """Refuse a checkpoint of what has none, before anything is loaded."""
    if checkpoint != "best" and not (Path(model) / "recipe.json").exists():
        raise OptionError(f"--checkpoint {checkpoint} goes with a run, and {model} is none: leave it out")


def loaded_from(model: str, options: CheckpointOptions) -> Any:
    """What `pellucid.load` gives."""
    check_checkpoint(model, options.checkpoint)

    import pellucid

    return pellucid.load(model, checkpoint=options.checkpoint, device=options.device)


def mixed_from(model: str, options: MixOptions) -> Any:
    """What `pellucid.load` gives, mixed with the n-gram of the run `options.mix` where one is named."""
    if not options.mix and options.mix_weight is not None:
        raise OptionError(f"--mix-weight {options.mix_weight} without --mix: name the run of an n-gram to mix with")
    loaded = loaded_from(model, options)
    if not options.mix:
        return loaded

    import pellucid

    weight = 0.5 if options.mix_weight is None else options.mix_weight
    return transformer_of(loaded, model).mixed_with(pellucid.load(options.mix), weight)


def transformer_of(loaded: Any, name: str) -> Any:
    """What was loaded, where it is a transformer; other predictors cannot do what is asked."""
    if hasattr(loaded, "kind"):
        raise ValueError(f"{name} holds a predictor of kind {loaded.kind}: this command needs a transformer")
    return loaded
