"""Isolation: whatever the stream does, a reader sees its epoch, and that is what a batch gives.

Random schedules of input, merges, rescales, crashes and collections, with readers that are opened,
held, refreshed and closed in between. Every look is compared with the batch oracle of its epoch.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.stress import few
from tests.unit.reading.streams import Counted, as_oracle, draw

import millrace as mr
from millrace.log import journal as journal_module
from millrace.log.retention import collect
from millrace.log.segment import encoding
from millrace.state import merging

LOOKS = ("sql", "arrow", "get", "aggregate", "changes")


def look(reader: mr.Reader, stream: Counted, how: str, rng: random.Random) -> None:
    """One look at a reader's epoch, in one of the ways there are."""
    oracle = stream.history[reader.epoch]
    if how == "sql":
        assert as_oracle(reader.sql("select * from totals")) == oracle
    elif how == "arrow":
        assert as_oracle(reader.to_arrow()) == oracle
    elif how == "aggregate":
        (row,) = reader.sql(
            "select count(*) as k, sum(n) as n, sum(total) as t from totals"
        ).to_pylist()
        assert row["k"] == len(oracle)
        assert row["n"] == sum(n for n, _, _ in oracle.values())
        assert row["t"] == sum(t for _, t, _ in oracle.values())
    elif how == "get":
        keys = [*rng.sample(sorted(oracle, key=str), min(5, len(oracle))), ("nowhere", 1)]
        found = reader.get(keys).to_pylist()
        shown = [(r["n"], r["total"], r["average"]) if r["_found"] else None for r in found]
        assert shown == [oracle.get(key) for key in keys]
    else:
        since = rng.randrange(max(1, reader.epoch - 5), reader.epoch + 1)
        if not set(range(since + 1, reader.epoch + 1)) <= set(stream.journal.epochs()):
            return
        after = dict(stream.history[since])
        for r in reader.changes(since).to_pylist():
            after[r["room"], r["device"]] = (r["n"], r["total"], r["average"])
        assert after == oracle


@pytest.mark.parametrize("seed", few(range(6), 0, 1, 2))
def test_a_reader_sees_its_epoch(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(encoding, "PAGE_ROWS", rng.choice([8, 40, 16384]))
    monkeypatch.setattr(journal_module, "FULL_EVERY", rng.choice([3, 8]))
    monkeypatch.setattr(merging, "MERGE_RATIO", rng.choice([0.05, 0.5, 4.0]))
    remote = seed % 4 == 3
    url = f"memory://isolation-{seed}-{tmp_path.name}" if remote else str(tmp_path / "l")
    stream = Counted(url, key_groups=8, index_budget=rng.choice([1 << 12, 1 << 40]))
    stream.send(draw(rng, 60, 30))
    readers: list[mr.Reader] = []
    looked = set()
    for _ in range(60):
        event = rng.choices(
            ("input", "rescale", "crash", "collect", "open", "refresh", "close", "look"),
            (8, 2, 2, 2, 3, 3, 1, 10),
        )[0]
        if event == "input":
            stream.send(draw(rng, rng.choice([1, 10, 60]), 30))
        elif event == "rescale":
            stream.shards = rng.choice([1, 2, 3, 8])
        elif event == "crash":
            # Segments were written, the manifest was not.
            stream.send(draw(rng, 20, 30), commit=False)
            stream.restart()
        elif event == "collect":
            collect(stream.journal, rng.choice([1, 2, 6]))
        elif event == "open":
            epochs = stream.journal.epochs()
            readers.append(mr.open(url, epoch=rng.choice([None, rng.choice(epochs)])))
        elif readers and event == "refresh":
            assert rng.choice(readers).refresh() == stream.trail.epoch
        elif readers and event == "close":
            readers.pop(rng.randrange(len(readers))).close()
        elif readers:
            how = rng.choice(LOOKS)
            look(rng.choice(readers), stream, how, rng)
            looked.add(how)
    assert len(looked) >= 3
    for reader in readers:
        look(reader, stream, "sql", rng)
        reader.close()
    # What a crash left of an epoch is removed once that epoch is committed.
    stream.send(draw(rng, 5, 30))
    collect(stream.journal, 1)
    assert stream.store_is_tidy()
