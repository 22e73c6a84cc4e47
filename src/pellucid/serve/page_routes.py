"""The page at `/`: static files, which hold nothing of a model and need no key; what they ask for does."""

from importlib import resources

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response

#: the page's own files, and those that it shares with the page about a prompt
OWN = ("index.html", "page.css", "main.js", "api.js", "tokens.js", "copy.js", "icon.svg")
SHARED = ("common.css", "common.js")
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
#: paths that need no key
PAGE_PATHS = ("/", *(f"/page/{name}" for name in (*OWN, *SHARED)))
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # the files of another version of the server are not mixed with these
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Answer `/` and `/page/{name}` with the page's files."""
    package = resources.files("pellucid")
    folders = {**dict.fromkeys(OWN, ("serve", "page")), **dict.fromkeys(SHARED, ("web",))}
    contents = {name: package.joinpath(*folder, name).read_bytes() for name, folder in folders.items()}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, f"the page has no file {name!r}")
        return Response(contents[name], media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=HEADERS)
