"""Start-up: seconds from a new process to the end of an import, of --help, of a first token.

    python -m benchmarks.start_up

The models that first tokens are written with have 4 layers of width 128 and random weights, each saved in the
package's own format into a temporary folder and read from there, unless --model names one of ours.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.side_by_side import header, interleave, seconds, show, spread

#: targets of the project, seconds
TARGETS = {"pellucid --help": 0.3}
THEIR_TOKEN = (
    "import sys, torch; from transformers import GPT2LMHeadModel as G; "
    "G.from_pretrained(sys.argv[1]).generate(torch.zeros(1, 4, dtype=torch.int64), max_new_tokens=1)"
)


def save_own(folder: Path) -> Path:
    """A model of ours over bytes."""
    from pellucid.architecture import Architecture
    from pellucid.language_model import LanguageModel
    from pellucid.model import Transformer
    from pellucid.model.weights import initialise
    from pellucid.text.tokenizers.tokenizer import learn_tokenizer

    tokenizer = learn_tokenizer("byte", iter(["text"]))
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=256, d_model=128, n_layers=4)
    return LanguageModel(initialise(Transformer(a), 0), tokenizer, {}).save(folder)


def save_theirs(folder: Path) -> Path:
    """A GPT-2 of the same sizes by transformers, without a tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 257, "n_positions": 256, "n_embd": 128, "n_layer": 4, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return folder


def commands(own: str, theirs: str, litgpt: str | None) -> dict[str, list[str]]:
    """What is started."""
    python = sys.executable
    found = {
        "python -c pass": [python, "-c", "pass"],
        "import pellucid": [python, "-c", "import pellucid"],
        "pellucid --help": [python, "-m", "pellucid", "--help"],
        "pellucid, first token": [python, "-m", "pellucid", "generate", own, "text", "--max-tokens", "1"],
        "import torch": [python, "-c", "import torch"],
        "import transformers.GPT2LMHeadModel": [python, "-c", "from transformers import GPT2LMHeadModel"],
        "transformers, first token": [python, "-c", THEIR_TOKEN, theirs],
        "import transformer_lens": [python, "-c", "import transformer_lens"],
    }
    return found | ({"litgpt --help": [litgpt, "-m", "litgpt", "--help"]} if litgpt else {})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a run folder or saved model of ours, for the first token")
    parser.add_argument("--litgpt", help="the Python of an environment that has litgpt")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    def run(command: list[str]):
        return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    with tempfile.TemporaryDirectory() as folder:
        own = options.model or str(save_own(Path(folder) / "own"))
        started = commands(own, str(save_theirs(Path(folder) / "theirs")), options.litgpt)
        found = interleave({name: seconds(run(c)) for name, c in started.items()}, options.rounds)
    print(*header(torch.device("cpu"), ["pellucid", "transformers", "transformer-lens"]), sep="\n")
    rows = [[name, spread(m, 1, 2), f"< {TARGETS[name]}" if name in TARGETS else ""] for name, m in found.items()]
    show("seconds, files warm in memory", ["", "median (quartiles)", "target"], rows)


if __name__ == "__main__":
    main()
