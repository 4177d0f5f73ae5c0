"""The page's web application: three files, one JSON document, metrics. Nothing but GET.

The files hold no data, so only `/api` and `/metrics` ask for the token. On the loopback interface
there is none to ask for; there, a request must name this machine as its host, so that a page from
elsewhere cannot read it through a name that it makes point here.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

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
LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]"]

Handler = Callable[[Request], Awaitable[Response]]


def make_app(watch: Watch, token: str | None) -> Starlette:
    """The application of one page."""

    async def snapshot(request: Request) -> Response:
        text = request.query_params.get("after", "0")
        if not text.isdigit():
            return _refused(400, f"after={text!r} is not an epoch")
        return JSONResponse(watch.snapshot(int(text)), headers=HEADERS)

    async def metrics(request: Request) -> Response:
        headers = {**HEADERS, "Content-Type": CONTENT_TYPE}
        return Response(exposition(watch), headers=headers)

    routes = [Route(path, _file(*file), methods=["GET"]) for path, file in FILES.items()]
    routes += [
        Route("/api/snapshot", _guarded(snapshot, token), methods=["GET"]),
        Route("/metrics", _guarded(metrics, token), methods=["GET"]),
    ]
    local = Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)
    return Starlette(routes=routes, middleware=[] if token else [local])


def _file(name: str, kind: str) -> Handler:
    content = files("millrace.ui").joinpath("static", name).read_bytes()

    async def handler(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "Content-Type": kind})

    return handler


def _guarded(handler: Handler, token: str | None) -> Handler:
    if not token:
        return handler

    async def guarded(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
            return _refused(401, "a token is needed: Authorization: Bearer TOKEN")
        return await handler(request)

    return guarded


def _refused(code: int, text: str) -> Response:
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if code == 401 else HEADERS
    return PlainTextResponse(text + "\n", code, headers=headers)
