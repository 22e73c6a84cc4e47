"""A small model behind a real server on the loopback interface, one for all tests of a module."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
import torch
import uvicorn

from pellucid.architecture import Architecture, Attention
from pellucid.model import Transformer
from pellucid.serve.app import make_app
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.served import ServedModel
from pellucid.serve.server import server_config
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.tokenizers.tokenizer import ByteTokenizer


@dataclass
class RunningServer:
    """Where the server answers, and what stands behind it."""

    url: str
    engine: BatchingEngine
    instance: uvicorn.Server


def small_network(seed: int = 0) -> Transformer:
    """Two layers over bytes, in float64, with logits that are far apart."""
    torch.manual_seed(seed)
    a = Architecture(n_vocab=257, n_ctx=64, d_model=16, n_layers=2, attention=Attention(n_heads=2))
    network = Transformer(a).double().eval()
    with torch.no_grad():
        network.embed.token.weight.mul_(5)
    return network


def serving(
    engine: BatchingEngine, *, key: str | None = None, template: ChatTemplate | None = None
) -> AbstractContextManager[RunningServer]:
    """The engine behind a socket, until the block ends."""
    return serving_models(ServedModel("small", engine, template), key=key)


@contextmanager
def serving_models(*models: ServedModel, key: str | None = None) -> Iterator[RunningServer]:
    """Several models behind a socket, until the block ends; the engine is the first one's."""
    app, engine = make_app(models, key=key), models[0].engine
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        instance = uvicorn.Server(server_config(app))
        thread = threading.Thread(target=instance.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not instance.started:
            time.sleep(0.01)
        yield RunningServer(f"http://127.0.0.1:{port}", engine, instance)
        instance.should_exit = True
        thread.join(30)
        assert not engine.thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = BatchingEngine(small_network(), ByteTokenizer(), max_rows=4, chunk=8, max_tokens=10**6)
    with serving(engine) as running:
        yield running
