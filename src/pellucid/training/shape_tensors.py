"""Tensors with a shape and a type but no numbers, and a record of the memory that they would need.

The network, its loss and its backward pass run on them unchanged. The size of each storage is a linear function of the
batch: the batch of such a run is a prime, so a size that the prime divides is proportional to the batch, and any other
is fixed.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

META, CPU = torch.device("meta"), torch.device("cpu")
#: elementwise operations that lack PyTorch's tag for them
ALSO_POINTWISE = {"aten::_to_copy"}
#: pieces of a split that are computed: all equal pieces need the same memory
PIECES = 3


class NoClosedFormError(Exception):
    """The memory of a step has no closed form here; the message says why."""


class LinearBytes(NamedTuple):
    """fixed + each * batch, in bytes."""

    fixed: int = 0
    each: int = 0

    def at(self, batch: int) -> int:
        """The bytes with this batch."""
        return self.fixed + self.each * batch

    def plus(self, other: "LinearBytes", times: int = 1) -> "LinearBytes":
        """self + times * other."""
        return LinearBytes(self.fixed + times * other.fixed, self.each + times * other.each)

    def minus(self, other: "LinearBytes") -> "LinearBytes":
        """self - other."""
        return self.plus(other, -1)


def sum_of(lines: Iterable[LinearBytes]) -> LinearBytes:
    """The sum of the lines."""
    return reduce(LinearBytes.plus, lines, LinearBytes())


class ShapeTensor(Tensor):
    """A tensor that claims to be on the CPU; `meta` has its shape, its strides and its storage's size."""

    meta: Tensor

    @staticmethod
    def __new__(cls, meta: Tensor) -> "ShapeTensor":
        stand_in = Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=CPU,
        )
        stand_in.meta = meta
        return stand_in

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called on a ShapeTensor outside of its ShapesOnly")


