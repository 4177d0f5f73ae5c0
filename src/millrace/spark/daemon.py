"""The process that Spark forks its Python workers from, with Millrace's kernels loaded.

Importing Numba and loading compiled kernels takes about a second; done here, once, every worker
starts warm. Named in `spark.python.daemon.module`. Real-time queries have a daemon of their own,
whose children are the processes of shards: Spark passes the module of a worker as an argument.
"""

from __future__ import annotations

import gc
import sys

RESIDENT = "millrace.spark.realtime.worker"


def warm_up() -> None:
    """Load (or compile) the kernels that every epoch uses."""
    import millrace.spark.shard  # noqa: F401
    from millrace.epoch.rehearsal import rehearse

    rehearse()
    # What is here by now stays in all workers. A collection that walks over it takes long enough
    # to be seen in the latency of a row, and makes a copy of every page that it touches.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark import daemon

    warm_up()
    if RESIDENT in sys.argv[1:]:
        import pyspark.worker

        from millrace.spark.realtime import worker

        # What a child runs after Spark has checked who is at the other end.
        pyspark.worker.main = worker.main
    daemon.manager()
