"""The page on looking inside runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from drawing import make_network
from pellucid.language_model import LanguageModel
from pellucid.presets import preset
from pellucid.text.tokenizers.tokenizer import learn_tokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "looking-inside.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model():
    """Of the default options, with a tokenizer of the default kind."""
    tokenizer = learn_tokenizer("bpe", ["to be or not to be, that is the question. " * 20], 300)
    sizes = {"n_vocab": tokenizer.n_vocab, "n_ctx": 32, "d_model": 16, "n_layers": 2, "n_heads": 2, "ngram_rows": 64}
    return LanguageModel(make_network(preset("small").with_fields(sizes)), tokenizer, {})


def test_every_block_of_python_runs(model):
    """In the order they stand: later ones use what earlier ones made. Each line's value is looked at."""
    here: dict[str, Any] = {"model": model}
    line = 'model = pellucid.load("runs/NAME")\n'
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 6
    assert line in blocks[0]
    for block in blocks:
        exec(block.replace(line, ""), here)  # the page's own text
    assert here["patching"].agreement["correlation"] <= 1
    assert here["edits"].from_json(here["edits"].to_json(here["change"])) == here["change"]
    attribution = here["t"].attribute(here["one"], vs=here["other"], by="head")
    assert abs(attribution.total - attribution.logit) <= 1e-9
