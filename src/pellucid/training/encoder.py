"""The encoder beside a decoder: it follows the decoder until it is told otherwise.

An encoder takes the decoder's sizes and words, all but the mask, which lets every position read every
other. Setting a field of the decoder (`model.n_layers=4`) sets the encoder's with it wherever the two
agreed; `model.encoder.n_layers=2` sets the encoder's alone. d_model and n_vocab are one for both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.architecture import Architecture, ArchitectureError, architecture_fields

PREFIX = "encoder."


def with_encoder(a: Architecture) -> Architecture:
    """`a` as the decoder of an encoder-decoder, with an encoder of its own sizes where it has none."""
    if a.encoder is not None:
        return a
    return replace(a, encoder=replace(a, attention=replace(a.attention, mask="bidirectional")))


def with_model_fields(a: Architecture, changes: Mapping[str, Any]) -> Architecture:
    """`a` with dotted fields changed, those of its encoder named `encoder.n_layers` and so on.

    Raises ArchitectureError, also for fields of an encoder that is not there.
    """
    own = {name.removeprefix(PREFIX): value for name, value in changes.items() if name.startswith(PREFIX)}
    both = {name: value for name, value in changes.items() if not name.startswith(PREFIX)}
    if a.encoder is None:
        if own:
            raise ArchitectureError(
                f"model.{PREFIX}{next(iter(own))} is set and there is no encoder: one comes with train.objective = "
                "source-target"
            )
        return a.with_fields(both)
    decoder = replace(a, encoder=None).with_fields(both)
    followed = {
        name: value_of(decoder, name)
        for name in architecture_fields()
        if name not in ("dropout", "attention.mask")
        and value_of(decoder, name) != value_of(a, name) == value_of(a.encoder, name)
    }
    return replace(decoder, encoder=a.encoder.with_fields(followed | own))


def check_encoder(a: Architecture, objective: str) -> None:
    """Refuse an encoder that would be given nothing to read, and one that may not read all of it."""
    if a.encoder is not None and objective != "source-target":
        raise ArchitectureError(
            f"train.objective = {objective} reads no source and this architecture has an encoder: say "
            "--objective source-target and give pairs"
        )
    if a.encoder is not None and a.encoder.attention.mask != "bidirectional":
        raise ArchitectureError(
            f"model.encoder.attention.mask = {a.encoder.attention.mask}: expected bidirectional, a source is whole"
        )


def value_of(a: Architecture, name: str) -> Any:
    """The field with this dotted name."""
    for part in name.split("."):
        a = getattr(a, part)
    return a
