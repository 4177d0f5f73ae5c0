"""The reader of a soak: opens the location and compares its state with the oracle, epoch by epoch.

A round goes to the newest epoch and compares all state; SQL, look-ups and changes; and then, one by
one, the epochs that were committed since the last round. Another reader stays open at one epoch for
a while: its lease must be renewed, whatever the store did meanwhile, and its state must not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

import millrace as mr
from millrace import clock
from millrace.errors import UnknownEpochError
from millrace.log import open_store
from millrace.log.leases import leases
from millrace_lab.soak import workload as w
from millrace_lab.soak.state_check import (
    Comparison,
    batches_of,
    check_state,
    names_after,
    totals_after,
)
from millrace_lab.soak.timed_check import check_timed_state
from millrace_lab.soak.witness import Report, Round, run

HELD_EPOCHS = 12
"""A reader that stays at its epoch is closed after this many later ones."""
BEHIND = 10
"""How many of the epochs since the last round are opened at most."""
RENEWED_SECONDS = 300.0
"""By then a lease is good again, whatever made it bad: outages last a minute."""


@dataclass
class _Held:
    """A reader that stays where it is."""

    reader: mr.Reader
    bad_since: float | None = None
    """Since when its lease is not one that a collection respects."""


class Reading:
    """The rounds."""

    def __init__(self, location: str, chosen_keys: bool) -> None:
        self._location = location
        self._chosen_keys = chosen_keys
        self._reader: mr.Reader | None = None
        self._held: _Held | None = None

    def __call__(self, report: Report) -> None:
        if not (Path(self._location) / "millrace.json").exists():
            return
        try:
            self._look(report)
        except Exception:
            # Start over; a reader that stays where it is must live through this.
            self._reader = None
            raise

    def _look(self, report: Report) -> None:
        if self._reader is None:
            self._reader = mr.open(self._location)
            report.counts["readers opened"] += 1
        reader, before = self._reader, report.epoch
        epoch = reader.refresh()
        if epoch < before:
            report.mismatches.append(f"a reader went from epoch {before} back to {epoch}")
        if epoch > before:
            with duckdb.connect(":memory:") as db:
                check = Comparison(db)
                self._compare(check, reader)
                _note(report, check, epoch)
                report.epoch = epoch
                for older in range(max(before, 1, epoch - BEHIND), epoch):
                    self._compare_older(report, Comparison(db), older)
        self._look_at_held(report, epoch)

    def _compare(self, check: Comparison, reader: mr.Reader) -> None:
        check_state(check, reader, self._chosen_keys)
        check_timed_state(check, reader)
        keys = [*range(0, w.KEYS + 20, 7)]
        found = reader.get(keys, w.TOTALS)
        wanted = f"from ({totals_after()}) where k in {tuple(keys)}"
        check.compare("look-ups", wanted, _found(found))
        texts = w.names(self._chosen_keys)
        check.compare("look-ups of texts", names_after(), _found(reader.get(texts, w.NAMES)))
        check.compare(
            "results of SQL",
            f"select count(*) as keys, sum(n)::bigint as n, sum(total)::bigint as total "
            f"from ({totals_after()})",
            reader.sql(
                "select count(*) as keys, sum(n)::bigint as n, sum(total)::bigint as total "
                "from totals"
            ),
        )

    def _compare_older(self, report: Report, check: Comparison, epoch: int) -> None:
        """An epoch that the reader has passed, and what has changed since; it may be gone."""
        assert self._reader is not None
        try:
            with mr.open(self._location, epoch=epoch) as older:
                batches = batches_of(older)
                check.compare("older totals", totals_after(batches), older.to_arrow(w.TOTALS))
                check.compare("older names", names_after(batches), older.to_arrow(w.NAMES))
                check_timed_state(check, older)
            check.compare(
                "changes",
                "select k, count(*) as n, sum(value)::bigint as total, max(id) as top, "
                f"max(batch) + 1 as _epoch from input group by k having max(batch) >= {epoch}",
                self._reader.changes(epoch, operator=w.TOTALS).drop_columns(["_change"]),
            )
        except UnknownEpochError:
            report.counts["epochs that were collected before they were opened"] += 1
        finally:
            _note(report, check, epoch)

    def _look_at_held(self, report: Report, epoch: int) -> None:
        if self._held is None:
            self._held = _Held(mr.open(self._location))
        held = self._held
        self._look_at_lease(report, held)
        if epoch < held.reader.epoch + HELD_EPOCHS:
            return
        self._held = None
        with held.reader as reader, duckdb.connect(":memory:") as db:
            check = Comparison(db)
            check_state(check, reader, self._chosen_keys)
            check_timed_state(check, reader)
            _note(report, check, reader.epoch)
            report.counts["readers that stayed at an epoch"] += 1

    def _look_at_lease(self, report: Report, held: _Held) -> None:
        live = {lease.id for lease in leases(open_store(self._location))[0]}
        now = clock.stopwatch()
        if held.reader.lease_id in live or not held.reader.is_leased:
            if held.bad_since is not None:
                report.counts["leases that became good again"] += 1
            held.bad_since = None
        elif held.bad_since is None:
            held.bad_since = now
        elif now - held.bad_since > RENEWED_SECONDS:
            report.problems.append(
                f"the lease of an open reader on epoch {held.reader.epoch} was not renewed for "
                f"{RENEWED_SECONDS:.0f} s"
            )
            held.bad_since = now


def _found(rows: pa.Table) -> pa.Table:
    return rows.filter(rows["_found"]).drop_columns(["_found"])


def _note(report: Report, check: Comparison, epoch: int) -> None:
    report.counts["epochs compared"] += bool(check.compared)
    for what, rows in check.compared.items():
        report.counts[f"rows compared: {what}"] += rows
    report.mismatches += [f"at epoch {epoch}, {text}" for text in check.mismatches]


def _prepare(folder: Path, chosen_keys: bool) -> Round:
    return Reading(str(folder / "disk" / "location"), chosen_keys)


if __name__ == "__main__":
    run(_prepare)
