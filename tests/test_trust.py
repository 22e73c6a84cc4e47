"""Each risk of files from elsewhere is taken by itself: pickled weights, and tokenizers that may be slow."""

import pytest
import torch
from safetensors.torch import load_file

import pellucid
from pellucid.language_model import LanguageModel
from pellucid.model import Transformer
from pellucid.model_names import FolderError
from pellucid.presets import preset
from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.tokenizer import load_tokenizer

SLOW = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}


@pytest.fixture
def risky(tmp_path, shakespeare):
    """A folder whose weights are a pickle; its tokenizer, with a pattern that is not known."""
    import json

    from pellucid.text.tokenizers.tokenizer import learn_tokenizer

    tokenizer = learn_tokenizer("bpe", [shakespeare[:3000]], 270)
    a = preset("gpt2", tokenizer.n_vocab).with_fields({"d_model": 8, "n_layers": 1, "n_heads": 2, "n_ctx": 8})
    torch.manual_seed(0)
    LanguageModel(Transformer(a), tokenizer, {}).save(tmp_path / "own")
    pellucid.convert(tmp_path / "own", tmp_path / "hf")
    weights = tmp_path / "hf" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "hf" / "pytorch_model.bin")
    weights.unlink()
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(json.loads((tmp_path / "hf" / "tokenizer.json").read_text()) | {"normalizer": SLOW}))
    return tmp_path / "hf", path


def test_trust_in_one_risk_is_none_in_the_other(risky):
    folder, tokenizer = risky
    for trust in ("tokenizer", False):
        with pytest.raises(FolderError, match=r"as a pickle.*pass --trust pickles"):
            pellucid.load(folder, device="cpu", trust=trust)
    for trust in ("pickles", False):
        with pytest.raises(TokenizerError, match="pass --trust tokenizer"):
            load_tokenizer(tokenizer, trust=trust)
    for trust in ("pickles", True):
        assert pellucid.load(folder, device="cpu", trust=trust).network
    for trust in ("tokenizer", True):
        assert load_tokenizer(tokenizer, trust=trust).n_vocab == 270


ENTRIES = {
    "load": lambda run, trust: pellucid.load(run, trust=trust),
    "load_predictor": lambda run, trust: pellucid.load_predictor(run, trust=trust),
    "load_tokenizer": lambda run, trust: load_tokenizer(run, trust=trust),
    "train": lambda run, trust: pellucid.train("shakespeare.txt", out=run / "new", trust=trust),
    "convert": lambda run, trust: pellucid.convert(run, run / "new", trust=trust),
}


@pytest.mark.parametrize("trust", ["everything", 1, None, ["pickles"]])
@pytest.mark.parametrize("entry", ENTRIES)
def test_another_word_is_refused_before_any_file_is_looked_at(entry, trust, tmp_path):
    with pytest.raises(ValueError, match='expected False, True \\(both\\), "pickles" or "tokenizer"'):
        ENTRIES[entry](tmp_path, trust)
