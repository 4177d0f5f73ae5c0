"""The page's server: uvicorn in a thread, and a thread that follows the location."""

from __future__ import annotations

import logging
import socket
import threading

import uvicorn

from millrace import access
from millrace.connections import BoundedProtocol
from millrace.errors import PageError
from millrace.repeating import Repeating, first_line
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
        self.url = f"http://{access.in_url(host)}:{port}/" + (f"#token={token}" if token else "")
        """Where it is; the token is behind a `#`, which browsers keep to themselves."""
        config = uvicorn.Config(
            make_app(watch, token),
            http=BoundedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(target=self._serve, name="millrace-ui", daemon=True)
        self.problem: str | None = None
        """Why serving has stopped; None if it is, or if it was closed."""
        self._following = Repeating("ui-follow", self._follow)
        self._listener = listener
        watch.refresh()
        self._serving.start()
        self._following.start()

    def note(self, kind: str, title: str, detail: str = "") -> None:
        """Put a mark of your own on the time line."""
        self.watch.note(kind, title, detail)

    def close(self) -> None:
        """Stop serving; returns when all of it has ended."""
        self._server.should_exit = True
        self._serving.join(CLOSE_SECONDS)
        if self._serving.is_alive():
            # A browser keeps a connection open.
            self._server.force_exit = True
            self._serving.join(CLOSE_SECONDS)
        self._following.close(CLOSE_SECONDS)
        self._listener.close()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Page {self.url.partition('#')[0]} of {self.watch.location}>"

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        except BaseException as error:
            # Uvicorn's way to give up is SystemExit, which ends a thread without a word.
            self.problem = first_line(error)
            _log.error("%r has ended: %s", self, self.problem)

    def _follow(self) -> float:
        self.watch.refresh()
        return REFRESH_SECONDS


def open_page(
    location: str,
    source: Source | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
) -> Page:
    """Serve the page of a location."""
    access.check_reach(
        host, token, f"token='...' (on the command line, --token or {access.TOKEN_VARIABLE})"
    )
    watch = Watch(location, source)
    return Page(watch, _listen(host, port), host, token)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return access.listen(host, port)
    except socket.gaierror as error:
        raise PageError(f"cannot serve the page on {host!r}: {error}. Check the name.") from error
    except (OSError, OverflowError) as error:
        raise PageError(
            f"cannot serve the page on {host} port {port}: {error}. Choose another port; 0 picks a "
            "free one."
        ) from error
