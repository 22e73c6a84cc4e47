"""Products whose weights take four bytes, one, or half a byte, by a file of C++ that is compiled once for this machine.

PyTorch's own products with few bits a weight either round their inputs or read two bytes a weight (docs/log.md). Where
there is no C++ compiler, or none that knows OpenMP, `why_not_compiled` says so and other products are used.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

#: the file that is compiled, and those that it consists of
SOURCE = Path(__file__).with_name("compiled_step.cpp")
SOURCES = (SOURCE, Path(__file__).with_name("row_products.cpp"))
#: compilers, in order of preference; $CXX goes before them
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-w")
#: GCC uses half of AVX-512's registers unless told
X86_OPTIONS = ("-mprefer-vector-width=512",)
#: a compiler that takes longer than this many seconds is given up
PATIENCE = 60.0
#: more rows than these are multiplied by weights that are unpacked into float32, a piece at a time
MOST_ROWS = 16
#: weights of such a piece
PIECE = 1 << 20

Format = Literal["float32", "int8", "int4"]


def library_folder() -> Path:
    """Where the compiled file is kept: pellucid/ in $XDG_CACHE_HOME, or in ~/.cache.

    Raises RuntimeError for somebody without a home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pellucid"


def compiler_options() -> tuple[str, ...]:
    """The options for this kind of processor."""
    return (*OPTIONS, *X86_OPTIONS) if platform.machine() in ("x86_64", "AMD64") else OPTIONS


def processor_features() -> str:
    """What decides which instructions -march=native may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *known])


def compile_source(compiler: str, target: Path) -> str:
    """Compile the file into `target`, which appears whole or not at all; what went wrong, "" if nothing did."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = Path(folder) / target.name
        command = [compiler, *compiler_options(), str(SOURCE), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        if done.returncode:
            message = (done.stderr.strip().splitlines() or ["no message"])[0]
            return f"{compiler} does not compile {SOURCE.name}: {message}"
        unfinished.replace(target)
    return ""


def compiler_and_target() -> tuple[str, Path]:
    """The compiler, and where its result is kept. Raises RuntimeError where there is none, and nowhere to keep it."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    compiler = next((path for name in wanted if (path := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(f"there is no C++ compiler ({' or '.join(wanted)})")
    if sys.byteorder != "little":
        raise RuntimeError("this machine's numbers begin with their upper bytes")
    machine = [os.path.realpath(compiler), *compiler_options(), processor_features()]
    key = "|".join([*(path.read_text(encoding="utf-8") for path in SOURCES), *machine]).encode()
    return compiler, library_folder() / f"row_products-{hashlib.sha256(key).hexdigest()[:16]}.so"


@cache
def load_library() -> tuple[ctypes.CDLL | None, str]:
    """The compiled products, or why there are none; compiled by the first process of this machine that asks."""
    try:
        compiler, target = compiler_and_target()
    except RuntimeError as e:
        return None, str(e)
    try:
        if not target.exists() and (refused := compile_source(compiler, target)):
            return None, refused
        return ctypes.CDLL(str(target)), ""
    except (OSError, subprocess.TimeoutExpired) as e:
        return None, f"the compiled products cannot be made or loaded: {e}"


def is_compiled() -> bool:
    """Whether `load_library` compiles nothing: what it would compile is on disk, or cannot be compiled."""
    if load_library.cache_info().currsize:
        return True
    try:
        return compiler_and_target()[1].exists()
    except RuntimeError:
        return True


def why_not_compiled() -> str:
    """Why there are no compiled products on this machine, "" if there are."""
    return load_library()[1]


def multiply(kind: Format, weights: tuple[Tensor, ...], bias: Tensor | None, x: Tensor, n_out: int) -> Tensor:
    """x W^T + b in float32, [*rows, n_in] -> [*rows, n_out], for at most a few rows.

    weights   contiguous: float32 [n_out, n_in]; the integers int8 [n_out, n_in] and their scales float32 [n_out]; or
              two integers in each byte uint8 [n_out, n_in / 2] and their scales bfloat16 [n_out, n_in / 32]

    Raises RuntimeError where there are no compiled products, and TypeError for inputs of another type.
    """
    library, why = load_library()
    if library is None:
        raise RuntimeError(why)
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}: compiled products read float32")
    n_in = x.size(-1)
    x = x.contiguous()
    y = x.new_empty((*x.shape[:-1], n_out))
    tensors = (*weights, bias, x, y)
    addresses = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]
    sizes = [ctypes.c_size_t(n) for n in (x.numel() // n_in, n_out, n_in, torch.get_num_threads())]
    getattr(library, f"multiply_{kind}")(*addresses, *sizes)
    return y
