"""One process for each way of writing tokens: GPT-2 small's shape, random weights, greedy.

It is asked with a line `BATCH PROMPT NEW` and answers with the seconds that NEW tokens after PROMPT took, all of
them, and the seconds to the first. Nothing here needs more than its own package, so that peers may live elsewhere.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

#: (tokens [batch, prompt], how many more) -> writes them
Write = Callable[[torch.Tensor, int], Any]
SHAPE = {"n_vocab": 50257, "n_ctx": 2048, "d_model": 768, "n_layers": 12, "n_heads": 12}
DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pellucid(option: str) -> Write:
    """option: auto, loaded, int8, int4; with +eager, ordinary steps where a single text is otherwise read by compiled
    ones."""
    from pellucid.architecture import Architecture, Attention
    from pellucid.generate import Sampling, generate_ids
    from pellucid.generate.choose_reader import GenerationRequest, choose_weights
    from pellucid.model import Transformer
    from pellucid.model.weights import initialise

    weights, _, way = option.partition("+")
    sizes = {name: SHAPE[name] for name in ("n_vocab", "n_ctx", "d_model", "n_layers")}
    a = Architecture(**sizes, attention=Attention(n_heads=SHAPE["n_heads"]))
    network, _ = choose_weights(GenerationRequest(initialise(Transformer(a), 0).eval(), 1000), weights)

    def write(tokens: torch.Tensor, n: int) -> None:
        options = {"max_tokens": n, "sampling": Sampling(temperature=0), "compile": "no" if way == "eager" else "auto"}
        for _ in generate_ids(network, tokens.tolist(), **options):
            pass

    return write


def transformers(option: str) -> Write:
    """option: float32, bfloat16, each with a dynamic cache, eager; with +static, a static one, compiled."""
    from transformers import GPT2Config, GPT2LMHeadModel

    word, _, static = option.partition("+")
    torch.manual_seed(0)
    config = GPT2Config(n_positions=SHAPE["n_ctx"], bos_token_id=0, eos_token_id=None, pad_token_id=0)
    model = GPT2LMHeadModel(config).to(DTYPE[word]).eval()
    given: dict[str, Any] = {"do_sample": False, "use_cache": True}
    if static:
        given["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward)

    def write(tokens: torch.Tensor, n: int) -> None:
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=n, min_new_tokens=n, **given)

    return write


def litgpt(option: str) -> Write:
    """option: float32, bfloat16; with +compiled, the model compiled. Batches are not what its loop writes."""
    from litgpt.config import Config
    from litgpt.generate.base import generate
    from litgpt.model import GPT

    word, _, compiled = option.partition("+")
    torch.manual_seed(0)
    torch.set_default_dtype(DTYPE[word])
    sizes = {"block_size": SHAPE["n_ctx"], "n_layer": 12, "n_head": 12, "n_embd": 768, "padded_vocab_size": 50257}
    model = GPT(Config(name="gpt2", mlp_class_name="GptNeoxMLP", intermediate_size=3072, **sizes)).eval()
    step = torch.compile(model) if compiled else model

    def write(tokens: torch.Tensor, n: int) -> None:
        total = tokens.size(1) + n
        with torch.inference_mode():
            model.max_seq_length = total
            model.set_kv_cache(batch_size=1)
            generate(step, tokens[0], total, temperature=0.0, top_k=1, eos_id=None)

    return write


def nanogpt(option: str) -> Write:
    """option: the folder of a clone; it keeps no keys and values."""
    sys.path.insert(0, option)
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=SHAPE["n_ctx"], vocab_size=SHAPE["n_vocab"], dropout=0.0)).eval()
    return lambda tokens, n: model.generate(tokens, n, top_k=1)


def llama_cpp_python(option: str) -> Write:
    """option: a GGUF file, whose weights are what they are kept in. One sequence, as many threads as PyTorch takes."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    threads = torch.get_num_threads()
    model = Llama(option, n_ctx=SHAPE["n_ctx"], n_threads=threads, n_threads_batch=threads, verbose=False)

    def write(tokens: torch.Tensor, n: int) -> None:
        model.reset()  # or the prompt is found in its cache the second time
        for number, _ in enumerate(model.generate(tokens[0].tolist(), temp=0.0, repeat_penalty=1.0), 1):
            if number == n:
                return

    return write


WRITERS = {"pellucid": pellucid, "transformers": transformers, "litgpt": litgpt, "nanogpt": nanogpt}
WRITERS |= {"llama_cpp_python": llama_cpp_python}


def timed(write: Write, tokens: torch.Tensor, n: int) -> float:
    start = time.perf_counter()
    write(tokens, n)
    return time.perf_counter() - start


def main(kind: str, option: str) -> None:
    """Answer until nothing more is asked."""
    write = WRITERS[kind](option)
    package = {"nanogpt": "torch"}.get(kind, kind)
    print(json.dumps({"version": importlib.metadata.version(package)}), flush=True)
    for line in sys.stdin:
        batch, prompt, new = map(int, line.split())
        tokens = torch.randint(0, 50257, (batch, prompt), generator=torch.Generator().manual_seed(1))
        print(json.dumps({"first": timed(write, tokens, 1), "seconds": timed(write, tokens, new)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
