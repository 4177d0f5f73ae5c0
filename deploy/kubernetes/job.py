"""A query to start with: counts of a synthetic stream, with its state in a bucket."""

import os

import millrace as mr

spark = mr.session("totals")
ticks = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
totals = (
    mr.stream(ticks.selectExpr("value % 1000 AS device", "value"))
    .key_by("device")
    .aggregate(n=mr.count(), total=mr.sum("value"), name="totals")
)
query = totals.to("noop").start(
    os.environ["LOCATION"], parallelism=2, trigger="1 second", elastic=True
)
page = query.ui(host="0.0.0.0", port=4300, token=os.environ["MILLRACE_TOKEN"])
query.await_termination()
