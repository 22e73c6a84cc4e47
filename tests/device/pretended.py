"""A device that says cuda:0 and computes on the CPU, so that the branches for CUDA run where there is no GPU.

PyTorch lets a backend be written in Python (its device PrivateUse1). Here a tensor of it keeps its numbers in a tensor
of the CPU (`Pretended.host`) and calls its device cuda; a dispatch mode sends what is made on cuda to it. What CUDA
refuses raises here too: tensors of two devices in one operation, and algorithms that are not deterministic where those
alone are allowed. What makes the host wait for the device is counted in WAITS with the line that waited. A copy to the
host that nobody waits for holds no numbers until something waits.

It shows nothing of kernels, memory, speed, streams, NCCL or compiled graphs. `begin` changes PyTorch for good: it is
for a process of its own.
"""

import contextlib
import threading
import time
import traceback
from collections import Counter
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CUDA, HOST, BACKEND = torch.device("cuda", 0), torch.device("cpu"), torch.device("privateuseone", 0)
#: how often the host waited, by the reason and the line of the package
WAITS: Counter[tuple[str, str]] = Counter()
#: copies to the host that nobody has waited for: where they go, and what they hold
ON_THEIR_WAY: list[tuple[torch.Tensor, torch.Tensor]] = []
#: the storages of pinned memory
PINNED: set[int] = set()
#: set by `begin`: a device without float64 raises where it would hold one
options = SimpleNamespace(float64=True)

