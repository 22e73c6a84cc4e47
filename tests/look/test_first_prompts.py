"""The page of a run opens on the run's own held-out text, and has a second prompt ready that differs in one thing."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.look.conftest import ready, shown_numbers, small_model

import pellucid
from pellucid.language_model import LanguageModel, known_answer
from pellucid.look.app import make_look_app
from pellucid.look.first_prompts import (
    EXAMPLE,
    Prompts,
    cut_before_word,
    cut_text,
    held_out_passages,
    stored_tokens,
    typical,
    usual_prompts,
)
from pellucid.look.first_prompts import first_prompts as prompts_for
from pellucid.look.session import Session
from pellucid.runs.metrics import read_metrics
from pellucid.text.tokenizers.base import BLANK

FIELDS = {"n_layers": 1, "n_heads": 2, "d_model": 32, "n_ctx": 32, "batch": 16, "tokenizer": "char", "compile": "no"}
FIELDS |= {"sample_every": 0, "device": "cpu"}
WORDS = ["red", "blue", "green", "small", "big", "old", "new", "cat", "dog", "house", "tree", "river"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shakespeare: str) -> Path:
    folder = tmp_path_factory.mktemp("first prompts")
    (folder / "text.txt").write_text(shakespeare[:30_000], encoding="utf-8")
    pellucid.train(folder / "text.txt", out=folder / "run", steps=60, fields=FIELDS)
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> LanguageModel:
    return pellucid.load(run)


def texts_of(model: LanguageModel) -> tuple[str, str]:
    """The training text and the held-out text of the model's run."""
    tokens = stored_tokens(model)
    assert tokens is not None
    train, held_out = (model.tokenizer.decode(tokens.part(name).ids) for name in ("train", "held_out"))
    return train, held_out


def test_a_run_opens_on_held_out_text_that_it_predicts_well(run: Path, model: LanguageModel):
    prompts = prompts_for(model)
    train, held_out = texts_of(model)
    assert prompts.text in held_out
    assert prompts.text not in train
    before = held_out[: held_out.index(prompts.text)]
    assert before.endswith("\n") or before.rstrip()[-1] in ".!?"
    after = held_out[len(before) + len(prompts.text) :]
    assert after[0].isspace()  # it ends with a whole word, and something follows
    assert 8 <= len(model.tokenizer.encode(prompts.text)) < model.architecture.n_ctx
    mean = [row["held_out_loss"] for row in read_metrics(run / "metrics.jsonl") if row.get("whole")][-1]
    assert model.score(prompts.text).loss < mean
    assert prompts_for(pellucid.load(run)) == prompts


def test_the_second_prompt_has_one_other_word(model: LanguageModel):
    prompts = prompts_for(model)
    encode = model.tokenizer.encode
    assert len(encode(prompts.other)) == len(encode(prompts.text))
    pairs = list(zip(prompts.text.split(), prompts.other.split(), strict=True))
    assert sum(one != other for one, other in pairs) == 1
    assert encode(prompts.other)[-1] == encode(prompts.text)[-1]
    # it says something else next, so that patching finds where that comes from
    text, other = (model.trace(prompt).logits[0, -1].softmax(-1) for prompt in (prompts.text, prompts.other))
    assert other[text.argmax()] < text.max() - 0.01


