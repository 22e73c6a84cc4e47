"""How far what is held out of a mixed folder resembles what is trained on, by the rule that holds it out.

    python -m benchmarks.held_out --books FOLDER --udhr UDHR.ZIP [--seeds 5]

The folder is one large book, 90 notes cut from the other books, and the beginnings of five translations of the
declaration of human rights, each in a script of its own: 96 documents, of which the book is 86 % of the bytes. FOLDER
holds NLTK's Gutenberg selection, UDHR.ZIP is NLTK's udhr2. The table says, for each rule and seed, which documents are
held out whole and how many give their ends, and what a unigram and a trigram counted on the training part (BPE of 1,024
ids) need of either part, in bits per byte.
"""

import argparse
import math
import random
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from pellucid.predictors.ngram import NGram
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus
from pellucid.text.split import Rule, split_corpus
from pellucid.text.tokens.store import TokenSequence

BOOK, LANGUAGES = "austen-emma.txt", ("amh", "ell_monotonic", "hin", "jpn", "rus")
NOTES, SHORTEST, LONGEST, RIGHTS = 90, 400, 2500, 900
VOCABULARY = 1024
RULES: tuple[Rule, ...] = ("documents", "stratified", "tail")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--udhr", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), options.books, options.udhr)
        print(f"{'rule':<11} {'seed':>4}  {'held out whole':<24} {'ends':>4}  {'unigram':>15}  {'trigram':>7}")
        print(f"{'':<11} {'':>4}  {'book  notes  languages':<24} {'':>4}  {'train   held':>15}  {'held':>7}")
        for rule in RULES:
            for seed in range(options.seeds):
                print(row(Path(folder), rule, seed), flush=True)


def write_folder(folder: Path, books: Path, udhr: Path) -> None:
    """The mixed folder: always the same."""
    (folder / BOOK).write_bytes((books / BOOK).read_bytes())
    others = [path.read_text(encoding="latin-1") for path in sorted(books.glob("*.txt")) if path.name != BOOK]
    rng = random.Random(1)
    for i in range(NOTES):
        text, length = others[i % len(others)], rng.randint(SHORTEST, LONGEST)
        start = rng.randrange(len(text) - length)
        (folder / f"note-{i:02}.txt").write_text(text[start : start + length], encoding="utf-8")
    with zipfile.ZipFile(udhr) as declarations:
        for name in LANGUAGES:
            text = declarations.read(f"udhr2/{name}.txt").decode()
            (folder / f"rights-{name}.txt").write_text(text[:RIGHTS], encoding="utf-8")


def row(folder: Path, rule: Rule, seed: int) -> str:
    """One line of the table."""
    split = split_corpus(read_corpus(folder), 0.1, seed, rule)
    lengths, cuts = split.corpus.documents.rows["n_characters"], np.array(split.cuts)
    whole = [document.path.name for document, cut in zip(split.corpus.documents, cuts, strict=True) if not cut]
    counts = [sum(name.startswith(start) for name in whole) for start in (BOOK, "note", "rights")]
    tokenizer = learn_tokenizer("bpe", split.texts("train"), VOCABULARY)
    with tempfile.TemporaryDirectory() as cache:
        tokens = prepare_tokens(split, tokenizer, cache, workers=0)
        train, held_out = tokens.part("train"), tokens.part("held_out")
        ids = train.read(0, len(train))
        unigram, trigram = (NGram.train(ids, tokens.n_vocab, order) for order in (1, 3))
        own, other, context = bits(unigram, train), bits(unigram, held_out), bits(trigram, held_out)
    of = "{:>4} {:>6} {:>10}".format(*counts)
    ends = int(((cuts > 0) & (cuts < lengths)).sum())
    return f"{rule:<11} {seed:>4}  {of:<24} {ends:>4}  {own:>7.3f} {other:>7.3f}  {context:>7.3f}"


def bits(ngram: NGram, part: TokenSequence) -> float:
    """Bits per byte that an n-gram needs of a part."""
    nats = -float(ngram.log_probs(part.read(0, len(part))).mean())
    return nats / math.log(2) * len(part) / part.n_bytes


if __name__ == "__main__":
    main()
