"""`millrace ui`: the live page of a location, whether its query runs or not."""

from __future__ import annotations

import threading

import click

from millrace.access import TOKEN_VARIABLE
from millrace.cli.failures import explained, interrupts_set

DEFAULT_PORT = 4300


@click.command(
    epilog="""\b
Examples:
  millrace ui /data/totals
  millrace ui /data/totals --port 8080
  MILLRACE_TOKEN=... millrace ui s3://bucket/totals --host 0.0.0.0
"""
)
@click.argument("location")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port to listen on; 0 picks a free one.",
)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    help="The token that clients must send; required if other machines can reach the page. "
    f"Or set {TOKEN_VARIABLE}.",
)
def ui(location: str, host: str, port: int, token: str | None) -> None:
    """Serve the live page of a location until Ctrl-C.

    The page reads the location and changes nothing. It works on any machine that can read the
    location, while the query runs and afterwards. `/metrics` has the figures for Prometheus.
    """
    from millrace.ui import open_page

    ended = threading.Event()
    with (
        explained(),
        interrupts_set(ended),
        open_page(location, host=host, port=port, token=token) as page,
    ):
        click.echo(f"{page.watch.location} is at {page.url}\nCtrl-C ends it")
        ended.wait()
    click.echo("ended")
