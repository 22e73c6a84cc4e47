"""What a command was asked to work on."""

from typing import Any

from pellucid.cli.options import OptionError


def loaded_model(model: str, checkpoint: str, device: str, mix: str, mix_weight: float | None) -> Any:
    """What `pellucid.load` gives, mixed with the n-gram of the run `mix` where one is named."""
    if not mix and mix_weight is not None:
        raise OptionError(f"--mix-weight {mix_weight} without --mix: name the run of an n-gram to mix with")

    import pellucid

    loaded = pellucid.load(model, checkpoint=checkpoint, device=device)
    if not mix:
        return loaded
    return transformer_of(loaded, model).mixed_with(pellucid.load(mix), 0.5 if mix_weight is None else mix_weight)


def transformer_of(loaded: Any, name: str) -> Any:
    """What was loaded, where it is a transformer; other predictors cannot do what is asked."""
    if hasattr(loaded, "kind"):
        raise ValueError(f"{name} holds a predictor of kind {loaded.kind}: this command needs a transformer")
    return loaded
