"""`millrace check`, `gc` and `repair`: maintain a location's files."""

from __future__ import annotations

import json as json_
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import Progress

from millrace.cli.failures import Failure, explained
from millrace.ids import TableName, parse_table_name
from millrace.log import Journal, Trail, open_store
from millrace.log.inspection import Inspection, inspect
from millrace.log.layout import SEGMENTS
from millrace.log.retention import collect, garbage
from millrace.reading.description import Description
from millrace.state.repair import Opener
from millrace.state.repair import repair as segment_repair
from millrace.state.replica import Replica

SHOWN = 20
"""Files that are listed one by one."""


@click.command(epilog="Example: millrace check /data/totals")
@click.argument("location")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(location: str, as_json: bool) -> None:
    """Verify a whole location: report what is readable, damaged, or not needed.

    The exit code is 1 if something that a retained epoch needs is damaged.
    """
    with explained():
        journal = Journal.open(open_store(location))
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading segments", total=None)

            def tell(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            found = inspect(journal, tell)
    click.echo(json_.dumps(asdict(found)) if as_json else described(found))
    if not found.is_sound:
        raise SystemExit(1)


def described(found: Inspection) -> str:
    """The findings, for people."""
    if found.epochs is None:
        lines = [f"{found.location}: no committed epoch yet"]
    else:
        first, last = found.epochs
        lines = [
            f"{found.location}: epochs {first} to {last}, {found.segments} segments, "
            f"{found.bytes / 1e6:.1f} MB verified",
            f"readable: {len(found.readable)} of {last - first + 1} epochs"
            + (f", the last is {found.readable[-1]}" if found.readable else ""),
        ]
    for damage in found.damaged:
        needed = "no epoch needs it"
        if damage.epochs is not None:
            needed = f"needed by epochs {damage.epochs[0]} to {damage.epochs[1]}"
        lines.append(f"DAMAGED {damage.path} ({needed}): {damage.problem}")
    for what, paths in (
        ("not needed; `millrace gc` removes them", found.orphans),
        ("of an epoch that is not committed", found.unfinished),
        ("not Millrace's", found.strangers),
    ):
        if paths:
            lines.append(f"{len(paths)} files {what}:")
            lines += [f"  {path}" for path in paths[:SHOWN]]
            if len(paths) > SHOWN:
                lines.append(f"  and {len(paths) - SHOWN} more")
    lines.append("sound" if found.is_sound else "NOT SOUND")
    return "\n".join(lines)


@click.command(epilog="Example: millrace gc /data/totals --retain 20 --dry-run")
@click.argument("location")
@click.option("--retain", default=100, show_default=True, help="Epochs that stay readable.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gc(location: str, retain: int, dry_run: bool, as_json: bool) -> None:
    """Forget old epochs, and remove files that no retained epoch needs.

    Safe while the query runs and while readers are open: files of epochs that are not committed
    yet are left alone, and so is what a reader has a lease on.
    """
    if retain < 1:
        raise Failure(f"--retain {retain}: at least one epoch has to stay readable.")
    with explained():
        journal = Journal.open(open_store(location))
        with Console(stderr=True).status(f"reading the manifests of {location}"):
            swept = _sweep(journal, retain, dry_run)
    verb = "would remove" if dry_run else "removed"
    if as_json:
        click.echo(json_.dumps({**swept, "dry_run": dry_run}))
    else:
        click.echo(f"{verb} {swept['manifests']} manifests and {swept['segments']} segments")


def _sweep(journal: Journal, retain: int, dry_run: bool) -> dict[str, int]:
    if dry_run:
        found = garbage(journal, retain)
        return {"manifests": len(found.epochs), "segments": len(found.segments)}
    return asdict(collect(journal, retain))


@click.command(epilog="Example: millrace repair /data/totals")
@click.argument("location")
@click.option("--dry-run", is_flag=True, help="Only show what can be repaired.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def repair(location: str, dry_run: bool, as_json: bool) -> None:
    """Rebuild damaged segments from the epochs before them, where possible.

    A file is replaced only by one that matches every checksum in its manifest. Merged rows can be
    recomputed while the previous epoch is retained and intact; rows that exist only in the damaged
    file cannot. The exit code is 1 if something stays damaged.
    """
    with explained():
        journal = Journal.open(open_store(location))
        damaged = sorted({d.path for d in inspect(journal).damaged})
        segments = [path for path in damaged if path.startswith(f"{SEGMENTS}/")]
        done = segment_repair(journal, segments, _opener(journal), dry_run=dry_run)
    others = [path for path in damaged if path not in segments]
    if as_json:
        click.echo(json_.dumps({"segments": [asdict(r) for r in done], "others": others}))
    else:
        verb = "can be repaired" if dry_run else "repaired"
        for one in done:
            click.echo(f"{verb}: {one.path}" if one.is_repaired else f"DAMAGED {one.reason}")
        for path in others:
            click.echo(f"DAMAGED {path}: only segments can be rebuilt; restore it from a backup")
        if not damaged:
            click.echo("nothing is damaged")
    if others or not all(one.is_repaired for one in done):
        raise SystemExit(1)


def _opener(journal: Journal) -> Opener:
    def opened(trail: Trail, name: TableName) -> Replica:
        operator, table = parse_table_name(name)
        layout = Description(operator, trail.specs[operator]).tables[table]
        return Replica(journal.store, layout.schema, trail.key_groups, owned=layout.owned)

    return opened
