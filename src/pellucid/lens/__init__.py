"""Looking inside: the network that was trained or loaded opens as it is, and every tensor has one name."""

from pellucid.lens.inputs import InputError, Inputs
from pellucid.lens.trace import Trace, trace

__all__ = ["InputError", "Inputs", "Trace", "trace"]
