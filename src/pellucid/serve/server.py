"""The process: models are loaded, the address is checked, and uvicorn answers."""

import ipaddress
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI


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


def model_names(paths: Sequence[str], names: str | None) -> list[str]:
    """A name for each model: those given, or the last part of each path."""
    chosen = [name.strip() for name in names.split(",")] if names else [Path(path).name for path in paths]
    if len(chosen) != len(paths) or len(set(chosen)) < len(chosen) or not all(chosen):
        raise ServeError(
            f"{len(paths)} models and the names {', '.join(chosen)}: give each model a name of its own by --model-names"
        )
    return chosen


def run_app(app: FastAPI, host: str, port: int, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=30,
        server_header=False,
    )
    server = uvicorn.Server(config)
    if ready is not None:
        ready(f"http://{host}:{port}")
    server.run()
