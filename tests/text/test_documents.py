"""Reading files and folders, and setting a part aside."""

import hashlib
import json
import os
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pellucid.text.read import formats
from pellucid.text.read.chunks import decode_chunk, decode_chunks
from pellucid.text.read.documents import DocumentError, bundled, read_corpus
from pellucid.text.split import split_corpus
from pellucid.text.tokenizers.tokenizer import learn_tokenizer


def write(folder, files: dict[str, bytes | str]):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def texts(corpus) -> list[str]:
    return [document.text for document in corpus.documents]


def part(split, name) -> list[str]:
    return ["".join(piece.text for piece in pieces) for pieces in split.documents(name)]


@pytest.mark.item("S4-copy-a", "S4-learn-b")
def test_a_folder_is_read_in_the_order_of_its_paths_with_an_account(tmp_path):
    files = {"b.txt": "two", "a/z.md": "one\n", "NOTES": "three", ".git/config": "x", "empty.txt": "", "c.log": "four"}
    corpus = read_corpus(write(tmp_path, files | {"image.dat": b"\x89PNG\0\0", "table.json": "{}"}))
    assert [source.path for source in corpus.sources] == ["NOTES", "a/z.md", "b.txt", "c.log"]
    assert texts(corpus) == ["three", "one\n", "two", "four"]
    assert [source.sha256 for source in corpus.sources] == [
        hashlib.sha256(t.encode()).hexdigest() for t in texts(corpus)
    ]
    assert [source.n_bytes for source in corpus.sources] == [5, 4, 3, 4]
    assert corpus.n_bytes == 16
    reasons = dict(corpus.skipped)
    assert set(reasons) == {".git", "empty.txt", "image.dat", "table.json"}
    assert reasons[".git"] == "hidden"
    assert reasons["empty.txt"] == "empty"
    assert "binary" in reasons["image.dat"]
    assert reasons["table.json"] == "it is no JSON array of objects or strings; --format plain reads it as text"


def test_of_files_that_are_named_an_empty_one_is_left_out_and_a_hidden_one_is_read(tmp_path):
    write(tmp_path, {".a.txt": "hidden", "b.txt": "", "c.txt": "three"})
    corpus = read_corpus([tmp_path / name for name in (".a.txt", "b.txt", "c.txt")])
    assert texts(corpus) == ["hidden", "three"]
    assert dict(corpus.skipped) == {"b.txt": "empty"}


def test_files_and_folders_together_are_each_read_once(tmp_path):
    write(tmp_path, {"x/a.txt": "a", "x/b.txt": "b", "y/c.txt": "c"})
    corpus = read_corpus([tmp_path / "y" / "c.txt", tmp_path / "x", tmp_path / "x" / "a.txt"])
    assert [source.path for source in corpus.sources] == ["x/a.txt", "x/b.txt", "y/c.txt"]
    assert [source.path for source in read_corpus(tmp_path / "x" / "a.txt").sources] == ["a.txt"]


def test_newlines_stay_and_the_byte_order_mark_goes(tmp_path):
    corpus = read_corpus(write(tmp_path, {"a.txt": b"\xef\xbb\xbfone\r\ntwo\rthree\n\xef\xbb\xbf"}))
    assert texts(corpus) == ["one\r\ntwo\rthree\n\ufeff"]
    assert corpus.n_bytes == corpus.sources[0].n_bytes - 3


def test_bytes_that_are_not_utf8_are_replaced_counted_and_still_bytes(tmp_path):
    raw = "naïve café, enough of it to be text. ".encode("latin-1") + "€\ufffd".encode() + b"\xe2\x82"
    corpus = read_corpus(write(tmp_path, {"a.txt": raw}))
    assert texts(corpus) == [raw.decode("utf-8", "replace")]
    assert corpus.replaced == 3
    assert corpus.n_bytes == len(raw)


@given(
    st.lists(
        st.sampled_from(
            [b"a", b"\xe2\x82\xac", b"\xe2\x82", b"\xff", b"\xf0\x9f\x98\x80", b"\xf0\x90", b"\xed\xa0\x80"]
        )
    )
)
def test_pieces_and_cuts_keep_the_text_and_the_bytes(parts):
    raw = b"".join(parts)
    whole = raw.decode("utf-8", "replace")
    for width in (1, 2, 5):
        pieces = list(decode_chunks(raw[i : i + width] for i in range(0, len(raw), width)))
        assert "".join(piece.text for piece in pieces) == whole
        assert sum(piece.n_bytes for piece in pieces) == len(raw)
    for i in range(len(whole) + 1):
        left, right = decode_chunk(raw).cut(i)
        assert (left.text, right.text) == (whole[:i], whole[i:])
        assert left.n_bytes + right.n_bytes == len(raw)


