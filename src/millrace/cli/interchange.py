"""`millrace export` and `millrace import`: move whole states."""

from __future__ import annotations

import json as json_
from dataclasses import asdict

import click
from rich.console import Console

from millrace.cli.failures import explained
from millrace.interchange.transfer import FORMATS, Transfer, export, import_state

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("export", epilog="Example: millrace export /data/totals /backup/totals --epoch 12")
@click.argument("location")
@click.argument("out")
@click.option("--epoch", type=int, help="Which epoch; default: the last one.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default="parquet",
    show_default=True,
    help="The format of the files.",
)
@click.option("--no-offsets", is_flag=True, help="Leave out Spark's offsets; the query may run.")
@JSON
def export_command(
    location: str,
    out: str,
    epoch: int | None,
    file_format: str,
    no_offsets: bool,
    as_json: bool,
) -> None:
    """Write the state of an epoch to plain files, for other tools and for `millrace import`.

    The last epoch includes Spark's offsets, so that a query can continue from it. Stop the query
    first, or leave them out with --no-offsets.
    """
    with explained(), Console(stderr=True).status("exporting"):
        done = export(location, out, epoch=epoch, file_format=file_format, offsets=not no_offsets)
    _tell("exported", done, as_json)


@click.command("import")
@click.argument("source")
@click.argument("location")
@click.option("--key-groups", type=int, help="Key groups of the new location; default: as before.")
@click.option("--parallelism", type=int, help="The number of shards the new location starts with.")
@click.option("--epoch", type=int, help="The epoch of a location; default: the last one.")
@click.option(
    "--fresh-source",
    is_flag=True,
    help="Leave out Spark's offsets: the sources start from the beginning.",
)
@JSON
def import_command(
    source: str,
    location: str,
    key_groups: int | None,
    parallelism: int | None,
    epoch: int | None,
    fresh_source: bool,
    as_json: bool,
) -> None:
    """Import an export, or the state of another location, into a new location.

    To import the state of a Spark query, use mr.import_spark in Python: it needs the Millrace
    stream that continues from it.

    \b
    Examples:
      millrace import /backup/totals /data/totals
      millrace import /data/totals /data/finer --key-groups 1024
    """
    with explained(), Console(stderr=True).status("importing"):
        done = import_state(
            source,
            location,
            key_groups=key_groups,
            parallelism=parallelism,
            epoch=epoch,
            fresh_source=fresh_source,
        )
    _tell("imported", done, as_json)


def _tell(verb: str, done: Transfer, as_json: bool) -> None:
    if as_json:
        click.echo(json_.dumps(asdict(done)))
        return
    offsets = "with" if done.with_offsets else "without"
    click.echo(
        f"{verb} {done.rows} rows of {', '.join(done.operators)} at epoch {done.epoch}, "
        f"{offsets} Spark's offsets: {done.location}"
    )
