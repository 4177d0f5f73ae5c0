"""The page's web application: three files, one JSON document, metrics. It answers GET only.

The files hold no data, so only `/api` and `/metrics` ask for the token. Who may ask is decided in
`access`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from millrace import access
from millrace.ui.metrics import CONTENT_TYPE, exposition
from millrace.ui.watch import Watch

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_DIGITS = 18
"""Of an epoch's number, so that it fits 64 bits."""

Handler = Callable[[Request], Awaitable[Response]]


def make_app(watch: Watch, token: str | None) -> Starlette:
    """The application of one page."""

    async def snapshot(request: Request) -> Response:
        text = request.query_params.get("after", "0")
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            return _refused(400, f"after={text[:80]!r} is not an epoch")
        return JSONResponse(watch.snapshot(int(text)), headers=HEADERS)

    async def metrics(request: Request) -> Response:
        headers = {**HEADERS, "Content-Type": CONTENT_TYPE}
        return Response(exposition(watch), headers=headers)

    # The files hold no data: they never need the token.
    routes = [
        Route(path, _file(*file) if token else _guarded(_file(*file), None), methods=["GET"])
        for path, file in FILES.items()
    ]
    routes += [
        Route("/api/snapshot", _guarded(snapshot, token), methods=["GET"]),
        Route("/metrics", _guarded(metrics, token), methods=["GET"]),
    ]
    return Starlette(routes=routes)


def _file(name: str, kind: str) -> Handler:
    content = files("millrace.ui").joinpath("static", name).read_bytes()

    async def handler(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "Content-Type": kind})

    return handler


def _guarded(handler: Handler, token: str | None) -> Handler:
    async def guarded(request: Request) -> Response:
        headers = dict(request.headers.raw)
        host, authorization = headers.get(b"host", b""), headers.get(b"authorization", b"")
        refused = access.refusal(host, authorization, token)
        return await handler(request) if refused is None else _refused(*refused)

    return guarded


def _refused(code: int, text: str) -> Response:
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if code == 401 else HEADERS
    return PlainTextResponse(text + "\n", code, headers=headers)
