"""The bounds of the parameters of aggregate functions."""

from __future__ import annotations

LG_K_HLL = 4, 21
"""Of `approx_distinct`: Spark's bounds."""
LG_K_THETA = 4, 26
"""Of `distinct_sketch`: Spark's bounds."""
ACCURACY = 8, 65535
"""Of `quantile`: the library's bounds."""
MOST_HITTERS = 10_000
"""The most that `heavy_hitters` shows."""
MOST_TOP = 10_000
"""The most rows that `top` keeps of a key."""
MOST_TRACKED = 100_000
"""The most values that a key of `heavy_hitters` tracks."""
