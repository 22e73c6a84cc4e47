"""Options that everybody tries exist or are named, and inputs that are no files say how to get the text."""

from typing import get_type_hints

import pytest

from pellucid.cli import MEANT_FLAGS, main
from pellucid.cli.command_groups import COMMAND_GROUPS
from pellucid.cli.commands import COMMANDS
from pellucid.cli.options import flags_of
from pellucid.cli.train import ModelOptions, TrainingOptions, TrainingTextOptions, fields_of


def test_short_options_of_training_set_their_fields():
    model = ModelOptions(layers=3, width=96, context=64)
    training = TrainingOptions(batch=4, learning_rate=0.01)
    assert fields_of(TrainingTextOptions(), model, training) == {
        "model.n_layers": 3,
        "model.d_model": 96,
        "model.n_ctx": 64,
        "train.batch": 4,
        "train.learning_rate": 0.01,
    }


@pytest.mark.parametrize(
    ("words", "meant"), [(["--lr", "3"], "--learning-rate"), (["--bs=8"], "--batch"), (["--n-embd", "8"], "--width")]
)
def test_an_option_of_another_program_is_named(words, meant, capsys):
    assert main(["train", "text.txt", *words]) == 2
    assert f"did you mean {meant}? pellucid train --help lists all" in capsys.readouterr().err


def test_what_stands_behind_two_dashes_is_text(capsys):
    assert main(["generate", "no/run", "--", "--length"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_what_is_meant_exists_and_what_it_is_named_for_does_not():
    functions = [*COMMANDS.values(), *(run for commands, _ in COMMAND_GROUPS.values() for run in commands.values())]
    groups = [hint for function in functions for hint in get_type_hints(function).values() if isinstance(hint, type)]
    flags = {flag for group in groups if hasattr(group, "__dataclass_fields__") for flag in flags_of(group)}
    assert {*MEANT_FLAGS.values()} <= flags
    assert not {f"--{flag}" for flag in MEANT_FLAGS} & flags


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("https://example.org/a.txt", "curl -LO https://example.org/a.txt"),
        ("owner/dataset", "load_dataset('owner/dataset')['train'].to_json('dataset.jsonl')"),
        ("no/such.txt", "no/such.txt: there is no such file or folder"),
    ],
)
def test_an_input_that_is_no_file_says_how_to_get_the_text(path, says, capsys):
    assert main(["train", path]) == 2
    assert says in capsys.readouterr().err
