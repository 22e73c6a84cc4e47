"""What the processes of a run add to each other's memory, as hooks that allocate what PyTorch's own engine would.

`fully_shard` gathers the weights of a block when it begins and frees them when it ends, in both passes; in the backward
pass the next block's are gathered before it is reached, and a block's gradients are divided when they are complete.
Between the products that `parallel.tensor` divides, each process holds a share of the positions.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.mlp import PlainMLP


def part_of(shape: torch.Size, shard: int) -> torch.Size:
    """The largest process's part of a parameter: its first axis is cut into equal pieces, the last of them shorter."""
    return torch.Size((-(-shape[0] // shard), *shape[1:])) if shape else shape


class GatheredWeights:
    """Parameters that `fully_shard` gathers at once, and what exists of them now."""

    def __init__(self, parameters: Iterable[nn.Parameter], shard: int, dtype: torch.dtype):
        self.parameters, self.shard, self.dtype = list(parameters), shard, dtype
        self.sizes = [part_of(p.shape, shard).numel() * shard for p in self.parameters]
        #: the weights as they were sent, and as they are computed with
        self.sent: Tensor | None = None
        self.gathered: list[Tensor] = []
        self.is_gathered = False
        #: gradients of earlier passes, where those of a pass have another type than their sum
        self.summed: list[Tensor] = []

    def send(self) -> None:
        """Gather the weights of all processes into one buffer."""
        if self.sent is None and not self.is_gathered and self.shard > 1:
            self.sent = torch.empty(sum(self.sizes), dtype=self.dtype)

    def copy_out(self) -> None:
        """Copy the weights out of the buffer."""
        if not self.is_gathered:
            self.gathered = [torch.empty(n, dtype=self.dtype) for n in self.sizes]
            self.is_gathered = True

    def free(self) -> None:
        """Keep this process's part alone."""
        self.gathered, self.is_gathered = [], False

    def add_gradients(self) -> None:
        """Add the gradients of a pass to those of the passes before it, in float32."""
        if self.dtype is torch.float32:
            return  # autograd has added them
        is_first = not self.summed
        for p in self.parameters:
            if p.grad is not None and is_first:
                self.summed.append(torch.empty(p.shape))
            p.grad = None

    def take_gradients(self) -> list[Tensor]:
        """The gradients of all passes, which are no longer kept here."""
        gradients, self.summed = self.summed, []
        gradients = gradients or [p.grad for p in self.parameters if p.grad is not None]
        for p in self.parameters:
            p.grad = None
        return gradients


class ShardedMemory:
    """Hooks on a network whose weights `shard` processes divide: one unit for each block, and one for the rest.

    Without a network there are none.
    """

    def __init__(self, network: Transformer | None, shard: int, dtype: torch.dtype):
        self.shard, self.reads_logits = shard, False
        #: whether the gradients of this pass are summed over the processes
        self.is_last = True
        if network is None:
            return
        in_blocks = [own_parameters(network, block) for block in network.blocks]
        of_blocks = {p for parameters in in_blocks for p in parameters}
        rest = [p for p in network.parameters() if p not in of_blocks]
        self.rest = GatheredWeights(rest, shard, torch.float32)
        self.units = [GatheredWeights(parameters, shard, dtype) for parameters in in_blocks]
        #: what outlives a unit: the latest buffer of the forward pass, and the latest gradients that were sent
        self.held: Tensor | None = None
        self.sent: Tensor | None = None
        self.parts: list[Tensor] = []
        network.register_forward_pre_hook(self.begin_logits)
        network.embed.register_forward_pre_hook(self.begin)
        network.final_norm.register_forward_hook(self.end_hidden)
        network.register_forward_hook(self.end)
        for number, block in enumerate(network.blocks):
            block.register_forward_pre_hook(partial(self.enter, number))
            block.register_forward_hook(partial(self.leave, number))

    def gather(self, unit: GatheredWeights) -> None:
        """Gather a unit's weights in the forward pass, which keeps the buffer until the next unit has its own."""
        unit.send()
        self.held = None
        unit.copy_out()
        self.held, unit.sent = unit.sent, None

    def begin_logits(self, module: nn.Module, inputs: Any) -> None:
        self.reads_logits = True

    def begin(self, module: nn.Module, inputs: Any) -> None:
        self.gather(self.rest)

    def enter(self, number: int, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.gather(self.units[number])
        return BackwardEnds.apply(inputs[0], partial(self.backward_leaves, self.units[number])), *inputs[1:]

    def leave(self, number: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.units[number].free()
        output.register_hook(partial(self.backward_enters, number))

    def end_hidden(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not self.reads_logits:  # the loss asks for the stream, and makes logits of it in chunks
            self.end(module, inputs, output)

    def end(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.held, self.reads_logits = None, False
        output.register_hook(self.backward_begins)

    def backward_begins(self, gradient: Tensor) -> None:
        Variable._execution_engine.queue_callback(self.backward_ends)
        self.units[-1].send()

    def backward_enters(self, number: int, gradient: Tensor) -> None:
        unit = self.units[number]
        unit.send()
        unit.copy_out()
        unit.sent = None
        if number:
            self.units[number - 1].send()

    def backward_leaves(self, unit: GatheredWeights) -> None:
        """Free the weights; sum the gradients over the processes, each of which keeps its part."""
        unit.free()
        if not self.is_last:
            unit.add_gradients()
            return
        gradients = unit.take_gradients()
        self.sent = None
        if gradients:
            total = sum(part_of(x.shape, self.shard).numel() for x in gradients)
            self.sent = torch.empty(total * self.shard)
            gradients.clear()
            self.parts.append(torch.empty(total))

    def backward_ends(self) -> None:
        self.backward_leaves(self.rest)
        self.sent = None


def own_parameters(network: Transformer, block: nn.Module) -> list[nn.Parameter]:
    """The parameters of a block without the table that all layers share, which belongs to the network."""
    shared = set(network.relative.parameters()) if network.relative else set()
    return [p for p in block.parameters() if p not in shared]


def round_blocks(network: Transformer, dtype: torch.dtype) -> None:
    """Give the blocks parameters of the type in which their weights are gathered, and so gradients of it too."""
    for block in network.blocks:
        own = set(own_parameters(network, block))
        for module in block.modules():
            for name, p in list(module.named_parameters(recurse=False)):
                if p in own and p.dtype != dtype:
                    setattr(module, name, nn.Parameter(p.detach().to(dtype), p.requires_grad))


class BackwardEnds(torch.autograd.Function):
    """Its input; calls what it is given when the gradient of the input is known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, then: Any) -> Tensor:
        ctx.then = then
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        ctx.then()
        return gradients[0], None


def divide_stream(network: Transformer, tensor: int) -> None:
    """Hooks that leave a share of the positions to each process, between products that read all of them."""

    def cut(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return ScatteredSum.apply(output, tensor)

    def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return GatheredPositions.apply(inputs[0], tensor), *inputs[1:]

    network.embed.register_forward_hook(cut)
    for name, module in network.named_modules():
        if isinstance(module, MultiHeadAttention | PlainMLP):
            module.register_forward_pre_hook(gather)
        elif name.endswith((".out", ".down")):
            module.register_forward_hook(cut)
    network.final_norm.register_forward_hook(lambda module, inputs, output: GatheredPositions.apply(output, tensor))


def share_of(x: Tensor, n: int) -> Tensor:
    """What one of n processes keeps of a sum over the processes: a share of axis 1."""
    sent = x.clone()
    return sent.narrow(1, 0, x.size(1) // n).clone()


def all_of(x: Tensor, n: int) -> Tensor:
    """What each of n processes gathers: x has a share of axis 1."""
    received = torch.cat([x] * n, 1)
    return received.clone()


class ScatteredSum(torch.autograd.Function):
    """A sum over the processes, of which each keeps a share of the positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
        ctx.n = n
        return share_of(x, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return all_of(gradients[0], ctx.n), None


class GatheredPositions(torch.autograd.Function):
    """All positions, of which each process has a share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
        ctx.n = n
        return all_of(x, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return share_of(gradients[0], ctx.n), None