class ShapesOnly(TorchDispatchMode):
    """A context in which every tensor is a ShapeTensor. `live` is the memory now, `record` after each allocation."""

    def __init__(self, batch: int | None = None) -> None:
        super().__init__()
        self.batch = batch
        self.live = LinearBytes()
        self.record: list[LinearBytes] = []
        self.storages: set[int] = set()
        self.of_part: dict[int, tuple[int, LinearBytes]] = {}
        self.results: dict[Any, Layout] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and importing torch._dynamo takes over a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.result_of(func, args, kwargs or {})
        except Exception as error:
            # it may succeed on numbers, since meta kernels cover less than the real ones
            raise NoClosedFormError(f"{func} fails on shapes alone: {error}") from error

    def result_of(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation, as ShapeTensors."""
        name = func._schema.name
        if name.endswith("_") and func._schema.is_mutable:  # an operation in place needs no memory; x >> n is none
            return args[0]
        if torch.Tag.pointwise in func.tags or name in ALSO_POINTWISE:
            return self.pointwise(func, args, kwargs)
        if name == "aten::_unsafe_view":
            func = torch.ops.aten.view.default
        if name == "aten::split":
            return self.dressed(first_split_pieces(args[0].meta, *args[1:]), [args[0]])
        if name == "aten::index" and sum(index is not None for index in args[1]) == 1:
            return self.new(index_layout(*args))
        if rule := RULES.get(name):
            results = rule(*args, **kwargs)
            return tuple(map(self.new, results)) if isinstance(results, list) else self.new(results)
        inputs: list[ShapeTensor] = []
        arguments = [unwrap(x, inputs) for x in args]
        options = {word: unwrap(x, inputs) for word, x in kwargs.items()}
        if not inputs and any(argument.name == "device" for argument in func._schema.arguments):
            options["device"] = META
        results = func(*arguments, **options)
        return self.dressed(results, inputs)

    def new_part(self) -> tuple[LinearBytes, list[LinearBytes]]:
        """Begin a part of the step. Returns the memory now, and after each allocation of the part that ends."""
        ended, self.record, self.of_part = self.record, [self.live], {}
        return self.live, ended

    def allocated_between(self, first: int, last: int) -> LinearBytes:
        """The memory now of allocations first ... last - 1 of this part."""
        return sum_of(size for number, size in self.of_part.values() if first <= number < last)

    def dressed(self, x: Any, inputs: list[ShapeTensor]) -> Any:
        """ShapeTensors in place of meta tensors; where an input is returned, the same ShapeTensor."""
        if isinstance(x, Tensor):
            return next((y for y in inputs if y.meta is x), None) or self.counted(x)
        return type(x)([self.dressed(y, inputs) for y in x]) if type(x) in (list, tuple) else x

    def counted(self, meta: Tensor) -> ShapeTensor:
        """The ShapeTensor of a new meta tensor, whose storage counts for as long as it lives."""
        storage = meta.untyped_storage()
        key, n = storage._cdata, storage.nbytes()
        if key not in self.storages:
            size = LinearBytes(0, n // self.batch) if self.batch and n % self.batch == 0 else LinearBytes(n)
            self.storages.add(key)
            self.of_part[key] = len(self.record), size
            self.live = self.live.plus(size)
            self.record.append(self.live)
            weakref.finalize(storage, self.forget, key, size)
        return ShapeTensor(meta)

    def forget(self, key: int, size: LinearBytes) -> None:
        """The storage is freed."""
        self.storages.discard(key)
        self.of_part.pop(key, None)
        self.live = self.live.minus(size)

    def new(self, layout: "Layout | None") -> ShapeTensor | None:
        """A tensor that an operation makes."""
        if layout is None:
            return None
        shape, strides, dtype = layout
        return self.counted(torch.empty_strided(shape, strides, dtype=dtype, device=META))

    def pointwise(self, func: Any, args: Any, kwargs: Any) -> ShapeTensor | None:
        """The result of an operation on each number by itself.

        Its shape is that of its inputs broadcast. Its type and the order of its strides are found by running the
        operation on small tensors of the same types and orders, at most two wide.
        """
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        layouts = tuple((x.shape, x.stride(), x.dtype) for x in tensors)
        others = tuple(x for x in args if not isinstance(x, Tensor))
        key = (func, layouts, str(others), str(kwargs.items() - {}.items()) if kwargs else "")
        if key not in self.results:
            small = func(*map(at_most_two_wide, args), **{word: at_most_two_wide(x) for word, x in kwargs.items()})
            shape = broadcast_shape([x.shape for x in tensors])
            self.results[key] = (shape, dense_strides(shape, small.stride()), small.dtype)
        return self.new(self.results[key])


@contextmanager
def shapes_only(batch: int | None = None) -> Iterator[ShapesOnly]:
    """Run on shapes alone; every error there becomes a NoClosedFormError."""
    try:
        with ShapesOnly(batch) as mode:
            yield mode
    except NoClosedFormError:
        raise
    except Exception as error:
        raise NoClosedFormError(f"{type(error).__name__}: {error}") from error


def unwrap(x: Any, inputs: list[ShapeTensor]) -> Any:
    """Meta tensors in place of ShapeTensors, which are added to `inputs`."""
    if isinstance(x, ShapeTensor):
        inputs.append(x)
        return x.meta
    if isinstance(x, Tensor):
        return x.to(META)
    if type(x) in (list, tuple):
        return type(x)([unwrap(y, inputs) for y in x])
    return META if isinstance(x, torch.device) else x


def first_split_pieces(x: Tensor, size: int, axis: int = 0) -> list[Tensor]:
    """The first of the pieces of x that have `size` rows each, or all of them."""
    starts = range(0, x.size(axis), size)[:PIECES]
    return [x.narrow(axis, start, min(size, x.size(axis) - start)) for start in starts]


def at_most_two_wide(x: Any) -> Any:
    """A small tensor of ones with the type of x and its strides in the same order."""
    if not isinstance(x, Tensor):
        return x
    shape = [min(n, 2) for n in x.shape]
    strides = [0 if s == 0 else t for s, t in zip(x.stride(), dense_strides(shape, x.stride()), strict=True)]
    return torch.ones(2 ** len(shape), dtype=x.dtype).as_strided(shape, strides)


def broadcast_shape(shapes: list[torch.Size]) -> tuple[int, ...]:
    """The common shape after broadcasting; importing torch.broadcast_shapes takes half a second."""
    axes = max(map(len, shapes))
    padded = [(1,) * (axes - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


def dense_strides(shape: Any, order: Any) -> tuple[int, ...]:
    """Strides without gaps for this shape, in the order of the strides in `order`."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (order[axis], -axis)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


Layout = tuple[Any, tuple[int, ...], torch.dtype]


def row_major(shape: Any, dtype: torch.dtype) -> Layout:
    """Row-major numbers."""
    return shape, dense_strides(shape, [0] * len(shape)), dtype


def like_input(x: Tensor, dtype: torch.dtype | None = None) -> Layout:
    """The shape of x without gaps, its strides in the same order."""
    return x.shape, dense_strides(x.shape, x.stride()), dtype or x.dtype


def matmul_layout(a: Tensor, b: Tensor) -> Layout:
    """a @ b."""
    return row_major((*a.shape[:-1], b.shape[-1]), a.dtype)


def reduced_layout(x: Tensor, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Layout:
    """A sum or a mean over some axes, all of them where none is named."""
    gone = {axis % x.ndim for axis in axes or range(x.ndim)}
    shape = [1 if axis in gone else n for axis, n in enumerate(x.shape) if keepdim or axis not in gone]
    return row_major(shape, dtype or (x.dtype if x.dtype.is_floating_point else torch.int64))


def cat_layout(tensors: Any, axis: int = 0) -> Layout:
    """Tensors concatenated along an axis."""
    shape = list(tensors[0].shape)
    shape[axis] = sum(x.shape[axis] for x in tensors)
    return row_major(shape, reduce(torch.promote_types, [x.dtype for x in tensors]))


def stack_layout(tensors: Any, axis: int = 0) -> Layout:
    """Tensors stacked along a new axis."""
    shape = list(tensors[0].shape)
    shape.insert(axis % (len(shape) + 1), len(tensors))
    return row_major(shape, reduce(torch.promote_types, [x.dtype for x in tensors]))


def layer_norm_layouts(x: Tensor, shape: Any, *_: Any) -> list[Layout]:
    """The result, the mean and 1 / sigma."""
    each = row_major((*x.shape[: -len(shape)], *[1] * len(shape)), x.dtype)
    return [row_major(x.shape, x.dtype), each, each]


def layer_norm_backward_layouts(
    by: Tensor, x: Tensor, shape: Any, mean: Tensor, scale: Tensor, gain: Any, bias: Any, wanted: Any
) -> list:
    """The gradients of x, of the gain and of the bias, where they are wanted."""
    return [row_major(y.shape, y.dtype) if want else None for y, want in zip((x, gain, bias), wanted, strict=True)]


def positions_before_heads(x: Tensor) -> Layout:
    """[batch, head, pos, d_head], with the memory layout [batch, pos, head, d_head]."""
    return x.shape, dense_strides(x.shape, (4, 2, 3, 1)), x.dtype


def flash_attention_layouts(q: Tensor, *_: Any, **__: Any) -> list[Layout]:
    """The results of the CPU's kernel: z, and the log-sum-exp of each query's scores."""
    shape = q.shape[:3]
    return [like_input(q), (shape, dense_strides(shape, (3, 1, 2)), torch.float32)]


def flash_attention_backward_layouts(by: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> list[Layout]:
    """The gradients of q, k and v."""
    return [positions_before_heads(x) for x in (q, k, v)]


def index_layout(x: Tensor, indices: list[Tensor | None]) -> Layout:
    """x indexed by one tensor along one of its axes."""
    axis, index = next((axis, index) for axis, index in enumerate(indices) if index is not None)
    return row_major((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)


def arange_layout(*bounds: float, **options: Any) -> Layout:
    """0, 1, 2, ... as arange numbers them."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    integers = all(isinstance(x, int) for x in bounds)
    n = math.ceil((end - start) / step)
    return row_major((n,), options.get("dtype") or (torch.int64 if integers else torch.get_default_dtype()))


#: layouts of the results of operations whose own kernel for meta tensors is slow, or imports for a second
RULES: dict[str, Callable[..., Any]] = {
    "aten::mm": matmul_layout,
    "aten::bmm": matmul_layout,
    "aten::addmm": lambda bias, a, b, **scale: matmul_layout(a, b),
    "aten::baddbmm": lambda x, a, b, **scale: matmul_layout(a, b),
    "aten::native_layer_norm": layer_norm_layouts,
    "aten::native_layer_norm_backward": layer_norm_backward_layouts,
    "aten::_softmax": lambda x, axis, to_float: like_input(x),
    "aten::_safe_softmax": lambda x, axis, dtype=None: like_input(x, dtype),
    "aten::_softmax_backward_data": lambda by, y, axis, dtype: like_input(by, dtype),
    "aten::_log_softmax": lambda x, axis, to_float: like_input(x),
    "aten::_log_softmax_backward_data": lambda by, y, axis, dtype: like_input(by, dtype),
    "aten::nll_loss_forward": lambda x, *_: [row_major((), x.dtype), row_major((), x.dtype)],
    "aten::nll_loss_backward": lambda by, x, *_: like_input(x),
    "aten::sum": reduced_layout,
    "aten::mean": reduced_layout,
    "aten::cat": cat_layout,
    "aten::stack": stack_layout,
    "aten::ones_like": lambda x, dtype=None, **_: like_input(x, dtype),
    "aten::zeros_like": lambda x, dtype=None, **_: like_input(x, dtype),
    "aten::empty_like": lambda x, dtype=None, **_: like_input(x, dtype),
    "aten::empty": lambda shape, dtype=None, **_: row_major(shape, dtype or torch.get_default_dtype()),
    "aten::zeros": lambda shape, dtype=None, **_: row_major(shape, dtype or torch.get_default_dtype()),
    "aten::embedding": lambda table, ids, *_: row_major((*ids.shape, table.shape[1]), table.dtype),
    "aten::embedding_dense_backward": lambda by, ids, n, *_: row_major((n, by.shape[-1]), by.dtype),
    "aten::_scaled_dot_product_flash_attention_for_cpu": flash_attention_layouts,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": flash_attention_backward_layouts,
    "aten::slice_backward": lambda by, shape, *_: row_major(shape, by.dtype),
    "aten::tril": lambda x, diagonal=0: like_input(x),
    "aten::arange": arange_layout,
    "aten::linalg_vector_norm": lambda x, power=2, axes=None, keepdim=False, dtype=None: reduced_layout(
        x, axes, keepdim, dtype=dtype
    ),
}