REFUSED = {
    "binary": (b"MZ\0\0", "binary"),
    "UTF-16 without a mark": ("text".encode("utf-16-le"), "binary"),
    "another encoding": ("Съешь ещё этих мягких французских булок".encode("koi8-r"), "not UTF-8"),
    "empty": (b"", "no text to read"),
    "only a mark": (b"\xef\xbb\xbf", "no text to read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_named_files_that_are_not_text_are_refused(name, tmp_path):
    content, message = REFUSED[name]
    write(tmp_path, {"given.txt": content})
    with pytest.raises(DocumentError, match=message):
        read_corpus(tmp_path / "given.txt")


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(DocumentError, match="no such file or folder"):
        read_corpus(tmp_path / "missing")
    with pytest.raises(DocumentError, match="no files were found"):
        read_corpus(tmp_path)
    with pytest.raises(DocumentError, match="at least one file"):
        read_corpus([])
    with pytest.raises(DocumentError, match=r"\.pdf files are not read"):
        read_corpus(write(tmp_path, {"a.pdf": b"x"}) / "a.pdf")
    with pytest.raises(DocumentError, match="choose one of shakespeare"):
        bundled("milton")


def test_a_pipe_in_a_folder_is_skipped_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    corpus = read_corpus(write(tmp_path, {"a.txt": "text"}))
    assert dict(corpus.skipped) == {"pipe": "not a regular file"}


def test_a_file_that_changes_after_it_was_counted_is_noticed(tmp_path):
    corpus = read_corpus(write(tmp_path, {"a.txt": "before"}))
    write(tmp_path, {"a.txt": "beforE"})
    with pytest.raises(DocumentError, match=r"a\.txt changed while"):
        texts(corpus)


@pytest.mark.item("S4-learn-b")
def test_a_long_document_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 7)
    text = "αβγ€😀 " * 50
    document = read_corpus(write(tmp_path, {"a.txt": text})).documents[0]
    pieces = list(document.pieces())
    assert len(pieces) > 50
    assert "".join(piece.text for piece in pieces) == text
    assert (document.n_bytes, document.n_characters) == (len(text.encode()), len(text))
    split = split_corpus(read_corpus(tmp_path), 0.25)
    assert (part(split, "train"), part(split, "held_out")) == ([text[:225]], [text[225:]])


def test_a_new_format_is_one_reader_in_the_table(tmp_path, monkeypatch):
    def read_lines(file, origin):
        for line in file.read().splitlines():
            yield iter([decode_chunk(line)])

    monkeypatch.setitem(formats.READERS, "lines", read_lines)
    monkeypatch.setitem(formats.ENDINGS, ".lines", "lines")
    corpus = read_corpus(write(tmp_path, {"a.lines": "one\ntwo\n\nthree", "b.txt": "four"}))
    assert texts(corpus) == ["one", "two", "three", "four"]
    assert [source.n_documents for source in corpus.sources] == [3, 1]
    assert corpus.n_bytes == 15


# Setting text aside ---------------------------------------------------------------------------


def test_tiny_shakespeare_is_split_and_numbered_as_nanogpt_does():
    data = bundled("shakespeare").read_bytes().decode()
    split = split_corpus(read_corpus(bundled("shakespeare")), held_out=0.1)
    n = len(data)
    assert split.rule == "tail"
    assert part(split, "train") == [data[: int(n * 0.9)]]
    assert part(split, "held_out") == [data[int(n * 0.9) :]]
    tokenizer = learn_tokenizer("char", split.texts("train"))
    assert tokenizer.n_vocab == 65 + 2
    assert tokenizer.encode("\n A") == [0, 1, 13]


sizes = st.lists(st.integers(1, 400), min_size=1, max_size=40)


@given(sizes, st.sampled_from([0.05, 0.1, 0.3, 0.5]), st.integers(0, 3), st.sampled_from(["documents", "stratified"]))
@settings(max_examples=80)
def test_laws_of_the_split(tmp_path_factory, lengths, held_out, seed, rule):
    folder = tmp_path_factory.mktemp("split")
    rng = random.Random(str(lengths))
    written = ["".join(rng.choices("abc é\n", k=n)) for n in lengths]
    corpus = read_corpus(write(folder, {f"{i:03}.txt": text for i, text in enumerate(written)}))
    if len(lengths) == 1 and int(lengths[0] * (1 - held_out)) == 0:
        with pytest.raises(DocumentError, match="too few"):
            split_corpus(corpus, held_out, seed, rule)
        return
    assume(sum(lengths) > 2 * len(lengths))
    split = split_corpus(corpus, held_out, seed, rule)
    train, held = part(split, "train"), part(split, "held_out")
    assert train
    assert held
    assert split == split_corpus(read_corpus(folder), held_out, seed, rule)
    n_bytes = sum(len(text.encode()) for text in held)
    if split.rule == "documents":
        assert sorted(train + held) == sorted(written)
        assert not set(train) & set(held)
        assert held_out / 2 <= n_bytes / corpus.n_bytes <= held_out * 2
    elif split.rule == "stratified":
        assert "".join(sorted("".join(train + held))) == "".join(sorted("".join(written)))
        assert 0.7 * held_out - 0.01 <= n_bytes / corpus.n_bytes <= 1.3 * held_out + 0.01
    else:
        assert [text[: int(len(text) * (1 - held_out))] for text in written if int(len(text) * (1 - held_out))] == train
        assert sum(map(len, train + held)) == sum(lengths)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 400), min_size=2, max_size=8), st.integers(4, 300), st.integers(1, 4))
