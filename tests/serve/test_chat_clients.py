"""Conversations over a socket: OpenAI's package, streamed and asynchronous, and what Open WebUI and LibreChat send.

These two are no packages, so their paths, headers and fields are replayed as `backend/open_webui/routers/openai.py` and
`packages/api/src/endpoints/{models,openai/llm}.ts` of their repositories make them.
"""

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import httpx
import openai
import pytest
from tests.serve.conftest import serving
from tests.serve.test_chat import chatty_engine

from pellucid.text.chat_template import ChatTemplate

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Good morning, é!"}]
OPTIONS = {"model": "small", "max_tokens": 8, "seed": 3}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(chatty_engine(), template=ChatTemplate()) as running:
        yield f"{running.url}/v1"


@pytest.fixture(scope="module")
def answered(url) -> str:
    """What the model answers to the messages."""
    body = OPTIONS | {"messages": MESSAGES}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]["content"]
    assert answer
    return answer


def choices_of(stream: str) -> list[dict]:
    """The choices of a stream's events in their order; the stream ends as OpenAI's do."""
    *lines, last = [line.removeprefix("data: ") for line in stream.split("\n") if line]
    assert last == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def text_of(choices: list[dict]) -> str:
    """The pieces joined; only the last choice says why the text ended."""
    *before, last = [choice["finish_reason"] for choice in choices]
    assert last is not None
    assert not any(before)
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_the_package_openai(url, answered):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(messages=MESSAGES, **OPTIONS)
        assert whole.choices[0].message.content == answered
        chunks = client.chat.completions.create(messages=MESSAGES, stream=True, **OPTIONS)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answered

    async def together() -> list[str]:
        """Eight requests at once, every second one streamed."""
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def one(stream: bool) -> str:
                if stream:
                    chunks = await client.chat.completions.create(messages=MESSAGES, stream=True, **OPTIONS)
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
                answer = await client.chat.completions.create(messages=MESSAGES, **OPTIONS)
                return answer.choices[0].message.content

            return await asyncio.gather(*(one(bool(i % 2)) for i in range(8)))

    assert asyncio.run(together()) == [answered] * 8


def test_what_open_webui_sends(url, answered):
    """It lists the models and streams answers; where no key is set for a server, it sends an empty one."""
    headers = {"Authorization": "Bearer ", "Content-Type": "application/json"}
    headers |= {"X-OpenWebUI-User-Name": "A B", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Role": "admin"}
    parts = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": MESSAGES[1]["content"]}]}]
    more = {"stream_options": {"include_usage": True}, "stop": ["no such text"], "top_p": 1.0, "temperature": 1.0}
    bodies = [OPTIONS | {"stream": True, "messages": MESSAGES}, OPTIONS | more | {"stream": True, "messages": parts}]

    async def replay() -> tuple[dict, list[str]]:
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{url}/models") as answer:
                models, streams = await answer.json(), []
            for body in bodies:
                async with session.post(f"{url}/chat/completions", data=json.dumps(body)) as answer:
                    # by this it tells a stream from an error
                    assert "text/event-stream" in answer.headers["Content-Type"]
                    streams.append(await answer.text())
            return models, streams

    models, streams = asyncio.run(replay())
    assert [model["id"] for model in models["data"]] == ["small"]
    assert [text_of(choices_of(stream)) for stream in streams] == [answered] * 2


def test_what_librechat_sends(url, answered):
    """It lists the models with its user's number, and streams through OpenAI's package for Node."""
    headers = {"User-Agent": "OpenAI/JS 5.12.2", "X-Stainless-Lang": "js", "X-Stainless-Runtime": "node"}
    headers |= {"X-Stainless-Package-Version": "5.12.2", "X-Stainless-Retry-Count": "0", "Accept": "application/json"}
    body = OPTIONS | {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "n": 1}
    body |= {"user": "65f0", "stream": True, "stream_options": {"include_usage": True}, "messages": MESSAGES}
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer sk-none"}, timeout=60) as client:
        listed = client.get("/models", params={"user": "65f0"}).json()
        assert [model["id"] for model in listed["data"]] == ["small"]
        stream = client.post("/chat/completions", json=body, headers=headers).text
    assert text_of(choices_of(stream)) == answered
    last = json.loads(stream.split("\n\n")[-3].removeprefix("data: "))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


FUNCTION = {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
#: fields that OpenAI's types have, as clients send them that write what is not set
NULL_FIELDS = """
    frequency_penalty logit_bias logprobs top_logprobs max_completion_tokens n presence_penalty response_format stop
    stream_options temperature tool_choice tools top_p user functions function_call store metadata modalities audio
    prediction reasoning_effort parallel_tool_calls service_tier verbosity web_search_options safety_identifier
    prompt_cache_key
"""
#: what clients send beside model and messages
CLIENT_BODIES = {
    "langchain": {"temperature": 0.7, "n": 1, "stream": False, "max_completion_tokens": 8},
    "langchain with tools": {
        "tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_tokens": 8,
    },
    "litellm": {"temperature": 0.2, "max_tokens": 8, "user": "u", "metadata": {"a": "b"}, "extra_headers": None},
    "open webui": {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "reasoning_effort": "medium",
        "logit_bias": {},
        "frequency_penalty": 0,
        "session_id": "s",
        "chat_id": "c",
        "id": "i",
        "features": {"web_search": False},
        "variables": {"{{USER_NAME}}": "A"},
        "background_tasks": {"title_generation": True},
    },
    "open webui with its tools": {"tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 8},
    "ai sdk": {
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
        "store": False,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "verbosity": "low",
    },
    "vllm's own": {
        "max_tokens": 8,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "add_generation_prompt": True,
        "stop_token_ids": [],
        "include_reasoning": True,
        "stream_options": None,
    },
    "nulls": dict.fromkeys(NULL_FIELDS.split()) | {"max_tokens": 8, "seed": None},
}
CONVERSATIONS = {
    "developer": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "an answer sent back": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho", "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
        {"role": "user", "content": "And?", "name": "Ann"},
    ],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("sent", CLIENT_BODIES)
def test_what_clients_send_unless_told_otherwise_is_accepted(url, sent, conversation):
    body = {"model": "small", "messages": CONVERSATIONS[conversation], **CLIENT_BODIES[sent]}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


def test_models_are_listed_as_openais_package_reads_them(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        assert (model.id, model.object, model.owned_by) == ("small", "model", "pellucid")
        assert client.models.retrieve("small") == model


def test_a_developers_message_is_the_systems_where_a_template_knows_no_developer():
    """Qwen's template leaves out roles that it does not know, without a word."""
    knows_system = (
        "{% for m in messages %}{% if m.role in ('system', 'user') %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>"
        "{% endif %}{% endfor %}"
    )
    with serving(chatty_engine(), template=ChatTemplate(knows_system)) as running:
        sizes = [
            httpx.post(
                f"{running.url}/v1/chat/completions",
                json={"messages": [{"role": role, "content": "Be brief."}, MESSAGES[1]], "max_tokens": 1},
                timeout=60,
            ).json()["usage"]["prompt_tokens"]
            for role in ("system", "developer")
        ]
    assert sizes[0] == sizes[1]
