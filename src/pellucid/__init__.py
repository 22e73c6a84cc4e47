"""Language models you can see through: train on a folder of text, generate, score, look inside.

    run = pellucid.train("my_texts/", minutes=10)
    model = pellucid.load(run.path)
    model.generate("Once upon a time", max_tokens=200, seed=1).text
    model.score("To be, or not to be").bits_per_byte

Names are loaded when they are first used: importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.architecture import Architecture as Architecture
    from pellucid.architecture import count_parameters as count_parameters
    from pellucid.conversion import convert as convert
    from pellucid.language_model import LanguageModel as LanguageModel
    from pellucid.language_model import load as load
    from pellucid.language_model import train as train
    from pellucid.presets import preset as preset
    from pellucid.text.tokenizers.from_files import train_tokenizer as train_tokenizer
    from pellucid.text.tokenizers.tokenizer import load_tokenizer as load_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "Architecture": "pellucid.architecture",
    "LanguageModel": "pellucid.language_model",
    "convert": "pellucid.conversion",
    "count_parameters": "pellucid.architecture",
    "load": "pellucid.language_model",
    "load_tokenizer": "pellucid.text.tokenizers.tokenizer",
    "preset": "pellucid.presets",
    "train": "pellucid.language_model",
    "train_tokenizer": "pellucid.text.tokenizers.from_files",
}
# train is a function here and also the name of a room, which importing would put in its place
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pellucid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
