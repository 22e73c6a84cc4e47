"""The encoding of bytes that are not UTF-8 is guessed from few of them, by either library, and of noise not at all."""

import random
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from pellucid.text.read import guess_encoding
from pellucid.text.read.guess_encoding import CANDIDATES, LATIN_CANDIDATES, candidates_for, fitting_encoding

SENTENCES = {
    "cp1252": "Déjà vu à la cafétéria, où l'on déjeune en été. ",
    "cp1251": "Москва — столица России. " * 4,
    "cp1253": "Η Αθήνα είναι η πόλη. " * 4,
    "cp1250": "Zażółć gęślą jaźń, a potem idź do szkoły. " * 4,
    "cp932": "日本語のテキストです。" * 5,
}


@pytest.fixture(params=["the better library", "the one that is always there"], autouse=True)
def library(request, monkeypatch):
    def without_chardet(name):
        if name == "chardet":
            raise ImportError(name)
        return import_module(name)

    if request.param == "the one that is always there":
        monkeypatch.setattr(guess_encoding, "import_module", without_chardet)
    return request.param


@pytest.mark.parametrize("encoding", SENTENCES)
def test_a_sentence_shows_its_encoding(encoding):
    assert fitting_encoding(SENTENCES[encoding].encode(encoding)) == encoding


#: languages of the Universal Declaration of Human Rights, and encodings that their texts are found in
LANGUAGES = {
    "cp1252": ("fra", "deu_1901", "spa", "por_PT", "ita", "swe", "dan", "fin", "isl", "cat"),
    "cp1250": ("pol", "ces", "hun", "slk", "hrv", "slv"),
    "cp1251": ("rus", "ukr", "bul"),
    "cp1257": ("lit", "lav", "est"),
    "cp1254": ("tur",),
    "koi8-r": ("rus",),
    "cp1253": ("ell_monotonic",),
    "cp1255": ("heb",),
    "cp1256": ("arb",),
    "cp874": ("tha",),
    "cp932": ("jpn",),
    "euc-jp": ("jpn",),
    "cp949": ("kor",),
    "gb18030": ("cmn_hans",),
    "big5": ("cmn_hant",),
}


def test_of_the_declaration_the_libraries_name_as_many_encodings_as_the_module_says(needs_data, library):
    named, samples = 0, [(encoding, language) for encoding in LANGUAGES for language in LANGUAGES[encoding]]
    with zipfile.ZipFile(needs_data / "udhr.zip") as archive:
        paths = {Path(name).stem.removeprefix("udhr_"): name for name in archive.namelist()}
        texts = {language: archive.read(paths[language]).decode() for _, language in samples}
    for encoding, language in samples:
        text = texts[language][400:4000].encode(encoding, "ignore")[:1500].decode(encoding, "ignore")
        content = text.encode(encoding)
        guess = fitting_encoding(content)
        named += bool(guess) and content.decode(guess) == text
    assert len(samples) == 33
    assert named == (33 if library == "the better library" else 29)


def test_noise_has_none():
    assert fitting_encoding(b"\xff") in ("", *CANDIDATES)  # without a warning of the library
    assert fitting_encoding(bytes(random.Random(3).choices(range(128, 256), k=3000))) == ""


def test_accents_between_ascii_letters_are_of_a_latin_script():
    assert candidates_for(SENTENCES["cp1252"].encode("cp1252")) == LATIN_CANDIDATES
    assert candidates_for(SENTENCES["cp1251"].encode("cp1251")) == CANDIDATES
