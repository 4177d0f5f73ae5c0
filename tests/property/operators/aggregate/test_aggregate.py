"""The aggregate operator over random rows, epochs, partitions and parallelism, against a plain
group-by in Python over all rows at once.

What Spark does before a shard, one partial row per key and input partition, is done in Python too.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.operators.aggregate.folding import (
    BITS,
    best_pair,
    central,
    co_moments,
    distinct,
    partial_rows,
    partial_types,
    precise_sum,
    results,
    same,
    spark_order,
    wrapped,
)

from millrace import types
from millrace.epoch import rows as wire
from millrace.epoch.shard import idle_report, open_shard
from millrace.ids import OperatorName, Shard
from millrace.log.segment import HI, LO, encoding
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.reducers import resolve
from millrace.operators.aggregate.sketches import theta
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.state import merging
from millrace.state.cache import ReplicaCache
from millrace.state.replica import Replica

KEY_GROUPS = 8
MONEY = T.DecimalType(12, 2)

PAIR = T.StructType().add("first", T.DoubleType()).add("second", T.DoubleType())
EIGHTHS = st.integers(-1000, 1000).map(lambda n: n / 8)

# Two key columns with NULLs, and one value column of each kind. A row is a tuple in this order.
KEYS = [Column("name", T.StringType()), Column("code", T.IntegerType())]
COLUMNS: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "i": (T.LongType(), st.integers(-(2**63), 2**63 - 1)),
    "d": (T.DoubleType(), EIGHTHS),
    "f": (T.DoubleType(), st.floats()),
    "m": (MONEY, st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    "s": (T.StringType(), st.text(max_size=4)),
    "a": (T.ArrayType(T.StringType()), st.lists(st.none() | st.text(max_size=2), max_size=2)),
    "b": (T.BooleanType(), st.booleans()),
    "w": (T.IntegerType(), st.integers(-5, 5)),
    "p": (
        PAIR,
        st.fixed_dictionaries({"first": st.none() | EIGHTHS, "second": st.none() | EIGHTHS}),
    ),
}
NAMES = list(COLUMNS)

FUNCTIONS: list[tuple[str, str, dict[str, Any]]] = [
    *(("count", column, {}) for column in ("i", "s")),
    *(("sum", column, {}) for column in ("i", "d", "m")),
    *((extreme, column, {}) for extreme in ("min", "max") for column in ("i", "f", "m", "s")),
    ("mean", "d", {}),
    ("mean", "m", {}),
    ("variance", "d", {"sample": True}),
    ("stddev", "d", {"sample": False}),
    *(
        (function, column, {"ignore_nulls": ignore})
        for function in ("first", "last")
        for column in ("i", "s", "a")
        for ignore in (True, False)
    ),
    ("bool_and", "b", {}),
    ("bool_or", "b", {}),
    *((function, column, {}) for function in BITS for column in ("i", "w")),
    *((function, "p", {}) for function in ("max_by", "min_by", "corr")),
    *(("covar", "p", {"sample": sample}) for sample in (True, False)),
    *((function, "d", {}) for function in ("skewness", "kurtosis")),
    *(
        (function, column, {})
        for function in ("collect_list", "collect_set", "count_distinct", "mode")
        for column in ("f", "m", "s", "a", "w")
    ),
    ("approx_distinct", "w", {"lg_k": 8}),
    ("distinct_sketch", "s", {"lg_k": 6}),
    ("quantile", "d", {"ranks": [0.5], "single": True, "accuracy": 200}),
    ("quantile", "d", {"ranks": [0.0, 0.25, 1.0], "single": False, "accuracy": 200}),
    ("heavy_hitters", "w", {"k": 3, "track": 11}),
    ("heavy_hitters", "s", {"k": 100, "track": 100}),
]

KEY = st.tuples(
    st.none() | st.sampled_from(["", "a", "b"]), st.none() | st.integers(-1, 1)
) | st.tuples(st.text(max_size=3), st.none() | st.integers(-(2**31), 2**31 - 1))
ROW = st.tuples(KEY, st.tuples(*(st.none() | values for _, values in COLUMNS.values())))
PARTITION = st.lists(ROW, max_size=12)
EPOCHS = st.lists(st.lists(PARTITION, min_size=1, max_size=3), min_size=1, max_size=6)


def fingerprint_of(key: tuple[Any, ...]) -> tuple[int, int]:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def build(chosen: list[int]) -> AggregateOperator:
    specs = []
    for number in chosen:
        function, column, options = FUNCTIONS[number]
        data_type = COLUMNS[column][0]
        specs.append(
            AggregateSpec(f"x{number}", function, column, data_type, tuple(options.items()))
        )
    return AggregateOperator(OperatorName("totals"), KEYS, specs, ansi=False)


def partial_table(operator: AggregateOperator, partitions: list[list[Any]]) -> pa.Table:
    """One row per key and input partition, with the names a shard expects."""
    reducers = [
        resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": False})
        for a in operator.aggregates
    ]
    rows: list[dict[str, Any]] = []
    schema: dict[str, pa.DataType] = {HI: pa.int64(), LO: pa.int64(), wire.PART: pa.int32()}
    for i, key in enumerate(KEYS):
        schema[wire.key(i)] = types.arrow_type(key.type, key.name)
    for part, partition in enumerate(partitions):
        by_key: dict[Any, list[Any]] = {}
        for key, values in partition:
            by_key.setdefault(key, []).append(values)
        for key, grouped in by_key.items():
            words = np.asarray(fingerprint_of(key), np.uint64).view(np.int64).tolist()
            row = {HI: words[0], LO: words[1], wire.PART: part}
            row |= {wire.key(i): value for i, value in enumerate(key)}
            for i, (spec, reducer) in enumerate(zip(operator.aggregates, reducers, strict=True)):
                column = [values[NAMES.index(spec.of)] for values in grouped]
                partials = partial_rows(reducer, spec.function, column)
                kinds = partial_types(reducer, spec.function)
                for j, value in enumerate(partials):
                    name = wire.partial(i, j)
                    row[name], schema[name] = value, kinds[j]
            rows.append(row)
    return pa.Table.from_pylist(rows, pa.schema(list(schema.items())))


def expected_value(spec: AggregateSpec, values: list[Any]) -> Any:
    """The aggregate over all rows of a key, in order."""
    known = [v for v in values if v is not None]
    options = dict(spec.options)
    if spec.function == "count":
        return len(known)
    if spec.function == "collect_list":
        return known
    if spec.function in ("collect_set", "count_distinct", "approx_distinct", "distinct_sketch"):
        found = distinct(known)
        if spec.function == "distinct_sketch":
            # The library takes no empty strings.
            found = [value for value in found if value]
        return found if spec.function == "collect_set" else len(found)
    if spec.function == "heavy_hitters":
        # Few enough values for all counts to be exact.
        counts = sorted(Counter(known).items(), key=lambda pair: (-pair[1], spark_order(pair[0])))
        return [{"item": item, "count": count} for item, count in counts[: options["k"]]]
    if spec.function in ("max_by", "min_by"):
        best = best_pair(spec.function, known)
        return best and best["first"]
    if spec.function in ("covar", "corr"):
        return expected_pairs(spec, known)
    if spec.function in ("first", "last"):
        candidates = known if options["ignore_nulls"] else values
        return candidates[-1 if spec.function == "last" else 0] if candidates else None
    if not known:
        return None
    if spec.function == "mode":
        counts = Counter(map(same, known))
        return next(v for v in known if counts[same(v)] == max(counts.values()))
    if spec.function in BITS:
        return reduce(BITS[spec.function], known)
    if spec.function in ("bool_and", "bool_or"):
        return all(known) if spec.function == "bool_and" else any(known)
    if spec.function == "quantile":
        ordered = sorted(known)
        places = [max(math.ceil(rank * len(ordered)) - 1, 0) for rank in options["ranks"]]
        found = [ordered[place] for place in places]
        return found[0] if options["single"] else found
    if spec.function in ("skewness", "kurtosis"):
        n, _, m2, m3, m4 = central(known)
        if m2 == 0:
            return None
        return math.sqrt(n) * m3 / m2**1.5 if spec.function == "skewness" else n * m4 / m2**2 - 3
    if spec.function in ("min", "max"):
        return (max if spec.function == "max" else min)(known, key=spark_order)
    if spec.function == "sum":
        if spec.of == "i":
            return wrapped(sum(known))
        return precise_sum(known) if spec.of == "m" else math.fsum(known)
    if spec.function == "mean":
        if spec.of == "d":
            return math.fsum(known) / len(known)
        exact = Fraction(precise_sum(known)) * 10**6 / len(known)
        rounded = math.floor(abs(exact) + Fraction(1, 2))
        return Decimal(rounded if exact >= 0 else -rounded).scaleb(-6)
    if options["sample"] and len(known) == 1:
        return None
    exact_variance = (statistics.variance if options["sample"] else statistics.pvariance)(
        [Fraction(v) for v in known]
    )
    return math.sqrt(exact_variance) if spec.function == "stddev" else float(exact_variance)


def expected_pairs(spec: AggregateSpec, pairs: list[Any]) -> Any:
    n, _, _, co, x2, y2 = co_moments(pairs)
    if spec.function == "corr":
        return co / math.sqrt(x2) / math.sqrt(y2) if n > 1 and x2 and y2 else None
    degrees = n - 1 if dict(spec.options)["sample"] else n
    return co / degrees if n and degrees else None


def equal(spec: AggregateSpec, got: Any, expected: Any) -> bool:
    if got is None or expected is None:
        return got is expected
    if spec.function == "distinct_sketch":
        return bool(theta.estimates(pa.array([got]))[0] == expected)
    if spec.function in ("collect_list", "collect_set"):
        return list(map(repr, map(same, got))) == list(map(repr, map(same, expected)))
    if spec.function in ("skewness", "kurtosis", "covar", "corr"):
        return math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-6)
    if spec.function in ("variance", "stddev"):
        return math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(got)
    return bool(got == expected)


def check(operator: AggregateOperator, shown: pa.RecordBatch, rows: dict[Any, list[Any]]) -> None:
    for row in shown.to_pylist():
        key = (row["name"], row["code"])
        for spec in operator.aggregates:
            values = [r[NAMES.index(spec.of)] for r in rows[key]]
            assert equal(spec, row[spec.name], expected_value(spec, values)), (key, str(spec), row)


@given(
    epochs=EPOCHS,
    chosen=st.lists(st.integers(0, len(FUNCTIONS) - 1), min_size=1, max_size=6, unique=True),
    data=st.data(),
)
@settings(max_examples=settings().max_examples // 2)
def test_any_split_into_epochs_partitions_and_shards(
    epochs: list[list[list[Any]]], chosen: list[int], data: st.DataObject
) -> None:
    operator = build(chosen)
    with (
        tempfile.TemporaryDirectory(prefix="millrace-aggregate-") as folder,
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        running = Epochs(folder, operator, KEY_GROUPS, encode=lambda table: table)
        workers = [ReplicaCache() for _ in range(2)]
        seen: dict[Any, list[Any]] = {}
        for partitions in epochs:
            new_keys = set()
            for key, values in (row for partition in partitions for row in partition):
                new_keys |= {key} - seen.keys()
                seen.setdefault(key, []).append(values)
            running.shards = data.draw(st.integers(1, 4), "parallelism")
            before = rows_of(running)
            run_epoch(running, workers, partial_table(operator, partitions), seen, partitions, data)
            assert rows_of(running) - before == len(new_keys)
            replica = Replica(running.journal.store, operator.state_schema, KEY_GROUPS)
            every = np.arange(KEY_GROUPS)
            replica.follow(running.trail.operator(operator.name), running.trail.epoch, every)
            shown = results(operator, replica.read(every))
            assert shown.num_rows == len(seen)
            check(operator, shown, seen)


def rows_of(running: Epochs) -> int:
    return running.trail.operator(running.operator.name).rows


def run_epoch(
    running: Epochs,
    workers: list[ReplicaCache],
    table: pa.Table,
    seen: dict[Any, list[Any]],
    partitions: list[list[Any]],
    data: st.DataObject,
) -> None:
    """Every shard applies its rows on some worker; the output is the changed keys' new values."""
    operator, times = running.operator, running.times()
    assert isinstance(operator, AggregateOperator)
    emitted, reports = [], []
    for shard in map(Shard, range(running.shards)):
        mine = running.part(table, shard)
        if not mine.num_rows:
            reports.append(idle_report(running.task, shard, times.epoch))
            continue
        # Exchanges keep no order between input partitions, and deliver in batches of any size.
        mine = mine.take(pa.array(data.draw(st.permutations(range(mine.num_rows)), "arrival")))
        cut = data.draw(st.integers(0, mine.num_rows), "cut")
        mine = pa.concat_tables([mine.slice(0, cut), mine.slice(cut)])
        worker = workers[data.draw(st.integers(0, 1), "worker")]
        moment = times.moment(running.assignment)
        opened = open_shard(running.task, operator, shard, moment, worker)
        change = opened.apply(wire.decode(mine))
        emitted += [(row["name"], row["code"]) for row in change.output.to_pylist()]
        check(operator, change.output, seen)
        reports.append(opened.seal())
    running.commit(reports)
    changed = {key for partition in partitions for key, _ in partition}
    assert sorted(emitted, key=repr) == sorted(changed, key=repr)
