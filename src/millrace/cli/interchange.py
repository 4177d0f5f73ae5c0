"""`millrace export` and `millrace import`: move whole states."""

from __future__ import annotations

import json as json_
from dataclasses import asdict

import click
from rich.console import Console

from millrace.cli.failures import explained
from millrace.interchange.moving import FORMATS, Moved, export, move_in

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
    help="What the files are.",
)
@click.option("--no-offsets", is_flag=True, help="Without Spark's offsets: the query may run.")
@JSON
def export_command(
    location: str,
    out: str,
    epoch: int | None,
    file_format: str,
    no_offsets: bool,
    as_json: bool,
) -> None:
    """Write the state of an epoch to plain files, which other tools read and import takes.

    The last epoch comes with Spark's offsets, so that a query can go on from it: stop the query
    first, or do without them.
    """
    with explained(), Console(stderr=True).status("exporting"):
        moved = export(location, out, epoch=epoch, file_format=file_format, offsets=not no_offsets)
    _tell("exported", moved, as_json)


@click.command("import")
@click.argument("source")
@click.argument("location")
@click.option("--key-groups", type=int, help="Of the new location; default: as many as before.")
@click.option("--parallelism", type=int, help="Shards that the new location begins with.")
@click.option("--epoch", type=int, help="Of the location to import from; default: the last one.")
@click.option(
    "--fresh-source", is_flag=True, help="Leave Spark's offsets behind: the sources begin anew."
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

    The state of a Spark query is imported from Python, with mr.import_spark: it takes the Millrace
    stream that is to go on from it.

    \b
    Examples:
      millrace import /backup/totals /data/totals
      millrace import /data/totals /data/finer --key-groups 1024
    """
    with explained(), Console(stderr=True).status("importing"):
        moved = move_in(
            source,
            location,
            key_groups=key_groups,
            parallelism=parallelism,
            epoch=epoch,
            fresh_source=fresh_source,
        )
    _tell("imported", moved, as_json)


def _tell(verb: str, moved: Moved, as_json: bool) -> None:
    if as_json:
        click.echo(json_.dumps(asdict(moved)))
        return
    offsets = "with" if moved.with_offsets else "without"
    click.echo(
        f"{verb} {moved.rows} rows of {', '.join(moved.operators)} at epoch {moved.epoch}, "
        f"{offsets} Spark's offsets: {moved.location}"
    )
