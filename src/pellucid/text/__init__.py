"""From files to batches: reading documents, splitting them, tokenizers, token files on disk, and the order of
batches.
"""

from pellucid.text.read.documents import Corpus, DocumentError, bundled, read_corpus
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizers.tokenizer import Tokenizer, TokenizerError, learn_tokenizer, load_tokenizer
from pellucid.text.tokens.batches import Batch, Batches, ScoredBatch, windows
from pellucid.text.tokens.prepare import prepare_tokens
from pellucid.text.tokens.store import Tokens, TokenSequence, TokensError, describe_difference

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "DocumentError",
    "ScoredBatch",
    "Split",
    "TokenSequence",
    "Tokenizer",
    "TokenizerError",
    "Tokens",
    "TokensError",
    "bundled",
    "describe_difference",
    "learn_tokenizer",
    "load_tokenizer",
    "prepare_tokens",
    "read_corpus",
    "split_corpus",
    "windows",
]
