"""One of several processes that train a network together, a few steps whenever a line arrives: what benchmarks.scaling
times.

    torchrun --standalone --nproc-per-node=N scaling_worker.py LIBRARY '{"shape": [n_layers, ...], "port": PORT, ...}'

A line is the JSON of a `Way` and the number of steps. The first process reads it and tells the others by a store of
their own, so that processes that train apart from each other begin together too.
"""

import difflib
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore

Step = Callable[[], object]

#: the lines of nanoGPT's train.py that ask for CUDA, and the one before which it waits for its turn
FOR_GLOO = [
    ("    device = f'cuda:{ddp_local_rank}'\n", "    device = 'cpu'\n"),
    ("    torch.cuda.set_device(device)\n", ""),
    ("    model = DDP(model, device_ids=[ddp_local_rank])\n", "    model = DDP(model)\n"),
    ("while True:\n\n    # determine and set", "while True:\n    wait_for_turn()\n\n    # determine and set"),
]


class Turns:
    """The turns of the processes of one group: which steps they are to take, and how long each of them took."""

    def __init__(self, port: int):
        self.rank, self.n = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.store = TCPStore("127.0.0.1", port, self.n, self.rank == 0, timedelta(hours=1))
        self.number = 0
        self.answers, sys.stdout = sys.stdout, sys.stderr  # libraries print what they do

    def say(self, answer: dict[str, Any]) -> None:
        """Answer the benchmark, as the first process."""
        if self.rank == 0:
            print(json.dumps(answer), file=self.answers, flush=True)

    def next(self) -> dict[str, Any]:
        """What is asked for; this process ends where nothing more is."""
        self.number += 1
        key = f"turn {self.number}"
        if self.rank == 0:
            self.store.set(key, sys.stdin.readline())
        asked = self.store.get(key).decode()
        if not asked:
            self.gathered("ended", "")
            os._exit(0)  # a mesh that still exists when the interpreter ends makes gloo abort
        return json.loads(asked)

    def gathered(self, key: str, value: str) -> list[str]:
        """What every process gives for this turn, in order; only the first process waits for it."""
        self.store.set(f"{key} {self.number} {self.rank}", value)
        if self.rank:
            return []
        return [self.store.get(f"{key} {self.number} {rank}").decode() for rank in range(self.n)]

    def took(self, seconds: float, steps: int) -> None:
        """End the turn: the slowest process says how long a step took."""
        times = self.gathered("seconds", str(seconds / steps))
        self.say({"seconds": max(map(float, times), default=0.0)})

    def serve(self, step_of: Callable[[dict[str, Any]], Step]) -> None:
        """Take the steps of every turn; `step_of` gives the step of a way."""
        self.say({"torch": torch.__version__})
        while asked := self.next():
            step = step_of(asked)
            torch.set_num_threads(asked["threads"])
            began = time.perf_counter()
            for _ in range(asked["steps"]):
                step()
            self.took(time.perf_counter() - began, asked["steps"])


def random_ids(n_vocab: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, n_vocab, 1 << 18)


# Pellucid ---------------------------------------------------------------------------------------


def pellucid(given: dict[str, Any], turns: Turns) -> None:
    """The training loop as `pellucid train --processes N` runs it; every way has a network of its own."""
    from contextlib import nullcontext

    steps: dict[str, Step] = {}
    group, new_cluster = nullcontext(), None
    if turns.n > 1:
        from pellucid.training.parallel import Cluster, joined

        group, new_cluster = joined(), Cluster

    def step_of(asked: dict[str, Any]) -> Step:
        way = json.dumps([asked[name] for name in ("layout", "rows", "part_of")])
        if way not in steps:
            steps[way] = pellucid_step(
                given["shape"], asked, new_cluster() if new_cluster and asked["layout"] else None
            )
        return steps[way]

    with group:
        turns.serve(step_of)


