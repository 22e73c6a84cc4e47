"""One more token of a single text, with all blocks in one call of compiled code.

At one token a step, a product takes as long as reading its matrix, and what lies between products (norms, attention
with one query, activations) takes far longer in Python and in PyTorch's calls than it does to compute. Here a network's
blocks are written down once as a list of operations on fixed addresses, which `compiled_step.cpp` works through with
the products of `row_products.cpp`. Nothing is compiled for a network: that file is compiled once for the machine. The
embedding is the network's own, and so is a readout that is more than one product.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pellucid.generate import row_products
from pellucid.generate.pack_weights import PackedAttention
from pellucid.generate.packed_linear import AsLoaded, Float32, Int4, Int8
from pellucid.generate.readers import CachedReader, NextLogits, SequenceState, window_start
from pellucid.model import Cache, Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.block import ParallelBlock, PostBlock, PreBlock, SharedBlock, Times
from pellucid.model.embed import AffineUnembed, Unembed
from pellucid.model.mlp import GatedMLP, MixtureOfExperts, OneHiddenMLP, PlainMLP
from pellucid.model.norm import (
    Identity,
    LayerNorm,
    LayerNormEpsOutside,
    LayerNormOfEachHead,
    RMSNorm,
    RMSNormEpsOutside,
    RMSNormOfHeads,
    ScaledNorm,
)
from pellucid.model.positions import Rotary, RotaryTable

#: vectors have zeros behind their end up to a multiple of this, which `Int4` reads
ALIGNMENT = Int4.group
#: the numbers of activations in `compiled_step.cpp`
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "quick_gelu", "tanh")
NORMS = (LayerNorm, LayerNormEpsOutside, LayerNormOfEachHead, RMSNorm, RMSNormEpsOutside, RMSNormOfHeads)


class NotCompiledError(ValueError):
    """There is no compiled step for a network; the message completes "the step cannot be compiled, since"."""


def structure(name: str, pointers: str, counts: str = "", floats: str = "", integers: str = "") -> Any:
    """A struct of C++: its pointers, then Index, float and int32_t."""
    kinds = ((pointers, ctypes.c_void_p), (counts, ctypes.c_size_t), (floats, ctypes.c_float))
    fields = [(field, kind) for fields, kind in (*kinds, (integers, ctypes.c_int32)) for field in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Norm = structure("Norm", "x y gain bias", "n_groups width", "eps", "centred eps_outside")
Product = structure("Product", "x y weights scales bias", "n_out n_in", "", "format")
Append = structure("Append", "q k v cos sin", "layer n_heads n_kv_heads d_head n_planes", "", "pairs")
Attention = structure("Attention", "q z scores bias", "layer n_heads n_kv_heads d_head n_ctx window", "scale cap")
Activation = structure("Activation", "x up y", "n", "", "f")
Addition = structure("Addition", "x y", "n", "c")
#: the numbers of operations in `compiled_step.cpp`
OPERATIONS = (Norm, Product, Append, Attention, Activation, Addition)


class Operation(ctypes.Structure):
    """What is computed, and whether threads wait for each other after it."""

    _fields_ = (("kind", ctypes.c_int32), ("waits", ctypes.c_int32), ("what", ctypes.c_void_p))


class Program:
    """The operations of all blocks, in their order, and the memory that they read and write.

    x   the residual stream [d_model], in which the blocks leave their result

    Raises NotCompiledError for what the operations cannot say.
    """

    def __init__(self, network: Transformer):
        self.architecture, self.rotary_table = network.architecture, network.rotary_table
        self.operations: list[Any] = []
        self.waits: list[bool] = []
        #: the tensors that the addresses point into
        self.tensors: list[Tensor] = []
        self.vectors: dict[str, Tensor] = {}
        self.x = self.vector("stream", self.architecture.d_model)
        for layer, block in enumerate(network.blocks):
            if type(block) not in ARRANGEMENTS:
                raise NotCompiledError(f"its blocks are of the kind {type(block).__name__}")
            ARRANGEMENTS[type(block)](self, block, layer)
        #: whether the last operation is the product that gives the logits; else the network's modules give them
        self.reads_out = self.readout(network.final_norm, network.unembed)

    def vector(self, name: str, n: int) -> Tensor:
        """The memory of this name, n numbers; blocks share it."""
        if name not in self.vectors:
            self.vectors[name] = torch.zeros(-(-n // ALIGNMENT) * ALIGNMENT, dtype=torch.float32, device="cpu")
        return self.vectors[name][:n]

    def add(self, kind: Callable[..., Any], **fields: Tensor | float | None) -> None:
        """One more operation; tensors are given to it by their addresses."""
        tensors = [value for value in fields.values() if isinstance(value, Tensor)]
        for tensor in tensors:
            if tensor.dtype == torch.float32 and not tensor.is_contiguous():
                raise NotCompiledError("a tensor does not lie in memory in its own order")
        self.tensors += tensors
        self.operations.append(
            kind(**{name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()})
        )
        self.waits.append(True)

    def skip_barrier(self, n: int) -> None:
        """Let threads go on to the next operation without waiting for each other, where each reads only what it has
        computed of the last operation's n results.
        """
        last = self.operations[-1]
        self.waits[-1] = not (isinstance(last, Product) and last.n_out == n and last.x != self.x.data_ptr())

    def product(self, linear: nn.Module, x: Tensor, y: Tensor, *, waits: bool = True) -> Tensor:
        """y = x W^T + b"""
        if type(linear) in (nn.Linear, Unembed, AffineUnembed, AsLoaded, Float32):
            weights, scales, number = cast(Tensor, linear.weight).detach(), None, 0
            if weights.dtype != torch.float32:
                raise NotCompiledError("its matrices are of different types")
        elif isinstance(linear, Int8 | Int4):
            (weights, scales), number = linear.stored, 1 if isinstance(linear, Int8) else 2
        else:
            kind = type(linear).__name__
            raise NotCompiledError(
                f"it reads matrices in float32, int8 or int4, and these are of another format ({kind})"
            )
        bias = getattr(linear, "bias", None)
        bias = None if bias is None else bias.detach()
        n_in = len(x) + (linear.missing if isinstance(linear, Int4) else 0)
        sizes = {"n_out": len(y), "n_in": n_in, "format": number}
        self.add(Product, x=x, y=y, weights=weights, scales=scales, bias=bias, **sizes)
        self.waits[-1] = waits
        return y

    def norm(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """y = norm(x) by groups of the width that the norm has; x itself where there is none."""
        if isinstance(norm, Identity):
            return x
        if type(norm) not in NORMS:
            raise NotCompiledError(f"its norm is a {type(norm).__name__}")
        assert isinstance(norm, ScaledNorm)
        width = norm.shape[0] // (norm.n_heads if isinstance(norm, LayerNormOfEachHead) else 1)
        gain = None if norm.gain is None else repeated(norm.multiplier, len(x))
        bias = getattr(norm, "bias", None)
        outside = isinstance(norm, LayerNormEpsOutside | RMSNormEpsOutside)
        numbers = {"n_groups": len(x) // width, "width": width, "eps": norm.eps}
        self.add(
            Norm,
            x=x,
            y=y,
            gain=gain,
            bias=None if bias is None else repeated(bias, len(x)),
            centred=isinstance(norm, LayerNorm),
            eps_outside=outside,
            **numbers,
        )
        return y

    def attention(self, attn: nn.Module, x: Tensor, layer: int) -> Tensor:
        """What attention reads for x, whose key and value are appended to the cache."""
        if type(attn) not in (MultiHeadAttention, PackedAttention):
            raise NotCompiledError(f"its attention is a {type(attn).__name__}")
        assert isinstance(attn, MultiHeadAttention)
        a, d = self.architecture, attn.d_head
        n_heads, n_kv_heads = a.n_heads, a.n_kv_heads
        qkv = self.vector("qkv", (n_heads + 2 * n_kv_heads) * d)
        q, k, v = qkv.split([n_heads * d, n_kv_heads * d, n_kv_heads * d])
        if isinstance(attn, PackedAttention):
            self.product(attn.qkv, x, qkv)
        else:
            self.product(attn.query, x, q, waits=False)
            self.product(attn.key, x, k, waits=False)
            self.product(attn.value, x, v)
        self.norm(attn.query_norm, q, q)
        self.norm(attn.key_norm, k, k)
        heads = {"layer": layer, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d}
        self.add(Append, q=q, k=k, v=v, **heads, **self.rotation(attn.rotary))
        z, scores = self.vector("z", n_heads * d), self.vector("scores", n_heads * a.n_ctx)
        numbers = {"n_ctx": a.n_ctx, "window": attn.mask.window, "scale": a.score_scale, "cap": a.attention.score_cap}
        bias = self.bias_by_distance(attn)
        self.add(Attention, q=q, z=z, scores=scores, bias=bias, **heads, **numbers)
        return self.product(attn.out, z, self.vector("attention", a.d_model))

    def rotation(self, rotary: nn.Module) -> dict[str, Any]:
        """The angles of a layer's rotation."""
        table = self.rotary_table
        if not isinstance(rotary, Rotary) or not isinstance(table, RotaryTable):
            return {}
        cos, sin = (t[rotary.kind].contiguous() for t in (table.short or table).values)
        return {"cos": cos, "sin": sin, "n_planes": cos.size(-1), "pairs": rotary.axis == -1}

    def bias_by_distance(self, attn: MultiHeadAttention) -> Tensor | None:
        """What is added to the scores, [head, distance]."""
        if attn.mask.position_bias is None:
            return None
        j = torch.arange(self.architecture.n_ctx)
        return attn.mask.position_bias.score_bias(j[-1:, None], j).detach()[:, 0].flip(-1).float().contiguous()

    def mlp(self, mlp: nn.Module, x: Tensor) -> Tensor:
        """What the MLP computes of x."""
        if isinstance(mlp, MixtureOfExperts):
            raise NotCompiledError("in a mixture of experts, which weights are read is known only once the token is")
        if type(mlp) not in (PlainMLP, OneHiddenMLP, GatedMLP):
            raise NotCompiledError(f"its MLP is a {type(mlp).__name__}")
        assert isinstance(mlp, PlainMLP)
        f = ACTIVATIONS.index(self.architecture.mlp.activation)
        for number, up in enumerate(mlp.up):
            n = up.out_features if isinstance(up, nn.Linear) else self.architecture.d_ff
            y = self.product(up, x, self.vector(f"pre {number}", n), waits=False)
            if isinstance(mlp, GatedMLP):
                gate = self.product(mlp.gate, x, self.vector("gate", n), waits=False)
                self.add(Activation, x=gate, up=y, y=y, n=n, f=f)
            else:
                self.add(Activation, x=y, y=y, n=n, f=f)
            x = y
        return self.product(mlp.down, x, self.vector("mlp", self.architecture.d_model))

    def readout(self, final_norm: nn.Module, unembed: nn.Module) -> bool:
        """The final norm and the logits, where these are one product with its result; whether they are."""
        if type(unembed) in (Unembed, AffineUnembed):
            assert isinstance(unembed, Unembed)
            if (
                unembed.scale != 1
                or not isinstance(unembed.cap, Identity)
                or not isinstance(unembed.projection, Identity)
            ):
                return False
        elif not isinstance(unembed, AsLoaded | Float32 | Int8 | Int4):
            return False
        x = self.norm(final_norm, self.x, self.vector("final_norm", len(self.x)))
        self.product(unembed, x, self.vector("logits", self.architecture.n_vocab))
        return True

    def add_to_stream(self, y: Tensor, scaled: nn.Module) -> None:
        """x += c y"""
        self.skip_barrier(len(self.x))
        self.add(Addition, x=self.x, y=y, n=len(y), c=scaled.c if isinstance(scaled, Times) else 1.0)


