"""What clients may send: OpenAI's request bodies with the bounds of this server. Numbers are finite and in range."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: samples of one prompt, alternatives of one token, and prompts of one request, at most
MAX_SAMPLES, MAX_ALTERNATIVES, MAX_PROMPTS = 8, 20, 256

Ids = list[Annotated[int, Field(strict=True, ge=0)]]


class Body(BaseModel):
    """Unknown fields are accepted: clients send `user`, `store`, `metadata` and others that change no number."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False


class CompletionBody(Body):
    """The body of POST /v1/completions. Prompts are texts or token ids, one or several."""

    model: str | None = None
    prompt: str | Ids | Annotated[list[str] | list[Ids], Field(max_length=MAX_PROMPTS)] = ""
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    temperature: Annotated[float, Field(ge=0, le=100)] | None = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1)] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = 1
    best_of: int | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    echo: bool | None = False
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = 1.0
    logit_bias: dict[str, float] | None = None
    suffix: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def refuse_what_is_not_done(self) -> "CompletionBody":
        """Refuse options by name where ignoring them would change what the caller gets."""
        if self.suffix:
            raise ValueError("suffix: this model writes on from a prompt and cannot fill the text before a suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of = {self.best_of} with n = {self.n}: expected the same number; ask for more by n")
        for token, bias in (self.logit_bias or {}).items():
            if not token.isdecimal() or not -100 <= bias <= 100:
                raise ValueError(
                    f"logit_bias of {token!r} is {bias}: expected a token id and a number from -100 to 100"
                )
        if self.stop is not None and "" in ([self.stop] if isinstance(self.stop, str) else self.stop):
            raise ValueError("stop: expected strings of at least one character")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options applies to stream = true: leave it out, or stream")
        return self


class TokenizeBody(Body):
    """The body of POST /tokenize."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = False


class DetokenizeBody(Body):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Ids


def error_body(message: str, kind: str, code: str | None = None, parameter: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


FinishReason = Literal["stop", "length"]


def finish_reason(reason: str | None) -> FinishReason | None:
    """OpenAI's word for why a text ended: stop for a stop string or the end of text, length for max_tokens."""
    if reason is None:
        return None
    return "length" if reason == "length" else "stop"
