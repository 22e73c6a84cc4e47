"""Arguments are checked before a model is loaded, a text is read, or torch is so much as imported."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid
from pellucid.cli.commands import GeneratingModelOptions, SamplingOptions, WritingModelOptions, score_command
from pellucid.cli.options import CheckpointOptions, OptionError, check_arguments
from pellucid.conversion import convert
from pellucid.destination import DestinationError, atomic_output, check_destination
from pellucid.generate.choose_reader import Compile, Weights
from pellucid.generate.errors import GenerationError
from pellucid.generate.sampling import Sampling
from pellucid.hub.families import FamilyError
from pellucid.model_names import FolderError
from pellucid.text.tokenizers.tokenizer import TokenizerError

#: what is wrong, and words of the one line that says so; `run` is a folder, `text` a file, `new` is not there
WRONG = {
    "generate run --top-k -3": "--top-k -3: expected a whole number of tokens to keep, or 0 to keep all",
    "train text --format csv --out new --format tsv": "--format is given 2 times: give it once",
    "generate run --top-p 2": "--top-p 2.0: expected a share from 0 to 1",
    "generate run --min-p nan": "--min-p nan: expected a share",
    "generate run --temperature -1": "--temperature -1.0: expected a number from 0 on",
    "generate run --repetition-penalty 0": "--repetition-penalty 0.0: expected a number above 0",
    "generate run --max-tokens -1": "--max-tokens -1: expected",
    "generate run --n 0": "--n 0: expected a number from 1 on",
    "generate run --beams -1": "--beams -1: expected",
    "generate run --beams 2 --temperature 1": "--beams 2 does not sample: leave out --temperature",
    "generate run --beams 2 --top-k 3": "leave out --top-k",
    "generate run --checkpoint bset": "--checkpoint bset: expected best, last, or the number of a step",
    "generate run --device gpu": "--device gpu: expected auto, cpu, cuda, mps",
    "generate run --mix-weight 0.5": "--mix-weight 0.5 needs --mix",
    "generate run --mix new": "--mix new: expected the folder of a run",
    "generate run --mix run --mix-weight 2": "--mix-weight 2.0: expected a share",
    "generate runs/new": "runs/new: expected the folder of a run or of a saved model",
    "generate ./a/b/c": "nothing is there",
    "score run new": "new: expected a file or folder that exists, or - for standard input",
    "score run text --stride 0": "--stride 0: expected a number from 1 on",
    "score runs/new text": "nothing is there",
    "fill run to-be": "to-be: expected a text with [MASK] in it",
    "fill run [MASK] --top 0": "--top 0: expected",
    "generate run --checkpoint 12": "checkpoint 12 needs a run, but run is not a run: leave it out",
    "generate run --checkpoint best": "checkpoint best needs a run, but run is not a run",
    "generate run --temperature 0 --top-k 5": "--temperature 0 always takes the likeliest token: leave out --top-k",
    "generate run --temperature 0.0 --top_p=1": "takes the likeliest token: leave out --top-p",
    "generate run --min-p 0 --temperature 0": "takes the likeliest token: leave out --min-p",
    "generate run --temperature 0 --seed 3": "takes the likeliest token: leave out --seed",
    "generate run --source x --seed 3": "unless --temperature is given: leave out --seed",
    "generate run --beams 2 --top-k 0": "--beams 2 does not sample: leave out --top-k",
    "generate run --seed 1 --seed 1": "--seed is given 2 times: give it once",
    "generate run --max-tokens 1 --max_tokens=2": "--max-tokens is given 2 times: give it once",
    "chat run --temperature 0 --top-k 5": "takes the likeliest token: leave out --top-k",
    "chat run --temperature 0 --seed 5": "takes the likeliest token: leave out --seed",
    "inspect run prompt -o a.html --out b.html": "--out is given 2 times: give it once",
    "verify run --tensors --json": "--json prints every tensor: leave out --tensors",
    "look --device auto": "the model that is shown without a MODEL is always the same: leave out --device",
    "score gpt2 text --checkpoint last": "checkpoint last needs a run, but gpt2 is not a run",
    "fill run [MASK] --checkpoint last": "needs a run",
    "verify run --checkpoint last": "needs a run",
    "inspect run prompt --checkpoint last": "needs a run",
    "convert run new --checkpoint last": "needs a run",
    "verify run --checkpoint x": "--checkpoint x: expected",
    "verify /new": "nothing is there",
    "inspect run prompt --out text/page.html": "--out text/page.html cannot be written: text is not a folder",
    "inspect run prompt -o run": "--out run is a folder: give the name of a file",
    "convert run run": "run exists: choose a new name",
    "convert run text/out": "text/out cannot be written: text is not a folder; choose another path",
    "convert run new --push name": "--push name: expected the name of a repository, OWNER/NAME",
    "convert runs/new out": "nothing is there",
    "plan smal": "did you mean 'small'",
    "plan --batch 0": "--batch 0: expected a number from 1 on",
    "plan --tokens -5": "--tokens -5: expected",
    "plan --context 0": "--context 0: expected",
    "plan --device tpu": "--device tpu: expected",
    "report new": "new: expected the folder of a run",
    "train": "no text was named",
    "train new": "new: there is no such file or folder",
    "train text --minutes 0": "--minutes 0.0: expected a number above 0",
    "train text --minutes inf": "--minutes inf: expected a number above 0",
    "train text --steps -1": "--steps -1: expected a number from 1 on",
    "train text --steps 3 --minutes 1": "the length is given twice",
    "train text --steps 3 --set minutes=2": "the length is given twice",
    "train text --set d_modl=3": "did you mean",
    "train text --set d_model": "expected FIELD=VALUE",
    "train text --set n_heads=0": "n_heads",
    "train text --preset gpt22": "did you mean 'gpt2'",
    "train text --device gpu": "--device gpu: expected",
    "train text --vocabulary 0": "--vocabulary 0: expected",
    "train text --tokenizer bep": "bep: there is no such tokenizer; did you mean bpe?",
    "train text --recipe new": "--recipe new: expected a file",
    "train text --out run": "--out run exists: choose another folder, or continue that run with --resume",
    "train text --out text/x": "text/x cannot be written: text is not a folder; choose another path",
    "train text --out /proc/x": "/proc/x cannot be written: /proc takes no new files; choose another path",
    "train text --from runs/new": "--from runs/new: expected the folder of a run",
    "train text --from run --set learning_rat=3": "did you mean 'train.learning_rate'",
    "train text --from run --set learning_rate=-3": "learning_rate = -3",
    "train text --from run --preset gpt2": "leave out --preset gpt2",
    "train text --from run --lora 0": "--lora 0: expected",
    "train text --set text.held_out_files=new": "new: there is no such file or folder",
    "train text --seed 5 --set train.seed=6": "train.seed is given twice: give it once",
    "train text --seed 5 --set seed=6": "train.seed is given twice, as seed and as train.seed: give it once",
    "train text --set n_layers=2 --set model.n_layers=3": "model.n_layers is given twice",
    "train text --set n_layers=2 --set n_layers=2": "n_layers is given twice: give it once",
    "train text --lora 2 --set rank=4 --from run": "adapt.rank is given twice",
    "train text --device cpu --set device=cpu": "train.device is given twice",
    "train text --set steps=3 --set train.steps=4": "the length is given twice",
    "train text --field a --field b": "--field a --field b: one field is that of all files; name those of each",
    "train text --trust all": "--trust needs one of --from, --resume, --recipe and --tokenizer PATH, and none is given",
    "train text --oversubscribe": "--oversubscribe needs --processes of 2 or more: leave out --oversubscribe",
    "train text --oversubscribe --processes 1": "--oversubscribe needs --processes of 2 or more",
    "train text --set mask_share=0.15": "train.mask_share = 0.15 goes with train.objective = masked",
    "train text --tokenizer char --set text.pattern=gpt2": "text.pattern = gpt2 goes with text.tokenizer = bpe",
    "train text --set adapt.modules=all": "adapt.modules = all goes with low-rank adapters",
    "train text --set sample_every=0 --set sample_prompt=x": "train.sample_every = 0 writes none",
    "train text --predictor ngram --set order=2 --set order=3": "order is given twice: give it once",
    "train --resume": "name its folder with --out",
    "train --resume --out new": "does not exist",
    "train --resume --out run": "has no recipe.json",
    "tokenizer train text --out text": "cannot be written",
    "tokenizer train text --out new --vocabulary 0": "--vocabulary 0: expected",
    "tokenizer train text --out new --sample 0": "--sample 0.0: expected a share above 0",
    "tokenizer train text --out new --kind char --vocabulary 9": "--vocabulary 9 needs --kind bpe or word",
    "tokenizer train text --out new --kind word --pattern gpt4": "--pattern gpt4 needs --kind bpe, not word",
    "tokenizer train text --out new --kind byte --sample 0.5": "--sample 0.5 needs --kind bpe or word, not byte",
    "tokenizer train text --out new --kind char --pattern gpt2": "--pattern gpt2 needs --kind bpe, not char",
    "tokenizer show text --field x": "no text was named, and nothing is read: leave out --field",
    "tokenizer encode new": "new: expected a file",
    "tokenizer decode run -- -4": "-4: expected a number from 0 on",
    "tokenizer show run --rows -1": "--rows -1: expected",
}
#: runs each line of arguments in a process that cannot import torch
SCRIPT = """
import contextlib, io, json, shlex, sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError("torch is imported")
sys.meta_path.insert(0, NoTorch())
from pellucid.cli import main
said = {}
for line in json.load(sys.stdin):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            code = main(shlex.split(line))
        except AssertionError as late:
            code = str(late)
    said[line] = [code, error.getvalue()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The exit code and the error of every wrong line, in a folder that stays as it is."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "run").mkdir()
    (folder / "text").write_text("to be, or not to be")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, input=json.dumps([*WRONG]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.rglob("*")) == ["run", "text"]
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_at_once(said, line):
    code, error = said[line]
    assert code == 2, error
    assert WRONG[line] in error
    assert len(error.splitlines()) == 1
    assert error.startswith("pellucid: ")
    assert "Errno" not in error


NUMBERS = st.one_of(st.integers(-3, 60_000), st.floats(), st.sampled_from([0.0, 1.0, -0.0, 0.5, math.inf, math.nan]))


#: any finite number is taken, or, as biases of single tokens, the command line has no option for it
FREE = ("frequency_penalty", "presence_penalty", "logit_bias")


@given(st.sampled_from([name for name in vars(Sampling()) if name not in FREE]), NUMBERS)
def test_the_command_line_takes_what_sampling_takes(name, value):
    """The ranges are written in both, because one of them must not import torch."""
    value = int(value) if name == "top_k" and math.isfinite(value) else value
    options = SamplingOptions(**{name: value})
    try:
        Sampling(**{name: value})
    except GenerationError:
        with pytest.raises(OptionError, match=f"^--{name.replace('_', '-')} "):
            check_arguments(sampled, {"sampling": options})
    else:
        check_arguments(sampled, {"sampling": options})


def sampled(sampling: SamplingOptions) -> None:
    """A command with the options of sampling."""


def test_words_are_those_of_the_library():
    assert WritingModelOptions.__annotations__["weights"].__args__[0] == Weights
    assert GeneratingModelOptions.__annotations__["compile"].__args__[0] == Compile


def test_values_that_are_right_are_taken(tmp_path):
    file = tmp_path / "text"
    file.write_text("x")
    options = CheckpointOptions(checkpoint="12", device="cuda:1")
    check_arguments(score_command, {"model": str(tmp_path), "file": str(file), "model_options": options})
    check_arguments(score_command, {"model": "gpt2", "file": "-"})
    check_arguments(score_command, {"model": "openai-community/gpt2", "file": "-"})


# Destinations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["new", "a/b/c", "file", "folder", "folder/new", "../new", "."])
def test_a_destination_that_can_be_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("x")
    before = sorted(tmp_path.parent.rglob("*"))
    check_destination(path)
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("file/new", "file is not a folder"),
        ("file/a/b", "file is not a folder"),
        ("link/new", "link is not a folder"),
        ("n" * 300, "File name too long"),
        ("n" * 245, "File name too long"),  # the folder it is written in at first has a longer name
        ("a/" + "n" * 300 + "/b", "File name too long"),
        ("nul\0l", "null byte"),
    ],
)
def test_a_destination_that_cannot(path, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("link").symlink_to("nowhere")
    with pytest.raises(DestinationError, match=f"cannot be written: .*{why}.*; choose another path"):
        check_destination(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """The system's word for it; who may do everything is told no by a stand-in."""
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: os.mkdir("/dev/null/x"))
    with pytest.raises(DestinationError, match="Not a directory; choose another path"):
        check_destination(tmp_path / "new")


def test_what_a_process_of_the_same_number_left_over_is_not_in_the_way(tmp_path):
    """In a container each of them may have the number 1."""
    (tmp_path / f".out.writing-{os.getpid()}").mkdir()
    with atomic_output(tmp_path / "out") as aside:
        (aside / "file").write_text("whole")
    assert (tmp_path / "out" / "file").read_text() == "whole"


def fail(*_, **__):
    raise AssertionError("something was read")


def test_python_checks_the_destination_first(tmp_path, monkeypatch):
    """Nothing is read for a run, a conversion or a tokenizer that could not be kept."""
    file = tmp_path / "file"
    file.write_text("to be, or not to be")
    monkeypatch.setattr("pellucid.training.trainable.read_input", fail)
    monkeypatch.setattr("pellucid.conversion.convert_model.read_model", fail)
    monkeypatch.setattr("pellucid.text.tokenizers.from_files.read_corpus", fail)
    monkeypatch.setattr("pellucid.predictors.trainable.read_text", fail)
    with pytest.raises(DestinationError):
        pellucid.train(file, out=file / "run", steps=1)
    with pytest.raises(DestinationError):
        pellucid.train_predictor(file, out=file / "run", kind="ngram")
    with pytest.raises(DestinationError):
        convert(tmp_path, file / "out")
    with pytest.raises(FamilyError, match=r"no family 'lama': did you mean 'llama'\?"):
        convert(tmp_path, tmp_path / "out", family="lama")
    with pytest.raises(
        FolderError,
        match=r"the family llama \(--family\) needs to = huggingface \(--to huggingface\), and gguf is written",
    ):
        convert(tmp_path, tmp_path / "out.gguf", family="llama")
    with pytest.raises(FolderError, match="the number format q8_0 is for GGUF alone"):
        convert(tmp_path, tmp_path / "out", weights="q8_0")
    with pytest.raises(DestinationError):
        pellucid.train_tokenizer(file, out=file)
    for wrong in (
        {"kind": "char", "vocabulary": 9},
        {"kind": "word", "pattern": "gpt4"},
        {"kind": "byte", "sample": 0.5},
    ):
        with pytest.raises(TokenizerError, match="leave it out"):
            pellucid.train_tokenizer(file, **wrong)


def test_the_model_to_start_from_is_loaded_last(tmp_path, monkeypatch):
    monkeypatch.setattr("pellucid.training_run.open_starting_model", fail)
    for wrong in ({"learning_rate": -1}, {"learning_rat": 1}, {"tokenizer": "word", "sample": 3}):
        with pytest.raises(ValueError, match=r"learning_rat|sample"):
            pellucid.train(tmp_path, from_model=tmp_path, fields=wrong)
    with pytest.raises(ValueError, match="leave out --preset"):
        pellucid.train(tmp_path, from_model=tmp_path, preset="gpt2")
