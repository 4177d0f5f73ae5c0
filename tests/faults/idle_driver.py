"""A driver that commits one epoch and then waits for a trigger that does not come.

    python -m tests.faults.idle_driver INPUT LOCATION PATH

So does one whose clock was set back. It prints the name and the text of the error that ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults import driver

from millrace.errors import FencedError, MillraceError
from millrace.spark import run


def main() -> None:
    folder, location, path = map(Path, sys.argv[1:])
    run.FENCE_SECONDS = 0.5
    spark = driver.session()
    query = driver.build(spark, folder, "parquet", path).start(
        str(location), parallelism=2, trigger="10000 hours"
    )
    try:
        query.await_termination()
    except MillraceError as error:
        print(type(error).__name__, error, flush=True)
    assert not query.is_active
    assert isinstance(query.exception(), FencedError)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
