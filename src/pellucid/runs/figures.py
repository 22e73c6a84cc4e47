"""The figures of a step, and the time that it took, read without making a GPU wait.

A GPU runs asynchronously. Reading a number at once waits until all that was launched is done, and the GPU then idles
until the next step is launched. So a step's figures are copied to pinned host memory without waiting, between two CUDA
events that time the step, and are read some steps later.
"""

import time

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.runs.processes import Processes


class StepFigures:
    """The figures of a step that begins now on this device, and its time."""

    def __init__(self, device: torch.device):
        self.device, self.values = device, dict[str, Tensor]()
        self.events: list[torch.cuda.Event] = []
        self.times: list[float] = []
        self._mark()

    def leave(self, values: dict[str, Tensor]) -> None:
        """Say that the step was taken, or launched on the GPU, and has these figures, each of them one number."""
        is_cuda = self.device.type == "cuda"
        self.values = {name: x.to("cpu", non_blocking=True) if is_cuda else x for name, x in values.items()}
        self._mark()

    def read(self) -> tuple[dict[str, float], float | None]:
        """The figures, and the seconds that the step took, as soon as the device has come so far.

        On devices other than CPUs and CUDA there are no seconds: they run asynchronously, and no events time them here.
        """
        if self.events:
            began, ended = self.events
            ended.synchronize()
            seconds = began.elapsed_time(ended) / 1e3
        else:
            began, ended = self.times
            seconds = ended - began
        values = {name: x.item() for name, x in self.values.items()}
        return values, max(seconds, 1e-9) if self.device.type in ("cpu", "cuda") else None

    def _mark(self) -> None:
        """The time now; on CUDA an event behind all that was launched so far."""
        self.times.append(time.perf_counter())
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.events.append(event)


class HeldOutTotal:
    """What an evaluation has summed up in all batches so far; the sums stay on the device until they are read."""

    def __init__(self, processes: Processes):
        self.processes, self.unread = processes, list[Tensor]()
        self.nats, self.n_right, self.n_scored = 0.0, 0, 0

    def add(self, sums: Float[Tensor, "3"]) -> None:
        """Add a batch (`HeldOutSums.sums`)."""
        self.unread.append(sums)

    def read(self) -> "HeldOutTotal":
        """Wait for all batches so far, and for the other processes that read other rows of them."""
        if self.unread:
            for nats, n_right, n_scored in self.processes.summed(torch.stack(self.unread).cpu()).tolist():
                self.nats += nats
                self.n_right, self.n_scored = self.n_right + int(n_right), self.n_scored + int(n_scored)
            self.unread.clear()
        return self

    @property
    def loss(self) -> float:
        """The mean loss of what was read, in nats per scored target."""
        return self.nats / self.n_scored

    @property
    def accuracy(self) -> float:
        """The share of likeliest targets in what was read."""
        return self.n_right / self.n_scored
