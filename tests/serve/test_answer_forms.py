"""Answers in a form that a request asks for: JSON Schemas, expressions, choices and grammars."""

import json
import queue
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import numpy as np
import openai
import pydantic
import pytest
import torch
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.conftest import small_network
from tests.serve.test_chat import chatty_engine
from tests.serve.test_serving_kinds import encoder_decoder

from pellucid.generate.grammars import GrammarCompiler, GrammarError, choice_grammar, json_grammar, regex_grammar
from pellucid.generate.sampling import Sampling
from pellucid.predictors.mixture import Counted
from pellucid.predictors.ngram import NGram
from pellucid.predictors.predictor import Predictor
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.generation import Generation
from pellucid.serve.served import ServedModel
from pellucid.serve.stepwise import EncoderDecoderEngine, PredictorEngine
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer

MESSAGES = [{"role": "user", "content": "Which one?"}]
#: nothing but an end of the text may follow one of these, and one is the beginning of another
CHOICES = ["yes", "no", "nöt", "noon", "yes, but"]
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bo"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Person(pydantic.BaseModel):
    """PERSON, as clients of Python write it."""

    name: Literal["Ann", "Bo"]
    age: Annotated[int, pydantic.Field(ge=0, le=120)]


def letters_engine() -> BatchingEngine:
    """A model whose vocabulary is a few letters."""
    tokenizer = CharTokenizer.train(["abc {}"])
    network = small_network()
    return BatchingEngine(network, tokenizer)


@pytest.fixture(scope="module")
def http():
    network, tokenizer = small_network(), ByteTokenizer()
    counted = Predictor(Counted(NGram.train(np.array(tokenizer.encode("to be " * 9)), 257, 3)), tokenizer, "ngram", {})
    served = [
        ServedModel("small", BatchingEngine(network, tokenizer, chunk=8)),
        ServedModel("chatty", chatty_engine(), ChatTemplate()),
        ServedModel("counted", PredictorEngine(counted)),
        ServedModel("translator", EncoderDecoderEngine(encoder_decoder(), tokenizer)),
        ServedModel("letters", letters_engine()),
    ]
    with TestClient(make_app(served, hosts=("testserver",))) as client:
        yield client


@pytest.fixture
def client(http):
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=http)


def completion(http, **body):
    answer = http.post("/v1/completions", json={"model": "small", "prompt": "To", "seed": 1, "max_tokens": 200} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(http, path="completions", **body):
    answer = http.post(f"/v1/{path}", json={"model": "small", "seed": 1, "max_tokens": 60} | body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# The grammar -----------------------------------------------------------------------------------------------------


def may_follow(tokenizer, text: bytes) -> set[int]:
    """The tokens with which a text is still the beginning of one of CHOICES, and the ends behind a whole one."""
    choices = [choice.encode() for choice in CHOICES]
    spelled = {i: tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)}
    going_on = {i for i, data in spelled.items() if data and any(one.startswith(text + data) for one in choices)}
    return going_on | ({*tokenizer.ends} if text in choices else set())


def test_a_token_may_follow_if_a_text_of_the_grammar_begins_so():
    """Every division into tokens is allowed, not only the tokenizer's own, and nothing besides."""
    tokenizer = BPETokenizer.train([" ".join(CHOICES) * 20], 290)
    grammar = GrammarCompiler(tokenizer, tokenizer.ends).compile(choice_grammar(CHOICES))
    seen, waiting = set(), [((), grammar)]
    while waiting:
        ids, _ = waiting.pop()
        state = grammar.start()
        for token in ids:
            state.push(token)
        text = tokenizer.decode_bytes(ids)
        assert {*state.allowed().nonzero()[:, 0].tolist()} == may_follow(tokenizer, text)
        seen.add(text)
        waiting += [
            ((*ids, token), grammar)
            for token in may_follow(tokenizer, text) - {*tokenizer.ends}
            if text + tokenizer.token_bytes(token) not in seen
        ]
    assert {choice.encode() for choice in CHOICES} <= seen
    with pytest.raises(GrammarError, match="cannot go on"):
        grammar.start().push(tokenizer.encode("x")[0])


def test_a_grammar_that_takes_too_long_is_refused_and_delays_nobody(http):
    """A schema of thirty bytes takes minutes, and the library knows no limit for it."""
    slow = {"guided_json": {"type": "integer", "multipleOf": 999983}}
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        error = pool.submit(refusal, http, **slow)
        while not error.done():
            completion(http, max_tokens=4)
            answered = time.monotonic() - began
    assert "takes more than 2 s" in error.result()["message"]
    assert error.result()["param"] == "guided_json"
    assert answered > 1  # others were answered until then


@pytest.mark.parametrize("before", ["", "<|endoftext|> ", "<[256]> "])
def test_no_special_token_hides_what_a_grammar_costs(before):
    """The process that tries a grammar knows the tokens that it names."""
    tokenizer = ByteTokenizer()
    with pytest.raises(GrammarError, match="takes more than 2 s"):
        GrammarCompiler(tokenizer, tokenizer.ends).compile(f'start: {before}%json {{"multipleOf": 999983}}')


def test_a_grammar_that_takes_too_long_to_read_is_refused(http):
    """What converts llama.cpp's notation takes minutes for empty lines, and would keep all threads waiting."""
    error = refusal(http, guided_grammar='root ::= "a"' + "\n" * 60_000)
    assert "takes more than 2 s" in error["message"]


def test_the_same_grammar_is_compiled_once(http):
    tokenizer = ByteTokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.ends)
    assert compiler.compile(json_grammar(PERSON)) is compiler.compile(json_grammar(dict(PERSON)))


