"""What looking costs: memory and time of a pass over 4 x 256 tokens, GPT-2 small's shape, float32, beside peers.

    python -m benchmarks.looking

Each row is a process of its own; the peak of resident memory of its first pass is compared with what was resident
before it, every tensor being mapped and returned by itself. They run in turns, and starting all of them takes minutes:
what is going on is said meanwhile. TransformerLens is its TransformerBridge around a transformers model of random
weights, for it builds models from names on a hub; transformers keeps what `output_attentions` and
`output_hidden_states` give, which is less than everything. The last line says what taps cost where nothing is asked:
how often they are called in a pass, times what such a call takes by itself.
"""

import argparse
import contextlib
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.side_by_side import BenchmarkError, Measured, Worker, header, serve, show, spread
from pellucid.text_model import of_ids

BATCH, LENGTH = 4, 256
STATUS = Path("/proc/self/status")
#: glibc maps every block of this size or more by itself, and gives it back when it is freed
MAPPED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
#: whose, and what of the pass is asked for
ROWS = {
    "nothing": "pellucid nothing",
    "an attention pattern": "pellucid pattern",
    "everything available": "pellucid available",
    "everything kept": "pellucid everything",
    "transformers, nothing": "transformers nothing",
    "transformers, attentions and hidden states": "transformers everything",
    "TransformerLens, nothing": "transformer_lens nothing",
    "TransformerLens, an attention pattern": "transformer_lens pattern",
    "TransformerLens, everything kept": "transformer_lens everything",
}
Look = Callable[[Tensor], Any]


def pellucid(what: str) -> Look:
    """A pass of ours that looks at `what`."""
    from pellucid.lens.trace import trace
    from pellucid.model import Transformer
    from pellucid.model.weights import initialise
    from pellucid.presets import preset

    network = initialise(Transformer(preset("gpt2")), 0).eval()
    keep = {"pattern": "blocks.5.attn.pattern", "everything": "*"}.get(what, ())
    if what == "nothing":
        return torch.inference_mode()(network)
    return lambda tokens: trace(of_ids(network), tokens, keep=keep).values


def transformers(what: str) -> Look:
    """Eager attention where patterns are asked for, its fused one where they are not."""
    asked = what == "everything"
    model = hugging_face("eager" if asked else "sdpa")
    return torch.inference_mode()(
        lambda tokens: model(tokens, use_cache=False, output_attentions=asked, output_hidden_states=asked)
    )


def transformer_lens(what: str) -> Look:
    """run_with_cache; attention is eager in it."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    model = hugging_face("eager")
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    if what == "nothing":
        return torch.inference_mode()(lambda tokens: bridge(tokens, return_type="logits"))
    names = ["blocks.5.attn.hook_pattern"] if what == "pattern" else None
    return torch.inference_mode()(lambda tokens: bridge.run_with_cache(tokens, names_filter=names)[1])


def hugging_face(attention: str) -> Any:
    """GPT-2 small with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(attn_implementation=attention)).eval()


def weigh(made: Any) -> int:
    """Bytes of the tensors in what a look returned, each storage once."""
    found: dict[int, int] = {}

    def walk(x: Any) -> None:
        if isinstance(x, Tensor):
            found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        elif hasattr(x, "values"):
            for value in x.values():
                walk(value)
        elif isinstance(x, list | tuple):
            for value in x:
                walk(value)

    walk(getattr(made, "cache_dict", made))
    return sum(found.values())


class Peak:
    """How much more memory was resident at most, in bytes, than when this began.

    Linux forgets the peak so far when it is told to. Elsewhere what was needed to make the network hides a smaller
    peak behind it, so that nothing is said.
    """

    def __init__(self):
        self.known = STATUS.exists()
        if self.known:
            Path("/proc/self/clear_refs").write_text("5")
            self.before = resident("VmRSS")

    def more(self) -> float:
        return resident("VmHWM") - self.before if self.known else float("nan")


def give_back() -> None:
    """Return freed memory that the allocator keeps to the system, where that is glibc's: it would hide a peak."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident(what: str) -> int:
    """Bytes that this process holds now (VmRSS), or has held at most (VmHWM)."""
    return next(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith(what))


def worker(whose: str, what: str) -> None:
    """One row's process: memory of the first pass after a token's, then seconds."""
    look = {"pellucid": pellucid, "transformers": transformers, "transformer_lens": transformer_lens}[whose](what)
    look(torch.zeros(1, 2, dtype=torch.int64))
    tokens = torch.randint(0, 50257, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))

    def measure(_: str) -> dict[str, Any]:
        peak, start = Peak(), time.perf_counter()
        made = look(tokens)
        return {"seconds": time.perf_counter() - start, "bytes": peak.more(), "kept": weigh(made)}

    serve({}, measure)


def taps_of_nothing() -> tuple[int, float]:
    """How often a pass calls its tap, and the seconds that such calls take by themselves."""
    from pellucid.model import OFF, Tap, Transformer
    from pellucid.presets import preset

    class Counting(Tap):
        calls = 0

        def __call__(self, name: str, value: Tensor) -> Tensor:
            Counting.calls += 1
            return value

        def at(self, scope: str) -> Tap:
            Counting.calls += 1
            return self

        def choose(self, names: Any, fused: Any, written: Any, seen: Any = None) -> Tensor:
            Counting.calls += 1
            return fused()

    with torch.inference_mode():
        Transformer(preset("gpt2")).eval()(torch.zeros(1, 2, dtype=torch.int64), tap=Counting())
    x, n = torch.zeros(1), 100_000
    start = time.perf_counter()
    for _ in range(n):
        OFF("resid_mid", x)
    return Counting.calls, (time.perf_counter() - start) / n * Counting.calls


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="+", choices=ROWS.values(), default=list(ROWS.values()), help="some of them")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker)
    print(*header(torch.device("cpu"), ["pellucid", "transformers", "transformer-lens"]), sep="\n")
    answers: dict[str, list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, given in ROWS.items():
            if given not in options.rows:
                continue
            command = [sys.executable, "-m", "benchmarks.looking", "--worker", *given.split()]
            print(f"starting: {name}", file=sys.stderr)
            try:
                workers[name] = stack.enter_context(Worker(command, **MAPPED))
            except BenchmarkError as error:
                print(f"{name} is left out: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        for number in range(options.rounds + 1):
            print(f"round {number} of {options.rounds}", file=sys.stderr)
            for name in list(workers) if number % 2 == 0 else list(workers)[::-1]:
                answers.setdefault(name, []).append(workers[name].ask())
    rows = []
    for name, given in answers.items():
        times = Measured(name, [answer["seconds"] for answer in given[1:]])
        rows.append([name, f"{given[0]['bytes'] / 1e6:,.0f}", f"{given[0]['kept'] / 1e6:,.0f}", spread(times, 1e3)])
    show(f"{BATCH} x {LENGTH} tokens", ["", "MB more at most", "MB kept", "ms"], rows)
    calls, taken = taps_of_nothing()
    print(f"taps where nothing is asked: {calls} calls a pass, {taken * 1e6:.0f} microseconds in all")
    return None


if __name__ == "__main__":
    main()
