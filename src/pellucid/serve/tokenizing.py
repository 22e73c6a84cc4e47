"""POST /tokenize and /detokenize, GET /tokenizer_info: what evaluation programs ask of a remote tokenizer."""

from typing import Any

from pellucid.serve.protocol import Body, Ids
from pellucid.serve.served import ServedModel


class TokenizeBody(Body):
    """The body of POST /tokenize."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = False


class DetokenizeBody(Body):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Ids


def tokenized(model: ServedModel, body: TokenizeBody) -> dict[str, Any]:
    """The ids of a text; where special tokens are asked for, what this model reads before and after one too.

    A text that is the name of a special token and nothing else is that token: clients that know its name from
    `/tokenizer_info` ask for its id here. Within a text the same letters are plain text.
    """
    special = model.tokenizer.special.get(body.prompt)
    tokens = model.tokenizer.encode(body.prompt) if special is None else [special]
    if body.add_special_tokens:
        tokens = model.with_special_ids(tokens)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": model.engine.n_ctx}


def detokenized(model: ServedModel, body: DetokenizeBody) -> dict[str, str]:
    """The text of ids."""
    model.check_ids(body.tokens)
    return {"prompt": model.tokenizer.decode(body.tokens)}


def about_tokenizer(model: ServedModel) -> dict[str, Any]:
    """The special tokens, by the names that clients ask for."""
    tokenizer = model.tokenizer
    separator = tokenizer.token_str(tokenizer.separator)
    return {
        "tokenizer_class": f"Pellucid {tokenizer.kind}",
        "eos_token": separator,
        "bos_token": tokenizer.token_str(tokenizer.opening[0]),
        "pad_token": separator,
        "additional_special_tokens": sorted(tokenizer.special, key=tokenizer.special.__getitem__),
        "chat_template": model.chat_template and model.chat_template.source,
    }
