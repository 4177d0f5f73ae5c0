"""The fingerprint of a row of state that is of a key and a time: a pane, or a window's end.

It is the key's own with some bits flipped that the time alone decides: of `hi` only low ones, so
that all rows of a key are in the key's key group and neighbours in its base. Flipping the same bits
again gives the key's fingerprint back, so rows can be put together by key without comparing keys.
Two different rows have the same fingerprint only if 128 bits of two keys differ by exactly the bits
that the two times decide.
"""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array, UInt64Array
from millrace.jit import inlined, kernel
from millrace.state.owners import ENTRY_MASK


@inlined
def mixed(x: np.uint64) -> np.uint64:
    """Every bit of the result depends on every bit of the input, one to one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(x ^ (x >> np.uint64(31)))


@inlined
def unmixed(x: np.uint64) -> np.uint64:
    """What `mixed` was given."""
    x = (x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))) * np.uint64(0x319642B2D24D8EC3)
    x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * np.uint64(0x96DE1B173F119089)
    return np.uint64(x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60)))


@kernel
def at_times(
    hi: UInt64Array, lo: UInt64Array, times: Int64Array
) -> tuple[UInt64Array, UInt64Array]:
    """Fingerprints of keys at times; of such fingerprints at the same times, the keys' own."""
    n = len(hi)
    out_hi = np.empty(n, np.uint64)
    out_lo = np.empty(n, np.uint64)
    for i in range(n):
        flipped = mixed(np.uint64(times[i]) + np.uint64(0x9E3779B97F4A7C15))
        out_hi[i] = hi[i] ^ (flipped & ENTRY_MASK)
        out_lo[i] = lo[i] ^ mixed(flipped)
    return out_hi, out_lo
