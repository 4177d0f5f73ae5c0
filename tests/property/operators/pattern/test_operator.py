"""The pattern operator over random patterns, rows, delays, epochs and parallelism.

Each key's matches and time-outs, of all epochs together, are compared with backtracking over its
rows in order. When the time of all is over, readers see nothing of it any more.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.property.operators.pattern.oracle import Backtracking, Path
from tests.property.operators.pattern.patterns import patterns, rows

import millrace as mr
from millrace.ddl import parse_schema
from millrace.log.segment import encoding
from millrace.operators.operator import Column
from millrace.operators.pattern import tree
from millrace.operators.pattern.expressions import columns
from millrace.operators.pattern.operator import PatternOperator
from millrace.operators.pattern.spec import Measure, PatternDefinition
from millrace.operators.process.convert import from_us, to_us
from millrace.state import merging
from millrace.testing.epochs import NAME, START, OperatorHarness
from millrace.testing.patterns import PatternHarness

SCHEMA = "key string, id bigint, kind string, whole bigint, double double, at timestamp"
SECOND = 1_000_000
FIRST = to_us(START)


class Driven(PatternHarness):
    """The harness, given what an operator is made of."""

    def __init__(self, pattern: Any, shards: int) -> None:
        sequence, conditions, within, after = pattern
        self._fields = [Column(f.name, f.dataType) for f in parse_schema(SCHEMA).fields]
        self._event_time = "at"
        types = {field.name: field.type for field in self._fields}
        given = {name: c for name, c in conditions.items() if c is not None}
        read = sorted({"id", *(name for c in given.values() for name in columns(c))})
        self.names = tree.variables(sequence)
        measures = [Measure(f"of {name}", "list", name, "id") for name in self.names]
        definition = PatternDefinition(
            (Column("key", T.StringType()),),
            tuple(Column(name, types[name]) for name in read),
            sequence,
            (),
            tuple(given.items()),
            within * SECOND,
            after,
            (Measure("all", "list", None, "id"), *measures),
        )
        operator = PatternOperator(NAME, definition, self._fields)
        # What a manifest has of it is enough to make it again.
        again = PatternOperator.from_spec(NAME, operator.spec())
        assert again.spec() == operator.spec()
        OperatorHarness.__init__(self, operator, operator.keys, START, shards)

    def paths(self, emitted: list[tuple[Any, ...]]) -> list[tuple[str | None, Path]]:
        """Keys, and variables and numbers of rows."""
        found = []
        for key, ids, *of in emitted:
            named = {i: name for name, each in zip(self.names, of, strict=True) for i in each}
            found.append((key, tuple((named[i], i) for i in ids)))
        return found


EPOCHS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                rows,
                st.sampled_from(["a", "a", "b", None]),
                st.sampled_from([None, -1, 1, 1, 2, 3, 5]),
            ),
            max_size=8,
        ),
        st.integers(0, 6),
        st.integers(1, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(patterns(), EPOCHS)
@settings(max_examples=25)
def test_epochs_find_what_backtracking_finds(pattern: Any, epochs: Any) -> None:
    check(pattern, epochs)


@pytest.mark.stress
@given(patterns(), EPOCHS)
@settings(max_examples=400)
def test_many_epochs_find_what_backtracking_finds(pattern: Any, epochs: Any) -> None:
    check(pattern, epochs)


def check(pattern: Any, epochs: Any) -> None:
    sequence, conditions, within, after = pattern
    watermark = before = FIRST
    in_time: dict[str | None, list[dict[str, Any]]] = {}
    late: list[int] = []
    matches: list[tuple[str | None, Path]] = []
    timeouts: list[tuple[str | None, Path]] = []
    number = 0
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        harness = Driven(pattern, 1)
        harness.advance_watermark(from_us(watermark))
        for given_rows, passed, shards, is_restart in [*epochs, ([], 1000, 2, True)]:
            harness.rescale(shards)
            if is_restart:
                harness.reopen()
            sent = []
            for values, key, ahead in given_rows:
                time = None if ahead is None else watermark + ahead * SECOND
                row = {**values, "key": key, "id": number, "us": time}
                number += 1
                sent.append({**row, "at": None if time is None else from_us(time)})
                if time is not None and time <= before:
                    late.append(row["id"])
                elif time is not None:
                    in_time.setdefault(key, []).append(row)
            found = harness.send(sent)
            assert sorted(row[1] for row in found.late()) == late
            late.clear()
            matches += harness.paths(found)
            timeouts += harness.paths(found.timeouts())
            before = watermark
            watermark += passed * SECOND
            found = harness.advance_watermark(from_us(watermark))
            before = watermark
            matches += harness.paths(found)
            timeouts += harness.paths(found.timeouts())
        with mr.open(harness.location) as reader:
            for table in ("", ".partial", ".matched"):
                assert reader.sql(f"select * from {NAME}{table}").num_rows == 0
    expected_matches, expected_timeouts = [], []
    for key, of_key in in_time.items():
        ordered = sorted(of_key, key=lambda row: row["us"])
        seconds = [{**row, "us": row["us"] // SECOND} for row in ordered]
        found_by = Backtracking(sequence, conditions, within, seconds, "us").results(after)
        ids = [row["id"] for row in ordered]
        expected_matches += [
            (key, tuple((v, ids[row]) for v, row in path)) for path in found_by.matches
        ]
        expected_timeouts += [
            (key, tuple((v, ids[row]) for v, row in path)) for path in found_by.timeouts
        ]
    assert sorted(matches, key=repr) == sorted(expected_matches, key=repr)
    assert sorted(timeouts, key=repr) == sorted(expected_timeouts, key=repr)
