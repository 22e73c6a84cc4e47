"""What the requests of all routes share: bounds, options of sampling, edits, and OpenAI's shape of errors."""

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from pellucid.edits import Edit, EditError
from pellucid.generate.sampling import Sampling
from pellucid.generate.text import TEMPERATURE
from pellucid.serve.answer_forms import FORM_FIELDS, asked_form

#: samples of one prompt
MAX_SAMPLES = 8
#: alternatives of one token
MAX_ALTERNATIVES = 20
#: prompts of one request
MAX_PROMPTS = 256
#: edits of one request
MAX_EDITS = 64
#: tensors that the edits of one request change, at most: each costs every step an operation
MAX_EDITED_TENSORS = 1024
#: OpenAI's number for a log-probability of minus infinity, which JSON cannot hold
LEAST_LOG_PROB = -9999.0

# a list is refused at its first wrong item, so that a long one does not have a message for each
Ids = Annotated[list[Annotated[int, Field(strict=True, ge=0)]], Field(fail_fast=True)]
SeveralPrompts = Annotated[list[str], Field(fail_fast=True)] | Annotated[list[Ids], Field(fail_fast=True)]
#: a text, ids, or several of either
Prompts = str | Ids | Annotated[SeveralPrompts, Field(max_length=MAX_PROMPTS)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]


#: fields of OpenAI's, vLLM's, llama.cpp's and Open WebUI's requests that change no number of an answer
HARMLESS_NAMES = """
user store metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options
parallel_tool_calls verbosity reasoning reasoning_effort max_tool_calls request_id priority cache_salt cache_prompt
id_slot timings_per_token return_progress session_id chat_id id features variables background_tasks
"""
HARMLESS = frozenset(HARMLESS_NAMES.split())


def wrong_field(name: str, sentence: str) -> PydanticCustomError:
    """The error for one field of a body, which the answer names as `param`."""
    return PydanticCustomError("wrong_field", "{sentence}", {"sentence": sentence, "field": name})


