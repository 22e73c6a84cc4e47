"""What the options of all parametrised predictors share: validation, JSON, and the arguments of forward."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self


class PredictorError(ValueError):
    """Wrong options of a predictor, or a folder that holds no predictor."""


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """A predictor of the next of `n_vocab` tokens; `separator` is the id that stands before every text."""

    n_vocab: int
    separator: int

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), typing.get_type_hints(type(self))[field.name]
            if typing.get_origin(hint) is Literal:
                if value not in typing.get_args(hint):
                    known = ", ".join(typing.get_args(hint))
                    raise PredictorError(f"{field.name} = {value!r} is not one of its options: choose one of {known}")
            elif isinstance(value, bool) or not isinstance(value, hint):
                raise PredictorError(f"{field.name} = {value!r}: expected {hint.__name__}")
        check_at_least(self, 1, "n_vocab")
        if not 0 <= self.separator < self.n_vocab:
            raise PredictorError(f"separator = {self.separator}: expected an id from 0 to {self.n_vocab - 1}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; PredictorError for anything else."""
        try:
            return cls(**values)
        except TypeError as error:
            raise PredictorError(f"this does not describe a predictor: {error}") from None


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
