"""A count per key, rescaled while it runs and queried with SQL: `python examples/count.py`.

The state is kept in the folder `counts`. Run it again, and the counts go up from there.
"""

import millrace as mr

spark = mr.session(master="local[2]")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 300).load()
devices = mr.stream(rows.selectExpr("value % 3 AS device")).key_by("device")
query = devices.aggregate(n=mr.count(), name="readings").to("noop").start("counts", parallelism=2)
query.await_termination(timeout=10)  # Let it count for ten seconds.

query.rescale(4).wait()  # Two shards become four. The stream keeps running.
print(query.sql("SELECT device, n FROM readings ORDER BY device").to_pandas())
query.stop()
