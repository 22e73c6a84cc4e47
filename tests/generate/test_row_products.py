"""Compiled products: the same numbers however they are computed, and another way where there is no compiler."""

import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.generate import GenerationError, row_products
from pellucid.generate.pack_weights import pack_network
from pellucid.generate.packed_linear import AsLoaded, Int4, Int8

SMALL = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=1)


@pytest.fixture
def asked_again(monkeypatch):
    """The library is looked for anew, in the test and after it; changes of the environment."""
    row_products.load_library.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    row_products.load_library.cache_clear()


def test_there_is_a_compiler_here():
    """The other tests of compiled products say nothing without one."""
    assert row_products.why_not_compiled() == ""


@pytest.mark.parametrize("product", [AsLoaded, Int8, Int4])
@settings(max_examples=20)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 16))
def test_a_row_has_the_same_numbers_alone_and_among_others_with_one_thread_and_with_two(product, n_out, n_in, n_rows):
    generator = torch.Generator().manual_seed(n_in)
    layer = product(torch.randn(n_out, n_in, generator=generator), None)
    x = torch.randn(n_rows, n_in, generator=generator)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = layer(x)
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in x]))


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_may_lie_anywhere_in_memory(transposed):
    layer = Int8(torch.randn(5, 6), None)
    x = torch.randn(6, 3).T if transposed else torch.randn(3, 9)[:, 2:8]
    assert torch.equal(layer(x), layer(x.clone(memory_format=torch.contiguous_format)))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_without_a_compiler_packed_weights_are_refused(weights, asked_again):
    asked_again.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        GenerationError, match=rf"weights = {weights}: there is no C\+\+ compiler .*; leave weights at auto"
    ):
        pack_network(make_network(SMALL, dtype=torch.float32), weights)


def test_a_compiler_that_fails_leaves_nothing_behind_and_is_quoted(asked_again, tmp_path):
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    compiler.chmod(0o755)
    asked_again.setenv("CXX", str(compiler))
    asked_again.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert row_products.why_not_compiled() == f"{compiler} does not compile compiled_step.cpp: no such option"
    assert list((tmp_path / "cache/pellucid").iterdir()) == []


def test_it_is_compiled_once(asked_again, tmp_path):
    asked_again.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not row_products.is_compiled()
    assert row_products.why_not_compiled() == ""
    assert row_products.is_compiled()
    (library,) = (tmp_path / "pellucid").iterdir()
    row_products.load_library.cache_clear()
    assert row_products.is_compiled()
    asked_again.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert row_products.why_not_compiled() == ""
    assert [library] == list((tmp_path / "pellucid").iterdir())


def test_a_folder_that_cannot_be_written_is_a_reason(asked_again, tmp_path):
    (tmp_path / "file").touch()
    asked_again.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert row_products.why_not_compiled().startswith("compiled_step.cpp cannot be compiled or loaded: ")
