"""HTTP connections that refuse a head that is too long (431) or does not arrive (408), which uvicorn alone does not.

uvicorn answers a head beyond its bound with 400 and has no deadline for one that never ends, and `Limits` sees a
request only when its head is complete. Nor does uvicorn bound connections that ask for nothing: they would take all
files that a process may open. Here a new one takes the place of the one that has asked for nothing for the longest.
"""

import asyncio
import json
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from pellucid.serve.protocol import error_body

#: seconds in which the head of a request must arrive
HEAD_SECONDS = 10.0
#: seconds for which a refused client may go on sending, so that it reads why it was refused
LINGER_SECONDS = 1.0


class GuardedConnection(H11Protocol):
    """One connection of a client."""

    head_seconds, linger_seconds = HEAD_SECONDS, LINGER_SECONDS
    #: at once, from all clients
    most_connections = 1024
    #: when it began to wait for a request, in the loop's seconds
    waits_since = 0.0
    deadline: asyncio.TimerHandle | None = None
    refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        # asyncio sets this only on sockets that were made with the protocol named; without it a token waits 40 ms for
        # the client's acknowledgement of the one before
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.watch_head()
        if len(self.connections) > self.most_connections:
            self.make_room()

    def make_room(self) -> None:
        """Close the connection that has asked for nothing for the longest; refuse this one where all are answered."""
        others = [other for other in self.connections if isinstance(other, GuardedConnection) and other is not self]
        waiting = [other for other in others if other.asks_nothing]
        if waiting:
            oldest = min(waiting, key=lambda other: other.waits_since)
            # not later than the next connection is counted
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            message = f"{len(others):,} connections are being answered already: try again later"
            self.refuse(503, message, "too_many_connections", "server_error")

    @property
    def asks_nothing(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.refused or self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        super().data_received(data)
        self.watch_head()

    def watch_head(self) -> None:
        """Set the deadline where a head is awaited, and forget it where one is complete."""
        awaited = self.conn.their_state is h11.IDLE and not self.refused
        if not awaited:
            self.forget_deadline()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.head_seconds, self.head_is_late)

    def on_response_complete(self) -> None:
        # between requests uvicorn's own timer closes the connection; ours begins with the next head's first byte
        self.forget_deadline()
        self.waits_since = self.loop.time()
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self.watch_head()

    def forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def head_is_late(self) -> None:
        """Answer 408 where a part of a head has arrived, and close the connection in any case."""
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self.refuse(408, f"the request did not arrive within {self.head_seconds:g} seconds", "request_timeout")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for a head or a body that h11 cannot read; h11 says by which status."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the request has its answer, or a part of it
        elif getattr(error, "error_status_hint", 400) == 431:
            self.refuse(431, "the headers are longer than 16 KiB", "headers_too_large")
        else:
            self.refuse(400, f"this is no request of HTTP/1.1: {error}", "invalid_http")

    def refuse(self, status: int, message: str, code: str, kind: str = "invalid_request_error") -> None:
        """Answer in the place of a route, and close the connection a little later."""
        self.refused = True
        self.forget_deadline()
        if self.cycle is not None and not self.cycle.response_complete:
            # the route hears that its client has left, and answers no more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps(error_body(message, kind, code)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.loop.call_later(self.linger_seconds, self.transport.close)
