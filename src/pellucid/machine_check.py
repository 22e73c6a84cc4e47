"""What this machine and this installation have, what is slow or missing here, and what helps."""

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pellucid.extras import EXTRAS, install_command, missing_packages
from pellucid.runs.device import compiling_lacks, describe_device, memory_bytes, resolve_device
from pellucid.runs.run_dir import cache_folder
from pellucid.text.read.chunks import counted
from pellucid.training.compiled_functions import lines_on_missing, missing_functions
from pellucid.training.resolve_recipe import matmul_seconds, processor_flags

#: the packages that every command needs
NEEDED_PACKAGES = ("torch", "numpy", "tokenizers", "tiktoken", "safetensors", "huggingface_hub")
#: the side of the square matrices whose product is timed
PRODUCT_SIDE = 1024
#: bytes that a first run of ten minutes and what is compiled for it may take on disk
DISK_ROOM = 2 * 10**9


@dataclass(frozen=True)
class MachineCheck:
    """Facts as pairs of a name and a value; and sentences about what is slow or missing, each with what helps."""

    facts: list[tuple[str, str]]
    problems: list[str]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        lines = [f"{name:{width}}  {value}" for name, value in self.facts]
        return "\n".join([*lines, *(self.problems or ["nothing is missing or slower than it need be"])])


def check_machine() -> MachineCheck:
    """Look at processor, memory, threads, GPU, compiler, packages and the cache folder. It takes some seconds."""
    device = resolve_device("auto")
    speeds = {
        word: 2 * PRODUCT_SIDE**3 / matmul_seconds(device, dtype, PRODUCT_SIDE) for word, dtype in precisions().items()
    }
    cache = cache_folder()
    free = free_on_disk(cache)
    facts = [
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("processor", f"{describe_device(torch.device('cpu'))['processor']}, {', '.join(processor_flags())}"),
        ("cores, threads", f"{usable_cores()}, {torch.get_num_threads()}"),
        ("memory", f"{memory_bytes(torch.device('cpu')) / 2**30:.1f} GiB"),
        ("device", str(describe_device(device)["device"] if device.type == "cpu" else described_gpu(device))),
        ("products", ", ".join(f"{word} {speed / 1e9:,.0f} GFLOP/s" for word, speed in speeds.items())),
        ("python", platform.python_version()),
        *((name, installed(name)) for name in ("pellucid", *NEEDED_PACKAGES)),
        *((name, installed(name)) for name in sorted({name for extra in EXTRAS.values() for name in extra.packages})),
        ("cache folder", f"{cache} ({free / 1e9:,.1f} GB free)"),
    ]
    return MachineCheck(facts, problems(device, speeds, free))


def problems(device: torch.device, speeds: dict[str, float], free: int) -> list[str]:
    """Sentences about what makes runs slow here, or keeps commands from working, each with what helps."""
    found = lines_on_missing(missing_functions(device))
    cores, threads = usable_cores(), torch.get_num_threads()
    if device.type == "cpu" and threads != cores:
        found.append(
            f"warning: {counted(threads, 'thread')} for {counted(cores, 'core')}: set OMP_NUM_THREADS={cores}, unless "
            "other work shares the machine"
        )
    if device.type == "cpu" and speeds["bfloat16"] < speeds["float32"]:
        found.append("slow: bfloat16 products are slower than float32 ones here, so runs take float32 by themselves")
    if device.type == "cpu" and shutil.which("nvidia-smi"):
        found.append(
            "warning: this machine has an NVIDIA driver, and this torch does not use it "
            f"({installed('torch')}): install a build of torch with CUDA"
        )
    if lacks := compiling_lacks(device):
        found.append(f"slow: torch.compile cannot be used, as {lacks}")
    if free < DISK_ROOM:
        found.append(
            f"warning: {free / 1e9:.1f} GB are free for caches and checkpoints: make room, or name another folder in "
            "PELLUCID_CACHE"
        )
    found += [
        f"missing: {', '.join(lacking)}, for {EXTRAS[extra].use}: {install_command(extra)}"
        for extra in EXTRAS
        if (lacking := missing_packages(extra))
    ]
    return found


def precisions() -> dict[str, torch.dtype]:
    """The precisions of training by their words."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described_gpu(device: torch.device) -> str:
    """The name of a GPU and its memory."""
    if device.type != "cuda":
        return str(device)
    return f"{device}, {torch.cuda.get_device_name(device)}, {memory_bytes(device) / 2**30:.0f} GiB"


def free_on_disk(folder: Path) -> int:
    """Bytes that are free where the folder is, or will be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def installed(name: str) -> str:
    """A package's version, or that it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
