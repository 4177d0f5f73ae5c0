"""The process that Spark forks its Python workers from, with Millrace's kernels loaded.

Importing Numba and loading compiled kernels takes about a second; done here, once, every worker
starts warm. Named in `spark.python.daemon.module`.
"""

from __future__ import annotations


def warm_up() -> None:
    """Load (or compile) the kernels that every epoch uses."""
    import millrace.spark.shard  # noqa: F401
    from millrace.epoch.rehearsal import rehearse

    rehearse()


if __name__ == "__main__":
    from pyspark import daemon

    warm_up()
    daemon.manager()
