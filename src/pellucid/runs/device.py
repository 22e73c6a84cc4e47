"""The device that a run computes on: its name, its memory, and whether compiling for it pays."""

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.model.kernels import is_ampere
from pellucid.model.modes import Restore, SharedContext
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import MACHINE, cache_folder, read_json

#: seconds that compiling a training step costs, by kind of device; on CPUs as measured (docs/experiments/step-speed.md)
COMPILE_SECONDS = {"cpu": 35.0, "cuda": 60.0, "mps": 60.0}
#: the share of eager time that compiling saves on each; on CPUs as measured (docs/experiments/step-speed.md)
COMPILE_SAVES = {"cpu": 0.27, "cuda": 0.35, "mps": 0.0}
#: how many times its cost compiling has to save before it is chosen: on a busy machine it costs twice as much
CLEAR_GAIN = 2.0


def resolve_device(word: str | None) -> torch.device:
    """The device of that name; auto, or None, is the first of CUDA, Apple's MPS and the CPU that is there.

    A GPU with a number becomes the current one, of which PyTorch tells what kernels it has and where memory is pinned;
    cuda without a number is the current one. cuDNN is set to compute float32 as exactly as matrix products are.
    """
    device = _named_device(word)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = TF32.n_inside > 0
    return device


def _named_device(word: str | None) -> torch.device:
    if word in (None, "auto"):
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if word.partition(":")[0] not in COMPILE_SECONDS:
        raise RecipeError(f"train.device = {word!r}: say auto, {', '.join(COMPILE_SECONDS)}, or cuda:1 and so on")
    try:
        device = torch.device(word)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RecipeError(
            f"device {word!r} cannot be used here ({str(error).splitlines()[0]}): say cpu or auto"
        ) from None
    return device


def device_here(word: str | None) -> torch.device:
    """The device of a run where it can be used here, else the one that auto stands for."""
    try:
        return resolve_device(word)
    except RecipeError:
        return resolve_device("auto")


def describe_device(device: torch.device) -> dict[str, Any]:
    """The device's name, its processor, how many threads compute on it, and PyTorch's version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "device": str(device),
        "processor": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The processor's name from Linux, or from Python's platform module."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def peak_speed(run_dir: Path, device: torch.device) -> float | None:
    """Tokens a second that large matrix products reach here, by what was timed as the run began.

    None where that was not timed, or on another device or with another number of threads than here; a file of facts
    that is damaged does no harm.
    """
    try:
        timed = dict(read_json(run_dir / MACHINE))
    except (RecipeError, ValueError, TypeError):
        return None
    here, peak = describe_device(device), timed.get("peak_tokens_per_second")
    is_here = all(timed.get(name) == here[name] for name in ("device", "processor", "threads"))
    return float(peak) if is_here and isinstance(peak, int | float) and peak > 0 else None


def memory_bytes(device: torch.device) -> int:
    """How much memory the device has in all, or this container may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if sys.platform == "win32":
        kibibytes = ctypes.c_ulonglong()
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes))
        return 1024 * kibibytes.value
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:  # a container may have less
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return installed


