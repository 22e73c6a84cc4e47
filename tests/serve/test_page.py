"""The Python of docs/serving.md runs against a server, and the page names every route and option there is."""

import re
from pathlib import Path

import openai
import pytest
from tests.serve.conftest import small_network

from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.chat import ChatBody
from pellucid.serve.completions import CompletionBody
from pellucid.serve.embeddings import EmbeddingBody
from pellucid.serve.filling import FillBody
from pellucid.serve.served import ServedModel
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_python_of_the_page(server, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    code = code.replace("http://127.0.0.1:8000", server.url).replace('"my_texts"', '"small"')
    names: dict = {}
    exec(code, names)
    names["client"].close()
    assert isinstance(names["client"], openai.OpenAI)
    assert names["answer"].choices[0].text in capsys.readouterr().out


def test_the_page_names_every_route():
    app = make_app([ServedModel("small", BatchingEngine(small_network(), ByteTokenizer()))])
    table = PAGE.partition("## What is answered")[2]
    for route in app.routes:
        assert f"`{route.path}`".replace(":path", "") in table.replace("POST ", "").replace("GET ", ""), route.path


BODIES = (CompletionBody, ChatBody, EmbeddingBody, FillBody)
#: what the page describes otherwise, or not at all
OPTIONS = {name for body in BODIES for name in body.model_fields} - {"model", "prompt", "input", "dimensions"}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_page_names_every_option(name):
    assert f"`{name}`" in PAGE
