"""What the state and the outputs must be: the same rows, all at once, in DuckDB.

Two things are the run's own and are read from it: how many batches there were and at what watermark
they ended (the last manifest), and the processing time of each batch (Spark's offset log).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr
from millrace.log.inspection import inspect
from millrace.log.journal import Journal
from millrace.log.spark_logs import OFFSETS
from millrace.log.store import open_store
from millrace_lab.soak import workload as w

SHOWN = 5
"""How many differing rows of each comparison are named."""


@dataclass
class Verdict:
    """What the comparison found."""

    batches: int
    rows: int
    compared: dict[str, int]
    """Rows compared, by what they were."""
    mismatches: list[str]


def check(location: Path, sinks: Path) -> Verdict:
    """Compare everything."""
    with mr.open(str(location)) as reader, duckdb.connect(":memory:") as db:
        batches = 0 if reader.batch_id is None else reader.batch_id + 1
        check = _Check(db, reader, location, sinks, batches)
        check.totals()
        check.visits()
        check.windows()
        check.files()
        return Verdict(batches, batches * w.ROWS, check.compared, check.mismatches)


def batch_times(location: Path, batches: int) -> list[int]:
    """Each batch's processing time as operators see it: it never goes back."""
    times: list[int] = []
    for batch in range(batches):
        lines = (location / OFFSETS / str(batch)).read_text().splitlines()
        time = json.loads(lines[1])["batchTimestampMs"]
        times.append(max(time, times[-1]) if times else time)
    return times


