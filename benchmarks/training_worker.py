"""Trains one network in one setting, a few steps whenever a line arrives: the process that benchmarks.training times.

Run by any Python that has torch and the library in question, so it imports nothing else of this folder:

    python training_worker.py LIBRARY '{"shape": [n_layers, n_heads, d_model, n_ctx, batch, n_vocab], ...}'

A step is the same work for every library: a batch cut from the same ids, forward, backward, the gradient clipped to
norm 1, AdamW. Each does it its own way: optimiser and loss are the library's, where it has them.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Step = Callable[[], None]
#: what a run does around its steps
UNTIL_THE_END = contextlib.ExitStack()


def windows(ids: np.ndarray, n_ctx: int, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets from random places, as peers' training scripts cut them."""
    starts = torch.randint(len(ids) - n_ctx, (batch,))
    x = torch.stack([torch.from_numpy(ids[i : i + n_ctx]) for i in starts])
    y = torch.stack([torch.from_numpy(ids[i + 1 : i + 1 + n_ctx]) for i in starts])
    return x.to(device), y.to(device)


def peer_step(model: Any, optimizer: Any, loss_of: Callable, given: dict[str, Any], ids: np.ndarray) -> Step:
    """One step of a peer's ordinary training loop."""
    _, _, _, n_ctx, batch, _ = given["shape"]
    device = torch.device(given["device"])
    half = given["precision"] == "bfloat16"
    run = torch.compile(model) if given["compile"] else model

    def step() -> None:
        x, y = windows(ids, n_ctx, batch, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = loss_of(run, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def nanogpt(given: dict[str, Any], ids: np.ndarray) -> tuple[Any, Step]:
    """nanoGPT's model and its own choice of AdamW, from the clone whose path is given."""
    sys.path.insert(0, given["nanogpt"])
    from model import GPT, GPTConfig  # type: ignore

    n_layers, n_heads, d_model, n_ctx, _, n_vocab = given["shape"]
    model = GPT(GPTConfig(n_ctx, n_vocab, n_layers, n_heads, d_model, 0.0, False)).to(given["device"])
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), torch.device(given["device"]).type)
    return model, peer_step(model, optimizer, lambda run, x, y: run(x, y)[1], given, ids)


def transformers(given: dict[str, Any], ids: np.ndarray) -> tuple[Any, Step]:
    """Hugging Face's GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    n_layers, n_heads, d_model, n_ctx, _, n_vocab = given["shape"]
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=n_vocab, n_positions=n_ctx, n_embd=d_model, n_layer=n_layers, n_head=n_heads, use_cache=False,
        **no_dropout,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(given["device"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)

    def loss_of(run: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(run(x).logits.flatten(0, 1).float(), y.flatten())

    return model, peer_step(model, optimizer, loss_of, given, ids)


def litgpt(given: dict[str, Any], ids: np.ndarray) -> tuple[Any, Step]:
    """litgpt's GPT and its cross-entropy in chunks."""
    from litgpt import GPT, Config  # type: ignore
    from litgpt.utils import chunked_cross_entropy  # type: ignore

    n_layers, n_heads, d_model, n_ctx, _, n_vocab = given["shape"]
    config = Config(
        name="benchmark", block_size=n_ctx, vocab_size=n_vocab, padded_vocab_size=n_vocab, n_layer=n_layers,
        n_head=n_heads, n_embd=d_model, bias=False, parallel_residual=False, mlp_class_name="GptNeoxMLP",
    )  # fmt: skip
    model = GPT(config).to(given["device"])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    return model, peer_step(
        model, optimizer, lambda run, x, y: chunked_cross_entropy(run(x), y, chunk_size=0), given, ids
    )


