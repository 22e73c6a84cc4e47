"""One turn of `benchmarks.reading`, in a process that imports what its side needs and nothing else."""

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable


def ours(files: list[str], tokenizer: str, out: str) -> int:
    """Counted, hashed, split, encoded, and written as tokens of two parts; separators are not counted."""
    from pellucid.text import load_tokenizer, prepare_tokens, read_corpus, split_corpus

    tokens = prepare_tokens(split_corpus(read_corpus(files)), load_tokenizer(tokenizer), out)
    return sum(part["tokens"] - part["documents"] for part in tokens.manifest["parts"].values())


def theirs(files: list[str], tokenizer: str, out: str) -> int:
    """`load_dataset` and `map` with as many processes as there are cores, as its documentation shows it."""
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")

    def encode(rows: dict) -> dict:
        return {"ids": [one.ids for one in engine.encode_batch_fast(rows["text"], add_special_tokens=False)]}

    read = datasets.load_dataset("json", data_files=files, split="train", cache_dir=out)
    made = read.map(encode, batched=True, remove_columns=read.column_names, num_proc=os.cpu_count())
    return sum(len(ids) for batch in made.with_format("arrow").iter(1000) for ids in batch["ids"])


#: what does the work, and what is imported before the clock runs
WORK: dict[str, tuple[Callable[[list[str], str, str], int], list[str]]] = {
    "pellucid": (ours, ["pellucid.text"]),
    "datasets + tokenizers": (theirs, ["datasets", "tokenizers"]),
}


def main(name: str, tokenizer: str, *files: str) -> None:
    """Seconds and ids on standard output."""
    work, modules = WORK[name]
    for module in modules:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        n_ids = work(list(files), tokenizer, out)
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": n_ids}))


if __name__ == "__main__":
    main(*sys.argv[1:])
