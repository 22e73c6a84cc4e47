"""The inspector's process: a server in the foreground for the command line, or in a thread for a notebook."""

import contextlib
import socket
import sys
import threading
import time
import urllib.parse
import webbrowser
from collections.abc import Collection

import uvicorn

from pellucid.look.app import make_look_app
from pellucid.look.inspector import Inspector
from pellucid.look.session import Session
from pellucid.serve.server import listen_on, server_config, url_of

#: a notebook's page on this machine may hold the inspector in a frame
NOTEBOOKS = "http://127.0.0.1:* http://localhost:*"


def run_look(
    session: Session, listening: socket.socket, *, key: str | None, hosts: Collection[str], browser: bool
) -> None:
    """Answer until SIGINT or SIGTERM on a socket; a browser opens the page as soon as it is there."""
    host, port = listening.getsockname()[:2]
    url = url_of("127.0.0.1" if host == "0.0.0.0" else host, port)
    server = uvicorn.Server(server_config(make_look_app(session, key=key, hosts=hosts), host, port))
    print(f"{session.name}: open {url} in a browser; Ctrl-C ends it", file=sys.stderr)
    if browser:
        threading.Thread(target=open_when_started, args=(server, url), daemon=True).start()
    # uvicorn repeats the signal when it has shut down in order
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def open_when_started(server: uvicorn.Server, url: str) -> None:
    """Open the page in the user's browser when the server answers."""
    wait_for(server)
    webbrowser.open(url)


def wait_for(server: uvicorn.Server) -> None:
    """Wait until the server answers or has given up."""
    while not server.started and not server.should_exit:
        time.sleep(0.02)


def start_inspector(session: Session, port: int = 0, text: str = "") -> Inspector:
    """An inspector in a thread of its own, on a port of 127.0.0.1, that begins with `text` as its prompt."""
    listening = listen_on("127.0.0.1", port)
    taken = listening.getsockname()[1]
    server = uvicorn.Server(server_config(make_look_app(session, framed_by=NOTEBOOKS), "127.0.0.1", taken))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_for(server)

    def stop() -> None:
        server.should_exit = True
        thread.join(10)

    prompt = f"#a={urllib.parse.quote(text)}" if text else ""
    return Inspector(f"{url_of('127.0.0.1', taken)}/{prompt}", stop)