def test_a_sample_is_runs_spread_over_the_training_text(tmp_path_factory, lengths, n, runs):
    folder = tmp_path_factory.mktemp("sample")
    letters = iter(map(chr, range(0x4E00, 0x9FFF)))  # every character another one
    write(folder, {f"{k}.txt": "".join(next(letters) for _ in range(length)) for k, length in enumerate(lengths)})
    try:
        split = split_corpus(read_corpus(folder), 0.2)
    except DocumentError:
        assume(False)
    text = "".join(split.texts("train"))
    wanted = [text[k * len(text) // runs :][: n // runs] for k in range(runs)] if len(text) > n else [text]
    assert split.sample(n, runs) == "".join(wanted)


def test_many_documents_come_very_near_the_share_and_seeds_choose_others(tmp_path):
    corpus = read_corpus(write(tmp_path, {f"{i}.txt": f"document {i} " * (i % 17 + 1) for i in range(300)}))
    splits = [split_corpus(corpus, 0.1, seed) for seed in (1, 2)]
    for split in splits:
        assert split.rule == "stratified"
        held = sum(len(text.encode()) for text in part(split, "held_out"))
        assert abs(held - 0.1 * corpus.n_bytes) <= max(corpus.documents.rows["n_bytes"]) / 2
    assert splits[0].cuts != splits[1].cuts


def test_exact_duplicates_stay_together(tmp_path):
    files = {f"{i}.txt": f"text {i % 20} " * 20 for i in range(200)}
    for seed in range(5):
        split = split_corpus(read_corpus(write(tmp_path, files)), 0.2, seed, "documents")
        assert split.rule == "documents"
        assert not set(part(split, "train")) & set(part(split, "held_out"))


def test_one_huge_document_among_few_gives_tails_and_says_so(tmp_path):
    corpus = read_corpus(write(tmp_path, {"big.txt": "x" * 100_000, "a.txt": "small one", "b.txt": "small two"}))
    split = split_corpus(corpus, 0.1)
    assert split.rule == "tail"
    assert "every document" in split.note
    assert [len(text) for text in part(split, "held_out")] == [1, 1, 10_000]


def test_shares_and_corpora_that_cannot_be_split_are_refused(tmp_path):
    corpus = read_corpus(write(tmp_path, {"a.txt": "x"}))
    with pytest.raises(DocumentError, match="too few"):
        split_corpus(corpus, 0.1)
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(DocumentError, match="above 0 and below 1"):
            split_corpus(corpus, share)


def test_a_row_that_is_not_wanted_is_not_parsed(tmp_path, monkeypatch):
    """The first row says which field holds the text, also where it is not wanted itself."""
    rows = [{"story": "one"}, {"story": "two", "title": "a second field of text"}, {"story": "three"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    corpus = read_corpus(tmp_path)
    parsed: list[str] = []
    monkeypatch.setattr(formats.json, "loads", lambda line: parsed.append(line) or json.JSONDecoder().decode(line))
    wanted = [(k, "".join(piece.text for piece in pieces)) for k, pieces in corpus.stream(lambda k: k == 1)]
    assert wanted == [(1, "two")]
    assert len(parsed) == 2