#: operations whose results have a size, or a value, that the host has to know
WAITING = {
    "aten::_local_scalar_dense": "reading a number",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::equal": "equal",
    "aten::bincount": "bincount",
    "aten::unique_consecutive": "unique",
    "aten::_unique2": "unique",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::multinomial": "multinomial",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
#: what CUDA has no deterministic algorithm for, of floating-point numbers
VARIES = {"aten::cumsum", "aten::cumsum_", "aten::bincount", "aten::histc", "aten::put_", "aten::kthvalue"}


def wait(reason: str) -> None:
    """Count a wait, after which all copies have arrived."""
    for destination, values in ON_THEIR_WAY:
        destination.copy_(values)
    ON_THEIR_WAY.clear()
    lines = [f for f in traceback.extract_stack() if "/pellucid/" in f.filename]
    WAITS[reason, f"{lines[-1].filename.rpartition('/pellucid/')[2]}:{lines[-1].lineno}" if lines else ""] += 1


def without_lists(index):
    """An index whose lists are tensors of the device, as PyTorch makes them by a copy that waits."""
    if isinstance(index, list):
        return torch.tensor(index, device=CUDA)
    return tuple(map(without_lists, index)) if isinstance(index, tuple) else index


class Pretended(torch.Tensor):
    """A tensor of the device; its numbers are in `host`."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor, requires_grad: bool = False):
        strides, offset = host.stride(), host.storage_offset()
        self = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides, offset, dtype=host.dtype, device=BACKEND, requires_grad=requires_grad
        )
        self.host = host
        return self

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def __repr__(self, **_) -> str:
        return f"Pretended({self.host!r})"

    def __getitem__(self, index):
        return torch.Tensor.__getitem__(self, without_lists(index))

    def __setitem__(self, index, value):
        torch.Tensor.__setitem__(self, without_lists(index), value)

    def tolist(self):
        wait("tolist")
        return self.host.tolist()

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    def __deepcopy__(self, memo):
        copied = Pretended(self.host.clone(), self.requires_grad)
        copied.__dict__.update({name: x for name, x in self.__dict__.items() if name != "host"})
        return memo.setdefault(id(self), copied)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """The mode in which cuda is the pretended device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


def leaves(x: object) -> list[object]:
    """What lists, tuples and dictionaries hold, however deep."""
    if isinstance(x, list | tuple):
        return [leaf for each in x for leaf in leaves(each)]
    return leaves(list(x.values())) if isinstance(x, dict) else [x]


def mapped(do, x):
    """The same lists and tuples, each thing in them as `do` returns it."""
    if isinstance(x, list | tuple):
        return type(x)(mapped(do, each) for each in x)
    return do(x)


def on_host(x):
    """What the host computes with in the place of a tensor of the device, or of the device."""
    return x.host if isinstance(x, Pretended) else HOST if is_ours(x) else x


def on_cuda(x):
    """A result of the host as a tensor of the device."""
    return Pretended(x) if isinstance(x, torch.Tensor) else x


def dispatch(func, args, kwargs):
    """Compute what is on the device, or made there, and count what waits."""
    values = leaves((args, kwargs))
    ours = [x for x in values if isinstance(x, Pretended)]
    if not ours and not any(map(is_ours, values)):
        return func(*args, **kwargs)
    if torch.is_inference_mode_enabled():  # where operations arrive whole, and views of our tensors cannot be made
        with torch.inference_mode(False), torch.no_grad(), Device():
            return func(*args, **kwargs)
    if func._can_decompose():
        with Device():
            return func.decompose(*args, **kwargs)
    name, tensors = func._schema.name, [x for x in values if isinstance(x, torch.Tensor)]
    if name in ("aten::_to_copy", "aten::copy_"):
        return copy(func, args, kwargs)
    check_devices(func, name, args, tensors)
    if torch.are_deterministic_algorithms_enabled() and name in VARIES and args[0].is_floating_point():
        raise RuntimeError(f"{name} does not have a deterministic implementation")
    if name in WAITING and ours:
        wait(WAITING[name])
    # one value is written by a mask without counting what the mask lets through
    counts = name in INDEXING and not ("put" in name and args[2].numel() == 1)
    if counts and any(i is not None and i.dtype is torch.bool for i in args[1]):
        wait("index by a mask")
    return computed(func, args, kwargs)


def check_devices(func, name, args, tensors) -> None:
    """Raise as CUDA does where an operation has tensors of both devices; numbers of no dimension may be the CPU's."""
    others = [x for x in tensors if not isinstance(x, Pretended) and x.ndim]
    if name in INDEXING and isinstance(args[0], Pretended):
        others = [x for x in others if all(x is not i for i in args[1])]
        if any(i is not None and not isinstance(i, Pretended) for i in args[1]):
            wait("index by a tensor of the host")
    if others and any(isinstance(x, Pretended) for x in tensors):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu ({func})")


def copy(func, args, kwargs):
    """A copy between devices, or within ours."""
    is_new = func._schema.name == "aten::_to_copy"
    source, target = args[0 if is_new else 1], kwargs.get("device") if is_new else args[0].device
    asynchronous = kwargs.get("non_blocking") or (not is_new and len(args) > 2 and args[2])
    target = source.device if target is None else torch.device(target)
    if is_ours(target):
        if not isinstance(source, Pretended) and not (asynchronous and is_pinned(source)):
            wait("copy to the device")
        return computed(func, args[:2], {name: x for name, x in kwargs.items() if name != "non_blocking"})
    if not is_new:
        values = source.host.to(args[0].dtype).expand_as(args[0]).clone()
        destination = args[0]
        asynchronous = asynchronous and is_pinned(destination)
    else:
        keywords = {name: x for name, x in kwargs.items() if name not in ("non_blocking", "device")}
        values, destination = func(source.host, **keywords).clone(), None
    if not asynchronous:
        wait("copy to the host")
        return values if destination is None else destination.copy_(values)
    destination = torch.empty_like(values) if destination is None else destination
    destination.fill_(float("nan") if destination.is_floating_point() else 1)
    ON_THEIR_WAY.append((destination, values))
    return destination


def computed(func, args, kwargs):
    """The operation on the numbers of the host; what it changes in place is returned as it was given."""
    keywords = {name: mapped(on_host, x) for name, x in kwargs.items() if name != "pin_memory"}
    out = func(*(mapped(on_host, x) for x in args), **keywords)
    schema = func._schema
    if func._schema.name == "aten::_to_copy" and out.untyped_storage()._cdata == args[0].untyped_storage()._cdata:
        out = out.clone()
    if not options.float64 and any(x.dtype is torch.float64 for x in leaves(out) if isinstance(x, torch.Tensor)):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    if not schema.is_mutable:
        return mapped(on_cuda, out)
    by_name = {a.name: x for a, x in zip(schema.arguments, args, strict=False)} | kwargs
    changed = [by_name[a.name] for a in schema.arguments if a.is_out or (a.alias_info and a.alias_info.is_write)]
    if any(isinstance(x, Pretended) and x.shape != x.host.shape for x in changed):
        raise NotImplementedError(f"{func} changes a shape in place")
    outs = iter(out if isinstance(out, tuple) else (out,))
    written = iter(changed)
    results = []
    for result in schema.returns:
        value = next(outs)
        is_written = result.alias_info is not None and result.alias_info.is_write
        results.append(next(written) if is_written else mapped(on_cuda, value))
    return results[0] if len(results) == 1 else tuple(results) or None


def is_ours(x: object) -> bool:
    """Whether it is the device, by its name in Python or in C++."""
    return isinstance(x, torch.device) and x.type in (CUDA.type, BACKEND.type)


def in_cpp(x: object) -> object:
    """The device by the name that it has in C++, where something is a device; else the same thing."""
    is_device = isinstance(x, str | torch.device)
    return BACKEND if is_device and is_ours(torch.device(x)) else x


def is_pinned(x: torch.Tensor, *_) -> bool:
    """Whether a tensor of the host lies in what `pin` made."""
    return not isinstance(x, Pretended) and x.untyped_storage()._cdata in PINNED


def pin(x: torch.Tensor, *_) -> torch.Tensor:
    """A copy in pinned memory."""
    pinned = x.clone()
    PINNED.add(pinned.untyped_storage()._cdata)
    return pinned


class Event:
    """An event that comes at once."""

    def __init__(self, **_):
        self.at = 0.0

    def record(self, *_):
        self.at = time.perf_counter()

    def synchronize(self):
        wait("event")

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


def begin(capability: int = 8, float64: bool = True) -> None:
    """Make this process one whose PyTorch has the device."""
    import torch._dynamo  # which finds the functions of torch.cuda by identity, before they are replaced

    _setup_privateuseone_for_python_backend("pretended", torch.cuda)
    options.float64, gibibytes = float64, 16 * 2**30
    properties = SimpleNamespace(major=capability, minor=0, total_memory=gibibytes, name="a pretended GPU")
    nothing, number = (lambda *_, **__: None), (lambda *_, **__: 0)
    replaced = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": number, "set_device": nothing,
        "get_device_name": lambda *_: properties.name, "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (capability, 0), "mem_get_info": lambda *_: (gibibytes, gibibytes),
        "memory_allocated": number, "memory_reserved": number, "max_memory_allocated": number,
        "synchronize": lambda *_: wait("synchronize"), "Event": Event, "current_stream": lambda *_: None,
        "is_bf16_supported": lambda including_emulation=True: capability >= 8, "device": contextlib.nullcontext,
        "_lazy_init": nothing, "manual_seed_all": nothing, "manual_seed": nothing, "set_rng_state": nothing,
        "get_rng_state": lambda *_: torch.get_rng_state(), "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin, is_pinned
    torch.__future__.set_swap_module_params_on_conversion(True)
    real_to, real_tensor, run_thread = torch.Tensor.to, torch.tensor, threading.Thread.run

    def to(self, *args, **kwargs):
        args, kwargs = [in_cpp(x) for x in args], {name: in_cpp(x) for name, x in kwargs.items()}
        return real_to(self, *args, **kwargs)

    def tensor(data, *, device=None, **kwargs):
        return to(real_tensor(data, **kwargs), device or HOST)

    def run(self):
        with Device():
            run_thread(self)

    torch.Tensor.to, torch.tensor, threading.Thread.run = to, tensor, run
    torch.Tensor.new_tensor = lambda self, data, **k: tensor(data, **{"dtype": self.dtype, "device": self.device} | k)
    Device().__enter__()
