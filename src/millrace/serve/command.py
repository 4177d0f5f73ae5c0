"""`millrace serve`: answer look-ups in the state of a location until it is stopped."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import uvicorn

from millrace import access
from millrace.access import TOKEN_VARIABLE
from millrace.cli.failures import Failure, explained
from millrace.connections import BoundedProtocol
from millrace.errors import TokenRequiredError
from millrace.serve.flight import FlightLookups
from millrace.serve.http import App
from millrace.serve.lookups import POLL_SECONDS, Lookups

SWITCH_SECONDS = 0.0005
"""How long the thread that takes an epoch in may keep a look-up waiting for the interpreter."""

EPILOG = """\b
Examples:
  millrace serve /data/totals
  curl 'http://127.0.0.1:8470/v1/totals?device=d-7'
  MILLRACE_TOKEN=... millrace serve s3://bucket/totals --host 0.0.0.0
"""


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and the token that clients need."""

    host: str
    http_port: int
    flight_port: int | None
    token: str | None
    tls: tuple[Path, Path] | None = None


@click.command(epilog=EPILOG)
@click.argument("location")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8470, show_default=True, help="The HTTP port; 0 picks a free one.")
@click.option(
    "--flight-port",
    default=8471,
    show_default=True,
    help="The Arrow Flight port; 0 picks a free one.",
)
@click.option("--no-flight", is_flag=True, help="HTTP only.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A file with the token that clients must send; or set {TOKEN_VARIABLE}.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A PEM certificate, for TLS on both ports; with --tls-key.",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The key of the certificate.",
)
@click.option(
    "--poll",
    default=POLL_SECONDS,
    show_default=True,
    type=click.FloatRange(0.001, 60),
    help="Seconds between checks for a new epoch.",
)
def serve(
    location: str,
    host: str,
    port: int,
    flight_port: int,
    no_flight: bool,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    poll: float,
) -> None:
    """Answer look-ups in a location's state over HTTP and Arrow Flight.

    A replica is kept warm by following the log; every answer says which epoch it is from and how
    stale it can be. Read-only. The page /docs describes the HTTP API.
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    with explained():
        token = read_token(token_file)
        access.check_reach(host, token, f"give one with --token-file or {TOKEN_VARIABLE}")
        tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
        endpoint = Endpoint(host, port, None if no_flight else flight_port, token, tls)
        lookups = Lookups(location, poll)
    sys.setswitchinterval(SWITCH_SECONDS)
    # Everything loaded so far stays: without it, a garbage collection is milliseconds shorter.
    gc.collect()
    gc.freeze()
    with lookups, _listening(endpoint) as bound, _flight(lookups, endpoint) as flight_url:
        scheme = "http" if endpoint.tls is None else "https"
        address = f"{access.in_url(host)}:{bound.getsockname()[1]}"
        click.echo(f"serving {lookups.location}", err=True)
        click.echo(f"http    {scheme}://{address}/docs", err=True)
        if flight_url is not None:
            click.echo(f"flight  {flight_url}", err=True)
        server(lookups, endpoint).run(sockets=[bound])


def read_token(token_file: Path | None) -> str | None:
    """The token from the file, else from the environment; None if there is none."""
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    token = token_file.read_text().strip()
    if not token:
        raise TokenRequiredError(f"the token file {token_file} is empty. Put a token in it.")
    return token


def server(lookups: Lookups, endpoint: Endpoint) -> uvicorn.Server:
    """The HTTP server, not running yet."""
    cert, key = endpoint.tls if endpoint.tls is not None else (None, None)
    return uvicorn.Server(
        uvicorn.Config(
            App(lookups, endpoint.token),
            http=BoundedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            ssl_certfile=None if cert is None else str(cert),
            ssl_keyfile=None if key is None else str(key),
        )
    )


@contextlib.contextmanager
def _listening(endpoint: Endpoint) -> Iterator[socket.socket]:
    try:
        bound = access.listen(endpoint.host, endpoint.http_port)
    except (OSError, OverflowError) as error:
        raise Failure(
            f"cannot listen at {endpoint.host}:{endpoint.http_port}: {error}. Choose another "
            "--host or --port."
        ) from error
    with bound:
        yield bound


@contextlib.contextmanager
def _flight(lookups: Lookups, endpoint: Endpoint) -> Iterator[str | None]:
    if endpoint.flight_port is None:
        yield None
        return
    scheme = "grpc" if endpoint.tls is None else "grpc+tls"
    host = access.in_url(endpoint.host)
    tls = None
    if endpoint.tls is not None:
        tls = endpoint.tls[0].read_bytes(), endpoint.tls[1].read_bytes()
    try:
        flights = FlightLookups(
            lookups, f"{scheme}://{host}:{endpoint.flight_port}", endpoint.token, tls
        )
    except OSError as error:
        raise Failure(
            f"cannot listen at {host}:{endpoint.flight_port} for Arrow Flight: {error}. Choose "
            "another --flight-port, or --no-flight."
        ) from error
    with flights:
        yield f"{scheme}://{host}:{flights.port}"