# The distribution ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
def test_log_probabilities_are_those_of_the_allowed_tokens_alone(http, temperature):
    """The softmax over the tokens that may follow, of the logits that the network has for the same text."""
    network, tokenizer = small_network(), ByteTokenizer()
    served = completion(http, guided_regex="[a-f]{2}[é-ü]{3}x[0-9]", logprobs=20, temperature=temperature, seed=4)
    text, lists = served["choices"][0]["text"], served["choices"][0]["logprobs"]
    assert re.fullmatch("[a-f]{2}[é-ü]{3}x[0-9]", text)
    ids = [*tokenizer.encode("To"), *text.encode()]
    assert served["usage"]["completion_tokens"] == len(ids) - 2
    state = GrammarCompiler(tokenizer, tokenizer.ends).compile(regex_grammar("[a-f]{2}[é-ü]{3}x[0-9]")).start()
    for n in range(2, len(ids)):
        allowed = state.allowed()
        logits = network(torch.tensor([ids[max(0, n - 64) : n]]))[0, -1].detach()
        expected = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)
        assert lists["token_logprobs"][n - 2] == pytest.approx(expected[ids[n]].item(), abs=1e-9)
        # tokens of probability 0 are not named
        assert len(lists["top_logprobs"][n - 2]) <= min(20, int(allowed.sum())) + 1
        state.push(ids[n])


def finished(engine: BatchingEngine, *generations: Generation) -> list[list]:
    """The events of each sequence, of which the first is submitted first."""
    engine.submit(list(generations))
    events, ended = [[] for _ in generations], 0
    while ended < len(generations):
        number, event = EVENTS.get(timeout=60)
        events[number].append((event.token, event.score))
        ended += event.finish_reason is not None
    return events


EVENTS: queue.Queue = queue.Queue()


def test_a_row_beside_one_with_a_grammar_has_unchanged_numbers():
    """Bit for bit, with the same number of rows."""
    tokenizer = ByteTokenizer()
    grammar = GrammarCompiler(tokenizer, tokenizer.ends).compile(regex_grammar("[0-9]{12}"))
    engine = BatchingEngine(small_network(), tokenizer, prefixes=0)
    engine.start()

    def row(number: int, text: str, state=None) -> Generation:
        return Generation(
            prompt_ids=tokenizer.encode(text),
            sampling=Sampling(top_p=0.9),
            max_tokens=12,
            seed=number,
            emit=lambda _, event: EVENTS.put((number, event)),
            n_top=3,
            grammar=state,
        )

    plain = finished(engine, row(0, "To be"), row(1, "or not"))
    beside = finished(engine, row(0, "To be"), row(1, "or not", grammar.start()))
    engine.drain(10)
    assert beside[0] == plain[0]
    assert bytes(token for token, _ in beside[1]).isdigit()
    assert not bytes(token % 256 for token, _ in plain[1]).isdigit()


