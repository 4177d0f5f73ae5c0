"""HTTP as bytes on a socket: right requests, and those that no client would send."""

from __future__ import annotations

import http.client
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from millrace_lab.fuzz.mutations import ODD_VALUES, mutate_bytes
from millrace_lab.fuzz.reading import Finding

HOST = "127.0.0.1"
ANSWERED_WITHIN = 120.0
"""Seconds, for a whole request; for hangs, not for slow machines."""
WAITED_FOR = 0.3
"""Seconds for an answer to what may be half a request, for the rest of which the server waits."""
METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW")
OTHER_HOSTS = ("", "evil.example", "127.0.0.1.evil.example", "localhost@evil", "[::2]", "127.0.0.2")
ODD_HEADERS = (
    ("Content-Length", "-1"), ("Content-Length", "5"), ("Content-Length", "9" * 30),
    ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "x"), ("Expect", "100-continue"),
    ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("Range", "bytes=5-1"), ("Accept", "\xff"),
    ("Authorization", "Bearer"), ("Authorization", "Bearer \xff\x00"), ("Cookie", "x" * 100_000),
    ("Content-Type", "multipart/form-data"), ("Content-Encoding", "gzip"), ("X" * 5000, "1"),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A request before it is bytes."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    host: str = "localhost"

    def to_bytes(self) -> bytes:
        given = {name.lower() for name, _ in self.headers}
        headers = [("Host", self.host), ("Connection", "close"), *self.headers]
        if self.body and "content-length" not in given:
            headers.append(("Content-Length", str(len(self.body))))
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{n}: {v}" for n, v in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes


def sent(port: int, request: Request) -> Answer:
    """The answer to a request that is one."""
    answer = sent_bytes(port, request.to_bytes(), ANSWERED_WITHIN, request.method)
    if answer is None:
        raise Finding(f"{request.method} {request.target[:200]} has no answer")
    return answer


def sent_bytes(port: int, data: bytes, seconds: float, method: str = "GET") -> Answer | None:
    """The first answer to some bytes; None if the server waits for more, or hangs up."""
    with socket.create_connection((HOST, port), timeout=ANSWERED_WITHIN) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(seconds)
            with http.client.HTTPResponse(connection, method=method) as response:
                response.begin()
                headers = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, headers, response.read())
        except (ConnectionError, TimeoutError):
            return None
        except http.client.HTTPException as error:
            raise Finding(f"the answer is not HTTP: {type(error).__name__}: {error}") from error


def odd_text(rng: random.Random, example: str) -> str:
    """Text in the place of some other."""
    if rng.randrange(2):
        return str(rng.choice(ODD_VALUES))[:5000]
    return mutate_bytes(rng, example.encode()).decode("latin-1")


def query(rng: random.Random, pairs: Sequence[tuple[str, str]]) -> str:
    """A query string of these, or of almost these."""
    made = list(pairs)
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(made) + 1)
        name, value = made[at] if at < len(made) else ("x", "1")
        kind = rng.randrange(4)
        if kind == 0 and at < len(made):
            del made[at]
        elif kind == 1:
            made.insert(at, (name, value))
        elif kind == 2:
            made[at : at + 1] = [(odd_text(rng, name), value)]
        else:
            made[at : at + 1] = [(name, odd_text(rng, value))]
    text = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in made)
    if rng.randrange(8):
        return text
    return mutate_bytes(rng, text.encode()).decode("latin-1").translate(_NO_LINES)


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


_NO_LINES = dict.fromkeys((*range(33), 127), "_")
"""What would end the request's line, or a part of it."""


def path(rng: random.Random, paths: Sequence[str]) -> str:
    """One of the paths, or almost."""
    found = rng.choice(paths)
    kind = rng.randrange(6)
    if kind == 0:
        return found + rng.choice(("/", "//", "/..", "%00", "%ff", "/../" * 50, "?", "#x", "%"))
    if kind == 1:
        return "/" + mutate_bytes(rng, found.encode()).decode("latin-1").translate(_NO_LINES)
    return found


def headers(rng: random.Random) -> tuple[tuple[str, str], ...]:
    """None at all, or some odd ones."""
    return tuple(rng.sample(ODD_HEADERS, rng.choice((0, 0, 1, 2))))