class _Check:
    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        reader: mr.Reader,
        location: Path,
        sinks: Path,
        batches: int,
    ) -> None:
        self._db = db
        self._reader = reader
        self._location = location
        self._sinks = sinks
        self._batches = batches
        self.compared: dict[str, int] = {}
        self.mismatches: list[str] = []
        self._query(
            f"""create table input as
            select value, value // {w.ROWS} as batch, {w.ID} as id, {w.KEY} as k,
                   ({w.BASE_S}000 + value * {w.MS_PER_ROW}) // {w.WINDOW_S}000 as "window"
            from range({batches * w.ROWS}) t(value)"""
        )
        self._query(
            """create table news as select k, id, min(value) as value, min(batch) as batch
            from input group by k, id"""
        )

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        # Fetched to the end: the connection can do nothing else before.
        return self._db.execute(sql).fetchall()

    def totals(self) -> None:
        self._compare(
            "state of totals",
            "select k, count(*) as n, sum(value)::bigint as total, max(id) as top "
            "from input group by k",
            self._reader.to_arrow(w.TOTALS),
        )
        self._compare(
            "output of totals",
            """select k, sum(n) over so_far as n, sum(total) over so_far as total,
                      max(top) over so_far as top, batch
            from (select k, batch, count(*) as n, sum(value) as total, max(id) as top
                  from input group by k, batch)
            window so_far as (partition by k order by batch)""",
            _united(self._file_batches()),
        )

    def visits(self) -> None:
        rows = self._query(
            """select k, batch, n,
                      (sum(coalesce(fresh, 0)) over (partition by k order by batch))::bigint
            from (select k, batch, count(*) as n from input group by k, batch)
            left join (select k, batch, count(*) as fresh from news group by k, batch)
                using (k, batch)
            order by k, batch"""
        )
        outputs, last = _bursts(rows, batch_times(self._location, self._batches))
        self._db.register("outputs", outputs)
        self._compare(
            "output of visits", "from outputs", _united(_function_batches(self._sinks / w.VISITS))
        )
        self._db.register("last", last)
        state = self._reader.to_arrow(w.VISITS).select(["k", "distinct"])
        self._compare("state of visits", 'select k, "distinct" from last', state)
        self._compare(
            "list 'latest'",
            f"""select k, id from (
                select k, id, row_number() over (partition by k order by value desc) as place
                from news) where place <= {w.LATEST}""",
            self._state("latest", {"element": "id", "value": "id"}),
        )
        watermark = self._reader.watermark_ms or 0
        at = f"{w.BASE_S}000 + value * {w.MS_PER_ROW}"
        seen = self._state("seen", {"member": "id", "value": "id", "key": "id"})
        # An id is remembered from the watermark of its epoch on, so those of this time are there.
        self._none(
            "forgotten ids of set 'seen'",
            f"select k, id from news where {at} > {watermark} except select k, id from found",
            seen,
        )
        self._none(
            "unknown ids in set 'seen'",
            "select k, id from found except select k, id from news",
            seen,
        )

    def windows(self) -> None:
        watermark = self._reader.watermark_ms or 0
        counts = 'select k, "window", count(*) as n from input group by k, "window"'
        is_over = f'("window" + 1) * {w.WINDOW_S}000 <= {watermark}'
        closed = _united(_function_batches(self._sinks / "closed"))
        self._compare(
            "output of closed windows",
            f"from ({counts}) where {is_over}",
            closed.drop_columns(["batch"]),
        )
        self._compare(
            "map 'open'",
            f"from ({counts}) where not {is_over}",
            self._state("open", {"key": "window", "value": "n"}),
        )
        self._compare(
            "state of windows",
            f"select k, count(*) as windows, sum(n)::bigint as n from ({counts}) "
            f"where {is_over} group by k",
            self._reader.to_arrow(w.WINDOWS),
        )

    def files(self) -> None:
        """Every byte that a retained epoch needs is what was written."""
        journal = Journal.open(open_store(str(self._location)))
        found = inspect(journal)
        self.compared["segments"] = found.segments
        self.mismatches += [f"{d.path}: {d.problem}" for d in found.damaged]

    def _state(self, name: str, names: Mapping[str, str]) -> pa.Table:
        table = self._reader.to_arrow(w.VISITS, state=name)
        table = table.rename_columns([names.get(c, c) for c in table.column_names])
        return table.select(
            ["k", *dict.fromkeys(n for n in names.values() if n in table.column_names)]
        )

    def _file_batches(self) -> Iterator[tuple[int, pa.Table]]:
        for folder in (self._sinks / w.TOTALS).glob("batch_id=*"):
            batch = int(folder.name.partition("=")[2])
            yield batch, pq.read_table(folder, partitioning=None)

    def _compare(self, what: str, sql: str, found: pa.Table) -> None:
        """As multisets, by the names of the found columns."""
        columns = ", ".join(f'"{name}"' for name in found.column_names)
        self._db.register("found", found)
        self._query(f"create or replace temp table expected as select {columns} from ({sql})")
        self.compared[what] = found.num_rows
        for problem, left, right in (
            ("is missing", "expected", "found"),
            ("is wrong", "found", "expected"),
        ):
            difference = f"(select {columns} from {left} except all select {columns} from {right})"
            [(count,)] = self._query(f"select count(*) from {difference}")
            if count:
                rows = self._query(f"from {difference} order by all limit {SHOWN}")
                self.mismatches.append(f"{what}: {count} rows; {problem}: {columns} = {rows}")

    def _none(self, what: str, sql: str, found: pa.Table) -> None:
        self._db.register("found", found)
        self.compared[what] = found.num_rows
        rows = self._query(f"from ({sql}) order by all limit {SHOWN}")
        if rows:
            self.mismatches.append(f"{what}: {rows}")


def _function_batches(folder: Path) -> Iterator[tuple[int, pa.Table]]:
    for path in folder.glob("*.parquet"):
        yield int(path.stem), pq.read_table(path)


def _united(batches: Iterator[tuple[int, pa.Table]]) -> pa.Table:
    """All batches as one table, with a column that says which."""
    tables = [
        table.append_column("batch", pa.array([batch] * table.num_rows, pa.int64()))
        for batch, table in batches
    ]
    return pa.concat_tables(tables, promote_options="permissive")


def _bursts(rows: list[tuple[int, int, int, int]], times: list[int]) -> tuple[pa.Table, pa.Table]:
    """The output of `visits`, and its last row per key; rows are (k, batch, rows, distinct)."""
    outputs: list[tuple[int, int, int, int]] = []
    last: dict[int, int] = {}
    key, burst, until = None, 0, 0
    for k, batch, n, distinct in rows:
        if k != key or times[batch] >= until:
            key, burst = k, 0
        burst += n
        until = times[batch] + w.QUIET_S * 1000
        outputs.append((k, distinct, burst, batch))
        last[k] = distinct
    columns = list(zip(*outputs, strict=True)) or [(), (), (), ()]
    table = pa.table(
        dict(zip(("k", "distinct", "burst", "batch"), map(list, columns), strict=True))
    )
    return table, pa.table({"k": list(last), "distinct": list(last.values())})
