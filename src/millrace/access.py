"""Who may connect to a server of Millrace: the live page and the look-up server alike.

A server on the loopback interface needs no token. There, a request must name this machine as its
host, so that no web page can reach the server through a name of its own that points here. A server
that other machines can reach needs a token, and then every request for data must carry it.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket

from millrace.errors import TokenRequiredError

TOKEN_VARIABLE = "MILLRACE_TOKEN"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reach(host: str, token: str | None, how: str) -> None:
    """Raise if other machines could connect and no token says who may; `how` to give one."""
    if not token and not is_loopback(host):
        raise TokenRequiredError(
            f"{host} can be reached from other machines, so a token is needed: {how}. Without "
            "one, listen at 127.0.0.1; a tunnel such as ssh -L connects from elsewhere."
        )


def is_local_name(host: bytes) -> bool:
    """Whether a Host header names this machine."""
    text = host.decode("latin-1").lower()
    name = text if text.endswith("]") else text.rpartition(":")[0] or text
    return name in LOOPBACK_NAMES


def has_token(authorization: bytes, token: str) -> bool:
    """Whether an Authorization header carries the token."""
    scheme, _, given = authorization.partition(b" ")
    # Bytes that no text has come from the environment as lone surrogates.
    wanted = token.encode("utf-8", "surrogateescape")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted)


def refusal(host: bytes, authorization: bytes, token: str | None) -> tuple[int, str] | None:
    """Why a request for data is refused, as an HTTP status and a text; None if it is not."""
    if token:
        if has_token(authorization, token):
            return None
        return 401, (
            "this server needs a token: send the header 'Authorization: Bearer TOKEN' with the "
            "token that it was started with."
        )
    if is_local_name(host):
        return None
    return 403, (
        f"this server answers only to {', '.join(LOOPBACK_NAMES)}, not to "
        f"{host.decode('latin-1')!r}. Start it with a token to reach it by another name."
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `OSError` or `OverflowError` if that is not possible."""
    if not 0 <= port <= 65535:
        # The resolver would take the lower 16 bits.
        raise OverflowError(f"{port} is not a port from 0 to 65535")
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Who connects as soon as the address is printed waits, and is not refused.
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def in_url(host: str) -> str:
    """A host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host
