"""Autoscaling as a program asks for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from millrace.errors import AutoscaleError, UsageError
from millrace.operators.process.durations import duration_us
from millrace.reconfigure.autoscale.settings import Settings, parse_schedule

Duration = str | dt.timedelta


def autoscale(
    min: int = 1,
    max: int = 16,
    *,
    target: float = 0.7,
    latency: Duration | None = None,
    policy: str = "model",
    schedule: Mapping[str, int] | None = None,
    cool_down: Duration = "10 seconds",
    settle: Duration = "60 seconds",
    catch_up: Duration = "15 seconds",
    act: bool = True,
) -> Settings:
    """How `start(autoscale=...)` scales a query.

    - `min`, `max`: the fewest and the most shards of an operator.
    - `target`: the share of its time that the query is busy with rows; what is left is for rows
      that come unevenly.
    - `latency`: how old a row may be when its epoch commits.
    - `policy`: `"model"`, `"latency"`, `"threshold"` or `"schedule"`; see the guide.
    - `schedule`: for the policy of that name, such as `{"08:00": 8, "20:00": 2}`, in UTC.
    - `cool_down`: how long nothing happens after a change, unless the query cannot keep up.
    - `settle`: how long the load must have been low before there are fewer shards.
    - `catch_up`: how long it may take to work off what has piled up.
    - `act`: False records decisions without carrying them out.
    """
    entries = () if schedule is None else parse_schedule(schedule)
    return Settings(
        min=min,
        max=max,
        target=target,
        latency=None if latency is None else _seconds("latency", latency),
        policy=policy,
        schedule=entries,
        cool_down=_seconds("cool_down", cool_down),
        settle=_seconds("settle", settle),
        catch_up=_seconds("catch_up", catch_up),
        act=act,
    )


def check_autoscale(given: object, parallelism: int | Mapping[str, int] | None) -> Settings | None:
    """The settings of `start(autoscale=)`, if they go with its parallelism."""
    if given is None:
        return None
    if not isinstance(given, Settings):
        raise AutoscaleError(
            f"autoscale={given!r}: give what mr.autoscale returns, such as "
            "autoscale=mr.autoscale(min=1, max=16)."
        )
    given.check_parallelism(parallelism)
    return given


def _seconds(name: str, duration: Duration) -> float:
    try:
        return duration_us(duration) / 1e6
    except UsageError as error:
        raise AutoscaleError(f"{name}={error}") from error
