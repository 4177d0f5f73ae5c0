"""The page's server: uvicorn in a thread, and a thread that keeps following the location."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading

import uvicorn

from millrace.errors import PageError, TokenRequiredError
from millrace.ui.app import make_app
from millrace.ui.watch import Source, Watch

_log = logging.getLogger("millrace")

REFRESH_SECONDS = 0.5
CLOSE_SECONDS = 5.0


class Page:
    """A live page that is being served, until `close()` or the end of the process."""

    def __init__(self, watch: Watch, listener: socket.socket, host: str, token: str | None) -> None:
        self.watch = watch
        port = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}/" + (f"#token={token}" if token else "")
        """Where it is; the token is behind a `#`, which browsers keep to themselves."""
        self._closed = threading.Event()
        config = uvicorn.Config(
            make_app(watch, token), log_level="warning", access_log=False, lifespan="off"
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [listener]},
            name="millrace-ui",
            daemon=True,
        )
        self._following = threading.Thread(
            target=self._follow, name="millrace-ui-follow", daemon=True
        )
        self._listener = listener
        watch.refresh()
        self._serving.start()
        self._following.start()

    def note(self, kind: str, title: str, detail: str = "") -> None:
        """Put a mark of one's own on the time line."""
        self.watch.note(kind, title, detail)

    def close(self) -> None:
        """Stop serving; returns when nothing of it runs any more."""
        self._closed.set()
        self._server.should_exit = True
        self._serving.join(CLOSE_SECONDS)
        if self._serving.is_alive():
            # A browser keeps a connection open.
            self._server.force_exit = True
            self._serving.join(CLOSE_SECONDS)
        self._following.join(CLOSE_SECONDS)
        self._listener.close()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Page {self.url.partition('#')[0]} of {self.watch.location}>"

    def _follow(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            try:
                self.watch.refresh()
            except Exception as error:
                # Whoever watches is told, and the query itself is none the worse.
                _log.exception("the live page of %s cannot go on", self.watch.location)
                self.watch.problem = f"{type(error).__name__}: {error}"
                return


def open_page(
    location: str,
    source: Source | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
) -> Page:
    """Serve the page of a location."""
    if not is_loopback(host) and not token:
        raise TokenRequiredError(
            f"host={host!r} can be reached from other machines, so the page needs a token: "
            "token='...' (on the command line, --token or MILLRACE_TOKEN). Without one, use "
            "host='127.0.0.1', and a tunnel such as ssh -L to look from elsewhere."
        )
    watch = Watch(location, source)
    return Page(watch, _listen(host, port), host, token)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
    except OSError as error:
        raise PageError(f"cannot serve the page on {host!r}: {error}. Check the name.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        raise PageError(
            f"cannot serve the page on {host} port {port}: {error}. Choose another port; 0 takes a "
            "free one."
        ) from error
    return listener
