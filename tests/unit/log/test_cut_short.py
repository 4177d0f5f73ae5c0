"""A mapped file that is cut short under a process is an error, not the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

from millrace.errors import CorruptSegmentError
from millrace.log.segment import open_segment

SCHEMA = pa.schema([("n", pa.int64())])

READ = """
import os, sys
from millrace.errors import CorruptSegmentError
from tests.unit.driving import Location
from tests.unit.log.test_cut_short import SCHEMA
location = Location(sys.argv[1], SCHEMA, 4)
replica = location.follow(location.replica())
if sys.argv[2] == "read":
    replica.read(location.every)
for path in location.store.list("segments"):
    os.truncate(location.store.local_path(path), int(sys.argv[3]))
try:
    if sys.argv[2] == "read":
        location.follow(replica)
    replica.read(location.every)
except CorruptSegmentError as error:
    sys.exit(0 if "cut" in str(error) else 3)
sys.exit(2)
"""


@pytest.fixture
def location(tmp_path: Path) -> Location:
    made = Location(str(tmp_path / "location"), SCHEMA, 4)
    for epoch in range(2):
        # More than a page of memory, so that the missing part is not in one that is still there.
        made.step({fingerprint(k): (epoch,) for k in range(3000)})
    return made


@pytest.mark.parametrize(("when", "keep"), [("open", 0), ("read", 5000)])
def test_a_file_cut_short_after_it_was_opened_or_read(
    location: Location, keep: int, when: str
) -> None:
    """In a process of its own, which a signal would end."""
    root = Path(__file__).parents[3]
    paths = [str(root / "src"), str(root)]
    done = subprocess.run(
        [sys.executable, "-c", READ, location.store.url, when, str(keep)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert done.returncode == 0


def test_a_file_that_was_deleted_or_replaced_is_still_there_for_whoever_mapped_it(
    location: Location,
) -> None:
    entry = next(iter(location.trail.segments()))
    segment = open_segment(location.store, entry)
    full = Path(location.store.url) / entry.path
    rows = segment.page(0).num_rows
    full.unlink()
    assert segment.page(0).num_rows == rows
    full.write_bytes(b"another file")
    assert segment.page(0).num_rows == rows
    with pytest.raises(CorruptSegmentError, match="has 12 bytes"):
        open_segment(location.store, entry)
