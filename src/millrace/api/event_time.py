"""Event times and windows as a program gives them, checked before anything starts."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.api.columns import named
from millrace.api.origin import Origin
from millrace.errors import EmissionError, EventTimeError, UsageError, WindowError
from millrace.operators.operator import Column
from millrace.operators.process.durations import duration_us
from millrace.operators.window.emission import EARLY, FINAL, NONE, UPDATE, Emission
from millrace.operators.window.panes import Windows, tiles_of
from millrace.spark.exchange import event_micros
from millrace.spark.steps import Point

Duration: TypeAlias = str | dt.timedelta
"""A length of time: `"10 minutes"`, `"1 hour 30 minutes"`, or a timedelta."""

_MILLISECOND = 1000
_DELAY = "spark.watermarkDelayMs"
"""What Spark writes into the metadata of a column that has a watermark."""
_NO_TIME = -(2**63)
"""The time of rows that have none: before all others."""
_CALENDAR = re.compile(r"\b(month|year|quarter)s?\b", re.IGNORECASE)


def check_event_time(name: str, data_type: T.DataType) -> None:
    """Raise unless a column can be an event time."""
    if not isinstance(data_type, T.TimestampType):
        raise EventTimeError(
            f"event_time={name!r}: the column is of type {data_type.simpleString()}, and an event "
            "time is a timestamp. Convert it, for example with F.to_timestamp or "
            "cast('timestamp'), before mr.stream."
        )


def with_watermark(df: DataFrame, event_time: str, watermark: str) -> DataFrame:
    """The frame with Spark's watermark on a column."""
    try:
        return df.withWatermark(event_time, watermark)
    except PySparkException as error:
        raise EventTimeError(
            f"watermark={watermark!r}: {str(error).splitlines()[0]} Say how late rows may be, for "
            "example '10 minutes'."
        ) from error


def is_window(data_type: T.DataType) -> TypeGuard[T.StructType]:
    """Whether an event time is that of a window: its last microsecond."""
    return isinstance(data_type, T.StructType) and "end" in data_type.names


def event_time_of(of: Origin, what: str) -> SparkColumn:
    """A stream's event time as an expression, in microseconds; `what` needs it."""
    time = checked_event_time(of, what)
    return event_micros(named(time.name), time.type)


def checked_event_time(of: Origin, where: str) -> Column:
    """A stream's event time; raises if it has none, saying that `where` needs it."""
    name, dropped = of.event_time, of.dropped_time
    if dropped is not None:
        raise EventTimeError(
            f"{where} needs the event time {dropped!r}, which transform() has dropped. There are "
            f"{', '.join(of.schema.names)}: keep {dropped!r} among them."
        )
    if name is None:
        raise EventTimeError(
            f"{where} needs an event time, and this stream has none. Give it one with "
            "mr.stream(df, event_time='at', watermark='10 minutes'). Behind an operator there is "
            "one if that is a window or a session with emit='final', drop_duplicates() or a join; "
            "behind union() if both streams have it in the same column."
        )
    data_type = of.schema[name].dataType
    time = data_type["end"].dataType if is_window(data_type) else data_type
    if not isinstance(time, T.TimestampType):
        raise EventTimeError(
            f"{where} needs the event time {name!r}, which transform() has made a "
            f"{data_type.simpleString()}. Leave it as it was."
        )
    return Column(name, data_type)


def newness(schema: T.StructType, name: str | None) -> SparkColumn | None:
    """By what the newest of rows is found: event time, before which is none; None for arrival."""
    if name is None:
        return None
    time = event_micros(named(name), schema[name].dataType)
    return F.coalesce(time, F.lit(_NO_TIME).cast("long"))


def watermark_delay_us(point: Point) -> int:
    """How late rows of a stream's sources may be; of several sources, the longest."""
    fields = () if point.frame is None else point.frame.schema.fields
    own = [_MILLISECOND * int((field.metadata or {}).get(_DELAY, 0)) for field in fields]
    return max([*own, *map(watermark_delay_us, point.inputs)], default=0)


