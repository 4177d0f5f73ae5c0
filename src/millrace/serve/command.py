"""`millrace serve`: look-ups in the state of a location, until it is told to stop."""

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

from millrace.cli.failures import Failure, explained
from millrace.errors import TokenRequiredError
from millrace.serve.flight import FlightLookups
from millrace.serve.http import App
from millrace.serve.look import POLL_SECONDS, Lookups
from millrace.ui.server import is_loopback

TOKEN_VARIABLE = "MILLRACE_TOKEN"

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
    """Where a server listens, and who may ask it."""

    host: str
    http_port: int
    flight_port: int | None
    token: str | None
    tls: tuple[Path, Path] | None = None


@click.command(epilog=EPILOG)
@click.argument("location")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8470, show_default=True, help="The HTTP port; 0: any free one.")
@click.option(
    "--flight-port", default=8471, show_default=True, help="The Arrow Flight port; 0: any free one."
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
    help="Seconds between two looks for a new epoch.",
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
    stale it can be. Read-only. /docs is a page that describes the HTTP part.
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    with explained():
        token = read_token(token_file)
        check_reach(host, token)
        tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
        endpoint = Endpoint(host, port, None if no_flight else flight_port, token, tls)
        lookups = Lookups(location, poll)
    sys.setswitchinterval(SWITCH_SECONDS)
    # What is there now stays: the collector need not look at it again, which takes milliseconds.
    gc.collect()
    gc.freeze()
    with lookups, _listening(endpoint) as bound, _flight(lookups, endpoint) as flight_url:
        scheme = "http" if endpoint.tls is None else "https"
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"serving {lookups.location}", err=True)
        click.echo(f"http    {scheme}://{shown}:{bound.getsockname()[1]}/docs", err=True)
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


def check_reach(host: str, token: str | None) -> None:
    """Raise if other machines could ask and there is no token to tell who may."""
    if token is None and not is_loopback(host):
        raise TokenRequiredError(
            f"--host {host} can be reached from other machines, so a token is needed: give one "
            f"with --token-file or {TOKEN_VARIABLE}, or listen at 127.0.0.1."
        )


def server(lookups: Lookups, endpoint: Endpoint) -> uvicorn.Server:
    """The HTTP server, not running yet."""
    cert, key = endpoint.tls if endpoint.tls is not None else (None, None)
    return uvicorn.Server(
        uvicorn.Config(
            App(lookups, endpoint.token),
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
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((endpoint.host, endpoint.http_port))
            # Whoever connects as soon as the address is told waits, and is not refused.
            bound.listen(1024)
        except OSError as error:
            raise Failure(
                f"cannot listen at {endpoint.host}:{endpoint.http_port}: {error.strerror}. Choose "
                "another --host or --port."
            ) from error
        yield bound


@contextlib.contextmanager
def _flight(lookups: Lookups, endpoint: Endpoint) -> Iterator[str | None]:
    if endpoint.flight_port is None:
        yield None
        return
    scheme = "grpc" if endpoint.tls is None else "grpc+tls"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
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
