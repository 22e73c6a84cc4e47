"""Looking inside: the network that was trained or loaded opens as it is, and every tensor has one name."""

from pellucid.lens.ablation import Ablation, ablate
from pellucid.lens.attribution import Attribution, Why, attribute, value_weighted, why
from pellucid.lens.circuits import Circuits
from pellucid.lens.embeddings import Embeddings
from pellucid.lens.folding import FoldError, WeightsView, weights_view
from pellucid.lens.inputs import InputError, Inputs
from pellucid.lens.logit_lens import Lens, logit_lens
from pellucid.lens.low_rank import LowRank
from pellucid.lens.matrices import CircuitError, Head
from pellucid.lens.patching import Patching, patch
from pellucid.lens.paths import PathEffect, path_patch
from pellucid.lens.stream import Parts, decompose
from pellucid.lens.trace import Trace, trace

__all__ = [
    "Ablation",
    "Attribution",
    "CircuitError",
    "Circuits",
    "Embeddings",
    "FoldError",
    "Head",
    "InputError",
    "Inputs",
    "Lens",
    "LowRank",
    "Parts",
    "Patching",
    "PathEffect",
    "Trace",
    "WeightsView",
    "Why",
    "ablate",
    "attribute",
    "decompose",
    "logit_lens",
    "patch",
    "path_patch",
    "trace",
    "value_weighted",
    "weights_view",
    "why",
]
