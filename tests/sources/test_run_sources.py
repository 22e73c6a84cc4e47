"""Passages of a text in the text of a run: they stand there, are no longer, and lead to the bytes of the file."""

import codecs
import gzip
import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid
from pellucid.cli import main
from pellucid.runs.options import RecipeError
from pellucid.sources.of_run import RunSources, load_sources
from pellucid.sources.places import PartText
from pellucid.sources.suffix_array import SourcesError
from pellucid.sources.text_index import TextIndex
from pellucid.text import learn_tokenizer, prepare_tokens, read_corpus, split_corpus
from pellucid.text.read.chunks import DocumentError

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "ngrams": (), "batch": 4, "sample_every": 0}
TINY |= {"compile": "no", "precision": "float32", "device": "cpu"}


def indexed(folder, tokenizer, name="train", held_out=0.1, **options):
    """One part of the files of a folder, split and encoded as a run does, and its documents."""
    split = split_corpus(read_corpus(folder), held_out, **options)
    tokens = prepare_tokens(split, tokenizer, folder.parent / "cache")
    excluded = [*tokenizer.special.values(), *([] if tokenizer.unknown is None else [tokenizer.unknown])]
    index = TextIndex.of_ids(tokens.part(name), excluded)
    return RunSources(folder, "train", index, PartText(tokens.part(name), tokenizer, split, name)), split


def check(sources, texts, query, fewest=1):
    """Every passage stands at each of its places, and at none of them is it longer; `texts` are the documents."""
    result = sources.find(query, fewest_tokens=fewest)
    for span in result.spans:
        assert query[span.start : span.stop] == span.text
        assert 1 <= len(span.occurrences) <= span.count
        ends = []
        for occurrence in span.occurrences:
            file, (start, stop) = occurrence.place.file.rpartition("/")[2], occurrence.place.characters
            text = texts[file]
            assert text[start:stop] == span.text
            assert text[:start].endswith(occurrence.before)
            assert text[stop:].startswith(occurrence.after)
            before = span.start > 0 and start > 0 and query[span.start - 1] == text[start - 1]
            after = span.stop < len(query) and stop < len(text) and query[span.stop] == text[stop]
            ends.append(before or after)
        assert span.count > 100 or not all(ends)
    return result


