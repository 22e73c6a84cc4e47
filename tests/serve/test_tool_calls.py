"""Calls of tools: given to the template, read from the answer by the form of the model's family, and forced."""

import json

import openai
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.test_chat import chatty_engine

from drawing import make_network
from pellucid.architecture import Architecture, Attention
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.served import ServedModel
from pellucid.serve.tool_calls import BARE_CALLS, LISTED_CALLS, TAGGED_CALLS, CallForm, CallReader, call_form
from pellucid.text.chat_template import CHATML_MARKERS, ChatTemplate
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

MESSAGES = [{"role": "user", "content": "What is the weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a day.",
        "parameters": {
            "type": "object",
            # a reference is resolved within the tool's own schema
            "$defs": {"day": {"enum": ["today", "tomorrow"]}},
            "properties": {"day": {"$ref": "#/$defs/day"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["day", "n"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
#: how each family's template writes tools, calls and results, in a few words
TURNS = (
    "{%% if tools %%}{{ tools | tojson }} %s{%% endif %%}{%% for message in messages %%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%% if message.tool_calls %%}{%% for call in message.tool_calls %%}%s{%% endfor %%}{%% endif %%}"
    "{%% if message.tool_call_id is defined %%}#{{ message.tool_call_id }}{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
OBJECT = '{"name": {{ call.function.name | tojson }}, "%s": {{ call.function.arguments | tojson }}}'
TEMPLATES = {
    "tagged": TURNS % ("Write <tool_call></tool_call>.", f"<tool_call>\n{OBJECT % 'arguments'}\n</tool_call>"),
    "listed": TURNS % ("[/AVAILABLE_TOOLS]", f"[TOOL_CALLS][{OBJECT % 'arguments'}]"),
    "bare": TURNS
    % (
        'Respond with {"name": function name, "parameters": dictionary of argument name and its value}.',
        OBJECT % "parameters",
    ),
    "other": TURNS % ("Call by name.", "{{ call.function.name }}"),
}
FORMS = {"tagged": TAGGED_CALLS, "listed": LISTED_CALLS, "bare": BARE_CALLS, "other": None}


def tool_engine() -> BatchingEngine:
    """As `chatty_engine`, with room for tools and with a marker of calls that is a special token, as Mistral has it."""
    tokenizer = ByteTokenizer().with_special(*CHATML_MARKERS, "[TOOL_CALLS]")
    a = Architecture(n_vocab=tokenizer.n_vocab, n_ctx=1200, d_model=16, n_layers=2, attention=Attention(n_heads=2))
    return BatchingEngine(make_network(a), tokenizer)


@pytest.fixture(scope="module")
def http():
    served = [ServedModel(name, tool_engine(), ChatTemplate(text)) for name, text in TEMPLATES.items()]
    served.append(ServedModel("plain", chatty_engine(), ChatTemplate()))
    with TestClient(make_app(served, hosts=("testserver",))) as client:
        yield client


@pytest.fixture
def client(http):
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=http)


def ask(client, model: str, **options):
    body = {"model": model, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 120, "seed": 1} | options
    return client.chat.completions.create(**body)


def refusal(http, **options) -> dict:
    body = {"model": "tagged", "messages": MESSAGES, "max_tokens": 20} | options
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def written(form: CallForm, *calls: tuple[str, dict]) -> str:
    """The text of calls in one of the forms."""
    objects = [json.dumps({"name": name, form.arguments: arguments}) for name, arguments in calls]
    if form is LISTED_CALLS:
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    return "; ".join(objects) if form is BARE_CALLS else "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects)


def functions(calls: list[dict]) -> list[tuple[str, dict]]:
    """The names and arguments of calls."""
    assert all(call["type"] == "function" and call["id"].isalnum() and len(call["id"]) == 9 for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def read(form: CallForm, pieces: list[str], most: int | None = None) -> tuple[str, list[dict]]:
    """The text and the calls that a reader finds in pieces."""
    reader = CallReader(form, ByteTokenizer(), most)
    shown = "".join([reader.push(None, piece) for piece in pieces])
    rest, calls = reader.finish()
    return shown + rest, calls


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_text_says_in_which_form_it_has_calls_written(name):
    assert call_form(ChatTemplate(TEMPLATES[name])) is FORMS[name]
    assert call_form(ChatTemplate()) is None
    # tags with something else than JSON inside
    assert call_form(ChatTemplate(TEMPLATES["tagged"].replace("</tool_call>", "<function=x></tool_call>"))) is None


@pytest.mark.parametrize("form", [TAGGED_CALLS, LISTED_CALLS, BARE_CALLS])
@given(data=st.data())
def test_calls_are_read_however_the_text_is_cut(form, data):
    arguments = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2)
    calls = data.draw(st.lists(st.tuples(st.text(min_size=1, max_size=5), arguments), min_size=1, max_size=3))
    before = "" if form is BARE_CALLS else data.draw(st.sampled_from(["", "Let me see. <to", "[TOOL <tool_cal "]))
    text = before + written(form, *calls)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, found = read(form, pieces)
    assert (shown, functions(found)) == (before, calls)
    assert functions(read(form, pieces, most=1)[1]) == calls[:1]


@pytest.mark.parametrize("form", [TAGGED_CALLS, LISTED_CALLS, BARE_CALLS])
@pytest.mark.parametrize(
    "text", ["Good day.", "{", '{"name": 1}', '{"name": "f", "%s": 3}', '{"name": "f"} and', "<tool_c", ""]
)
def test_what_is_no_call_is_text(form, text):
    text = text.replace("%s", form.arguments)
    for marked in (text, form.marker + text) if text else (text,):
        assert read(form, list(marked)) == (marked, [])


@pytest.mark.parametrize("model", ["tagged", "listed", "bare"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_one_of_the_tools_with_valid_arguments(client, model, choice):
    tools = [WEATHER] if choice == "required" else TOOLS
    whole = ask(client, model, tool_choice=choice, tools=tools).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather"
    assert arguments.keys() == {"day", "n"}
    assert arguments["day"] in ("today", "tomorrow")
    chunks = [c.choices[0] for c in ask(client, model, tool_choice=choice, tools=tools, stream=True)]
    assert chunks[-1].finish_reason == "tool_calls"
    (delta,) = [one for chunk in chunks for one in chunk.delta.tool_calls or ()]
    assert (delta.index, delta.function.name) == (0, "weather")
    assert delta.function.arguments == call.function.arguments
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""


def test_text_before_calls_is_streamed_and_calls_come_whole(client):
    """The expression stands for what a trained model writes."""
    text = "One moment. " + written(TAGGED_CALLS, ("clock", {}), ("weather", {"day": "today"}))
    form = {"guided_choice": [text]}
    options = {"max_tokens": 400, "extra_body": form}
    whole = ask(client, "tagged", **options).choices[0]
    assert whole.message.content == "One moment."
    assert [call.function.name for call in whole.message.tool_calls] == ["clock", "weather"]
    chunks = [c.choices[0] for c in ask(client, "tagged", **options, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "One moment. "
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "clock"), (1, "weather")]
    first = ask(client, "tagged", **options, parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in first.message.tool_calls] == ["clock"]
    # without tools that may be called, and in an unknown form, the call is text
    for model, more in (("tagged", {"tool_choice": "none"}), ("other", {})):
        plain = ask(client, model, **options, **more).choices[0]
        assert (plain.message.content, plain.finish_reason) == (text, "stop")
    # a call that max_tokens cuts is text
    cut = ask(client, "tagged", max_tokens=40, extra_body=form).choices[0]
    assert (cut.message.content, cut.message.tool_calls, cut.finish_reason) == (text[:40], None, "length")


def test_tools_that_may_not_be_called_are_not_given_to_the_template(client):
    sizes = {
        choice: ask(client, "tagged", max_tokens=1, tool_choice=choice).usage.prompt_tokens
        for choice in ("auto", "none")
    }
    without = client.chat.completions.create(model="tagged", messages=MESSAGES, max_tokens=1).usage.prompt_tokens
    assert sizes["none"] == without
    assert sizes["auto"] > without + 100


@pytest.mark.parametrize("model", ["tagged", "listed", "bare"])
def test_earlier_calls_and_their_results_are_given_to_the_template(http, model):
    """As OpenAI's clients send them back; templates read the arguments as an object."""
    call = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": '{"n": 1}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "abc123def", "content": [{"type": "text", "text": "Sun."}]},
    ]
    body = {"model": model, "max_tokens": 1, "messages": messages}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    rendered = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call | {"function": {"name": "weather", "arguments": {"n": 1}}}],
        },
        {"role": "tool", "content": "Sun.", "tool_call_id": "abc123def"},
    ]
    ids = ChatTemplate(TEMPLATES[model]).encode(rendered, tool_engine().tokenizer)
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
    wrong = call | {"function": {"name": "weather", "arguments": "[1"}}
    error = refusal(http, model=model, messages=[*MESSAGES, messages[1] | {"tool_calls": [wrong]}])
    assert "arguments of a call of weather is damaged" in error["message"]


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"model": "plain", "tools": TOOLS, "tool_choice": "required"}, "tool_choice", "in a form that is not known"),
        ({"model": "other", "tools": TOOLS, "tool_choice": "required"}, "tool_choice", "in a form that is not known"),
        ({"tool_choice": "required"}, "tool_choice", "not among tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "not among"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "none"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice", "guided_regex each ask"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "expected type function"),
        ({"tools": [{"type": "function"}]}, "tools", "expected type function"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
            "tool_choice",
            "Invalid type",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(http, options, field, sentence):
    error = refusal(http, **options)
    assert error["param"] == field
    assert sentence in error["message"]


def test_a_template_that_writes_no_calls_refuses_messages_that_have_some(http):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    error = refusal(http, model="plain", messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}])
    assert "writes no calls of tools" in error["message"]


def test_a_strict_schema_that_is_not_enforced_is_said_to_be_ignored(http):
    """It is enforced where a call is forced, and not where the model may choose to write one."""
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    body = {"model": "tagged", "messages": MESSAGES, "tools": [strict], "max_tokens": 1}
    headers = [
        http.post("/v1/chat/completions", json=body | {"tool_choice": choice}).headers.get("Pellucid-Ignored")
        for choice in ("auto", "required", "none")
    ]
    assert headers == ["tools.function.strict", None, None]
