"""Totals per device and metric: run, stop, and continue with another parallelism.

`python examples/totals.py` needs Millrace and Java, and writes to a temporary directory.
"""

import json
import tempfile
from pathlib import Path

import millrace as mr

work = Path(tempfile.mkdtemp(prefix="millrace-"))
inbox, location = work / "inbox", str(work / "totals")
inbox.mkdir()
spark = mr.session(master="local[2]")


def run(parallelism, *readings):
    """Let a file of readings arrive, process it, and stop."""
    rows = [{"device": d, "metric": m, "value": v} for d, m, v in readings]
    (inbox / f"{rows[0]['device']}.json").write_text("\n".join(map(json.dumps, rows)))
    events = spark.readStream.schema("device string, metric string, value double").json(str(inbox))
    query = (
        mr.stream(events)
        .transform(lambda df: df.where("value > 0"))
        .key_by("device", "metric")
        .aggregate(n=mr.count(), total=mr.sum("value"), peak=mr.max("value"), name="totals")
        .for_each_batch(write)
        .start(location, parallelism=parallelism, trigger="available_now")
    )
    query.await_termination()


def write(df, batch_id):
    print(f"batch {batch_id} changed", *sorted(map(tuple, df.collect()), key=str), sep="\n  ")


run(2, ("oven", "heat", 180.5), ("oven", "heat", 181.0), ("fan", None, 3.0), ("fan", "rpm", -1.0))
run(3, ("pump", "bar", 7.5), ("oven", "heat", 179.0))

state = mr.open(location)
print(f"state at epoch {state.epoch}")
print(state.to_arrow("totals").to_pandas().sort_values("device").to_string(index=False))