def test_the_same_seed_gives_the_same_text_and_samples_differ(http):
    body = {"guided_regex": "[a-z]{20}", "n": 4, "temperature": 9}
    first, again = (completion(http, **body)["choices"] for _ in range(2))
    assert first == again
    assert len({choice["text"] for choice in first}) > 1
    best = completion(http, **body | {"n": 1, "best_of": 4}, logprobs=0)["choices"][0]
    assert best["text"] in {choice["text"] for choice in first}


# The texts -------------------------------------------------------------------------------------------------------


def schemas() -> st.SearchStrategy:
    """Small JSON Schemas, of which every text is short."""
    bounds = st.tuples(st.integers(-999, 999), st.integers(0, 999))
    leaves = st.one_of(
        st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"const": {"a": [1, None]}}]),
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        st.integers(0, 4).map(lambda n: {"type": "string", "maxLength": n}),
        st.lists(st.text(max_size=4) | st.integers(), min_size=1, max_size=4).map(lambda one: {"enum": one}),
    )

    def larger(inner: st.SearchStrategy) -> st.SearchStrategy:
        lists = st.tuples(inner, st.integers(0, 2), st.integers(0, 1)).map(
            lambda one: {"type": "array", "items": one[0], "minItems": one[1], "maxItems": one[1] + one[2]}
        )
        objects = st.dictionaries(st.text(max_size=3), st.tuples(inner, st.booleans()), max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": {name: schema for name, (schema, _) in fields.items()},
                "required": [name for name, (_, required) in fields.items() if required],
                "additionalProperties": False,
            }
        )
        return lists | objects | st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})

    return st.recursive(leaves, larger, max_leaves=4)


def is_valid(value, schema: dict) -> bool:
    """Whether a value is valid under one of `schemas`."""
    if "anyOf" in schema:
        return any(is_valid(value, option) for option in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")]) and not isinstance(value, bool)
    if schema["type"] == "array":
        fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(is_valid(one, schema["items"]) for one in value)
    if schema["type"] == "object":
        fits = isinstance(value, dict) and {*schema["required"]} <= value.keys() <= schema["properties"].keys()
        return fits and all(is_valid(one, schema["properties"][name]) for name, one in value.items())
    if schema["type"] == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if schema["type"] == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    return value is None if schema["type"] == "null" else isinstance(value, bool)


@given(schema=schemas(), seed=st.integers(0, 2**16))
def test_every_finished_answer_is_valid_under_its_schema(http, schema, seed):
    form = {"type": "json_schema", "json_schema": {"name": "drawn", "strict": True, "schema": schema}}
    body = {"model": "chatty", "messages": MESSAGES, "seed": seed, "max_tokens": 800, "response_format": form}
    answer = http.post("/v1/chat/completions", json=body | {"temperature": 1.5})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert is_valid(json.loads(choice["message"]["content"]), schema)


@pytest.mark.parametrize(
    ("form", "matches"),
    [
        ({"guided_choice": CHOICES}, "|".join(CHOICES)),
        ({"guided_regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"guided_json": PERSON}, r'\{"name": "(Ann|Bo)", "age": \d+\}'),
        ({"guided_json": json.dumps(PERSON)}, r'\{"name": "(Ann|Bo)", "age": \d+\}'),
        ({"guided_grammar": 'root ::= "a" ("b" | "c")'}, "ab|ac"),
        ({"guided_grammar": 'start: "a" /[bc]/'}, "ab|ac"),
        ({"grammar": 'root ::= "a" ("b" | "c")'}, "ab|ac"),
        ({"json_schema": {"type": "boolean"}, "grammar": ""}, "true|false"),
        ({"structured_outputs": {"choice": CHOICES, "regex": None}}, "|".join(CHOICES)),
        ({"structured_outputs": {"json": {"enum": ["a", 1]}, "disable_any_whitespace": False}}, '"a"|1'),
        ({"structured_outputs": {"regex": "x{2}"}}, "xx"),
        ({"structured_outputs": {"grammar": 'root ::= "z"'}}, "z"),
        ({"response_format": {"type": "json_object", "schema": {"const": 1}}}, "1"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 2}}}}, "2"),
    ],
)
@pytest.mark.parametrize("model", ["small", "counted", "translator"])
def test_each_way_to_ask_for_a_form(http, model, form, matches):
    choice = completion(http, model=model, **form)["choices"][0]
    assert re.fullmatch(matches, choice["text"])
    assert choice["finish_reason"] == "stop"


