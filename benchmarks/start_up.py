"""Start-up: seconds from a new process to the end of an import, of --help, of a first token.

python -m benchmarks.start_up --model runs/NAME
"""

import argparse
import subprocess
import sys

import torch

from benchmarks.side_by_side import header, interleave, seconds, show, spread

FIRST_GPT2 = (
    "import torch; from transformers import GPT2Config, GPT2LMHeadModel as G; "
    "G(GPT2Config(n_layer=2, n_embd=64, n_head=2)).generate(torch.zeros(1, 4, dtype=torch.int64), max_new_tokens=1)"
)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a run folder or saved model, for the first token")
    parser.add_argument("--litgpt", help="the Python of an environment that has litgpt")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    python = sys.executable
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "import pellucid": [python, "-c", "import pellucid"],
        "pellucid --help": [python, "-m", "pellucid", "--help"],
        "import torch": [python, "-c", "import torch"],
        "import transformers.GPT2LMHeadModel": [python, "-c", "from transformers import GPT2LMHeadModel"],
        "transformers, first token": [python, "-c", FIRST_GPT2],
        "import transformer_lens": [python, "-c", "import transformer_lens"],
    }
    if options.model:
        commands["pellucid, first token"] = [python, "-m", "pellucid", "generate", options.model, "--max-tokens", "1"]
    if options.litgpt:
        commands["litgpt --help"] = [options.litgpt, "-m", "litgpt", "--help"]

    def run(command: list[str]):
        return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    found = interleave({name: seconds(run(c)) for name, c in commands.items()}, options.rounds)
    print(*header(torch.device("cpu"), ["pellucid", "transformers", "transformer-lens"]), sep="\n")
    show("seconds, warm", ["", "median (quartiles)"], [[name, spread(m, 1, 2)] for name, m in found.items()])


if __name__ == "__main__":
    main()
