"""An encoder-decoder from the command line: trained on pairs, asked with --source, scored, and what is refused."""

import pytest

from pellucid import cli, load

FIELDS = ["d_model=16", "n_layers=1", "n_heads=2", "n_ctx=16", "compile=no", "precision=float32", "evaluate_every=2"]
TINY = ["--tokenizer=byte", "--device=cpu", "--steps=4", "--preset=original", *(f"--set={field}" for field in FIELDS)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run of four steps that the command line made."""
    folder = tmp_path_factory.mktemp("pairs")
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"word {i}\t{i}\n" for i in range(40)), encoding="utf-8")
    out = folder / "run"
    assert cli.main(["train", str(pairs), "--objective", "source-target", "--out", str(out), *TINY]) == 0
    return out


def test_the_target_of_a_source_is_written(trained, capsys):
    options = ["--max-tokens", "6"]
    assert cli.main(["generate", str(trained), "--source", "word 3", *options]) == 0
    written = capsys.readouterr().out
    assert written == load(trained).generate(source="word 3", max_tokens=6).text + "\n"
    assert cli.main(["generate", str(trained), "--source", "word 3", "--beams", "3", "--max-tokens", "6"]) == 0
    found = capsys.readouterr()
    assert found.out == load(trained).generate(source="word 3", max_tokens=6, beams=3).text + "\n"
    assert found.err == ""


def test_a_target_is_scored(trained, tmp_path, capsys):
    target = tmp_path / "target.txt"
    target.write_text("12", encoding="utf-8")
    assert cli.main(["score", str(trained), str(target), "--source", "word 12"]) == 0
    expected = load(trained).score("12", source="word 12").log_prob
    assert f"log-probability  {expected:.4f} nats over 2 tokens" in capsys.readouterr().out


def test_a_run_goes_on(trained, capsys):
    assert cli.main(["train", "--resume", "--out", str(trained), "--objective", "source-target", "--steps", "6"]) == 0
    assert load(trained, checkpoint="last").provenance["step"] == 6
    assert cli.main(["train", "--resume", "--out", str(trained), "--set", "encoder.n_layers=2"]) == 2
    assert "model.encoder.n_layers: 1 in the run, 2 asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "RUN"], "needs a source"),
        (["generate", "RUN", "--source", ""], "the source is empty"),
        (["train", "PAIRS", "--steps", "2", "--preset", "original"], "give --objective source-target"),
        (
            ["train", "PAIRS", "--steps", "2", "--objective", "source-target", "--set", "model.encoder.n_ctx=3"],
            "or set model.encoder.n_ctx=",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(trained, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    places = {"RUN": str(trained), "PAIRS": str(trained.parent / "pairs.tsv")}
    assert cli.main([places.get(argument, argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
