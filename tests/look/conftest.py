"""A tiny model behind the inspector's server, one for all tests of a module, and a browser."""

import asyncio
import io
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
import torch
import uvicorn
from playwright.sync_api import Page
from tests.browsing import visiting

from pellucid.architecture import MLP, Architecture, Attention
from pellucid.language_model import LanguageModel
from pellucid.look.app import make_look_app
from pellucid.look.session import Session
from pellucid.model import Transformer
from pellucid.serve.server import server_config
from pellucid.text.tokenizers.tokenizer import BPETokenizer

TEXT = "the cat sat on the mat and the dog sat on the log "


def small_model(seed: int = 0, **options) -> LanguageModel:
    """Two layers of two heads over a few words; `options` are an architecture's."""
    tokenizer = BPETokenizer.train([TEXT] * 20, 290, "gpt2")
    torch.manual_seed(seed)
    a = Architecture(
        n_vocab=tokenizer.n_vocab,
        **{"n_ctx": 64, "d_model": 16, "n_layers": 2, "attention": Attention(n_heads=2), "mlp": MLP(d_ff=32)} | options,
    )
    network = Transformer(a).eval()
    with torch.no_grad():
        network.embed.token.weight.mul_(5)
        if a.unembed == "untied":  # it is made without numbers
            network.unembed.weight.normal_(0, 0.3)
    return LanguageModel(network, tokenizer, {})


def encoder_decoder() -> LanguageModel:
    """The same with an encoder of one layer."""
    n_vocab = small_model().architecture.n_vocab
    options = {"n_vocab": n_vocab, "n_ctx": 64, "d_model": 16, "n_layers": 1, "mlp": MLP(d_ff=8)}
    return small_model(encoder=Architecture(attention=Attention(n_heads=2, mask="bidirectional"), **options))


@dataclass
class RunningInspector:
    """Where the inspector answers, and what it shows."""

    url: str
    session: Session
    model: LanguageModel


@contextmanager
def looking(session: Session, *, key: str | None = None) -> Iterator[RunningInspector]:
    """The inspector of a session behind a socket, until the block ends."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        instance = uvicorn.Server(server_config(make_look_app(session, key=key)))
        thread = threading.Thread(target=instance.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not instance.started:
            time.sleep(0.01)
        yield RunningInspector(f"http://127.0.0.1:{listening.getsockname()[1]}", session, session.opened)
        instance.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), still_running(thread, instance)


def still_running(thread: threading.Thread, instance: uvicorn.Server) -> str:
    """Where a server's thread and its tasks are that has not ended."""
    where = io.StringIO()
    assert thread.ident is not None
    traceback.print_stack(sys._current_frames()[thread.ident], file=where)
    for task in asyncio.all_tasks(instance.servers[0].get_loop()) if instance.servers else ():
        task.print_stack(file=where)
    return where.getvalue()


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return small_model()


@pytest.fixture(scope="module")
def inspector(model) -> Iterator[RunningInspector]:
    with looking(Session(model, name="small")) as running:
        yield running


@pytest.fixture
def look_into() -> Iterator[Callable[..., RunningInspector]]:
    """Start the inspector of a session of this test's own.

    It ends after the windows of `visit` have: a window that still asks a server that has ended complains of it.
    """
    with ExitStack() as running:
        yield lambda session: running.enter_context(looking(session))


@pytest.fixture
def visit(browser, look_into):
    """Open an address of the inspector, and wait until its traces are there."""
    with visiting(browser) as open_page:

        def open_ready(*where: str, **named: str) -> Page:
            page = open_page(*where, **named)
            ready(page)
            return page

        yield open_ready


def ready(page: Page) -> None:
    """Wait until the traces of the prompts are there."""
    page.wait_for_selector("html[data-ready]:not([data-ready=''])")


def shown_numbers(page: Page, within: str = "main") -> dict[str, float]:
    """Every number of a page by its name, with all of its digits."""
    pairs = page.locator(f"{within} [data-name][data-value]").evaluate_all(
        "(all) => all.map((e) => [e.dataset.name, e.dataset.value])"
    )
    return {name: float("nan") if value in ("null", "undefined") else float(value) for name, value in pairs}
