"""Looking inside: the network that was trained or loaded opens as it is, and every tensor has one name."""

from pellucid.lens.circuits import Circuits
from pellucid.lens.embeddings import Embeddings
from pellucid.lens.folding import FoldError, WeightsView, weights_view
from pellucid.lens.inputs import InputError, Inputs
from pellucid.lens.low_rank import LowRank
from pellucid.lens.matrices import CircuitError, Head
from pellucid.lens.trace import Trace, trace

__all__ = [
    "CircuitError",
    "Circuits",
    "Embeddings",
    "FoldError",
    "Head",
    "InputError",
    "Inputs",
    "LowRank",
    "Trace",
    "WeightsView",
    "trace",
    "weights_view",
]