def parse_ttl(ttl: Duration) -> int:
    """The microseconds of `ttl=`, a whole number of milliseconds."""
    if not isinstance(ttl, str | dt.timedelta):
        raise UsageError(
            f"drop_duplicates(ttl={ttl!r}): give a length such as '7 days', or None to remember "
            "keys forever."
        )
    try:
        ttl_us = duration_us(ttl)
    except UsageError as error:
        raise UsageError(f"drop_duplicates(ttl={ttl!r}): {error}") from error
    if ttl_us % _MILLISECOND:
        raise UsageError(f"drop_duplicates(ttl={ttl!r}): give a whole number of milliseconds.")
    return ttl_us


def make_windows(size: Duration, slide: Duration | None, offset: Duration | None) -> Windows:
    """The windows of `window(size, slide, offset)`."""
    size_us = _length("size", size)
    slide_us = size_us if slide is None else _length("slide", slide)
    return Windows(size_us, slide_us, 0 if offset is None else _offset(offset))


def make_tiles(
    lengths: Sequence[Duration], slide: Duration, offset: Duration | None
) -> tuple[Windows, ...]:
    """The windows of `windows(lengths, slide, offset)`, the shortest first."""
    if isinstance(lengths, str | dt.timedelta) or not isinstance(lengths, Sequence):
        raise WindowError(
            f"windows({lengths!r}): give a list of lengths, such as ['5 minutes', '1 hour']. For "
            "windows of one length there is window()."
        )
    sizes = [_length("size", length) for length in lengths]
    offset_us = 0 if offset is None else _offset(offset)
    return tiles_of(sizes, _length("slide", slide), offset_us)


def parse_gap(gap: Duration) -> int:
    """The microseconds of `session(gap)`."""
    return _length("gap", gap, "session")


def _length(what: str, given: Duration, of: str = "window") -> int:
    if isinstance(given, str) and _CALENDAR.search(given):
        raise WindowError(
            f"{of}({what}={given!r}): months and years differ in length, so {of}s cannot be "
            "made of them, not even in Spark. Use days or weeks."
        )
    if not isinstance(given, str | dt.timedelta):
        raise WindowError(f"{of}({what}={given!r}): give a length such as '10 minutes'.")
    try:
        return duration_us(given)
    except UsageError as error:
        raise WindowError(f"{of}({what}={given!r}): {error}") from error


def _offset(given: Duration) -> int:
    """An offset may be zero, and before 1970."""
    if isinstance(given, dt.timedelta):
        return given // dt.timedelta(microseconds=1)
    text = str(given).strip()
    if text.startswith("-"):
        return -_length("offset", text[1:].strip())
    if re.fullmatch(r"0\s*[A-Za-z]+", text):
        return 0
    return _length("offset", given)


def does_emit(emit: object, where: str) -> bool:
    """Whether an operator without windows emits; raises if it cannot emit that way."""
    emission = parse_emission(emit)
    if emission.mode in (FINAL, EARLY):
        raise EmissionError(
            f"{where}: emit={emit!r} is for results that end, and without windows a key's can "
            "always change. Divide its rows with window() or session(), or use emit='update' for "
            "what changed in each epoch, or 'none' for state that is only read."
        )
    return emission.mode != NONE


def parse_emission(emit: object) -> Emission:
    """The emission of `emit=`."""
    if emit in (FINAL, UPDATE, NONE):
        return Emission(str(emit))
    mode, _, period = str(emit).partition("=")
    if mode.strip() != EARLY or not period.strip():
        raise UsageError(
            f"emit={emit!r}: use 'final', 'update', 'early=10 seconds' for early results every "
            "ten seconds beside the final ones, or 'none' for state that is only read."
        )
    period_us = duration_us(period.strip())
    if period_us % _MILLISECOND:
        raise UsageError(f"emit={emit!r}: early results come every whole number of milliseconds.")
    return Emission(EARLY, period_us)
