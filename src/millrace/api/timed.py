"""Streams by windows and sessions of event time, and what they aggregate."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import Column as SparkColumn

from millrace.api.columns import is_ansi, named, resolve_aggregates
from millrace.api.event_time import event_time_of, parse_emission
from millrace.api.origin import grouping, origin, then
from millrace.api.top import TOP, exploded, ranked
from millrace.operators.aggregate.functions import Aggregate
from millrace.operators.session.layout import SESSION
from millrace.operators.session.operator import SessionOperator
from millrace.operators.session.spec import SessionDefinition
from millrace.operators.window.emission import FINAL, NONE
from millrace.operators.window.layout import WINDOW
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.operators.window.spec import columns as columns_of
from millrace.spark.exchange import WindowExchange, WindowInput
from millrace.spark.session_exchange import SessionExchange
from millrace.spark.steps import OperatorStep

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream
    from millrace.api.stream import Stream


class _TimedStream:
    """Rows grouped by a key and by stretches of event time."""

    def __init__(self, keyed: KeyedStream, what: str) -> None:
        """`what` is the call that needs the event time."""
        self._keyed = keyed
        self._event_us = event_time_of(origin(grouping(keyed).stream), what)

    def aggregate(
        self, *, name: str | None = None, emit: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        raise NotImplementedError

    def top(
        self,
        k: int,
        by: str | SparkColumn,
        *columns: str | SparkColumn,
        name: str | None = None,
        emit: str | None = None,
    ) -> Stream:
        """Keep the `k` rows of each result with the largest `by`; see `KeyedStream.top`."""
        best, names = ranked(self._keyed, k, by, columns)
        return exploded(self.aggregate(name=name, emit=emit, **{TOP: best}), names)


class WindowedStream(_TimedStream):
    """Rows grouped by a key and by windows of event time."""

    def __init__(self, keyed: KeyedStream, windows: Windows, lengths: tuple[int, ...] = ()) -> None:
        """`lengths` are the sizes of all windows if there are several; `windows` the longest."""
        super().__init__(keyed, "windows()" if lengths else "window()")
        self._windows = windows
        self._lengths = lengths

    def aggregate(
        self, *, name: str | None = None, emit: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Keep aggregates per key and window; a window has the columns `start` and `end`.

        `emit` says when: `"final"`, the default of `window()`, each window once, when the watermark
        has passed its end; `"update"`, in each epoch the windows that changed in it;
        `"early=10 seconds"`, every ten seconds the windows that changed since then, and each once
        more when it is final. The column `is_final` then tells which is which. `"none"`, the
        default of `windows()`, emits nothing: the state is there to be read.
        """
        group = grouping(self._keyed)
        of = origin(group.stream)
        operator_name = of.new_name("window", name)
        sample = of.sample()
        specs, inputs = resolve_aggregates(sample, aggregates)
        definition = WindowDefinition(
            group.keys,
            self._windows,
            tuple(specs),
            parse_emission(emit or (NONE if self._lengths else FINAL)),
            self._lengths,
        )
        fields = columns_of(of.schema.fields)
        operator = WindowOperator(operator_name, definition, fields, ansi=is_ansi(sample))
        columns = [named(f.name).alias(f.name) for f in fields]
        stream = WindowInput(group.columns, self._event_us, inputs, columns)
        step = OperatorStep(
            operator,
            WindowExchange(operator, stream),
            operator.code(),
            late=functools.partial(WindowExchange, operator, stream),
        )
        return _emitted(group.stream, operator, step, WINDOW)


class SessionStream(_TimedStream):
    """Rows grouped by a key and by sessions of event time."""

    def __init__(self, keyed: KeyedStream, gap_us: int) -> None:
        super().__init__(keyed, "session()")
        self._gap_us = gap_us

    def aggregate(
        self, *, name: str | None = None, emit: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Keep aggregates per key and session; `session_window` has its `start` and `end`.

        `emit` says when, as for windows: `"final"`, the default, `"update"`, `"early=10 seconds"`
        or `"none"`.
        """
        group = grouping(self._keyed)
        of = origin(group.stream)
        operator_name = of.new_name("session", name)
        sample = of.sample()
        specs, inputs = resolve_aggregates(sample, aggregates)
        emission = parse_emission(emit or FINAL)
        definition = SessionDefinition(group.keys, self._gap_us, tuple(specs), emission)
        fields = columns_of(of.schema.fields)
        operator = SessionOperator(operator_name, definition, fields, ansi=is_ansi(sample))
        columns = [named(f.name).alias(f.name) for f in fields]
        stream = WindowInput(group.columns, self._event_us, inputs, columns)
        exchange = SessionExchange(operator, stream)
        step = OperatorStep(
            operator,
            exchange,
            operator.code(),
            late=functools.partial(SessionExchange, operator, stream),
            before=exchange.before,
        )
        return _emitted(group.stream, operator, step, SESSION)


def _emitted(
    upstream: Stream,
    operator: WindowOperator | SessionOperator,
    step: OperatorStep,
    event_time: str,
) -> Stream:
    """What windows or sessions emit, as a stream."""
    # An early result is followed by others of the same window, so it has no event time.
    goes_on = event_time if operator.emission.is_final else None
    return then(upstream, operator.output_schema, step, event_time=goes_on)
