"""Sessions: a visit ends when a user has been silent for half an hour.

A processor keeps typed state per key, and a timer that fires when the watermark has passed it.
`python examples/sessions.py` needs Millrace and Java, and writes to a temporary directory.
"""

import json
import tempfile
from pathlib import Path

import millrace as mr


class Session(mr.Processor):
    """Counts the pages of a visit until half an hour goes by without one."""

    began = mr.Value("timestamp")
    pages = mr.Map("string", "long")
    silence = mr.EventTimeTimer()

    def process(self, key, rows, ctx):
        if not self.began.exists():
            self.began.set(min(row.at for row in rows))
        for row in rows:
            self.pages[row.page] = self.pages.get(row.page, 0) + 1
        self.silence.set(ctx.event_time + mr.minutes(30))

    def on_timer(self, key, timer, ctx):
        yield (key.user, self.began.get(), sum(self.pages.values()), len(self.pages))
        self.began.clear()
        self.pages.clear()


work = Path(tempfile.mkdtemp(prefix="millrace-"))
inbox, location = work / "inbox", str(work / "sessions")
inbox.mkdir()
spark = mr.session(master="local[2]")
events = spark.readStream.schema("user string, page string, at timestamp").json(str(inbox))
query = (
    mr.stream(events, event_time="at", watermark="5 minutes")
    .key_by("user")
    .process(Session(), "user string, began timestamp, views long, pages long", name="sessions")
    .to("memory", name="ended")
    .start(location, parallelism=2)
)


def visit(*clicks):
    """Clicks arrive as a file of JSON lines."""
    rows = [{"user": u, "page": p, "at": f"2026-01-01T{at}:00Z"} for u, p, at in clicks]
    (inbox / f"{len(list(inbox.iterdir()))}.json").write_text("\n".join(map(json.dumps, rows)))
    query.process_all_available()


visit(("ann", "/", "12:00"), ("bob", "/", "12:01"), ("ann", "/buy", "12:03"))
visit(("bob", "/help", "12:20"), ("ann", "/", "12:10"))
visit(("cid", "/", "13:00"))  # Later: the others have been silent for long enough.
query.stop()

ended = spark.table("ended").selectExpr("user", "date_format(began, 'mm') AS m", "views", "pages")
for user, minute, views, pages in sorted(map(tuple, ended.collect())):
    print(f"{user} came at 12:{minute}, {views} views of {pages} pages")
print("still there:", *mr.open(location).to_arrow("sessions", state="pages")["user"].to_pylist())
