"""A query on two executors in processes of their own; prints its state as JSON.

python -m tests.spark.cluster_program LOCATION EPOCHS
"""

from __future__ import annotations

import json
import sys

import millrace as mr
from millrace_lab.local_cluster import starting
from millrace_lab.local_session import local_settings

ROWS_PER_EPOCH = 500


def main() -> None:
    location, epochs = sys.argv[1], int(sys.argv[2])
    with starting():
        spark = mr.session(
            "millrace-cluster",
            master="local-cluster[2,1,1024]",
            config={**local_settings("512m"), "spark.executor.memory": "512m"},
        )
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_EPOCH)
        .option("numPartitions", 2)
        .load()
        .selectExpr("if(value % 7 = 0, null, value % 7) as k", "value")
    )
    query = (
        mr.stream(source)
        .key_by("k")
        .aggregate(n=mr.count(), total=mr.sum("value"), name="t")
        .to("noop")
        .start(location, parallelism=3)
    )
    while query.is_active and query.epoch < epochs:
        query.await_termination(1)
    query.stop()
    reader = mr.open(location)
    print(json.dumps({"epoch": reader.epoch, "rows": reader.to_arrow("t").to_pylist()}))
    spark.stop()


if __name__ == "__main__":
    main()
