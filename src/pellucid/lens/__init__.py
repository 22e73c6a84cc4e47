"""Looking inside a network as it was trained or loaded, without conversion: every tensor has one name."""

from pellucid.lens.analysis.ablation import Ablation, ablate
from pellucid.lens.analysis.attribution import Attribution, Why, attribute, value_weighted, why
from pellucid.lens.analysis.logit_lens import Lens, logit_lens
from pellucid.lens.analysis.patching import Patching, patch
from pellucid.lens.analysis.path_patching import PathEffect, path_patch
from pellucid.lens.analysis.residual import Decomposition, decompose
from pellucid.lens.core.inputs import InputError, Inputs
from pellucid.lens.core.recording import TraceError
from pellucid.lens.trace import Trace, trace
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.embeddings import Embeddings
from pellucid.lens.weights.factored_matrix import FactoredMatrix
from pellucid.lens.weights.folding import FoldError, WeightsView, weights_view
from pellucid.lens.weights.head_weights import Head

__all__ = [
    "Ablation",
    "Attribution",
    "CircuitError",
    "Circuits",
    "Decomposition",
    "Embeddings",
    "FactoredMatrix",
    "FoldError",
    "Head",
    "InputError",
    "Inputs",
    "Lens",
    "Patching",
    "PathEffect",
    "Trace",
    "TraceError",
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
