"""docs/limits.md: what it claims is so, where it can be executed."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.language_model import LanguageModel
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, learn_tokenizer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
PROMPTS = ("Q: 3 + 4 = ?\nA:", "cat -> Katze\ndog ->", "The earth is flat.", "def f(x):", "日本")


@pytest.fixture(scope="module")
def model():
    a = Architecture(n_vocab=257, n_ctx=64, d_model=8, n_layers=1)
    return LanguageModel(make_network(a, dtype=torch.float32), ByteTokenizer(), {})


def rows(header):
    """The cells of the table under this header."""
    lines = PAGE.partition(header)[2].split("\n\n")[0].strip().splitlines()
    assert len(lines) > 3
    return [[cell.strip(" ") for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.item("S4-adv-a")
def test_any_prompt_is_continued_and_any_text_has_a_probability_by_the_same_calls(model):
    for prompt in PROMPTS:
        written = model.generate(prompt, max_tokens=3, seed=0)
        streamed = "".join(piece.text for piece in model.stream(prompt, max_tokens=3, seed=0))
        assert streamed == written.text
        assert 0 < len(written.ids) <= 3
        assert math.isfinite(model.score(prompt).log_prob)


@pytest.mark.item("S4-draw-a")
def test_false_sentences_have_a_probability_and_seeds_give_other_answers(model):
    truths = ("The earth is round.", "The earth is flat.")
    assert all(-math.inf < model.score(text).log_prob < 0 for text in truths)
    answers = {model.generate("The earth is", max_tokens=8, temperature=1.0, seed=seed).text for seed in range(8)}
    assert len(answers) > 1
    assert len({model.generate("The earth is", max_tokens=8, temperature=0, seed=s).text for s in range(3)}) == 1


@pytest.mark.item("S4-draw-a")
def test_a_saved_model_is_its_architecture_its_tokenizer_and_its_weights(model, tmp_path):
    folder = model.save(tmp_path / "saved")
    assert {path.name for path in folder.iterdir()} == {"architecture.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.item("S4-draw-b")
def test_a_smooth_gain_looks_sudden_in_whole_answers():
    cells = rows("| p | one token right | 10 tokens right | 30 tokens right |")
    table = [[float(cell) for cell in row] for row in cells]
    for p, *shown in table:
        assert shown == [round(p**m, 3) for m in (1, 10, 30)]
    gains = [(after[1] - before[1], after[3] - before[3]) for before, after in itertools.pairwise(table)]
    assert gains[-1][0] < gains[0][0]
    assert gains[-1][1] > 10 * gains[0][1]


@pytest.mark.item("S4-iss-c", "S4-iss-b")
def test_the_tokens_of_the_page(shakespeare):
    tokenizer = learn_tokenizer("bpe", [shakespeare[:100_000]], 1000)

    def shown(text):
        pieces = (tokenizer.token_bytes(i).decode("utf-8", "backslashreplace") for i in tokenizer.encode(text))
        return " ".join(piece.replace(" ", "_") for piece in pieces)

    table = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", PAGE, re.M)
    assert len(table) == 9
    for text, tokens in table:
        assert shown(text) == tokens
