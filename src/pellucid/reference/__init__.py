"""The definition of everything, equation by equation, in NumPy and float64.

Small functions that say where they are written down (text, section, equation, erratum) and what shapes they take.
They are slow and plain; the engine is tested against them. Read `transformer` for the whole function, `layers`,
`attention`, `feedforward`, `embedding` and `functions` for its parts, `bpe` and `tokens` for text, `learning` and
`generation` for what is done with it. `tape` differentiates any of them.
"""

from pellucid.reference.learning import loss_and_gradient, next_token_loss
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.tape import gradient
from pellucid.reference.transformer import encode, encoder_decoder, forward, trace_by_definition
from pellucid.reference.weights import random_weights, weight_shapes

__all__ = [
    "TensorRecorder",
    "encode",
    "encoder_decoder",
    "forward",
    "gradient",
    "loss_and_gradient",
    "next_token_loss",
    "random_weights",
    "trace_by_definition",
    "weight_shapes",
]
