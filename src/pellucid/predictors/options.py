"""What the options of all parametrised predictors share: what is checked, and the arguments of forward."""

from dataclasses import dataclass
from typing import Any

from pellucid.option_values import check_types


class PredictorError(ValueError):
    """Wrong options of a predictor, or a folder that holds no predictor."""


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """A predictor of the next of `n_vocab` tokens; `separator` is the id that stands before every text."""

    n_vocab: int
    separator: int

    def __post_init__(self):
        check_types(self)
        check_at_least(self, 1, "n_vocab")
        if not 0 <= self.separator < self.n_vocab:
            raise PredictorError(f"separator = {self.separator}: expected an id from 0 to {self.n_vocab - 1}")


def check_at_least(options: Any, least: int, *names: str) -> None:
    """PredictorError unless each of these fields is at least `least`."""
    for name in names:
        if getattr(options, name) < least:
            raise PredictorError(f"{name} = {getattr(options, name)}: expected at least {least}")


def plain_forward(mask: Any, positions: Any) -> None:
    """Raise an error for a mask or positions, which a predictor without attention would ignore."""
    if mask is not None or positions is not None:
        raise PredictorError(
            "a mask or positions were given to a predictor that has neither attention nor positions: leave them out"
        )
