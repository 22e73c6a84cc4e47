"""A process that encodes: units of text come in, ids go out, until the input ends; started by `Encoders`."""

import sys

from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.encode import encode_unit, pack_error, pack_ids, read_frame, unpack_texts, write_frame


def serve(folder: str, expected: str) -> None:
    """A worker: units from standard input, ids to standard output, until the input ends."""
    tokenizer = load_tokenizer(folder, trust=True)
    if tokenizer.hash != expected:
        raise TokenizerError(f"{folder} holds another tokenizer than was asked for")
    while (content := read_frame(sys.stdin.buffer)) is not None:
        try:
            answer = pack_ids(encode_unit(tokenizer, unpack_texts(content)))
        except TokenizerError as error:
            answer = pack_error(error)
        write_frame(sys.stdout.buffer, answer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
