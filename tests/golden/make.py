"""Make the golden location of the current format: `python -m tests.golden.make`.

Once per format version. What is there is never made again: that it can still be read is the point.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from tests.golden import program

import millrace as mr
from millrace.log.manifest import FORMAT_VERSION

BATCHES = 12


def main() -> None:
    target = program.FOLDER / f"format-{FORMAT_VERSION}.tar.gz"
    if target.exists():
        sys.exit(f"{target} exists. Golden locations are kept as they are.")
    with tempfile.TemporaryDirectory() as scratch:
        inbox, location = Path(scratch, "in"), Path(scratch, "location")
        inbox.mkdir()
        spark = mr.session("golden", master="local[2]", config={"spark.ui.enabled": "false"})
        for first, parallelism in ((0, 1), (4, 3), (8, 2)):
            query = (
                program.stream(spark, inbox)
                .to("noop")
                .start(str(location), parallelism=parallelism, key_groups=4, trigger="1 second")
            )
            for batch in range(first, first + 4):
                program.drop(inbox, batch)
                query.process_all_available()
            query.stop()
        spark.stop()
        program.check(mr.open(str(location), lease=False), BATCHES)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(location, "location")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
