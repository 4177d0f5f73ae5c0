"""`millrace sql`, `ls`, `show`, `keys`, `get` and `diff`: look at a location's state.

Exit codes: 0, and 1 if something was refused or a key was not found; 2 is a command line that
cannot be understood.
"""

from __future__ import annotations

import json as json_
from collections.abc import Sequence
from typing import Any

import click
import pyarrow as pa

from millrace import clock
from millrace.cli import printing as out
from millrace.cli.failures import Failure, explained
from millrace.errors import NotALocationError, UsageError
from millrace.ids import table_name
from millrace.log import Journal, open_store
from millrace.log.layout import IDENTITY
from millrace.log.leases import leases
from millrace.reading import Reader, metadata, open_location
from millrace.reading.description import Description
from millrace.reading.epochs import from_ms

LOCATION = click.argument("location")
EPOCH = click.option("--epoch", type=int, help="An earlier epoch; default: the last.")
AS_OF = click.option(
    "--as-of", help="The last epoch as of a time, such as '2026-03-01 12:30' (UTC)."
)
OPERATOR = click.option("--operator", help="Which operator, if there are several.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
LIMIT = click.option("--limit", default=50, show_default=True, help="How many rows to show.")


def _echo(value: Any) -> None:
    click.echo(json_.dumps(out.plain(value), ensure_ascii=False))


@click.command(epilog="Example: millrace sql /data/totals 'select room, n from totals' --limit 9")
@LOCATION
@click.argument("query")
@EPOCH
@AS_OF
@click.option(
    "--format", "form", type=click.Choice(out.FORMATS), default="table", show_default=True
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="A file to write to.")
@LIMIT
def sql(
    location: str,
    query: str,
    epoch: int | None,
    as_of: str | None,
    form: str,
    output: str | None,
    limit: int,
) -> None:
    """Run a query in DuckDB's SQL on the state.

    `select name, columns from millrace_tables` lists the tables. --limit applies to tables on the
    screen; files get all rows.
    """
    with explained(), open_location(location, epoch=epoch, as_of=as_of) as reader:
        found = reader.sql(query)
    out.write(found, form, output, limit)


@click.command(epilog="Example: millrace diff /data/totals 41 42")
@LOCATION
@click.argument("before", type=int)
@click.argument("after", type=int)
@OPERATOR
@LIMIT
@JSON
def diff(
    location: str, before: int, after: int, operator: str | None, limit: int, as_json: bool
) -> None:
    """Show the keys whose values differ between two epochs."""
    with explained(), open_location(location, epoch=after) as reader:
        found = reader.diff(before, operator)
        keys = reader.keys(operator)
    if as_json:
        _echo(out.objects(found))
        return
    counts = dict.fromkeys(("added", "changed", "removed"), 0)
    for kind in found.column("_change").to_pylist():
        counts[kind] += 1
    out.show(_compared(found.slice(0, limit), keys))
    click.echo(", ".join(f"{count} {kind}" for kind, count in counts.items()))


def _compared(found: pa.Table, keys: list[str]) -> pa.Table:
    """Only the values that differ, as text."""
    what = []
    for row in found.select(["before", "after"]).to_pylist():
        was, now = row["before"] or {}, row["after"] or {}
        parts = [
            f"{name}: {out.plain(was.get(name))} -> {out.plain(now.get(name))}"
            for name in (now or was)
            if repr(was.get(name)) != repr(now.get(name))
        ]
        what.append(", ".join(parts))
    kept = found.select([*keys, "_change"]).rename_columns([*keys, "change"])
    return kept.append_column("values", pa.array(what, pa.string()))


@click.command(epilog="Example: millrace ls /data")
@LOCATION
@JSON
def ls(location: str, as_json: bool) -> None:
    """List a location's tables, or the locations in a folder."""
    with explained():
        store = open_store(location)
        if store.size(IDENTITY) is None:
            found = _locations(location)
        else:
            with open_location(location) as reader:
                found = _tables(reader)
    if as_json:
        _echo(found)
    else:
        out.show(pa.Table.from_pylist(found))


def _tables(reader: Reader) -> list[dict[str, Any]]:
    snapshot = reader.snapshot
    logs = {
        (name, table): snapshot.log(name, table)
        for name in snapshot.operators
        for table in snapshot.description(name).tables
    }
    listed = []
    for row in metadata.state_tables(snapshot):
        stored = [row["state"]]
        if row["kind"] == "timers":
            stored = snapshot.description(row["operator"]).timers
        mine = [logs[row["operator"], table] for table in stored]
        listed.append(
            {
                "table": row["name"],
                "kind": row["kind"],
                "rows": sum(log.rows for log in mine),
                "bytes": sum(e.bytes for log in mine for e in log.segments().values()),
                "columns": ", ".join(row["columns"]),
            }
        )
    return listed


def _locations(folder: str) -> list[dict[str, Any]]:
    """The locations right below a folder."""
    store = open_store(folder)
    names = [path.split("/")[0] for path in store.list("") if path.count("/") == 1]
    found = []
    for name in sorted(set(names)):
        if store.size(f"{name}/{IDENTITY}") is None:
            continue
        url = f"{folder.rstrip('/')}/{name}"
        journal = Journal.open(open_store(url))
        trail = journal.newest()
        found.append(
            {
                "location": url,
                "epoch": int(trail.epoch),
                "committed_at": from_ms(trail.time_ms).isoformat() if trail.epoch else None,
                "operators": ", ".join(sorted(trail.specs)),
                "rows": sum(trail.operator(table_name(name)).rows for name in trail.specs),
                "bytes": sum(entry.bytes for entry in trail.segments()),
            }
        )
    if not found:
        raise NotALocationError(
            f"{store.url} is not a Millrace location, and has no location directly inside it. A "
            "location is what was given to start() as checkpointLocation."
        )
    return found


@click.command(epilog="Example: millrace show /data/totals --json")
@LOCATION
@EPOCH
@AS_OF
@JSON
def show(location: str, epoch: int | None, as_of: str | None, as_json: bool) -> None:
    """Show a location's operators, epochs, segments, key groups and readers."""
    with explained(), open_location(location, epoch=epoch, as_of=as_of) as reader:
        snapshot = reader.snapshot
        body: dict[str, Any] = {
            "location": snapshot.journal.store.url,
            "query": snapshot.journal.identity.query,
            "epoch": int(reader.epoch),
            "committed_at": reader.committed_at,
            "batch_id": reader.batch_id,
            "watermark": None if reader.watermark_ms is None else from_ms(reader.watermark_ms),
            "key_group_count": reader.key_groups,
            "operators": metadata.operators(snapshot),
            "assignment": _assignment(reader),
            "epochs": metadata.epochs(snapshot),
            "segments": metadata.segments(snapshot),
            "key_groups": metadata.key_groups(snapshot),
        }
        # This command is a reader as well.
        live = [x for x in leases(snapshot.journal.store)[0] if x.id != reader.lease_id]
        body["readers"] = [
            {"epoch": x.epoch, "follows": x.follows, "expires": from_ms(x.expires_ms)} for x in live
        ]
    if as_json:
        _echo(body)
    else:
        _describe(body)


def _assignment(reader: Reader) -> list[dict[str, Any]]:
    found = []
    for name in reader.operators:
        description = reader.snapshot.description(name)
        assignment = reader.snapshot.log(description.name, "").assignment
        if assignment is None:
            continue
        given = assignment.to_json()["groups"]
        for shard, groups in enumerate(given):
            executor = assignment.executor_of(shard) or None
            found.append(
                {"operator": name, "shard": shard, "executor": executor, "key_groups": groups}
            )
    return found


def _describe(body: dict[str, Any]) -> None:
    age = (clock.now() - body["committed_at"]).total_seconds()
    click.echo(f"{body['location']}: epoch {body['epoch']}, committed {age:.0f} s ago")
    epochs = body["epochs"]
    if body["watermark"] is not None:
        click.echo(f"watermark {body['watermark'].isoformat()}")
    click.echo(
        f"{len(epochs)} epochs retained, from {epochs[0]['epoch']} to {epochs[-1]['epoch']}; "
        f"{len(body['readers'])} open readers; {body['key_group_count']} key groups"
    )
    rows = [{**row, "keys": ", ".join(row["keys"])} for row in body["operators"]]
    out.show(pa.Table.from_pylist(rows), title="operators")
    out.show(pa.Table.from_pylist(body["assignment"]), title="assignment")
    out.show(pa.Table.from_pylist(epochs[-10:], metadata.EPOCHS), title="last epochs")
    largest = sorted(body["segments"], key=lambda row: -row["bytes"])[:10]
    shown = pa.Table.from_pylist(largest, metadata.SEGMENTS)
    out.show(shown, title=f"largest of {len(body['segments'])} segments")
    fullest = sorted(body["key_groups"], key=lambda row: -(row["base_rows"] + row["changed_rows"]))[
        :10
    ]
    out.show(pa.Table.from_pylist(fullest, metadata.KEY_GROUPS), title="fullest key groups")


@click.command(epilog="Example: millrace keys /data/totals --limit 5")
@LOCATION
@OPERATOR
@EPOCH
@AS_OF
@click.option("--key-groups", help="Only these key groups, such as 0-15.")
@LIMIT
@JSON
def keys(
    location: str,
    operator: str | None,
    epoch: int | None,
    as_of: str | None,
    key_groups: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the keys of an operator."""
    with explained(), open_location(location, epoch=epoch, as_of=as_of) as reader:
        names = reader.keys(operator)
        batches, found = [], 0
        schema = pa.schema([reader.schema(operator).field(name) for name in names])
        for batch in reader.to_batches(operator, columns=names, key_groups=key_groups):
            batches.append(batch)
            found += batch.num_rows
            if found >= limit:
                break
        rows = pa.Table.from_batches(batches, schema).slice(0, limit)
    if as_json:
        _echo(out.objects(rows))
    else:
        out.show(rows)


@click.command(epilog="Example: millrace get /data/totals hall 7")
@LOCATION
@click.argument("values", nargs=-1)
@click.option("--key", "given", multiple=True, help="A key as JSON; may be given several times.")
@OPERATOR
@EPOCH
@AS_OF
@JSON
def get(
    location: str,
    values: Sequence[str],
    given: Sequence[str],
    operator: str | None,
    epoch: int | None,
    as_of: str | None,
    as_json: bool,
) -> None:
    """Look up a key: its VALUES, one for each key column; or several with --key.

    The exit code is 1 if a key is not found.
    """
    with explained(), open_location(location, epoch=epoch, as_of=as_of) as reader:
        description = reader.snapshot.description(operator)
        wanted = [_from_json(text) for text in given]
        if values or not wanted:
            wanted.insert(0, _from_text(values, description))
        found = reader.get(_typed(wanted, description), operator)
    listed = out.objects(found.drop_columns(["_found"]))
    there = found.column("_found").to_pylist()
    if as_json:
        _echo([row if is_there else None for row, is_there in zip(listed, there, strict=True)])
    else:
        out.show(found.filter(found.column("_found")).drop_columns(["_found"]))
    missing = [row for row, is_there in zip(listed, there, strict=True) if not is_there]
    if missing:
        named = "; ".join(
            ", ".join(f"{k}={row[k]!r}" for k in description.key_names) for row in missing
        )
        raise Failure(f"not found at epoch {reader.epoch}: {named}")


def _from_json(text: str) -> Any:
    try:
        value = json_.loads(text)
    except ValueError as error:
        raise Failure(f"--key {text!r} is not JSON: {error}.") from error
    return value


def _from_text(values: Sequence[str], description: Description) -> list[str]:
    if len(values) != len(description.keys):
        raise Failure(
            f"the key of operator {description.name!r} is {', '.join(description.key_names)}: "
            f"give {len(description.keys)} values, or --key JSON."
        )
    return list(values)


def _typed(wanted: list[Any], description: Description) -> pa.Table:
    """Keys from text and JSON in the types of the key."""
    names = description.key_names
    rows = []
    for key in wanted:
        if isinstance(key, dict) and set(key) == set(names):
            rows.append([key[name] for name in names])
        elif isinstance(key, list) and len(key) == len(names):
            rows.append(key)
        elif len(names) == 1 and not isinstance(key, dict):
            rows.append([key])
        else:
            raise UsageError(
                f"{key!r} is not a key of operator {description.name!r}: its columns are "
                f"{', '.join(names)}."
            )
    columns = []
    for i, field in enumerate(description.key_schema):
        given = [row[i] for row in rows]
        try:
            columns.append(_column(given, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise UsageError(f"key column {field.name!r} is {field.type}: {error}.") from error
    return pa.table(columns, schema=description.key_schema)


def _column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if all(value is None or isinstance(value, str) for value in values):
        return pa.array(values, pa.string()).cast(data_type)
    return pa.array(values).cast(data_type)
