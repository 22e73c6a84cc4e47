"""One forward pass, as a whole or in steps: the steps are the network's own modules, called in its own order."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from pellucid.lens.core.inputs import Inputs
from pellucid.model import OFF, Tap, Transformer
from pellucid.model.block import BlockInputs
from pellucid.model.modes import Restore, SharedContext, kept_in_evaluation_mode
from pellucid.model.transformer import Backbone


@contextmanager
def frozen_network(network: Transformer, grad: bool = False) -> Iterator[None]:
    """A context without dropout and compilation, and with gradients only where asked. Restores the training mode."""
    with kept_in_evaluation_mode(network), NOTHING_COMPILED, torch.set_grad_enabled(grad):
        yield


def run_as_written() -> Restore:
    """Let compiled networks of the whole process run as they are written; returns what takes that back."""
    # importing the compiler takes a second, and nothing is compiled unless it has been imported
    if "torch._dynamo" not in sys.modules:
        return lambda: None
    stance = torch.compiler.set_stance("force_eager")
    stance.__enter__()
    return partial(stance.__exit__, None, None, None)


NOTHING_COMPILED = SharedContext(run_as_written)


class ForwardPass:
    """One part of a network, the decoder or its encoder, and its inputs.

    `whole` is the part's own forward; `embed`, `block` and `normalise` are its three steps.
    """

    def __init__(self, part: Backbone, inputs: Inputs, encoded: Tensor | None = None):
        self.part, self.inputs, self.encoded = part, inputs, encoded
        self.places = part.positions_after(0, inputs.tokens)
        self.reading = BlockInputs(part.rotary_table(self.places), inputs.mask, encoded, inputs.source_mask)

    def whole(self, tap: Tap = OFF) -> Tensor:
        """The stream after the last block and the final norm [b, n, m]."""
        options = {"mask": self.inputs.mask, "segments": self.inputs.segments, "tap": tap}
        return self.part.hidden(self.inputs.tokens, source=self.encoded, source_mask=self.inputs.source_mask, **options)

    def embed(self, tap: Tap = OFF) -> Tensor:
        """The stream before the first block [b, n, m]."""
        tokens = self.inputs.tokens
        return self.part.embed(tokens, tokens, self.places, self.inputs.segments, None, tap)

    def block(self, layer: int, x: Tensor, tap: Tap = OFF, reading: BlockInputs | None = None) -> Tensor:
        """The stream after block `layer` [b, n, m]; `reading` replaces the inputs of this pass for another batch."""
        return self.part.blocks[layer](x, reading or self.reading, tap=tap.at(f"blocks.{layer}"))

    def normalise(self, x: Tensor, tap: Tap = OFF) -> Tensor:
        """The final norm [b, n, m]."""
        return self.part.final_norm(x, tap, "final_norm")

    def repeated(self, times: int) -> BlockInputs:
        """The inputs of the blocks with every row repeated `times` times."""
        r = self.reading

        def more(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.ndim == 2 else x.repeat_interleave(times, 0)

        return BlockInputs(r.rotation, more(r.visible), more(r.source), more(r.source_visible))


def run_forward(network: Transformer, inputs: Inputs, tap: Tap) -> Tensor:
    """The logits of one pass [b, n, v]; call it inside `frozen_network`."""
    encoded = None
    if inputs.source is not None:
        assert network.encoder is not None
        encoded = ForwardPass(network.encoder, inputs.source).whole(tap.at("encoder"))
    return tap("logits", network.unembed(ForwardPass(network, inputs, encoded).whole(tap)))
