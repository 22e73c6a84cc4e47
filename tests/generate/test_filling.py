"""Blanks are filled with what the network says, given everything else."""

from dataclasses import replace

import pytest
import torch
from tests.drawing import make_network

from pellucid.architecture import Architecture, Attention
from pellucid.generate.errors import GenerationError
from pellucid.generate.fill import fill
from pellucid.text.tokenizers.tokenizer import ByteTokenizer
from pellucid.text_model import Model

TOKENIZER = ByteTokenizer().with_special("<|mask|>")
BIDIRECTIONAL = Architecture(
    n_vocab=TOKENIZER.n_vocab, n_ctx=12, d_model=16, n_layers=2, attention=Attention(n_heads=2, mask="bidirectional")
)


def test_the_probabilities_are_the_networks():
    network = make_network(BIDIRECTIONAL, seed=3)
    first, second = fill(Model(network, TOKENIZER), "a[MASK]b[MASK]", top=256)
    tokens = torch.tensor([[97, 257, 98, 257]])
    with torch.no_grad():
        logits = network(tokens)[0]
    for filling, at in ((first, 1), (second, 3)):
        text = logits[at, :256].softmax(-1)  # the separator and the mask are no text
        assert sum(filling.probabilities) == pytest.approx(1)
        assert filling.probabilities == sorted(filling.probabilities, reverse=True)
        assert filling.probabilities[0] == pytest.approx(text.max().item(), rel=1e-12)
        assert filling.texts[0] == TOKENIZER.token_str(int(text.argmax()))
    assert first.probabilities != second.probabilities


@pytest.mark.parametrize(
    ("network", "tokenizer", "text", "top", "message"),
    [
        (replace(BIDIRECTIONAL, attention=Attention(n_heads=2)), TOKENIZER, "[MASK]", 1, "cannot fill blanks"),
        (replace(BIDIRECTIONAL, n_vocab=257), ByteTokenizer(), "[MASK]", 1, "cannot fill blanks"),
        (BIDIRECTIONAL, TOKENIZER, "no blank, and <|mask|> is text", 1, "no blank"),
        (BIDIRECTIONAL, TOKENIZER, "[MASK]" + "x" * 12, 1, "13 tokens"),
        (BIDIRECTIONAL, TOKENIZER, "[MASK]", 0, "top = 0"),
    ],
)
def test_what_cannot_be_filled_is_refused(network, tokenizer, text, top, message):
    with pytest.raises(GenerationError, match=message):
        fill(Model(make_network(network, seed=0), tokenizer), text, top=top)


def test_rows_beyond_the_tokenizer_and_special_ids_beyond_the_rows_are_no_text():
    """A folder may pad its vocabulary, and a tokenizer may have special ids that the network has no rows for."""
    padded = make_network(replace(BIDIRECTIONAL, n_vocab=300), seed=3)
    (filling,) = fill(Model(padded, TOKENIZER), "a[MASK]", top=300)
    assert len(filling.texts) == 256
    assert sum(filling.probabilities) == pytest.approx(1)
    (filling,) = fill(
        Model(make_network(BIDIRECTIONAL, seed=3), TOKENIZER.with_special("<|more|>")), "a[MASK]", top=300
    )
    assert len(filling.texts) == 256
