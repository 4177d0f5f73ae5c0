"""Online features: per user, kept up to date by a stream, read by another program at any time.

The reader needs no Spark, sees one committed epoch, and does not slow the stream down.
`python examples/online_features.py` needs Millrace and Java, and writes to a temporary directory.
"""

import json
import tempfile
from pathlib import Path

import millrace as mr

work = Path(tempfile.mkdtemp(prefix="millrace-"))
inbox, location = work / "inbox", str(work / "features")
inbox.mkdir()
spark = mr.session(master="local[2]")
orders = spark.readStream.schema("user string, amount double, shop string").json(str(inbox))
features = (
    mr.stream(orders)
    .key_by("user")
    .aggregate(
        orders=mr.count(),
        mean=mr.mean("amount"),
        deviation=mr.stddev("amount"),
        largest=mr.max("amount"),
        shop=mr.last("shop"),
        name="features",
    )
)
query = features.to("noop").start(location, parallelism=2)


def order(*made):
    """Orders arrive as a file of JSON lines."""
    rows = [{"user": u, "amount": a, "shop": s} for u, a, s in made]
    (inbox / f"{len(list(inbox.iterdir()))}.json").write_text("\n".join(map(json.dumps, rows)))
    query.process_all_available()


def features_of(user):
    """What a model would ask for; any process that can read the location may."""
    with mr.open(location) as state:
        (row,) = state.get([user], columns=["orders", "mean", "largest", "shop"]).to_pylist()
        return state.epoch, row


order(("ann", 20.0, "books"), ("bob", 5.0, "tea"), ("ann", 40.0, "tea"))
print(*features_of("ann"))
order(("ann", 90.0, "books"))
print(*features_of("ann"))
query.stop()
