"""One step of a model's computation, as the page shows it, and its equation as MathML, which browsers draw."""

import re
from dataclasses import dataclass
from functools import cache

#: the symbol of a tensor in an equation: \t{name}{symbol}
SYMBOL = re.compile(r"\\t\{([^{}]*)\}")


@dataclass(frozen=True)
class Step:
    """One tensor of the computation.

    name      its full name
    part      the part of the model that it belongs to: embed, blocks.3, encoder.blocks.0, output
    group     norm, attention, cross, mlp, stream, embed or output
    title     what it is, in plain words
    equation  in TeX, in which \\t{name}{...} marks the symbol of a tensor
    """

    name: str
    part: str
    group: str
    title: str
    equation: str


def linear_equation(x: str, matrix: str, has_bias: bool) -> str:
    """x W^T + b in TeX, for one of the matrices of an MLP."""
    name = f"{{\\text{{{matrix}}}}}"
    return f"{x} {{W_{name}}}^T" + (f" + b_{name}" if has_bias else "")


def mathml(equation: str) -> str:
    """A `<math>` element for an equation, in which the symbol of a tensor has its name as data-tensor."""
    names = SYMBOL.findall(equation)
    numbers = iter(range(len(names)))
    drawn = _converted(SYMBOL.sub(lambda _: f"\\class{{tensor{next(numbers)}}}", equation))
    return re.sub(r'class="tensor(\d+)"', lambda match: f'class="symbol" data-tensor="{names[int(match[1])]}"', drawn)


@cache
def _converted(tex: str) -> str:
    """TeX as MathML. Blocks have the same equations but for the names of their tensors, which are not in `tex`."""
    # this import takes 30 ms, which other uses of the inspector need not wait for
    from latex2mathml.converter import convert

    return convert(tex, display="block")
