"""The options of an encoder, which are those of the decoder unless they are set.

An encoder takes all options and sizes of the decoder but the mask: every position reads every other one. Setting a
field of the decoder (`model.n_layers=4`) sets the encoder's with it wherever the two agreed; `model.encoder.n_layers=2`
sets the encoder's alone. d_model and n_vocab are one for both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture, architecture_fields
from pellucid.option_values import ArchitectureError

PREFIX = "encoder."


def with_encoder(a: Architecture) -> Architecture:
    """`a` as the decoder of an encoder-decoder; an encoder of the same sizes is added where it has none."""
    if a.encoder is not None:
        return a
    return replace(a, encoder=replace(a, attention=replace(a.attention, mask="bidirectional")))


def with_model_fields(a: Architecture, changes: Mapping[str, Any]) -> Architecture:
    """`a` with dotted fields changed, those of its encoder named `encoder.n_layers` and so on.

    Raises ArchitectureError, also for fields of an encoder where there is none.
    """
    own = {name.removeprefix(PREFIX): value for name, value in changes.items() if name.startswith(PREFIX)}
    both = {name: value for name, value in changes.items() if not name.startswith(PREFIX)}
    if a.encoder is None:
        if own:
            raise ArchitectureError(
                f"model.{PREFIX}{next(iter(own))} is set, but there is no encoder: set train.objective = "
                "source-target, which adds one"
            )
        return a.with_fields(both)
    decoder = replace(a, encoder=None).with_fields(both)
    followed = {
        name: field_value(decoder, name)
        for name in architecture_fields()
        if name not in ("dropout", "attention.mask")
        and field_value(decoder, name) != field_value(a, name) == field_value(a.encoder, name)
    }
    return replace(decoder, encoder=a.encoder.with_fields(followed | own))


def check_encoder(a: Architecture, objective: str) -> None:
    """Raise ArchitectureError for an encoder without a source to read, and for one that may not read all of it."""
    if a.encoder is not None and objective != "source-target":
        raise ArchitectureError(
            f"train.objective = {objective} reads no source, but this architecture has an encoder: give "
            "--objective source-target and pairs"
        )
    if a.encoder is not None and a.encoder.attention.mask != "bidirectional":
        raise ArchitectureError(
            f"model.encoder.attention.mask = {a.encoder.attention.mask}: expected "
            "bidirectional, since the whole source is known"
        )


def field_value(a: Architecture, name: str) -> Any:
    """The field with this dotted name."""
    for part in name.split("."):
        a = getattr(a, part)
    return a