class Body(BaseModel):
    """Unknown fields are refused, with the name of a similar one; those of `harmless` change no number.

    `refused` names the fields that other servers know and that would change the answer, with the values that do not;
    accepting them without doing them would be a lie. `renamed` names fields of other servers and of other routes, with
    what they are called here.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {}
    renamed: ClassVar[dict[str, str]] = {}
    #: None accepts any field
    harmless: ClassVar[frozenset[str] | None] = HARMLESS

    @model_validator(mode="before")
    @classmethod
    def refuse_what_is_not_done(cls, values: Any) -> Any:
        """Refuse options by name where ignoring them would change what the caller gets."""
        if isinstance(values, dict):
            for name, harmless in cls.refused.items():
                value = values.get(name)
                if value is not None and value not in harmless:
                    others = " or ".join(json.dumps(one) for one in harmless)
                    remedy = f"leave it out, or send {others}" if others else "leave it out"
                    raise wrong_field(name, f"{name} is not done here: {remedy}")
            for name, ours in cls.renamed.items():
                if values.get(name) is not None:
                    raise wrong_field(name, f"{name} is called {ours} on this route: send {ours} in its place")
            known = {*cls.model_fields, *cls.refused, *cls.renamed}
            for name, value in values.items():
                if cls.harmless is not None and value is not None and name not in known | cls.harmless:
                    near = difflib.get_close_matches(name[:100], sorted(known), 1)
                    hint = f"did you mean {near[0]}?" if near else "leave it out"
                    raise wrong_field(name[:100], f"there is no field {name!r:.100} here: {hint}")
        return values


class StreamOptions(Body):
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"continuous_usage_stats": (False,)}
    harmless: ClassVar[frozenset[str] | None] = frozenset({"include_obfuscation"})

    include_usage: bool | None = False


class Span(BaseModel):
    """The indices from `from` on and below `to`."""

    model_config = ConfigDict(extra="forbid", serialize_by_alias=True)
    begin: Annotated[StrictInt | None, Field(ge=0, alias="from")] = None
    to: Annotated[StrictInt | None, Field(ge=0)] = None


PositionOrSpan = Annotated[StrictInt, Field(ge=0)] | list[Annotated[StrictInt, Field(ge=0)]] | Span | None


class EditBody(BaseModel):
    """One edit (`pellucid.edits`), as `pellucid.edits.to_json` writes it."""

    model_config = ConfigDict(extra="forbid")
    op: Literal["zero", "mean", "resample", "set", "add", "scale", "project_out", "clamp", "freeze"]
    name: Annotated[str, Field(max_length=200)]
    value: Any = None
    over: Literal["batch", "pos"] | None = None
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    row: PositionOrSpan = None
    head: PositionOrSpan = None
    kv_head: PositionOrSpan = None
    pos: PositionOrSpan = None
    key: PositionOrSpan = None
    neuron: PositionOrSpan = None

    def edit(self, dtype: torch.dtype) -> Edit:
        """The edit, its value as a tensor, so that no step converts it again. Raises EditError."""
        fields = self.model_dump(exclude_unset=True)
        for field in ("factor", "low", "high"):
            if math.isnan(fields.get(field) or 0.0):
                raise EditError(f"{field} of the edit of {self.name} is NaN: give a number")
        try:
            edit = Edit.from_dict(fields)
            if edit.value is None:
                return edit
            value = torch.tensor(edit.value, dtype=dtype)
            has_nan = bool(value.isnan().any())
        except EditError:
            raise
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise EditError(f"the value for {self.name} is no array of numbers: {error}") from None
        if has_nan:
            raise EditError(f"the value for {self.name} holds NaN: give numbers")
        return replace(edit, value=value)


class SamplingBody(Body):
    """How tokens are chosen, when a text ends, and what is edited on the way."""

    #: what vLLM's and llama.cpp's servers know besides, with the values that change nothing
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1, 1.0),
        "min_tokens": (0,),
        "ignore_eos": (False,),
        "stop_token_ids": ([],),
        "typical_p": (1, 1.0),
        "mirostat": (0,),
        "prompt_logprobs": (),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "logits_processors": ([],),
        "add_special_tokens": (True,),
        "repeat_penalty": (1, 1.0),
        "xtc_probability": (0, 0.0),
        "dry_multiplier": (0, 0.0),
        "dynatemp_range": (0, 0.0),
        "include_stop_str_in_output": (False,),
        "truncate_prompt_tokens": (),
        "top_n_sigma": (-1, 0),
        "samplers": ([],),
        "min_keep": (0, 1),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "include_reasoning": (True,),
        "return_tokens_as_token_ids": (False,),
        "no_repeat_ngram_size": (0,),
        "penalty_alpha": (0,),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
    }
    #: llama.cpp's server and OpenAI's other routes
    renamed: ClassVar[dict[str, str]] = {"n_predict": "max_tokens", "max_output_tokens": "max_tokens"}

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = TEMPERATURE
    top_p: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = 1.0
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    edits: Annotated[list[EditBody], Field(max_length=MAX_EDITS)] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def check_together(self) -> "SamplingBody":
        for token, bias in (self.logit_bias or {}).items():
            if not (token.isascii() and token.isdecimal() and len(token) < 10) or not -100 <= bias <= 100:
                raise ValueError(
                    f"logit_bias of {token!r:.40} is {bias}: expected a token id and a number from -100 to 100"
                )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options applies to stream = true: leave it out, or stream")
        _ = self.form
        return self

    @property
    def form(self) -> tuple[str, Any] | None:
        """The field that says what form the answer has, and its value; ValueError for several."""
        return asked_form({name: getattr(self, name) for name in FORM_FIELDS})

    @property
    def limit_names(self) -> dict[str, str]:
        """What `prompt` and `max_tokens` are called on this route, for those that call them otherwise."""
        return {}

    @property
    def include_usage(self) -> bool:
        """Whether the last chunk of a stream tells the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def sampling(self) -> Sampling:
        """How tokens are chosen; GenerationError where the numbers do not go together."""
        return Sampling(
            temperature=TEMPERATURE if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=tuple(sorted((int(token), bias) for token, bias in (self.logit_bias or {}).items())),
        )


class ErrorDetails(BaseModel):
    """What was wrong: a sentence, its kind, the field of the request, and a short word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's shape of an error, as the list of routes describes it."""

    error: ErrorDetails


def error_body(message: str, kind: str, code: str | None = None, parameter: str | None = None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


FinishReason = Literal["stop", "length", "tool_calls"]


def finish_reason(reason: str | None, calls_tools: bool = False) -> FinishReason | None:
    """OpenAI's word for why a text ended: stop for a stop string or the end of text, length for max_tokens, and
    tool_calls where it is complete and calls tools.
    """
    if reason is None or reason == "length":
        return reason
    return "tool_calls" if calls_tools else "stop"


def json_log_prob(log_prob: float) -> float:
    """A log-probability as JSON can hold it."""
    return max(log_prob, LEAST_LOG_PROB)


def as_prompts(prompt: Any) -> Sequence[Any]:
    """Several prompts as they are, and one as a list of one."""
    many = not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int)
    return prompt if many else [prompt]
