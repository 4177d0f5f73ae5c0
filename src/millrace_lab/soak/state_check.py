"""What the state must be at an epoch: the rows of all batches up to it, at once, in DuckDB.

Every row is a function of its number, so the state after any number of batches can be computed
from that number and the watermark alone. The end of a soak and its reader check with this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

import millrace as mr
from millrace_lab.soak import workload as w

SHOWN = 5
"""How many differing rows of each comparison are named."""

ALL = 1 << 60
"""More batches than there are."""


def totals_after(batches: int = ALL) -> str:
    """SQL: the state of `totals` after some of the batches that are in `input`."""
    return (
        "select k, count(*) as n, sum(value)::bigint as total, max(id) as top from input "
        f"where batch < {batches} group by k"
    )


def names_after(batches: int = ALL) -> str:
    """SQL: the state of `names` after some of the batches that are in `input`."""
    return (
        "select name, count(*) as n, sum(value)::bigint as total from input "
        f"where batch < {batches} group by name"
    )


def create_input(db: duckdb.DuckDBPyConnection, batches: int, chosen_keys: bool) -> None:
    """All rows of the first batches: the table `input`."""
    # One thread: the query needs the others.
    db.execute("set threads = 1")
    db.execute(
        f"""create or replace table input as
        select value, value // {w.ROWS} as batch, {w.ID} as id, {w.KEY} as k,
               {w.name_sql(chosen_keys)} as name,
               ({w.AT_MS}) // {w.WINDOW_S}000 as "window"
        from range({batches * w.ROWS}) t(value)"""
    )


def batches_of(reader: mr.Reader) -> int:
    """How many batches are in the state that a reader has open."""
    return 0 if reader.batch_id is None else reader.batch_id + 1


class Comparison:
    """Compares tables with queries in DuckDB, and keeps what it found."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self.db = db
        self.compared: Counter[str] = Counter()
        """Rows, by what they were."""
        self.mismatches: list[str] = []

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        # Fetched to the end: the connection can do nothing else before.
        return self.db.execute(sql).fetchall()

    def compare(self, what: str, sql: str, found: pa.Table) -> None:
        """As multisets, by the names of the found columns."""
        columns = ", ".join(f'"{name}"' for name in found.column_names)
        self.db.register("found", found)
        self.query(f"create or replace temp table expected as select {columns} from ({sql})")
        self.compared[what] += found.num_rows
        for problem, left, right in (
            ("is missing", "expected", "found"),
            ("is wrong", "found", "expected"),
        ):
            difference = f"(select {columns} from {left} except all select {columns} from {right})"
            [(count,)] = self.query(f"select count(*) from {difference}")
            if count:
                rows = self.query(f"from {difference} order by all limit {SHOWN}")
                self.mismatches.append(f"{what}: {count} rows; {problem}: {columns} = {rows}")

    def none(self, what: str, sql: str, found: pa.Table) -> None:
        """The query, which may ask `found`, has no rows."""
        self.db.register("found", found)
        self.compared[what] += found.num_rows
        rows = self.query(f"from ({sql}) order by all limit {SHOWN}")
        if rows:
            self.mismatches.append(f"{what}: {rows}")


def check_state(check: Comparison, reader: mr.Reader, chosen_keys: bool) -> None:
    """Compare all state that a reader has open."""
    create_input(check.db, batches_of(reader), chosen_keys)
    # Where each id came first.
    check.query(
        """create or replace table news as
        select k, id, min(value) as value, min(batch) as batch from input group by k, id"""
    )
    check.compare("state of totals", totals_after(), reader.to_arrow(w.TOTALS))
    check.compare("state of names", names_after(), reader.to_arrow(w.NAMES))
    _check_visits(check, reader)
    _check_windows(check, reader)


def _check_visits(check: Comparison, reader: mr.Reader) -> None:
    check.compare(
        "state of visits",
        'select k, count(*) as "distinct" from news group by k',
        reader.to_arrow(w.VISITS).select(["k", "distinct"]),
    )
    check.compare(
        "list 'latest'",
        f"""select k, id from (
            select k, id, row_number() over (partition by k order by value desc) as place
            from news) where place <= {w.LATEST}""",
        _entries(reader, "latest", {"element": "id", "value": "id"}),
    )
    seen = _entries(reader, "seen", {"member": "id", "value": "id", "key": "id"})
    # An id is remembered from the watermark of its epoch on, so those of this time are there.
    check.none(
        "forgotten ids of set 'seen'",
        f"""select k, id from news where {w.AT_MS} > {reader.watermark_ms or 0}
        except select k, id from found""",
        seen,
    )
    check.none(
        "unknown ids in set 'seen'", "select k, id from found except select k, id from news", seen
    )


def _check_windows(check: Comparison, reader: mr.Reader) -> None:
    check.compare(
        "map 'open'",
        f"from ({WINDOWS}) where not {is_over(reader)}",
        _entries(reader, "open", {"key": "window", "value": "n"}),
    )
    check.compare(
        "state of windows",
        f"select k, count(*) as windows, sum(n)::bigint as n from ({WINDOWS}) "
        f"where {is_over(reader)} group by k",
        reader.to_arrow(w.WINDOWS),
    )


WINDOWS = 'select k, "window", count(*) as n from input group by k, "window"'


def is_over(reader: mr.Reader) -> str:
    """SQL: whether a window had been closed at the reader's epoch."""
    return f'("window" + 1) * {w.WINDOW_S}000 <= {reader.watermark_ms or 0}'


def _entries(reader: mr.Reader, state: str, names: Mapping[str, str]) -> pa.Table:
    table = reader.to_arrow(w.VISITS, state=state)
    table = table.rename_columns([names.get(c, c) for c in table.column_names])
    return table.select(["k", *dict.fromkeys(n for n in names.values() if n in table.column_names)])
