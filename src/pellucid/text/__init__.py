"""From files to batches: documents, their split, tokenizers, tokens on disk, and a stateless order."""

from pellucid.text.batches import Batch, Batches, ScoredBatch, windows
from pellucid.text.documents import Corpus, DocumentError, bundled, read_corpus
from pellucid.text.preparation import prepare
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizer import Tokenizer, TokenizerError, load_tokenizer, train_tokenizer
from pellucid.text.tokens import Part, Tokens, TokensError, describe_difference

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "DocumentError",
    "Part",
    "ScoredBatch",
    "Split",
    "Tokenizer",
    "TokenizerError",
    "Tokens",
    "TokensError",
    "bundled",
    "describe_difference",
    "load_tokenizer",
    "prepare",
    "read_corpus",
    "split_corpus",
    "train_tokenizer",
    "windows",
]
