"""Key groups: the top bits of a fingerprint's first half.

A key group is a contiguous range of the sorted state, so the state of several groups in order is
the sorted state of their union: splitting and joining are slicing. The number of groups is fixed
for the life of a location; how they are spread over shards is not.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import UsageError

DEFAULT_KEY_GROUPS = 256
MIN_KEY_GROUPS = 2
MAX_KEY_GROUPS = 4096


def check_key_groups(count: int) -> int:
    """Return `count` if it may be a number of key groups, else raise."""
    if not MIN_KEY_GROUPS <= count <= MAX_KEY_GROUPS or count & (count - 1):
        raise UsageError(
            f"key_groups={count}: the number of key groups must be a power of two from "
            f"{MIN_KEY_GROUPS} to {MAX_KEY_GROUPS}. Choose {DEFAULT_KEY_GROUPS} unless you know "
            "that you need more parallelism than that."
        )
    return count


def group_shift(count: int) -> int:
    """How far to shift `hi` right to get its key group."""
    return 64 - (count.bit_length() - 1)


def groups_of(hi: UInt64Array, count: int) -> Int64Array:
    """The key group of each fingerprint."""
    return (hi >> np.uint64(group_shift(count))).astype(np.int64)