def test_any_object_of_json(http):
    choice = completion(http, response_format={"type": "json_object"}, logit_bias={str(ord("}")): 12})["choices"][0]
    assert isinstance(json.loads(choice["text"]), dict)


def test_an_answer_that_max_tokens_cuts_says_so(http):
    """A text that is whole at that token is no cut one."""
    choices = [completion(http, guided_regex="[0-9]{6}", max_tokens=n)["choices"][0] for n in (5, 6)]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]
    assert choices[1]["text"].startswith(choices[0]["text"])


def test_openais_client_parses_what_it_asks_for(client):
    """Its `parse` sends the schema of a class, and makes an object of the answer."""
    body = {"model": "chatty", "max_tokens": 100, "seed": 3}
    parsed = client.chat.completions.parse(messages=MESSAGES, response_format=Person, **body)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    schema = openai.lib._parsing.type_to_response_format_param(Person)
    chunks = client.chat.completions.create(messages=MESSAGES, response_format=schema, stream=True, **body)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == parsed.choices[0].message.content
    response = client.responses.parse(
        model="chatty", input=MESSAGES, text_format=Person, max_output_tokens=100, extra_body={"seed": 3}
    )
    assert response.output_text == streamed
    assert response.output_parsed == parsed.choices[0].message.parsed
    assert response.text.format.name == "Person"
    choice = client.completions.create(model="small", prompt="", extra_body={"guided_choice": ["a", "b"]}).choices[0]
    assert choice.text in ("a", "b")


@pytest.mark.parametrize(
    ("form", "field", "sentence"),
    [
        ({"guided_json": {"type": "x"}}, "guided_json", "Invalid type: x"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"guided_json": {"$ref": "https://example.org/x.json"}}, "guided_json", "example.org"),
        ({"guided_json": "{"}, "guided_json", "is not JSON"),
        ({"guided_json": "1"}, "guided_json", "expected an object"),
        ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json", "at most 65,536"),
        ({"guided_json": {"allOf": [{"type": "null"}, {"type": "string"}]}}, "guided_json", "Unsatisfiable"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_choice": []}, "guided_choice", "at least 1 item"),
        ({"guided_grammar": 'start: "a" NOPE'}, "guided_grammar", "NOPE"),
        ({"guided_grammar": "start: start"}, "guided_grammar", "no token of this model's vocabulary"),
        ({"guided_grammar": "root ::= " + '("a" | "b")* ' * 2000}, "guided_grammar", "too complex"),
        ({"guided_grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "guided_grammar", "cannot be read"),
        ({"structured_outputs": {}}, "structured_outputs", "expected one of"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "expected one of"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs", "choice has a value of the wrong type"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs", "whitespace_pattern"),
        ({"response_format": {"type": "x"}}, "response_format", "expected type text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "with a schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, None, "guided_regex and guided_choice each ask"),
        ({"model": "letters", "guided_json": {"type": "string"}}, "guided_json", "no token of this model's vocabulary"),
        ({"model": "letters", "guided_regex": "abd"}, None, "no token of this model's vocabulary"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(http, form, field, sentence):
    error = refusal(http, **form)
    assert sentence in error["message"]
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


def test_without_the_package_a_form_is_refused_with_how_to_get_it(http, monkeypatch):
    monkeypatch.setattr("pellucid.generate.grammars.importlib.import_module", lambda name: __import__("nosuch"))
    assert "pip install 'pellucid[structured]'" in refusal(http, guided_regex="never sent before")["message"]
