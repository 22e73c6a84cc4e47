"""A worker process that encodes units of text until its input ends; `Encoders` starts it."""

import sys

from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.encode import encode_unit, pack_error, pack_ids, read_frame, unpack_texts, write_frame


def serve(folder: str, expected: str) -> None:
    """Read units from standard input and write their ids to standard output, until the input ends."""
    tokenizer = load_tokenizer(folder, trust=True)
    if tokenizer.hash != expected:
        raise TokenizerError(
            f"{folder} holds a tokenizer with another hash than {expected[:12]}: start the command again"
        )
    while (content := read_frame(sys.stdin.buffer)) is not None:
        try:
            answer = pack_ids(encode_unit(tokenizer, unpack_texts(content)))
        except TokenizerError as error:
            answer = pack_error(error)
        write_frame(sys.stdout.buffer, answer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