def pellucid(given: dict[str, Any], ids: np.ndarray) -> tuple[Any, Step]:
    """The training loop as `pellucid train` runs it, metrics written and read a few steps late."""
    import tempfile
    from dataclasses import replace

    from pellucid.presets import with_vocabulary
    from pellucid.runs.denormals import flushed_denormals
    from pellucid.runs.device import compiled
    from pellucid.runs.interrupt import Interruption
    from pellucid.runs.kept_memory import kept_memory
    from pellucid.runs.metrics import MetricsFile
    from pellucid.runs.optimizer import make_optimizer
    from pellucid.runs.options import with_record
    from pellucid.runs.trainer import LAG, Trainer
    from pellucid.text.tokens.batches import Batches
    from pellucid.text.tokens.store import TokenSequence
    from pellucid.training import build as setup
    from pellucid.training import resolve_recipe as resolve
    from pellucid.training.objectives import MicroBatch, autocast
    from pellucid.training.recipe import make_recipe
    from pellucid.training.trainable import TransformerTrainable

    UNTIL_THE_END.enter_context(kept_memory())
    UNTIL_THE_END.enter_context(flushed_denormals())
    n_layers, n_heads, d_model, n_ctx, batch, n_vocab = given["shape"]
    device = torch.device(given["device"])
    fields = {
        "n_layers": n_layers, "n_heads": n_heads, "d_model": d_model, "n_ctx": n_ctx, "batch": batch, "dropout": 0.0,
        "optimizer": given.get("optimizer", "adamw"), "precision": given["precision"], "device": given["device"],
        "attention": given.get("attention", "fused"), "compile": "yes" if given["compile"] else "no", "steps": 1 << 30,
        "warmup": 0,
    }  # fmt: skip
    recipe = make_recipe(("ids",), given.get("preset", "gpt2"), {**BIASLESS, **fields})
    recipe = with_record(replace(recipe, model=with_vocabulary(recipe.model, n_vocab)), decay=(1 << 30, 1 << 30))
    recipe = resolve.resolve_batch(recipe, device)
    batches = Batches(TokenSequence.from_ids(ids, n_vocab), n_ctx, batch, 0)

    class Data:
        def at(self, step: int, micro: int, of: int) -> MicroBatch:
            cut = batches.at(step, micro, of)
            return MicroBatch(
                *(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (cut.inputs, cut.targets))
            )

    network = setup.build_network(recipe, device).train()
    setup.choose_for_device(network, recipe, device)
    loss = autocast(network, device, given["precision"])
    folder = Path(tempfile.mkdtemp())
    trainable = TransformerTrainable(recipe)
    trainable.network, trainable.data = network, Data()  # type: ignore[assignment]
    trainable.loss = compiled(loss) if given["compile"] else loss
    metrics = MetricsFile(folder / "metrics.jsonl")
    UNTIL_THE_END.callback(metrics.close)
    training = Trainer(
        run_dir=folder, trainable=trainable, optimizer=make_optimizer(recipe, network), reporter=Silent(),
        metrics=metrics, interruption=Interruption(),
    )  # type: ignore[arg-type]  # fmt: skip

    def step() -> None:
        training.take_step()
        training.read_figures(LAG)

    return network, step


#: what nanoGPT's network is, on top of the preset gpt2: no biases, the exact GELU
BIASLESS = {"attention.bias": "none", "mlp.bias": "none", "norm.bias": "none", "mlp.activation": "gelu"}


class Silent:
    """Shows nothing."""

    def step(self, row: dict[str, Any], n_steps: int) -> None: ...
    def note(self, text: str) -> None: ...


LIBRARIES = {"nanogpt": nanogpt, "transformers": transformers, "litgpt": litgpt, "pellucid": pellucid}


def main() -> None:
    """Prepare, take the first step, say so; then time some steps for each line that is read."""
    library, given = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(0)
    shape = given["shape"]
    ids = np.random.default_rng(0).integers(0, shape[5], 1 << 18)
    device = torch.device(given["device"])
    stdout, sys.stdout = sys.stdout, sys.stderr  # peers print what they do

    def timed(step: Step, n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / n

    try:
        model, step = LIBRARIES[library](given, ids)
        first = timed(step, 1)
    except Exception as error:  # the benchmark says which peer could not be run, and goes on
        print(json.dumps({"error": f"{library}: {type(error).__name__}: {error}"}), file=stdout, flush=True)
        raise
    unique = {id(p): p.numel() for p in model.parameters()}
    about = {"parameters": sum(unique.values()), "first_seconds": first, "torch": torch.__version__}
    print(json.dumps(about), file=stdout, flush=True)
    with UNTIL_THE_END:
        for line in sys.stdin:
            print(json.dumps({"seconds": timed(step, int(line))}), file=stdout, flush=True)


if __name__ == "__main__":
    main()
