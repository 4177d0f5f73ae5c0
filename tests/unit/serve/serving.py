"""A look-up server on the loopback interface, as `millrace serve` starts it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from tests.waiting import until

from millrace import access
from millrace.serve.command import Endpoint, server
from millrace.serve.lookups import Lookups


@contextlib.contextmanager
def served(location: str, token: str | None = None) -> Iterator[str]:
    """Serve a location over HTTP; its address."""
    with Lookups(location) as lookups, access.listen("127.0.0.1", 0) as bound:
        serving = server(lookups, Endpoint("127.0.0.1", 0, None, token))
        with running(serving, bound):
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextlib.contextmanager
def running(serving: uvicorn.Server, bound: object) -> Iterator[None]:
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until(lambda: serving.started or not thread.is_alive(), "serving")
    try:
        yield
    finally:
        serving.should_exit = True
        thread.join()
