"""Commands on the pretended device, in a process of its own: python commands.py TEXT FOLDER [no-float64]

It prints a JSON object with what each of them waited for, and whether it gave what it gives on the CPU.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pretended
import torch

WITHOUT_FLOAT64 = "no-float64" in sys.argv
pretended.begin(float64=not WITHOUT_FLOAT64)

from pellucid.model import float64  # noqa: E402

if WITHOUT_FLOAT64:  # as of Apple's GPUs; before others import the name
    float64.WITHOUT_FLOAT64 = frozenset({"cuda"})

import pellucid  # noqa: E402
from pellucid.plan import speed  # noqa: E402
from pellucid.runs.checkpoint import load_checkpoint  # noqa: E402

speed.LARGE_CUBE, speed.PRODUCTS_AT_ONCE = 64, 1  # its large products are for a GPU

TEXT, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
FIELDS: dict[str, Any] = {
    "d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "ngrams": (2,), "ngram_rows": 32, "dropout": 0.1,
    "tokenizer": "byte", "batch": 2, "accumulate": 2, "evaluate_every": 100, "evaluate_tokens": 100,
    "sample_every": 0, "schedule": "constant", "precision": "float32", "compile": "no", "attention": "fused",
}  # fmt: skip

EXPERTS = {"mlp.experts": 4, "mlp.experts_per_token": 2}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "likeliest": {"temperature": 0},
    "drawn": {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "seed": 7,
    },
}


def waits_of(do: Callable[[], object]) -> dict[str, int]:
    """How often the host waits while something is done, by line; not for figures of a step that is long over."""
    pretended.WAITS.clear()
    do()
    found: dict[str, int] = {}
    for (reason, line), n in pretended.WAITS.items():
        if not (reason == "event" and line.startswith("runs/figures.py")):
            found[f"{reason}, {line}"] = n
    return found


def train(name: str, device: str = "cuda", **fields: Any) -> pellucid.Run[Any]:
    """A short run."""
    return pellucid.train(
        TEXT, out=FOLDER / name, preset="small", fields=FIELDS | {"device": device} | fields, show=False
    )


def of_each(few: Callable[[int], object], first: int = 2, more: int = 3) -> dict[str, int]:
    """The waits of `more` further units (steps, tokens)."""
    short, long = waits_of(lambda: few(first)), waits_of(lambda: few(first + more))
    return {line: n - short.get(line, 0) for line, n in long.items() if n != short.get(line, 0)}


def close_weights(one: str, other: str, tolerance: float) -> bool:
    """Whether weights and averages in the last checkpoints of two runs are as close as that."""
    a, b = (load_checkpoint(FOLDER / name)[0] for name in (one, other))
    pairs = [(a.weights[name], b.weights[name]) for name in a.weights]
    pairs += [(a.optimizer[name], b.optimizer[name]) for name in a.optimizer]
    return all(torch.allclose(x.double(), y.double(), rtol=0, atol=tolerance) for x, y in pairs)


def trained() -> dict[str, Any]:
    """Runs: what a step, an evaluation and a checkpoint wait for."""
    results: dict[str, Any] = {"a training step": of_each(lambda n: train(f"train-{n}", steps=n))}
    results["a step in bfloat16"] = of_each(lambda n: train(f"rounded-{n}", steps=n, precision="bfloat16"), 1, 1)
    results["a run"] = waits_of(lambda: train("run", steps=1))
    results["a step of experts"] = of_each(lambda n: train(f"experts-{n}", steps=n, **EXPERTS), 1, 1)
    train("on-cpu", "cpu", steps=5)
    results["trains as the CPU does"] = close_weights("train-5", "on-cpu", 1e-5)
    train("halves", steps=5, checkpoint_every=2, evaluate_every=2, keep_last=5)
    for step in (4, 5):
        shutil.rmtree(FOLDER / "halves" / "checkpoints" / f"step-{step:08d}")
    pellucid.train(out=FOLDER / "halves", resume=True, show=False)
    results["resumes bit for bit"] = close_weights("halves", "train-5", 0.0)
    return results


def used() -> dict[str, Any]:
    """A trained model: what a token waits for, and that it gives what it gives on the CPU."""
    results: dict[str, Any] = {}
    model, on_cpu = (pellucid.load(FOLDER / "train-5", device=device) for device in ("cuda", "cpu"))
    for name, options in SAMPLINGS.items():
        results[f"a token, {name}"] = of_each(lambda n, o=options: model.generate("the", max_tokens=n, **o))
        texts = [each.generate("the", max_tokens=12, **options).text for each in (model, on_cpu)]
        results[f"{name} as the CPU"] = texts[0] == texts[1]
    results["a token of many rows"] = of_each(lambda n: model.generate_many(["the", "so be it"], n=2, max_tokens=n))
    scores = [float(each.score("so be it").log_probs.sum()) for each in (model, on_cpu)]
    traces = [each.trace("so be it").logits for each in (model, on_cpu)]
    results["scores and traces as the CPU"] = (
        abs(scores[0] - scores[1]) < 1e-6 and (traces[0].cpu() - traces[1]).abs().max().item() < 1e-5
    )
    model.save(FOLDER / "saved")
    results["saved"] = (FOLDER / "saved" / "model.safetensors").exists()
    return results


if __name__ == "__main__":
    if WITHOUT_FLOAT64:
        train("train-5", steps=5)
        model = pellucid.load(FOLDER / "train-5", device="cuda")
        texts = [model.generate("the", max_tokens=3, **options).text for options in SAMPLINGS.values()]
        print(json.dumps({"texts": texts, "loss": float(model.score("so be it").log_probs.sum())}))
    else:
        print(json.dumps(trained() | used()))
