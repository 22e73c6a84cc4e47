"""C++ that is compiled once for a machine and kept, and what to say where it cannot be."""

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

#: compilers, in order of preference; $CXX goes before them
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC", "-w")
#: Apple's clang knows OpenMP, and neither its option nor its library: PyTorch brings libomp. It compiles for the
#: processor of Apple's own machines by default, and its older versions refuse the word native there.
APPLE_OPENMP = ("-Xclang", "-fopenmp", "-lomp")
#: GCC uses half of AVX-512's registers unless told
X86_OPTIONS = ("-mprefer-vector-width=512",)
#: a compiler that takes longer than this many seconds is given up
COMPILER_SECONDS = 60.0


def library_folder() -> Path:
    """Where compiled files are kept: pellucid/ in $XDG_CACHE_HOME, or in ~/.cache.

    Raises RuntimeError for somebody without a home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pellucid"


def compiler_options() -> tuple[str, ...]:
    """The options for this system and this kind of processor."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if sys.platform == "darwin":
        plain = [word for word in OPTIONS if word != "-fopenmp" and (is_x86 or word != "-march=native")]
        return (*plain, *APPLE_OPENMP, *(f"{word}{torch_libraries()}" for word in ("-L", "-Wl,-rpath,")))
    return (*OPTIONS, *X86_OPTIONS) if is_x86 else OPTIONS


def torch_libraries() -> Path:
    """Where PyTorch's libraries are; it is not imported."""
    package = importlib.util.find_spec("torch")
    return Path((package and package.origin) or "").parent / "lib"


def processor_features() -> str:
    """What decides which instructions -march=native may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *known])


class CompiledSource:
    """A file of C++, compiled by the first process of this machine that asks for it.

    path      the file
    included  other files that it consists of
    load      the library, or None, and why there is none ("" where there is one); asked once in a process
    """

    def __init__(self, path: Path, *included: Path):
        self.path, self.sources = path, (path, *included)
        self.load = cache(self.compile_and_load)
        self.is_loaded: bool | None = None

    def compile(self, compiler: str, target: Path) -> str:
        """Compile the file into `target`, which appears whole or not at all; what went wrong, "" if nothing did."""
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unfinished = Path(folder) / target.name
            command = [compiler, *compiler_options(), str(self.path), "-o", str(unfinished)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILER_SECONDS)
            if done.returncode:
                message = (done.stderr.strip().splitlines() or ["no message"])[0]
                return f"{compiler} does not compile {self.path.name}: {message}"
            unfinished.replace(target)
        return ""

    def compiler_and_target(self) -> tuple[str, Path]:
        """The compiler, and where its result is kept.

        Raises RuntimeError where there is no compiler or none is used, or no folder to keep its result in.
        """
        if sys.platform == "win32":
            raise RuntimeError("nothing is compiled on Windows; in WSL it is")
        wanted = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
        compiler = next((path for name in wanted if (path := shutil.which(name))), None)
        if compiler is None:
            raise RuntimeError(f"there is no C++ compiler ({' or '.join(wanted)})")
        if sys.byteorder != "little":
            raise RuntimeError("this machine's numbers begin with their upper bytes")
        machine = [os.path.realpath(compiler), *compiler_options(), processor_features()]
        key = "|".join([*(path.read_text(encoding="utf-8") for path in self.sources), *machine]).encode()
        return compiler, library_folder() / f"{self.path.stem}-{hashlib.sha256(key).hexdigest()[:16]}.so"

    def compile_and_load(self) -> tuple[ctypes.CDLL | None, str]:
        """What `load` remembers."""
        try:
            compiler, target = self.compiler_and_target()
        except RuntimeError as e:
            return None, str(e)
        try:
            if not target.exists() and (refused := self.compile(compiler, target)):
                return None, refused
            return ctypes.CDLL(str(target)), ""
        except (OSError, subprocess.TimeoutExpired) as e:
            return None, f"{self.path.name} cannot be compiled or loaded: {e}"

    def is_usable(self) -> bool:
        """Whether there is a library. The answer is kept in an attribute, which PyTorch's compiler can read."""
        if self.is_loaded is None:
            self.is_loaded = self.load()[0] is not None
        return self.is_loaded

    def call(self, name: str, tensors: Iterable[Any], sizes: Iterable[int], numbers: Iterable[float] = ()) -> None:
        """Call a function of the library with the addresses of tensors (None: no address), sizes, and floats.

        Raises RuntimeError where there is no library.
        """
        library, why = self.load()
        if library is None:
            raise RuntimeError(why)
        addresses = [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors]
        getattr(library, name)(*addresses, *map(ctypes.c_size_t, sizes), *map(ctypes.c_float, numbers))

    def is_compiled(self) -> bool:
        """Whether `load` compiles nothing: what it would compile is on disk, or cannot be compiled."""
        if self.load.cache_info().currsize:
            return True
        try:
            return self.compiler_and_target()[1].exists()
        except RuntimeError:
            return True
