"""Word count: files of text arrive, and the query counts each word.

`python examples/word_count.py` needs Millrace and Java, and writes to a temporary directory.
"""

import tempfile
from pathlib import Path

import millrace as mr

work = Path(tempfile.mkdtemp(prefix="millrace-"))
inbox, location = work / "inbox", str(work / "words")
inbox.mkdir()
spark = mr.session(master="local[2]")


def show(changed, batch_id):
    rows = sorted(changed.collect(), key=lambda row: (-row.n, row.word))
    print(f"batch {batch_id}:", *(f"{row.word}={row.n}" for row in rows))


lines = spark.readStream.text(str(inbox))
words = lines.selectExpr("explode(split(lower(value), '[^a-z]+')) AS word").where("word <> ''")
counts = mr.stream(words).key_by("word").aggregate(n=mr.count(), name="words")
query = counts.for_each_batch(show).start(location, parallelism=2)

(inbox / "1.txt").write_text("The mill turns, the water runs.\nThe water turns the mill.\n")
query.process_all_available()
(inbox / "2.txt").write_text("Of the water, and the wheel.\n")
query.process_all_available()
query.stop()

# All of the state, from this process or any other.
state = mr.open(location)
print(f"epoch {state.epoch}: {state.to_arrow('words').num_rows} words")
