"""Tokenisation: MB/s of the same byte-level BPE in our tokenizer, tokenizers and tiktoken.

    python -m benchmarks.tokenisation FILE --gpt2 FOLDER

FOLDER holds GPT-2's encoder.json and vocab.bpe, for tiktoken and tokenizers; ours is trained on the file itself,
with a vocabulary of the size given, and so is one of tokenizers' own by the same rules, from lines: seconds of both.
"""

import argparse
from pathlib import Path

import torch

from benchmarks.side_by_side import Measured, header, interleave, seconds, show, spread


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpt2", type=Path)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from pellucid.text.tokenizers.tokenizer import learn_tokenizer

    text = options.file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    learned = interleave(
        {
            "pellucid": seconds(lambda: learn_tokenizer("bpe", [text], options.vocabulary)),
            "tokenizers": seconds(lambda: learn_with_tokenizers(lines, options.vocabulary)),
        },
        options.rounds,
    )
    ours = learn_tokenizer("bpe", iter([text]), options.vocabulary)
    ids = ours.encode(text)
    turns = {
        "pellucid, encode": seconds(lambda: ours.encode(text)),
        "pellucid, decode": seconds(lambda: ours.decode(ids)),
    }
    if options.gpt2:
        turns |= gpt2(options.gpt2, text)
    found = interleave(turns, options.rounds)
    size = len(text.encode()) / 1e6
    print(*header(torch.device("cpu"), ["pellucid", "tokenizers", "tiktoken"]), sep="\n")
    rows = [[m.name, spread(m, 1, 2), spread(learned["pellucid"].ratio_to(m), 1, 2)] for m in learned.values()]
    show(f"seconds to learn {ours.n_vocab:,} ids", ["", "median (quartiles)", "ratio to pellucid"], rows)
    rates = [Measured(name, [size / t for t in m.values]) for name, m in found.items()]
    show(
        f"MB/s on {options.file.name}, {size:.1f} MB", ["", "median (quartiles)"], [[m.name, spread(m)] for m in rates]
    )


def learn_with_tokenizers(texts: list[str], n_vocab: int) -> None:
    """The training of tokenizers alone, by the rules that ours has: GPT-2's pattern, and pairs that occur twice."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab - 1, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)


def gpt2(folder: Path, text: str):
    """GPT-2's vocabulary in both peers."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tokenizers import ByteLevelBPETokenizer

    files = str(folder / "vocab.bpe"), str(folder / "encoder.json")
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    theirs = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=data_gym_to_mergeable_bpe_ranks(*files), special_tokens={}
    )
    fast = ByteLevelBPETokenizer.from_file(files[1], files[0])
    lines = text.splitlines(keepends=True)
    return {
        "tiktoken, GPT-2": seconds(lambda: theirs.encode_ordinary(text)),
        "tokenizers, GPT-2, one text": seconds(lambda: fast.encode(text)),
        "tokenizers, GPT-2, a batch of lines": seconds(lambda: fast.encode_batch(lines)),
    }


if __name__ == "__main__":
    main()
