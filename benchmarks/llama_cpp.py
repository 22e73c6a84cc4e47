"""What llama.cpp computes from the GGUF files that Pellucid writes, beside Pellucid in float64.

    python -m benchmarks.llama_cpp PYTHON [--families mixtral qwen3_moe ...] [--tokens 24]

PYTHON is an interpreter that imports llama_cpp (llama-cpp-python). For each family, transformers saves a small random
model; `pellucid.convert` writes it with float32 weights and with q8_0; llama.cpp opens the file, with keys and values
in float32, and reads random tokens. A line gives the largest logit of the model in float64, the largest difference of
llama.cpp's logits from it behind any token and behind the median one, the largest of Pellucid's own float32, and how
often the likeliest token is the same. llama.cpp rounds the inputs of products by q8_0 to 8 bits too, so those logits
differ by more, and a router may choose another expert; they are compared with the model that Pellucid opens from the
same file.
"""

import argparse
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor

import pellucid
from benchmarks.side_by_side import header
from pellucid.hub.folder import LoadWarning
from pellucid.hub.gguf import WEIGHTS
from pellucid.hub.write import write_tokenizer
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

#: run by the other interpreter: the model, the tokens, where the logits go
READ = """
import sys, numpy, llama_cpp
tokens = numpy.load(sys.argv[2]).tolist()
F32 = 0
model = llama_cpp.Llama(
    sys.argv[1], n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, type_k=F32, type_v=F32, verbose=False
)
model.eval(tokens)
numpy.save(sys.argv[3], model.scores[: len(tokens)])
"""

SIZES = {
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
GPT2 = {"vocab_size": 300, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", SIZES),
    "qwen3": ("Qwen3ForCausalLM", SIZES | {"head_dim": 32}),
    "mixtral": ("MixtralForCausalLM", SIZES | {"num_local_experts": 8, "head_dim": 16, "sliding_window": None}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        SIZES | EXPERTS | {"head_dim": 32, "norm_topk_prob": True, "moe_intermediate_size": 32},
    ),
    "olmoe": ("OlmoeForCausalLM", SIZES | EXPERTS | {"num_key_value_heads": 4}),
}


def write_theirs(folder: Path, family: str, text: str) -> Path:
    """A random model of the family as transformers saves it: every tensor drawn wide enough to matter."""
    kind, sizes = FAMILIES[family]
    model_class = getattr(transformers, kind)
    torch.manual_seed(0)
    tokenizer = learn_tokenizer("bpe", [text], 300)
    ends = {"bos_token_id": tokenizer.separator, "eos_token_id": tokenizer.separator}
    model = model_class(model_class.config_class(**sizes, **ends))
    with torch.no_grad():
        for weights in model.parameters():  # gains stay around 1; routers tell the experts apart
            weights.add_(torch.randn_like(weights) * (0.2 if weights.ndim == 1 else 0.15))
    model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, 64)
    return folder


@dataclass(frozen=True)
class Comparison:
    """Logits of llama.cpp beside those of the same model in float64, each of shape (tokens, vocabulary)."""

    theirs: Tensor
    exact: Tensor
    single: Tensor

    def __str__(self) -> str:
        theirs, own = ((x - self.exact).abs().amax(-1) for x in (self.theirs, self.single))
        same = float((self.theirs.argmax(-1) == self.exact.argmax(-1)).double().mean())
        figures = f"{float(theirs.max()):14.1e}{float(theirs.median()):14.1e}{float(own.max()):14.1e}"
        return f"{float(self.exact.abs().max()):13.2f}{figures}{same:12.0%}"


def read_by_llama_cpp(python: str, file: Path, tokens: Tensor, folder: Path) -> Tensor:
    """The logits that llama.cpp computes behind each token."""
    np.save(folder / "tokens.npy", tokens.numpy())
    arguments = [str(path) for path in (file, folder / "tokens.npy", folder / "logits.npy")]
    done = subprocess.run([python, "-c", READ, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"llama.cpp does not open {file.name}: {done.stderr[-2000:]}")
    return torch.from_numpy(np.load(folder / "logits.npy")).double()


def compare(python: str, family: str, weights: str, tokens: Tensor, text: str) -> Comparison:
    """llama.cpp and Pellucid on the same file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs, file = write_theirs(folder / "theirs", family, text), folder / "model.gguf"
        pellucid.convert(theirs, file, weights=weights)
        source = theirs if weights == "float32" else file
        exact, single = (
            pellucid.load(source, device="cpu", dtype=dtype).network(tokens[None])[0].double()
            for dtype in (torch.float64, torch.float32)
        )
        return Comparison(read_by_llama_cpp(python, file, tokens, folder), exact, single)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python", help="an interpreter that imports llama_cpp")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=["float32", "q8_0"])
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    text = (Path(__file__).parents[1] / "tests" / "data" / "shakespeare.txt").read_text(encoding="utf-8")[:20_000]
    tokens = torch.randint(256, (options.tokens,), generator=torch.Generator().manual_seed(1))
    print("\n".join(header(torch.device("cpu"), ["transformers"])))
    transformers.utils.logging.disable_progress_bar()
    print(f"{'':20s}largest logit     llama.cpp   its median   our float32  same token")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)  # q8_0 is read as float32, on purpose
        for family in options.families:
            for weights in options.weights:
                comparison = compare(options.python, family, weights, tokens, text)
                print(f"{family:11s}{weights:9s}{comparison}", flush=True)


if __name__ == "__main__":
    main()
