"""The process: models are loaded, the address is checked, and uvicorn answers."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pellucid.serve.connection import GuardedConnection
from pellucid.serve.served import ServedModel

#: loads the models that are served, one after another
Load = Callable[[], Iterable[ServedModel]]
#: what binding to an address says that the machine does not have
NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
#: the most connections at once, where the limit of open files allows them
MOST_CONNECTIONS = 1024
#: connections that wait to be accepted
BACKLOG = 128
#: open files that are enough for these connections and everything else
ENOUGH_FILES = 4 * MOST_CONNECTIONS
#: seconds after a second Ctrl-C in which clients read that their requests were stopped
LAST_SECONDS = 5.0
#: the characters of a host name in a Host header
HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: an origin as browsers write it: https://app.example.org, http://localhost:3000, app://obsidian.md
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


class ServeError(ValueError):
    """A server that may not be started as it was asked for."""


def check_address(host: str, key: str | None) -> None:
    """Refuse to listen to other machines without a key."""
    if host.lower() == "localhost":
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


def check_host_name(name: str) -> None:
    """Refuse what no Host header can match: a name with a scheme, a port, or characters that names do not have."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        if not HOST_NAME.fullmatch(name):
            raise ServeError(
                f"--host {name} is neither a host name nor an address: give the name alone, without a scheme and "
                "without a port, such as models.example.org"
            ) from None


def check_origin(origin: str) -> None:
    """Refuse what no browser sends as Origin, and `*` and `null`, which stand for pages of anybody."""
    standard = {"http": ":80", "https": ":443"}.get(origin.partition("://")[0])
    if not ORIGIN.fullmatch(origin) or (standard and origin.endswith(standard)):
        raise ServeError(
            f"--allow-origin {origin} is no origin that a browser sends: give scheme, name and a port other than the "
            "scheme's own, in small letters and without a path, such as https://app.example.org"
        )


def listen_on(host: str, port: int) -> socket.socket:
    """A socket that listens at one address; port 0 takes a free one. Raises ServeError where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return listening_socket(family, (host, port))
    except OSError as error:
        raise listening_error(host, port, error) from None


def listen_on_each(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of a name, such as 127.0.0.1 and ::1 of localhost.

    Raises ServeError for a name without addresses, for addresses of other machines, and where the port is taken.
    """
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"--listen {host} is a name without an address ({getattr(error, 'strerror', None) or error}): give an "
            "address of this machine, such as 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    errors: list[OSError] = []
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            sockets.append(listening_socket(family, address))
        except OSError as error:
            errors.append(error)
    # a name may have more addresses than the machine, as localhost has ::1 where there is no IPv6
    taken = [error for error in errors if error.errno not in NO_SUCH_ADDRESS]
    if taken or not sockets:
        for listening in sockets:
            listening.close()
        raise listening_error(host, port, (taken or errors)[0])
    return sockets


