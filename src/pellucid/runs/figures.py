"""The figures of a step, and the time that it took, read without making a GPU wait.

A GPU works through what it is given behind the program. A program that reads a number at once waits until all that it
gave is done, and the GPU then waits for the program's next step. So a step's figures are copied to the machine's own
memory behind the step's work, between two events that know when the GPU passed them, and are read some steps later.
"""

import time

import torch
from torch import Tensor


class StepFigures:
    """The figures of a step that begins now on this device, and its time."""

    def __init__(self, device: torch.device):
        self.device, self.values = device, dict[str, Tensor]()
        self.events: list[torch.cuda.Event] = []
        self.times: list[float] = []
        self._mark()

    def leave(self, values: dict[str, Tensor]) -> None:
        """Say that the step was taken, or given to the GPU, and has these figures, each of them one number."""
        is_behind = self.device.type == "cuda"
        self.values = {name: x.to("cpu", non_blocking=True) if is_behind else x for name, x in values.items()}
        self._mark()

    def read(self) -> tuple[dict[str, float], float | None]:
        """The figures, and the seconds that the step took, as soon as the device has come so far.

        On devices other than CPUs and CUDA there are no seconds: they work behind the program, and have no events here.
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
        """The time now; on CUDA an event behind what the GPU was given so far."""
        self.times.append(time.perf_counter())
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.events.append(event)
