"""What the operators of event time must have in state, and must have emitted: DuckDB, in one batch.

No row's fate depends on how far the watermark was when it came (see `timed`), so state follows from
the number of batches and the last watermark. In which batch a result came out follows from the
watermarks of all batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

import millrace as mr
from millrace_lab.soak import timed as t
from millrace_lab.soak import workload as w
from millrace_lab.soak.state_check import Comparison, batches_of

RECENT = 60
"""Batches that state can be of: windows, sessions and waiting rows are gone after a minute or two.
The reader of a soak compares every epoch, so this is not all of them."""

_UNIQUE = (
    "select * from events where not is_far "
    "qualify row_number() over (partition by id order by value) = 1"
)

_HOPS = f"""
    select g, start_ms, start_ms + {t.SIZE_MS} as end_ms, count(*) as n,
           sum(value)::bigint as total, count(distinct who) as whos
    from (select *, at_ms - at_ms % {t.SLIDE_MS} - unnest(range(0, {t.SIZE_MS}, {t.SLIDE_MS}))
                    as start_ms
          from events where at_ms is not null and not is_far)
    group by g, start_ms"""

_BOUTS = f"""
    select who, min(at_ms) as start_ms, max(at_ms) + {t.GAP_MS} as end_ms, count(*) as n,
           sum(id)::bigint as total, max(id) as top
    from (select *, sum(is_first) over (partition by who order by at_ms, id) as bout
          from (select *, coalesce(at_ms - lag(at_ms) over (partition by who order by at_ms, id)
                                   > {t.GAP_MS}, true)::int as is_first
                from uniques where at_ms is not null))
    group by who, bout"""

_LEFT = f"select g, id, at_ms, batch from uniques where {t.LEFT}"
_PARTNERS = f"r.g = l.g and r.at_right_ms - l.at_ms between {t.LOWER_MS} and {t.UPPER_MS}"


def check_timed_state(check: Comparison, reader: mr.Reader) -> None:
    """Compare what windows, sessions, the join and the deduplication have in state."""
    batches, now = batches_of(reader), reader.watermark_ms or 0
    _create_events(check, max(0, batches - RECENT), batches)
    for name, sql in ((t.HOPS, _HOPS), (t.BOUTS, _BOUTS)):
        check.compare(f"state of {name}", f"from ({sql}) where end_ms > {now}", _of(reader, name))
    check.compare(
        f"state of {t.PAIRS}, left",
        f"""select *, exists (from rights r where {_PARTNERS}) as matched from ({_LEFT}) l
        where g is not null and at_ms + {t.UPPER_MS} > {now}""",
        _of(reader, t.PAIRS),
    )
    check.compare(
        f"state of {t.PAIRS}, right",
        f"from rights where at_right_ms - ({t.LOWER_MS}) > {now}",
        _of(reader, t.PAIRS, state="right"),
    )
    _check_unique(check, reader, now)


def _check_unique(check: Comparison, reader: mr.Reader, now: int) -> None:
    found = reader.to_arrow(t.UNIQUE)
    # How long the id of a row without event time stays depends on when the watermark moves.
    untimed = pc.is_in(found["id"], value_set=_untimed(check))
    expires = f"at_ms + {t.DELAY_S}000"
    check.compare(
        f"state of {t.UNIQUE}",
        f"select id, {expires} as expires_at_ms from uniques where {expires} > {now}",
        _in_ms(found.filter(pc.invert(untimed))),
    )
    check.none(
        f"forgotten ids in the state of {t.UNIQUE}",
        f"from found where epoch_us(expires_at) <= {now}000",
        found,
    )


def check_timed_outputs(
    check: Comparison, found: dict[str, pa.Table], marks: Sequence[int]
) -> None:
    """Compare everything that was emitted, and in which batch; `marks` are their watermarks."""
    _create_events(check, 0, len(marks))
    known = pa.table({"batch": pa.array(range(len(marks)), pa.int64()), "ms": pa.array(marks)})
    check.db.register("known_marks", known)
    check.query("create or replace temp table marks as from known_marks")
    check.none(
        "late rows, by the watermark of the batch before",
        "select e.value, at_ms, ms, is_far from events e join marks m on e.batch = m.batch + 1 "
        "where at_ms is not null and (at_ms <= ms) <> is_far",
        found[t.UNIQUE],
    )
    expected = {
        t.UNIQUE: "from uniques",
        t.LATE: "from events where is_far",
        t.HOPS: _ended(_HOPS),
        t.BOUTS: _ended(_BOUTS),
        t.PAIRS: f"{_matched()} union all {_unmatched()}",
    }
    for name, sql in expected.items():
        check.compare(f"output of {name}", sql, _in_ms(found[name]))


def _create_events(check: Comparison, first: int, last: int) -> None:
    """The rows of some batches: `events`, those that are `uniques`, and `rights` of the join."""
    check.query(
        f"""create or replace temp table events as
        select value, id, {t.GROUP} as g, {t.WHO} as who, {t.AT_MS} as at_ms,
               value // {t.ROWS} as batch, value - id >= {t.FAR_AFTER} as is_far
        from (select value, {t.ID} as id from range({first * t.ROWS}, {last * t.ROWS}) n(value))"""
    )
    check.query(f"create or replace temp table uniques as {_UNIQUE}")
    check.query(
        f"""create or replace temp table rights as
        select {t.RIGHT_GROUP} as g, value, {w.AT_MS} as at_right_ms, batch
        from input where {t.RIGHT} and batch between {first} and {last - 1}"""
    )


def _ended(sql: str) -> str:
    """Windows that are over, each in the batch whose watermark was the first to reach its end."""
    return (
        "select ended.*, batch from "
        f"({sql}) ended asof join (select ms, min(batch) as batch from marks group by ms) reached "
        "on ended.end_ms <= reached.ms"
    )


def _matched() -> str:
    return f"""select l.g, l.id, l.at_ms, r.value, r.at_right_ms,
                      greatest(l.batch, r.batch) as batch
               from ({_LEFT}) l join rights r on {_PARTNERS}"""


def _unmatched() -> str:
    """Rows that cannot have a partner come out at once, others when none can come any more."""
    alone = f"select *, at_ms + {t.UPPER_MS} as end_ms, batch as came from ({_LEFT}) l"
    waited = f"""select * exclude (batch) from ({alone}) l
                 where g is not null and at_ms is not null
                   and not exists (from rights r where {_PARTNERS})"""
    return f"""select g, id, at_ms, null, null, batch from ({_ended(waited)})
               union all
               select g, id, at_ms, null, null, batch from ({_LEFT})
               where g is null or at_ms is null"""


def _untimed(check: Comparison) -> pa.Array:
    ids = check.query("select id from uniques where at_ms is null")
    return pa.array([id for (id,) in ids], pa.int64())


def _of(reader: mr.Reader, operator: str, state: str | None = None) -> pa.Table:
    return _in_ms(reader.to_arrow(operator, state=state))


def _in_ms(table: pa.Table) -> pa.Table:
    """Structs of times as columns, and times as whole milliseconds: those of `at` as `at_ms`."""
    flat = table.flatten()
    columns = {}
    for field, column in zip(flat.schema, flat.columns, strict=True):
        name = field.name.rpartition(".")[2]
        if pa.types.is_timestamp(field.type):
            name = f"{name}_ms"
            column = column.cast(pa.timestamp("ms", field.type.tz)).cast(pa.int64())
        columns[name] = column
    return pa.table(columns)
