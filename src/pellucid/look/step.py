"""One step of a model's computation, as the page shows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """Where the definition computes a tensor: a file of pellucid/reference, a function, and a part of its line.

    What the reference leaves out has its definition in another `room` of the package; a method is named Class.method.
    """

    file: str
    function: str
    line: str
    room: str = "reference"


@dataclass(frozen=True)
class Step:
    """One tensor of the computation.

    name      its full name
    part      the part of the model that it belongs to: embed, blocks.3, encoder.blocks.0, output
    group     norm, attention, cross, mlp, stream, embed or output
    title     what it is, in plain words
    equation  in the TeX of `pellucid.look.mathml`
    code      Python that sets `result` to it, from `trace`, the weights `w` and the architecture `a`
    """

    name: str
    part: str
    group: str
    title: str
    equation: str
    code: str
    definition: Definition
