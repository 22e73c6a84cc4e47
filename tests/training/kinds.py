"""Every kind of model that is trained step by step, each in a run of STEPS steps that takes a moment."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiny import FIELDS, write_text

import pellucid
from pellucid.predictors.recipe import PredictorKind
from pellucid.runs.pipeline import Run
from pellucid.runs.trainable import Trainable
from pellucid.training.trainable import TextTrainable

STEPS = 12
#: what decides when something is measured and saved
INTERVALS = {"evaluate_every": 4, "device": "cpu"}
OF_TEXT = {"tokenizer": "byte", "batch": 4, "evaluate_tokens": 100, "sample_every": 4}


@dataclass(frozen=True)
class RunKind:
    """How a run of one kind is started and resumed by the public function."""

    name: str
    fields: dict[str, Any]
    trainable: type[Trainable] = TextTrainable
    predictor: PredictorKind | None = None

    def write_input(self, folder: Path) -> Path:
        """The file that a run of this kind is trained on."""
        return WRITERS.get(self.name, write_text)(folder)

    def start(self, source: Path, out: Path, steps: int = STEPS, **fields: Any) -> Run:
        return self.train(source, out=out, fields=self.fields | fields, steps=steps)

    def resume(self, out: Path, **length: Any) -> Run:
        return self.train(out=out, resume=True, **length)

    def train(self, *inputs: Path, **options: Any) -> Run:
        """By the public function for this kind."""
        if self.predictor is None:
            return pellucid.train(*inputs, **options)
        return pellucid.train_predictor(*inputs, kind=self.predictor, **options)


def write_conversations(folder: Path, n: int = 30) -> Path:
    """Conversations of one to three questions, each answered by the same words in another order."""
    rng = np.random.default_rng(0)
    words, things = ("red", "blue", "green", "white"), ("cat", "dog", "bird", "fish")
    with open(folder / "chats.jsonl", "w", encoding="utf-8") as file:
        for _ in range(n):
            messages = []
            for _ in range(rng.integers(1, 4)):
                word, thing, number = rng.choice(words), rng.choice(things), rng.integers(10, 100)
                messages.append({"role": "user", "content": f"Say {word} {thing} {number}"})
                messages.append({"role": "assistant", "content": f"{thing} {word} {number}"})
            file.write(json.dumps({"messages": messages}) + "\n")
    return folder / "chats.jsonl"


def write_pairs(folder: Path, n: int = 60, seed: int = 0) -> Path:
    """Words of 1 to 9 letters and the same words backwards."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 10))) for _ in range(n)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return folder / "pairs.tsv"


WRITERS = {"chat": write_conversations, "pairs": write_pairs}
TRANSFORMER = {name: value for name, value in FIELDS.items() if name != "steps"}
#: conversations are longer than the other texts
CHAT_FIELDS = TRANSFORMER | {"n_ctx": 160, "sample_every": 4}
SMALL = {"d_embed": 6, "d_hidden": 12}
KINDS = (
    RunKind("transformer", TRANSFORMER | {"sample_every": 4}),
    RunKind("neural-probabilistic", INTERVALS | OF_TEXT | SMALL | {"order": 4}, predictor="neural-probabilistic"),
    RunKind("recurrent", INTERVALS | OF_TEXT | SMALL | {"n_ctx": 16}, predictor="recurrent"),
    RunKind("mixture", INTERVALS | OF_TEXT | SMALL | {"n_ctx": 16, "mix": "auto"}, predictor="recurrent"),
    RunKind("mixed transformer", TRANSFORMER | {"sample_every": 4, "mix": "auto"}),
)
#: objectives of the transformer, and no kinds of their own
OBJECTIVES = (
    RunKind("chat", CHAT_FIELDS),
    RunKind("masked", TRANSFORMER | {"objective": "masked", "sample_every": 4}),
    RunKind("prefix", TRANSFORMER | {"objective": "prefix", "sample_every": 4}),
    RunKind("pairs", TRANSFORMER | {"objective": "source-target", "n_ctx": 24, "ngrams": (), "sample_every": 4}),
)
#: the other optimizer; every other kind has the default one, Muon
WITH_ADAMW = RunKind("adamw", TRANSFORMER | {"optimizer": "adamw", "sample_every": 4})