def pellucid_step(shape: list[int], asked: dict[str, Any], cluster: Any) -> Step:
    """A step of a network in a layout, or, where there is none, of one that this process trains by itself."""
    from dataclasses import replace

    from pellucid.plan.processes import divided_architecture
    from pellucid.presets import with_vocabulary
    from pellucid.runs.interrupt import Interruption
    from pellucid.runs.metrics import MetricsFile
    from pellucid.runs.optimizer import make_optimizer
    from pellucid.runs.options import with_record, with_train
    from pellucid.runs.processes import SINGLE_PROCESS
    from pellucid.runs.trainer import LAG, Trainer
    from pellucid.text.tokens.batches import Batches
    from pellucid.text.tokens.store import TokenSequence
    from pellucid.training.objectives import MicroBatch
    from pellucid.training.recipe import make_recipe
    from pellucid.training.resolve_recipe import resolve_batch
    from pellucid.training.trainable import TransformerTrainable

    n_layers, n_heads, d_model, n_ctx, n_vocab = shape
    rows, processes = asked["rows"], cluster or SINGLE_PROCESS
    fields = {
        "attention.bias": "none", "mlp.bias": "none", "norm.bias": "none", "mlp.activation": "gelu",
        "n_layers": n_layers, "n_heads": n_heads, "d_model": d_model, "n_ctx": n_ctx, "dropout": 0.0, "accumulate": 1,
        "optimizer": "adamw", "precision": "float32", "device": "cpu", "attention": "fused", "compile": "no",
        "steps": 1 << 30, "batch": rows, "warmup": 0,
    }  # fmt: skip
    names = ("parallel.replicate", "parallel.shard", "parallel.tensor")
    fields |= dict(zip(names, asked["layout"] or (1, 1, 1), strict=True))
    recipe = make_recipe(("ids",), "gpt2", fields)
    model = divided_architecture(with_vocabulary(recipe.model, n_vocab), asked["part_of"])
    recipe = with_record(replace(recipe, model=model), decay=(1 << 30, 1 << 30))
    recipe = with_train(resolve_batch(recipe, torch.device("cpu")), batch=rows, accumulate=1)
    batches = Batches(TokenSequence.from_ids(random_ids(model.n_vocab), model.n_vocab), n_ctx, rows, 0)

    class Rows:
        def at(self, step: int, micro: int, of: int) -> MicroBatch:
            cut = batches.at(step, micro, of)
            return MicroBatch(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (cut.inputs, cut.targets)))

        def held_out(self):
            yield self.at(0, 0, 1)

    class OnRandomIds(TransformerTrainable):
        def make_data(self) -> Any:
            return Rows()

    class Silent:
        def step(self, row: dict[str, Any], n_steps: int) -> None: ...
        def note(self, text: str) -> None: ...

    processes.arrange(recipe)
    processes.check_sizes(recipe.model, has_vocabulary=True)
    trainable = OnRandomIds(recipe, processes=processes)
    trainable.build()
    trainable.network.train()
    trainable.begin()
    folder = Path(tempfile.mkdtemp())
    trainer = Trainer(
        run_dir=folder, trainable=trainable, optimizer=make_optimizer(recipe, trainable.network, processes),
        reporter=Silent(), metrics=MetricsFile(folder / "metrics.jsonl", writes=processes.is_first),
        interruption=Interruption(),
    )  # type: ignore[arg-type]  # fmt: skip

    def step() -> None:
        trainer.stops()  # what the loop asks the other processes between two steps
        trainer.take_step()
        trainer.read_figures(LAG)

    return step


# nanoGPT ----------------------------------------------------------------------------------------


def for_gloo(source: str) -> tuple[str, str]:
    """nanoGPT's train.py for processes on CPUs that take turns, and the diff."""
    changed = source
    for before, after in FOR_GLOO:
        if changed.count(before) != 1:
            raise ValueError(f"nanoGPT's train.py has {changed.count(before)} times, and not once: {before!r}")
        changed = changed.replace(before, after)
    lines = [text.splitlines(keepends=True) for text in (source, changed)]
    return changed, "".join(difflib.unified_diff(*lines, "train.py", "train.py for gloo", n=0))


