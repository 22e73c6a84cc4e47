"""The process: models are loaded, the address is checked, and uvicorn answers."""

import contextlib
import ipaddress
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pellucid.serve.served import ServedModel


class ServeError(ValueError):
    """A server that may not be started as it was asked for."""


def check_address(host: str, key: str | None) -> None:
    """Refuse to listen to other machines without a key."""
    if host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and key is None:
        raise ServeError(
            f"--listen {host} is reached from other machines: give a key by --api-key-file or PELLUCID_API_KEY, or "
            "listen on 127.0.0.1"
        )


def read_key(file: Path | None) -> str | None:
    """The key in a file or in PELLUCID_API_KEY; never an argument, which other users of the machine can read."""
    if file is not None:
        key = file.read_text(encoding="utf-8").strip()
        if not key:
            raise ServeError(f"--api-key-file {file} is empty: write the key into it")
        return key
    return os.environ.get("PELLUCID_API_KEY") or None


def model_names_of(paths: Sequence[str], names: str | None) -> list[str]:
    """A name for each model: those given, or the last part of each path."""
    chosen = [name.strip() for name in names.split(",")] if names else [Path(path).name for path in paths]
    if len(chosen) != len(paths) or len(set(chosen)) < len(chosen) or not all(chosen):
        raise ServeError(
            f"{len(paths)} models and the names {', '.join(chosen)}: give each model a name of its own by --model-names"
        )
    return chosen


class DrainingServer(uvicorn.Server):
    """A server that lets running requests finish for a stated time, and then ends each with a last event."""

    def __init__(self, config: uvicorn.Config, models: Sequence[ServedModel], seconds: float):
        super().__init__(config)
        self.models, self.seconds = models, seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGTERM: the engines take nothing new and finish what runs; uvicorn waits for the answers."""
        for model in self.models:
            threading.Thread(target=model.engine.drain, args=(self.seconds,), daemon=True).start()
        super().handle_exit(sig, frame)


def run_app(
    app: FastAPI,
    models: Sequence[ServedModel],
    host: str,
    port: int,
    *,
    drain_seconds: float,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        # the engines end their requests before this; it bounds the wait for clients that do not read
        timeout_graceful_shutdown=int(drain_seconds) + 5,
    )
    if ready is not None:
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    # uvicorn repeats the signal when it has shut down in order
    with contextlib.suppress(KeyboardInterrupt):
        DrainingServer(config, models, drain_seconds).run()
