"""A processor on real state, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.ddl import parse_schema
from millrace.epoch.rows import encode
from millrace.errors import UsageError
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.operators.process.convert import to_arrow, to_us
from millrace.operators.process.factory import make_operator
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.operator import ProcessOperator
from millrace.operators.process.processor import Processor
from millrace.operators.process.shared.broadcast import KEY, VALUE
from millrace.operators.process.shared.states import broadcasts, side_type
from millrace.operators.process.whole_batch import BatchProcessor, WholeBatchOperator
from millrace.testing.epochs import (
    NAME,
    START,
    Emitted,
    OperatorHarness,
    check_columns,
    columns_of,
)

Broadcasts: TypeAlias = Mapping[str, Mapping[Any, Any] | Iterable[tuple[Any, Any]]]
"""Broadcast rows by state: keys and values, in order."""


class Harness(OperatorHarness[ProcessOperator | WholeBatchOperator]):
    """One processor, on one shard or on several."""

    def __init__(
        self,
        processor: Processor | BatchProcessor,
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        output: str | T.StructType,
        event_time: str | None = None,
        start: dt.datetime = START,
        shards: int = 1,
        initial_state: Iterable[dict[str, Any]] | None = None,
        initial_schema: str | T.StructType | None = None,
    ) -> None:
        if (initial_state is None) != (initial_schema is None):
            raise UsageError("initial_state= and initial_schema= go together: rows and their type.")
        fields = parse_schema(schema).fields
        by_name = {f.name: f for f in fields}
        names = [key] if isinstance(key, str) else list(key)
        check_columns([*names, *([event_time] if event_time else [])], by_name)
        operator = make_operator(
            NAME,
            Schemas(
                [Column(n, by_name[n].dataType) for n in names],
                [Column(f.name, f.dataType) for f in fields],
                parse_schema(output),
                event_time,
            ),
            processor,
            None if initial_schema is None else parse_schema(initial_schema),
        )
        self._initial = list(initial_state or ())
        super().__init__(operator, operator.keys, start, shards)

    def send(
        self, rows: Iterable[dict[str, Any]] = (), *, broadcast: Broadcasts | None = None
    ) -> Emitted:
        """Run an epoch with these rows; returns what it emitted.

        `broadcast` has the broadcast rows of the epoch, by state: a dict or a list of keys and
        values; None as a value removes the entry.
        """
        table = encode(self._input(list(rows)))
        if self._shards.trail.epoch == 0 and self._initial:
            initial = encode(self._initial_input())
            table = pa.concat_tables([initial, table], promote_options="default")
        return self._run(table, self._broadcast_rows(broadcast or {}))

    def _input(self, rows: list[dict[str, Any]]) -> Input:
        """An epoch's rows; the initial state is not among them."""
        operator = self._operator
        event_us = None
        if operator.event_time is not None:
            times = [row.get(operator.event_time) for row in rows]
            event_us = pa.array([None if t is None else to_us(t) for t in times], pa.int64())
        is_initial = pa.array([False] * len(rows), pa.bool_()) if operator.initial else None
        columns = columns_of(operator.fields, rows)
        routed = self._routed(rows)
        return replace(routed, columns=columns, event_us=event_us, is_initial=is_initial)

    def _initial_input(self) -> Input:
        rows = self._initial
        is_initial = pa.array([True] * len(rows), pa.bool_())
        columns = columns_of(self._operator.initial, rows)
        return replace(self._routed(rows), initial=columns, is_initial=is_initial)

    def _routed(self, rows: list[dict[str, Any]]) -> Input:
        """What all rows have: keys and fingerprints."""
        keys = columns_of(self._operator.keys, rows)
        hi, lo = self._fingerprints(list(keys))
        return Input(hi, lo, keys, np.zeros(len(rows), np.int32))

    def _broadcast_rows(self, broadcast: Broadcasts) -> pa.Table:
        """Broadcast rows as every shard gets them."""
        declared = broadcasts(self._operator.processor)
        for name in broadcast:
            if name not in declared:
                raise UsageError(
                    f"broadcast={{{name!r}: ...}}: the processor declares no such broadcast state; "
                    f"it declares {', '.join(map(repr, declared)) or 'none'}."
                )
        kinds = {name: side_type(declaration) for name, declaration in declared.items()}
        parts = []
        for name in declared:
            given = broadcast.get(name, ())
            items = list(given.items() if isinstance(given, Mapping) else given)
            pairs = [dict(zip((KEY, VALUE), item, strict=True)) for item in items]
            side = to_arrow(pairs, kinds[name], f"a row of broadcast state {name!r}")
            # Nothing but the state's own column; what must have a value is zero.
            zero = np.zeros(len(pairs), np.uint64)
            sides = (side if n == name else pa.nulls(len(pairs), kinds[n]) for n in declared)
            part = np.zeros(len(pairs), np.int32)
            parts.append(encode(Input(zero, zero, (), part, broadcast=tuple(sides))))
        return pa.concat_tables(
            [encode(self._operator.no_rows()), *parts], promote_options="default"
        )


def run(
    processor: Processor | BatchProcessor,
    rows: Iterable[dict[str, Any]],
    *,
    key: str | Sequence[str],
    schema: str | T.StructType,
    output: str | T.StructType,
    event_time: str | None = None,
    watermark: dt.datetime | None = None,
    initial_state: Iterable[dict[str, Any]] | None = None,
    initial_schema: str | T.StructType | None = None,
    broadcast: Broadcasts | None = None,
    shards: int = 1,
) -> Emitted:
    """What a processor emits for some rows in one epoch, and then, if given, at a watermark."""
    harness = Harness(
        processor,
        key=key,
        schema=schema,
        output=output,
        event_time=event_time,
        shards=shards,
        initial_state=initial_state,
        initial_schema=initial_schema,
    )
    emitted = harness.send(rows, broadcast=broadcast)
    if watermark is not None:
        emitted = emitted.then(harness.advance_watermark(watermark))
    return emitted
