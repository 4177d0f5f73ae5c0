"""What all state and all outputs must be at the end: the same rows, all at once, in DuckDB.

Some things are the run's own and are read from it: how many batches there were and at what
watermark they ended (the last manifest), and the processing time and the watermark of each batch
(Spark's offset log).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr
from millrace.log.inspection import inspect
from millrace.log.journal import Journal
from millrace.log.spark_logs import OFFSETS
from millrace.log.store import open_store
from millrace_lab.soak import timed
from millrace_lab.soak import workload as w
from millrace_lab.soak.state_check import (
    WINDOWS,
    Comparison,
    batches_of,
    check_state,
    create_input,
    is_over,
)
from millrace_lab.soak.timed_check import check_timed_outputs, check_timed_state


@dataclass
class Verdict:
    """What the comparison found."""

    batches: int
    rows: int
    compared: dict[str, int]
    """Rows compared, by what they were."""
    mismatches: list[str]


def check(location: Path, sinks: Path, chosen_keys: bool = w.CHOSEN_KEYS) -> Verdict:
    """Compare everything."""
    with mr.open(str(location)) as reader, duckdb.connect(":memory:") as db:
        batches = batches_of(reader)
        found = Comparison(db)
        check_state(found, reader, chosen_keys)
        times, marks = batch_times(location, batches)
        _check_totals(found, sinks)
        _check_visits(found, sinks, times)
        _check_closed(found, reader, sinks)
        _check_timed(found, reader, sinks, marks)
        _check_files(found, location)
        return Verdict(batches, batches * w.ROWS, dict(found.compared), found.mismatches)


def check_timed(location: Path, sinks: Path) -> Verdict:
    """Compare the operators of event time, of a query that may have no others."""
    with mr.open(str(location)) as reader, duckdb.connect(":memory:") as db:
        batches = batches_of(reader)
        found = Comparison(db)
        create_input(db, batches, w.CHOSEN_KEYS)
        _check_timed(found, reader, sinks, batch_times(location, batches)[1])
        _check_files(found, location)
        return Verdict(batches, batches * timed.ROWS, dict(found.compared), found.mismatches)


def batch_times(location: Path, batches: int) -> tuple[list[int], list[int]]:
    """Each batch's processing time and watermark as operators see them: they never go back."""
    times: list[int] = []
    marks: list[int] = []
    for batch in range(batches):
        lines = (location / OFFSETS / str(batch)).read_text().splitlines()
        said = json.loads(lines[1])
        times.append(max([said["batchTimestampMs"], *times[-1:]]))
        marks.append(max([said["batchWatermarkMs"], *marks[-1:]]))
    return times, marks


def _check_totals(found: Comparison, sinks: Path) -> None:
    found.compare(
        "output of totals",
        """select k, sum(n) over so_far as n, sum(total) over so_far as total,
                  max(top) over so_far as top, batch
        from (select k, batch, count(*) as n, sum(value) as total, max(id) as top
              from input group by k, batch)
        window so_far as (partition by k order by batch)""",
        _united(_file_batches(sinks / w.TOTALS)),
    )


def _check_visits(found: Comparison, sinks: Path, times: list[int]) -> None:
    rows = found.query(
        """select k, batch, n,
                  (sum(coalesce(fresh, 0)) over (partition by k order by batch))::bigint
        from (select k, batch, count(*) as n from input group by k, batch)
        left join (select k, batch, count(*) as fresh from news group by k, batch)
            using (k, batch)
        order by k, batch"""
    )
    found.db.register("outputs", _bursts(rows, times))
    found.compare("output of visits", "from outputs", _united(_function_batches(sinks / w.VISITS)))


def _check_closed(found: Comparison, reader: mr.Reader, sinks: Path) -> None:
    closed = _united(_function_batches(sinks / "closed"))
    found.compare(
        "output of closed windows",
        f"from ({WINDOWS}) where {is_over(reader)}",
        closed.drop_columns(["batch"]),
    )


def _check_timed(found: Comparison, reader: mr.Reader, sinks: Path, marks: list[int]) -> None:
    check_timed_state(found, reader)
    functions = (timed.UNIQUE, timed.LATE, timed.BOUTS, timed.PAIRS)
    outputs = {name: _united(_function_batches(sinks / name)) for name in functions}
    outputs[timed.HOPS] = _united(_file_batches(sinks / timed.HOPS))
    check_timed_outputs(found, outputs, marks)


def _check_files(found: Comparison, location: Path) -> None:
    """Every byte that a retained epoch needs is what was written."""
    inspected = inspect(Journal.open(open_store(str(location))))
    found.compared["segments"] = inspected.segments
    found.mismatches += [f"{d.path}: {d.problem}" for d in inspected.damaged]


def _file_batches(sink: Path) -> Iterator[tuple[int, pa.Table]]:
    for folder in sink.glob("batch_id=*"):
        batch = int(folder.name.partition("=")[2])
        yield batch, pq.read_table(folder, partitioning=None)


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


def _bursts(rows: list[tuple[int, int, int, int]], times: list[int]) -> pa.Table:
    """The output of `visits`; rows are (k, batch, rows, distinct)."""
    outputs: list[tuple[int, int, int, int]] = []
    key, burst, until = None, 0, 0
    for k, batch, n, distinct in rows:
        if k != key or times[batch] >= until:
            key, burst = k, 0
        burst += n
        until = times[batch] + w.QUIET_S * 1000
        outputs.append((k, distinct, burst, batch))
    columns = list(zip(*outputs, strict=True)) or [(), (), (), ()]
    return pa.table(dict(zip(("k", "distinct", "burst", "batch"), map(list, columns), strict=True)))