def free_bytes(device: torch.device) -> int:
    """How much memory of the device this process can still have: on CUDA what is free, and what the allocator has
    reserved and no tensor uses; elsewhere as `memory_bytes`.
    """
    if device.type != "cuda":
        return memory_bytes(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def check_fits(n_parameters: int, dtype: torch.dtype, device: torch.device | str) -> None:
    """Raise RecipeError, before anything is allocated, for weights that the device has no memory for."""
    device = torch.device(device)
    if device.type == "meta":
        return
    need, have = n_parameters * dtype.itemsize, free_bytes(device)
    if need > have:
        raise RecipeError(
            f"{n_parameters:,} parameters in {str(dtype).removeprefix('torch.')} need {need / 2**30:.1f} GiB and "
            f"{device.type} has {have / 2**30:.1f} GiB: give a smaller dtype, another device or a smaller model"
        )


def compile_pays(
    device: torch.device, seconds_per_step: float, n_steps: int, saves: float | None = None
) -> tuple[bool, str]:
    """Whether compiling saves clearly more than it costs over the run, and a sentence with the figures.

    `saves` is the share of a step that it saves, that of COMPILE_SAVES unless given.
    """
    if not can_compile(device):
        return False, f"compiled: no ({compiling_lacks(device)})"
    saved = seconds_per_step * n_steps * (COMPILE_SAVES[device.type] if saves is None else saves)
    pays = saved > CLEAR_GAIN * COMPILE_SECONDS[device.type]
    word = "yes" if pays else "no"
    return (
        pays,
        f"compiled: {word} (saves about {saved:.0f} s of this run, costs about {COMPILE_SECONDS[device.type]:.0f})",
    )


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs (`compiling_lacks`)."""
    return not compiling_lacks(device)


def compiling_lacks(device: torch.device) -> str:
    """What torch.compile needs and does not find, as the clause of a sentence; empty where nothing is missing.

    It needs a C++ compiler on the CPU; on CUDA a GPU of compute capability 7.0, Triton, and the C compiler with which
    Triton makes the functions that launch its kernels.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed here"
        # on Windows Triton brings a C compiler
        if sys.platform != "win32" and not has_command(os.environ.get("CC") or "gcc", "clang"):
            return "there is no C compiler here (gcc or clang)"
        major, minor = torch.cuda.get_device_capability(device)
        return "" if major >= 7 else f"this GPU has compute capability {major}.{minor} and Triton needs 7.0"
    if device.type != "cpu":
        return f"nothing is compiled for {device.type}"
    has_compiler = has_command(os.environ.get("CXX") or "g++", "clang++")
    return "" if has_compiler else "there is no C++ compiler here (g++ or clang++)"


def has_command(*names: str) -> bool:
    """Whether one of these commands can be run here."""
    return any(map(shutil.which, names))


def compiled(loss: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """The loss as one compiled graph with its backward pass; what was compiled before is found again on disk."""
    keep_compiled()
    return torch.compile(loss)


def compile_block(block: nn.Module) -> None:
    """Compile a block by itself, with its backward pass; blocks that are alike share what was compiled."""
    keep_compiled()
    block.compile()


#: the functions by which a graph enters and leaves autocast; they depend on their arguments alone, which are part of
#: the key by which the graph is found
AUTOCAST = ("torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast")


def keep_compiled() -> None:
    """Keep what is compiled with the project's other files, unless the environment names a folder.

    PyTorch keeps a graph's kernels, and what it derives from the graph for the backward pass. It keeps the second only
    where it knows every function in the graph, so it is told of those of autocast (docs/experiments/step-speed.md).
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    from torch._inductor import config  # takes a second to import, which only runs that are compiled pay

    config.unsafe_marked_cacheable_functions |= dict.fromkeys(AUTOCAST, torch.__version__)


def prepare_deterministic(asked: bool) -> None:
    """Set what cuBLAS needs to compute alike in every run, where asked for; the environment's own choice is kept.

    PyTorch reads it at the first matrix product on a GPU, and without it refuses all products in
    `deterministic_kernels`.
    """
    if asked:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic_kernels(asked: bool) -> Iterator[None]:
    """Only kernels whose results do not vary between runs, where asked for; the caller's choice is put back."""
    if not asked:  # PyTorch's function imports its compiler, whatever it is told
        yield
        return
    with DETERMINISTIC:
        yield


def only_deterministic() -> Restore:
    """Choose deterministic kernels for the whole process; returns what restores its own choice."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    return lambda: torch.use_deterministic_algorithms(before[0], warn_only=before[1])


DETERMINISTIC = SharedContext(only_deterministic)


def check_precision(precision: str | None, device: torch.device) -> None:
    """Raise RecipeError for precision = tf32 where no GPU has it."""
    if precision != "tf32" or (device.type == "cuda" and is_ampere(device)):
        return
    here = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    raise RecipeError(
        f"train.precision = tf32: the matrix products of NVIDIA GPUs of compute capability 8.0 (Ampere) and later, and "
        f"this device is {here}: give float32 or auto"
    )


@contextmanager
def products_in(precision: str | None) -> Iterator[None]:
    """Products of float32 matrices, and cuDNN's networks, rounded to TF32 where the precision is tf32; exact in others.

    TF32 keeps 10 of the 23 bits of each factor's fraction; sums are in float32. The caller's choice is put back.
    """
    if precision != "tf32":
        yield
        return
    with TF32:
        yield


def allow_tf32() -> Restore:
    """Choose TF32 for the whole process; returns what restores its own choice."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True

    def restore() -> None:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]

    return restore


TF32 = SharedContext(allow_tf32)
