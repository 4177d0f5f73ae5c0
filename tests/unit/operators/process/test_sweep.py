"""Which rows of state have expired, by the time of each state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.operators.operator import MAIN, Moment
from millrace.operators.process.sweep import sweep_of

# Processing time is far ahead of event time.
NOW = Moment(1, 1000, 10)


def over(table: str, states: list[dict[str, Any]], **columns: Any) -> list[bool]:
    sweep = sweep_of(table, states, NOW)
    assert sweep is not None
    found = sweep(pa.RecordBatch.from_pydict(columns))
    assert found is not None
    return np.asarray(found).tolist()


def state(kind: str, time: str, name: str = "s") -> dict[str, Any]:
    return {"name": name, "kind": kind, "types": [], "ttl": [5, time]}


@pytest.mark.parametrize(("time", "now"), [("event", 10), ("processing", 1000)])
def test_a_key_goes_when_the_time_of_its_value_has_come(time: str, now: int) -> None:
    expires = [now - 1, now, now + 1, None]
    found = over(MAIN, [state("value", time)], **{"s": [1] * 4, "s.expires": expires})
    assert found == [True, True, False, False]


@pytest.mark.parametrize(("time", "now"), [("event", 10), ("processing", 1000)])
def test_an_entry_goes_when_its_time_has_come(time: str, now: int) -> None:
    assert over("s", [state("map", time)], expires=[now - 1, now, now + 1, None]) == [
        True,
        True,
        False,
        False,
    ]


def test_a_key_stays_while_any_of_its_states_does() -> None:
    states = [
        state("value", "event", "v"),
        state("list", "processing", "xs"),
        state("map", "processing", "m"),
    ]
    columns = {
        "v": [1, 1, None, None, None],
        "v.expires": [5, 50, None, None, None],
        "xs.start": [3, 3, 3, 4, None],
        "xs.end": [4, 4, 3, 5, None],
        "xs.expires": [1000, 1000, None, 1001, None],
        "m.size": [0, 0, 2, 0, None],
        "m.expires": [None, None, 1001, None, None],
    }
    assert over(MAIN, states, **columns) == [True, False, False, False, True]


def test_what_has_no_lifetime_is_not_swept() -> None:
    states = [{"name": "v", "kind": "value", "types": [], "ttl": None}, state("map", "event", "m")]
    assert sweep_of("v", states, NOW) is None
    assert sweep_of(MAIN, states[:1], NOW) is None
    # Without a watermark, event time stands still.
    assert sweep_of("m", states, Moment(1, 1000, None)) is None
