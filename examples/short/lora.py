"""Adapt a Hugging Face model to your text with low-rank adapters, and measure what it gained.

    python examples/short/lora.py gpt2 my_texts/ chapter.txt

`chapter.txt` is a text that is not trained on. The adapters are written as peft reads them, to RUN/adapter.
"""

import sys
from pathlib import Path

import pellucid


def main(name: str, text: str, unseen: str, steps: int = 500, rank: int = 8, out: str = "runs/lora") -> list[float]:
    """Bits per byte of the unseen text, before and after."""
    run = pellucid.train(text, from_model=name, fields={"adapt.rank": rank}, steps=steps, out=out, show=True)
    chapter = Path(unseen)
    before, after = (pellucid.load(model).score(chapter).bits_per_byte for model in (name, run.path))
    print(f"{before:.4f} bits per byte before, {after:.4f} after; adapters in {run.path / 'adapter'}")
    return [before, after]


if __name__ == "__main__":
    main(*sys.argv[1:4])