def listening_socket(family: int, address: tuple) -> socket.socket:
    """A socket that listens at an address. Raises OSError."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere two programs could then share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # the IPv4 addresses of a name have sockets of their own
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def listening_error(host: str, port: int, error: OSError) -> ServeError:
    """The sentence for an address that cannot be listened at."""
    if error.errno in NO_SUCH_ADDRESS:
        return ServeError(f"--listen {host} is no address of this machine: give one that it has, such as 127.0.0.1")
    return ServeError(f"port {port} of {host} cannot be used ({error.strerror}): choose another with --port")


def read_key(file: Path | None) -> str | None:
    """The key in a file or in PELLUCID_API_KEY; never an argument, which other users of the machine can read."""
    if file is not None:
        # editors may put a byte order mark first; bytes that are not UTF-8 are no ASCII either
        return checked_key(file.read_bytes().decode("utf-8-sig", "replace"), f"--api-key-file {file}")
    key = os.environ.get("PELLUCID_API_KEY")
    return checked_key(key, "PELLUCID_API_KEY") if key else None


def checked_key(text: str, source: str) -> str:
    """The key in a text. Raises ServeError, which names its source, for a key that no client could send."""
    key = text.strip()
    if not key:
        raise ServeError(f"{source} is empty: write the key into it")
    if not key.isascii() or not key.isprintable():
        raise ServeError(
            f"{source} holds more than one line, or other characters than printable ASCII, which no client sends in a "
            "header: write the key alone into it"
        )
    return key


def model_names_of(paths: Sequence[str], names: str | None) -> list[str]:
    """A name for each model: those given, or the last part of each path."""
    chosen = (
        [name.strip() for name in names.split(",")] if names else [Path(os.path.abspath(path)).name for path in paths]
    )
    if len(chosen) != len(paths) or len(set(chosen)) < len(chosen) or not all(chosen):
        raise ServeError(
            f"{len(paths)} models and the names {', '.join(chosen)}: give each model a name of its own by --model-names"
        )
    return chosen


def file_limit() -> int:
    """How many files this process may have open, after its soft limit was raised as far as it may be and is of use."""
    try:
        import resource
    except ImportError:  # only POSIX has such limits
        return ENOUGH_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = ENOUGH_FILES if hard == unlimited else min(ENOUGH_FILES, hard)
    if soft == unlimited or soft >= wanted:
        return ENOUGH_FILES if soft == unlimited else soft
    with contextlib.suppress(OSError, ValueError):  # a system may allow less than its hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class DrainingServer(uvicorn.Server):
    """A server that loads its models while it says so, and that lets running requests finish when it is stopped.

    load      adds to `models`, in a thread of its own
    announce  is called when the models are there and requests are answered
    seconds   for which running requests go on after a signal; each of the others ends with a last event
    """

    def __init__(
        self,
        config: uvicorn.Config,
        models: list[ServedModel],
        load: Load,
        announce: Callable[[], None],
        seconds: float,
    ):
        super().__init__(config)
        self.models, self.load, self.announce, self.seconds = models, load, announce, seconds
        self.loop: asyncio.AbstractEventLoop | None = None
        #: why the models could not be loaded
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        threading.Thread(target=self.load_models, name="pellucid loading", daemon=True).start()

    def load_models(self) -> None:
        """Load the models and start their engines, or stop the server."""
        try:
            loaded = list(self.load())
            for model in loaded:
                model.engine.start()
            self.models.extend(loaded)
            self.announce()
        except BaseException as error:
            self.failure, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGTERM: the engines take nothing new and finish what runs; uvicorn waits for the answers.

        A second one ends what runs at once. uvicorn would cancel the answers, and print where each of them was.
        """
        again = self.should_exit and self.loop is not None
        for model in self.models:
            threading.Thread(target=model.engine.drain, args=(0.0 if again else self.seconds,), daemon=True).start()
        if again and self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, LAST_SECONDS, self.leave_clients)
        else:
            super().handle_exit(sig, frame)

    def leave_clients(self) -> None:
        """Close the connections whose clients have not read their answers to the end."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def server_config(
    app: FastAPI, host: str = "127.0.0.1", port: int = 8000, drain_seconds: float = 10.0
) -> uvicorn.Config:
    """How uvicorn serves the application: its bounds are ours, and it says nothing of itself."""
    files = file_limit()

    class BoundedConnection(GuardedConnection):
        # a connection that is being closed and one that is being accepted have a file too
        most_connections = min(MOST_CONNECTIONS, max(1, files // 4))

    return uvicorn.Config(
        app,
        http=BoundedConnection,
        # asyncio accepts as many at once, before the first of them is counted
        backlog=min(BACKLOG, max(1, files // 16)),
        # what clients send wrong is answered, and not printed
        ws="none",
        host=host,
        port=port,
        log_level="error",
        access_log=False,
        server_header=False,
        # the engines end their requests before this; it bounds the wait for clients that do not read
        timeout_graceful_shutdown=int(drain_seconds) + 5,
    )


def run_app(
    app: FastAPI,
    models: list[ServedModel],
    load: Load,
    host: str,
    port: int,
    drain_seconds: float,
    announce: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM what `load` adds to `models`; raises what `load` raises.

    `announce` is called when the models are there and requests are answered.
    Raises ServeError, before anything is loaded, where it cannot listen.
    """
    sockets = listen_on_each(host, port)
    server = DrainingServer(server_config(app, host, port, drain_seconds), models, load, announce, drain_seconds)
    # uvicorn repeats the signal when it has shut down in order
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets)
    if server.failure is not None:
        raise server.failure


def url_of(host: str, port: int) -> str:
    """The address that clients use."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
