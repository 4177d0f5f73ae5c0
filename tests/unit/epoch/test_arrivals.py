from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.epoch.arrivals import LEAST_ROWS, LONGEST, arrivals, hot_key
from millrace.keygroups import group_shift
from millrace.operators.input import Input

GROUPS = 16
SHIFT = np.uint64(group_shift(GROUPS))


def rows_of(hi: list[int], keys: list[object]) -> Input:
    words = np.asarray(hi, np.uint64)
    return Input(words, words, (pa.chunked_array([pa.array(keys)]),) if keys else ())


def counted(rows: Input) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.bincount((rows.hi >> SHIFT).astype(np.int64), minlength=GROUPS)


def in_group(group: int, number: int) -> int:
    return (group << int(SHIFT)) + number


def test_a_key_with_most_of_a_group_is_named() -> None:
    many = 5 * LEAST_ROWS
    hi = [in_group(3, 7)] * many + [in_group(3, n) for n in range(100, 100 + LEAST_ROWS)]
    keys: list[object] = ["hot"] * many + [str(n) for n in range(LEAST_ROWS)]
    order = np.random.default_rng(1).permutation(len(hi))
    rows = rows_of([hi[i] for i in order], [keys[i] for i in order])
    found = hot_key(rows, counted(rows), SHIFT)
    assert found is not None
    assert (found.group, found.key) == (3, "'hot'")
    assert found.share == pytest.approx(5 / 6, abs=0.05)


def test_a_group_of_many_keys_has_none() -> None:
    hi = [in_group(3, n) for n in range(4 * LEAST_ROWS)]
    rows = rows_of(hi, list(range(len(hi))))
    assert hot_key(rows, counted(rows), SHIFT) is None


def test_few_rows_and_small_shares_say_nothing() -> None:
    few = rows_of([in_group(3, 7)] * (LEAST_ROWS - 1), [])
    assert hot_key(few, counted(few), SHIFT) is None
    even = rows_of([in_group(g, 7) for g in range(GROUPS)] * LEAST_ROWS, [])
    assert hot_key(even, counted(even), SHIFT) is None


def test_long_keys_are_cut_and_rows_without_keys_have_fingerprints() -> None:
    long = rows_of([in_group(3, 7)] * LEAST_ROWS, ["x" * 500] * LEAST_ROWS)
    found = hot_key(long, counted(long), SHIFT)
    assert found is not None
    assert len(found.key) == LONGEST
    bare = rows_of([in_group(3, 7)] * LEAST_ROWS, [])
    found = hot_key(bare, counted(bare), SHIFT)
    assert found is not None
    assert found.key == "with fingerprint 3000000000000007"


def test_only_rows_of_the_shard_count() -> None:
    rows = rows_of([in_group(g, n) for g in (1, 2, 2, 5) for n in range(3)], [])
    found = arrivals(rows, np.asarray([2, 5, 9]), GROUPS)
    assert found.rows == {2: 6, 5: 3}
    assert found.hot_key is None