def repeated(weights: Tensor, n: int) -> Tensor:
    """The weights of a norm for n coordinates, those of all groups one after another."""
    flat = weights.detach().flatten()
    return flat if len(flat) == n else flat.repeat(n // len(flat))


# The arrangements of `pellucid.model.block`, line by line -----------------------------------------------


def normed(p: Program, block: PreBlock, name: str, x: Tensor) -> Tensor:
    """The norm of this name, in memory of its own."""
    return p.norm(getattr(block, name), x, p.vector(name, len(x)))


def attention_output(p: Program, block: PreBlock, x: Tensor, layer: int) -> Tensor:
    """norm_1_out(attn(x))"""
    return normed(p, block, "norm_1_out", p.attention(block.attn, x, layer))


def mlp_output(p: Program, block: PreBlock, x: Tensor) -> Tensor:
    """norm_2_out(mlp(x))"""
    return normed(p, block, "norm_2_out", p.mlp(block.mlp, x))


def pre(p: Program, block: PreBlock, layer: int) -> None:
    """x += attn(norm_1(x));  x += mlp(norm_2(x))"""
    p.add_to_stream(attention_output(p, block, normed(p, block, "norm_1", p.x), layer), block.scaled)
    p.add_to_stream(mlp_output(p, block, normed(p, block, "norm_2", p.x)), block.scaled)


def post(p: Program, block: PreBlock, layer: int) -> None:
    """x = norm_1(x + attn(x));  x = norm_2(x + mlp(x))"""
    p.add_to_stream(attention_output(p, block, p.x, layer), block.scaled)
    p.norm(block.norm_1, p.x, p.x)
    p.add_to_stream(mlp_output(p, block, p.x), block.scaled)
    p.norm(block.norm_2, p.x, p.x)


def parallel(p: Program, block: PreBlock, layer: int) -> None:
    """x += attn(norm_1(x)) + mlp(norm_2(x)); with one norm for both, norm_2 is norm_1"""
    y = normed(p, block, "norm_1", p.x)
    z = y if isinstance(block, SharedBlock) else normed(p, block, "norm_2", p.x)
    read, computed = attention_output(p, block, y, layer), mlp_output(p, block, z)
    p.add_to_stream(read, block.scaled)
    p.add_to_stream(computed, block.scaled)


ARRANGEMENTS: dict[type[nn.Module], Callable[[Program, Any, int], None]]
ARRANGEMENTS = {PreBlock: pre, PostBlock: post, ParallelBlock: parallel, SharedBlock: parallel}


def list_operations(operations: Sequence[Any], waits: Sequence[bool]) -> "ctypes.Array[Operation]":
    """The operations as C++ reads them; it must not outlive them."""
    numbered = zip(operations, waits, strict=True)
    listed = [Operation(OPERATIONS.index(type(o)), wait, ctypes.addressof(o)) for o, wait in numbered]
    return (Operation * len(listed))(*listed)


class CompiledStep:
    """Reads one more token of a text with a cache, by the weights that the network has now.

    Where longrope has other frequencies for longer texts, it reads texts of up to `Architecture.frequency_border`.

    Raises NotCompiledError for a network that has other parts than `compiled_step.cpp` computes, and where there is no
    C++ compiler.
    """

    def __init__(self, network: Transformer):
        check_compilable(network)
        library, why = row_products.load_library()
        if library is None:
            raise NotCompiledError(why)
        with torch.inference_mode():
            self.program = program = Program(network)
        self.run, self.architecture = library.run_operations, network.architecture
        # not the network itself: a step that is kept for it would keep it in memory
        self.embed, self.final_norm, self.unembed = network.embed, network.final_norm, network.unembed
        self.operations, self.lock = list_operations(program.operations, program.waits), threading.Lock()

    def __call__(self, token: int, cache: Cache, position: int | None = None) -> NextLogits:
        """The logits [1, n_vocab] after this token, which is now in the cache.

        position   of the token in its text, which has this many columns before it; by default all that are filled

        Raises ValueError where the cache is full, or is not that of a single text in float32.
        """
        position, store = cache.length if position is None else position, cache.store
        n_ctx = self.architecture.frequency_border or self.architecture.n_ctx
        if store.size(2) != 1 or store.dtype != torch.float32 or store.stride()[3:] != self.strides(cache):
            raise ValueError(f"a cache of {store.size(2)} texts in {store.dtype}: expected one text in float32")
        if cache.length >= cache.capacity or not 0 <= position < n_ctx or position > cache.length:
            raise ValueError(f"{position + 1} positions do not fit: the cache or the context ends there")
        first, index = store[:, :, :, :, cache.length - position :], torch.tensor([position], device="cpu")
        tokens = torch.tensor([[token]], device="cpu")
        added = self.embed(tokens, cache.remember(tokens), index, None, None)
        # its type and device are not left to PyTorch's defaults, which a program may change
        logits = torch.empty((1, self.architecture.n_vocab), dtype=torch.float32, device="cpu")
        # the vectors of the program are those of every call
        with self.lock:
            self.program.x.copy_(added[0, 0])
            if self.program.reads_out:
                self.program.operations[-1].y = logits.data_ptr()
            addresses = [ctypes.c_void_p(first[part].data_ptr()) for part in (0, 1)]
            sizes = (store.stride(1), cache.capacity, position, torch.get_num_threads())
            n = len(self.operations)
            self.run(self.operations, ctypes.c_size_t(n), *addresses, *[ctypes.c_size_t(size) for size in sizes])
            stream = None if self.program.reads_out else self.program.x.clone()
        cache.advance(1)
        return logits if stream is None else self.unembed(self.final_norm(stream[None, None]))[:, 0]

    def strides(self, cache: Cache) -> tuple[int, int, int]:
        """The strides of heads, positions and coordinates that the compiled code knows."""
        return cache.capacity * self.architecture.d_head, self.architecture.d_head, 1


def check_compilable(network: Transformer) -> None:
    """Raise NotCompiledError for networks of another device or type, with an encoder, or computed in other ways."""
    weight = network.embed.token.weight
    if weight.device.type != "cpu":
        raise NotCompiledError(f"it is compiled for the CPU, and this network is on {weight.device.type}")
    if weight.dtype != torch.float32:
        raise NotCompiledError(f"it computes in float32, and this network is in {str(weight.dtype)[6:]}")
    if network.encoder is not None:
        raise NotCompiledError("this network reads an encoder's output")
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        raise NotCompiledError("hooks of its modules are to be called")
    if any(type(p) is not nn.Parameter for p in network.parameters()):
        raise NotCompiledError("its weights are divided among processes")


class CompiledReader(CachedReader):
    """Reads one text: further tokens by a compiled step, prompts and moved windows as `CachedReader` does."""

    def __init__(self, network: Transformer, longest: int, step: CompiledStep):
        super().__init__(network, longest)
        self.compiled = step

    def read(self, rows: Sequence[SequenceState]) -> NextLogits:
        """The logits of the row's next token."""
        n_prompt, n_tokens = len(rows[0].given), len(rows[0].given) + len(rows[0].generated)
        start = window_start(n_prompt, n_tokens, self.n_ctx)
        border = self.compiled.architecture.frequency_border
        if self.cache is None or start != self.starts[0] or (border and n_tokens - start > border):
            return super().read(rows)
        self.lengths = [n_tokens - start]
        return self.compiled(rows[0].generated[-1], self.cache)