@pytest.fixture(scope="module")
def shakespeare_sources(tmp_path_factory, shakespeare):
    folder = tmp_path_factory.mktemp("searched") / "texts"
    folder.mkdir()
    texts = {f"{k}.txt": shakespeare[4000 * k : 4000 * k + 4000] for k in range(4)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tokenizer = learn_tokenizer("bpe", [shakespeare[:16_000]], 400)
    sources, _ = indexed(folder, tokenizer, rule="tail")
    return sources, {name: text[:3600] for name, text in texts.items()}


@given(st.data())
def test_every_passage_stands_where_it_is_said_to_and_is_no_longer_there(shakespeare_sources, data):
    sources, texts = shakespeare_sources
    pieces = data.draw(st.lists(st.tuples(st.sampled_from(sorted(texts)), st.integers(0, 3500), st.integers(1, 90))))
    strange = data.draw(st.sampled_from(("", " ", "\n\n", "xyz\u00e9", "<|endoftext|>")))
    query = strange.join(texts[name][start : start + n] for name, start, n in pieces)
    check(sources, texts, query)


def test_a_passage_is_as_long_as_its_characters_go_on(shakespeare_sources):
    sources, texts = shakespeare_sources
    middle = texts["1.txt"].index("Your virtue is") if "Your virtue is" in texts["1.txt"] else 1003
    query = "Zz" + texts["1.txt"][middle + 2 : middle + 163] + "Qq"
    (span,) = sources.find(query).spans
    assert (span.start, span.stop, span.count) == (2, 163, 1)
    assert sources.find(query).copied_share == 161 / 165
    # a word has another id at the beginning of a text than inside one
    at = texts["2.txt"].index(" ", 2000) + 1
    (span,) = sources.find(texts["2.txt"][at : at + 100]).spans
    assert (span.start, span.stop) == (0, 100)
    assert span.occurrences[0].place.characters == (at, at + 100)


def test_no_passage_crosses_documents(shakespeare_sources):
    sources, texts = shakespeare_sources
    result = check(sources, texts, texts["0.txt"][-60:] + texts["1.txt"][:60])
    assert {(span.start, span.stop) for span in result.spans if span.n_tokens > 5} == {(0, 60), (60, 120)}


def test_what_only_the_context_holds_is_left_out(shakespeare_sources):
    sources, texts = shakespeare_sources
    prompt, text = texts["0.txt"][:100], "\u00e9" + texts["1.txt"][500:600]
    result = sources.find(prompt + text, after=100)
    assert [span.text for span in result.spans] == [text[1:]]
    assert result.copied_share == 100 / 101
    assert result.n_characters == 101


def test_a_short_text_has_its_longest_passage_alone(shakespeare_sources):
    sources, _ = shakespeare_sources
    result = sources.find("All:\nSpeak, speak.")
    assert result.spans == ()
    assert result.longest.text == "All:\nSpeak, speak."
    assert "the longest that is shorter" in repr(result)
    assert "<table>" in result._repr_html_()
    assert sources.find("\u6f22").longest is None
    assert sources.count("Speak, speak.") == 1
    with pytest.raises(SourcesError, match="numbers from 1 on"):
        sources.find("All", fewest_tokens=0)


CONTENT = "\u00e4\u00f6 begin\r\nThe second line, \u4e16\u754c\r\nThe third \U0001f30d has an astral sign\r\n"
PASSAGE = "line, \u4e16\u754c\r\nThe third \U0001f30d has an"


@pytest.mark.parametrize(
    ("name", "raw", "content"),
    [
        ("plain.txt", CONTENT.encode(), CONTENT.encode()),
        ("marked.txt", codecs.BOM_UTF8 + CONTENT.encode(), codecs.BOM_UTF8 + CONTENT.encode()),
        ("little.txt", codecs.BOM_UTF16_LE + CONTENT.encode("utf-16-le"), None),
        ("big.txt", codecs.BOM_UTF16_BE + CONTENT.encode("utf-16-be"), None),
        ("packed.txt.gz", gzip.compress(CONTENT.encode()), CONTENT.encode()),
        ("broken.txt", b"\xff\xfe\xfd broken "[1:] + CONTENT.encode(), None),
        ("front.md", b"---\ntitle: x\n---\n" + CONTENT.encode(), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_places_lead_to_the_very_bytes_of_a_file(name, raw, content, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_bytes(raw)
    (tmp_path / "texts" / "other.txt").write_text("Something else. " * 30, encoding="utf-8")
    sources, split = indexed(tmp_path / "texts", learn_tokenizer("byte", []), rule="tail", held_out=0.01)
    (span,) = [one for one in sources.find(PASSAGE, fewest_tokens=12).spans if one.text == PASSAGE]
    place = span.occurrences[0].place
    start, stop = place.file_bytes
    encoding = "utf-16-le" if "little" in name else "utf-16-be" if "big" in name else "utf-8"
    held = content or raw
    assert held[start:stop].decode(encoding) == PASSAGE
    assert place.line == held[:start].decode(encoding, "replace").count("\n") + 1
    document = next(one for one in split.corpus.documents if one.origin.name.endswith(name))
    assert document.text[slice(*place.characters)] == PASSAGE
    assert place.row is None


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("page.html", f"<html><head><title>t</title></head><body><p>{CONTENT}</p></body></html>".encode()),
        ("rows.jsonl", "".join(json.dumps({"text": one}) + "\n" for one in ("first", CONTENT)).encode()),
        ("table.csv", ('text\r\nfirst\r\n"' + CONTENT + '"\r\n').encode()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_places_in_extracted_text_are_said_to_be(name, raw, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_bytes(raw)
    (tmp_path / "texts" / "other.txt").write_text("Something else. " * 30, encoding="utf-8")
    sources, split = indexed(tmp_path / "texts", learn_tokenizer("byte", []), rule="tail", held_out=0.01)
    passage = "The second line, \u4e16\u754c"
    (span,) = [one for one in sources.find(passage, fewest_tokens=12).spans if one.text == passage]
    place = span.occurrences[0].place
    documents = [one for one in split.corpus.documents if one.origin.name.endswith(name)]
    document = documents[-1]
    assert document.text[slice(*place.characters)] == passage
    assert place.file_bytes is None
    assert place.row == (2 if name != "page.html" else None)
    assert place.line == document.text[: place.characters[0]].count("\n") + 1


@pytest.mark.parametrize("kind", ["char", "word"])
def test_unknown_words_match_nothing_and_the_others_keep_their_places(kind, tmp_path, shakespeare):
    (tmp_path / "texts").mkdir()
    texts = {"a.txt": shakespeare[:3000], "b.txt": shakespeare[3000:6000]}
    for name, text in texts.items():
        (tmp_path / "texts" / name).write_text(text, encoding="utf-8")
    tokenizer = learn_tokenizer(kind, [shakespeare[:2500]], 120 if kind == "word" else None)
    sources, _ = indexed(tmp_path / "texts", tokenizer, rule="tail")
    query = shakespeare[1000:1200] + "\u6f22\u6f22" + shakespeare[3100:3300]
    result = check(sources, texts, query, fewest=3)
    assert result.spans


def test_held_out_documents_and_tails_have_places_too(tmp_path, shakespeare):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(shakespeare[:5000], encoding="utf-8")
    for kind in ("byte", "char"):
        tokenizer = learn_tokenizer(kind, [shakespeare[:5000]])
        sources, _ = indexed(tmp_path / "texts", tokenizer, "held_out")
        (span,) = sources.find(shakespeare[4600:4700]).spans
        place = span.occurrences[0].place
        assert place.characters == (4600, 4700)
        assert place.line == shakespeare[:4600].count("\n") + 1


# Of a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory, shakespeare):
    folder = tmp_path_factory.mktemp("of-a-run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELLUCID_CACHE", str(folder / "cache"))
        (folder / "text.txt").write_text(shakespeare[:20_000], encoding="utf-8")
        pellucid.train(folder / "text.txt", out=folder / "run", steps=2, fields=TINY | {"vocabulary": 400})
    return folder


@pytest.fixture(autouse=True)
def _cache(run, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(run / "cache"))


def test_the_text_of_a_run_is_asked(run, shakespeare):
    sources = load_sources(run / "run")
    (span,) = sources.find("\u6f22" + shakespeare[5000:5200]).spans
    assert span.occurrences[0].place.file_bytes == (5000, 5200)
    held_out = shakespeare[19_000:19_200]
    assert not sources.find(held_out).spans
    assert load_sources(run / "run", "held-out").find(held_out).copied_share == 1
    assert 0 < sources.index.by_chance < 50


def test_a_text_that_changed_or_is_gone_is_named(run, tmp_path):
    shutil.copytree(run / "run", tmp_path / "run")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    moved = tmp_path / "text.txt"
    moved.write_text("another text " * 2000)
    recipe["options"]["inputs"] = [str(moved)]
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(RecipeError, match=r"trained on other text \(text.txt changed, from 20000 to"):
        load_sources(tmp_path / "run")
    moved.unlink()
    with pytest.raises(DocumentError, match=r"the text of .*run, which cannot be read: .*text.txt"):
        load_sources(tmp_path / "run")
    with pytest.raises(RecipeError, match="is no run"):
        load_sources(tmp_path)
    with pytest.raises(SourcesError, match="choose train or held-out"):
        load_sources(run / "run", "test")


def test_what_a_model_generates_is_looked_up(run, shakespeare):
    model = pellucid.load(run / "run")
    generated = model.generate("speak", max_tokens=5, seed=1)
    sources = generated.sources()
    assert sources == model.sources(generated)
    assert sources.n_characters == len(generated.text)
    assert model.sources(shakespeare[:100]).copied_share == 1
    assert model.sources(shakespeare[:100], part="held-out").spans == ()
    assert "model" not in repr(generated)
    with pytest.raises(RecipeError, match="known-answer is no run"):
        pellucid.language_model.known_answer().sources("text")


def test_the_commands_say_where_a_text_is_from(run, capsys, tmp_path, shakespeare):
    folder = str(run / "run")
    assert main(["sources", "build", folder]) == 0
    assert "tokens of the part train are indexed" in capsys.readouterr().out
    assert main(["sources", folder, shakespeare[300:420]]) == 0
    out = capsys.readouterr().out
    assert out.startswith("100.0% of 120 characters stand verbatim in the training text of")
    line = shakespeare[:300].count("\n") + 1
    assert f"text.txt:{line}" in out
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": one}) + "\n" for one in (shakespeare[19_000:19_100], "new"))
    )
    assert main(["sources", "find", folder, str(tmp_path / "rows.jsonl"), "--part", "held-out", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["copied_share"] == 1
    assert first["document"].endswith("rows.jsonl, row 1")
    assert first["spans"][0]["occurrences"][0]["place"]["file_bytes"] == [19_000, 19_100]
    assert second["copied_share"] == 0
    assert main(["sources", folder, "speak", "--min-tokens", "1", "--occurrences", "2"]) == 0
    assert "at least 1 tokens" in capsys.readouterr().out


def test_generate_prints_the_sources_of_what_it_wrote(run, capsys, tmp_path):
    folder, prompt = str(run / "run"), "speak"
    for words in ([], ["--n", "2"], ["--no-stream"]):
        assert main(["generate", folder, prompt, "--max-tokens", "4", "--sources", "--seed", "1", *words]) == 0
        assert capsys.readouterr().out.count("stand verbatim in the training text of") == (2 if "--n" in words else 1)
    assert main(["generate", folder, prompt, "--max-tokens", "4", "--sources", "--json", "--seed", "1"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["sources"]["part"] == "train"
    assert "model" not in values
    saved = pellucid.load(folder).save(tmp_path / "saved")
    assert main(["generate", str(saved), prompt, "--sources"]) == 2
    assert "is not a run: leave it out" in capsys.readouterr().err


def test_passages_that_the_parts_share_are_listed(tmp_path, shakespeare, monkeypatch, capsys):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    copied = shakespeare[3000:3400]
    (tmp_path / "a.txt").write_text(shakespeare[:9000])
    (tmp_path / "b.txt").write_text(shakespeare[12_000:13_000] + copied + shakespeare[14_000:14_500])
    options = {"out": tmp_path / "run", "held_out": tmp_path / "b.txt", "steps": 1}
    pellucid.train(tmp_path / "a.txt", fields=TINY | {"vocabulary": 300}, **options)
    shared = load_sources(tmp_path / "run").shared_passages()
    assert len(shared.spans) == 1
    assert copied.strip() in shared.spans[0].text
    assert shared.places[0].characters[0] <= 1000 + 3
    assert abs(shared.share - len(shared.spans[0].text) / 1900) < 0.01
    capsys.readouterr()
    assert main(["sources", "shared", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{shared.share:.1%} of the characters of the held-out text")
    assert "b.txt:" in out
    assert "a.txt:" in out


@pytest.mark.parametrize("objective", ["chat", "source-target"])
def test_places_in_conversations_and_pairs_are_lines_of_their_files(objective, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    answers = [f"The answer to question {k} is {k * k}, and {k} times {k + 1} is {k * (k + 1)}." for k in range(30)]
    if objective == "chat":
        said = [
            [{"role": "user", "content": f"Q{k}?"}, {"role": "assistant", "content": answers[k]}] for k in range(30)
        ]
        lines, file = [json.dumps({"messages": messages}) for messages in said], tmp_path / "rows.jsonl"
    else:
        lines, file = [f"Q{k}?\t{answers[k]}" for k in range(30)], tmp_path / "rows.tsv"
    file.write_text("\n".join(lines) + "\n")
    fields = TINY | {"objective": objective, "n_ctx": 64, "vocabulary": 300}
    pellucid.train(file, out=tmp_path / "run", steps=1, fields=fields)
    parts = {part: load_sources(tmp_path / "run", part) for part in ("train", "held-out")}
    of_part = []
    for k, answer in enumerate(answers):
        results = {part: sources.find(answer) for part, sources in parts.items()}
        (part,) = [name for name, result in results.items() if result.longest.text == answer]
        of_part.append(part)
        place = results[part].longest.occurrences[0].place
        assert (place.row, place.file, place.file_bytes) == (k + 1, file.name, None)
        # a passage ends where a message does
        assert parts[part].find(f"Q{k}?{answer}").longest.text == answer
    assert {*of_part} == {"train", "held-out"}
