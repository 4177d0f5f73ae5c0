"""Latencies of events from the records that answer them, beside a loop that looks at each."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.arrays import Int64Array
from millrace_lab.bench._events import Sent, answered
from millrace_lab.bench._sides.kafka_load import key_of


def looked_at(sent: Sent, records: Int64Array) -> list[float]:
    """Each event's latency, one by one."""
    seen: dict[int, int] = {}
    latencies = []
    for key, stamp in zip(sent.keys.tolist(), sent.stamps.tolist(), strict=True):
        seen[key] = seen.get(key, 0) + 1
        including = [(n, at) for k, n, _, at in records.tolist() if k == key and n >= seen[key]]
        latencies.append((min(including)[1] - stamp) / 1e6 if including else float("inf"))
    return latencies


def run_of(events: int, keys: int, batches: int) -> tuple[Sent, Int64Array]:
    """Events, and what batches of them in order write: a record per key that changed."""
    sent = Sent(key_of(np.arange(events), keys), 1_000_000 + 10 * np.arange(events))
    counts: dict[int, int] = {}
    records = []
    for batch in np.array_split(np.arange(events), batches):
        last = {}
        for event in batch.tolist():
            key = int(sent.keys[event])
            counts[key] = counts.get(key, 0) + 1
            last[key] = int(sent.stamps[event])
        came = int(sent.stamps[batch[-1]]) + 700
        records += [(key, counts[key], stamp, came) for key, stamp in last.items()]
    return sent, np.asarray(records, np.int64)


@pytest.mark.parametrize(("events", "keys", "batches"), [(1, 1, 1), (500, 7, 20), (300, 400, 300)])
def test_every_event_has_the_latency_of_its_first_answer(
    events: int, keys: int, batches: int
) -> None:
    sent, records = run_of(events, keys, batches)
    found = answered(sent, np.random.default_rng(1).permutation(records))
    assert found.is_complete
    assert (found.wrong, found.repeated) == (0, 0)
    assert found.latencies.tolist() == looked_at(sent, records)


def test_what_is_missing_wrong_or_there_twice_is_noticed() -> None:
    sent, records = run_of(200, 5, 10)
    lost = records[records[:, 0] != 3]
    found = answered(sent, lost)
    assert not found.is_complete
    assert np.array_equal(np.isinf(found.latencies), sent.keys == 3)
    for column in (1, 2):
        wrong = records.copy()
        wrong[-1, column] += 1
        assert answered(sent, wrong).wrong == 1
    again = np.vstack([records, records[4] + [0, 0, 0, 5]])
    twice = answered(sent, again)
    assert (twice.wrong, twice.repeated) == (0, 1)
    # The first of the two is the answer.
    assert twice.latencies.tolist() == looked_at(sent, records)
    assert not answered(sent, np.zeros((0, 4), np.int64)).is_complete
