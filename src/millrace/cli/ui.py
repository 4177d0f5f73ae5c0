"""`millrace ui`: the live page of a location, whoever runs its query, or nobody."""

from __future__ import annotations

import threading

import click

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
    help="0 takes a free one.",
)
@click.option(
    "--token",
    envvar="MILLRACE_TOKEN",
    help="What readers have to know; needed if other machines can reach the page. "
    "Also taken from MILLRACE_TOKEN.",
)
def ui(location: str, host: str, port: int, token: str | None) -> None:
    """Serve the live page of a location until Ctrl-C.

    It reads the location and changes nothing, so it works from any machine that can read it, while
    the query runs and after. `/metrics` has the figures for Prometheus.
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
