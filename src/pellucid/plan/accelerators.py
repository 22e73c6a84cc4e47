"""Accelerators by name, with the peaks in their makers' data sheets, which no program reaches.

Dense matrix products, in bfloat16 with sums in float32, and in float32 without TF32.
"""

import difflib
from dataclasses import dataclass

#: the assumed share of the data sheet's peak that products reach in training
TRAINING_SHARE = 0.4
#: the assumed share of the data sheet's memory bandwidth that generation reaches
READING_SHARE = 0.6
#: the share of memory that a plan uses; libraries and the allocator need the rest
USABLE = 0.9


@dataclass(frozen=True)
class Accelerator:
    """FLOP/s of matrix products by precision, bytes, and bytes per second.

    `link` is what one accelerator sends to others of its machine, `network` what it sends to other machines.
    """

    name: str
    bfloat16: float
    float32: float
    memory: float
    bandwidth: float
    link: float
    network: float

    def peak(self, precision: str) -> float:
        """FLOP/s in this precision."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


def _accelerator(
    name: str, bfloat16: float, float32: float, gigabytes: float, bandwidth: float, link: float, network: float
) -> Accelerator:
    return Accelerator(
        name, bfloat16 * 1e12, float32 * 1e12, gigabytes * 1e9, bandwidth * 1e9, link * 1e9, network * 1e9
    )


#: name, TFLOP/s in bfloat16 and float32, GB, GB/s of memory; GB/s sent to the same machine (half of the data sheet's
#: sum of both directions: NVLink, Infinity Fabric or PCIe) and to other machines (the makers' machines of eight: one
#: adapter of 400 Gb/s for each accelerator, 200 Gb/s for a100; where there is no such machine, 100 Gb/s)
ACCELERATORS = {
    each.name: each
    for each in (
        _accelerator("a10", 125, 31.2, 24, 600, 32, 12.5),
        _accelerator("a100-40gb", 312, 19.5, 40, 1555, 300, 25),
        _accelerator("a100-80gb", 312, 19.5, 80, 2039, 300, 25),
        _accelerator("h100-pcie", 756, 51, 80, 2000, 64, 50),
        _accelerator("h100-sxm", 989, 67, 80, 3350, 450, 50),
        _accelerator("h200", 989, 67, 141, 4800, 450, 50),
        _accelerator("l4", 121, 30.3, 24, 300, 32, 12.5),
        _accelerator("l40s", 362, 91.6, 48, 864, 32, 12.5),
        _accelerator("mi300x", 1307, 163.4, 192, 5300, 448, 50),
        _accelerator("rtx-3090", 71, 35.6, 24, 936, 32, 12.5),
        _accelerator("rtx-4090", 165, 82.6, 24, 1008, 32, 12.5),
    )
}
#: the accelerators that are shown by default
DEFAULT_ACCELERATORS = ("rtx-4090", "a100-80gb", "h100-sxm")


class PlanError(ValueError):
    """The plan is impossible."""


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name. Raises PlanError with the nearest names and the list."""
    if name in ACCELERATORS:
        return ACCELERATORS[name]
    alike = [known for known in ACCELERATORS if known.startswith(name.lower())]
    near = alike or difflib.get_close_matches(name.lower(), ACCELERATORS, 1, 0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise PlanError(f"there is no accelerator {name!r} here: {hint}choose one of {', '.join(ACCELERATORS)}")
