"""A worker process that encodes units of text until its input ends; `Encoders` starts it."""

import sys
from functools import partial

from pellucid.text.tokenizers.base import Tokenizer, TokenizerError
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.encode import encode_unit, pack_error, pack_ids, unpack_texts
from pellucid.text.workers import answer_all


def open_tokenizer(folder: str, expected: str) -> Tokenizer:
    """The tokenizer in this folder; TokenizerError where its hash is another one."""
    tokenizer = load_tokenizer(folder, trust=True)
    if tokenizer.hash != expected:
        raise TokenizerError(
            f"{folder} holds a tokenizer with another hash than {expected[:12]}: start the command again"
        )
    return tokenizer


def encoded_message(tokenizer: Tokenizer, content: bytes) -> bytes:
    """The answer to one message."""
    try:
        return pack_ids(encode_unit(tokenizer, unpack_texts(content)))
    except TokenizerError as error:
        return pack_error(error)


if __name__ == "__main__":
    answer_all(partial(encoded_message, open_tokenizer(*sys.argv[1:])))
