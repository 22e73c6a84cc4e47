"""The page at `/`: static files, which hold nothing of a model and need no key; what they ask for does."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

#: the page's own files, and those that it shares with the other pages
PAGE_FILE_NAMES = (
    "index.html",
    "page.css",
    "main.js",
    "api.js",
    "elements.js",
    "tokens.js",
    "copy.js",
    "storage.js",
    "icon.svg",
)
SHARED = ("common.css", "common.js")
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # the files of another version of the server are not mixed with these
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageFiles:
    """The contents of a page's files by name; index.html is what `/` answers with."""

    contents: Mapping[str, bytes]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the page, which need no key."""
        return ("/", *(f"/page/{name}" for name in self.contents))

    @cached_property
    def compressed(self) -> dict[str, bytes]:
        """The contents as they are sent to browsers, which all read gzip."""
        return {name: gzip.compress(content, 9, mtime=0) for name, content in self.contents.items()}


def page_files(folders: Mapping[str, tuple[str, ...]]) -> PageFiles:
    """The files of a page: each name with the folder of the package that holds it."""
    package = resources.files("pellucid")
    return PageFiles({name: package.joinpath(*folder, name).read_bytes() for name, folder in folders.items()})


#: the page of `pellucid serve`, and the paths that need no key
FILES = page_files({**dict.fromkeys(PAGE_FILE_NAMES, ("serve", "page")), **dict.fromkeys(SHARED, ("web",))})
PAGE_PATHS = FILES.paths


def add_page(app: FastAPI, files: PageFiles = FILES, *, framed_by: str = "'none'") -> None:
    """Answer `/` and `/page/{name}` with a page's files; `framed_by` names the pages that may hold it in a frame."""
    policy = HEADERS["Content-Security-Policy"].replace("frame-ancestors 'none'", f"frame-ancestors {framed_by}")
    headers = HEADERS | {"Content-Security-Policy": policy}

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await page_file(request, "index.html")

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        if name not in files.contents:
            raise HTTPException(404, f"the page has no file {name!r}")
        kind, encoding = MEDIA_TYPES[name.rpartition(".")[2]], headers | {"Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            encoding["Content-Encoding"] = "gzip"
            return Response(files.compressed[name], media_type=kind, headers=encoding)
        return Response(files.contents[name], media_type=kind, headers=encoding)
