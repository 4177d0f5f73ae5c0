"""A scan gives the rows that reading gives, whole or by column, whatever was merged when."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.driving import Location, State, fingerprint, updated

from millrace.log.segment import HI, LO, encoding
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.scanning import scan

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("items", pa.list_(pa.int32()))])


def changes(rng: random.Random, keys: int) -> State:
    """Some keys with new values, and some that are deleted."""
    drawn = {fingerprint(rng.randrange(keys)) for _ in range(rng.choice([1, 20, 60]))}
    return {
        key: None  # type: ignore[misc]
        if rng.random() < 0.2
        else (rng.randrange(99), rng.choice([None, "", "a" * 9]), [1] * rng.randrange(3))
        for key in drawn
    }


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_scan_is_what_reading_gives(
    seed: int, by_column: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(encoding, "PAGE_ROWS", rng.choice([5, 30, 16384]))
    monkeypatch.setattr(merging, "MERGE_RATIO", rng.choice([0.1, 1.0]))
    location = Location(str(tmp_path / "location"), SCHEMA)
    held = Replica(location.store, SCHEMA, location.key_groups, by_column=by_column)
    state: State = {}
    for _ in range(25):
        step = changes(rng, 120)
        location.step(step)
        state = updated(state, step)
        if rng.random() < 0.4:
            # One that follows, and one that starts from nothing.
            fresh = Replica(location.store, SCHEMA, location.key_groups, by_column=by_column)
            for replica in (location.follow(held), location.follow(fresh)):
                assert scanned(replica, location.every) == state
                some = np.asarray(sorted(rng.sample(range(location.key_groups), 5)))
                part = scanned(replica, some)
                groups = {int(hi) >> replica.shift for hi, _ in part}
                assert groups <= set(some.tolist())
                assert part == {k: v for k, v in state.items() if k[0] >> replica.shift in some}
                # What was read once is read again as it is.
                assert scanned(replica, location.every) == state


def scanned(replica: Replica, groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> State:
    found: State = {}
    for batch in scan(replica, groups, [HI, LO, *SCHEMA.names]):
        assert batch.num_rows
        batch.validate(full=True)
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        for hi, lo, *values in zip(*columns, strict=True):
            assert (hi, lo) not in found
            found[hi, lo] = tuple(values)
    return found
