"""Joins of two streams: `join`, `as_of` and `lookup`, resolved and checked before anything starts.

The output has the `on` columns once, then the other columns of the left stream, then those of the
right one, as in Spark. Both streams may come from sources or from operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from millrace.api.columns import data_type, is_ansi
from millrace.api.event_time import checked_event_time
from millrace.api.intervals import check_how, parse_tolerance, parse_within
from millrace.api.origin import grouping, origin, then
from millrace.errors import DuplicateNameError, JoinError
from millrace.operators.as_of.operator import AsOfOperator
from millrace.operators.as_of.spec import AsOfDefinition
from millrace.operators.join.layout import ANTI, EITHER, FULL, LEFT, RIGHT, SEMI
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.lookup.layout import HOWS as LOOKUP_HOWS
from millrace.operators.lookup.operator import LookupOperator
from millrace.operators.lookup.spec import LookupDefinition
from millrace.operators.operator import Column, Operator
from millrace.spark.exchange import JoinExchange, JoinSide, event_micros
from millrace.spark.fingerprint import check_hashable
from millrace.spark.session import check_one_session
from millrace.spark.steps import OperatorStep
from millrace.spark.uniting import LEFT as LEFT_ROWS
from millrace.spark.uniting import RIGHT as RIGHT_ROWS

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream
    from millrace.api.stream import Stream


def join_streams(
    left: Stream,
    right: Stream,
    on: str | Sequence[str],
    within: object,
    how: str,
    suffixes: object,
    name: str | None,
    *,
    either_time: bool = False,
) -> Stream:
    """Pairs within an interval of event time; see `Stream.join`.

    With `either_time`, what comes out may be followed by the event time of either stream.
    """
    how = check_how(how)
    both = _Both(left, right, on, suffixes, "join()", only_left=how in (SEMI, ANTI))
    times = both.check_times()
    is_timed_by_key = times[0] == times[1] and times[0] in both.names
    lower, upper = (0, 0) if within is None and is_timed_by_key else parse_within(within)
    if how == FULL:
        # A row may be of either stream, so only a column that both share is there in all.
        time, goes_on = EITHER, times[0] if is_timed_by_key else None
    elif how == RIGHT:
        time, goes_on = RIGHT, both.right_names.get(times[1], times[1])
    else:
        time, goes_on = LEFT, both.left_names.get(times[0], times[0])
    if either_time:
        time = EITHER
    definition = JoinDefinition(both.keys, both.left, both.right, lower, upper, how, time)
    operator = JoinOperator(origin(left).new_name("join", name, right), definition, ansi=both.ansi)
    return both.joined(operator, goes_on, needs_order=False)


def as_of_streams(
    left: Stream,
    right: Stream,
    on: str | Sequence[str],
    tolerance: object,
    suffixes: object,
    name: str | None,
) -> Stream:
    """Each left row with the newest right row up to its time; see `Stream.as_of`."""
    both = _Both(left, right, on, suffixes, "as_of()")
    time, _ = both.check_times()
    definition = AsOfDefinition(both.keys, both.left, both.right, parse_tolerance(tolerance))
    operator = AsOfOperator(origin(left).new_name("as-of", name, right), definition, ansi=both.ansi)
    return both.joined(operator, both.left_names.get(time, time), needs_order=True)


def look_up_streams(
    left: Stream,
    keyed: KeyedStream,
    on: str | Sequence[str],
    how: str,
    suffixes: object,
    name: str | None,
) -> Stream:
    """Each left row with the newest row per key; see `Stream.lookup`."""
    how = check_how(how, LOOKUP_HOWS)
    names = _names(on, "lookup()")
    keys = [key.name for key in grouping(keyed).keys]
    if set(keys) != set(names):
        raise JoinError(
            f"lookup(on={on!r}): the other stream has the newest row per {', '.join(keys)}. Key it "
            f"by what is looked up: key_by({', '.join(map(repr, names))}).latest()."
        )
    both = _Both(left, grouping(keyed).with_keys(), names, suffixes, "lookup()")
    definition = LookupDefinition(both.keys, both.left, both.right, how)
    operator = LookupOperator(
        origin(left).new_name("lookup", name, both.others), definition, ansi=both.ansi
    )
    time = origin(left).event_time
    goes_on = None if time is None else both.left_names.get(time, time)
    return both.joined(operator, goes_on, needs_order=True)


class _Both:
    """The two streams of a join: their keys, and their other columns by the names that they have in
    the output."""

    def __init__(
        self,
        left: Stream,
        right: Stream,
        on: str | Sequence[str],
        suffixes: object,
        where: str,
        *,
        only_left: bool = False,
    ) -> None:
        check_one_session(origin(left).spark, origin(right).spark, where)
        self._where = where
        self.stream, self.others = left, right
        self.names = _names(on, where)
        self.keys = tuple(self._key(name) for name in self.names)
        ends = _suffixes(suffixes)
        self.left_names, self.right_names = ({}, {}) if only_left else self._output_names(ends)
        self.left = _renamed(self.plain(left), self.left_names)
        self.right = _renamed(self.plain(right), self.right_names)
        self.ansi = is_ansi(origin(left).sample())

    def _key(self, name: str) -> Column:
        types = [
            data_type(origin(stream).sample(), name, f"{self._where} on the {side}")
            for stream, side in ((self.stream, LEFT), (self.others, RIGHT))
        ]
        check_hashable(name, types[0])
        if types[0].simpleString() != types[1].simpleString():
            raise JoinError(
                f"{self._where}: {name!r} is of type {types[0].simpleString()} on the left and "
                f"{types[1].simpleString()} on the right. Cast one of them in transform()."
            )
        return Column(name, types[0])

    def plain(self, stream: Stream) -> tuple[Column, ...]:
        """A stream's columns beside the key."""
        fields = [f for f in stream.schema.fields if f.name not in self.names]
        return tuple(Column(f.name, f.dataType) for f in fields)

    def _output_names(self, ends: tuple[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """What the columns that both streams have are called in the output."""
        left, right = ([c.name for c in self.plain(s)] for s in (self.stream, self.others))
        both = [name for name in left if name in right]
        named = [{name: name + end for name in both} for end in ends]
        output = [*self.names, *(named[0].get(n, n) for n in left)]
        output += [named[1].get(n, n) for n in right]
        twice = sorted({name for name in output if output.count(name) > 1})
        if twice:
            raise DuplicateNameError(
                f"{self._where}: the output would have two columns {', '.join(map(repr, twice))}. "
                "Tell them apart with suffixes=('', '_right'), or rename one in transform()."
            )
        return named[0], named[1]

    def check_times(self) -> tuple[str, str]:
        """The event times of both; raises if one has none."""
        left, right = (
            checked_event_time(origin(stream), f"{self._where}, on the {side},")
            for stream, side in ((self.stream, LEFT), (self.others, RIGHT))
        )
        return left.name, right.name

    def joined(self, operator: Operator, event_time: str | None, *, needs_order: bool) -> Stream:
        """The stream behind an operator over both.

        `needs_order`: its result depends on which of two rows came first.
        """
        exchange = JoinExchange(
            [key.type for key in self.keys],
            self._side(self.stream, LEFT_ROWS),
            self._side(self.others, RIGHT_ROWS),
            needs_order=needs_order,
        )
        step = OperatorStep(operator, exchange)
        return then(self.stream, operator.output_schema, step, self.others, event_time=event_time)

    def _side(self, stream: Stream, rows: str) -> JoinSide:
        def column(name: str) -> SparkColumn:
            return F.col(rows).getField(name)

        time = origin(stream).event_time
        event_us = None
        if time is not None:
            event_us = event_micros(column(time), stream.schema[time].dataType)
        return JoinSide(
            F.col(rows),
            [column(name) for name in self.names],
            [(column(c.name), c.type) for c in self.plain(stream)],
            event_us,
        )


def _renamed(columns: Sequence[Column], names: dict[str, str]) -> tuple[Column, ...]:
    return tuple(Column(names.get(c.name, c.name), c.type) for c in columns)


def _names(on: object, where: str) -> list[str]:
    """The names of the `on` columns."""
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, tuple | list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise JoinError(
            f"{where}: on={on!r}. Give the name of a column that both streams have, or a list of "
            "names; compute it in transform() if it is an expression."
        )
    if len(set(names)) < len(names):
        raise DuplicateNameError(f"{where}: on={on!r} names a column twice.")
    return names


def _suffixes(suffixes: object) -> tuple[str, str]:
    if suffixes is None:
        return "", ""
    if isinstance(suffixes, tuple | list) and [*map(type, suffixes)] == [str, str]:
        return suffixes[0], suffixes[1]
    raise JoinError(
        f"suffixes={suffixes!r}: give two texts, for names of the left stream and of the right "
        "one, such as ('', '_right')."
    )
