from __future__ import annotations

import numpy as np
import pytest

from millrace.errors import UsageError
from millrace.keygroups import DEFAULT_KEY_GROUPS, check_key_groups, group_shift, groups_of


@pytest.mark.parametrize("count", [2**i for i in range(1, 13)])
def test_every_power_of_two_up_to_4096_is_allowed(count: int) -> None:
    assert check_key_groups(count) == count
    assert group_shift(count) == 64 - np.log2(count)


@pytest.mark.parametrize("count", [-256, -1, 0, 1, 3, 100, 255, 257, 4095, 4097, 8192])
def test_any_other_count_is_refused_with_advice(count: int) -> None:
    with pytest.raises(
        UsageError, match=rf"key_groups={count}.*power of two.*{DEFAULT_KEY_GROUPS}"
    ):
        check_key_groups(count)


@pytest.mark.parametrize("count", [2, 256, 4096])
def test_a_key_group_is_a_contiguous_range_of_equal_size(count: int) -> None:
    size = 2**64 // count
    edges = [edge for g in range(count) for edge in (g * size, (g + 1) * size - 1)]
    groups = groups_of(np.asarray(edges, np.uint64), count)
    assert groups.dtype == np.int64
    assert groups.tolist() == [g for g in range(count) for _ in range(2)]
