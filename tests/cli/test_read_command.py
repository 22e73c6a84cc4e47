"""`pellucid read`: what training would read, file by file, and what not, before it does."""

import json
import random
import sys

import pytest

import pellucid
from pellucid import cli
from pellucid.text.read.documents import read_corpus
from pellucid.text.read.find import ReadOptions

WORDS = ["the", "server", "answered", "a", "request", "and", "closed", "its", "connection", "after", "some", "timeouts"]
PAGE = (
    "<html><head><title>Bread</title></head><body><div>We use cookies. <button>Accept</button></div>"
    "<nav><a>Home</a> <a>Recipes</a></nav><article><p>Mix flour and water, and let it rest.</p></article></body></html>"
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def folder(tmp_path):
    """A folder as people have them."""
    draw = random.Random(1)
    texts = tmp_path / "texts"
    for name in ("logs", ".git", "notes"):
        (texts / name).mkdir(parents=True)
    lines = [f"2026-01-{draw.randint(1, 28):02} {' '.join(draw.choices(WORDS, k=9))}\n" for _ in range(900)]
    (texts / "logs" / "server.log").write_text("".join(lines))
    (texts / "bread.html").write_text(PAGE)
    (texts / "notes" / "plan.md").write_text("---\ntitle: A plan\n---\n\nIn spring we sow peas.\n" * 20)
    (texts / "notes" / "empty.txt").write_text("")
    (texts / "table.csv").write_text("id,text\n" + "".join(f"{i},row {i} of some text\n" for i in range(40)))
    (texts / "report.pdf").write_bytes(b"%PDF-1.4")
    (texts / "photo.jpg").write_bytes(b"\xff\xd8\0" * 9)
    (texts / ".git" / "config").write_text("x")
    (texts / ".hidden").write_text("x")
    return texts


def test_files_are_named_with_their_shares_the_largest_first(folder):
    report, corpus = pellucid.read(folder), read_corpus(folder)
    assert [file.path for file in report.files] == ["logs/server.log", "notes/plan.md", "table.csv", "bread.html"]
    assert sum(file.share for file in report.files) == pytest.approx(1)
    assert report.files[0].share == pytest.approx((folder / "logs" / "server.log").stat().st_size / corpus.n_bytes)
    totals = (len(corpus.documents), int(corpus.documents.rows["n_characters"].sum()), corpus.n_bytes)
    assert (report.n_documents, report.n_characters, report.n_bytes) == totals
    assert report.scripts == {"Latin": 1.0}
    assert not report.stops


def test_ten_passages_of_every_kind_show_what_was_extracted(folder):
    passages = pellucid.read(folder).passages
    assert len(passages) == 10
    assert {passage.path.rpartition(".")[2] for passage in passages} == {"log", "md", "csv", "html"}
    page = next(passage.text for passage in passages if passage.path == "bread.html")
    assert page.startswith("Bread\nWe use cookies. Accept\nHome Recipes\n\nMix flour")
    assert any(passage.text.startswith("In spring we sow peas") for passage in passages)
    rows = [(passage.position, passage.text) for passage in passages if passage.path == "table.csv"]
    assert rows == [(f"row {n}", f"row {n - 1} of some text") for n in (1, 14, 27)]


def test_a_narrow_window_has_shares_and_whole_names(folder):
    lines = pellucid.read(folder).lines(40)
    assert max(map(len, lines)) <= 40
    assert [line.split()[-1] for line in lines[:3]] == ["file", "logs/server.log", "notes/plan.md"]


def test_what_is_not_read_is_said_by_reason_and_hidden_files_are_one_count(folder, capsys):
    assert cli.main(["read", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    lines = shown.partition("not read\n")[2].partition("\n\n")[0]
    assert lines.endswith("\n      2  hidden")
    for said in ("empty: notes/empty.txt", "it is binary, expected text: photo.jpg", "report.pdf"):
        assert said in " ".join(lines.split())
    assert "text: 4 files, 43 documents" in shown


def test_json_is_one_object_with_every_file_and_no_other_line(folder, capsys):
    for i in range(25):
        (folder / f"{i}.txt").write_text(f"text {i} ")
    assert cli.main(["read", str(folder), "--json", "--exclude", "*.log"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert len(read["files"]) == 28
    assert {"reason": "excluded by *.log", "files": ["logs/server.log"]} in read["skipped"]
    assert read["n_documents"] == 67
    assert set(read["tokens"]) == {"n_tokens", "n_vocab", "seconds"}
    assert cli.main(["read", str(folder)]) == 0
    assert "9 smaller files (--json lists all)" in capsys.readouterr().out


def test_tokens_are_about_those_of_a_run(folder):
    text = " ".join(random.Random(2).choices(WORDS, k=30_000))
    (folder / "words.txt").write_text(text)
    report = pellucid.read(folder / "words.txt")
    tokenizer = pellucid.train_tokenizer(folder / "words.txt", vocabulary=320)
    assert report.tokens is not None
    assert report.tokens.n_vocab == 320
    assert report.tokens.n_tokens == pytest.approx(len(tokenizer.encode(text)), rel=0.02)


def test_what_would_stop_training_is_said_and_the_rest_is_shown(folder, capsys):
    assert cli.main(["read", str(folder / "report.pdf"), str(folder / "notes")]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "training would stop: report.pdf: .pdf files are not read" in shown
    assert "notes/plan.md" in shown
    assert cli.main(["read", str(folder / "report.pdf"), str(folder / "notes"), "--skip-bad"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "training would stop" not in shown
    assert "1 it cannot be read: .pdf files are not read" in shown


def test_what_has_no_text_is_refused_with_the_reasons(tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    for path, said in (
        (tmp_path / "nothing", "there is no such file or folder"),
        (tmp_path, "there is no text to read (empty.txt: empty)"),
    ):
        assert cli.main(["read", str(path)]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "assistant", "content": "Hello."}]}\n')
    assert cli.main(["read", str(tmp_path)]) == 2
    assert "these files hold conversations" in capsys.readouterr().err


def test_a_text_that_is_too_short_to_hold_out_a_part_would_stop(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    report = pellucid.read(tmp_path)
    assert report.tokens is None
    assert "too few to hold 10.0% of them out" in report.stops[0]


def test_long_and_strange_names_fit_the_screen(tmp_path):
    (tmp_path / ("long" * 40 + ".txt")).write_text("A text.\x1b[31m\nAnother line.")
    (tmp_path / "a\x1b[31mb.txt").write_text("More text.")
    shown = str(pellucid.read(tmp_path))
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "A text.\\u001b[31m / Another line." in shown


FRENCH = (
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité. Chacun peut se prévaloir de "
    "tous les droits et de toutes les libertés proclamés dans la présente Déclaration, sans distinction aucune, "
    "notamment de race, de couleur, de sexe, de langue, de religion, d'opinion politique ou de toute autre opinion. "
)
RUSSIAN = (
    "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства. "
)


def test_a_file_that_is_most_of_the_text_is_warned_of(folder):
    (warning,) = pellucid.read(folder).warnings
    assert warning.startswith("logs/server.log is 97% of the text")
    assert "--exclude 'logs/server.log'" in warning
    assert not pellucid.read(folder, reading=ReadOptions(exclude="logs/server.log")).warnings[1:]
    assert not pellucid.read(folder / "logs").warnings


@pytest.mark.parametrize("module", ["chardet", ""])
def test_the_encoding_that_fits_is_named_and_reads_every_byte(module, folder, monkeypatch):
    if module:  # without the better library
        monkeypatch.setitem(sys.modules, module, None)
    (folder / "french.txt").write_bytes((FRENCH * 4).encode("latin-1"))
    (folder / "table.csv").write_bytes(f"id,text\n1,{FRENCH[:70]}\n".encode("latin-1"))
    report = pellucid.read(folder)
    n = sum(character > "\x7f" for character in FRENCH * 4 + FRENCH[:70])
    assert report.warnings[1] == (
        f"french.txt and 1 more file have {n} sequences of bytes that are not UTF-8 and became U+FFFD; they fit "
        "cp1252, which reads “Tous les êtres humains naissent libres e”: if that is right, add --encoding cp1252"
    )
    assert not [note for note in report.notes if "UTF-8" in note]
    reread = pellucid.read(folder, reading=ReadOptions(encoding="cp1252"))
    assert len(reread.warnings) == 1
    assert FRENCH[:60] in [passage.text[:60] for passage in reread.passages]


def test_several_encodings_and_files_that_are_damaged(folder):
    (folder / "french.txt").write_bytes((FRENCH * 4).encode("latin-1"))
    english = "The same in English, which says that everyone is free. " * 40
    (folder / "russian.txt").write_bytes((english + RUSSIAN * 4).encode("cp1251"))
    (folder / "damaged.txt").write_bytes(FRENCH.encode() + b"caf\xe9")
    warnings = " ".join(pellucid.read(folder).warnings)
    assert "french.txt has" in warnings
    assert "they fit cp1251, which reads “" in warnings
    assert "everyone is free. Все люди" in warnings
    assert "--encoding names one encoding for all such files, and these have 2" in warnings
    assert "iconv -f cp1251 -t utf-8 FILE" in warnings
    n = len(FRENCH.encode()) + 3
    damaged = "damaged.txt has 1 sequence of bytes that are not UTF-8 and became U+FFFD; no usual encoding fits"
    assert f"{damaged}: the file is damaged, the first time at byte {n}" in warnings


def test_a_file_that_is_left_out_for_its_encoding_is_left_out_with_its_name(folder):
    (folder / "russian.txt").write_bytes((RUSSIAN * 4).encode("cp1251"))
    (folder / "noise.txt").write_bytes(bytes(random.Random(3).choices(range(128, 256), k=3000)))
    reasons = {file.path: file.reason for file in pellucid.read(folder).skipped}
    assert "it is probably cp1251; name it with --encoding cp1251" in reasons["russian.txt"]
    assert "it is binary or in another encoding; name it with --encoding NAME" in reasons["noise.txt"]


def test_texts_that_repeat_are_warned_of_and_left_out_where_asked(folder):
    (folder / "again.md").write_text((folder / "notes" / "plan.md").read_text())
    repeated = next(warning for warning in pellucid.read(folder).warnings if "--drop-duplicates" in warning)
    assert repeated.startswith("1 of 44 documents has the text of an earlier one")
    assert "(notes/plan.md is again.md again)" in repeated
    dropped = pellucid.read(folder, reading=ReadOptions(drop_duplicates=True))
    assert "notes/plan.md" not in [file.path for file in dropped.files]
    assert "again.md" in [file.path for file in dropped.files]


def test_fields_of_several_kinds_of_files(folder, capsys):
    (folder / "chat.csv").write_text("id,message\n1,hello there\n")
    words = ["--include", "*.csv", "--field", "chat.csv=message"]
    assert cli.main(["read", str(folder), "--field", "text", *words]) == 0
    assert "hello there" in capsys.readouterr().out
    assert cli.main(["read", str(folder), "--field", "text", "--field", "body", *words]) == 2
    assert "--field text --field body: one field is that of all files; name those of each" in capsys.readouterr().err
