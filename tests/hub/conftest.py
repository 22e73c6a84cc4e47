"""A small tokenizer for the folders that are written."""

import pytest

from pellucid.text.tokenizers.tokenizer import learn_tokenizer


@pytest.fixture(scope="session")
def tokenizer(shakespeare):
    return learn_tokenizer("bpe", [shakespeare[:20_000]], 300)
