"""How many clients a server of Millrace has at once, and for how long each may dawdle.

A connection takes a descriptor for as long as it is open, and a client that sends a byte a minute
keeps it open for good. So connections beyond a number are closed at once, and one on which no
request has been answered for a while is closed too, whether its client is slow to send or to read.

Known rough edge: the limits are per server, not per client. One client can use all of them up, and
others then wait until it is cut off; a proxy in front can tell clients apart.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_CONNECTIONS = 512
"""Of one server: half of what a process may usually have open."""
LOOK_SECONDS = 30.0
"""A client that has not sent a whole request and taken the answer between two looks is cut off."""
MOST_HEAD = 64 * 1024
"""Bytes of a request before its body: the line with the URL, and the headers."""


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP by uvicorn, within these limits."""

    _watched: asyncio.TimerHandle | None = None
    _head = 0
    """Bytes of a request whose body has not begun."""
    _seen: Any = None
    """The request that was being answered when the connection was last looked at."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watched is not None:
            self._watched.cancel()
            self._watched = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is before and (before is None or before.response_complete):
            self._head += len(data)
            if self._head > MOST_HEAD:
                self.transport.abort()
        else:
            self._head = 0

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._watched = loop.call_later(LOOK_SECONDS, self._close_if_stuck)

    def _close_if_stuck(self) -> None:
        """Close the connection if nothing has been answered since the last look."""
        if self.cycle is self._seen:
            # uvicorn itself closes a connection that is idle after an answer, and much sooner.
            self.transport.abort()
            return
        self._seen = self.cycle
        self._watch()
