"""Language models you can see through: train on a folder of text, generate, score, look inside.

    run = pellucid.train("my_texts/", minutes=10)
    model = pellucid.load(run.path)
    model.generate("Once upon a time", max_tokens=200, seed=1).text
    model.score("To be, or not to be").bits_per_byte
    model.trace("To be, or not to be").show().save("trace.html")

    train, load               train a transformer; open a run, a saved model or a Hugging Face model
    train_predictor, load_predictor   the same of n-grams, neural probabilistic and recurrent predictors
    convert                   write a model in another layout: Hugging Face, GGUF, an adapter
    train_features, load_features   sparse features of a model, and the dictionaries that hold them
    read                      what would be read of a folder of text, before anything is trained on it
    train_tokenizer, load_tokenizer
    load_sources              the text of a run, to find where another text is from
    list_runs, compare_runs, prune_run, rename_run, delete_run   the runs in a folder
    preset, Architecture      a described architecture, by name or option by option
    Recipe                    everything that decides a run
    ChatTemplate              conversations as text and as ids
    show                      a picture of a trace or of a result

Each name is imported when it is first used, so importing the package is fast.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pellucid.version import __version__ as __version__

if TYPE_CHECKING:
    from pellucid.architecture import MLP as MLP
    from pellucid.architecture import Architecture as Architecture
    from pellucid.architecture import Attention as Attention
    from pellucid.architecture import Dropout as Dropout
    from pellucid.architecture import Norm as Norm
    from pellucid.architecture import Positions as Positions
    from pellucid.conversion import convert as convert
    from pellucid.edits import Edit as Edit
    from pellucid.features_run import Features as Features
    from pellucid.features_run import load_features as load_features
    from pellucid.features_run import train_features as train_features
    from pellucid.generate.scoring import CorpusScore as CorpusScore
    from pellucid.generate.scoring import Score as Score
    from pellucid.generate.text import Generated as Generated
    from pellucid.language_model import LanguageModel as LanguageModel
    from pellucid.language_model import load as load
    from pellucid.lens.show.figure import show as show
    from pellucid.lens.trace import Trace as Trace
    from pellucid.lens.weights.circuits import Circuits as Circuits
    from pellucid.lens.weights.head_weights import Head as Head
    from pellucid.parameter_counts import count_parameters as count_parameters
    from pellucid.predictors.load import load_predictor as load_predictor
    from pellucid.predictors.predictor import Predictor as Predictor
    from pellucid.predictors.train import train_predictor as train_predictor
    from pellucid.presets import preset as preset
    from pellucid.report.comparison import compare_runs as compare_runs
    from pellucid.report.run_list import delete_run as delete_run
    from pellucid.report.run_list import list_runs as list_runs
    from pellucid.report.run_list import prune_run as prune_run
    from pellucid.report.run_list import rename_run as rename_run
    from pellucid.runs.options import TrainOptions as TrainOptions
    from pellucid.runs.pipeline import Run as Run
    from pellucid.sources.of_run import load_sources as load_sources
    from pellucid.text.chat_template import ChatTemplate as ChatTemplate
    from pellucid.text.read.report import TextReport as TextReport
    from pellucid.text.tokenizers.from_files import train_tokenizer as train_tokenizer
    from pellucid.text.tokenizers.tokenizer import load_tokenizer as load_tokenizer
    from pellucid.text_report import read as read
    from pellucid.training.config import TextOptions as TextOptions
    from pellucid.training.recipe import Recipe as Recipe
    from pellucid.training_run import train as train

# Threads that share a matrix product wait for one another by spinning, for milliseconds at first. Where other programs
# keep the cores busy, they spin on the core that the awaited thread needs, and a step takes ten times as long. Waiting
# for microseconds and sleeping then costs nothing on a quiet machine (docs/experiments/processes.md). GNU's OpenMP
# reads this when PyTorch is imported: whoever imports PyTorch first, or sets either variable, decides otherwise.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

#: the module that each public name is imported from
_MODULES = {
    "Architecture": "pellucid.architecture",
    "Attention": "pellucid.architecture",
    "ChatTemplate": "pellucid.text.chat_template",
    "Circuits": "pellucid.lens.weights.circuits",
    "CorpusScore": "pellucid.generate.scoring",
    "Dropout": "pellucid.architecture",
    "Edit": "pellucid.edits",
    "Features": "pellucid.features_run",
    "Generated": "pellucid.generate.text",
    "Head": "pellucid.lens.weights.head_weights",
    "LanguageModel": "pellucid.language_model",
    "MLP": "pellucid.architecture",
    "Norm": "pellucid.architecture",
    "Positions": "pellucid.architecture",
    "Predictor": "pellucid.predictors.predictor",
    "Recipe": "pellucid.training.recipe",
    "Run": "pellucid.runs.pipeline",
    "Score": "pellucid.generate.scoring",
    "TextOptions": "pellucid.training.config",
    "TextReport": "pellucid.text.read.report",
    "Trace": "pellucid.lens.trace",
    "TrainOptions": "pellucid.runs.options",
    "compare_runs": "pellucid.report.comparison",
    "convert": "pellucid.conversion",
    "count_parameters": "pellucid.parameter_counts",
    "delete_run": "pellucid.report.run_list",
    "list_runs": "pellucid.report.run_list",
    "load": "pellucid.language_model",
    "load_features": "pellucid.features_run",
    "load_predictor": "pellucid.predictors.load",
    "load_sources": "pellucid.sources.of_run",
    "load_tokenizer": "pellucid.text.tokenizers.tokenizer",
    "preset": "pellucid.presets",
    "prune_run": "pellucid.report.run_list",
    "read": "pellucid.text_report",
    "rename_run": "pellucid.report.run_list",
    "show": "pellucid.lens.show.figure",
    "train": "pellucid.training_run",
    "train_features": "pellucid.features_run",
    "train_predictor": "pellucid.predictors.train",
    "train_tokenizer": "pellucid.text.tokenizers.from_files",
}
# written out, not taken from _MODULES, because type checkers do not run this file
__all__ = [
    "MLP",
    "Architecture",
    "Attention",
    "ChatTemplate",
    "Circuits",
    "CorpusScore",
    "Dropout",
    "Edit",
    "Features",
    "Generated",
    "Head",
    "LanguageModel",
    "Norm",
    "Positions",
    "Predictor",
    "Recipe",
    "Run",
    "Score",
    "TextOptions",
    "TextReport",
    "Trace",
    "TrainOptions",
    "__version__",
    "convert",
    "count_parameters",
    "load",
    "load_features",
    "load_predictor",
    "load_sources",
    "load_tokenizer",
    "preset",
    "read",
    "show",
    "train",
    "train_features",
    "train_predictor",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'pellucid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