def test_a_run_whose_tokens_are_gone_opens_on_a_sentence(model: LanguageModel, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    prompts = prompts_for(model)
    assert prompts == usual_prompts(model)
    assert prompts.text == EXAMPLE[: model.architecture.n_ctx - 1]
    with TestClient(make_look_app(Session(model)), base_url="http://localhost") as client:
        assert client.get("/api/model").json()["example"] == prompts.text


@pytest.mark.parametrize("damage", ["shard", "manifest", "data.json"])
def test_damaged_files_stop_nothing(model: LanguageModel, damage: str, tmp_path: Path, monkeypatch):
    tokens = stored_tokens(model)
    assert tokens is not None
    folder, copied = tmp_path / "tokens-0", tmp_path / "run"
    folder.mkdir()
    copied.mkdir()
    for path in tokens.folder.glob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    (copied / "data.json").write_bytes((Path(model.provenance["folder"]) / "data.json").read_bytes())
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    monkeypatch.setitem(model.provenance, "folder", str(copied))
    assert prompts_for(model) != usual_prompts(model)
    if damage == "shard":
        (folder / "held_out-00000.bin").write_bytes(b"")
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        (copied / "data.json").write_text('{"parts": 3}')
    assert prompts_for(model) == usual_prompts(model)


def test_tokens_of_another_run_are_not_taken(model: LanguageModel, tmp_path: Path, monkeypatch):
    data = json.loads((Path(model.provenance["folder"]) / "data.json").read_text(encoding="utf-8"))
    data["parts"]["train"]["shards"][0]["sha256"] = "0" * 64
    (tmp_path / "data.json").write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setitem(model.provenance, "folder", str(tmp_path))
    assert stored_tokens(model) is None


def test_another_folder_of_the_cache_that_is_damaged_hides_nothing(model: LanguageModel, tmp_path: Path, monkeypatch):
    tokens = stored_tokens(model)
    assert tokens is not None
    damaged = tmp_path / "tokens-0"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{")
    (tmp_path / "tokens-1").symlink_to(tokens.folder)
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    assert prompts_for(model) != usual_prompts(model)


def test_rulers_and_short_passages_are_not_chosen():
    """They have the lowest losses of all."""
    losses = [("-" * 40, 0.1), ("But so", 0.2), *(("the words of passage " + "x" * k, 3.0 + k) for k in range(8))]
    chosen = typical([Prompts(text, loss=loss) for text, loss in losses])
    assert chosen.loss == 4.0
    assert typical([Prompts("ab", loss=2.0), Prompts("abc", loss=1.0)]).text == "abc"


def trained(folder: Path, name: str, rows: list[str], **options) -> Path:
    (folder / name).write_text("\n".join(rows), encoding="utf-8")
    pellucid.train(folder / name, out=folder / "run", steps=2, **options)
    return folder / "run"


def sentences(n: int = 400) -> list[str]:
    numbers = random.Random(1)
    return [" ".join(numbers.sample(WORDS, 6)) for _ in range(n)]


def test_documents_that_are_held_out_are_read_from_their_beginning(tmp_path: Path):
    rows = sentences()
    fields = FIELDS | {"n_ctx": 24}
    run = trained(tmp_path, "rows.jsonl", [json.dumps({"text": f"The {row}"}) for row in rows], fields=fields)
    model = pellucid.load(run)
    tokens = stored_tokens(model)
    assert tokens is not None
    passages = held_out_passages(model, tokens)
    assert sum(passage.text.startswith("The ") for passage in passages) > len(passages) / 2
    assert all(any(passage.text in f"The {row}" for row in rows) for passage in passages)


def test_a_masked_model_guesses_a_token_of_its_held_out_text(tmp_path: Path, shakespeare: str):
    fields = FIELDS | {"objective": "masked"}
    model = pellucid.load(trained(tmp_path, "text.txt", [shakespeare[:6000]], fields=fields))
    prompts = prompts_for(model)
    first, last = prompts.text.split(BLANK)
    _, held_out = texts_of(model)
    assert any(first + letter + last in held_out for letter in {*held_out} if letter.isalnum())
    assert prompts.other == ""
    assert len(model.trace(prompts.text).inputs.tokens[0]) < 32


def test_an_encoder_reads_the_source_of_its_pair(tmp_path: Path):
    pairs = {row: " ".join(reversed(row.split())) for row in sentences()}
    fields = FIELDS | {"n_ctx": 64, "objective": "source-target"}
    run = trained(tmp_path, "pairs.tsv", [f"{source}\t{target}" for source, target in pairs.items()], fields=fields)
    model = pellucid.load(run)
    prompts = prompts_for(model)
    assert pairs[prompts.source].startswith(prompts.text)
    assert prompts.text != pairs[prompts.source]
    assert len(model.tokenizer.encode(prompts.other)) == len(model.tokenizer.encode(prompts.text))
    assert prompts.other != prompts.text


def test_a_chat_run_opens_on_an_answer(tmp_path: Path):
    answers = sentences()
    rows = [
        {"messages": [{"role": "user", "content": f"say {k}"}, {"role": "assistant", "content": answer}]}
        for k, answer in enumerate(answers)
    ]
    fields = FIELDS | {"n_ctx": 128, "objective": "chat"}
    model = pellucid.load(trained(tmp_path, "chat.jsonl", [json.dumps(row) for row in rows], fields=fields))
    prompts = prompts_for(model)
    assert any(answer.startswith(prompts.text) for answer in answers)
    assert prompts.other != prompts.text


@pytest.mark.parametrize("kind", ["ngram", "recurrent"])
def test_a_predictor_opens_on_its_held_out_text(kind: str, tmp_path: Path, shakespeare: str):
    (tmp_path / "text.txt").write_text(shakespeare[:10_000], encoding="utf-8")
    options = {} if kind == "ngram" else {"steps": 2}
    pellucid.train_predictor(tmp_path / "text.txt", out=tmp_path / "run", kind=kind, **options)
    model = pellucid.load_predictor(tmp_path / "run")
    prompts = prompts_for(model)
    assert prompts.text in shakespeare[8_900:10_000]
    assert prompts.other == ""
    assert math.isfinite(model.score(prompts.text).loss)


def test_a_passage_that_does_not_spell_its_text_is_left_out(model: LanguageModel):
    assert cut_text(model.tokenizer, "Speak, \u2603 speak to the people", 30) is None
    assert cut_text(model.tokenizer, "\n\nSpeak, speak to the people", 17) == "Speak, speak to"
    assert small_model().provenance == {}
    assert stored_tokens(small_model()) is None


def test_the_prompt_ends_before_the_word_that_is_predicted_best():
    model = known_answer()
    text = "Anna Smith met Ivan Lee. Rome is the capital of Italy."
    cut = cut_before_word(model, Prompts(text, loss=1.0))
    assert text.startswith(cut)
    n = len(model.tokenizer.encode(cut))
    score = model.score(text)
    words = [k for k, piece in enumerate(score.pieces) if piece.startswith(b" ") and k >= len(score.pieces) // 2]
    assert n in words
    assert score.log_probs[n] == max(score.log_probs[words])
    assert cut_before_word(model, Prompts("Anna", loss=1.0)) == "Anna"


@pytest.mark.slow
def test_the_page_has_both_prompts(run: Path, model: LanguageModel, look_into: Callable, visit: Callable):
    prompts = prompts_for(model)
    page = visit(look_into(Session(model, name="run")).url + "/#page=experiment")
    assert page.input_value("#prompt") == prompts.text
    page.get_by_role("button", name="Use").click()
    page.wait_for_selector("#patching [data-total]:has-text('exact'):not(:has-text('of'))")
    assert page.input_value("#prompt-b") == prompts.other
    shown = shown_numbers(page, "#patching")
    assert shown["patch.own"] > shown["patch.other"]
    page.get_by_role("button", name="Remove prompt B").click()
    page.get_by_role("button", name="Compare with a second prompt").click()
    ready(page)
    assert page.input_value("#prompt-b") == prompts.other