def nanogpt(given: dict[str, Any], turns: Turns) -> None:
    """nanoGPT's train.py itself. Apart from each other, its processes train the model that DDP would wrap."""
    n_layers, n_heads, d_model, n_ctx, n_vocab = given["shape"]
    folder = Path(tempfile.mkdtemp())
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(random_ids(n_vocab).astype(np.uint16).tobytes())
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": n_vocab}))
    os.chdir(given["nanogpt"])
    sys.path.insert(0, given["nanogpt"])
    options = {
        "out_dir": folder, "dataset": folder, "n_layer": n_layers, "n_head": n_heads, "n_embd": d_model,
        "block_size": n_ctx, "device": "cpu", "dtype": "float32", "compile": False, "backend": "gloo",
        "gradient_accumulation_steps": turns.n, "batch_size": 1, "eval_interval": 1 << 40, "eval_iters": 1,
    }  # fmt: skip
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in options.items())]
    source, _ = for_gloo(Path("train.py").read_text())
    of_script: dict[str, Any] = {"__name__": "__main__"}
    asked: dict[str, Any] = {}
    began, left = 0.0, 0

    def wait_for_turn() -> None:
        nonlocal asked, began, left
        if asked:
            left -= 1
            if left:
                return
            turns.took(time.perf_counter() - began, asked["steps"])
        else:
            of_script["wrapped"] = of_script["model"]
            turns.say({"torch": torch.__version__})
        asked = turns.next()
        left = asked["steps"]
        torch.set_num_threads(asked["threads"])
        of_script["model"] = of_script["wrapped" if asked["layout"] else "raw_model"]
        of_script["batch_size"] = asked["rows"] // (turns.n if asked["layout"] else 1)
        of_script["X"], of_script["Y"] = of_script["get_batch"]("train")
        began = time.perf_counter()

    of_script["wait_for_turn"] = wait_for_turn
    exec(compile(source, "train.py", "exec"), of_script)


# accelerate -------------------------------------------------------------------------------------


def accelerate(given: dict[str, Any], turns: Turns) -> None:
    """nanoGPT's network divided by accelerate's FSDP, which accelerate itself offers on accelerators alone."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin  # type: ignore
    from accelerate.state import PartialState  # type: ignore
    from accelerate.utils import DistributedType  # type: ignore

    sys.path.insert(0, given["nanogpt"])
    from model import GPT, GPTConfig  # type: ignore

    n_layers, n_heads, d_model, n_ctx, n_vocab = given["shape"]
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU  # it divides nothing on CPUs otherwise
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"],
    )  # fmt: skip
    accelerator = Accelerator(fsdp_plugin=plugin)
    model = GPT(GPTConfig(n_ctx, n_vocab, n_layers, n_heads, d_model, 0.0, False))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = random_ids(n_vocab)

    def step_of(asked: dict[str, Any]) -> Step:
        def step() -> None:
            starts = torch.randint(len(ids) - n_ctx, (asked["rows"] // turns.n,))
            x, y = (torch.stack([torch.from_numpy(ids[i + k : i + k + n_ctx]) for i in starts]) for k in (0, 1))
            _, loss = model(x, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

        return step

    turns.serve(step_of)


LIBRARIES = {"pellucid": pellucid, "nanogpt": nanogpt, "accelerate": accelerate}

if __name__ == "__main__":
    library, words = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    own_turns = Turns(words["port"])
    try:
        LIBRARIES[library](words, own_turns)
    except Exception as error:  # the benchmark says which of them could not be run, and goes on
        own_turns.say({"error": f"{library}: {type(error).__name__}: {error}"})
        raise
