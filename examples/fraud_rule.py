"""A fraud rule: a small payment, then a large one soon after, on the same card.

Alerts go to a side output with its own schema.
`python examples/fraud_rule.py` needs Millrace and Java, and writes to a temporary directory.
"""

import json
import tempfile
from pathlib import Path

import millrace as mr

SMALL, LARGE, WINDOW = 2.0, 500.0, mr.minutes(1)


class Rule(mr.Processor):
    """Thieves try a card with a small payment first."""

    tried = mr.Value("timestamp")
    spent = mr.Reducing("double", lambda a, b: a + b)
    alerts = mr.SideOutput("card string, at timestamp, amount double, seconds double")

    def process(self, key, rows, ctx):
        for row in sorted(rows, key=lambda row: row.at):
            self.spent.add(row.amount)
            tried = self.tried.get()
            if row.amount <= SMALL:
                self.tried.set(row.at)
            elif row.amount >= LARGE and tried is not None and row.at - tried <= WINDOW:
                seconds = (row.at - tried).total_seconds()
                self.alerts.emit((key.card, row.at, row.amount, seconds))
        yield (key.card, self.spent.get())


work = Path(tempfile.mkdtemp(prefix="millrace-"))
inbox, location = work / "inbox", str(work / "cards")
inbox.mkdir()
spark = mr.session(master="local[2]")
payments = spark.readStream.schema("card string, amount double, at timestamp").json(str(inbox))
cards = (
    mr.stream(payments).key_by("card").process(Rule(), "card string, spent double", name="cards")
)
query = (
    cards.to("noop")
    .also(cards.side("alerts").to("memory", name="alerts"))
    .start(location, parallelism=2)
)


def pay(*made):
    """Payments arrive as a file of JSON lines."""
    rows = [{"card": c, "amount": a, "at": f"2026-01-01T12:{at}Z"} for c, a, at in made]
    (inbox / f"{len(list(inbox.iterdir()))}.json").write_text("\n".join(map(json.dumps, rows)))
    query.process_all_available()


pay(("4711", 1.0, "00:00"), ("0815", 1.5, "00:10"), ("4242", 900.0, "00:20"))
pay(("4711", 720.0, "00:45"), ("0815", 640.0, "05:00"))
query.stop()

for alert in spark.table("alerts").collect():
    print(f"card {alert.card}: {alert.amount:.0f} after {alert.seconds:.0f} s")
spent = mr.open(location).to_arrow().to_pylist()
print("spent:", *sorted(f"{row['card']}={row['spent']:.1f}" for row in spent))
