"""`millrace mirror`: keep a copy of an operator's state in another store."""

from __future__ import annotations

import json as json_
import threading

import click

from millrace.cli.failures import Failure, explained, interrupts_set
from millrace.mirrors.mirror import POLL_SECONDS, Mirror

EPILOG = """\b
Examples:
  millrace mirror /data/totals redis://127.0.0.1:6379 --operator totals
  millrace mirror s3://bucket/totals postgresql://reader@db/online --operator totals
  millrace mirror /data/totals rocksdb:/data/online --once
  millrace mirror /data/totals redis://127.0.0.1:6379 --status
"""


@click.command("mirror", epilog=EPILOG)
@click.argument("location")
@click.argument("target", envvar="MILLRACE_MIRROR")
@click.option("--operator", help="Which operator, if there are several.")
@click.option("--name", help="The table or hash in the target; default: the operator's name.")
@click.option("--once", is_flag=True, help="Go to the newest epoch and end.")
@click.option("--status", is_flag=True, help="Say what the mirror shows, and change nothing.")
@click.option("--reset", is_flag=True, help="First replace all rows of the mirror.")
@click.option(
    "--poll",
    default=POLL_SECONDS,
    show_default=True,
    type=click.FloatRange(0.001, 60),
    help="Seconds between checks for a new epoch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --status or --once.")
def mirror_command(
    location: str,
    target: str,
    operator: str | None,
    name: str | None,
    once: bool,
    status: bool,
    reset: bool,
    poll: float,
    as_json: bool,
) -> None:
    """Keep a copy of an operator's state in Redis, PostgreSQL or RocksDB.

    Follows the committed epochs until Ctrl-C. Each is applied in one transaction together with its
    number, so that the target always shows the state of one epoch. Started again, it continues
    where it was. A URL with a password can be given as MILLRACE_MIRROR instead of TARGET.
    """
    if status and (once or reset):
        raise Failure("--status changes nothing: leave --once and --reset out.")
    if as_json and not (status or once):
        raise Failure("--json goes with --status or --once.")
    stop = threading.Event()
    with (
        explained(),
        interrupts_set(stop),
        Mirror(location, target, operator, name=name, read_only=status) as mirror,
    ):
        if reset:
            mirror.reset()
        if once:
            mirror.catch_up()
        if once or status:
            click.echo(_json(mirror) if as_json else _described(mirror))
            return
        click.echo(f"mirroring {mirror.operator} of {mirror.location} to {mirror.target}", err=True)
        epoch = mirror.follow(poll_seconds=poll, stop=stop)
    click.echo(f"ended at epoch {epoch}", err=True)


def _described(mirror: Mirror) -> str:
    behind = mirror.behind()
    shown, shows = mirror.epoch, "is empty"
    if shown:
        shows = f"shows epoch {shown}, committed at {mirror.committed_at}"
    late = "up to date"
    if behind.epochs:
        late = f"{behind.epochs} epochs behind, the first since {behind.seconds:.1f} s"
    return f"{mirror.operator} in {mirror.target} {shows}: {late}"


def _json(mirror: Mirror) -> str:
    behind, committed = mirror.behind(), mirror.committed_at
    return json_.dumps(
        {
            "location": mirror.location,
            "target": mirror.target,
            "operator": mirror.operator,
            "epoch": mirror.epoch,
            "committed_at": None if committed is None else committed.isoformat(),
            "epochs_behind": behind.epochs,
            "seconds_behind": behind.seconds,
        }
    )
