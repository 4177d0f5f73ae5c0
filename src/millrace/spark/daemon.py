"""The process that Spark forks its Python workers from, with Millrace's kernels loaded.

Importing Numba and loading compiled kernels takes about a second; done here, once, every worker
starts warm. Named in `spark.python.daemon.module`.
"""

from __future__ import annotations

import numpy as np


def warm_up() -> None:
    """Load (or compile) the kernels that every epoch uses."""
    import millrace.spark.shard  # noqa: F401
    from millrace.state.sorting import count_groups, group_starts, sort_order

    words = np.arange(2, dtype=np.uint64)
    sort_order(words, words)
    group_starts(words, words)
    count_groups(words, np.uint64(56), 256)


if __name__ == "__main__":
    from pyspark import daemon

    warm_up()
    daemon.manager()
