"""The definition of everything, equation by equation, in NumPy and float64.

Each function is small, gives its shapes, and cites where the equation stands (text, section, equation, erratum). The
functions are slow and plain, and the engine is tested against them. `transformer` has the whole model; `layers`,
`attention`, `feedforward`, `embedding` and `functions` its parts; `bpe` and `tokens` the text; `learning` and
`generation` what is done with the model. `tape` differentiates any of them.
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
