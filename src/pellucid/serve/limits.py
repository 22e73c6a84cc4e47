"""What is refused before a request is read: too much, too slow, from the wrong place, or without the key."""

import asyncio
import hmac
from collections.abc import Collection, Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.serve.protocol import error_body
from pellucid.serve.threads import body_bytes


class Refusal(Exception):  # noqa: N818 (an answer, not a fault)
    """A request that is answered before its route sees it."""

    def __init__(self, status: int, message: str, code: str):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Limits:
    """Bounds on headers, body and time, the Host and Origin checks, and the key, on every route.

    hosts       names and addresses that the Host header may have; another one is DNS rebinding or a mistake. Capital
                letters do not count, and IPv6 addresses are given with or without their brackets
    origins     of pages elsewhere that may send requests too; None where the server has no option that names them
    key         what `Authorization: Bearer ...` must say; None where any is accepted
    open_paths  paths that need no key
    max_body    the most bytes of a body; `max_bodies` has those of paths with a bound of their own
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        key: str | None,
        origins: Collection[str] | None = None,
        open_paths: Collection[str] = ("/health",),
        max_body: int = 2**20,
        max_bodies: Mapping[str, int] | None = None,
        max_headers: int = 2**14,
        seconds: float = 10.0,
    ):
        self.app, self.hosts, self.key = app, frozenset(map(as_in_headers, hosts)), key
        self.origins, self.names_option = frozenset(origins or ()), origins is not None
        self.open_paths = frozenset(open_paths)
        self.max_body, self.max_headers, self.seconds = max_body, max_headers, seconds
        self.max_bodies = dict(max_bodies or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = self.check_headers(scope)
            most = self.max_bodies.get(scope["path"], self.max_body)
            body = await asyncio.wait_for(self.read_body(headers, receive, most), self.seconds)
        except TimeoutError:
            refusal = Refusal(408, f"the request did not arrive within {self.seconds:g} seconds", "request_timeout")
            await refuse(refusal, scope, receive, send)
            return
        except Refusal as refusal:
            await refuse(refusal, scope, receive, send)
            return
        body_bytes.set(len(body))
        await self.app(scope, replay(body, receive), send)

    def check_headers(self, scope: Scope) -> dict[str, str]:
        """The headers by name; Refusal for what they tell. Decides by the path of the request alone, not by Host."""
        raw = scope["headers"]
        if sum(len(name) + len(value) for name, value in raw) > self.max_headers:
            raise Refusal(431, f"the headers are longer than {self.max_headers:,} bytes", "headers_too_large")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
        if "content-length" in headers and "transfer-encoding" in headers:
            # a proxy in between may see another end of the body, and another request behind it
            message = "the request has Content-Length and Transfer-Encoding: send one of them"
            raise Refusal(400, message, "two_lengths")
        host = host_name(headers.get("host", ""))
        if host not in self.hosts:
            raise Refusal(
                421, f"this server does not answer for Host {host!r}: name it with --host where it should", "wrong_host"
            )
        if scope["path"] not in self.open_paths and self.key is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self.key.encode()):
                raise Refusal(401, "the key is missing or wrong: send Authorization: Bearer KEY", "invalid_api_key")
        if scope["method"] == "POST":
            origin = headers.get("origin")
            own = origin is None or host_name(origin.rpartition("://")[2]) in self.hosts
            if not own and origin not in self.origins:
                message = f"requests from pages of {origin} are not answered"
                if self.names_option and origin != "null":
                    message += f"; start the server with --allow-origin {origin} to answer them"
                raise Refusal(403, message, "foreign_origin")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise Refusal(415, "send the body as Content-Type: application/json", "unsupported_media_type")
        return headers

    async def read_body(self, headers: dict[str, str], receive: Receive, most: int) -> bytes:
        """The body, refused as soon as it is known to be longer than `most` bytes."""
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise Refusal(413, f"the body is longer than {most:,} bytes", "body_too_large")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the client left before its request was read", "disconnected")
            body += message.get("body", b"")
            if len(body) > most:
                raise Refusal(413, f"the body is longer than {most:,} bytes", "body_too_large")
            if not message.get("more_body"):
                return bytes(body)


def as_in_headers(name: str) -> str:
    """A host name or address as headers are compared with it: in lower case, an IPv6 address in brackets."""
    return f"[{name}]".lower() if ":" in name and not name.startswith("[") else name.lower()


def host_name(host: str) -> str:
    """A Host header without its port and in lower case; an IPv6 address keeps its brackets."""
    return (host if host.endswith("]") else host.rsplit(":", 1)[0]).lower()


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, and then what the client does."""
    waiting = [body]

    async def next_message() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return next_message


async def refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    headers: dict[str, Any] = {"Connection": "close"}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
    answer = JSONResponse(error_body(refusal.message, kind, refusal.code), refusal.status, headers=headers)
    await answer(scope, receive, send)
