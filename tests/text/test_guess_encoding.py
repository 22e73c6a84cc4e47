"""The encoding of bytes that are not UTF-8 is guessed from few of them, by either library, and of noise not at all."""

import random
from importlib import import_module

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


@pytest.mark.parametrize("encoding", SENTENCES)
def test_a_sentence_shows_its_encoding(encoding):
    assert fitting_encoding(SENTENCES[encoding].encode(encoding)) == encoding


def test_noise_has_none():
    assert fitting_encoding(b"\xff") in ("", *CANDIDATES)  # without a warning of the library
    assert fitting_encoding(bytes(random.Random(3).choices(range(128, 256), k=3000))) == ""


def test_accents_between_ascii_letters_are_of_a_latin_script():
    assert candidates_for(SENTENCES["cp1252"].encode("cp1252")) == LATIN_CANDIDATES
    assert candidates_for(SENTENCES["cp1251"].encode("cp1251")) == CANDIDATES
