"""The small character model that several examples look into, trained once and kept in runs/examples.

Three blocks, d_model = 64, 0.16 million parameters, on the bundled Shakespeare (public domain).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pellucid import LanguageModel, load, train
from pellucid.runs.checkpoint import steps_of
from pellucid.text.read.documents import bundled

FOLDER = Path(__file__).parents[1] / "runs" / "examples" / "characters"
FIELDS = {
    "n_layers": 3,
    "d_model": 64,
    "n_heads": 4,
    "n_ctx": 64,
    "activation": "relu",
    "unembed": "untied",
    "dropout": 0.0,
    "tokenizer": "char",
    "batch": 16,
    "optimizer": "adamw",
    "learning_rate": 4e-3,
    "compile": "no",
    "device": "cpu",
    # left open it is measured, and bfloat16 where there are units for it: another training on another machine
    "precision": "float32",
    "sample_every": 0,
    "evaluate_every": 1000,
    "keep_last": 1,
}


def character_model(steps: int = 2000, folder: Path = FOLDER, seed: int = 1) -> LanguageModel:
    """The model at its lowest held-out loss; it is trained for `steps` steps if the folder does not hold it yet.

    Raises RuntimeError if the training stopped before that step: a figure of half a training shows nothing.
    """
    if not (folder / "recipe.json").exists():
        train(bundled("shakespeare"), out=folder, preset="gpt2", steps=steps, fields=FIELDS | {"seed": seed})
    elif max(steps_of(folder), default=0) < steps:
        train(bundled("shakespeare"), out=folder, resume=True, steps=steps)
    reached = max(steps_of(folder), default=0)
    if reached < steps:
        raise RuntimeError(
            f"the training was cut at step {reached} of {steps}: run this again, it continues in {folder}"
        )
    return load(folder, device="cpu")


def character_models(seeds: Sequence[int] = (1, 2, 3)) -> list[LanguageModel]:
    """The same model from several random starts."""
    folders = {seed: FOLDER if seed == 1 else FOLDER.with_name(f"{FOLDER.name}-{seed}") for seed in seeds}
    return [character_model(folder=folders[seed], seed=seed) for seed in seeds]


def held_out_windows(model: LanguageModel, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """n windows of the text's last tenth, which was not trained on: inputs and targets, int64 [n, n_ctx]."""
    text = bundled("shakespeare").read_text(encoding="utf-8")
    ids = np.array(model.tokenizer.encode(text[-len(text) // 10 :]))
    length = model.architecture.n_ctx
    starts = np.random.default_rng(seed).integers(len(ids) - length - 1, size=n)
    rows = torch.from_numpy(ids[starts[:, None] + np.arange(length + 1)])
    return rows[:, :-1], rows[:, 1:]
