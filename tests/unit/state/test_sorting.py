from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.arrays import UInt64Array
from millrace.state import sorting
from millrace.state.sorting import count_groups, group_starts, sort_order


def check(hi: UInt64Array, lo: UInt64Array) -> None:
    """Both sorts are stable, so the permutations are equal, not only what they sort to."""
    order = sort_order(hi, lo)
    assert np.array_equal(order, np.lexsort((lo, hi)))
    hi, lo = hi[order], lo[order]
    starts = group_starts(hi, lo)
    pairs = list(zip(hi.tolist(), lo.tolist(), strict=True))
    expected = [i for i, pair in enumerate(pairs) if i == 0 or pair != pairs[i - 1]]
    assert starts.tolist() == [*expected, len(pairs)]


NARROW = st.sampled_from([0, 1, 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])


@given(st.data())
def test_any_rows(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 200))
    words = st.one_of(NARROW, st.integers(0, 2**64 - 1))
    hi = data.draw(hnp.arrays(np.uint64, n, elements=words))
    lo = data.draw(hnp.arrays(np.uint64, n, elements=words))
    check(hi, lo)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 64, 1000, 50_000])
def test_uniform(n: int) -> None:
    rng = np.random.default_rng(n)
    check(*(rng.integers(0, 2**64, n, dtype=np.uint64) for _ in range(2)))


@pytest.mark.parametrize("distinct", [1, 2, 3, 50])
def test_few_distinct_keys_among_many_rows(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    keys = rng.integers(0, 2**64, (distinct, 2), dtype=np.uint64)
    hi, lo = keys[rng.integers(0, distinct, 200_000)].T
    check(np.ascontiguousarray(hi), np.ascontiguousarray(lo))


def test_large_buckets_are_not_sorted_by_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few distinct keys among many rows: the shape that makes a bucket sort quadratic."""
    sizes: list[int] = []

    def noted(hi: object, lo: object, order: object, first: int, last: int) -> None:
        sizes.append(last - first)

    monkeypatch.setattr(sorting, "_insertion", noted)
    rng = np.random.default_rng(6)
    hi, lo = rng.integers(0, 2**64, (3, 2), dtype=np.uint64)[rng.integers(0, 3, 2000)].T
    sort_order.py_func(hi, lo)  # type: ignore[attr-defined]
    assert sizes
    assert max(sizes) <= 32


def test_one_far_key_does_not_push_all_others_into_one_bucket_forever() -> None:
    rng = np.random.default_rng(4)
    hi = rng.integers(0, 1000, 200_000, dtype=np.uint64)
    hi[77] = 2**64 - 1
    check(hi, rng.integers(0, 2**64, len(hi), dtype=np.uint64))


def test_the_same_hi_is_ordered_by_lo() -> None:
    rng = np.random.default_rng(5)
    lo = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    check(np.full(len(lo), 2**64 - 1, np.uint64), lo)


@pytest.mark.parametrize("bits", [1, 8, 12])
def test_count_groups(bits: int) -> None:
    rng = np.random.default_rng(bits)
    hi = rng.integers(0, 2**64, 10_000, dtype=np.uint64)
    counts = count_groups(hi, np.uint64(64 - bits), 2**bits)
    expected = np.bincount((hi >> np.uint64(64 - bits)).astype(np.int64), minlength=2**bits)
    assert np.array_equal(counts, expected)
