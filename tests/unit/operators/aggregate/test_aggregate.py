"""The aggregate operator: its schemas, its spec, and which changes a location can follow."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.unit.driving import Location, fingerprint
from tests.unit.operators.aggregate.folding import results

from millrace.errors import (
    DuplicateNameError,
    InvalidNameError,
    NewerFormatError,
    SchemaChangedError,
)
from millrace.ids import OperatorName
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Column, Moment
from millrace.operators.registry import check_change, from_spec

NAME = OperatorName("totals")
NOW = Moment(1, 0, None)
KEYS = [Column("device", T.StringType()), Column("at", T.TimestampType())]


def spec(name: str, function: str, data_type: T.DataType, **options: Any) -> AggregateSpec:
    return AggregateSpec(name, function, "value", data_type, tuple(sorted(options.items())))


AGGREGATES = [
    spec("n", "count", T.LongType()),
    spec("total", "sum", T.DecimalType(10, 2)),
    spec("avg", "mean", T.DoubleType()),
    spec("spread", "stddev", T.DoubleType(), sample=True),
    spec("latest", "last", T.StructType([T.StructField("a", T.StringType())]), ignore_nulls=False),
]


def operator(**changes: Any) -> AggregateOperator:
    return AggregateOperator(NAME, changes.get("keys", KEYS), changes.get("aggregates", AGGREGATES))


def test_an_operator_survives_as_json() -> None:
    original = operator()
    again = from_spec(NAME, json.loads(json.dumps(original.spec())))
    assert again.spec() == original.spec()
    assert again.state_schema == original.state_schema
    assert again.output_schema == original.output_schema
    assert original.output_schema.names == ["device", "at", "n", "total", "avg", "spread", "latest"]


def test_a_kind_from_the_future_is_refused() -> None:
    with pytest.raises(NewerFormatError, match=r"'totals' is a 'pivot'.*Upgrade"):
        from_spec(NAME, {"kind": "pivot"})


@pytest.mark.parametrize(
    ("keys", "aggregates", "column"),
    [
        ([Column("n", T.LongType())], [spec("n", "count", T.LongType())], "n"),
        ([Column("k", T.LongType())], [spec("K", "count", T.LongType())], "K"),
        (
            [Column("a.sum", T.LongType())],
            [spec("a", "mean", T.DoubleType())],
            "a.sum",
        ),
    ],
)
def test_two_columns_of_one_name(
    keys: list[Column], aggregates: list[AggregateSpec], column: str
) -> None:
    with pytest.raises(
        DuplicateNameError, match=rf"'totals' would have two columns called '{column}'"
    ):
        operator(keys=keys, aggregates=aggregates)


@pytest.mark.parametrize("name", ["_hi", "_lo", "_deleted", "_HI"])
def test_the_names_of_system_columns_are_reserved(name: str) -> None:
    for keys, aggregates in (
        ([Column(name, T.LongType())], []),
        (KEYS, [spec(name, "count", T.LongType())]),
    ):
        with pytest.raises(InvalidNameError, match=rf"column called '{name}', which is reserved"):
            operator(keys=keys, aggregates=aggregates)


def test_order_matters_only_for_first_and_last() -> None:
    assert operator().needs_order
    assert not operator(aggregates=AGGREGATES[:4]).needs_order


def changed(edit: Any) -> dict[str, Any]:
    after = copy.deepcopy(operator().spec())
    edit(after)
    return after


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: None,
        lambda s: s["aggregates"].reverse(),
        lambda s: s["aggregates"].append(spec("more", "max", T.LongType()).to_json()),
        lambda s: s["aggregates"].insert(0, spec("more", "max", T.LongType()).to_json()),
    ],
    ids=["nothing", "reordered", "added last", "added first"],
)
def test_changes_that_state_can_follow(edit: Any) -> None:
    check_change(NAME, operator().spec(), changed(edit))


REFUSED: dict[str, tuple[Any, str]] = {
    "fewer keys": (
        lambda s: s["keys"].pop(),
        r"key of operator 'totals' was \(device string, at timestamp\) and is now "
        r"\(device string\)",
    ),
    "keys reordered": (
        lambda s: s["keys"].reverse(),
        r"is now \(at timestamp, device string\)",
    ),
    "key type": (
        lambda s: s["keys"][0].update(type="long"),
        r"is now \(device bigint, at timestamp\)",
    ),
    "removed": (
        lambda s: s["aggregates"].pop(0),
        r"no longer has the aggregate 'n = count\(value\) over bigint'",
    ),
    "renamed": (
        lambda s: s["aggregates"][0].update(name="m"),
        r"no longer has .*'n = count",
    ),
    "function": (
        lambda s: s["aggregates"][0].update(function="max"),
        r"'n = count\(value\) over bigint' has become 'n = max\(value\)",
    ),
    "type": (
        lambda s: s["aggregates"][1].update(type="decimal(12,2)"),
        r"has become 'total = sum\(value\) over decimal\(12,2\)'",
    ),
    "input": (
        lambda s: s["aggregates"][1].update(of="other"),
        r"has become 'total = sum\(other\)",
    ),
    "options": (
        lambda s: s["aggregates"][3].update(options={"sample": False}),
        r"'spread = stddev",
    ),
    "kind": (lambda s: s.update(kind="window"), r"was 'aggregate' and is now 'window'"),
}


@pytest.mark.parametrize(("edit", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_changes_that_state_cannot_follow(edit: Any, message: str) -> None:
    with pytest.raises(SchemaChangedError, match=rf"{message}.*new checkpointLocation"):
        check_change(NAME, operator().spec(), changed(edit))


def incoming(rows: list[tuple[int, str, int]], aggregates: int) -> Input:
    hi, lo = np.asarray([fingerprint(k) for k, _, _ in rows], np.uint64).T
    keys = (pa.array([name for _, name, _ in rows]),)
    values = (pa.array([value for _, _, value in rows]),)
    return Input(hi.copy(), lo.copy(), keys, partials=(values,) * aggregates)


def test_an_aggregate_added_later_starts_from_empty(tmp_path: Path) -> None:
    keys = [Column("k", T.StringType())]
    before = operator(keys=keys, aggregates=[spec("n", "sum", T.LongType())])
    location = Location(str(tmp_path / "location"), before.state_schema, 4)
    replica = location.follow(location.replica())
    rows = incoming([(1, "a", 5), (2, "b", 6), (1, "a", 7)], 1)
    change = before.apply({MAIN: replica}, rows, location.every, NOW)
    assert change.tables[MAIN].added == 2
    names = dict(zip(change.output["k"].to_pylist(), change.output["n"].to_pylist(), strict=True))
    assert names == {"a": 12, "b": 6}
    _commit(location, change.tables[MAIN].rows)

    after = operator(
        keys=keys,
        aggregates=[
            spec("m", "count", T.LongType()),
            spec("n", "sum", T.LongType()),
            spec("top", "max", T.LongType()),
        ],
    )
    check_change(NAME, before.spec(), after.spec())
    wider = Location(str(tmp_path / "location"), after.state_schema, 4)
    replica = wider.follow(wider.replica())
    rows = incoming([(1, "a", 3), (3, "c", 4)], 3)
    change = after.apply({MAIN: replica}, rows, wider.every, NOW)
    assert change.tables[MAIN].added == 1
    _commit(wider, change.tables[MAIN].rows)
    shown = results(after, wider.follow(wider.replica()).read(wider.every)).to_pylist()
    assert sorted(shown, key=lambda row: row["k"]) == [
        {"k": "a", "m": 3, "n": 15, "top": 3},
        {"k": "b", "m": 0, "n": 6, "top": None},
        {"k": "c", "m": 4, "n": 4, "top": 4},
    ]


def test_times_are_kept_in_utc_whatever_the_time_zone_of_the_session(tmp_path: Path) -> None:
    latest = operator(
        keys=[Column("k", T.StringType())], aggregates=[spec("at", "max", T.TimestampType())]
    )
    location = Location(str(tmp_path / "location"), latest.state_schema, 4)
    times = pa.array([5, 7], pa.timestamp("us", "Asia/Tokyo"))
    hi, lo = np.asarray([fingerprint(1), fingerprint(1)], np.uint64).T
    rows = Input(hi.copy(), lo.copy(), (pa.array(["a", "a"]),), partials=((times,),))
    replica = location.follow(location.replica())
    change = latest.apply({MAIN: replica}, rows, location.every, NOW)
    kept = change.tables[MAIN].rows.column("at")
    assert kept.type == pa.timestamp("us", "UTC")
    assert kept.cast(pa.int64()).to_pylist() == [7]


def _commit(location: Location, rows: pa.RecordBatch) -> None:
    """Commit changed rows as they are, through the driver's own path."""
    user = rows.select(rows.schema.names[3:]).to_pylist()
    keys = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
    location.step({key: tuple(row.values()) for key, row in zip(keys, user, strict=True)})
